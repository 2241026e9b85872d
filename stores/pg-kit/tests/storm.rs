//! A database that takes longer to let anybody in than a call may wait, and everybody comes back to at once.
//! Regression: after a restart under load the rail proxy made connections for five minutes and got none, because each call
//! gave the making up with itself and the next one began it anew.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "tests read the clock")]

use pg_kit::{Access, Pooled};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use test_servers::postgres_or_skip;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// How long a call waits for a connection.
const CALL: Duration = Duration::from_millis(100);
/// How long the server lets whoever comes wait.
const DOOR: Duration = Duration::from_millis(400);
/// Far more than anything here takes.
const WITHIN: Duration = Duration::from_secs(60);
/// As `connector.rs` has it.
const MAKING_MAX: usize = 4;

/// How many connections are at the door, and how many were at most.
#[derive(Default)]
struct Door {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// A port in front of the server where each connection is kept waiting; the URL with it.
async fn slow_door(url: &str) -> (Arc<Door>, String) {
    let (rest, at) = url.rsplit_once('@').unwrap();
    let (address, name) = at.split_once('/').unwrap();
    let (address, listener) = (address.to_owned(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let slow = format!("{rest}@{}/{name}", listener.local_addr().unwrap());
    let door = Arc::new(Door::default());
    let seen = door.clone();
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            let (address, seen) = (address.clone(), seen.clone());
            tokio::spawn(async move {
                let now = seen.now.fetch_add(1, Ordering::SeqCst) + 1;
                seen.most.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(DOOR).await;
                seen.now.fetch_sub(1, Ordering::SeqCst);
                if let Ok(mut to) = TcpStream::connect(address).await {
                    let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                }
            });
        }
    });
    (door, slow)
}

#[tokio::test]
async fn a_connection_that_is_made_too_late_for_one_call_is_there_for_the_next() {
    let (_door, url) = slow_door(&postgres_or_skip().await).await;
    let pool = Pooled::new(&Access::at(url)).unwrap();
    let first = pool.get(Instant::now() + CALL).await;
    assert!(
        first.is_err(),
        "the door was quicker than the call: the test shows nothing"
    );
    let until = Instant::now() + WITHIN;
    let connection = loop {
        match pool.get(Instant::now() + CALL).await {
            Ok(connection) => break connection,
            Err(error) => assert!(Instant::now() < until, "never one: {error}"),
        }
    };
    connection.batch_execute("SELECT 1").await.unwrap();
    connection.done();
}

/// Regression: under load every call got its connection in its last moment, could do nothing with it in time and cost it.
#[tokio::test]
async fn waiting_for_a_connection_leaves_time_to_use_it() {
    let access = Access {
        pool_max: 1,
        ..Access::at(postgres_or_skip().await)
    };
    let pool = Pooled::new(&access).unwrap();
    let held = pool.get(Instant::now() + WITHIN).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(12);
    let error = pool.get(deadline).await.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("no connection became free"), "{error}");
    assert!(Instant::now() < deadline, "the whole time was spent on waiting");
    held.done();
}

#[tokio::test]
async fn a_crowd_makes_no_more_connections_at_once_than_it_may_and_is_served() {
    let (door, url) = slow_door(&postgres_or_skip().await).await;
    let pool = Pooled::new(&Access::at(url)).unwrap();
    let until = Instant::now() + WITHIN;
    let call = async || {
        loop {
            match pool.get(Instant::now() + CALL).await {
                Ok(connection) => {
                    connection.batch_execute("SELECT 1").await.unwrap();
                    return connection.done();
                }
                Err(error) => assert!(Instant::now() < until, "never one: {error}"),
            }
        }
    };
    futures_util::future::join_all((0..100).map(|_| call())).await;
    let most = door.most.load(Ordering::SeqCst);
    assert!((1..=MAKING_MAX).contains(&most), "{most} at once");
    // What was made for callers that had gone is kept.
    loop {
        let (open, idle) = pool.connections();
        if open > 0 && open == idle {
            break;
        }
        assert!(Instant::now() < until, "{open} open, {idle} idle");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
