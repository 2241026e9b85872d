//! As much of HTTP/1.1 as a rail needs that has to misbehave on the socket itself.
//!
//! Owns: reading a request completely, and writing an answer. Does not own: what is answered. On failure: what is no
//! request, or is too large, closes the connection after a 4xx.

use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The longest head of a request, in bytes (NFR-11).
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// The longest body of a request, in bytes: room for the largest set of rules.
const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A request, read to its last byte.
#[derive(Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub query: String,
    pub body: Vec<u8>,
    /// What tells whether it is to be let in.
    pub shown: Shown,
    /// Whether another request may follow on the connection.
    pub keep_alive: bool,
}

/// The headers that tell where a request comes from; each as often as it stands there.
#[derive(Debug, Default)]
pub struct Shown {
    pub hosts: Vec<String>,
    pub origins: Vec<String>,
    pub fetch_site: Option<String>,
    pub content_type: Option<String>,
}

/// What came instead of a request.
#[derive(Debug)]
pub enum NoRequest {
    /// The peer has gone.
    Closed,
    /// It is to be answered with this status, and the connection closed.
    Bad(u16, &'static str),
}

impl From<io::Error> for NoRequest {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub content_type: &'static str,
    /// Further header lines, each with its line end.
    pub headers: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// JSON.
    pub fn json(status: u16, body: &impl serde::Serialize) -> Self {
        Self {
            status,
            content_type: "application/json",
            headers: String::new(),
            body: serde_json::to_vec(body).unwrap_or_default(),
        }
    }

    /// What is wrong with a request.
    pub fn error(status: u16, detail: impl Into<String>) -> Self {
        Self::json(status, &serde_json::json!({ "error": detail.into() }))
    }

    /// With a further header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    /// The head of it alone, for HEAD: as of the whole answer.
    pub fn head(&self, keep_alive: bool) -> Vec<u8> {
        let mut bytes = self.bytes(keep_alive);
        bytes.truncate(bytes.len() - self.body.len());
        bytes
    }

    /// The bytes on the wire.
    pub fn bytes(&self, keep_alive: bool) -> Vec<u8> {
        let mut bytes = format!(
            "HTTP/1.1 {} {}\r\ncontent-type: {}\r\ncontent-length: {}\r\nconnection: {}\r\n{}\r\n",
            self.status,
            reason(self.status),
            self.content_type,
            self.body.len(),
            if keep_alive { "keep-alive" } else { "close" },
            self.headers
        )
        .into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

const fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        204 => "No Content",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        404 => "Not Found",
        403 => "Forbidden",
        405 => "Method Not Allowed",
        411 => "Length Required",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}

/// A connection with the bytes that were read beyond the last request.
#[derive(Debug)]
pub struct Connection {
    pub stream: TcpStream,
    rest: Vec<u8>,
}

impl Connection {
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            rest: Vec::new(),
        }
    }

    /// Reads the next request to its last byte.
    pub async fn read(&mut self) -> Result<Request, NoRequest> {
        let head_end = loop {
            if let Some(at) = self.rest.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if self.rest.len() > HEAD_BYTES_MAX {
                return Err(NoRequest::Bad(431, "the head is too long"));
            }
            self.fill().await?;
        };
        let head = parse_head(&self.rest[..head_end]).ok_or(NoRequest::Bad(400, "this is no HTTP/1.1 request"))?;
        if head.chunked {
            return Err(NoRequest::Bad(411, "send the body with a content-length"));
        }
        if head.length > BODY_BYTES_MAX {
            return Err(NoRequest::Bad(413, "the body is too large"));
        }
        self.rest.drain(..head_end);
        if head.expects_continue && self.rest.len() < head.length {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        while self.rest.len() < head.length {
            self.fill().await?;
        }
        let body = self.rest.drain(..head.length).collect();
        let (path, query) = head.target.split_once('?').unwrap_or((&head.target, ""));
        Ok(Request {
            method: head.method,
            path: path.to_owned(),
            query: query.to_owned(),
            body,
            shown: head.shown,
            keep_alive: head.keep_alive,
        })
    }

    async fn fill(&mut self) -> Result<(), NoRequest> {
        let mut chunk = [0; 8192];
        match self.stream.read(&mut chunk).await? {
            0 => Err(NoRequest::Closed),
            n => {
                self.rest.extend_from_slice(&chunk[..n]);
                Ok(())
            }
        }
    }

    /// Ready when the peer has closed or reset. What it still sends is thrown away.
    pub async fn gone(&mut self) {
        let mut chunk = [0; 1024];
        while matches!(self.stream.read(&mut chunk).await, Ok(1..)) {}
    }
}

struct Head {
    method: String,
    target: String,
    length: usize,
    chunked: bool,
    expects_continue: bool,
    keep_alive: bool,
    shown: Shown,
}

fn parse_head(bytes: &[u8]) -> Option<Head> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut lines = text.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, target, version) = (first.next()?, first.next()?, first.next()?);
    if first.next().is_some() || !target.starts_with('/') || !version.starts_with("HTTP/1.") {
        return None;
    }
    let mut head = Head {
        method: method.to_owned(),
        target: target.to_owned(),
        length: 0,
        chunked: false,
        expects_continue: false,
        keep_alive: version != "HTTP/1.0",
        shown: Shown::default(),
    };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':')?;
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => head.length = value.parse().ok()?,
            "transfer-encoding" => head.chunked = true,
            "expect" => head.expects_continue = value.eq_ignore_ascii_case("100-continue"),
            "host" => head.shown.hosts.push(value.to_owned()),
            "origin" => head.shown.origins.push(value.to_owned()),
            "sec-fetch-site" => head.shown.fetch_site = Some(value.to_owned()),
            "content-type" => head.shown.content_type = Some(value.to_ascii_lowercase()),
            "connection" => head.keep_alive = !value.eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
    Some(head)
}

/// One parameter of a query, percent-decoded. None when it is missing or no UTF-8.
pub fn query_value(query: &str, name: &str) -> Option<String> {
    let (_, value) = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .find(|(key, _)| *key == name)?;
    let value = value.replace('+', " ");
    percent_encoding::percent_decode_str(&value)
        .decode_utf8()
        .ok()
        .map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_or_refused() {
        let head = parse_head(b"POST /submit HTTP/1.1\r\nContent-Length: 12\r\nConnection: close\r\n\r\n").unwrap();
        assert_eq!(
            (head.method.as_str(), head.length, head.keep_alive),
            ("POST", 12, false)
        );
        for bad in [
            "\r\n\r\n",
            "POST\r\n\r\n",
            "POST submit HTTP/1.1\r\n\r\n",
            "GET / SPDY/3\r\n\r\n",
            "GET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
            "GET / HTTP/1.1\r\nnot a header\r\n\r\n",
        ] {
            assert!(parse_head(bad.as_bytes()).is_none(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_query_is_decoded() {
        assert_eq!(
            query_value("a=1&client_reference=p%2F%C3%A9", "client_reference"),
            Some("p/é".into())
        );
        assert_eq!(query_value("a=%ff", "a"), None);
        assert_eq!(query_value("", "a"), None);
    }
}
