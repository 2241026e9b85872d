//! What the fence points and lock servers refused under a token: who showed which, and what stood against it.

use super::View;
use crate::kept::Kept;
use crate::page::{Icon, Shown, Tone, link, lock_key, lock_link, or_dash, payout_link, tag};
use crate::topic::Topic;
use crate::upstream::Upstreams;
use crate::when;
use futures_util::future::{LocalBoxFuture, join_all};
use http_client::{PayoutFilter, RefusalFilter};
use http_contract::PAGE_LIMIT_MAX;
use http_contract::refusal::{RefusalRow, RefusalsAnswer};
use maud::{Markup, html};
use std::collections::HashSet;

/// How many are read of each component.
const EACH_MAX: u32 = 100;

/// The refusals of each component that can refuse a token.
#[derive(Default)]
pub(super) struct Refusals {
    account: Option<String>,
    of: Vec<(String, Kept<RefusalsAnswer>)>,
}

impl Refusals {
    pub(super) fn new(account: Option<String>) -> Self {
        Self {
            account,
            of: Vec::new(),
        }
    }

    /// Reads every component that can refuse a token.
    pub(super) async fn read(&mut self, up: &Upstreams) {
        let upstreams: Vec<_> = [&up.payments, &up.rail].into_iter().chain(&up.locks).collect();
        let answers = join_all(upstreams.iter().map(|upstream| {
            let trace = up.trace();
            async move {
                // The routes of a payout name no account in their path, so all are read and looked through here.
                let about = RefusalFilter::default();
                upstream.caller.refusals(about, EACH_MAX, &trace).await
            }
        }))
        .await;
        let payouts = self.payouts_of_account(up).await;
        if self.of.is_empty() {
            let names = upstreams
                .iter()
                .map(|upstream| (upstream.name.clone(), Kept::default()));
            self.of = names.collect();
        }
        for ((_, kept), answer) in self.of.iter_mut().zip(answers) {
            let answer = answer.map(|mut answer| {
                if let Some(account) = &self.account {
                    answer.items.retain(|row| is_about(row, account, &payouts));
                }
                answer
            });
            kept.take(answer, up.now());
        }
    }

    /// The payouts of the account that is looked at, as far as one page tells.
    async fn payouts_of_account(&self, up: &Upstreams) -> HashSet<String> {
        let Some(account) = &self.account else {
            return HashSet::new();
        };
        let filter = PayoutFilter {
            state: None,
            account_id: Some(account.clone()),
        };
        let page = up.payments().payouts(&filter, PAGE_LIMIT_MAX, None, &up.trace()).await;
        // Where they cannot be read, the account's own refusals are still shown, and the trouble stands above.
        page.map(|page| page.items.into_iter().map(|payout| payout.payout_id).collect())
            .unwrap_or_default()
    }

    /// All of them, the newest first, with where each was refused.
    pub(super) fn newest(&self) -> Vec<(&str, &RefusalRow)> {
        let mut rows: Vec<_> = self
            .of
            .iter()
            .filter_map(|(name, kept)| Some((name.as_str(), kept.get()?)))
            .flat_map(|(name, answer)| answer.items.iter().map(move |row| (name, row)))
            .collect();
        rows.sort_by(|(_, one), (_, other)| other.at.cmp(&one.at));
        rows
    }

    pub(super) fn troubles(&self, now_ms: i64) -> Markup {
        html! {
            @for (name, kept) in &self.of { (kept.trouble(&format!("What {name} refused"), now_ms)) }
        }
    }
}

/// Whether a refusal is about an account: it says so, or it is about its lock or one of its payouts.
fn is_about(row: &RefusalRow, account: &str, payouts: &HashSet<String>) -> bool {
    row.account_id.as_deref() == Some(account)
        || row.key.as_deref() == Some(lock_key(account).as_str())
        || row.payout_id.as_ref().is_some_and(|id| payouts.contains(id))
}

impl View for Refusals {
    fn refresh<'a>(&'a mut self, up: &'a Upstreams) -> LocalBoxFuture<'a, ()> {
        Box::pin(self.read(up))
    }

    fn show(&self, now_ms: i64) -> Shown {
        let rows = self.newest();
        let fenced = rows.iter().filter(|(_, row)| row.code == "FENCED_OUT").count();
        let about = self
            .account
            .as_ref()
            .map_or_else(String::new, |account| format!(" about account {account}"));
        let body = html! {
            (self.troubles(now_ms))
            @if rows.is_empty() { p { "Nothing was refused, as far as the components remember." } }
            @else { (placed(&rows, now_ms)) }
            p.quiet {
                "A component remembers its latest 1,024 refusals of requests under a token, and forgets them when it ends; its log has all."
                @for (name, kept) in &self.of {
                    @if let Some(answer) = kept.get() { " " (name) ": since " (when::at(&answer.since, now_ms)) ", " (answer.forgotten) " forgotten." }
                }
            }
        };
        Shown {
            title: "Refusals".to_owned(),
            headline: format!("{} refusals{about}, {fenced} of them stale tokens.", rows.len()),
            body,
        }
    }
}

/// What was asked for, in a word: the last part of the route that says something.
pub(super) fn asked(row: &RefusalRow) -> &str {
    match row.route.rsplit('/').find(|part| !part.starts_with('{')) {
        Some("submissions") => "submit",
        Some("locks") if row.method == "DELETE" => "release",
        Some(verb) if !verb.is_empty() => verb,
        _ => "request",
    }
}

/// A table of one component's refusals.
pub(super) fn table(rows: &[RefusalRow], now_ms: i64) -> Markup {
    let rows: Vec<_> = rows.iter().rev().map(|row| ("lock-server", row)).collect();
    placed(&rows, now_ms)
}

pub(super) fn placed(rows: &[(&str, &RefusalRow)], now_ms: i64) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Refusals" {
            table {
                caption { "Refused, the newest first" }
                thead {
                    tr {
                        th scope="col" { "When" } th scope="col" { "Who" } th scope="col" { "Asked for" }
                        th.number scope="col" { "Token shown" } th scope="col" { "Refused by" } th scope="col" { "Why" }
                        th.number scope="col" { "Highest token" } th scope="col" { "About" }
                    }
                }
                tbody {
                    @for (place, row) in rows {
                        tr {
                            td { (when::at(&row.at, now_ms)) }
                            td { (or_dash(row.actor.as_ref().or(row.operator.as_ref()))) }
                            td { (asked(row)) }
                            td.number.token { (or_dash(row.presented_token)) }
                            td { (place) }
                            td { (tag(Tone::Bad, Icon::Cross, &row.code)) " " (row.detail) }
                            td.number.token { (or_dash(row.highest_token)) }
                            td {
                                @if let Some(id) = &row.payout_id { (payout_link(id)) }
                                @else if let Some(key) = &row.key { (lock_link(key)) }
                                @else if let Some(account) = &row.account_id {
                                    (link(&Topic::Payouts { state: None, account: Some(account.clone()), cursor: None }, account))
                                } @else { (or_dash::<&str>(None)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_a_verb() {
        let row = |method: &str, route: &str| RefusalRow {
            method: method.to_owned(),
            route: route.to_owned(),
            ..RefusalRow::default()
        };
        assert_eq!(asked(&row("POST", "/v1/payouts/{payout_id}/claim")), "claim");
        assert_eq!(asked(&row("POST", "/v1/rail/submissions")), "submit");
        assert_eq!(asked(&row("DELETE", "/v1/locks/{key}")), "release");
        assert_eq!(asked(&row("POST", "/v1/rail/submissions/{payout_id}/fence")), "fence");
    }
}
