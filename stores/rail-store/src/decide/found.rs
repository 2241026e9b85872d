//! R3 for a payout without a submission, after paydb was restored (case D13): the lost part of the history may have sent
//! it, so what the rail knows decides whether it may be sent.

#![allow(clippy::disallowed_methods, reason = "a token comes out of the store here")]

use super::lookup::{Judged, more_than_one, other_money, silence};
use super::{Raise, late_ack, late_decline};
use crate::payout::Payout;
use crate::{ExceptionKind, Execution, LookupRecord, Outcome, Settled, Sighting, Submission, Verdict};
use lock_api::{FencingToken, UnixMillis};

/// Judges a lookup of a payout that has no submission. `since`: when the restore was noticed; what was sent before it is
/// seen within the visibility horizon, or never. `silent_at`: as in [`super::lookup::decide`], of this epoch alone.
///
/// What the rail executed or declined becomes a submission of the payout's claim, so that it is settled without a second
/// send. Where the payout is not claimed nobody asks to settle it, and nothing is recorded but the lookup; NOT_RECEIVED
/// alone lets R1 go on.
pub(crate) fn decide(
    lookup: &LookupRecord,
    payout: &Payout,
    since: UnixMillis,
    silent_at: Option<UnixMillis>,
    now: UnixMillis,
) -> Judged {
    let mut judged = Judged {
        changed: Vec::new(),
        double: None,
        exceptions: Vec::new(),
        saw_nothing: false,
        executions: 0,
        verdict: Verdict::Inconclusive,
        submission: None,
    };
    let Sighting::Book {
        executions,
        declined,
        is_final,
    } = &lookup.sighting
    else {
        return judged;
    };
    judged.executions = executions.len() as u64;
    judged.double = more_than_one(executions);
    if let Some(execution) = executions.first() {
        executed(&mut judged, lookup, payout, execution, now);
    } else if let Some(reason) = declined.first() {
        judged.verdict = Verdict::Declined;
        if let Settled::Posted { .. } = payout.settled() {
            judged.exceptions.push(late_decline(Outcome::Declined.as_str()));
        }
        judged.submission = submission(lookup, payout, now).map(|row| Submission {
            outcome: Some(Outcome::Declined),
            decline_reason: Some(reason.clone()),
            ..row
        });
    } else {
        let (counts, second) = silence(lookup, since, silent_at);
        judged.saw_nothing = counts;
        // A promise made before the restore was noticed may be older than what was lost.
        let promised = *is_final && lookup.clock_trusted && lookup.asked_at > since;
        if (counts || promised) && matches!(payout.settled(), Settled::Posted { .. }) {
            judged.exceptions.push(Raise {
                kind: ExceptionKind::NotFoundAtRail,
                detail: "the payout is POSTED and, asked after the visibility horizon, the rail knows of no execution"
                    .to_owned(),
            });
        }
        if second || promised {
            judged.verdict = Verdict::NotReceived;
        }
    }
    judged
}

fn executed(judged: &mut Judged, lookup: &LookupRecord, payout: &Payout, execution: &Execution, now: UnixMillis) {
    let reference = &execution.rail_reference;
    if let Some(other) = other_money(execution, payout.amount_minor, &payout.currency) {
        judged.exceptions.push(other);
        return;
    }
    judged.verdict = Verdict::Executed;
    match payout.settled() {
        Settled::Failed => return judged.exceptions.push(late_ack(reference)),
        Settled::Posted {
            rail_reference: Some(posted),
        } if posted != *reference => {
            return judged.exceptions.push(Raise {
                kind: ExceptionKind::DoublePaymentSuspected,
                detail: format!(
                    "the payout is POSTED as {posted} and the rail says that it executed it as {reference}"
                ),
            });
        }
        Settled::Posted { .. } | Settled::No => {}
    }
    judged.submission = submission(lookup, payout, now).map(|row| Submission {
        outcome: Some(Outcome::Acked),
        rail_reference: Some(reference.clone()),
        ..row
    });
}

/// What was lost, as far as it is known, under the token of the payout's claim.
fn submission(lookup: &LookupRecord, payout: &Payout, now: UnixMillis) -> Option<Submission> {
    let token = payout.claim_token.filter(|_| payout.state == "CLAIMED")?;
    Some(Submission {
        seq: 0,
        submission_id: lookup.submission_id.clone(),
        payout_id: lookup.payout_id.clone(),
        account_id: payout.account_id.clone(),
        token: FencingToken::from_store(token).ok()?,
        idempotency_key: lookup.payout_id.clone(),
        client_reference: lookup.payout_id.clone(),
        amount_minor: payout.amount_minor,
        currency: payout.currency.clone(),
        body_hash: None,
        intent_at: now,
        forwarded_at: None,
        outcome: None,
        actor: None,
        cause: Some("found by lookup after a restore".to_owned()),
        rail_reference: None,
        decline_reason: None,
        outcome_at: Some(now),
        fencing_enforced: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESTORED: UnixMillis = UnixMillis(1_000_000);
    const HORIZON: i64 = 60_000;

    fn payout(state: &str) -> Payout {
        Payout {
            account_id: "a1".into(),
            amount_minor: 1_250,
            currency: "EUR".into(),
            creditor: r#"{"name":"Ada","account":"DE02"}"#.into(),
            state: state.into(),
            claim_token: (state != "PENDING").then_some(7),
            rail_reference: (state == "POSTED").then(|| "R1".to_owned()),
        }
    }

    fn asked(after: i64, sighting: Sighting) -> LookupRecord {
        LookupRecord {
            lookup_id: "l1".into(),
            submission_id: "s1".into(),
            payout_id: "p1".into(),
            asked_at: UnixMillis(RESTORED.0 + after),
            clock_trusted: true,
            visibility_horizon_ms: u64::try_from(HORIZON).unwrap(),
            sighting,
        }
    }

    fn book(executions: &[(&str, i64)], is_final: bool) -> Sighting {
        Sighting::Book {
            executions: executions
                .iter()
                .map(|(reference, amount_minor)| Execution {
                    rail_reference: (*reference).to_owned(),
                    amount_minor: *amount_minor,
                    currency: "EUR".into(),
                })
                .collect(),
            declined: Vec::new(),
            is_final,
        }
    }

    fn judged(lookup: &LookupRecord, state: &str, silent_at: Option<i64>) -> Judged {
        let silent_at = silent_at.map(|after| UnixMillis(RESTORED.0 + after));
        decide(lookup, &payout(state), RESTORED, silent_at, lookup.asked_at)
    }

    #[test]
    fn what_was_executed_becomes_the_submission_of_the_claim() {
        let found = judged(&asked(1, book(&[("R1", 1_250)], false)), "CLAIMED", None);
        let row = found.submission.unwrap();
        assert_eq!(
            (
                row.outcome,
                row.rail_reference.as_deref(),
                row.token.get(),
                row.forwarded_at
            ),
            (Some(Outcome::Acked), Some("R1"), 7, None)
        );
        assert_eq!((found.verdict, found.executions), (Verdict::Executed, 1));
        // Nobody holds it: what the rail knows is known, and nothing may be sent.
        let found = judged(&asked(1, book(&[("R1", 1_250)], false)), "PENDING", None);
        assert_eq!((found.verdict, found.submission), (Verdict::Executed, None));
    }

    #[test]
    fn other_money_and_a_failed_payout_are_for_a_human() {
        let found = judged(&asked(1, book(&[("R1", 1)], false)), "CLAIMED", None);
        assert_eq!((found.verdict, found.submission), (Verdict::Inconclusive, None));
        assert_eq!(found.exceptions[0].kind, ExceptionKind::AmountMismatch);
        let found = judged(&asked(1, book(&[("R1", 1_250)], false)), "FAILED", None);
        assert_eq!((found.verdict, found.submission), (Verdict::Executed, None));
        assert_eq!(found.exceptions[0].kind, ExceptionKind::LateAckAfterFailed);
        let found = judged(&asked(1, book(&[("R1", 1_250), ("R2", 1_250)], false)), "CLAIMED", None);
        assert_eq!(found.double.unwrap().kind, ExceptionKind::DoublePaymentSuspected);
    }

    #[test]
    fn silence_lets_it_be_sent_only_twice_after_the_horizon_or_with_a_promise() {
        for (after, silent_at, is_final, verdict, counts) in [
            (HORIZON, Some(HORIZON), false, Verdict::Inconclusive, false),
            (HORIZON + 1, None, false, Verdict::Inconclusive, true),
            (HORIZON + 2, Some(HORIZON), false, Verdict::Inconclusive, true),
            (HORIZON + 2, Some(HORIZON + 1), false, Verdict::NotReceived, true),
            (1, None, true, Verdict::NotReceived, false),
            (0, None, true, Verdict::Inconclusive, false),
        ] {
            let found = judged(&asked(after, book(&[], is_final)), "CLAIMED", silent_at);
            assert_eq!(
                (found.verdict, found.saw_nothing, found.submission),
                (verdict, counts, None),
                "{after} {silent_at:?} {is_final}"
            );
        }
        let found = judged(&asked(HORIZON * 9, Sighting::Failed), "CLAIMED", Some(HORIZON * 8));
        assert_eq!(found.verdict, Verdict::Inconclusive, "an error is no answer");
    }
}
