//! What the tests of the proxy stand on: a service that knows nothing of dlock, a caller, the proxy as a process.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod process;
pub mod service;

use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than anything that works takes.
pub const LONG: Duration = Duration::from_secs(30);

/// An answer as it stood on the wire.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub raw: Vec<u8>,
}

impl Answer {
    /// The problem, or whatever JSON it is.
    pub fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.raw);
        let at = text.find('{').unwrap_or_else(|| panic!("no JSON: {self:?}"));
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter();
        values.next().unwrap().unwrap()
    }

    pub fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    pub fn reason(&self) -> String {
        self.json()["reason"].as_str().unwrap_or_default().to_owned()
    }

    /// The whole body, however it was cut into chunks on its way: where it is cut depends on when bytes arrived.
    pub fn text(&self) -> String {
        let body = if self.head.contains("transfer-encoding: chunked") {
            service::unchunked(&self.raw).unwrap_or_else(|| panic!("without its end: {self:?}"))
        } else {
            self.raw.clone()
        };
        String::from_utf8(body).unwrap()
    }
}

/// A request as it stands on the wire. No `content-length` where `body` is none.
pub fn wire(method: &str, path: &str, headers: &[(&str, &str)], body: Option<&[u8]>) -> Vec<u8> {
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    if let Some(body) = body {
        request += &format!("content-length: {}\r\n", body.len());
    }
    let mut request = (request + "\r\n").into_bytes();
    request.extend_from_slice(body.unwrap_or_default());
    request
}

/// Sends bytes and reads until the other side closes. None where it closed without a head.
pub async fn send(address: &str, request: &[u8]) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(request).await.ok()?;
    let mut raw = Vec::new();
    // A connection that is reset leaves what came before.
    let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut raw))
        .await
        .expect("no end of the answer");
    let at = raw.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&raw[..at]).to_ascii_lowercase();
    Some(Answer {
        status: head.split(' ').nth(1)?.parse().ok()?,
        head,
        raw: raw[at + 4..].to_vec(),
    })
}

/// A write under a token.
pub async fn write(address: &str, path: &str, token: u64) -> Answer {
    let request = wire("POST", path, &[("x-fencing-token", &token.to_string())], Some(b"x"));
    send(address, &request).await.expect("an answer")
}

pub async fn get(address: &str, path: &str) -> Answer {
    send(address, &wire("GET", path, &[], None)).await.expect("an answer")
}

/// Waits until something holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let from = Instant::now();
    while !holds().await {
        assert!(from.elapsed() < LONG, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
