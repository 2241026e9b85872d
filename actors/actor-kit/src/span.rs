//! Spans: what takes longer than one message (a request, a call, a payout in hand), and who is told of it.
//!
//! Owns: the seam between the trace and whatever exports it; a span's beginning and end. Does not own: how or where spans
//! go. On failure: without an observer nothing is made at all; an observer must neither block nor panic.

use crate::trace::{TraceContext, TraceRecord, TraceRing};
use host_kit::Random;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Is told of every message of a process, and of every [`Span`], as it ends. On the thread that did the work, so it hands
/// over and returns at once.
pub trait TraceObserver: Send + Sync + fmt::Debug {
    /// A message was handled. `seq` is set.
    fn handled(&self, record: &TraceRecord);
    /// A stretch of work ended.
    fn ended(&self, span: Span);
}

/// On which side of a process boundary a span stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpanSide {
    /// A request that came in.
    Server,
    /// A call that went out.
    Client,
    /// Work inside the process.
    Internal,
}

/// The value of a span's attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpanValue {
    /// Text; never a secret.
    Text(String),
    /// A number.
    Number(i64),
}

impl From<&str> for SpanValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for SpanValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for SpanValue {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// A stretch of work that has ended.
#[derive(Clone, Debug)]
pub struct Span {
    /// What it was. Of a closed set: ids stand in the attributes.
    pub name: Cow<'static, str>,
    /// On which side of the process's boundary.
    pub side: SpanSide,
    /// When it began, in the clock's monotonic time.
    pub at: Duration,
    /// How long it took.
    pub took: Duration,
    /// Its trace, and its own id.
    pub trace: TraceContext,
    /// The span that caused it; none for the first of a trace.
    pub parent: Option<[u8; 8]>,
    /// Whether it failed: an answer of 5xx, none at all, or it was dropped before its end.
    pub failed: bool,
    /// What else is known of it.
    pub attributes: Vec<(&'static str, SpanValue)>,
}

/// Begins spans. Cheap to clone; without an observer it makes none, and costs one look.
#[derive(Clone, Debug)]
pub struct Spans {
    ring: TraceRing,
    random: Random,
}

impl Spans {
    pub(crate) const fn new(ring: TraceRing, random: Random) -> Self {
        Self { ring, random }
    }

    /// Whether somebody wants them.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.ring.observer().is_some()
    }

    /// Begins a span below `cause`: whatever it causes belongs below [`OpenSpan::trace`]. None when nobody wants it; then
    /// `cause` stays the cause.
    #[must_use]
    pub fn below(&self, cause: &TraceContext, side: SpanSide, name: impl Into<Cow<'static, str>>) -> Option<OpenSpan> {
        self.begin(|random| cause.child(random), Some(cause.span_id()), side, name.into())
    }

    /// Begins the span that `trace` itself names, below `parent`: for what was given its place beforehand.
    #[must_use]
    pub fn of(
        &self,
        trace: TraceContext,
        parent: Option<[u8; 8]>,
        side: SpanSide,
        name: impl Into<Cow<'static, str>>,
    ) -> Option<OpenSpan> {
        self.begin(|_| trace, parent, side, name.into())
    }

    fn begin(
        &self,
        trace: impl FnOnce(&Random) -> TraceContext,
        parent: Option<[u8; 8]>,
        side: SpanSide,
        name: Cow<'static, str>,
    ) -> Option<OpenSpan> {
        let observer = self.ring.observer()?.clone();
        Some(OpenSpan {
            span: Some(Span {
                name,
                side,
                at: self.ring.clock().mono(),
                took: Duration::ZERO,
                trace: trace(&self.random),
                parent,
                failed: false,
                attributes: Vec::new(),
            }),
            observer,
            ring: self.ring.clone(),
        })
    }
}

/// A span that has begun. It ends with [`OpenSpan::end`]; one that is dropped before that, because whoever waited for it
/// has gone, ends as failed.
#[derive(Debug)]
#[must_use = "a span that is dropped at once ends as failed"]
pub struct OpenSpan {
    span: Option<Span>,
    observer: Arc<dyn TraceObserver>,
    ring: TraceRing,
}

impl OpenSpan {
    /// Where what it causes belongs.
    ///
    /// # Panics
    /// Never: the span is taken out by its end alone, which takes this value.
    #[must_use]
    pub fn trace(&self) -> TraceContext {
        self.span.as_ref().expect("it has not ended").trace
    }

    /// Says something about it.
    pub fn with(&mut self, name: &'static str, value: impl Into<SpanValue>) {
        if let Some(span) = &mut self.span {
            span.attributes.push((name, value.into()));
        }
    }

    /// Ends it.
    pub fn end(mut self, failed: bool) {
        self.finish(failed);
    }

    fn finish(&mut self, failed: bool) {
        if let Some(mut span) = self.span.take() {
            span.took = self.ring.clock().mono().saturating_sub(span.at);
            span.failed = failed;
            self.observer.ended(span);
        }
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        self.with("dlock.outcome", "abandoned");
        self.finish(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Outcome, TraceQuery};
    use host_kit::ManualClock;
    use std::sync::Mutex;

    #[derive(Debug, Default)]
    struct Seen {
        handled: Mutex<Vec<u64>>,
        ended: Mutex<Vec<Span>>,
    }

    impl TraceObserver for Seen {
        fn handled(&self, record: &TraceRecord) {
            self.handled.lock().unwrap().push(record.seq);
        }

        fn ended(&self, span: Span) {
            self.ended.lock().unwrap().push(span);
        }
    }

    #[test]
    fn without_an_observer_no_span_is_made_and_with_one_each_is_told_once() {
        let hand = ManualClock::new();
        let random = Random::seeded(7);
        let ring = TraceRing::new(4, hand.clock());
        let spans = Spans::new(ring.clone(), random.clone());
        let cause = TraceContext::root(&random);
        assert!(spans.below(&cause, SpanSide::Client, "call").is_none());
        assert!(!spans.is_on());

        let seen = Arc::new(Seen::default());
        assert!(ring.observe(seen.clone()));
        assert!(!ring.observe(seen.clone()), "a second observer was taken");
        let mut call = spans.below(&cause, SpanSide::Client, "call").unwrap();
        hand.advance(Duration::from_millis(3));
        call.with("answer", 200_u64);
        let below = call.trace();
        call.end(false);
        drop(spans.of(cause, None, SpanSide::Internal, "payout").unwrap());
        ring.record(TraceRecord {
            seq: 0,
            actor: "a".into(),
            kind: "test",
            message: "Test",
            at: Duration::ZERO,
            queued: Duration::ZERO,
            handled: Duration::ZERO,
            outcome: Outcome::Done,
            trace: below,
            parent_span: cause.span_id(),
            token: None,
        });

        assert_eq!(*seen.handled.lock().unwrap(), [1]);
        assert_eq!(
            ring.read(&TraceQuery::default()).len(),
            1,
            "spans are no records of the ring"
        );
        let ended = seen.ended.lock().unwrap();
        let [call, payout] = &ended[..] else {
            panic!("not two spans: {ended:?}")
        };
        assert_eq!((call.took, call.failed), (Duration::from_millis(3), false));
        assert_eq!(call.attributes, [("answer", SpanValue::Number(200))]);
        assert_eq!((call.parent, call.trace), (Some(cause.span_id()), below));
        assert_eq!(below.trace_id(), cause.trace_id());
        assert_ne!(below.span_id(), cause.span_id());
        assert_eq!((payout.trace, payout.parent), (cause, None));
        assert!(payout.failed, "it was dropped before its end");
        assert_eq!(payout.attributes, [("dlock.outcome", SpanValue::from("abandoned"))]);
    }
}
