//! The check by token order: grants sorted by token, walked once with what is known of each one's beginning and end.
//!
//! Linear in the number of calls; it knows nothing of states and searches for nothing.

use super::timeline::{Grant, KeyHistory};
use std::collections::BTreeMap;

/// What contradicts the order of tokens, one sentence each; nothing when all fits.
#[must_use]
pub fn token_order(history: &KeyHistory) -> Vec<String> {
    let mut wrong = Vec::new();
    let key = &history.key;
    // Of each token: the first question for its release, and the first answer to one.
    let mut released: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for release in &history.releases {
        let times = released.entry(release.token).or_insert((u64::MAX, u64::MAX));
        *times = (times.0.min(release.asked_us), times.1.min(release.answered_us));
        let mut holders = history.grants.iter().filter(|grant| grant.token == release.token);
        if !holders.any(|grant| grant.client.as_ref().is_none_or(|client| *client == release.client)) {
            wrong.push(format!(
                "{key}: {} released token {}, which it was never granted",
                release.client, release.token
            ));
        }
    }
    let spans = spans(history, &released, &mut wrong);
    for kept in &history.kept {
        let fits = |(token, from, to): &(u64, u64, u64)| {
            kept.token.is_none_or(|wanted| wanted == *token) && kept.answered_us >= *from && kept.asked_us <= *to
        };
        if !spans.iter().any(fits) {
            wrong.push(match kept.token {
                Some(token) => format!(
                    "{key}: token {token} was told its lease at {} µs, when it cannot have held",
                    kept.asked_us
                ),
                None => format!(
                    "{key}: refused as busy at {} µs, when nobody can have held it",
                    kept.asked_us
                ),
            });
        }
    }
    wrong
}

/// For each grant its token, the earliest moment it can have begun and the latest it can have ended.
fn spans(history: &KeyHistory, released: &BTreeMap<u64, (u64, u64)>, wrong: &mut Vec<String>) -> Vec<(u64, u64, u64)> {
    let key = &history.key;
    let mut spans = Vec::with_capacity(history.grants.len());
    let mut free_from = 0;
    let mut before: Option<&Grant> = None;
    for grant in &history.grants {
        let token = grant.token;
        if let Some(before) = before {
            if before.token == token {
                wrong.push(format!("{key}: token {token} was granted twice"));
            } else if grant.answered_us.is_some_and(|answered| answered < free_from) {
                wrong.push(format!(
                    "{key}: token {token} was answered before token {} can have ended",
                    before.token
                ));
            }
        }
        let begun = free_from.max(grant.asked_us);
        let (asked, _) = released.get(&token).copied().unwrap_or((u64::MAX, u64::MAX));
        free_from = begun.max(asked.min(grant.ends_from_us.unwrap_or(u64::MAX)));
        spans.push((token, begun, u64::MAX));
        before = Some(grant);
    }
    // Backwards: nobody holds past the answer to the next grant, nor past that to their own release.
    let mut next_answer = u64::MAX;
    for (grant, span) in history.grants.iter().zip(&mut spans).rev() {
        let (_, answered) = released.get(&grant.token).copied().unwrap_or((u64::MAX, u64::MAX));
        span.2 = next_answer.min(answered);
        next_answer = next_answer.min(grant.answered_us.unwrap_or(u64::MAX));
    }
    spans
}
