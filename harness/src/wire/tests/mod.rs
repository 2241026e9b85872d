//! Wires between real sockets: each mode, in each direction, on connections that live and on new ones.

mod bytes;
mod framing;
mod line;
mod message;

use super::{Counts, Mode, Protocol, Wire};
use host_kit::{Random, Reserved};
use std::cell::RefCell;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

/// Generous: what is awaited comes within milliseconds on an idle machine.
const WITHIN: Duration = Duration::from_secs(60);

/// Runs a test on a thread of its own runtime, as the harness runs.
fn local(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let test = async { tokio::time::timeout(WITHIN, test).await.expect("the test hangs") };
    runtime.block_on(LocalSet::new().run_until(test));
}

async fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let wait = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(WITHIN, wait).await.is_ok(), "{what}: never");
}

/// What a socket's reader sees.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Bytes(Vec<u8>),
    Fin,
    Rst,
}

async fn hear(stream: &mut TcpStream) -> Heard {
    let mut buffer = vec![0; 4096];
    match stream.read(&mut buffer).await {
        Ok(0) => Heard::Fin,
        Ok(n) => Heard::Bytes(buffer[..n].to_vec()),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Heard::Rst,
        Err(error) => panic!("{error}"),
    }
}

async fn hear_exactly(stream: &mut TcpStream, wanted: &[u8]) {
    let mut heard = vec![0; wanted.len()];
    stream.read_exact(&mut heard).await.unwrap();
    assert_eq!(heard, wanted);
}

/// Whether there is nothing to read now.
fn hears_nothing(stream: &TcpStream) -> bool {
    let mut buffer = [0; 16];
    matches!(stream.try_read(&mut buffer), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// A wire to a listener that the test itself accepts on.
struct Raw {
    wire: Wire,
    target: TcpListener,
    /// Where it accepts, also while it does not.
    kept: Reserved,
}

impl Raw {
    async fn new(protocol: Protocol) -> Self {
        let kept = Reserved::loopback().unwrap();
        let target = TcpListener::bind(kept.address()).await.unwrap();
        let wire = Wire::lay("a->b", &kept.address().to_string(), protocol, Random::seeded(1)).unwrap();
        Self { wire, target, kept }
    }

    async fn call(&self) -> TcpStream {
        TcpStream::connect(self.wire.address()).await.unwrap()
    }

    /// Both ends of a connection that has carried a byte each way.
    async fn joined(&self) -> (TcpStream, TcpStream) {
        let mut caller = self.call().await;
        let (mut target, _) = self.target.accept().await.unwrap();
        caller.write_all(b">").await.unwrap();
        hear_exactly(&mut target, b">").await;
        target.write_all(b"<").await.unwrap();
        hear_exactly(&mut caller, b"<").await;
        (caller, target)
    }

    /// A connection through the wire carries bytes again.
    async fn mended(&self) {
        self.wire.set(Mode::PASS);
        drop(self.joined().await);
    }

    async fn counted(&self, what: &str, is: impl Fn(&Counts) -> bool) {
        counted(&self.wire, what, is).await;
    }
}

async fn counted(wire: &Wire, what: &str, is: impl Fn(&Counts) -> bool) {
    eventually(what, || is(&wire.counts())).await;
}

/// Bytes that an HTTP server heard, one entry a request, heads and all.
type Book = Rc<RefCell<Vec<Vec<u8>>>>;

/// A wire to an HTTP server that writes down what it hears before it answers.
struct Served {
    wire: Wire,
    book: Book,
}

impl Served {
    /// `answer` makes the answer to the n-th request of the server, and whether the connection is closed then.
    async fn new(answer: fn(usize) -> (Vec<u8>, bool)) -> Self {
        let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = target.local_addr().unwrap().to_string();
        let book = Book::default();
        let wire = Wire::lay("a->b", &to, Protocol::Http, Random::seeded(1)).unwrap();
        let heard = Rc::clone(&book);
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = target.accept().await {
                tokio::task::spawn_local(serve(stream, Rc::clone(&heard), answer));
            }
        });
        Self { wire, book }
    }

    fn heard(&self) -> Vec<String> {
        let book = self.book.borrow();
        book.iter()
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            .collect()
    }

    async fn call(&self) -> TcpStream {
        TcpStream::connect(self.wire.address()).await.unwrap()
    }
}

async fn serve(mut stream: TcpStream, book: Book, answer: fn(usize) -> (Vec<u8>, bool)) {
    let (mut waiting, mut buffer) = (Vec::new(), vec![0; 10_000]);
    loop {
        while let Some(n) = one_request(&waiting) {
            let request: Vec<u8> = waiting.drain(..n).collect();
            book.borrow_mut().push(request);
            let number = book.borrow().len();
            let (bytes, close) = answer(number);
            if stream.write_all(&bytes).await.is_err() || close {
                return;
            }
        }
        match stream.read(&mut buffer).await {
            Ok(n) if n > 0 => waiting.extend_from_slice(&buffer[..n]),
            _ => return,
        }
    }
}

/// The length of the whole request at the beginning, read another way than the wire does.
fn one_request(bytes: &[u8]) -> Option<usize> {
    let find = |what: &[u8], from: usize| {
        bytes[from..]
            .windows(what.len())
            .position(|window| window == what)
            .map(|at| from + at + what.len())
    };
    let head = find(b"\r\n\r\n", 0)?;
    let text = String::from_utf8_lossy(&bytes[..head]).to_lowercase();
    if text.contains("transfer-encoding: chunked") {
        return find(b"\r\n0\r\n\r\n", head);
    }
    let length = text
        .split("content-length: ")
        .nth(1)
        .map_or(0, |rest| rest.split('\r').next().unwrap().parse().unwrap());
    (bytes.len() >= head + length).then_some(head + length)
}

/// An answer whose body is the number of the request.
fn numbered(n: usize) -> (Vec<u8>, bool) {
    let body = n.to_string();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    (format!("{head}{body}").into_bytes(), false)
}

fn post(body: &str) -> String {
    format!(
        "POST /pay HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn chunked(body: &[&str]) -> String {
    let mut request = "POST /pay HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned();
    for chunk in body {
        request.push_str(&format!("{:x}\r\n{chunk}\r\n", chunk.len()));
    }
    request.push_str("0\r\n\r\n");
    request
}

async fn ask(stream: &mut TcpStream, request: &str) {
    stream.write_all(request.as_bytes()).await.unwrap();
}

async fn answered(stream: &mut TcpStream, number: usize) {
    hear_exactly(stream, &numbered(number).0).await;
}
