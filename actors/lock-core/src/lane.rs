//! A lane: what waits for the next store call of one kind while one is under way (group commit by self-notify).
//!
//! Owns: the order of the items and the rule "one call of a kind at a time, everything that came meanwhile goes into
//! the next one". Nothing waits for a timer: a lone request goes at once, many share a commit.
//! Does not own: the call itself.
//! On failure: a full lane refuses; nothing is dropped silently.

use std::collections::VecDeque;

/// The items of one kind.
#[derive(Debug)]
pub(crate) struct Lane<I> {
    waiting: VecDeque<I>,
    in_flight: bool,
    flush_is_due: bool,
    bound: usize,
}

impl<I> Lane<I> {
    pub(crate) const fn new(bound: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            in_flight: false,
            flush_is_due: false,
            bound,
        }
    }

    /// Takes an item. `Ok(true)` asks the caller to send itself a flush, behind all that its mailbox already holds.
    pub(crate) fn push(&mut self, item: I) -> Result<bool, I> {
        if self.waiting.len() >= self.bound {
            return Err(item);
        }
        self.waiting.push_back(item);
        let ask = !self.in_flight && !self.flush_is_due;
        self.flush_is_due |= ask;
        Ok(ask)
    }

    /// Takes an item whatever the bound: for what gives something back, which must not be refused.
    pub(crate) fn push_surely(&mut self, item: I) -> bool {
        self.waiting.push_back(item);
        let ask = !self.in_flight && !self.flush_is_due;
        self.flush_is_due |= ask;
        ask
    }

    /// The next batch, at most `batch_max` items; none while a call is under way or when there is nothing to do.
    pub(crate) fn begin(&mut self, batch_max: usize) -> Option<Vec<I>> {
        self.flush_is_due = false;
        if self.in_flight || self.waiting.is_empty() {
            return None;
        }
        self.in_flight = true;
        let size = self.waiting.len().min(batch_max.max(1));
        Some(self.waiting.drain(..size).collect())
    }

    /// The call has ended. True when more waits.
    pub(crate) fn end(&mut self) -> bool {
        self.in_flight = false;
        !self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_while_a_call_is_under_way_shares_the_next_one() {
        let mut lane = Lane::new(10);
        assert_eq!(lane.push(1), Ok(true));
        assert_eq!(lane.push(2), Ok(false), "one flush is enough");
        assert_eq!(lane.begin(512), Some(vec![1, 2]));
        for item in 3..=6 {
            assert_eq!(lane.push(item), Ok(false));
        }
        assert_eq!(lane.begin(512), None, "one call of a kind at a time");
        assert!(lane.end());
        assert_eq!(lane.begin(3), Some(vec![3, 4, 5]), "a batch is bounded");
        assert!(lane.end());
        assert_eq!(lane.begin(3), Some(vec![6]));
        assert!(!lane.end());
        assert_eq!(lane.push(7), Ok(true));
    }

    #[test]
    fn a_full_lane_refuses_but_takes_back_what_is_returned() {
        let mut lane = Lane::new(1);
        assert_eq!(lane.push(1), Ok(true));
        assert_eq!(lane.push(2), Err(2));
        lane.push_surely(3);
        assert_eq!(lane.begin(9), Some(vec![1, 3]));
    }
}
