//! What needs a human: payouts whose outcome is not known, escalated first, and the rail proxy's exceptions.

use super::View;
use super::payouts::state;
use crate::kept::Kept;
use crate::page::{Icon, Shown, Tone, lock_key, lock_link, or_dash, payout_link, tag};
use crate::upstream::Upstreams;
use crate::when;
use futures_util::future::{LocalBoxFuture, join3};
use http_client::PayoutFilter;
use http_contract::payment::{PayoutAnswer, PayoutState};
use http_contract::rail::{ExceptionRow, Outcome, SubmissionRow};
use http_contract::{PAGE_LIMIT_MAX, Page};
use maud::{Markup, html};
use money_kit::amount;

#[derive(Default)]
pub(super) struct Queue {
    ambiguous: Kept<Page<PayoutAnswer>>,
    unknown: Kept<Page<SubmissionRow>>,
    exceptions: Kept<Page<ExceptionRow>>,
    read_only: bool,
}

impl Queue {
    pub(super) async fn read(&mut self, up: &Upstreams) {
        let filter = PayoutFilter {
            state: Some(PayoutState::RailAmbiguous),
            account_id: None,
        };
        let (payments, rail, trace) = (up.payments(), up.rail(), up.trace());
        let (ambiguous, unknown, exceptions) = join3(
            payments.payouts(&filter, PAGE_LIMIT_MAX, None, &trace),
            rail.submissions(Some(Outcome::Timeout), PAGE_LIMIT_MAX, None, &trace),
            rail.exceptions(Some(true), PAGE_LIMIT_MAX, None, &trace),
        )
        .await;
        let now_ms = up.now();
        self.ambiguous.take(ambiguous, now_ms);
        self.unknown.take(unknown, now_ms);
        self.exceptions.take(exceptions, now_ms);
        self.read_only = up.read_only;
    }

    /// How many are ambiguous, how many of those are escalated, how many exceptions are open.
    pub(super) fn counts(&self) -> Option<(usize, usize, usize)> {
        let ambiguous = &self.ambiguous.get()?.items;
        let escalated = ambiguous.iter().filter(|payout| payout.escalated_at.is_some()).count();
        Some((ambiguous.len(), escalated, self.open().count()))
    }

    fn open(&self) -> impl Iterator<Item = &ExceptionRow> {
        let rows = self.exceptions.get().into_iter().flat_map(|page| &page.items);
        rows.filter(|row| row.closed_by.is_none())
    }

    pub(super) fn headline(&self) -> String {
        self.counts().map_or_else(String::new, |(ambiguous, escalated, exceptions)| {
            format!("{ambiguous} ambiguous payouts, {escalated} of them escalated; {exceptions} open exceptions at the rail.")
        })
    }

    pub(super) fn troubles(&self, now_ms: i64) -> Markup {
        html! {
            (self.ambiguous.trouble("The ambiguous payouts", now_ms))
            (self.unknown.trouble("The submissions", now_ms))
            (self.exceptions.trouble("The exceptions", now_ms))
        }
    }
}

impl View for Queue {
    fn refresh<'a>(&'a mut self, up: &'a Upstreams) -> LocalBoxFuture<'a, ()> {
        Box::pin(self.read(up))
    }

    fn show(&self, now_ms: i64) -> Shown {
        let body = html! {
            (self.troubles(now_ms))
            h2 { "Ambiguous payouts" }
            @if let Some(page) = self.ambiguous.get() { (self.ambiguous(&page.items, now_ms)) }
            h2 { "Exceptions at the rail" }
            (exceptions(&self.open().collect::<Vec<_>>(), self.read_only, now_ms))
            p.quiet {
                "An ambiguous payout is never submitted again. A reconciler looks it up; what it cannot settle is escalated, and settled by hand with "
                code { "dlock payout resolve" } "."
            }
        };
        Shown {
            title: "Needs a human".to_owned(),
            headline: self.headline(),
            body,
        }
    }
}

impl Queue {
    fn ambiguous(&self, payouts: &[PayoutAnswer], now_ms: i64) -> Markup {
        let mut payouts: Vec<&PayoutAnswer> = payouts.iter().collect();
        payouts.sort_by_key(|payout| (payout.escalated_at.is_none(), payout.ambiguous_since.clone()));
        let cause = |id: &str| {
            let rows = &self.unknown.get()?.items;
            rows.iter().find(|row| row.payout_id == id)?.cause.clone()
        };
        html! {
            @if payouts.is_empty() { p { "None: every outcome is known." } } @else {
                div.scroll tabindex="0" role="region" aria-label="Ambiguous payouts" {
                    table {
                        caption { "Escalated first, then the longest ambiguous" }
                        thead {
                            tr {
                                th scope="col" { "Payout" } th scope="col" { "State" } th scope="col" { "Escalated" } th scope="col" { "Ambiguous since" }
                                th scope="col" { "Why" } th.number scope="col" { "Amount" } th.number scope="col" { "Token of the claim" } th scope="col" { "Lock" }
                            }
                        }
                        tbody {
                            @for payout in payouts {
                                tr {
                                    th scope="row" { (payout_link(&payout.payout_id)) }
                                    td { (state(payout.state)) }
                                    td {
                                        @match &payout.escalated_at {
                                            Some(at) => { (tag(Tone::Bad, Icon::Warning, "ESCALATED")) " " (when::at(at, now_ms)) }
                                            None => (tag(Tone::Plain, Icon::Clock, "not yet")),
                                        }
                                    }
                                    td { @match &payout.ambiguous_since { Some(at) => (when::at(at, now_ms)), None => (or_dash::<&str>(None)) } }
                                    td { (or_dash(cause(&payout.payout_id))) }
                                    td.number { (amount(payout.amount_minor, &payout.currency)) }
                                    td.number.token { (or_dash(payout.claim_token)) }
                                    td { (lock_link(&lock_key(&payout.account_id))) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn exceptions(rows: &[&ExceptionRow], read_only: bool, now_ms: i64) -> Markup {
    html! {
        @if rows.is_empty() { p { "None is open." } } @else {
            div.scroll tabindex="0" role="region" aria-label="Exceptions" {
                table {
                    caption { "Open exceptions" }
                    thead { tr { th scope="col" { "Payout" } th scope="col" { "Kind" } th scope="col" { "When" } th scope="col" { "What was seen" } @if !read_only { th scope="col" { "Settled?" } } } }
                    tbody {
                        @for row in rows {
                            tr {
                                th scope="row" { (payout_link(&row.payout_id)) }
                                td { (tag(Tone::Bad, Icon::Warning, &row.kind)) }
                                td { (when::at(&row.at, now_ms)) }
                                td { (row.detail) }
                                @if !read_only { td { a href={ "/exceptions/" (row.exception_id) "/close" } { "Close exception " (row.exception_id) } } }
                            }
                        }
                    }
                }
            }
        }
    }
}
