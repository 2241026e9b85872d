//! A service that knows nothing of locks: it does whatever it is asked, when it gets to it, and goes on although its
//! caller has gone. It looks at no token; what it writes down of one is for the verdict alone.
//!
//! `POST /accounts/K?hold=MS` has its effect after so many milliseconds, and then answers 200.

use crate::stack::RunError;
use host_kit::Clock;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// One effect, or one row: the key, and the token it was asked for under.
pub(super) type Effect = (String, u64);

/// The service while it runs. Dropped, it is served no more.
pub(super) struct Service {
    pub(super) address: String,
    effects: Rc<RefCell<Vec<Effect>>>,
    serving: JoinHandle<()>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Service {
    pub(super) async fn serve(clock: &Clock) -> Result<Self, RunError> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .map_err(RunError::io("binding the service".to_owned()))?;
        let address = listener
            .local_addr()
            .map_err(RunError::io("binding the service".to_owned()))?
            .to_string();
        let effects: Rc<RefCell<Vec<Effect>>> = Rc::default();
        let (book, clock) = (effects.clone(), clock.clone());
        let serving = tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A request that was read is worked on to its end.
                drop(tokio::task::spawn_local(answer(stream, book.clone(), clock.clone())));
            }
        });
        Ok(Self {
            address,
            effects,
            serving,
        })
    }

    /// What it has done, in its order.
    pub(super) fn effects(&self) -> Vec<Effect> {
        self.effects.borrow().clone()
    }
}

async fn answer(mut stream: TcpStream, book: Rc<RefCell<Vec<Effect>>>, clock: Clock) {
    let mut head = Vec::new();
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if !matches!(stream.read_buf(&mut head).await, Ok(read) if read > 0) {
            return;
        }
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let path = head.split(' ').nth(1).unwrap_or_default();
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let key = path.trim_start_matches('/').to_owned();
    let hold = query.strip_prefix("hold=").and_then(|ms| ms.parse().ok()).unwrap_or(0);
    let token = head
        .lines()
        .find_map(|line| line.strip_prefix("x-fencing-token:")?.trim().parse().ok());
    clock.sleep(Duration::from_millis(hold)).await;
    if let Some(token) = token {
        book.borrow_mut().push((key, token));
    }
    // Who has gone hears nothing.
    let _ = stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\ndone")
        .await;
    let _ = stream.shutdown().await;
}
