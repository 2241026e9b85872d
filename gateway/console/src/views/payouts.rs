//! Payouts by state and account.

use super::{ROWS, View};
use crate::kept::Kept;
use crate::page::{Icon, Shown, Tone, link, lock_key, lock_link, or_dash, pager, payout_link, tag};
use crate::topic::Topic;
use crate::upstream::Upstreams;
use crate::when;
use futures_util::future::LocalBoxFuture;
use http_client::PayoutFilter;
use http_contract::Page;
use http_contract::payment::{PayoutAnswer, PayoutState};
use maud::{Markup, html};
use money_kit::amount;

pub(super) struct Payouts {
    filter: PayoutFilter,
    cursor: Option<String>,
    page: Kept<Page<PayoutAnswer>>,
}

impl Payouts {
    pub(super) fn new(state: Option<PayoutState>, account: Option<String>, cursor: Option<String>) -> Self {
        Self {
            filter: PayoutFilter {
                state,
                account_id: account,
            },
            cursor,
            page: Kept::default(),
        }
    }

    fn topic(&self, cursor: Option<String>) -> Topic {
        Topic::Payouts {
            state: self.filter.state,
            account: self.filter.account_id.clone(),
            cursor,
        }
    }
}

impl View for Payouts {
    fn refresh<'a>(&'a mut self, up: &'a Upstreams) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            let cursor = self.cursor.as_deref();
            let read = up.payments().payouts(&self.filter, ROWS, cursor, &up.trace()).await;
            self.page.take(read, up.now());
        })
    }

    fn show(&self, now_ms: i64) -> Shown {
        let headline = self.page.get().map_or_else(String::new, |page| {
            let more = if page.next_cursor.is_some() {
                ", and there are more"
            } else {
                ""
            };
            format!("{} payouts on this page{more}.", page.items.len())
        });
        let body = self.page.show("The list of payouts", now_ms, |page| {
            let next = page.next_cursor.clone().map(|cursor| self.topic(Some(cursor)));
            html! {
                @if page.items.is_empty() { p { "No payout fits." } } @else { (table("Payouts", &page.items, now_ms)) }
                (pager(&self.topic(None), self.cursor.is_none(), next.as_ref()))
            }
        });
        Shown {
            title: "Payouts".to_owned(),
            headline,
            body,
        }
    }
}

/// A payout's state by icon and word.
pub(super) fn state(state: PayoutState) -> Markup {
    let (tone, sign) = match state {
        PayoutState::Pending => (Tone::Plain, Icon::Clock),
        PayoutState::Claimed => (Tone::Plain, Icon::Arrow),
        PayoutState::RailAmbiguous => (Tone::Warn, Icon::Question),
        PayoutState::Posted => (Tone::Good, Icon::Check),
        PayoutState::Failed => (Tone::Bad, Icon::Cross),
    };
    tag(tone, sign, state.as_str())
}

pub(super) fn table(name: &str, payouts: &[PayoutAnswer], now_ms: i64) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(name) {
            table {
                caption { (name) }
                thead {
                    tr {
                        th scope="col" { "Payout" } th scope="col" { "State" } th.number scope="col" { "Amount" }
                        th scope="col" { "Account" } th scope="col" { "Lock" } th.number scope="col" { "Token of the claim" }
                        th scope="col" { "Last changed" }
                    }
                }
                tbody {
                    @for payout in payouts {
                        tr {
                            th scope="row" { (payout_link(&payout.payout_id)) }
                            td { (state(payout.state)) }
                            td.number { (amount(payout.amount_minor, &payout.currency)) }
                            td {
                                (link(&Topic::Payouts { state: None, account: Some(payout.account_id.clone()), cursor: None }, &payout.account_id))
                            }
                            td { (lock_link(&lock_key(&payout.account_id))) }
                            td.number.token { (or_dash(payout.claim_token)) }
                            td { (when::at(&payout.updated_at, now_ms)) }
                        }
                    }
                }
            }
        }
    }
}
