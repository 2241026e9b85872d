//! A question of the harness's own through a wire: how the effect of a fault is seen where nobody else asks.
//!
//! Owns: asking in the wire's protocol, and telling the ways apart in which no answer comes.
//! Does not own: which of them is right. On failure: every failure is an answer.

use super::deliver::read_answer;
use super::framer::{Framer, Kind, Unanswered};
use super::link::{Protocol, Wire};
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// PostgreSQL's question whether the server speaks TLS: its length, its code. It is answered with one letter.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// What became of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed {
    /// Answered to the end.
    Answered {
        /// From the wish to connect to the end of the answer.
        took: Duration,
        /// The first line.
        said: String,
    },
    /// Nobody listens.
    Refused,
    /// Closed before an answer.
    Closed,
    /// Reset before an answer.
    Reset,
    /// Nothing at all in time.
    Silent,
    /// Something else of the machine.
    Failed(String),
}

/// Asks once, on a connection of its own: `GET /livez` of a component, `GET /health` of etcd, the question for TLS of
/// PostgreSQL.
pub async fn probe(wire: &Wire, within: Duration) -> Probed {
    let began = Instant::now();
    match tokio::time::timeout(within, ask(wire)).await {
        Err(_) => Probed::Silent,
        Ok(Ok(Some(said))) => Probed::Answered {
            took: began.elapsed(),
            said,
        },
        Ok(Ok(None)) => Probed::Closed,
        Ok(Err(error)) => match error.kind() {
            ErrorKind::ConnectionRefused => Probed::Refused,
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => Probed::Reset,
            _ => Probed::Failed(error.to_string()),
        },
    }
}

async fn ask(wire: &Wire) -> io::Result<Option<String>> {
    let mut stream = TcpStream::connect(wire.address()).await?;
    let path = match wire.protocol() {
        Protocol::Http => "/livez",
        Protocol::Etcd => "/health",
        Protocol::Postgres => {
            stream.write_all(&SSL_REQUEST).await?;
            let mut letter = [0];
            let n = stream.read(&mut letter).await?;
            return Ok((n > 0).then(|| String::from_utf8_lossy(&letter).into_owned()));
        }
    };
    let question = format!(
        "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
        wire.address()
    );
    stream.write_all(question.as_bytes()).await?;
    let answer = read_answer(&mut stream, Framer::new(Kind::Answers, Unanswered::default())).await?;
    Ok(answer.map(|answer| {
        let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
        String::from_utf8_lossy(line).into_owned()
    }))
}
