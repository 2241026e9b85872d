//! One lock: its holder with the lease's countdown, who waits at each lock server, its history.

use super::View;
use super::locks::status;
use super::timeline::{History, words};
use crate::kept::Kept;
use crate::page::{self, Icon, Shown, Tone, icon, link, or_dash, tag};
use crate::topic::{Topic, lock_href};
use crate::upstream::Upstreams;
use crate::when;
use futures_util::future::{LocalBoxFuture, join_all};
use http_client::{CallError, LockServerApi, RefusalFilter};
use http_contract::lock::{AuditRow, KeyStatus, LockView};
use http_contract::refusal::RefusalRow;
use lock_api::LockKey;
use maud::{Markup, html};

/// How many events are shown; the history's beginning is with `dlock lock history`.
const SHOWN_MAX: usize = 100;

pub(super) struct Lock {
    key: Result<LockKey, String>,
    name: String,
    lock: Kept<LockView>,
    history: History,
    events: Kept<()>,
    waiting: Vec<(String, Result<u64, String>)>,
    refused: Kept<Vec<RefusalRow>>,
    read_only: bool,
}

impl Lock {
    pub(super) fn new(name: String) -> Self {
        Self {
            key: LockKey::new(name.clone()).map_err(|error| error.to_string()),
            name,
            lock: Kept::default(),
            history: History::default(),
            events: Kept::default(),
            waiting: Vec::new(),
            refused: Kept::default(),
            read_only: false,
        }
    }

    fn headline(&self) -> String {
        match self.lock.get() {
            None => String::new(),
            Some(lock) => match (&lock.holder, lock.token) {
                (Some(holder), _) => format!("{} holds {} under token {}.", holder.owner, lock.key, holder.token),
                (None, Some(token)) => format!("Nobody holds {}. Its highest token is {token}.", lock.key),
                (None, None) => format!(
                    "The lock server does not know {}: nobody has held it of late.",
                    lock.key
                ),
            },
        }
    }

    fn now(&self, lock: &LockView, now_ms: i64) -> Markup {
        html! {
            h2 #now { "Now" }
            dl.facts {
                div { dt { "State" } dd { (status(lock)) } }
                div { dt { "Highest token" } dd.token { (or_dash(lock.token)) } }
                @if let Some(holder) = &lock.holder {
                    div { dt { "Holder" } dd { strong { (holder.owner) } } }
                    div { dt { "Its token" } dd.token { (holder.token) } }
                    div { dt { "Since" } dd { (when::at(&holder.since, now_ms)) } }
                    @if let Some(left) = lock.expires_in_ms { div { dt { "Lease ends in" } dd { (when::left(left, now_ms)) } } }
                    @if let Some(metadata) = &holder.metadata { div { dt { "Metadata" } dd { code { (metadata) } } } }
                }
                @for (name, waiting) in &self.waiting {
                    div {
                        dt { "Waiting at " (name) }
                        dd { @match waiting { Ok(waiting) => (waiting), Err(how) => (how) } }
                    }
                }
            }
            @if lock.state == KeyStatus::Held && !self.read_only {
                p { a.danger #revoke href=(lock_href(&lock.key, "/revoke")) { (icon(Icon::Warning)) " Break this grant …" } }
            }
        }
    }
}

impl View for Lock {
    fn refresh<'a>(&'a mut self, up: &'a Upstreams) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            self.read_only = up.read_only;
            let key = match &self.key {
                Ok(key) => key.clone(),
                Err(reason) => {
                    self.lock.take(Err(CallError::NotSent(reason.clone())), up.now());
                    return;
                }
            };
            let views = join_all(up.locks.iter().map(|upstream| {
                let api = LockServerApi::new(upstream.caller.clone());
                let (key, trace) = (&key, up.trace());
                async move { (upstream.name.clone(), api.lock(key, &trace).await) }
            }))
            .await;
            self.waiting = views
                .iter()
                .map(|(name, view)| {
                    let waiting = view.as_ref().map(|view| view.waiters);
                    (
                        name.clone(),
                        waiting.map_err(|_| "not known: it does not answer".to_owned()),
                    )
                })
                .collect();
            // Any server's answer is right; the first that answers is taken.
            let answered = views
                .into_iter()
                .map(|(_, view)| view)
                .reduce(|one, other| one.or(other));
            if let Some(answer) = answered {
                self.lock.take(answer, up.now());
            }
            let read = self.history.read_on(up, &key).await;
            self.events.take(read, up.now());
            let about = RefusalFilter {
                key: Some(key.as_str()),
                ..RefusalFilter::default()
            };
            let refused = join_all(up.locks.iter().map(|upstream| {
                let trace = up.trace();
                async move { upstream.caller.refusals(about, 20, &trace).await }
            }))
            .await;
            let mut rows = Vec::new();
            for answer in refused {
                match answer {
                    Ok(answer) => rows.extend(answer.items),
                    Err(error) => return self.refused.take(Err(error), up.now()),
                }
            }
            self.refused.take(Ok(rows), up.now());
        })
    }

    fn show(&self, now_ms: i64) -> Shown {
        let account = self.name.strip_prefix("payout:");
        let body = html! {
            @if let Some(account) = account {
                p {
                    "Payouts of account " strong { (account) } " are settled under this lock: "
                    (link(&Topic::Payouts { state: None, account: Some(account.to_owned()), cursor: None }, "its payouts"))
                    ", " (link(&Topic::Refusals { account: Some(account.to_owned()) }, "its refusals")) "."
                }
            }
            (self.lock.show("The lock", now_ms, |lock| self.now(lock, now_ms)))
            h2 #history { "History" }
            (self.events.show("The history", now_ms, |()| history(&self.history, now_ms)))
            h2 { "Refused at the lock server" }
            (self.refused.show("What the lock servers refused", now_ms, |rows| html! {
                @if rows.is_empty() { p { "No renewal or release under a stale token, as far as the lock servers remember." } }
                @else { (super::refusals::table(rows, now_ms)) }
            }))
        };
        Shown {
            title: format!("Lock {}", self.name),
            headline: self.headline(),
            body,
        }
    }
}

/// An event's kind by icon and word.
pub(super) fn kind(event: &AuditRow) -> Markup {
    match event.kind.as_str() {
        "GRANTED" => tag(Tone::Good, Icon::Locked, "GRANTED"),
        "RELEASED" => tag(Tone::Plain, Icon::Open, "RELEASED"),
        "EXPIRED" => tag(Tone::Warn, Icon::Clock, "EXPIRED"),
        "REVOKED" => tag(Tone::Bad, Icon::Warning, "REVOKED"),
        "YIELD_REQUESTED" => tag(Tone::Warn, Icon::Question, "YIELD_REQUESTED"),
        other => tag(Tone::Plain, Icon::Question, other),
    }
}

fn history(history: &History, now_ms: i64) -> Markup {
    let events: Vec<&AuditRow> = history.events().rev().take(SHOWN_MAX).collect();
    let all = history.events().count();
    html! {
        @if !history.is_complete() { p { "The history is long; it is still being read." } }
        @if events.is_empty() {
            p { "Nothing is recorded for this key." }
        } @else {
            div.scroll tabindex="0" role="region" aria-label="History of the lock" {
                table {
                    caption { "The newest first" @if all > events.len() { "; the latest " (events.len()) " of " (all) " events that were read" } }
                    thead {
                        tr {
                            th scope="col" { "When" } th scope="col" { "What" } th.number scope="col" { "Token" }
                            th scope="col" { "By" } th scope="col" { "Why" } th scope="col" { "Session" }
                        }
                    }
                    tbody {
                        @for event in events {
                            tr {
                                td { (when::at(&event.at, now_ms)) }
                                td { (kind(event)) " " (words(event)) }
                                td.number.token { (or_dash(event.token)) }
                                td { (or_dash(event.actor.as_ref())) }
                                td { (or_dash(event.reason.as_ref())) }
                                td {
                                    @match &event.session_id {
                                        Some(id) => (page::link(&Topic::Session { id: id.clone() }, id)),
                                        None => (or_dash::<&str>(None)),
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
