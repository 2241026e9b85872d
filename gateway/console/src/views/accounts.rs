//! Accounts: the fence of the payment resource and the high-water mark of the rail proxy, side by side.

use super::View;
use crate::kept::Kept;
use crate::page::{Icon, Shown, Tone, link, lock_key, lock_link, or_dash, pager, tag};
use crate::topic::Topic;
use crate::upstream::Upstreams;
use crate::when;
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream;
use http_client::CallError;
use http_contract::Page;
use http_contract::payment::AccountAnswer;
use http_contract::rail::HighWaterAnswer;
use maud::{Markup, html};
use money_kit::amount;
use std::time::Duration;

/// How many accounts a page has: each costs a question to the rail proxy.
const ROWS: u32 = 25;
/// How many of those are asked at once.
const AT_ONCE: usize = 8;

pub(super) struct Accounts {
    cursor: Option<String>,
    page: Kept<Page<AccountAnswer>>,
    marks: Kept<Vec<HighWaterAnswer>>,
}

impl Accounts {
    pub(super) fn new(cursor: Option<String>) -> Self {
        Self {
            cursor,
            page: Kept::default(),
            marks: Kept::default(),
        }
    }

    fn mark(&self, account_id: &str) -> Option<&HighWaterAnswer> {
        self.marks.get()?.iter().find(|mark| mark.account_id == account_id)
    }
}

impl View for Accounts {
    fn refresh<'a>(&'a mut self, up: &'a Upstreams) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            let read = up.payments().accounts(ROWS, self.cursor.as_deref(), &up.trace()).await;
            self.page.take(read, up.now());
            let ids: Vec<String> = self
                .page
                .get()
                .map(|page| page.items.iter().map(|account| account.account_id.clone()).collect())
                .unwrap_or_default();
            let marks: Vec<Result<HighWaterAnswer, CallError>> = stream::iter(ids)
                .map(|id| {
                    let (rail, trace) = (up.rail(), up.trace());
                    async move { rail.high_water(&id, &trace).await }
                })
                .buffer_unordered(AT_ONCE)
                .collect()
                .await;
            self.marks.take(marks.into_iter().collect(), up.now());
        })
    }

    fn show(&self, now_ms: i64) -> Shown {
        let headline = self.page.get().map_or_else(String::new, |page| {
            let more = if page.next_cursor.is_some() {
                ", and there are more"
            } else {
                ""
            };
            format!("{} accounts on this page{more}.", page.items.len())
        });
        let body = html! {
            (self.marks.trouble("The rail proxy's marks", now_ms))
            (self.page.show("The list of accounts", now_ms, |page| {
                let to = |cursor| Topic::Accounts { cursor };
                let next = page.next_cursor.clone().map(|cursor| to(Some(cursor)));
                html! {
                    @if page.items.is_empty() { p { "There is no account." } } @else { (self.table(&page.items, now_ms)) }
                    (pager(&to(None), self.cursor.is_none(), next.as_ref()))
                }
            }))
            p.quiet {
                "The fence rises with a claim, the mark with a submission, each by its owner alone. A mark below the fence is a payout between "
                "the two steps, or one that never reached the rail. A mark above the fence is the work of a reconciler or of "
                code { "dlock payout fence" } "."
            }
        };
        Shown {
            title: "Accounts".to_owned(),
            headline,
            body,
        }
    }

    fn pace(&self) -> Duration {
        Duration::from_secs(2)
    }
}

/// How the two marks stand to each other.
fn compared(fence: u64, mark: u64) -> Markup {
    match fence.cmp(&mark) {
        std::cmp::Ordering::Equal => tag(Tone::Good, Icon::Check, "equal"),
        std::cmp::Ordering::Greater => tag(Tone::Plain, Icon::Arrow, "rail is behind"),
        std::cmp::Ordering::Less => tag(Tone::Warn, Icon::Warning, "rail is ahead"),
    }
}

impl Accounts {
    fn table(&self, accounts: &[AccountAnswer], now_ms: i64) -> Markup {
        html! {
            div.scroll tabindex="0" role="region" aria-label="Accounts" {
                table {
                    caption { "Accounts with both fence points' marks" }
                    thead {
                        tr {
                            th scope="col" { "Account" } th.number scope="col" { "Balance" } th.number scope="col" { "Held" }
                            th.number scope="col" { "Fence (payment-resource)" } th.number scope="col" { "High-water mark (rail-proxy)" }
                            th scope="col" { "Compared" } th scope="col" { "Mark last rose" } th scope="col" { "Lock" } th scope="col" { "More" }
                        }
                    }
                    tbody {
                        @for account in accounts {
                            @let mark = self.mark(&account.account_id);
                            tr {
                                th scope="row" { (link(&Topic::Payouts { state: None, account: Some(account.account_id.clone()), cursor: None }, &account.account_id)) }
                                td.number { (amount(account.balance_minor, &account.currency)) }
                                td.number { (amount(account.held_minor, &account.currency)) }
                                td.number.token { (account.fence) }
                                td.number.token { (or_dash(mark.map(|mark| mark.highest_token))) }
                                td { @match mark { Some(mark) => (compared(account.fence, mark.highest_token)), None => (or_dash::<&str>(None)) } }
                                td {
                                    @match mark.and_then(|mark| mark.updated_at.as_deref()) {
                                        Some(at) => (when::at(at, now_ms)),
                                        None => (or_dash::<&str>(None)),
                                    }
                                }
                                td { (lock_link(&lock_key(&account.account_id))) }
                                td { (link(&Topic::Refusals { account: Some(account.account_id.clone()) }, "refusals")) }
                            }
                        }
                    }
                }
            }
        }
    }
}
