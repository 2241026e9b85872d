//! What the rail proxy has recorded about a payout, and what may be concluded from it (C1.2, C1.6). Pure.

use crate::Resolution;

/// What became of a submission, as `rail_submission.outcome` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RailOutcome {
    /// The rail executed it.
    Acked,
    /// The rail refused it.
    Declined,
    /// Not known.
    Timeout,
    /// The rail never received it.
    NotReceived,
    /// Never sent and never to be sent.
    NotSent,
}

impl RailOutcome {
    /// The outcome as it stands in the table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acked => "ACKED",
            Self::Declined => "DECLINED",
            Self::Timeout => "TIMEOUT",
            Self::NotReceived => "NOT_RECEIVED",
            Self::NotSent => "NOT_SENT",
        }
    }

    /// Reads what the rail proxy wrote.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [
            Self::Acked,
            Self::Declined,
            Self::Timeout,
            Self::NotReceived,
            Self::NotSent,
        ]
        .into_iter()
        .find(|outcome| outcome.as_str() == text)
    }
}

/// A submission of a payout, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// What became of it; none while nothing is recorded.
    pub outcome: Option<RailOutcome>,
    /// The rail's reference.
    pub rail_reference: Option<String>,
    /// The rail's reason.
    pub decline_reason: Option<String>,
}

/// All submissions of a payout. One at most while the rail's fence stands; more only where it was switched off. Empty
/// also where the rail's file could not be found: then nothing can be concluded, which is the safe side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence(pub Vec<Submission>);

impl Evidence {
    fn any(&self, wanted: RailOutcome) -> bool {
        self.0.iter().any(|s| s.outcome == Some(wanted))
    }

    fn open(&self) -> bool {
        self.0
            .iter()
            .any(|s| matches!(s.outcome, None | Some(RailOutcome::Timeout)))
    }

    /// Post: ACKED with this very reference.
    #[must_use]
    pub fn supports_post(&self, rail_reference: &str) -> bool {
        self.0
            .iter()
            .any(|s| s.outcome == Some(RailOutcome::Acked) && s.rail_reference.as_deref() == Some(rail_reference))
    }

    /// Fail: DECLINED, NOT_RECEIVED or NOT_SENT, and no submission that was or may have been executed.
    #[must_use]
    pub fn supports_fail(&self) -> bool {
        !self.0.is_empty() && !self.open() && !self.any(RailOutcome::Acked)
    }

    /// Ambiguous: TIMEOUT, or an intent without outcome.
    #[must_use]
    pub fn supports_ambiguous(&self) -> bool {
        self.open()
    }

    /// Resolve by the reconciler: POSTED needs ACKED, however it came; FAILED needs DECLINED or NOT_RECEIVED.
    #[must_use]
    pub fn supports_resolution(&self, outcome: Resolution, rail_reference: Option<&str>) -> bool {
        match outcome {
            Resolution::Posted => self.acked_reference(rail_reference).is_some(),
            Resolution::Failed => self.supports_fail() && !self.any(RailOutcome::NotSent),
        }
    }

    /// Resolve by hand: needs no evidence, but may not contradict it.
    #[must_use]
    pub fn contradicts(&self, outcome: Resolution, rail_reference: Option<&str>) -> bool {
        match outcome {
            Resolution::Posted if self.any(RailOutcome::Acked) => {
                rail_reference.is_some() && self.acked_reference(rail_reference).is_none()
            }
            Resolution::Posted => !self.0.is_empty() && !self.open(),
            Resolution::Failed => self.any(RailOutcome::Acked),
        }
    }

    /// The reference of an acknowledged submission: the wanted one, or the first where none is named. `Some(None)`
    /// where the rail acknowledged without a reference.
    #[must_use]
    pub fn acked_reference(&self, wanted: Option<&str>) -> Option<Option<&str>> {
        self.0
            .iter()
            .filter(|s| s.outcome == Some(RailOutcome::Acked))
            .map(|s| s.rail_reference.as_deref())
            .find(|reference| wanted.is_none() || *reference == wanted)
    }

    /// Why the rail refused or never received it: what a failed payout is recorded with.
    #[must_use]
    pub fn failure_reason(&self) -> Option<&str> {
        self.0.iter().find_map(|s| match s.outcome {
            Some(RailOutcome::Declined) => Some(s.decline_reason.as_deref().unwrap_or("DECLINED")),
            Some(outcome @ (RailOutcome::NotReceived | RailOutcome::NotSent)) => Some(outcome.as_str()),
            _ => None,
        })
    }

    /// What is recorded, in a word each: for the refusal.
    #[must_use]
    pub fn summary(&self) -> String {
        if self.0.is_empty() {
            return "NONE".to_owned();
        }
        let words: Vec<_> = self
            .0
            .iter()
            .map(|s| s.outcome.map_or("INTENT", RailOutcome::as_str))
            .collect();
        words.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(outcome: Option<RailOutcome>) -> Evidence {
        Evidence(vec![Submission {
            outcome,
            rail_reference: (outcome == Some(RailOutcome::Acked)).then(|| "r1".to_owned()),
            decline_reason: None,
        }])
    }

    #[test]
    fn each_outcome_supports_exactly_what_the_contract_says() {
        use RailOutcome::{Acked, Declined, NotReceived, NotSent, Timeout};
        // outcome, post, fail, ambiguous, resolve POSTED, resolve FAILED, by hand POSTED, by hand FAILED
        let rows = [
            (Some(Acked), true, false, false, true, false, true, false),
            (Some(Declined), false, true, false, false, true, false, true),
            (Some(NotReceived), false, true, false, false, true, false, true),
            (Some(NotSent), false, true, false, false, false, false, true),
            (Some(Timeout), false, false, true, false, false, true, true),
            (None, false, false, true, false, false, true, true),
        ];
        for (outcome, post, fail, ambiguous, posted, failed, hand_posted, hand_failed) in rows {
            let e = one(outcome);
            assert_eq!(e.supports_post("r1"), post, "{outcome:?} post");
            assert!(!e.supports_post("r2"));
            assert_eq!(e.supports_fail(), fail, "{outcome:?} fail");
            assert_eq!(e.supports_ambiguous(), ambiguous, "{outcome:?} ambiguous");
            assert_eq!(
                e.supports_resolution(Resolution::Posted, None),
                posted,
                "{outcome:?} resolve POSTED"
            );
            assert_eq!(
                e.supports_resolution(Resolution::Failed, None),
                failed,
                "{outcome:?} resolve FAILED"
            );
            assert_eq!(
                !e.contradicts(Resolution::Posted, None),
                hand_posted,
                "{outcome:?} by hand POSTED"
            );
            assert_eq!(
                !e.contradicts(Resolution::Failed, None),
                hand_failed,
                "{outcome:?} by hand FAILED"
            );
        }
    }

    #[test]
    fn no_record_supports_nothing_and_contradicts_nothing() {
        let none = Evidence::default();
        assert!(!none.supports_post("r1") && !none.supports_fail() && !none.supports_ambiguous());
        assert!(!none.supports_resolution(Resolution::Posted, None));
        assert!(!none.supports_resolution(Resolution::Failed, None));
        assert!(!none.contradicts(Resolution::Posted, Some("x")) && !none.contradicts(Resolution::Failed, None));
    }

    #[test]
    fn by_hand_cannot_name_another_reference_than_the_rail_did() {
        let acked = one(Some(RailOutcome::Acked));
        assert!(acked.contradicts(Resolution::Posted, Some("r2")));
        assert!(!acked.contradicts(Resolution::Posted, Some("r1")));
    }

    #[test]
    fn one_executed_submission_among_several_forbids_to_fail() {
        let both = Evidence([one(Some(RailOutcome::Declined)).0, one(Some(RailOutcome::Acked)).0].concat());
        assert!(!both.supports_fail() && !both.supports_resolution(Resolution::Failed, None));
    }
}
