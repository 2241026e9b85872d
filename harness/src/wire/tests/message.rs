//! Messages: sent twice, delivered late, answered in vain.

use super::*;
use crate::wire::Messages;
use crate::wire::intercept::MESSAGE_BYTES_MAX;

const TWICE: Mode = Mode::messages(Messages::Duplicate {
    within: Duration::from_millis(5),
});
const DROPS: Mode = Mode::messages(Messages::DropAnswer);

const fn holds(silent: Duration) -> Mode {
    Mode::messages(Messages::Hold {
        silent,
        late: Duration::from_millis(5),
    })
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_duplicated_request_reaches_the_target_twice_and_is_answered_once() {
    local(async {
        let large = "y".repeat(100_000);
        let parts = "z".repeat(30_000);
        for request in [
            "GET /x HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(),
            post("pay"),
            chunked(&["a", "bc"]),
            // Larger than what is read at once.
            post(&large),
            chunked(&[&parts, &parts]),
        ] {
            let served = Served::new(numbered).await;
            served.wire.set(TWICE);
            let mut caller = served.call().await;
            ask(&mut caller, &request).await;
            counted(&served.wire, "twice", |n| n.duplicated == 1 && n.answers == 1).await;
            assert!(served.heard() == [request.clone(), request.clone()], "{:.80}", request);
            // One answer came, to either of the two.
            let Heard::Bytes(answer) = hear(&mut caller).await else {
                panic!()
            };
            assert!([numbered(1).0, numbered(2).0].contains(&answer));
            assert!(hears_nothing(&caller));
            served.wire.set(Mode::PASS);
            ask(&mut caller, &request).await;
            answered(&mut caller, 3).await;
            assert_eq!(served.heard().len(), 3);
        }
    });
}

#[test]
fn pipelined_requests_are_each_duplicated_and_answered_in_order() {
    local(async {
        let served = Served::new(|_| numbered(1)).await;
        served.wire.set(TWICE);
        let mut caller = served.call().await;
        let requests = [post("one"), chunked(&["two"]), post("three")];
        ask(&mut caller, &requests.concat()).await;
        for _ in 0..3 {
            answered(&mut caller, 1).await;
        }
        counted(&served.wire, "all", |n| n.duplicated == 3).await;
        let mut heard = served.heard();
        heard.sort();
        let mut wanted = [requests.clone(), requests].concat();
        wanted.sort();
        assert_eq!(heard, wanted);
    });
}

#[test]
fn a_mode_applies_to_the_next_message_of_a_connection_that_lives() {
    local(async {
        let served = Served::new(|_| numbered(1)).await;
        let mut caller = served.call().await;
        let half = post("first");
        let (begun, rest) = half.split_at(half.len() - 2);
        ask(&mut caller, begun).await;
        counted(&served.wire, "begun", |n| n.request_bytes > 0).await;
        // It began before: it is not sent twice.
        served.wire.set(TWICE);
        ask(&mut caller, rest).await;
        answered(&mut caller, 1).await;
        ask(&mut caller, &post("second")).await;
        answered(&mut caller, 1).await;
        counted(&served.wire, "the second", |n| n.duplicated == 1).await;
        served.wire.set(Mode::PASS);
        ask(&mut caller, &post("third")).await;
        answered(&mut caller, 1).await;
        let times = |what: &str| served.heard().iter().filter(|request| request.ends_with(what)).count();
        assert_eq!(["first", "second", "third"].map(times), [1, 2, 1]);
        served.wire.set(DROPS);
        ask(&mut caller, &post("fourth")).await;
        assert_eq!(hear(&mut caller).await, Heard::Rst);
        assert_eq!(times("fourth"), 1);
    });
}

#[test]
fn a_held_request_arrives_after_its_caller_has_given_up() {
    local(async {
        for request in [post("late"), chunked(&["la", "te"])] {
            let served = Served::new(numbered).await;
            served.wire.set(holds(HOUR));
            let mut caller = served.call().await;
            ask(&mut caller, &request).await;
            counted(&served.wire, "held", |n| n.held == 1).await;
            assert!(served.heard().is_empty() && hears_nothing(&caller));
            drop(caller);
            counted(&served.wire, "late", |n| n.delivered_late == 1).await;
            assert_eq!(served.heard(), [request]);
        }
    });
}

#[test]
fn a_held_request_arrives_after_its_caller_was_reset() {
    local(async {
        let served = Served::new(numbered).await;
        served.wire.set(holds(Duration::from_millis(50)));
        let mut caller = served.call().await;
        ask(&mut caller, &post("late")).await;
        assert_eq!(hear(&mut caller).await, Heard::Rst);
        counted(&served.wire, "late", |n| n.delivered_late == 1).await;
        assert_eq!(served.heard(), [post("late")]);
    });
}

#[test]
fn a_held_request_arrives_although_the_fault_has_ended() {
    local(async {
        let served = Served::new(numbered).await;
        served.wire.set(holds(HOUR));
        let mut caller = served.call().await;
        ask(&mut caller, &post("late")).await;
        counted(&served.wire, "held", |n| n.held == 1).await;
        served.wire.set(Mode::PASS);
        drop(caller);
        counted(&served.wire, "late", |n| n.delivered_late == 1).await;
        assert_eq!(served.heard(), [post("late")]);
    });
}

fn conflict(_: usize) -> (Vec<u8>, bool) {
    (b"HTTP/1.1 409 Conflict\r\ncontent-length: 2\r\n\r\nno".to_vec(), false)
}

#[test]
fn what_is_delivered_late_or_twice_and_turned_away_is_counted_apart() {
    local(async {
        for refused in [0, 1] {
            let served = Served::new(if refused == 0 { numbered } else { conflict }).await;
            served.wire.set(holds(Duration::from_millis(50)));
            let mut caller = served.call().await;
            ask(&mut caller, &post("late")).await;
            assert_eq!(hear(&mut caller).await, Heard::Rst);
            counted(&served.wire, "late", |n| n.delivered_late == 1).await;
            served.wire.set(TWICE);
            let mut caller = served.call().await;
            ask(&mut caller, &post("twice")).await;
            counted(&served.wire, "twice", |n| n.duplicated == 1).await;
            let n = served.wire.counts();
            assert_eq!([n.late_turned_away, n.duplicates_turned_away], [refused; 2]);
        }
    });
}

#[test]
fn a_request_that_is_too_large_passes_as_it_is() {
    local(async {
        let served = Served::new(|_| numbered(1)).await;
        let request = post(&"x".repeat(MESSAGE_BYTES_MAX + 1));
        let mut caller = served.call().await;
        for (n, mode) in [TWICE, holds(HOUR)].into_iter().enumerate() {
            served.wire.set(mode);
            ask(&mut caller, &request).await;
            answered(&mut caller, 1).await;
            let counts = served.wire.counts();
            assert_eq!((counts.passed_by, counts.duplicated, counts.held), (n as u64 + 1, 0, 0));
        }
        assert!(served.heard() == [request.clone(), request]);
    });
}

#[test]
fn what_is_no_http_passes_by_the_modes_of_messages() {
    local(async {
        let raw = Raw::new(Protocol::Http).await;
        raw.wire.set(holds(HOUR));
        let mut caller = raw.call().await;
        let (mut target, _) = raw.target.accept().await.unwrap();
        caller.write_all(b"\x00nothing\n\n").await.unwrap();
        hear_exactly(&mut target, b"\x00nothing\n\n").await;
    });
}

#[test]
fn a_request_that_never_ends_is_forwarded_when_its_caller_ends_it() {
    local(async {
        let raw = Raw::new(Protocol::Http).await;
        raw.wire.set(holds(HOUR));
        let mut caller = raw.call().await;
        let (mut target, _) = raw.target.accept().await.unwrap();
        caller.write_all(b"POST / HTTP/1.1\r\ncont").await.unwrap();
        caller.shutdown().await.unwrap();
        hear_exactly(&mut target, b"POST / HTTP/1.1\r\ncont").await;
        assert_eq!(hear(&mut target).await, Heard::Fin);
    });
}

#[test]
fn the_work_of_a_dropped_answer_was_done() {
    fn in_chunks(_: usize) -> (Vec<u8>, bool) {
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        (format!("{head}2\r\nok\r\n0\r\n\r\n").into_bytes(), false)
    }
    fn until_close(_: usize) -> (Vec<u8>, bool) {
        (b"HTTP/1.1 200 OK\r\n\r\nok".to_vec(), true)
    }
    fn interim(_: usize) -> (Vec<u8>, bool) {
        let answer = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        (answer.as_bytes().to_vec(), false)
    }
    local(async {
        for answer in [numbered, in_chunks, until_close, interim] {
            let served = Served::new(answer).await;
            served.wire.set(DROPS);
            let mut caller = served.call().await;
            ask(&mut caller, &post("work")).await;
            assert_eq!(hear(&mut caller).await, Heard::Rst);
            assert_eq!(served.heard(), [post("work")]);
            let counts = served.wire.counts();
            assert_eq!((counts.dropped_answers, counts.resets, counts.answer_bytes), (1, 1, 0));
            assert!(counts.swallowed_answer_bytes > 0);
        }
    });
}
