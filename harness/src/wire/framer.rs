//! Where HTTP/1.1 messages begin and end in a stream of bytes, in whatever pieces it comes.
//!
//! Owns: heads, bodies by content-length, chunked bodies with trailers, bodies that end with the connection.
//! Does not own: the bytes; they are looked at and never changed.
//! On failure: a stream that cannot be read as HTTP is opaque from there on: it has no messages.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// The largest head that is read, in bytes; a larger one makes the stream opaque.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The largest line of a chunked body (a size, a trailer), in bytes.
const LINE_BYTES_MAX: usize = 8 * 1024;
/// The most headers of a head.
const HEADERS_MAX: usize = 128;
/// The most requests of a connection that wait for their answers.
const UNANSWERED_MAX: usize = 1024;

/// Which requests of a connection wait for an answer, and whether they are HEAD, whose answers have no body. Shared by
/// the framers of both directions.
#[derive(Clone, Debug, Default)]
pub struct Unanswered(Rc<RefCell<VecDeque<bool>>>);

impl Unanswered {
    fn push(&self, head: bool) -> bool {
        let mut queue = self.0.borrow_mut();
        queue.push_back(head);
        queue.len() <= UNANSWERED_MAX
    }

    fn next_is_head(&self) -> bool {
        self.0.borrow_mut().pop_front().unwrap_or(false)
    }
}

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Requests.
    Requests,
    /// Answers.
    Answers,
}

/// What became of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The message goes on.
    Inside,
    /// The message ends here. An interim answer (1xx) is followed by another to the same request.
    Ended {
        /// Whether it was a 1xx.
        interim: bool,
    },
    /// There are no messages any more.
    Opaque,
}

#[derive(Debug)]
enum State {
    Head(Vec<u8>),
    Length(u64),
    ChunkSize(Vec<u8>),
    /// With the line end behind the data.
    Chunk(u64),
    Trailer(Vec<u8>),
    UntilClose,
    Opaque,
}

/// Follows one direction of one connection.
#[derive(Debug)]
pub struct Framer {
    kind: Kind,
    unanswered: Unanswered,
    state: State,
}

impl Framer {
    /// At the beginning of a stream.
    #[must_use]
    pub const fn new(kind: Kind, unanswered: Unanswered) -> Self {
        Self {
            kind,
            unanswered,
            state: State::Head(Vec::new()),
        }
    }

    /// For a stream that has no messages.
    #[must_use]
    pub fn opaque(kind: Kind) -> Self {
        Self {
            kind,
            unanswered: Unanswered::default(),
            state: State::Opaque,
        }
    }

    /// Whether the next byte begins a message.
    #[must_use]
    pub fn between(&self) -> bool {
        matches!(&self.state, State::Head(head) if head.is_empty())
    }

    /// Whether the message ends when the stream does.
    #[must_use]
    pub const fn until_close(&self) -> bool {
        matches!(self.state, State::UntilClose)
    }

    /// Reads as far as the end of the current message at most. Answers how many bytes that were, and what was seen.
    pub fn read(&mut self, bytes: &[u8]) -> (usize, Seen) {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let seen = match &mut self.state {
                State::Opaque => return (bytes.len(), Seen::Opaque),
                State::UntilClose => return (bytes.len(), Seen::Inside),
                State::Head(head) => match to_blank_line(head, rest) {
                    Ok((n, whole)) => {
                        at += n;
                        if whole { self.head() } else { Seen::Inside }
                    }
                    Err(TooLong) => self.give_up(),
                },
                State::Length(left) => {
                    at += drain(left, rest);
                    if *left == 0 { self.end(false) } else { Seen::Inside }
                }
                State::Chunk(left) => {
                    at += drain(left, rest);
                    if *left == 0 {
                        self.state = State::ChunkSize(Vec::new());
                    }
                    Seen::Inside
                }
                State::ChunkSize(line) => match to_line_end(line, rest) {
                    Ok((n, whole)) => {
                        at += n;
                        if whole { self.chunk_size() } else { Seen::Inside }
                    }
                    Err(TooLong) => self.give_up(),
                },
                State::Trailer(line) => match to_line_end(line, rest) {
                    Ok((n, whole)) => {
                        at += n;
                        let blank = whole && matches!(line.as_slice(), b"\r\n" | b"\n");
                        if whole {
                            line.clear();
                        }
                        if blank { self.end(false) } else { Seen::Inside }
                    }
                    Err(TooLong) => self.give_up(),
                },
            };
            match seen {
                Seen::Inside => {}
                Seen::Ended { .. } => return (at, seen),
                Seen::Opaque => return (bytes.len(), seen),
            }
        }
        (at, Seen::Inside)
    }

    fn give_up(&mut self) -> Seen {
        self.state = State::Opaque;
        Seen::Opaque
    }

    fn end(&mut self, interim: bool) -> Seen {
        self.state = State::Head(Vec::new());
        Seen::Ended { interim }
    }

    fn chunk_size(&mut self) -> Seen {
        let State::ChunkSize(line) = &self.state else {
            return self.give_up();
        };
        match httparse::parse_chunk_size(line) {
            Ok(httparse::Status::Complete((_, 0))) => self.state = State::Trailer(Vec::new()),
            Ok(httparse::Status::Complete((_, size))) => self.state = State::Chunk(size.saturating_add(2)),
            _ => return self.give_up(),
        }
        Seen::Inside
    }

    /// A head may be whole: reads it and decides how the body ends.
    fn head(&mut self) -> Seen {
        let State::Head(head) = &self.state else {
            return self.give_up();
        };
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let (parsed, status) = match self.kind {
            Kind::Requests => {
                let mut request = httparse::Request::new(&mut headers);
                let parsed = request.parse(head);
                let method = request.method.unwrap_or_default();
                if matches!(parsed, Ok(httparse::Status::Complete(_)))
                    && (method == "CONNECT" || !self.unanswered.push(method == "HEAD"))
                {
                    return self.give_up();
                }
                (parsed, None)
            }
            Kind::Answers => {
                let mut answer = httparse::Response::new(&mut headers);
                let parsed = answer.parse(head);
                (parsed, answer.code)
            }
        };
        match parsed {
            Ok(httparse::Status::Complete(_)) => {}
            // Blank lines before a message belong to it.
            Ok(httparse::Status::Partial) => return Seen::Inside,
            Err(_) => return self.give_up(),
        }
        let body = body(&headers);
        match status {
            Some(101) => return self.give_up(),
            Some(100..=199) => return self.end(true),
            Some(code) if self.unanswered.next_is_head() || code == 204 || code == 304 => return self.end(false),
            _ => {}
        }
        match body {
            Body::Unreadable => self.give_up(),
            Body::Chunked => {
                self.state = State::ChunkSize(Vec::new());
                Seen::Inside
            }
            Body::Length(0) => self.end(false),
            Body::Length(left) => {
                self.state = State::Length(left);
                Seen::Inside
            }
            Body::Unsaid if self.kind == Kind::Requests => self.end(false),
            Body::Unsaid => {
                self.state = State::UntilClose;
                Seen::Inside
            }
        }
    }
}

enum Body {
    Unsaid,
    Length(u64),
    Chunked,
    Unreadable,
}

fn body(headers: &[httparse::Header<'_>]) -> Body {
    let mut body = Body::Unsaid;
    for header in headers {
        let value = || std::str::from_utf8(header.value).unwrap_or_default().trim();
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return if value().to_ascii_lowercase().ends_with("chunked") {
                Body::Chunked
            } else {
                Body::Unreadable
            };
        }
        if header.name.eq_ignore_ascii_case("content-length") {
            body = match (value().parse(), body) {
                (Ok(length), Body::Unsaid) => Body::Length(length),
                (Ok(length), Body::Length(before)) if length == before => Body::Length(length),
                _ => Body::Unreadable,
            };
        }
    }
    body
}

fn drain(left: &mut u64, bytes: &[u8]) -> usize {
    let n = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
    *left -= super::counters::bytes(n);
    n
}

/// A head or a line is longer than what is read.
struct TooLong;

/// Takes bytes up to the end of a line. Answers how many, and whether the line is whole.
fn to_line_end(line: &mut Vec<u8>, bytes: &[u8]) -> Result<(usize, bool), TooLong> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let n = end.map_or(bytes.len(), |end| end + 1);
    line.extend_from_slice(&bytes[..n]);
    if line.len() > LINE_BYTES_MAX {
        return Err(TooLong);
    }
    Ok((n, end.is_some()))
}

/// Takes bytes up to a blank line. Answers how many, and whether there is one.
fn to_blank_line(head: &mut Vec<u8>, bytes: &[u8]) -> Result<(usize, bool), TooLong> {
    for (n, byte) in bytes.iter().enumerate() {
        head.push(*byte);
        if head.len() > HEAD_BYTES_MAX {
            return Err(TooLong);
        }
        if *byte == b'\n' && (head.ends_with(b"\r\n\r\n") || head.ends_with(b"\n\n")) {
            return Ok((n + 1, true));
        }
    }
    Ok((bytes.len(), false))
}
