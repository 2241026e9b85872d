//! The history of a lock as it is read page by page, and which owner a token was granted to.

use crate::upstream::Upstreams;
use http_client::CallError;
use http_contract::lock::AuditRow;
use lock_api::LockKey;
use std::collections::VecDeque;

/// How many events of a lock are kept; the oldest go first.
const KEPT_MAX: usize = 5_000;
/// How many events one page has.
const PAGE: u32 = 500;
/// How many pages are read in one round; a longer history is caught up with over several.
const PAGES_MAX: usize = 10;

/// What is known of a lock's history.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Events of pages that are full and so do not change any more.
    kept: VecDeque<AuditRow>,
    /// Events of the last page, which may still grow.
    tail: Vec<AuditRow>,
    cursor: Option<String>,
    /// Whether the end was reached.
    complete: bool,
}

impl History {
    /// Reads on. Answers nothing: what was read stands in it.
    pub(super) async fn read_on(&mut self, up: &Upstreams, key: &LockKey) -> Result<(), CallError> {
        for _ in 0..PAGES_MAX {
            let cursor = self.cursor.clone();
            let page = up
                .read_locks(async |api| api.history(key, PAGE, cursor.as_deref(), &up.trace()).await)
                .await?;
            match page.next_cursor {
                Some(next) => {
                    self.kept.extend(page.items);
                    while self.kept.len() > KEPT_MAX {
                        self.kept.pop_front();
                    }
                    self.tail.clear();
                    self.cursor = Some(next);
                    self.complete = false;
                }
                None => {
                    self.tail = page.items;
                    self.complete = true;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether everything was read.
    pub(super) const fn is_complete(&self) -> bool {
        self.complete
    }

    /// The events, oldest first.
    pub(super) fn events(&self) -> impl DoubleEndedIterator<Item = &AuditRow> {
        self.kept.iter().chain(&self.tail)
    }

    /// To whom a token was granted. A revoke's token was granted to nobody.
    pub(super) fn owner_of(&self, token: u64) -> Option<&str> {
        self.events()
            .rev()
            .find(|event| event.kind == "GRANTED" && event.token == Some(token))
            .and_then(|event| event.actor.as_deref())
    }

    /// A token with whom it was granted to: `34 (W2)`.
    pub(super) fn whose(&self, token: u64) -> String {
        match self.owner_of(token) {
            Some(owner) => format!("{token} of {owner}"),
            None => token.to_string(),
        }
    }
}

/// What an event of a lock means, in words.
pub(super) fn words(event: &AuditRow) -> &'static str {
    match event.kind.as_str() {
        "GRANTED" => "lease granted",
        "RELEASED" => "released by its holder",
        "EXPIRED" => "lease ran out",
        "REVOKED" => "broken by an operator",
        "YIELD_REQUESTED" => "asked to give it up",
        _ => "recorded",
    }
}

#[cfg(test)]
pub(super) fn event(seq: u64, kind: &str, token: u64, actor: &str) -> AuditRow {
    AuditRow {
        seq,
        at: format!("2026-11-30T01:00:{seq:02}.000Z"),
        kind: kind.to_owned(),
        lock_key: Some("payout:alpha".to_owned()),
        session_id: None,
        token: Some(token),
        actor: Some(actor.to_owned()),
        reason: None,
    }
}

#[cfg(test)]
impl History {
    pub(super) fn of(events: Vec<AuditRow>) -> Self {
        Self {
            tail: events,
            complete: true,
            ..Self::default()
        }
    }
}
