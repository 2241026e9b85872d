//! A request's way to the target on a connection of its own, without its caller.
//!
//! Owns: connecting, sending, reading the answer to its end and throwing it away. Does not own: when.
//! On failure: no answer; the request may have been done all the same.

use super::framer::{Framer, Kind, Seen, Unanswered};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a delivery may take, until the answer's end.
const WITHIN: Duration = Duration::from_secs(30);

/// The status by which a target says that somebody else is in the way, or was: a fence's refusals among them.
const CONFLICT: &[u8] = b"409";

/// How a delivery was answered, to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivered {
    /// With a 409.
    TurnedAway,
    /// In any other way.
    Answered,
}

/// Delivers it. Nothing when the target did not answer to the end.
pub(super) async fn deliver(target: &str, request: &[u8]) -> Option<Delivered> {
    let work = async {
        let mut stream = TcpStream::connect(target).await.ok()?;
        stream.set_nodelay(true).ok()?;
        stream.write_all(request).await.ok()?;
        let unanswered = Unanswered::default();
        Framer::new(Kind::Requests, unanswered.clone()).read(request);
        read_answer(&mut stream, Framer::new(Kind::Answers, unanswered))
            .await
            .ok()?
    };
    let answer = tokio::time::timeout(WITHIN, work).await.ok()??;
    // HTTP/1.1 409 Conflict
    let status = answer.split(|byte| *byte == b' ').nth(1);
    Some(if status == Some(CONFLICT) {
        Delivered::TurnedAway
    } else {
        Delivered::Answered
    })
}

/// Reads one answer to its end. Answers its beginning, or None when the stream ended before.
pub(super) async fn read_answer(stream: &mut TcpStream, mut framer: Framer) -> std::io::Result<Option<Vec<u8>>> {
    let (mut buffer, mut first) = ([0; 4096], Vec::new());
    loop {
        let n = stream.read(&mut buffer).await?;
        if n == 0 {
            return Ok(framer.until_close().then_some(first));
        }
        if first.is_empty() {
            first = buffer[..n].to_vec();
        }
        let mut at = 0;
        while at < n {
            let (read, seen) = framer.read(&buffer[at..n]);
            at += read;
            if seen == (Seen::Ended { interim: false }) {
                return Ok(Some(first));
            }
        }
    }
}
