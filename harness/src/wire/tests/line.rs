//! The line: cut, reset, refused, half-open, and a target that is not there.

use super::*;
use crate::wire::{End, Flow, Line, Probed, Wires, probe};

async fn refused(wire: &Wire) -> bool {
    matches!(TcpStream::connect(wire.address()).await, Err(error) if error.kind() == ErrorKind::ConnectionRefused)
}

#[test]
fn a_cut_line_closes_both_ends_and_every_new_one() {
    local(async {
        let raw = Raw::new(Protocol::Postgres).await;
        let (mut caller, mut target) = raw.joined().await;
        raw.wire.set(Mode::line(Line::Cut));
        assert_eq!(
            (hear(&mut caller).await, hear(&mut target).await),
            (Heard::Fin, Heard::Fin)
        );
        let mut new = raw.call().await;
        new.write_all(b"unread").await.unwrap();
        assert_eq!(hear(&mut new).await, Heard::Fin);
        raw.counted("two", |n| n.cut == 2 && n.resets == 0).await;
        raw.mended().await;
    });
}

#[test]
fn a_reset_line_resets_both_ends_and_every_new_one() {
    local(async {
        let raw = Raw::new(Protocol::Postgres).await;
        let (mut caller, mut target) = raw.joined().await;
        raw.wire.set(Mode::line(Line::Reset));
        assert_eq!(
            (hear(&mut caller).await, hear(&mut target).await),
            (Heard::Rst, Heard::Rst)
        );
        assert_eq!(probe(&raw.wire, WITHIN).await, Probed::Reset);
        assert_eq!(raw.wire.counts().resets, 2);
        raw.mended().await;
    });
}

#[test]
fn a_refused_line_listens_again_on_the_same_address() {
    local(async {
        let raw = Raw::new(Protocol::Postgres).await;
        let (mut caller, _target) = raw.joined().await;
        for _ in 0..3 {
            raw.wire.set(Mode::line(Line::Refused));
            let mut gone = false;
            while !gone {
                gone = refused(&raw.wire).await;
                tokio::task::yield_now().await;
            }
            raw.wire.set(Mode::PASS);
            // Until it listens again it refuses.
            while refused(&raw.wire).await {
                tokio::task::yield_now().await;
            }
            drop(raw.target.accept().await.unwrap());
        }
        assert_eq!(hear(&mut caller).await, Heard::Rst);
        raw.mended().await;
    });
}

#[test]
fn the_callers_half_stays_open_and_hears_nothing() {
    local(async {
        let raw = Raw::new(Protocol::Postgres).await;
        let (mut caller, mut target) = raw.joined().await;
        raw.wire.set(Mode::line(Line::HalfOpen(End::Caller)));
        assert_eq!(hear(&mut target).await, Heard::Fin);
        caller.write_all(b"is anybody there").await.unwrap();
        raw.counted("taken", |n| n.swallowed_request_bytes == 16).await;
        let new = raw.call().await;
        raw.counted("two", |n| n.half_open == 2).await;
        assert!(hears_nothing(&caller) && hears_nothing(&new));
        // The peer is back and knows nothing of it.
        raw.wire.set(Mode::PASS);
        assert_eq!(hear(&mut caller).await, Heard::Rst);
        raw.mended().await;
    });
}

#[test]
fn the_targets_half_stays_open_and_hears_nothing() {
    local(async {
        let raw = Raw::new(Protocol::Postgres).await;
        let (mut caller, mut target) = raw.joined().await;
        raw.wire.set(Mode::line(Line::HalfOpen(End::Target)));
        assert_eq!(hear(&mut caller).await, Heard::Fin);
        target.write_all(b"answer").await.unwrap();
        raw.counted("taken", |n| n.swallowed_answer_bytes == 6).await;
        assert!(hears_nothing(&target));
        let mut new = raw.call().await;
        let (new_target, _) = raw.target.accept().await.unwrap();
        assert_eq!(hear(&mut new).await, Heard::Fin);
        assert!(hears_nothing(&new_target));
        raw.wire.set(Mode::PASS);
        assert_eq!(hear(&mut target).await, Heard::Rst);
        raw.mended().await;
    });
}

#[test]
fn a_target_that_is_gone_is_refused_until_it_is_back() {
    local(async {
        let Raw { wire, target, kept } = Raw::new(Protocol::Postgres).await;
        drop(target);
        // The first finds out, the others are told so.
        assert_eq!(probe(&wire, WITHIN).await, Probed::Reset);
        while !refused(&wire).await {
            tokio::task::yield_now().await;
        }
        // In a partition nobody can know that it is gone.
        wire.set(Mode::both(Flow::Swallow));
        while refused(&wire).await {
            tokio::task::yield_now().await;
        }
        let mut caller = TcpStream::connect(wire.address()).await.unwrap();
        caller.write_all(b"x").await.unwrap();
        counted(&wire, "swallowed", |n| n.swallowed_request_bytes == 1).await;
        wire.set(Mode::PASS);
        while !refused(&wire).await {
            tokio::task::yield_now().await;
        }
        let target = TcpListener::bind(kept.address()).await.unwrap();
        while refused(&wire).await {
            tokio::task::yield_now().await;
        }
        Raw { wire, target, kept }.mended_after_tries().await;
    });
}

impl Raw {
    /// As [`Raw::mended`], where the target may first see connections that only tried it.
    async fn mended_after_tries(&self) {
        let mut caller = self.call().await;
        caller.write_all(b"here").await.unwrap();
        loop {
            let (mut accepted, _) = self.target.accept().await.unwrap();
            match hear(&mut accepted).await {
                Heard::Bytes(bytes) => return assert_eq!(bytes, b"here"),
                heard => assert_eq!(heard, Heard::Fin),
            }
        }
    }
}

#[test]
fn a_dropped_wire_takes_its_connections_with_it() {
    local(async {
        let Raw { wire, target, .. } = Raw::new(Protocol::Postgres).await;
        let mut caller = TcpStream::connect(wire.address()).await.unwrap();
        let (mut accepted, _) = target.accept().await.unwrap();
        let address = wire.address();
        drop(wire);
        assert_eq!(
            (hear(&mut caller).await, hear(&mut accepted).await),
            (Heard::Fin, Heard::Fin)
        );
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn wires_are_found_by_their_links_and_kept_over_restarts() {
    local(async {
        let wires = Wires::new(7);
        let url = wires.http("W1", "lock-server", "http://127.0.0.1:1").unwrap();
        assert_eq!(url, wires.http("W1", "lock-server", "http://127.0.0.1:1").unwrap());
        wires.http("W1", "rail-proxy", "http://127.0.0.1:2").unwrap();
        wires.http("W10", "lock-server", "http://127.0.0.1:1").unwrap();
        let store = wires
            .store("lock-server", "lockdb", "etcd://127.0.0.1:3,127.0.0.1:4")
            .unwrap();
        let several = [1, 2].map(|n| wires.get(&format!("lock-server->lockdb/{n}")).unwrap());
        assert_eq!(
            store,
            format!("etcd://{},{}", several[0].address(), several[1].address())
        );
        assert_eq!(several[1].target(), "127.0.0.1:4");
        let names = |wires: Vec<Rc<Wire>>| wires.iter().map(|wire| wire.name().to_owned()).collect::<Vec<_>>();
        assert_eq!(names(wires.of("W1")), ["W1->lock-server", "W1->rail-proxy"]);
        assert_eq!(names(wires.to("lock-server")), ["W1->lock-server", "W10->lock-server"]);
        assert_eq!(wires.to("lockdb").len(), 2);
        assert_eq!(wires.store("lock-server", "lockdb", "sqlite:x").unwrap(), "sqlite:x");
        several[0].set(Mode::line(Line::Cut));
        wires.mend();
        assert_eq!(several[0].mode(), Mode::PASS);
    });
}
