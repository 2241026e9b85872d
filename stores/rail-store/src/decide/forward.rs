//! The last step before the socket (C1.2 Evidence, C4.4).

use crate::{Fencing, ForwardClaim, Submission};

/// Judges by all submissions of the payout. `Forward`: `forwarded_at` is to be set, and committed, before anything else.
pub(crate) fn decide(submission_id: &str, of_payout: &[Submission], fencing: Fencing) -> ForwardClaim {
    let duplicate = of_payout
        .iter()
        .any(|other| other.submission_id != submission_id && other.forwarded_at.is_some());
    // The unique index makes this impossible with the fence on; were it to happen all the same, it is not sent.
    if duplicate && fencing.is_enforced() {
        return ForwardClaim::Refused { duplicate };
    }
    let open = of_payout
        .iter()
        .any(|own| own.submission_id == submission_id && own.outcome.is_none() && own.forwarded_at.is_none());
    if open {
        ForwardClaim::Forward { duplicate }
    } else {
        ForwardClaim::Refused { duplicate: false }
    }
}
