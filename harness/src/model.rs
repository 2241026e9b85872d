//! What the verdicts read: the facts of one run, as plain data.
//!
//! Owns: the judge's own picture of the exported tables, the rail's own book and the clients' calls. It is read from
//! JSON and takes the contract's field names, but not the judged system's types, so that a mistake there is not
//! repeated here.
//! Does not own: collecting (`evidence.rs`), judging (`invariant/`).
//! On failure: plain data cannot fail.

use crate::history::Call;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Everything a run left behind that a verdict may look at. Written beside the histories, so that a kept run can be
/// judged again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Evidence {
    /// The lock service's audit trail in its order (L9).
    pub lock_events: Vec<LockEvent>,
    /// What stood in the trail and was taken back when the lock store was restored from before it. Nothing where no
    /// store was restored.
    #[serde(default)]
    pub lost_events: Vec<LockEvent>,
    /// Accounts (P1).
    pub accounts: Vec<Account>,
    /// Payouts (P3).
    pub payouts: Vec<Payout>,
    /// Every payout's history (P3), all payouts together.
    pub transitions: Vec<Transition>,
    /// The ledger (P9 export).
    pub ledger: Vec<LedgerEntry>,
    /// The proxy's submissions (R2).
    pub submissions: Vec<Submission>,
    /// The rail's marks (R5).
    pub high_water: Vec<HighWater>,
    /// The rail's own book, asked payout by payout.
    pub rail_book: Vec<RailEntry>,
    /// The rail's own totals.
    pub rail_stats: RailStats,
    /// What the clients saw.
    pub calls: Vec<Call>,
    /// When it was collected; nothing in evidence of older runs.
    #[serde(default)]
    pub collected: Option<Collected>,
    /// When the run began, in microseconds of the boot clock that the calls carry.
    #[serde(default)]
    pub began_us: u64,
    /// What was done to processes and what became of them, in time order.
    #[serde(default)]
    pub nodes: Vec<NodeEvent>,
}

/// One moment on both clocks: the histories' boot clock, and the wall clock that stores write their instants with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// Microseconds of the machine's boot clock.
    pub boot_us: u64,
    /// Milliseconds since 1970.
    pub wall_ms: i64,
}

impl Collected {
    /// A store's instant (`2026-01-02T03:04:05.678Z`) on the boot clock, in microseconds; none when it is no instant or
    /// was before the machine's start.
    #[must_use]
    pub fn boot_us_of(&self, instant: &str) -> Option<u64> {
        let ago_ms = self.wall_ms.checked_sub(wall_ms(instant)?)?;
        let at = i64::try_from(self.boot_us)
            .ok()?
            .checked_sub(ago_ms.checked_mul(1000)?)?;
        u64::try_from(at).ok()
    }
}

/// An RFC 3339 instant in UTC as milliseconds since 1970.
pub(crate) fn wall_ms(instant: &str) -> Option<i64> {
    let (date, clock) = instant.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let mut clock = clock.splitn(3, ':').map(str::parse::<i64>);
    let (hour, minute, second) = (clock.next()?.ok()?, clock.next()?.ok()?, clock.next()?.ok()?);
    let millis = match fraction.get(..3) {
        Some(text) => text.parse::<i64>().ok()?,
        None => 0,
    };
    // Days since 1970 of a Gregorian date, counted in years that begin in March.
    let (year, month) = if month <= 2 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + millis)
}

/// Something that was done to a process, or that the harness saw of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEvent {
    /// Which node (`W1`, `lock-server`).
    pub node: String,
    /// When, in microseconds of the machine's boot clock.
    pub at_us: u64,
    /// What.
    pub what: NodeChange,
}

/// What can become of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeChange {
    /// It was started.
    Started,
    /// It was stopped by a signal, or stood still at a fault point.
    Stopped,
    /// It was told to go on.
    Resumed,
    /// It was asked to end.
    AskedToEnd,
    /// It was ended by a signal.
    Killed,
    /// It ended by itself.
    Ended,
}

/// A row of `lock_event`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockEvent {
    /// Its place in the trail.
    pub seq: u64,
    /// When, by the store.
    #[serde(default)]
    pub at: String,
    /// GRANTED, RELEASED, EXPIRED, REVOKED, SESSION_…, ….
    pub kind: String,
    /// The key, for what happened to a key.
    #[serde(default)]
    pub lock_key: Option<String>,
    /// The session, where one took part.
    #[serde(default)]
    pub session_id: Option<String>,
    /// The token, where one took part.
    #[serde(default)]
    pub token: Option<u64>,
    /// Session owner or operator.
    #[serde(default)]
    pub actor: Option<String>,
    /// Why, for break-glass actions.
    #[serde(default)]
    pub reason: Option<String>,
}

/// A row of `account`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Its id.
    pub account_id: String,
    /// ISO 4217.
    #[serde(default)]
    pub currency: String,
    /// What it began with.
    pub opening_balance_minor: i64,
    /// What is stored now.
    pub balance_minor: i64,
    /// The mark of fence point (a).
    #[serde(default)]
    pub fence: u64,
}

/// A row of `payout`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payout {
    /// Its id.
    pub payout_id: String,
    /// Whose money.
    pub account_id: String,
    /// How much.
    pub amount_minor: i64,
    /// ISO 4217.
    #[serde(default)]
    pub currency: String,
    /// PENDING, CLAIMED, RAIL_AMBIGUOUS, POSTED, FAILED.
    pub state: String,
    /// The token of its last claim.
    #[serde(default)]
    pub claim_token: Option<u64>,
    /// The rail's name for the execution it was posted with.
    #[serde(default)]
    pub rail_reference: Option<String>,
    /// Set once an ambiguous payout was escalated to a human.
    #[serde(default)]
    pub escalated_at: Option<String>,
}

/// A row of `payout_transition`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// Its place.
    pub seq: u64,
    /// Whose step.
    pub payout_id: String,
    /// Nothing for the creation.
    #[serde(default)]
    pub from_state: Option<String>,
    /// Where it came to.
    pub to_state: String,
    /// The token it was done under.
    #[serde(default)]
    pub token: Option<u64>,
    /// Who did it.
    #[serde(default)]
    pub actor: Option<String>,
    /// When.
    #[serde(default)]
    pub at: String,
}

/// A row of `ledger_entry`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// Its place in the ledger.
    pub entry_id: u64,
    /// The payout it belongs to; nothing for a top-up.
    #[serde(default)]
    pub payout_id: Option<String>,
    /// The account, or a house account.
    pub account_id: String,
    /// Signed.
    pub amount_minor: i64,
    /// The token it was written under.
    #[serde(default)]
    pub token: Option<u64>,
}

/// A row of `rail_submission`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submission {
    /// Its id.
    pub submission_id: String,
    /// The payout.
    pub payout_id: String,
    /// The account whose mark it passed.
    pub account_id: String,
    /// The token it was made under.
    #[serde(default)]
    pub token: Option<u64>,
    /// When the intent was committed.
    #[serde(default)]
    pub intent_at: String,
    /// When it was about to be sent.
    #[serde(default)]
    pub forwarded_at: Option<String>,
    /// ACKED, DECLINED, TIMEOUT, NOT_RECEIVED, NOT_SENT or nothing yet.
    #[serde(default)]
    pub outcome: Option<String>,
    /// Who.
    #[serde(default)]
    pub actor: Option<String>,
    /// The rail's name for the execution.
    #[serde(default)]
    pub rail_reference: Option<String>,
    /// False for a row written while the rail's kill switch was off.
    #[serde(default)]
    pub fencing_enforced: Option<bool>,
}

/// A row of `rail_high_water`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HighWater {
    /// The account.
    pub account_id: String,
    /// The mark of fence point (c).
    pub highest_token: u64,
}

/// What the rail itself says about one client reference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailEntry {
    /// The payout's id, as the proxy sent it.
    pub client_reference: String,
    /// Money that left, once per element.
    pub executions: Vec<Execution>,
    /// How many bodies the rail read for it.
    #[serde(default)]
    pub bodies_read: u64,
}

/// Money that left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    /// The rail's name for it.
    pub rail_reference: String,
    /// How much.
    pub amount_minor: i64,
    /// ISO 4217.
    #[serde(default)]
    pub currency: String,
}

/// The rail's totals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailStats {
    /// Submissions it read.
    pub bodies_read: u64,
    /// Submissions it executed.
    pub executed: u64,
    /// Submissions it declined.
    pub declined: u64,
}

/// The lock key that guards an account's payouts.
#[must_use]
pub fn lock_key(account_id: &str) -> String {
    format!("payout:{account_id}")
}

impl Evidence {
    /// The payout of this id.
    #[must_use]
    pub fn payout(&self, payout_id: &str) -> Option<&Payout> {
        self.payouts.iter().find(|payout| payout.payout_id == payout_id)
    }

    /// Which account each payout draws on.
    #[must_use]
    pub fn account_of(&self) -> BTreeMap<&str, &str> {
        self.payouts
            .iter()
            .map(|payout| (payout.payout_id.as_str(), payout.account_id.as_str()))
            .collect()
    }

    /// How often money left for this payout, by the rail's own book.
    #[must_use]
    pub fn executions(&self, payout_id: &str) -> usize {
        self.rail_book
            .iter()
            .filter(|entry| entry.client_reference == payout_id)
            .map(|entry| entry.executions.len())
            .sum()
    }

    /// The payouts for which money left more than once, by the rail's own book, and how much left too often, in minor
    /// units.
    #[must_use]
    pub fn paid_again(&self) -> (usize, i64) {
        let again = self.rail_book.iter().filter(|entry| entry.executions.len() > 1);
        again.fold((0, 0), |(payouts, lost), entry| {
            let surplus = entry.executions.iter().skip(1);
            (
                payouts + 1,
                lost + surplus.map(|execution| execution.amount_minor).sum::<i64>(),
            )
        })
    }

    /// How many ledger legs this payout has.
    #[must_use]
    pub fn legs(&self, payout_id: &str) -> usize {
        self.ledger
            .iter()
            .filter(|entry| entry.payout_id.as_deref() == Some(payout_id))
            .count()
    }

    /// Every (key, token) that was ever granted, also those that a restore of the store has forgotten.
    #[must_use]
    pub fn grants(&self) -> BTreeSet<(&str, u64)> {
        granted(&self.lock_events).chain(granted(&self.lost_events)).collect()
    }

    /// Every (key, token) whose grant a restore of the store has taken back: its holder may believe in it for a while,
    /// and the fences know better.
    #[must_use]
    pub fn taken_back(&self) -> BTreeSet<(&str, u64)> {
        granted(&self.lost_events).collect()
    }
}

fn granted(events: &[LockEvent]) -> impl Iterator<Item = (&str, u64)> {
    events
        .iter()
        .filter(|event| event.kind == "GRANTED")
        .filter_map(|event| Some((event.lock_key.as_deref()?, event.token?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_of_the_stores_are_read_and_put_on_the_boot_clock() {
        assert_eq!(wall_ms("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(wall_ms("2000-02-29T12:00:00.500Z"), Some(951_825_600_500));
        assert_eq!(wall_ms("2026-11-29T20:24:49.472Z"), Some(1_795_983_889_472));
        assert_eq!(wall_ms("yesterday"), None);
        let collected = Collected {
            boot_us: 10_000_000,
            wall_ms: 951_825_600_500,
        };
        assert_eq!(collected.boot_us_of("2000-02-29T12:00:00.000Z"), Some(9_500_000));
        assert_eq!(collected.boot_us_of("1999-01-01T00:00:00.000Z"), None);
    }
}
