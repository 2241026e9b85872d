//! Bytes: unchanged where they pass; lost, late or slow where they do not.

use super::*;
use crate::wire::Flow;

/// A stream of bytes: noise, and what looks like HTTP, whole or broken off.
fn stream(random: &Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.below(6) {
        match random.below(5) {
            0 => bytes.extend((0..random.below(40_000)).map(|_| u8::try_from(random.below(256)).unwrap())),
            1 => bytes.extend(post(&"x".repeat(usize::try_from(random.below(30_000)).unwrap())).bytes()),
            2 => bytes.extend(chunked(&["abc", "defghi"]).bytes()),
            3 => bytes.extend(b"GET / HTTP/1.1\r\nhost"),
            _ => bytes.extend(numbered(7).0),
        }
    }
    bytes
}

/// Sends all of it in pieces of random sizes, then a FIN.
async fn send(mut to: impl tokio::io::AsyncWrite + Unpin, bytes: &[u8], random: &Random) {
    let mut at = 0;
    while at < bytes.len() {
        let n = 1 + usize::try_from(random.below(9_000)).unwrap();
        let end = bytes.len().min(at + n);
        to.write_all(&bytes[at..end]).await.unwrap();
        at = end;
        tokio::task::yield_now().await;
    }
    to.shutdown().await.unwrap();
}

#[test]
fn any_stream_passes_unchanged_in_any_pieces_both_ways() {
    let seed = Random::from_os().u64();
    println!("seed {seed}");
    let random = Random::seeded(seed);
    local(async {
        for case in 0..60 {
            let protocol = [Protocol::Http, Protocol::Postgres][case % 2];
            let raw = Raw::new(protocol).await;
            // Late or slow bytes are the same bytes.
            let flow = match case % 3 {
                0 | 1 => Flow::Pass,
                _ => Flow::Jitter(Duration::from_millis(3)),
            };
            raw.wire.set(Mode::both(flow));
            let (there, back) = (stream(&random), stream(&random));
            let (mut caller, target) = tokio::join!(raw.call(), raw.target.accept());
            let mut target = target.unwrap().0;
            let (mut from_caller, to_caller) = target.split();
            let (mut from_target, to_target) = caller.split();
            let (mut heard_there, mut heard_back) = (Vec::new(), Vec::new());
            let (_, _, a, b) = tokio::join!(
                send(to_target, &there, &random),
                send(to_caller, &back, &random),
                from_caller.read_to_end(&mut heard_there),
                from_target.read_to_end(&mut heard_back),
            );
            a.unwrap();
            b.unwrap();
            assert!(heard_there == there && heard_back == back, "seed {seed}, case {case}");
            let counts = raw.wire.counts();
            let sizes = [there.len(), back.len()].map(|n| u64::try_from(n).unwrap());
            assert_eq!([counts.request_bytes, counts.answer_bytes], sizes);
        }
    });
}

#[test]
fn a_partition_loses_everything_tells_nobody_and_ends_with_a_reset() {
    local(async {
        let raw = Raw::new(Protocol::Postgres).await;
        let (mut caller, mut target) = raw.joined().await;
        raw.wire.set(Mode::both(Flow::Swallow));
        caller.write_all(b"lost").await.unwrap();
        target.write_all(b"lost too").await.unwrap();
        raw.counted("both are swallowed", |n| {
            (n.swallowed_request_bytes, n.swallowed_answer_bytes) == (4, 8)
        })
        .await;
        // A new one connects, and its bytes go the same way.
        let mut new = raw.call().await;
        new.write_all(b"and more").await.unwrap();
        raw.counted("the new one's are swallowed", |n| n.swallowed_request_bytes == 12)
            .await;
        // The end of the stream is swallowed as well.
        caller.shutdown().await.unwrap();
        assert!(hears_nothing(&target) && hears_nothing(&caller) && hears_nothing(&new));
        raw.wire.set(Mode::PASS);
        for end in [&mut caller, &mut target, &mut new] {
            assert_eq!(hear(end).await, Heard::Rst);
        }
        raw.mended().await;
        assert_eq!(raw.wire.counts().resets, 2);
    });
}

#[test]
fn requests_are_swallowed_while_answers_pass() {
    local(async {
        let raw = Raw::new(Protocol::Postgres).await;
        let (mut caller, mut target) = raw.joined().await;
        raw.wire.set(Mode::requests(Flow::Swallow));
        caller.write_all(b"lost").await.unwrap();
        raw.counted("swallowed", |n| n.swallowed_request_bytes == 4).await;
        target.write_all(b"heard").await.unwrap();
        hear_exactly(&mut caller, b"heard").await;
        assert!(hears_nothing(&target));
        raw.wire.set(Mode::PASS);
        assert_eq!(
            (hear(&mut caller).await, hear(&mut target).await),
            (Heard::Rst, Heard::Rst)
        );
        raw.mended().await;
    });
}

#[test]
fn answers_are_swallowed_while_requests_pass() {
    local(async {
        let raw = Raw::new(Protocol::Postgres).await;
        let (mut caller, mut target) = raw.joined().await;
        raw.wire.set(Mode::answers(Flow::Swallow));
        target.write_all(b"lost").await.unwrap();
        raw.counted("swallowed", |n| n.swallowed_answer_bytes == 4).await;
        caller.write_all(b"heard").await.unwrap();
        hear_exactly(&mut target, b"heard").await;
        // A new connection is made, and heard too.
        let mut new = raw.call().await;
        new.write_all(b"new").await.unwrap();
        let (mut accepted, _) = raw.target.accept().await.unwrap();
        hear_exactly(&mut accepted, b"new").await;
        assert!(hears_nothing(&caller) && hears_nothing(&new));
        raw.wire.set(Mode::PASS);
        assert_eq!(
            (hear(&mut caller).await, hear(&mut target).await),
            (Heard::Rst, Heard::Rst)
        );
        raw.mended().await;
    });
}

#[test]
fn a_connection_that_lost_nothing_survives_a_partition() {
    local(async {
        let raw = Raw::new(Protocol::Postgres).await;
        let (mut caller, mut target) = raw.joined().await;
        raw.wire.set(Mode::both(Flow::Swallow));
        drop(raw.call().await);
        raw.counted("the mode is at work", |n| n.connections == 2 && n.live == 1)
            .await;
        raw.wire.set(Mode::PASS);
        caller.write_all(b"still here").await.unwrap();
        hear_exactly(&mut target, b"still here").await;
    });
}

#[test]
fn one_direction_ends_while_the_other_goes_on() {
    local(async {
        let raw = Raw::new(Protocol::Postgres).await;
        let (mut caller, mut target) = raw.joined().await;
        raw.wire.set(Mode::requests(Flow::Fin));
        assert_eq!(hear(&mut target).await, Heard::Fin);
        target.write_all(b"heard").await.unwrap();
        hear_exactly(&mut caller, b"heard").await;
        raw.wire.set(Mode::PASS);
        assert_eq!(hear(&mut caller).await, Heard::Rst);

        let (mut caller, mut target) = raw.joined().await;
        raw.wire.set(Mode::answers(Flow::Fin));
        assert_eq!(hear(&mut caller).await, Heard::Fin);
        caller.write_all(b"heard").await.unwrap();
        hear_exactly(&mut target, b"heard").await;
    });
}

#[test]
fn late_bytes_wait_and_come_in_order() {
    local(async {
        for (mode, to_target) in [
            (Mode::requests(Flow::Delay(Duration::from_secs(3600))), true),
            (Mode::answers(Flow::Delay(Duration::from_secs(3600))), false),
        ] {
            let raw = Raw::new(Protocol::Postgres).await;
            let (mut caller, mut target) = raw.joined().await;
            raw.wire.set(mode);
            let (from, to) = if to_target {
                (&mut caller, &mut target)
            } else {
                (&mut target, &mut caller)
            };
            from.write_all(b"in an hour").await.unwrap();
            raw.counted("it waits", |n| n.late == 1).await;
            assert!(hears_nothing(to));
            // The other direction is not late.
            to.write_all(b"at once").await.unwrap();
            hear_exactly(from, b"at once").await;
        }
        let raw = Raw::new(Protocol::Postgres).await;
        let (mut caller, mut target) = raw.joined().await;
        for flow in [
            Flow::Delay(Duration::from_millis(5)),
            Flow::Jitter(Duration::from_millis(20)),
        ] {
            raw.wire.set(Mode::both(flow));
            let said: Vec<u8> = (0..=255).collect();
            for byte in &said {
                caller.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
            hear_exactly(&mut target, &said).await;
        }
    });
}

#[test]
fn a_trickle_lets_through_what_its_rate_allows_and_the_rest_when_it_ends() {
    local(async {
        let raw = Raw::new(Protocol::Postgres).await;
        let (mut caller, mut target) = raw.joined().await;
        // One byte, then a pause of a second, for an hour.
        raw.wire.set(Mode::requests(Flow::Trickle(1)));
        let said = [b'x'; 3600];
        caller.write_all(&said).await.unwrap();
        hear_exactly(&mut target, b"x").await;
        raw.counted("it pauses", |n| n.slowed > 0).await;
        target.write_all(b"at once").await.unwrap();
        hear_exactly(&mut caller, b"at once").await;
        raw.wire.set(Mode::PASS);
        hear_exactly(&mut target, &said[1..]).await;
    });
}

#[test]
fn a_target_that_does_not_read_stops_the_caller_too() {
    local(async {
        let raw = Raw::new(Protocol::Http).await;
        let (caller, target) = raw.joined().await;
        // Far more than all sockets and the wire can hold: the writer comes to a stand, and nothing grows.
        let mut sent = 0_u64;
        let piece = vec![b'x'; 1 << 16];
        let full = async {
            loop {
                caller.writable().await.unwrap();
                match caller.try_write(&piece) {
                    Ok(n) => sent += u64::try_from(n).unwrap(),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let before = raw.wire.counts().request_bytes;
        // It never ends by itself; that nothing moves any more is what is awaited.
        let still = async {
            let mut last = before;
            loop {
                tokio::time::sleep(Duration::from_millis(300)).await;
                let now = raw.wire.counts().request_bytes;
                if now == last && now > before {
                    return;
                }
                last = now;
            }
        };
        tokio::select! { () = full => {}, () = still => {} }
        let held = sent - (raw.wire.counts().request_bytes - before);
        assert!(held < 64 << 20, "{held} bytes are held");
        // The line can be cut all the same.
        raw.wire.set(Mode::line(crate::wire::Line::Reset));
        raw.counted("reset", |n| n.resets == 1).await;
        drop(target);
    });
}
