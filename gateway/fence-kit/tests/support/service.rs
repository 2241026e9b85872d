//! A service that knows nothing of dlock: it does whatever it is asked, in the order in which it gets to it, and goes on
//! although its caller has gone. What a request's path says, it does:
//! `/accounts/K/ID?hold=MS` waits before its effect, `?late=MS` after it; `?gate` waits for [`Service::open_gate`];
//! `?do=close|redirect|interim|truncated|big|early` and those of [`answer`] answers in that way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub head: String,
    pub body: Vec<u8>,
}

#[derive(Default)]
struct Book {
    seen: Vec<Seen>,
    /// Effects in their order: key and token.
    effects: Vec<(String, u64)>,
    /// Connections that are being worked on, by their number.
    open: BTreeSet<u64>,
    accepted: u64,
}

/// The running service. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    pub address: String,
    book: Arc<Mutex<Book>>,
    gate: Arc<watch::Sender<bool>>,
}

impl Service {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let service = Self {
            address: listener.local_addr().unwrap().to_string(),
            book: Arc::default(),
            gate: Arc::new(watch::Sender::new(false)),
        };
        let accepting = service.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = accepting.clone();
                let number = {
                    let mut book = service.book.lock().unwrap();
                    book.accepted += 1;
                    let number = book.accepted;
                    book.open.insert(number);
                    number
                };
                tokio::spawn(async move {
                    service.serve(stream).await;
                    service.book.lock().unwrap().open.remove(&number);
                });
            }
        });
        service
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.book.lock().unwrap().seen.clone()
    }

    /// How many requests to this path arrived.
    pub fn count(&self, path: &str) -> usize {
        self.seen().iter().filter(|seen| seen.path.starts_with(path)).count()
    }

    pub fn effects(&self) -> Vec<(String, u64)> {
        self.book.lock().unwrap().effects.clone()
    }

    /// Effects under a token below one that had its effect before.
    pub fn stale(&self) -> usize {
        let mut highest = BTreeMap::<String, u64>::new();
        let mut stale = 0;
        for (key, token) in self.effects() {
            let known = highest.entry(key).or_default();
            stale += usize::from(token < *known);
            *known = (*known).max(token);
        }
        stale
    }

    /// Lets everything go on that waits at the gate.
    pub fn open_gate(&self) {
        self.gate.send_replace(true);
    }

    /// Whether everything that was sent before this call has had its effect, or never will: what an operator finds out.
    /// Connections are accepted in their order, so one of our own marks the place.
    pub async fn settled(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(&self.address).await else {
            return false;
        };
        let request = b"GET /probe HTTP/1.1\r\nconnection: close\r\n\r\n";
        let mut answer = Vec::new();
        if stream.write_all(request).await.is_err() || stream.read_to_end(&mut answer).await.is_err() {
            return false;
        }
        let text = String::from_utf8_lossy(&answer);
        let Some(before) = text.rsplit('\n').next().and_then(|number| number.parse::<u64>().ok()) else {
            return false;
        };
        for _ in 0..2_000 {
            if self.book.lock().unwrap().open.iter().all(|open| *open > before) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        false
    }

    async fn serve(&self, mut stream: TcpStream) {
        let Some(seen) = read(&mut stream).await else { return };
        if seen.path == "/probe" {
            let accepted = self.book.lock().unwrap().accepted;
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 20\r\nconnection: close\r\n\r\n\n{accepted:019}");
            let _ = stream.write_all(answer.as_bytes()).await;
            return;
        }
        let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
        let asked: BTreeMap<&str, &str> = query
            .split('&')
            .filter_map(|part| part.split_once('=').or(Some((part, ""))))
            .collect();
        let millis = |name: &str| {
            asked
                .get(name)
                .and_then(|value| value.parse().ok())
                .map(Duration::from_millis)
        };
        let key = path.split('/').nth(2).unwrap_or_default().to_owned();
        let token = seen
            .head
            .lines()
            .find_map(|line| line.strip_prefix("x-fencing-token: "))
            .and_then(|token| token.parse().ok());
        self.book.lock().unwrap().seen.push(seen.clone());
        if asked.contains_key("gate") {
            let _ = self.gate.subscribe().wait_for(|open| *open).await;
        }
        tokio::time::sleep(millis("hold").unwrap_or_default()).await;
        if let Some(token) = token
            && seen.method != "GET"
        {
            self.book.lock().unwrap().effects.push((key, token));
        }
        tokio::time::sleep(millis("late").unwrap_or_default()).await;
        let answer: Vec<u8> = match asked.get("do").copied().unwrap_or_default() {
            "close" => Vec::new(),
            "redirect" => b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /accounts/elsewhere\r\ncontent-length: 0\r\n\r\n".to_vec(),
            "interim" => b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".to_vec(),
            "unchunked" => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n".to_vec(),
            "half-chunk" => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nabc".to_vec(),
            "half-end" => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n".to_vec(),
            "no-chunk" => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec(),
            "chunked" => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n".to_vec(),
            "truncated" => b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc".to_vec(),
            "until-close" => b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello body\n".to_vec(),
            "until-close-1.0" => b"HTTP/1.0 200 OK\r\n\r\nhello body\n".to_vec(),
            "until-close-identity" => b"HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\nhello body\n".to_vec(),
            "until-close-upgrade" => b"HTTP/1.1 426 Upgrade Required\r\nupgrade: websocket\r\n\r\nhello body\n".to_vec(),
            "interims" | "trickle" => b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n\
                HTTP/1.1 201 Created\r\nconnection: close\r\n\r\nhello body\n"
                .to_vec(),
            "switch" => b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n".to_vec(),
            "no-content" => b"HTTP/1.1 204 No Content\r\nContent-Length: 45\r\n\r\n\
                HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged"
                .to_vec(),
            "no-content-chunked" => b"HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n6\r\nforged\r\n0\r\n\r\n".to_vec(),
            "not-modified" => b"HTTP/1.1 304 Not Modified\r\ncontent-length: 4\r\netag: \"a\"\r\n\r\n".to_vec(),
            "not-modified-body" => b"HTTP/1.1 304 Not Modified\r\ncontent-length: 6\r\n\r\nforged".to_vec(),
            "nothing" => b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec(),
            "error" => b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\n\r\noops".to_vec(),
            "big" => {
                let mut answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
                for _ in 0..64 {
                    answer.extend_from_slice(b"4000\r\n");
                    answer.extend_from_slice(&[b'z'; 0x4000]);
                    answer.extend_from_slice(b"\r\n");
                }
                answer.extend_from_slice(b"0\r\n\r\n");
                answer
            }
            _ => format!(
                "HTTP/1.1 200 OK\r\nx-of-the-service: yes\r\nconnection: close, x-hop\r\nx-hop: 1\r\ncontent-length: {}\r\n\r\ndone {}",
                5 + seen.body.len().to_string().len(),
                seen.body.len()
            )
            .into_bytes(),
        };
        let at_once = if asked.get("do") == Some(&"trickle") {
            1
        } else {
            answer.len().max(1)
        };
        for piece in answer.chunks(at_once) {
            let _ = stream.write_all(piece).await;
            tokio::task::yield_now().await;
        }
        let _ = stream.shutdown().await;
    }
}

/// Reads one request; none where it broke off.
async fn read(stream: &mut TcpStream) -> Option<Seen> {
    let mut raw = Vec::new();
    let mut piece = vec![0; 65_536];
    let at = loop {
        if let Some(at) = raw.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => raw.extend_from_slice(&piece[..read]),
        }
    };
    let head = String::from_utf8_lossy(&raw[..at]).to_ascii_lowercase();
    let line = String::from_utf8_lossy(&raw[..at]).lines().next()?.to_owned();
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .and_then(|length| length.parse::<usize>().ok());
    let chunked = head.contains("transfer-encoding: chunked");
    loop {
        let body = &raw[at + 4..];
        let whole = match length {
            Some(length) => body.len() >= length,
            None => !chunked || body.ends_with(b"0\r\n\r\n"),
        };
        if whole {
            let body = if chunked { unchunked(body)? } else { body.to_vec() };
            return Some(Seen {
                method,
                path,
                head,
                body,
            });
        }
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => raw.extend_from_slice(&piece[..read]),
        }
    }
}

pub fn unchunked(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let at = body.windows(2).position(|two| two == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&body[..at]).ok()?, 16).ok()?;
        if size == 0 {
            return (&body[at..] == b"\r\n\r\n").then_some(whole);
        }
        whole.extend_from_slice(body.get(at + 2..at + 2 + size)?);
        body = body.get(at + 4 + size..)?;
    }
}
