//! Locks: who holds what, under which token, for how long still, and how many wait.

use super::{ROWS, View};
use crate::kept::Kept;
use crate::page::{Icon, Shown, Tone, lock_link, or_dash, pager, tag};
use crate::topic::Topic;
use crate::upstream::Upstreams;
use crate::when;
use futures_util::future::LocalBoxFuture;
use http_client::CallError;
use http_contract::lock::{KeyStatus, LockView};
use http_contract::{PAGE_LIMIT_MAX, Page};
use maud::{Markup, html};

/// How many pages of the server are looked through for one page of held, or free, locks.
const LOOKED_THROUGH_MAX: usize = 5;

pub(super) struct Locks {
    prefix: String,
    held: Option<bool>,
    cursor: Option<String>,
    page: Kept<Page<LockView>>,
}

impl Locks {
    pub(super) fn new(prefix: String, held: Option<bool>, cursor: Option<String>) -> Self {
        Self {
            prefix,
            held,
            cursor,
            page: Kept::default(),
        }
    }

    async fn read(&self, up: &Upstreams) -> Result<Page<LockView>, CallError> {
        let prefix = Some(self.prefix.as_str()).filter(|prefix| !prefix.is_empty());
        let list = async |limit: u32, cursor: Option<&str>| {
            up.read_locks(async |api| api.locks(prefix, limit, cursor, &up.trace()).await)
                .await
        };
        let Some(held) = self.held else {
            return list(ROWS, self.cursor.as_deref()).await;
        };
        // The server knows no such filter: its pages are looked through, so many at a time.
        let mut found = Page {
            items: Vec::new(),
            next_cursor: self.cursor.clone(),
        };
        for _ in 0..LOOKED_THROUGH_MAX {
            let page = list(PAGE_LIMIT_MAX, found.next_cursor.as_deref()).await?;
            found.next_cursor = page.next_cursor;
            let fits = |lock: &LockView| (lock.state == KeyStatus::Held) == held;
            found.items.extend(page.items.into_iter().filter(fits));
            if found.next_cursor.is_none() || found.items.len() >= ROWS as usize {
                break;
            }
        }
        Ok(found)
    }

    fn topic(&self, cursor: Option<String>) -> Topic {
        Topic::Locks {
            prefix: self.prefix.clone(),
            held: self.held,
            cursor,
        }
    }
}

impl View for Locks {
    fn refresh<'a>(&'a mut self, up: &'a Upstreams) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            let read = self.read(up).await;
            self.page.take(read, up.now());
        })
    }

    fn show(&self, now_ms: i64) -> Shown {
        let headline = self.page.get().map_or_else(String::new, |page| {
            let held = page.items.iter().filter(|lock| lock.holder.is_some()).count();
            let more = if page.next_cursor.is_some() {
                ", and there are more"
            } else {
                ""
            };
            format!("{} locks on this page, {held} of them held{more}.", page.items.len())
        });
        let body = self.page.show("The list of locks", now_ms, |page| {
            let next = page.next_cursor.clone().map(|cursor| self.topic(Some(cursor)));
            html! {
                @if page.items.is_empty() {
                    p { "No lock fits." }
                } @else {
                    (table(&page.items, now_ms))
                }
                (pager(&self.topic(None), self.cursor.is_none(), next.as_ref()))
            }
        });
        Shown {
            title: "Locks".to_owned(),
            headline,
            body,
        }
    }
}

/// Whether a lock is held, by icon and word.
pub(super) fn status(lock: &LockView) -> Markup {
    match lock.state {
        KeyStatus::Held => tag(Tone::Good, Icon::Locked, "HELD"),
        KeyStatus::Free => tag(Tone::Plain, Icon::Open, "FREE"),
    }
}

fn table(locks: &[LockView], now_ms: i64) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Locks" {
            table {
                caption { "Locks, in the order of their keys" }
                thead {
                    tr {
                        th scope="col" { "Key" }
                        th scope="col" { "State" }
                        th scope="col" { "Holder" }
                        th.number scope="col" { "Token" }
                        th.number scope="col" { "Lease ends in" }
                        th.number scope="col" { "Waiting" }
                        th scope="col" { "Held since" }
                    }
                }
                tbody {
                    @for lock in locks {
                        tr {
                            th scope="row" { (lock_link(&lock.key)) }
                            td { (status(lock)) }
                            td { (or_dash(lock.holder.as_ref().map(|holder| &holder.owner))) }
                            td.number.token { (or_dash(lock.token)) }
                            td.number {
                                @match lock.expires_in_ms { Some(left) => (when::left(left, now_ms)), None => (or_dash::<&str>(None)) }
                            }
                            td.number { (lock.waiters) }
                            td { @if let Some(holder) = &lock.holder { (when::at(&holder.since, now_ms)) } @else { (or_dash::<&str>(None)) } }
                        }
                    }
                }
            }
        }
    }
}
