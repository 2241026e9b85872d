//! What takes longer than one message (a request, a call, a payout in hand), and who is told of every record.
//!
//! Owns: a record that is open until its work ends; the seam between the trace and whatever exports it. Does not own: the
//! ring; how or where records go. On failure: when nobody wants records none is opened; work that is dropped before its
//! end is recorded as abandoned; an observer must neither block nor panic.

use crate::context::TraceContext;
use crate::kit::Kit;
use crate::trace::{About, Outcome, TraceRecord};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Is told of every record of a process, on the thread that did the work: it hands over and returns at once.
pub trait TraceObserver: Send + Sync + fmt::Debug {
    /// This was done. `seq` is not set: it counts what a ring keeps.
    fn recorded(&self, record: &TraceRecord);
}

impl Kit {
    /// Begins a record below `cause`, in a span of its own: whatever it causes belongs below [`OpenRecord::trace`]. None
    /// when nobody wants it; then `cause` stays the cause.
    #[must_use]
    pub fn record_below(
        &self,
        cause: &TraceContext,
        actor: &Arc<str>,
        kind: &'static str,
        message: &'static str,
    ) -> Option<OpenRecord> {
        self.open(|| self.span_below(cause), Some(cause), actor, kind, message)
    }

    /// Begins the record of the span that `trace` itself names, below `parent`: for what was given its place beforehand.
    #[must_use]
    pub fn record_of(
        &self,
        trace: TraceContext,
        parent: Option<&TraceContext>,
        actor: &Arc<str>,
        kind: &'static str,
        message: &'static str,
    ) -> Option<OpenRecord> {
        self.open(|| trace, parent, actor, kind, message)
    }

    fn open(
        &self,
        trace: impl FnOnce() -> TraceContext,
        parent: Option<&TraceContext>,
        actor: &Arc<str>,
        kind: &'static str,
        message: &'static str,
    ) -> Option<OpenRecord> {
        if !self.trace().is_on() {
            return None;
        }
        Some(OpenRecord {
            trace: trace(),
            parent_span: parent.map_or([0; 8], TraceContext::span_id),
            actor: actor.clone(),
            kind,
            message,
            began: self.clock().mono(),
            outcome: (Outcome::Abandoned, None),
            token: None,
            about: About::Nothing,
            kit: self.clone(),
        })
    }
}

/// A record of work that has begun. It is appended to the trace when it is dropped, with the outcome that it was given; as
/// abandoned without one, because whoever waited for the work has gone.
#[must_use = "a record that is dropped at once says that the work was abandoned"]
pub struct OpenRecord {
    kit: Kit,
    trace: TraceContext,
    parent_span: [u8; 8],
    actor: Arc<str>,
    kind: &'static str,
    message: &'static str,
    began: Duration,
    outcome: (Outcome, Option<&'static str>),
    token: Option<u64>,
    about: About,
}

impl fmt::Debug for OpenRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenRecord")
            .field("message", &self.message)
            .field("trace", &self.trace)
            .finish_non_exhaustive()
    }
}

impl OpenRecord {
    /// Where what it causes belongs.
    #[must_use]
    pub const fn trace(&self) -> &TraceContext {
        &self.trace
    }

    /// It carries this token, or is answered it.
    pub const fn token(&mut self, token: u64) {
        self.token = Some(token);
    }

    /// It is about this.
    pub fn about(&mut self, about: About) {
        self.about = about;
    }

    /// How it will have ended when it is dropped.
    pub const fn outcome(&mut self, outcome: Outcome, code: Option<&'static str>) {
        self.outcome = (outcome, code);
    }

    /// Ends it.
    pub fn end(mut self, outcome: Outcome, code: Option<&'static str>) {
        self.outcome(outcome, code);
    }
}

impl Drop for OpenRecord {
    fn drop(&mut self) {
        let (outcome, code) = self.outcome;
        self.kit.trace().record(TraceRecord {
            seq: 0,
            actor: self.actor.clone(),
            kind: self.kind,
            message: self.message,
            at: self.began,
            queued: Duration::ZERO,
            handled: self.kit.clock().mono().saturating_sub(self.began),
            outcome,
            code,
            trace: self.trace,
            parent_span: self.parent_span,
            token: self.token,
            about: std::mem::take(&mut self.about),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::restart::RestartPolicy;
    use crate::trace::{CALL, TraceQuery, WORK};
    use host_kit::{Host, ManualClock};
    use prometheus::Registry;
    use std::sync::Mutex;

    #[derive(Debug, Default)]
    struct Seen(Mutex<Vec<TraceRecord>>);

    impl TraceObserver for Seen {
        fn recorded(&self, record: &TraceRecord) {
            self.0.lock().unwrap().push(record.clone());
        }
    }

    fn kit(capacity: usize) -> (Kit, ManualClock) {
        let hand = ManualClock::new();
        let mut host = Host::simulated(7);
        host.clock = hand.clock();
        let kit = Kit::with("test", &host, &Registry::new(), capacity, RestartPolicy::default());
        (kit, hand)
    }

    #[test]
    fn a_record_is_open_until_its_work_ends_or_is_given_up() {
        let (kit, hand) = kit(4);
        let (cause, actor): (_, Arc<str>) = (TraceContext::root(&kit.host().random), "test/calls/peer".into());
        let mut call = kit.record_below(&cause, &actor, CALL, "acquire").unwrap();
        hand.advance(Duration::from_millis(3));
        call.token(9);
        call.about(About::Key("k".into()));
        let below = *call.trace();
        call.end(Outcome::Refused, Some("HELD_BY_OTHER"));
        drop(kit.record_of(cause, None, &actor, WORK, "payout.settle").unwrap());

        let records = kit.trace().read(&TraceQuery::default());
        let [call, payout] = &records[..] else {
            panic!("not two records: {records:?}")
        };
        assert_eq!((call.handled, call.queued), (Duration::from_millis(3), Duration::ZERO));
        assert_eq!((call.outcome, call.code), (Outcome::Refused, Some("HELD_BY_OTHER")));
        assert_eq!((call.token, call.about.key()), (Some(9), Some("k")));
        assert_eq!((call.trace, call.parent_span), (below, cause.span_id()));
        assert_eq!(below.trace_id(), cause.trace_id());
        assert_ne!(below.span_id(), cause.span_id());
        assert_eq!((payout.trace, payout.parent_span), (cause, [0; 8]));
        assert_eq!((payout.outcome, payout.kind), (Outcome::Abandoned, WORK));
    }

    #[test]
    fn an_observer_is_told_of_each_record_whether_or_not_a_ring_keeps_it() {
        for capacity in [0, 1] {
            let (kit, _) = kit(capacity);
            let (cause, actor): (_, Arc<str>) = (TraceContext::root(&kit.host().random), "test/calls/peer".into());
            let call = || kit.record_below(&cause, &actor, CALL, "acquire");
            assert_eq!(call().is_some(), capacity > 0);
            assert_eq!((kit.trace().is_on(), kit.trace().keeps()), (capacity > 0, capacity > 0));

            let seen = Arc::new(Seen::default());
            assert!(kit.trace().observe(seen.clone()));
            assert!(!kit.trace().observe(seen.clone()), "a second observer was taken");
            assert_eq!((kit.trace().is_on(), kit.trace().keeps()), (true, capacity > 0));
            let spans = [call(), call()].map(|open| *open.unwrap().trace());
            let told: Vec<_> = seen.0.lock().unwrap().iter().map(|record| record.trace).collect();
            assert_eq!(told, spans);
            assert_eq!(kit.trace().read(&TraceQuery::default()).len(), capacity);
        }
    }
}
