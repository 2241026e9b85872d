//! The heads of answers, as awc must see them to read them right.
//!
//! Owns: passing over interim answers, of which the client would take the first for the answer; and telling it by the
//! version, which its callers do not see, whether the body ends with the connection (RFC 9112 §6.3), because it takes an
//! HTTP/1.1 answer without a length for one without a body. Does not own: the body.
//! On failure: a head that cannot be read is an error, and with that no answer.

use bytes::{Buf, BytesMut};
use std::io;

/// The longest head; as long as the client's own bound.
const HEAD_BYTES_MAX: usize = 128 * 1024;
/// The most lines of a head; as many as the client reads.
const LINES_MAX: usize = 96;

/// Takes interim answers away from what was read. Answers how the body ends when a final head stands at the beginning, made
/// fit for the client; none when more has to be read.
pub(super) fn final_head(read: &mut BytesMut) -> io::Result<Option<BodyEnd>> {
    while let Some(head) = head(read)? {
        if head.interim {
            read.advance(head.bytes);
            continue;
        }
        if let Some(minor) = head.minor {
            // `HTTP/1.x`, behind empty lines.
            let from = read.iter().position(|byte| !matches!(byte, b'\r' | b'\n'));
            match from.and_then(|from| read.get_mut(from + 7)) {
                Some(byte) => *byte = minor,
                None => return Err(unreadable("no version")),
            }
        }
        return Ok(Some(if head.minor == Some(b'0') {
            BodyEnd::Connection
        } else {
            BodyEnd::Told
        }));
    }
    if read.len() >= HEAD_BYTES_MAX {
        return Err(unreadable("it is too long"));
    }
    Ok(None)
}

/// What ends the body of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyEnd {
    /// Its length, its last chunk, or that it has none: before that the connection's end cuts it off.
    Told,
    /// The end of the connection.
    Connection,
}

struct Head {
    bytes: usize,
    interim: bool,
    /// The version that it must have; none where it has it.
    minor: Option<u8>,
}

/// The head at the beginning, when all of it is there. Read by the rules of the client: what one of them took for a length
/// and the other did not would be a body that is lost.
fn head(read: &[u8]) -> io::Result<Option<Head>> {
    let mut lines = [httparse::EMPTY_HEADER; LINES_MAX];
    let mut answer = httparse::Response::new(&mut lines);
    let mut rules = httparse::ParserConfig::default();
    rules.allow_spaces_after_header_name_in_responses(true);
    let bytes = match rules.parse_response(&mut answer, read).map_err(unreadable)? {
        httparse::Status::Complete(bytes) => bytes,
        httparse::Status::Partial => return Ok(None),
    };
    let has = |name: &str, says: &dyn Fn(&[u8]) -> bool| {
        let mut lines = answer.headers.iter();
        lines.any(|line| line.name.eq_ignore_ascii_case(name) && says(line.value.trim_ascii()))
    };
    let is_bodiless = matches!(answer.code, Some(204 | 304));
    let length = has("content-length", &|_| true) && !has("upgrade", &|to| to.eq_ignore_ascii_case(b"websocket"));
    let coded = has("transfer-encoding", &|how| !how.eq_ignore_ascii_case(b"identity"));
    Ok(Some(Head {
        bytes,
        // Nothing follows a switch of protocols that is HTTP.
        interim: answer
            .code
            .is_some_and(|code| (100..200).contains(&code) && code != 101),
        minor: match (coded, length) {
            _ if is_bodiless => None,
            (true, _) => None,
            // Of an HTTP/1.0 answer of no bytes the client would wait for the end.
            (false, true) => Some(b'1'),
            (false, false) => Some(b'0'),
        },
    }))
}

fn unreadable(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the answer's head cannot be read: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the client sees; none while more has to be read.
    fn seen(read: &str) -> Option<String> {
        let mut read = BytesMut::from(read);
        final_head(&mut read)
            .unwrap()
            .map(|_| String::from_utf8(read.to_vec()).unwrap())
    }

    #[test]
    fn the_version_tells_whether_the_body_ends_with_the_connection() {
        for (head, minor) in [
            ("HTTP/1.1 200 OK", '0'),
            ("HTTP/1.0 200 OK", '0'),
            ("\r\nHTTP/1.1 200 OK\r\nConnection: close", '0'),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: identity", '0'),
            ("HTTP/1.1 426 No\r\nUpgrade: WebSocket\r\nContent-Length: 1", '0'),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1", '1'),
            ("HTTP/1.1 200 OK\r\ncontent-length : 1", '1'),
            ("HTTP/1.0 200 OK\r\ncontent-length: 0", '1'),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked", '1'),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked", '1'),
            ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked", '0'),
            ("HTTP/1.1 101 Switching Protocols", '0'),
        ] {
            let read = format!("{head}\r\n\r\nx");
            let at = read.find('.').unwrap() + 1;
            let mut expected = read.clone();
            expected.replace_range(at..=at, &minor.to_string());
            assert_eq!(seen(&read), Some(expected), "{head}");
        }
    }

    #[test]
    fn interim_answers_are_taken_away_wherever_they_are_cut() {
        let interims = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
        let last = "HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n";
        let all = format!("{interims}{last}");
        for cut in 0..all.len() {
            let mut read = BytesMut::from(&all[..cut]);
            assert_eq!(final_head(&mut read).unwrap(), None, "{cut}");
            read.extend_from_slice(&all.as_bytes()[cut..]);
            assert_eq!(final_head(&mut read).unwrap(), Some(BodyEnd::Told), "{cut}");
            assert_eq!(read, last, "{cut}");
        }
    }

    #[test]
    fn what_is_no_head_is_an_error() {
        let long = format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(HEAD_BYTES_MAX));
        let lines = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: 1\r\n".repeat(LINES_MAX + 1));
        for bad in [
            "SSH-2.0\r\n\r\n",
            "HTTP/2 200\r\n\r\n",
            "HTTP/1.1 200 OK\r\na\r\n\r\n",
            &long,
            &lines,
        ] {
            let error = final_head(&mut BytesMut::from(bad)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
