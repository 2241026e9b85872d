//! Several dumps on one time axis.
//!
//! Each process has a monotonic clock of its own; its anchor turns that into wall time. Whether the wall clocks of two
//! hosts agree is then seen by the calls between them: a request cannot begin before it was sent, nor end after its answer
//! was there. Each answered call so gives an interval in which the difference of the two clocks must lie, as for NTP, and
//! all of them together a narrow one.

use crate::dump::{CALL, Dump, REQUEST, Record, signed};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What the calls between two processes say of their clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skew {
    /// The process that called, as it is shown.
    pub caller: String,
    /// The process that was called.
    pub server: String,
    /// How many calls of which both ends are in the dumps.
    pub calls: usize,
    /// How many of them cannot have been as the clocks say: answered before they were sent, or after the answer was there.
    pub impossible: usize,
    /// By how much the server's clock is ahead of the caller's, at least, in microseconds.
    pub ahead_least_us: i64,
    /// By how much at most. Below the least where the difference changed in between.
    pub ahead_most_us: i64,
    #[serde(skip)]
    caller_id: String,
    #[serde(skip)]
    server_id: String,
}

impl Skew {
    /// Whether the two clocks may agree.
    #[must_use]
    pub const fn may_agree(&self) -> bool {
        self.impossible == 0
    }

    /// The middle of what is possible.
    const fn ahead_us(&self) -> i64 {
        self.ahead_least_us.midpoint(self.ahead_most_us)
    }
}

/// What the calls in a dump say of the clocks of their processes.
#[must_use]
pub fn skews(dump: &Dump) -> Vec<Skew> {
    let offsets = dump.offsets();
    let begin = |record: &Record| signed(record.at_ns) + offsets[&*record.boot_id];
    let end = |record: &Record| begin(record) + signed(record.handled_ns);
    let calls: BTreeMap<(&str, &str), &Record> = dump
        .records
        .iter()
        .filter(|record| record.kind == CALL)
        .map(|record| ((&*record.trace_id, &*record.span_id), record))
        .collect();
    let mut found: BTreeMap<(&str, &str), Skew> = BTreeMap::new();
    for request in dump.records.iter().filter(|record| record.kind == REQUEST) {
        let Some(call) = calls.get(&(&*request.trace_id, &*request.parent_span_id)) else {
            continue;
        };
        if call.boot_id == request.boot_id {
            continue;
        }
        let ahead_most = (begin(request) - begin(call)).div_euclid(1_000);
        // Only a call that had its answer ended after the request.
        let answered = call.outcome == "answered" || call.outcome == "refused";
        let ahead_least = if answered {
            (end(request) - end(call)).div_euclid(1_000)
        } else {
            i64::MIN
        };
        let title = |id: &str| dump.processes[id].title();
        let skew = found
            .entry((&*call.boot_id, &*request.boot_id))
            .or_insert_with(|| Skew {
                caller: title(&call.boot_id),
                server: title(&request.boot_id),
                calls: 0,
                impossible: 0,
                ahead_least_us: i64::MIN,
                ahead_most_us: i64::MAX,
                caller_id: call.boot_id.clone(),
                server_id: request.boot_id.clone(),
            });
        skew.calls += 1;
        skew.impossible += usize::from(ahead_most < 0 || ahead_least > 0);
        skew.ahead_most_us = skew.ahead_most_us.min(ahead_most);
        skew.ahead_least_us = skew.ahead_least_us.max(ahead_least);
    }
    // A pair whose calls were never answered knows one side only: take what is known for the other.
    found
        .into_values()
        .map(|mut skew| {
            if skew.ahead_least_us == i64::MIN {
                skew.ahead_least_us = skew.ahead_most_us;
            }
            skew
        })
        .collect()
}

/// Puts dumps together: each record once, all in the order of their wall time. With `align`, processes whose clocks
/// disagree with those of their callers are moved; the answer says what the clocks looked like before.
#[must_use]
pub fn merge(dumps: impl IntoIterator<Item = Dump>, align: bool) -> (Dump, Vec<Skew>) {
    let mut all = Dump::default();
    let mut seen: BTreeSet<(String, u64)> = BTreeSet::new();
    for dump in dumps {
        for process in dump.processes.into_values() {
            match all.processes.get(&process.boot_id) {
                // The later dump of a process knows more; one without a header knows nothing.
                Some(known) if known.next_seq >= process.next_seq => {}
                _ => drop(all.processes.insert(process.boot_id.clone(), process)),
            }
        }
        for record in dump.records {
            if seen.insert((record.boot_id.clone(), record.seq)) {
                all.records.push(record);
            }
        }
    }
    date(&mut all);
    let skews = skews(&all);
    if align {
        for (boot_id, shift_us) in shifts(&all, &skews) {
            if let Some(process) = all.processes.get_mut(&boot_id) {
                process.shift_us += shift_us;
            }
            for record in all.records.iter_mut().filter(|record| record.boot_id == boot_id) {
                record.at_wall_us += shift_us;
            }
        }
        date(&mut all);
    }
    all.records
        .sort_by(|a, b| (a.at_wall_us, &a.boot_id, a.seq).cmp(&(b.at_wall_us, &b.boot_id, b.seq)));
    (all, skews)
}

/// Gives every record of a process the wall time that one anchor of it says.
fn date(dump: &mut Dump) {
    let offsets: BTreeMap<String, i64> = dump
        .offsets()
        .into_iter()
        .map(|(id, offset)| (id.to_owned(), offset))
        .collect();
    for record in &mut dump.records {
        record.at_wall_us = (signed(record.at_ns) + offsets[&record.boot_id]).div_euclid(1_000);
        record.at_wall_ms = record.at_wall_us.div_euclid(1_000);
    }
}

/// By how much to move each process. The one that has the most calls stays, and whoever is reached from it over a pair of
/// clocks that cannot agree is moved by the middle of what is possible.
fn shifts(dump: &Dump, skews: &[Skew]) -> BTreeMap<String, i64> {
    let mut calls: BTreeMap<&str, usize> = BTreeMap::new();
    for skew in skews {
        *calls.entry(&skew.caller_id).or_default() += skew.calls;
        *calls.entry(&skew.server_id).or_default() += skew.calls;
    }
    let mut order: Vec<_> = dump.processes.keys().map(String::as_str).collect();
    order.sort_by_key(|id| std::cmp::Reverse(calls.get(id).copied().unwrap_or(0)));
    let mut shifts: BTreeMap<String, i64> = BTreeMap::new();
    for root in order {
        if shifts.contains_key(root) {
            continue;
        }
        shifts.insert(root.to_owned(), 0);
        let mut open = VecDeque::from([root.to_owned()]);
        while let Some(from) = open.pop_front() {
            let base = shifts[&from];
            for skew in skews {
                let (to, ahead) = if skew.caller_id == from {
                    (&skew.server_id, skew.ahead_us())
                } else if skew.server_id == from {
                    (&skew.caller_id, -skew.ahead_us())
                } else {
                    continue;
                };
                if !shifts.contains_key(to) {
                    // Clocks that may agree are left as they are, relative to each other.
                    let shift = if skew.may_agree() { base } else { base - ahead };
                    shifts.insert(to.clone(), shift);
                    open.push_back(to.clone());
                }
            }
        }
    }
    shifts.retain(|_, shift| *shift != 0);
    shifts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::tests::{dump, record};

    /// A call of 4 ms from `a` at 10 ms; its request at `b` takes the 1 ms in the middle, by a clock that is `ahead`.
    fn a_call(ahead_us: i64) -> Dump {
        let mut call = record("a", 1, 10_000, 1, 0);
        (call.kind, call.outcome, call.handled_ns) = (CALL.into(), "answered".into(), 4_000_000);
        let begin = u64::try_from(100_000 + 11_500 + ahead_us).unwrap();
        let mut request = record("b", 1, begin, 2, 1);
        request.kind = REQUEST.into();
        // Its wall clock, minus what its monotonic clock began at.
        request.at_wall_us -= 100_000;
        dump(vec![call, request])
    }

    #[test]
    fn clocks_that_may_agree_are_left_alone() {
        for ahead in [0, 1_400, -1_400] {
            let (merged, skews) = merge([a_call(ahead)], true);
            assert_eq!(
                (skews.len(), skews[0].calls, skews[0].impossible),
                (1, 1, 0),
                "{skews:?}"
            );
            assert!(merged.processes.values().all(|process| process.shift_us == 0));
        }
    }

    #[test]
    fn a_request_before_its_call_shows_whose_clock_is_off_and_by_how_much() {
        for ahead in [-50_000, 80_000] {
            let (_, told) = merge([a_call(ahead)], false);
            assert_eq!(told[0].impossible, 1);
            assert!(
                told[0].ahead_least_us <= ahead && ahead <= told[0].ahead_most_us,
                "{told:?}"
            );
            assert!(told[0].ahead_most_us - told[0].ahead_least_us <= 3_001);
            let (merged, _) = merge([a_call(ahead)], true);
            let again = skews(&merged);
            assert_eq!(again[0].impossible, 0, "{again:?}");
            let shift: i64 = merged.processes.values().map(|process| process.shift_us).sum();
            assert!((shift.abs() - ahead.abs()).abs() <= 1_500, "{shift}");
            // What was moved says so, and is not moved again.
            let text = merged.to_jsonl();
            let (again, _) = merge([Dump::parse(&text).unwrap()], true);
            assert_eq!(again, merged);
        }
    }

    #[test]
    fn a_call_without_an_answer_bounds_one_side_only() {
        let mut unanswered = a_call(5_000_000);
        unanswered.records[0].outcome = "failed".into();
        let told = skews(&unanswered);
        assert_eq!((told[0].calls, told[0].impossible), (1, 0));
    }

    #[test]
    fn what_two_dumps_of_a_process_share_is_there_once_and_in_order() {
        let first = dump(vec![record("a", 1, 10, 1, 0), record("a", 2, 30, 2, 1)]);
        let second = dump(vec![record("a", 2, 30, 2, 1), record("b", 1, 20, 3, 0)]);
        let (merged, skews) = merge([first, second], false);
        let spans: Vec<_> = merged.records.iter().map(|record| record.seq).collect();
        assert_eq!(spans, [1, 1, 2]);
        assert_eq!((merged.processes.len(), skews.len()), (2, 0));
    }
}
