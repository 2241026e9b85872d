//! What comes next: pure functions over what was answered. Nothing here waits, sends or knows the time.

use crate::ports::PortError;
use http_contract::Code;
use http_contract::payment::PayoutState;
use http_contract::rail::{Outcome, SubmissionRow, SubmitAnswer};

/// The longest reason that P6 and P7 take.
const REASON_CHARS_MAX: usize = 140;

/// What a holder of the account's lock does with a payout as it re-read it (FR-14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reread {
    /// PENDING: claim it.
    Claim,
    /// CLAIMED by somebody who is no longer the holder: recover it (C1.8).
    Recover,
    /// Somebody else did the work, or it is unsubmittable (FR-23).
    Leave,
}

/// See [`Reread`].
#[must_use]
pub const fn after_reread(state: PayoutState) -> Reread {
    match state {
        PayoutState::Pending => Reread::Claim,
        PayoutState::Claimed => Reread::Recover,
        PayoutState::RailAmbiguous | PayoutState::Posted | PayoutState::Failed => Reread::Leave,
    }
}

/// The last step of a payout under its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Final {
    /// P5 with the rail's reference.
    Post {
        /// What the rail acknowledged with.
        rail_reference: String,
    },
    /// P6.
    Fail {
        /// Why.
        reason: String,
    },
    /// P7.
    Ambiguous {
        /// Why.
        reason: String,
    },
}

fn fail(reason: &str) -> Final {
    Final::Fail {
        reason: bounded(reason),
    }
}

fn ambiguous(reason: &str) -> Final {
    Final::Ambiguous {
        reason: bounded(reason),
    }
}

/// The rail's words, cut to what the payment resource takes: they are for humans, the outcome is what decides.
fn bounded(reason: &str) -> String {
    let text: String = reason
        .chars()
        .filter(|c| !c.is_control())
        .take(REASON_CHARS_MAX)
        .collect();
    if text.trim().is_empty() {
        "no reason given".to_owned()
    } else {
        text
    }
}

/// What a recorded submission proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// It supports this last step.
    Settles(Final),
    /// An intent without an outcome: under way, or its proxy died. To everyone who reads it, ambiguous (C3.7).
    InFlight,
    /// There is none.
    Nothing,
    /// It contradicts itself: an acknowledgement without a reference. For a human.
    Unreadable,
}

/// Reads the record of a payout's submission (C1.8).
#[must_use]
pub fn evidence(row: Option<&SubmissionRow>) -> Evidence {
    let Some(row) = row else { return Evidence::Nothing };
    match row.outcome {
        None => Evidence::InFlight,
        Some(outcome) => of_outcome(
            outcome,
            row.rail_reference.as_deref(),
            row.decline_reason.as_deref(),
            row.cause.as_deref(),
        ),
    }
}

fn of_outcome(outcome: Outcome, reference: Option<&str>, declined: Option<&str>, cause: Option<&str>) -> Evidence {
    match (outcome, reference) {
        (Outcome::Acked, Some(reference)) => Evidence::Settles(Final::Post {
            rail_reference: reference.to_owned(),
        }),
        (Outcome::Acked, None) => Evidence::Unreadable,
        (Outcome::Declined, _) => Evidence::Settles(fail(declined.unwrap_or("declined by the rail"))),
        (Outcome::NotReceived, _) => Evidence::Settles(fail("the rail never received it")),
        (Outcome::NotSent, _) => Evidence::Settles(fail("never sent to the rail")),
        (Outcome::Timeout, _) => Evidence::Settles(ambiguous(cause.unwrap_or("the rail's outcome is not known"))),
    }
}

/// What comes after an answer of R1 (C1.8). It is never sent again, whatever the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AfterSubmit {
    /// The outcome is known: take the last step.
    Settle(Final),
    /// Read R2 until it has an outcome or the rail's read time-out has passed; then it is ambiguous. No row: leave it.
    ReadBack,
    /// A newer holder has been here: nothing may be done under this token any more.
    Superseded,
    /// The proxy will refuse this payout for ever (case D14). Read R2; no row: whoever recovers it forbids it, then fails it.
    Refused,
    /// paydb was restored and the rail has not been asked about this payout yet: have it asked, and leave it (case D13).
    AskRail,
}

/// The one table of R1's answers.
#[must_use]
pub fn after_submit(answer: &Result<SubmitAnswer, PortError>) -> AfterSubmit {
    let problem = match answer {
        // A replay answers whatever is recorded now, so any outcome can stand here.
        Ok(answer) => {
            let (reference, declined) = (answer.rail_reference.as_deref(), answer.decline_reason.as_deref());
            return match of_outcome(answer.outcome, reference, declined, None) {
                Evidence::Settles(last) => AfterSubmit::Settle(last),
                Evidence::InFlight | Evidence::Nothing | Evidence::Unreadable => AfterSubmit::ReadBack,
            };
        }
        // Even a connection that was refused is read back: what is certain is on record.
        Err(PortError::NotSent(_) | PortError::Ambiguous(_)) => return AfterSubmit::ReadBack,
        Err(PortError::Problem(problem)) => problem,
    };
    match problem.code {
        Code::RailAmbiguous => AfterSubmit::Settle(ambiguous(&problem.detail)),
        // Of two holders the newer one decides. To read the newer one's outcome back and act on it under the older
        // token is what the fence exists to prevent.
        Code::FencedOut => AfterSubmit::Superseded,
        Code::SubmissionMismatch | Code::InvalidRequest => AfterSubmit::Refused,
        Code::SubmissionsInDoubt => AfterSubmit::AskRail,
        // In flight, submitted before, not claimed, overloaded, and all that should not come here: the record decides.
        _ => AfterSubmit::ReadBack,
    }
}

/// What comes after an answer of P5, P6 or P7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterFinal {
    /// It is done.
    Done,
    /// Another outcome is on record: read R2 and follow it.
    Follow,
    /// It is not known whether it was done, and asking again is a replay (C1.6).
    Again,
    /// Somebody else has moved on, or it cannot be done: leave it.
    Leave,
}

/// See [`AfterFinal`].
pub(crate) fn after_final<T>(answer: &Result<T, PortError>) -> AfterFinal {
    match answer {
        Ok(_) => AfterFinal::Done,
        Err(PortError::NotSent(_) | PortError::Ambiguous(_)) => AfterFinal::Again,
        Err(PortError::Problem(problem)) => match problem.code {
            Code::OutcomeEvidenceMissing => AfterFinal::Follow,
            Code::BackendUnavailable | Code::Overloaded | Code::Internal => AfterFinal::Again,
            _ => AfterFinal::Leave,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_contract::Problem;

    fn row(outcome: Option<Outcome>, rail_reference: Option<&str>) -> SubmissionRow {
        SubmissionRow {
            submission_id: "s1".into(),
            payout_id: "p1".into(),
            account_id: "a1".into(),
            token: 5,
            amount_minor: 100,
            currency: "EUR".into(),
            client_reference: "p1".into(),
            intent_at: "2026-01-01T00:00:00Z".into(),
            forwarded_at: None,
            outcome,
            actor: None,
            cause: Some("read time-out".into()),
            rail_reference: rail_reference.map(str::to_owned),
            decline_reason: Some("no such account".into()),
            outcome_at: None,
            fencing_enforced: true,
        }
    }

    fn problem(code: Code) -> Result<SubmitAnswer, PortError> {
        Err(PortError::Problem(Box::new(Problem::new(code, "detail", "00"))))
    }

    fn post() -> Final {
        Final::Post {
            rail_reference: "R1".into(),
        }
    }

    #[test]
    fn only_pending_is_claimed_and_only_claimed_is_recovered() {
        for state in PayoutState::ALL {
            let expected = match state {
                PayoutState::Pending => Reread::Claim,
                PayoutState::Claimed => Reread::Recover,
                _ => Reread::Leave,
            };
            assert_eq!(after_reread(state), expected);
        }
    }

    #[test]
    fn the_record_alone_decides_what_recovery_does() {
        use Evidence::{InFlight, Nothing, Settles, Unreadable};
        assert_eq!(evidence(None), Nothing);
        assert_eq!(evidence(Some(&row(None, None))), InFlight);
        for outcome in Outcome::ALL {
            for reference in [None, Some("R1")] {
                let found = evidence(Some(&row(Some(outcome), reference)));
                let expected = match (outcome, reference) {
                    (Outcome::Acked, Some(_)) => Settles(post()),
                    (Outcome::Acked, None) => Unreadable,
                    (Outcome::Declined, _) => Settles(fail("no such account")),
                    (Outcome::NotReceived, _) => Settles(fail("the rail never received it")),
                    (Outcome::NotSent, _) => Settles(fail("never sent to the rail")),
                    (Outcome::Timeout, _) => Settles(ambiguous("read time-out")),
                };
                assert_eq!(found, expected, "{outcome:?} {reference:?}");
            }
        }
    }

    #[test]
    fn an_outcome_in_the_answer_of_a_submit_settles_as_the_record_would() {
        for outcome in Outcome::ALL {
            for reference in [None, Some("R1")] {
                let answer = SubmitAnswer {
                    submission_id: "s1".into(),
                    outcome,
                    rail_reference: reference.map(str::to_owned),
                    decline_reason: Some("no such account".into()),
                };
                let expected = match (outcome, reference) {
                    (Outcome::Acked, Some(_)) => AfterSubmit::Settle(post()),
                    (Outcome::Acked, None) => AfterSubmit::ReadBack,
                    (Outcome::Declined, _) => AfterSubmit::Settle(fail("no such account")),
                    (Outcome::NotReceived, _) => AfterSubmit::Settle(fail("the rail never received it")),
                    (Outcome::NotSent, _) => AfterSubmit::Settle(fail("never sent to the rail")),
                    (Outcome::Timeout, _) => AfterSubmit::Settle(ambiguous("the rail's outcome is not known")),
                };
                assert_eq!(after_submit(&Ok(answer)), expected, "{outcome:?} {reference:?}");
            }
        }
    }

    #[test]
    fn every_refusal_of_a_submit_has_its_line_and_none_sends_it_again() {
        for code in Code::ALL {
            let expected = match code {
                Code::RailAmbiguous => AfterSubmit::Settle(ambiguous("detail")),
                Code::FencedOut => AfterSubmit::Superseded,
                Code::SubmissionMismatch | Code::InvalidRequest => AfterSubmit::Refused,
                Code::SubmissionsInDoubt => AfterSubmit::AskRail,
                _ => AfterSubmit::ReadBack,
            };
            assert_eq!(after_submit(&problem(*code)), expected, "{code}");
        }
        for error in [PortError::NotSent("x".into()), PortError::Ambiguous("x".into())] {
            assert_eq!(after_submit(&Err(error)), AfterSubmit::ReadBack);
        }
    }

    #[test]
    fn a_last_step_is_repeated_only_where_that_is_a_replay() {
        for code in Code::ALL {
            let expected = match code {
                Code::OutcomeEvidenceMissing => AfterFinal::Follow,
                Code::BackendUnavailable | Code::Overloaded | Code::Internal => AfterFinal::Again,
                _ => AfterFinal::Leave,
            };
            assert_eq!(after_final(&problem(*code)), expected, "{code}");
        }
        assert_eq!(after_final(&Ok(())), AfterFinal::Done);
        for error in [PortError::NotSent("x".into()), PortError::Ambiguous("x".into())] {
            assert_eq!(after_final::<()>(&Err(error)), AfterFinal::Again);
        }
    }

    #[test]
    fn a_reason_is_within_what_the_payment_resource_takes() {
        let long = "é".repeat(500);
        for words in ["", " \n", "a\u{7}b", &long] {
            let Final::Fail { reason } = fail(words) else {
                panic!("fail fails")
            };
            assert!((1..=REASON_CHARS_MAX).contains(&reason.chars().count()), "{reason:?}");
            assert!(!reason.chars().any(char::is_control));
        }
    }
}
