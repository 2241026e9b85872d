//! Which part of a dump is wanted.

use crate::Dump;
use crate::dump::Record;
use std::collections::BTreeSet;

/// What is wanted. Token, key and payout choose whole traces: whatever was done in a trace one record of which names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this trace.
    pub trace_id: Option<String>,
    /// Only traces in which this token is carried.
    pub token: Option<u64>,
    /// Only traces that name this key.
    pub key: Option<String>,
    /// Only traces that name this payout.
    pub payout: Option<String>,
    /// Only actors whose path is this, or lies below it.
    pub actor: Option<String>,
}

impl Filter {
    /// Whether it lets everything through.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Leaves in the dump what is wanted.
    pub fn apply(&self, dump: &mut Dump) {
        if self.is_empty() {
            return;
        }
        let named = |wanted: &dyn Fn(&Record) -> bool| -> BTreeSet<String> {
            let found = dump.records.iter().filter(|record| wanted(record));
            found.map(|record| record.trace_id.clone()).collect()
        };
        let mut sets = Vec::new();
        if let Some(token) = self.token {
            sets.push(named(&|record| record.token == Some(token)));
        }
        if let Some(key) = &self.key {
            sets.push(named(&|record| record.key.as_ref() == Some(key)));
        }
        if let Some(payout) = &self.payout {
            sets.push(named(&|record| record.payout.as_ref() == Some(payout)));
        }
        dump.records.retain(|record| {
            self.trace_id.as_ref().is_none_or(|id| *id == record.trace_id)
                && sets.iter().all(|set| set.contains(&record.trace_id))
                && self.is_below(record)
        });
    }

    /// Whether the record itself names what is wanted: for whoever sees one after the other.
    #[must_use]
    pub fn names(&self, record: &Record) -> bool {
        self.trace_id.as_ref().is_none_or(|id| *id == record.trace_id)
            && self.token.is_none_or(|token| record.token == Some(token))
            && self.key.as_ref().is_none_or(|key| record.key.as_ref() == Some(key))
            && self
                .payout
                .as_ref()
                .is_none_or(|payout| record.payout.as_ref() == Some(payout))
            && self.is_below(record)
    }

    fn is_below(&self, record: &Record) -> bool {
        self.actor.as_ref().is_none_or(|actor| {
            let rest = record.actor.strip_prefix(actor.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::tests::{dump, record};

    #[test]
    fn a_name_chooses_the_whole_trace() {
        let mut first = record("a", 1, 10, 1, 0);
        first.payout = Some("P".to_owned());
        let mut second = record("a", 2, 20, 2, 1);
        second.token = Some(5);
        let mut other = record("b", 1, 30, 3, 0);
        other.trace_id = format!("{:032x}", 2);
        other.key = Some("K".to_owned());
        let all = dump(vec![first, second, other]);
        let left = |filter: Filter| {
            let mut dump = all.clone();
            filter.apply(&mut dump);
            dump.records
                .iter()
                .map(|record| record.span_id.clone())
                .collect::<Vec<_>>()
        };
        let [one, two, three] = [1, 2, 3].map(|span| format!("{span:016x}"));
        let filter = |set: &dyn Fn(&mut Filter)| {
            let mut filter = Filter::default();
            set(&mut filter);
            filter
        };
        assert_eq!(left(Filter::default()).len(), 3);
        assert_eq!(
            left(filter(&|f| f.payout = Some("P".into()))),
            [one.clone(), two.clone()]
        );
        assert_eq!(left(filter(&|f| f.token = Some(5))), [one.clone(), two.clone()]);
        assert_eq!(left(filter(&|f| f.key = Some("K".into()))), [three]);
        assert_eq!(left(filter(&|f| f.trace_id = Some(format!("{:032x}", 1)))), [one, two]);
        assert_eq!(left(filter(&|f| f.actor = Some("a".into()))).len(), 2);
        assert!(left(filter(&|f| f.actor = Some("a/act".into()))).is_empty());
        assert!(
            left(filter(&|f| {
                f.token = Some(5);
                f.key = Some("K".into());
            }))
            .is_empty()
        );
    }
}
