//! One payout as a timeline: every hop with its token, from the lock over both fence points to the rail, and every refusal.

use super::View;
use super::payouts::state;
use super::timeline::{History, words};
use crate::kept::Kept;
use crate::page::{Icon, Shown, Tone, icon, link, lock_key, lock_link, or_dash, tag};
use crate::topic::Topic;
use crate::upstream::Upstreams;
use crate::when;
use futures_util::future::{LocalBoxFuture, join, join3, join5};
use http_client::{CallError, RefusalFilter};
use http_contract::Code;
use http_contract::lock::{AuditRow, LockView};
use http_contract::payment::{AccountAnswer, PayoutAnswer, TransitionRow};
use http_contract::rail::{HighWaterAnswer, Outcome, SubmissionRow};
use http_contract::refusal::{RefusalRow, RefusalsAnswer};
use lock_api::LockKey;
use maud::{Markup, html};
use money_kit::amount;
use std::collections::BTreeSet;

/// How many refusals are read of each fence point.
const REFUSALS_MAX: u32 = 200;

pub(super) struct Payout {
    id: String,
    payout: Kept<PayoutAnswer>,
    steps: Kept<Vec<TransitionRow>>,
    submission: Kept<Option<SubmissionRow>>,
    refused: [Kept<RefusalsAnswer>; 2],
    account: Kept<AccountAnswer>,
    mark: Kept<HighWaterAnswer>,
    lock: Kept<LockView>,
    history: History,
    grants: Kept<()>,
}

impl Payout {
    pub(super) fn new(id: String) -> Self {
        Self {
            id,
            payout: Kept::default(),
            steps: Kept::default(),
            submission: Kept::default(),
            refused: [Kept::default(), Kept::default()],
            account: Kept::default(),
            mark: Kept::default(),
            lock: Kept::default(),
            history: History::default(),
            grants: Kept::default(),
        }
    }

    async fn read_payout(&mut self, up: &Upstreams) {
        let (payments, rail, trace) = (up.payments(), up.rail(), up.trace());
        let about = RefusalFilter {
            payout_id: Some(&self.id),
            ..RefusalFilter::default()
        };
        let (payout, steps, submission, at_payments, at_rail) = join5(
            payments.payout(&self.id, &trace),
            payments.payout_history(&self.id, &trace),
            rail.submission(&self.id, &trace),
            up.payments.caller.refusals(about, REFUSALS_MAX, &trace),
            up.rail.caller.refusals(about, REFUSALS_MAX, &trace),
        )
        .await;
        let now_ms = up.now();
        self.payout.take(payout, now_ms);
        self.steps.take(steps.map(|page| page.items), now_ms);
        let submission = match submission {
            // Nothing was submitted: an answer, not a failure.
            Err(CallError::Problem(problem)) if problem.code == Code::SubmissionNotFound => Ok(None),
            other => other.map(Some),
        };
        self.submission.take(submission, now_ms);
        let [payments, rail] = &mut self.refused;
        payments.take(at_payments, now_ms);
        rail.take(at_rail, now_ms);
    }

    async fn read_account(&mut self, up: &Upstreams) {
        let Some(account_id) = self.payout.get().map(|payout| payout.account_id.clone()) else {
            return;
        };
        let (payments, rail, trace) = (up.payments(), up.rail(), up.trace());
        let Ok(key) = LockKey::new(lock_key(&account_id)) else {
            return;
        };
        let marks = join(
            payments.account(&account_id, &trace),
            rail.high_water(&account_id, &trace),
        );
        let lock = up.read_locks(async |api| api.lock(&key, &up.trace()).await);
        let ((account, mark), lock, grants) = join3(marks, lock, self.history.read_on(up, &key)).await;
        let now_ms = up.now();
        self.account.take(account, now_ms);
        self.mark.take(mark, now_ms);
        self.lock.take(lock, now_ms);
        self.grants.take(grants, now_ms);
    }

    fn refusals(&self) -> impl Iterator<Item = (&str, &RefusalRow)> {
        self.refused
            .iter()
            .filter_map(Kept::get)
            .flat_map(|answer| answer.items.iter().map(|row| (answer.component.as_str(), row)))
    }
}

/// One hop of the timeline.
struct Hop {
    at: String,
    place: String,
    tone: Tone,
    sign: Icon,
    word: String,
    what: String,
    who: Option<String>,
    token: Option<u64>,
}

impl Payout {
    /// Every token that this payout was touched with.
    fn tokens(&self) -> BTreeSet<u64> {
        let steps = self.steps.get().into_iter().flatten().filter_map(|step| step.token);
        let submitted = self.submission.get().into_iter().flatten().map(|row| row.token);
        let shown = self.refusals().filter_map(|(_, row)| row.presented_token);
        steps.chain(submitted).chain(shown).collect()
    }

    fn hops(&self) -> Vec<Hop> {
        let tokens = self.tokens();
        let mut hops: Vec<Hop> = self
            .history
            .events()
            .filter(|event| event.token.is_some_and(|token| tokens.contains(&token)) || revoked(event, &tokens))
            .map(lock_hop)
            .collect();
        hops.extend(self.steps.get().into_iter().flatten().map(step_hop));
        if let Some(Some(row)) = self.submission.get() {
            hops.extend(submission_hops(row));
        }
        hops.extend(self.refusals().map(|(place, row)| self.refusal_hop(place, row)));
        // Each place writes its own clock's time; of one time the order of the path stands.
        hops.sort_by(|one, other| one.at.cmp(&other.at));
        hops
    }

    fn refusal_hop(&self, place: &str, row: &RefusalRow) -> Hop {
        Hop {
            at: row.at.clone(),
            place: place.to_owned(),
            tone: Tone::Bad,
            sign: Icon::Cross,
            word: row.code.clone(),
            what: self.why(row),
            who: row.actor.clone().or_else(|| row.operator.clone()),
            token: row.presented_token,
        }
    }

    /// Why something was refused, with whose the tokens are.
    fn why(&self, row: &RefusalRow) -> String {
        let asked = super::refusals::asked(row);
        match (row.presented_token, row.highest_token) {
            (Some(shown), Some(highest)) if highest > shown => format!(
                "{asked} refused: token {} is stale, the mark stands at {}",
                self.history.whose(shown),
                self.history.whose(highest)
            ),
            _ => format!("{asked} refused: {}", row.detail),
        }
    }

    /// The story of the stale workers, in a sentence each.
    fn stories(&self) -> Vec<Markup> {
        let fenced = self.refusals().filter(|(_, row)| row.code == Code::FencedOut.as_str());
        fenced
            .filter_map(|(place, row)| {
                let (shown, highest) = (row.presented_token?, row.highest_token?);
                let who = row.actor.as_deref().unwrap_or("Somebody without a name");
                Some(html! {
                    strong { (who) } " was stale: it showed token " strong.token { (shown) } " to " strong { (place) }
                    " for its " (super::refusals::asked(row)) " at " (row.at) " and was refused with " strong { (row.code) }
                    ", because the mark stood at token " strong.token { (highest) }
                    @match self.history.owner_of(highest) {
                        Some(owner) => { ", granted to " strong { (owner) } ", who held " (lock_link(&lock_key(&self.account_id()))) "." }
                        None => { "." }
                    }
                    " Nothing was changed."
                })
            })
            .collect()
    }

    fn account_id(&self) -> String {
        self.payout
            .get()
            .map_or_else(String::new, |payout| payout.account_id.clone())
    }

    fn facts(&self, payout: &PayoutAnswer, now_ms: i64) -> Markup {
        html! {
            dl.facts {
                div { dt { "State" } dd { (state(payout.state)) } }
                div { dt { "Amount" } dd { (amount(payout.amount_minor, &payout.currency)) " to " (payout.creditor.name) } }
                div { dt { "Account" } dd { (link(&Topic::Payouts { state: None, account: Some(payout.account_id.clone()), cursor: None }, &payout.account_id)) } }
                div { dt { "Token of the claim" } dd.token { (or_dash(payout.claim_token.map(|token| self.history.whose(token)))) } }
                div { dt { "Rail reference" } dd { (or_dash(payout.rail_reference.as_ref())) } }
                @if let Some(reason) = &payout.failure_reason { div { dt { "Failed because" } dd { (reason) } } }
                @if let Some(since) = &payout.ambiguous_since { div { dt { "Ambiguous since" } dd { (when::at(since, now_ms)) } } }
                @if let Some(at) = &payout.escalated_at { div { dt { "Escalated" } dd { (when::at(at, now_ms)) } } }
                div { dt { "Asked for" } dd { (when::at(&payout.created_at, now_ms)) } }
            }
        }
    }

    fn marks(&self, now_ms: i64) -> Markup {
        let mark = |name: &str, value: Option<u64>| {
            html! { div { dt { (name) } dd.token { (or_dash(value.map(|token| self.history.whose(token)))) } } }
        };
        html! {
            h2 #marks { "What stands against a stale token" }
            (self.account.trouble("The account", now_ms)) (self.mark.trouble("The rail's mark", now_ms)) (self.lock.trouble("The lock", now_ms))
            dl.facts {
                (mark("Fence of the account, at payment-resource", self.account.get().map(|account| account.fence)))
                (mark("High-water mark, at rail-proxy", self.mark.get().map(|mark| mark.highest_token)))
                div {
                    dt { "Lock " (lock_link(&lock_key(&self.account_id()))) }
                    dd {
                        @match self.lock.get().map(|lock| (&lock.holder, lock.token)) {
                            None => "not known",
                            Some((Some(holder), _)) => { "held by " strong { (holder.owner) } " under token " span.token { (holder.token) } }
                            Some((None, Some(token))) => { "free; its highest token is " span.token { (self.history.whose(token)) } }
                            Some((None, None)) => "free",
                        }
                    }
                }
            }
        }
    }
}

impl View for Payout {
    fn refresh<'a>(&'a mut self, up: &'a Upstreams) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            self.read_payout(up).await;
            self.read_account(up).await;
        })
    }

    fn show(&self, now_ms: i64) -> Shown {
        let stories = self.stories();
        let headline = self.payout.get().map_or_else(String::new, |payout| {
            let refused = match self.refusals().count() {
                0 => "Nothing was refused.".to_owned(),
                1 => "1 request was refused.".to_owned(),
                n => format!("{n} requests were refused."),
            };
            format!("{} is {}. {refused}", payout.payout_id, payout.state)
        });
        let body = html! {
            @if !stories.is_empty() {
                section.notice.bad #stale aria-labelledby="stale-title" {
                    h2 #stale-title { (icon(Icon::Cross)) " Stale workers that were refused" }
                    ul { @for story in &stories { li { (story) } } }
                }
            }
            (self.payout.show("The payout", now_ms, |payout| self.facts(payout, now_ms)))
            @if self.payout.get().is_some() { (self.marks(now_ms)) }
            h2 #timeline-title { "Timeline" }
            (self.steps.trouble("The payout's history", now_ms))
            (self.submission.trouble("The submission", now_ms))
            (self.grants.trouble("The lock's history", now_ms))
            @for (refused, place) in self.refused.iter().zip(["payment-resource", "rail-proxy"]) {
                (refused.trouble(&format!("What {place} refused"), now_ms))
            }
            (timeline(&self.hops(), now_ms))
            p.quiet {
                "Grants and ends of the lock are those of the tokens that this payout was touched with. "
                "Refusals are remembered while the component that refused lives"
                @for refused in self.refused.iter().filter_map(Kept::get) { ", " (refused.component) " since " (when::at(&refused.since, now_ms)) }
                ". Each place writes the time of its own clock."
            }
        };
        Shown {
            title: format!("Payout {}", self.id),
            headline,
            body,
        }
    }
}

fn timeline(hops: &[Hop], now_ms: i64) -> Markup {
    html! {
        @if hops.is_empty() { p { "Nothing has happened yet." } } @else {
            div.scroll tabindex="0" role="region" aria-labelledby="timeline-title" {
                table.timeline {
                    caption { "What happened, in the order of the times that were recorded" }
                    thead {
                        tr {
                            th scope="col" { "When" } th scope="col" { "Where" } th scope="col" { "What" }
                            th.number scope="col" { "Token" } th scope="col" { "Who" } th scope="col" { "In words" }
                        }
                    }
                    tbody {
                        @for hop in hops {
                            tr.refused[hop.tone == Tone::Bad] {
                                td { (when::at(&hop.at, now_ms)) }
                                td { (hop.place) }
                                td { (tag(hop.tone, hop.sign, &hop.word)) }
                                td.number.token { (or_dash(hop.token)) }
                                td { (or_dash(hop.who.as_ref())) }
                                td { (hop.what) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A revoke is recorded under the token that it minted, which nobody ever shows.
fn revoked(event: &AuditRow, tokens: &BTreeSet<u64>) -> bool {
    event.kind == "REVOKED"
        && event.token.is_some_and(|token| {
            tokens.first().is_some_and(|first| *first < token) && tokens.last().is_some_and(|last| token < *last)
        })
}

fn lock_hop(event: &AuditRow) -> Hop {
    let (tone, sign) = match event.kind.as_str() {
        "GRANTED" => (Tone::Good, Icon::Locked),
        "EXPIRED" => (Tone::Warn, Icon::Clock),
        "REVOKED" => (Tone::Warn, Icon::Warning),
        _ => (Tone::Plain, Icon::Open),
    };
    Hop {
        at: event.at.clone(),
        place: "lock-server".to_owned(),
        tone,
        sign,
        word: event.kind.clone(),
        what: match &event.reason {
            Some(reason) => format!("{}: {reason}", words(event)),
            None => words(event).to_owned(),
        },
        who: event.actor.clone(),
        token: event.token,
    }
}

fn step_hop(step: &TransitionRow) -> Hop {
    use http_contract::payment::PayoutState::{Claimed, Failed, Pending, Posted, RailAmbiguous};
    let (tone, sign, what) = match (step.from_state, step.to_state) {
        (None, _) => (Tone::Plain, Icon::Arrow, "asked for"),
        (_, Claimed) => (
            Tone::Plain,
            Icon::Arrow,
            "claimed: the money is set aside, the fence is raised",
        ),
        (_, RailAmbiguous) => (Tone::Warn, Icon::Question, "the rail's outcome is not known"),
        (_, Posted) => (Tone::Good, Icon::Check, "posted: both ledger legs are written"),
        (_, Failed) => (Tone::Warn, Icon::Cross, "failed: the hold is freed"),
        (_, Pending) => (Tone::Plain, Icon::Arrow, "pending"),
    };
    Hop {
        at: step.at.clone(),
        place: "payment-resource".to_owned(),
        tone,
        sign,
        word: step.to_state.to_string(),
        what: match &step.detail {
            Some(detail) => format!("{what} ({detail})"),
            None => what.to_owned(),
        },
        who: step.actor.clone(),
        token: step.token,
    }
}

fn submission_hops(row: &SubmissionRow) -> Vec<Hop> {
    let hop = |at: &str, place: &str, tone, sign, word: &str, what: String| Hop {
        at: at.to_owned(),
        place: place.to_owned(),
        tone,
        sign,
        word: word.to_owned(),
        what,
        who: row.actor.clone(),
        token: Some(row.token),
    };
    let mut hops = vec![hop(
        &row.intent_at,
        "rail-proxy",
        Tone::Plain,
        Icon::Arrow,
        "INTENT",
        "submission recorded before anything is sent, the mark is raised".to_owned(),
    )];
    if let Some(at) = &row.forwarded_at {
        let what = format!("forwarded to the rail, once, as {}", row.client_reference);
        hops.push(hop(at, "rail-proxy", Tone::Plain, Icon::Arrow, "FORWARDED", what));
    }
    if let (Some(at), Some(outcome)) = (&row.outcome_at, row.outcome) {
        let (tone, sign) = match outcome {
            Outcome::Acked => (Tone::Good, Icon::Check),
            Outcome::Timeout => (Tone::Warn, Icon::Question),
            _ => (Tone::Warn, Icon::Cross),
        };
        let more = [&row.rail_reference, &row.decline_reason, &row.cause];
        let more: Vec<&str> = more.into_iter().flatten().map(String::as_str).collect();
        let what = format!("the rail's outcome is recorded {}", more.join(", "));
        hops.push(hop(
            at,
            "rail-proxy",
            tone,
            sign,
            outcome.as_str(),
            what.trim_end().to_owned(),
        ));
    }
    hops
}

#[cfg(test)]
mod tests {
    use super::super::timeline::event;
    use super::*;

    fn stale() -> Payout {
        let mut payout = Payout::new("p1".to_owned());
        payout.history = History::of(vec![
            event(1, "GRANTED", 33, "W1"),
            event(2, "EXPIRED", 33, "lease-clock"),
            event(3, "GRANTED", 34, "W2"),
            event(9, "GRANTED", 90, "W9"),
        ]);
        payout.refused[1].take(
            Ok(RefusalsAnswer {
                component: "rail-proxy".to_owned(),
                items: vec![RefusalRow {
                    at: "2026-11-30T01:00:05.000Z".to_owned(),
                    method: "POST".to_owned(),
                    route: "/v1/rail/submissions".to_owned(),
                    code: "FENCED_OUT".to_owned(),
                    actor: Some("W1".to_owned()),
                    presented_token: Some(33),
                    highest_token: Some(34),
                    ..RefusalRow::default()
                }],
                ..RefusalsAnswer::default()
            }),
            0,
        );
        payout.steps.take(
            Ok(vec![TransitionRow {
                seq: 1,
                payout_id: "p1".to_owned(),
                from_state: Some(http_contract::payment::PayoutState::Pending),
                to_state: http_contract::payment::PayoutState::Claimed,
                token: Some(34),
                actor: Some("W2".to_owned()),
                at: "2026-11-30T01:00:04.000Z".to_owned(),
                detail: None,
            }]),
            0,
        );
        payout
    }

    #[test]
    fn the_stale_worker_its_token_what_refused_it_and_who_held_the_key_stand_in_one_sentence() {
        let story = stale().stories().remove(0).into_string();
        let text: String = {
            let mut inside = false;
            story
                .chars()
                .filter(|c| match c {
                    '<' => {
                        inside = true;
                        false
                    }
                    '>' => {
                        inside = false;
                        false
                    }
                    _ => !inside,
                })
                .collect()
        };
        assert!(
            text.starts_with("W1 was stale: it showed token 33 to rail-proxy for its submit at"),
            "{text}"
        );
        assert!(
            text.contains("FENCED_OUT, because the mark stood at token 34, granted to W2, who held"),
            "{text}"
        );
    }

    #[test]
    fn the_timeline_has_the_grants_of_its_tokens_alone_in_order() {
        let words: Vec<String> = stale().hops().into_iter().map(|hop| hop.word).collect();
        assert_eq!(words, ["GRANTED", "EXPIRED", "GRANTED", "CLAIMED", "FENCED_OUT"]);
    }
}
