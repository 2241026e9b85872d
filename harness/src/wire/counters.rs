//! What a wire did, counted: how the effect of a fault is seen.
//!
//! Owns: the numbers. Does not own: when they rise. On failure: there is no code path that fails.

use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::ops::AddAssign;

/// The numbers of a wire at one moment. All but `live` only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Connections accepted.
    pub connections: u64,
    /// Connections that live now.
    pub live: u64,
    /// Connections that found no target.
    pub unconnected: u64,
    /// Bytes forwarded to the target.
    pub request_bytes: u64,
    /// Bytes forwarded to the caller.
    pub answer_bytes: u64,
    /// HTTP requests read to their end.
    pub requests: u64,
    /// HTTP answers read to their end, interim ones left out.
    pub answers: u64,
    /// Connections closed because the line was cut.
    pub cut: u64,
    /// Connections that the wire reset, for whatever reason.
    pub resets: u64,
    /// Connections of which one end was left open and silent.
    pub half_open: u64,
    /// Bytes from callers thrown away.
    pub swallowed_request_bytes: u64,
    /// Bytes from the target thrown away.
    pub swallowed_answer_bytes: u64,
    /// Reads, of either direction, that were forwarded late.
    pub late: u64,
    /// Writes, of either direction, after which a trickle paused.
    pub slowed: u64,
    /// Requests whose copy the target answered too.
    pub duplicated: u64,
    /// Of those copies, the ones that were answered 409: a fence's refusals among them.
    pub duplicates_turned_away: u64,
    /// Requests kept back.
    pub held: u64,
    /// Held requests that the target answered after their callers had gone.
    pub delivered_late: u64,
    /// Of those, the ones that were answered 409.
    pub late_turned_away: u64,
    /// Answers read to their end and thrown away.
    pub dropped_answers: u64,
    /// Copies and held requests that the target did not answer.
    pub undelivered: u64,
    /// Requests forwarded as they were because they, or too many others, were too large to be kept.
    pub passed_by: u64,
}

impl AddAssign for Counts {
    // Every field by its name: one that is new is not forgotten here.
    fn add_assign(&mut self, other: Self) {
        let Self {
            connections,
            live,
            unconnected,
            request_bytes,
            answer_bytes,
            requests,
            answers,
            cut,
            resets,
            half_open,
            swallowed_request_bytes,
            swallowed_answer_bytes,
            late,
            slowed,
            duplicated,
            duplicates_turned_away,
            held,
            delivered_late,
            late_turned_away,
            dropped_answers,
            undelivered,
            passed_by,
        } = other;
        self.connections += connections;
        self.live += live;
        self.unconnected += unconnected;
        self.request_bytes += request_bytes;
        self.answer_bytes += answer_bytes;
        self.requests += requests;
        self.answers += answers;
        self.cut += cut;
        self.resets += resets;
        self.half_open += half_open;
        self.swallowed_request_bytes += swallowed_request_bytes;
        self.swallowed_answer_bytes += swallowed_answer_bytes;
        self.late += late;
        self.slowed += slowed;
        self.duplicated += duplicated;
        self.duplicates_turned_away += duplicates_turned_away;
        self.held += held;
        self.delivered_late += delivered_late;
        self.late_turned_away += late_turned_away;
        self.dropped_answers += dropped_answers;
        self.undelivered += undelivered;
        self.passed_by += passed_by;
    }
}

/// The numbers while they are counted. One thread, so no lock.
#[derive(Debug, Default)]
pub(super) struct Counters(RefCell<Counts>);

impl Counters {
    /// The numbers now.
    pub fn read(&self) -> Counts {
        *self.0.borrow()
    }

    /// Changes one of them.
    pub fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.borrow_mut());
    }
}

/// A number of bytes as it is counted.
pub(super) fn bytes(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
