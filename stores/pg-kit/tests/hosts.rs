//! Several hosts in one URL, of which one accepts connections and says nothing: a primary that was frozen, or cut off
//! behind something that still accepts in its name.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "tests read the clock")]

use pg_kit::{Access, Connector, Pooled};
use std::time::Duration;
use test_servers::postgres_or_skip;
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout};

/// Far more than anything here takes.
const WITHIN: Duration = Duration::from_secs(60);

/// A port that accepts in the kernel's name for as long as the listener is kept, and never answers.
async fn frozen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// The server's URL with a silent host in front of it.
fn behind(silent: u16, url: &str) -> String {
    let (scheme_and_user, rest) = url.split_once('@').unwrap();
    format!("{scheme_and_user}@127.0.0.1:{silent},{rest}")
}

#[tokio::test]
async fn a_host_that_accepts_and_says_nothing_hides_no_other() {
    let url = postgres_or_skip().await;
    let (_listener, silent) = frozen().await;
    let access = Access {
        // No call waits as long as this, so that only another host can help.
        connect_within: WITHIN,
        ..Access::at(behind(silent, &url))
    };
    let pool = Pooled::new(&access).unwrap();
    let connection = pool.get(Instant::now() + WITHIN / 2).await.unwrap();
    connection.batch_execute("SELECT 1").await.unwrap();
    connection.done();
    // The same for connections outside a pool.
    let (client, _io) = timeout(WITHIN / 2, Connector::new(&access).unwrap().connect_alone())
        .await
        .expect("a connection to the host that answers")
        .unwrap();
    client.batch_execute("SELECT 1").await.unwrap();
}

#[tokio::test]
async fn a_host_that_says_nothing_is_given_up_after_the_connect_timeout() {
    let (_listener, silent) = frozen().await;
    let access = Access {
        connect_within: Duration::from_millis(200),
        ..Access::at(format!("postgres://nobody@127.0.0.1:{silent}/nothing"))
    };
    let alone = timeout(WITHIN, Connector::new(&access).unwrap().connect_alone()).await;
    let error = alone.expect("an end of its own").map(drop).unwrap_err();
    assert!(error.to_string().contains("no connection"), "{error}");
    let pooled = timeout(WITHIN, Pooled::new(&access).unwrap().get(Instant::now() + 2 * WITHIN)).await;
    let error = pooled.expect("an end of its own").map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("no connection"), "{error}");
}

#[tokio::test]
async fn the_last_host_s_refusal_is_told_when_none_answers() {
    let closed = test_servers::reserved();
    let url = format!("postgres://nobody@{0},{0}/nothing", closed.address());
    let alone = Connector::new(&Access::at(url)).unwrap().connect_alone().await;
    let error = alone.map(drop).unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
}
