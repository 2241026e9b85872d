//! Server-sent events as they arrive (WHATWG HTML §9.2), as far as dlock's servers use them: `event`, `id`, `data`
//! and comments.

use crate::CallError;
use awc::error::PayloadError;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http_contract::Problem;
use std::pin::Pin;
use std::time::Duration;

/// The longest event that is read; a longer one ends the stream with an error.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// How long a stream may be silent: a server that lives says something every 10 s.
const SILENT_MAX: Duration = Duration::from_secs(40);

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// Its name, `message` where the server gave none.
    pub event: String,
    /// Its id, where the server gave one.
    pub id: Option<String>,
    /// Its data, lines joined by newlines.
    pub data: String,
}

/// Reads events one after the other.
pub struct SseReader {
    body: Pin<Box<dyn Stream<Item = Result<Bytes, PayloadError>>>>,
    buffer: BytesMut,
}

impl std::fmt::Debug for SseReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SseReader").finish_non_exhaustive()
    }
}

impl SseReader {
    /// Sends the request and takes its stream.
    pub(crate) async fn open(request: awc::ClientRequest) -> Result<Self, CallError> {
        let mut answer = request
            .send()
            .await
            .map_err(|error| CallError::Ambiguous(error.to_string()))?;
        let status = answer.status().as_u16();
        if status != 200 {
            let bytes = answer
                .body()
                .await
                .map_err(|error| CallError::Ambiguous(error.to_string()))?;
            return Err(serde_json::from_slice::<Problem>(&bytes).map_or_else(
                |error| CallError::Garbled {
                    status,
                    detail: error.to_string(),
                },
                |problem| CallError::Problem(Box::new(problem)),
            ));
        }
        // A watch has no end of its own; the time-out of the request covered its head.
        Ok(Self {
            body: Box::pin(answer.timeout(Duration::MAX)),
            buffer: BytesMut::new(),
        })
    }

    /// The next event; none when the server ended the stream.
    ///
    /// # Errors
    /// [`CallError::Ambiguous`] when the connection broke, [`CallError::Garbled`] when what came is no event.
    pub async fn next(&mut self) -> Result<Option<SseEvent>, CallError> {
        loop {
            while let Some(block) = take_block(&mut self.buffer) {
                if let Some(event) = parse(&block)? {
                    return Ok(Some(event));
                }
            }
            if self.buffer.len() > EVENT_BYTES_MAX {
                return Err(CallError::Garbled {
                    status: 200,
                    detail: "an event longer than 1 MiB".into(),
                });
            }
            let Ok(next) = tokio::time::timeout(SILENT_MAX, self.body.next()).await else {
                return Err(CallError::Ambiguous(format!("nothing came for {SILENT_MAX:?}")));
            };
            match next {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                Some(Err(error)) => return Err(CallError::Ambiguous(error.to_string())),
                None => return Ok(None),
            }
        }
    }
}

/// Takes the text up to and including the next blank line.
fn take_block(buffer: &mut BytesMut) -> Option<BytesMut> {
    let end = buffer.windows(2).position(|pair| pair == b"\n\n")?;
    Some(buffer.split_to(end + 2))
}

/// Reads one block; none for a block of comments alone.
fn parse(block: &[u8]) -> Result<Option<SseEvent>, CallError> {
    let text = std::str::from_utf8(block).map_err(|error| CallError::Garbled {
        status: 200,
        detail: error.to_string(),
    })?;
    let mut event = SseEvent {
        event: "message".into(),
        ..SseEvent::default()
    };
    let (mut data, mut seen): (Vec<&str>, bool) = (Vec::new(), false);
    for line in text.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => (event.event, seen) = (value.to_owned(), true),
            "id" => event.id = Some(value.to_owned()),
            "data" => {
                data.push(value);
                seen = true;
            }
            _ => {}
        }
    }
    event.data = data.join("\n");
    Ok(seen.then_some(event))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_taken_whole_and_comments_passed_over() {
        let mut buffer =
            BytesMut::from(&b": hello\n\nevent: GRANTED\nid: 7\ndata: {\"a\":1}\ndata: x\n\nevent: half"[..]);
        let first = take_block(&mut buffer).unwrap();
        assert_eq!(parse(&first).unwrap(), None);
        let second = take_block(&mut buffer).unwrap();
        assert_eq!(
            parse(&second).unwrap(),
            Some(SseEvent {
                event: "GRANTED".into(),
                id: Some("7".into()),
                data: "{\"a\":1}\nx".into()
            })
        );
        assert_eq!(take_block(&mut buffer), None);
    }
}
