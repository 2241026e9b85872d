//! The client on its own thread against a real lock server on a real socket, with a store in a file; and against fronts
//! that answer a heartbeat with anything but life.
#![allow(clippy::unwrap_used, reason = "tests")]

mod served;
mod wire;

use host_kit::Host;
use lock_api::{LockError, LockKey, LostReason, Owner};
use lock_client::{ClientOptions, HeldLock, LockClient};
use served::Server;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use wire::message;

/// Longer than anything that works takes.
const LONG: Duration = Duration::from_secs(30);
/// A lease that outlasts every standstill of the machine.
const TTL: Duration = Duration::from_secs(15);
/// One whose end is awaited.
const SHORT: Duration = Duration::from_secs(5);
const MARGIN: Duration = Duration::from_millis(400);

fn key(key: &str) -> LockKey {
    LockKey::new(key).unwrap()
}

fn options() -> ClientOptions {
    ClientOptions::new(Owner::new("w1").unwrap())
        .session_ttl(TTL)
        .safety_margin(MARGIN)
}

/// What a front does with heartbeats; everything else goes to the server.
#[derive(Clone, Copy, Debug)]
enum Heartbeats {
    Answer(&'static str),
    Silence,
    Close,
}

async fn front(upstream: SocketAddr, heartbeats: Heartbeats) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    actix_rt::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            actix_rt::spawn(async move { drop(serve(stream, upstream, heartbeats).await) });
        }
    });
    format!("http://{addr}")
}

async fn serve(mut stream: TcpStream, upstream: SocketAddr, heartbeats: Heartbeats) -> io::Result<()> {
    let mut server = TcpStream::connect(upstream).await?;
    while let Some(request) = message(&mut stream).await? {
        let line = String::from_utf8_lossy(&request);
        if line.lines().next().is_some_and(|line| line.contains("/heartbeat")) {
            match heartbeats {
                Heartbeats::Answer(answer) => stream.write_all(answer.as_bytes()).await?,
                Heartbeats::Silence => std::future::pending().await,
                Heartbeats::Close => return Ok(()),
            }
            continue;
        }
        server.write_all(&request).await?;
        let Some(answer) = message(&mut server).await? else {
            return Ok(());
        };
        stream.write_all(&answer).await?;
    }
    Ok(())
}

#[actix_rt::test]
async fn a_heartbeat_answered_with_404_500_garbage_or_nothing_ends_in_lost_by_the_deadline() {
    let server = Server::start().await;
    let clock = Host::system().clock;
    let each = [
        Heartbeats::Answer("HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\nnot here\n"),
        Heartbeats::Answer("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"),
        Heartbeats::Answer("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n\0<html>"),
        Heartbeats::Answer("220 mail.example ESMTP\r\n"),
        Heartbeats::Answer(
            "HTTP/1.1 200 OK\r\ncontent-length: 70\r\n\r\n{\"session_id\": \"somebody-else\", \"expires_in_ms\": 60000, \"held\": []}   ",
        ),
        Heartbeats::Silence,
        Heartbeats::Close,
    ];
    let (server_addr, clock) = (server.addr, &clock);
    let work = each.into_iter().enumerate().map(|(n, heartbeats)| async move {
        let url = front(server_addr, heartbeats).await;
        let from = clock.boot();
        let client = LockClient::connect(&[url], options().session_ttl(SHORT)).await.unwrap();
        let held = client.acquire(&key(&format!("k{n}"))).await.unwrap();
        let lost = tokio::time::timeout(LONG, held.lost()).await.expect("lost");
        let took = clock.boot() - from;
        assert_eq!(lost.reason, LostReason::DeadlineLapsed, "{heartbeats:?}");
        assert!(held.check_still_held().is_err());
        // The session is younger than `from`; a busy machine may be late in telling, never early in keeping.
        assert!(
            took >= SHORT - MARGIN - Duration::from_millis(50),
            "{heartbeats:?} after {took:?}"
        );
        drop(held);
        client.close().await.unwrap();
    });
    futures_util::future::join_all(work).await;
    server.stop().await;
}

#[actix_rt::test]
async fn case_l19_a_guard_is_dropped_inside_a_runtime_outside_one_and_in_a_panic() {
    let server = Server::start().await;
    let client = LockClient::connect(&[server.url()], options()).await.unwrap();
    let take = async || {
        tokio::time::timeout(LONG, client.acquire_within(&key("k"), LONG))
            .await
            .unwrap()
            .unwrap()
    };

    let held = take().await;
    drop(held);

    let held = take().await;
    elsewhere(move || drop(held)).await.expect("no panic outside a runtime");

    let held = take().await;
    elsewhere(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async move { drop(held) });
    })
    .await
    .expect("no panic inside another runtime");

    let held = take().await;
    let panicked = elsewhere(move || {
        let _held = held;
        panic!("the application's");
    })
    .await;
    assert!(panicked.is_err());

    // Each of them gave the key back, or this would wait for the TTL to end.
    let held = take().await;
    // And one that outlives its client's last handle.
    drop(client);
    elsewhere(move || drop(held)).await.expect("no panic after the client");
    server.stop().await;
}

#[allow(clippy::disallowed_methods, reason = "a thread without any runtime")]
async fn elsewhere(work: impl FnOnce() + Send + 'static) -> std::thread::Result<()> {
    let (done, ended) = oneshot::channel();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::spawn(move || drop(done.send(std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)))));
    let result = ended.await.unwrap();
    std::panic::set_hook(hook);
    result
}

#[actix_rt::test]
async fn the_handle_works_from_any_thread_and_runtime() {
    fn send_and_sync<T: Send + Sync + 'static>(_: &T) {}
    let server = Server::start().await;
    let client = LockClient::connect(&[server.url()], options()).await.unwrap();
    send_and_sync(&client);
    let in_thread = client.clone();
    let (done, ended) = oneshot::channel::<HeldLock>();
    // No runtime at all there: futures need none to be driven.
    let work = move || {
        let held = futures_executor(in_thread.acquire(&key("k"))).unwrap();
        send_and_sync(&held);
        assert!(held.check_still_held().is_ok());
        drop(done.send(held));
    };
    let (worked, held) = tokio::join!(elsewhere(work), ended);
    worked.expect("no runtime is needed");
    let held = held.unwrap();
    assert!(matches!(client.try_acquire(&key("k")).await, Err(LockError::HeldByOther(held)) if held.is_self));
    held.release().await.unwrap();
    client.close().await.unwrap();
    server.stop().await;
}

/// Polls a future to its end without any runtime.
#[allow(clippy::disallowed_methods, reason = "a thread of its own, parked between polls")]
fn futures_executor<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    let mut cx = std::task::Context::from_waker(&waker);
    loop {
        if let std::task::Poll::Ready(ready) = future.as_mut().poll(&mut cx) {
            return ready;
        }
        std::thread::park();
    }
}

#[actix_rt::test]
async fn a_dead_server_is_passed_over_and_a_rewound_one_found_out() {
    let (first, second) = (Server::start().await, Server::start().await);
    let dead = host_kit::Reserved::loopback().unwrap();
    let urls = [format!("http://{}", dead.address()), first.url(), second.url()];
    let client = LockClient::connect(&urls, options().session_ttl(SHORT)).await.unwrap();
    let held = client.acquire(&key("k")).await.unwrap();
    let lost = held.lost();
    first.stop().await;
    // The session was the first server's: whichever sign of it comes first, the loss is told.
    let lost = tokio::time::timeout(LONG, lost).await.expect("lost");
    assert!(
        matches!(
            lost.reason,
            LostReason::SessionLost | LostReason::DeadlineLapsed | LostReason::Superseded
        ),
        "{lost}"
    );
    // The second server has a store of its own that never minted the token this client has seen: for the client it is
    // the same service after a restore, and the witness it sends along is what finds that out. No grant (FR-27).
    let refused = tokio::time::timeout(LONG, client.acquire_within(&key("k"), LONG))
        .await
        .unwrap();
    assert!(matches!(refused, Err(LockError::TokenRegression { .. })), "{refused:?}");
    client.close().await.unwrap();
    second.stop().await;
}

#[actix_rt::test]
async fn addresses_that_are_none_are_refused() {
    for urls in [
        vec![],
        vec!["127.0.0.1:1"],
        vec!["http://"],
        vec!["ftp://h"],
        vec!["https://h"],
    ] {
        let refused = LockClient::connect(&urls, options()).await;
        assert!(matches!(refused, Err(LockError::Invalid { .. })), "{urls:?}");
    }
    let nobody = LockClient::connect(&["http://127.0.0.1:9"], options().attempts_max(2)).await;
    assert!(matches!(nobody, Err(LockError::Unavailable { .. })), "{nobody:?}");
}
