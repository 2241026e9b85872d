//! Sessions: who is alive, until when without a heartbeat, and what each holds.

use super::{ROWS, View};
use crate::kept::Kept;
use crate::page::{Shown, link, lock_link, or_dash, pager};
use crate::topic::Topic;
use crate::upstream::Upstreams;
use crate::when;
use futures_util::future::LocalBoxFuture;
use http_contract::Page;
use http_contract::lock::SessionAnswer;
use maud::{Markup, html};

/// How many locks of one session are named in the list.
const NAMED_MAX: usize = 5;

pub(super) struct Sessions {
    cursor: Option<String>,
    page: Kept<Page<SessionAnswer>>,
}

impl Sessions {
    pub(super) fn new(cursor: Option<String>) -> Self {
        Self {
            cursor,
            page: Kept::default(),
        }
    }
}

impl View for Sessions {
    fn refresh<'a>(&'a mut self, up: &'a Upstreams) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            let cursor = self.cursor.as_deref();
            let read = up
                .read_locks(async |api| api.sessions(ROWS, cursor, &up.trace()).await)
                .await;
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
            format!("{} live sessions on this page{more}.", page.items.len())
        });
        let body = self.page.show("The list of sessions", now_ms, |page| {
            let to = |cursor| Topic::Sessions { cursor };
            let next = page.next_cursor.clone().map(|cursor| to(Some(cursor)));
            html! {
                @if page.items.is_empty() { p { "Nobody has a session." } } @else { (table(&page.items, now_ms)) }
                (pager(&to(None), self.cursor.is_none(), next.as_ref()))
            }
        });
        Shown {
            title: "Sessions".to_owned(),
            headline,
            body,
        }
    }
}

fn table(sessions: &[SessionAnswer], now_ms: i64) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Sessions" {
            table {
                caption { "Live sessions" }
                thead {
                    tr {
                        th scope="col" { "Owner" } th scope="col" { "Session" } th scope="col" { "Last heartbeat" }
                        th.number scope="col" { "Ends in" } th scope="col" { "Holds" }
                    }
                }
                tbody {
                    @for session in sessions {
                        tr {
                            th scope="row" { (session.owner) }
                            td { (link(&Topic::Session { id: session.session_id.clone() }, &session.session_id)) }
                            td { (when::at(&session.last_heartbeat_at, now_ms)) }
                            td.number { (when::left(session.expires_in_ms, now_ms)) }
                            td {
                                @if session.held.is_empty() { (or_dash::<&str>(None)) }
                                @for (n, held) in session.held.iter().take(NAMED_MAX).enumerate() {
                                    @if n > 0 { ", " }
                                    (lock_link(&held.key)) " (" span.token { (held.token) } ")"
                                }
                                @if session.held.len() > NAMED_MAX { " and " (session.held.len() - NAMED_MAX) " more" }
                            }
                        }
                    }
                }
            }
        }
    }
}

pub(super) struct Session {
    id: String,
    session: Kept<SessionAnswer>,
}

impl Session {
    pub(super) fn new(id: String) -> Self {
        Self {
            id,
            session: Kept::default(),
        }
    }
}

impl View for Session {
    fn refresh<'a>(&'a mut self, up: &'a Upstreams) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            let id = self.id.as_str();
            let read = up.read_locks(async |api| api.session(id, &up.trace()).await).await;
            self.session.take(read, up.now());
        })
    }

    fn show(&self, now_ms: i64) -> Shown {
        let headline = self.session.get().map_or_else(String::new, |session| {
            format!("{} is alive and holds {} locks.", session.owner, session.held.len())
        });
        let body = self.session.show("The session (an ended one is not kept)", now_ms, |session| {
            html! {
                dl.facts {
                    div { dt { "Owner" } dd { strong { (session.owner) } } }
                    div { dt { "Opened" } dd { (when::at(&session.opened_at, now_ms)) } }
                    div { dt { "Last heartbeat" } dd { (when::at(&session.last_heartbeat_at, now_ms)) } }
                    div { dt { "Ends in" } dd { (when::left(session.expires_in_ms, now_ms)) " of " (session.ttl_ms) " ms" } }
                    @if let Some(metadata) = &session.metadata { div { dt { "Metadata" } dd { code { (metadata) } } } }
                }
                h2 { "Holds" }
                @if session.held.is_empty() { p { "Nothing." } }
                ul {
                    @for held in session.held.iter().take(ROWS as usize) {
                        li { (lock_link(&held.key)) " under token " span.token { (held.token) } ", lease ends in " (when::left(held.expires_in_ms, now_ms)) }
                    }
                }
                @if session.held.len() > ROWS as usize { p { "And " (session.held.len() - ROWS as usize) " more." } }
            }
        });
        Shown {
            title: format!("Session {}", self.id),
            headline,
            body,
        }
    }
}
