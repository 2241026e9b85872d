//! Where messages end, whatever pieces they come in.

use crate::wire::framer::{Framer, HEAD_BYTES_MAX, Kind, Seen, Unanswered};

const END: Seen = Seen::Ended { interim: false };

/// Reads pieces and answers at which bytes of the whole a message ended.
fn ends(framer: &mut Framer, pieces: &[&[u8]]) -> Vec<(usize, Seen)> {
    let (mut ends, mut at) = (Vec::new(), 0);
    for piece in pieces {
        let mut from = 0;
        while from < piece.len() {
            let (n, seen) = framer.read(&piece[from..]);
            (from, at) = (from + n, at + n);
            if seen != Seen::Inside {
                ends.push((at, seen));
            }
        }
    }
    ends
}

fn requests() -> Framer {
    Framer::new(Kind::Requests, Unanswered::default())
}

/// A framer of answers to requests of these methods.
fn answers(methods: &[&str]) -> Framer {
    let unanswered = Unanswered::default();
    let mut requests = Framer::new(Kind::Requests, unanswered.clone());
    for method in methods {
        requests.read(format!("{method} / HTTP/1.1\r\n\r\n").as_bytes());
    }
    Framer::new(Kind::Answers, unanswered)
}

#[test]
fn a_message_ends_at_the_same_byte_in_whatever_pieces_it_comes() {
    let request = |text: &'static str| (requests as fn() -> Framer, text, END);
    let answer = |text: &'static str| ((|| answers(&["GET"])) as fn() -> Framer, text, END);
    for (framer, text, seen) in [
        request("GET / HTTP/1.1\r\nhost: x\r\n\r\n"),
        request("GET / HTTP/1.1\n\n"),
        request("\r\nGET / HTTP/1.1\r\n\r\n"),
        request("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"),
        request("POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n"),
        request("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        request("POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n5;x=y\r\n\r\n\r\n\r\r\n0\r\na: b\r\n\r\n"),
        answer("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"),
        answer("HTTP/1.1 204 No Content\r\n\r\n"),
        answer("HTTP/1.1 304 Not Modified\r\ncontent-length: 100\r\n\r\n"),
        answer("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n"),
        (
            || answers(&["GET"]),
            "HTTP/1.1 100 Continue\r\n\r\n",
            Seen::Ended { interim: true },
        ),
        (
            || answers(&["HEAD"]),
            "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n",
            END,
        ),
    ] {
        let bytes = text.as_bytes();
        for split in 0..bytes.len() {
            let (first, second) = bytes.split_at(split);
            let mut framer = framer();
            assert_eq!(
                ends(&mut framer, &[first, second]),
                [(bytes.len(), seen)],
                "{text:?} split at {split}"
            );
            assert!(framer.between());
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(ends(&mut framer(), &single), [(bytes.len(), seen)], "{text:?} in bytes");
    }
}

#[test]
fn several_messages_in_one_piece_are_told_apart() {
    let one = "POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\nx";
    let three = one.repeat(3);
    let n = one.len();
    assert_eq!(
        ends(&mut requests(), &[three.as_bytes()]),
        [(n, END), (2 * n, END), (3 * n, END)]
    );
}

#[test]
fn an_answer_without_a_length_lasts_until_the_connection_closes() {
    let mut framer = answers(&["GET"]);
    assert_eq!(ends(&mut framer, &[b"HTTP/1.1 200 OK\r\n\r\nanything"]), []);
    assert!(framer.until_close() && !framer.between());
}

#[test]
fn what_is_no_http_has_no_messages() {
    let long = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(HEAD_BYTES_MAX));
    for text in [
        "\u{0}\u{0}\u{0}\u{8}\n\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "CONNECT x:1 HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx",
        "POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\nx",
        "POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\nx",
        "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        long.as_str(),
    ] {
        let mut framer = requests();
        let seen = ends(&mut framer, &[text.as_bytes(), b"GET / HTTP/1.1\r\n\r\n"]);
        assert!(
            !seen.is_empty() && seen.iter().all(|(_, seen)| *seen == Seen::Opaque),
            "{text:?}: {seen:?}"
        );
    }
    let mut upgraded = answers(&["GET"]);
    let seen = ends(&mut upgraded, &[b"HTTP/1.1 101 Switching Protocols\r\n\r\n\x00"]);
    assert!(seen.iter().all(|(_, seen)| *seen == Seen::Opaque), "{seen:?}");
}
