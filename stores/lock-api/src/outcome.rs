//! One request and one outcome per verb. A refusal is an outcome; an error is what the caller could not foresee.

use crate::{
    FencingToken, Grant, HeldByOther, HeldGrant, LockDelay, LockKey, Metadata, Operator, Owner, RequestId, SessionId,
    Ttl, UnixMillis,
};
use core::time::Duration;

/// Opens a session under an id that the caller made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenSession {
    /// A new id.
    pub session_id: SessionId,
    /// Who opens it.
    pub owner: Owner,
    /// How long it lives without a heartbeat.
    pub ttl: Ttl,
    /// Free metadata.
    pub metadata: Option<Metadata>,
}

/// A session as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Its id.
    pub session_id: SessionId,
    /// Who opened it.
    pub owner: Owner,
    /// How long it lives without a heartbeat.
    pub ttl: Ttl,
    /// What is left of it.
    pub expires_in: Duration,
    /// When it was opened.
    pub opened_at: UnixMillis,
    /// When its last heartbeat was recorded.
    pub last_heartbeat_at: UnixMillis,
    /// Free metadata.
    pub metadata: Option<Metadata>,
    /// What it holds.
    pub held: Vec<HeldGrant>,
}

/// Extends a session by its TTL from the moment the store applies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Which session.
    pub session_id: SessionId,
    /// The highest token the client has ever seen (01 §1.6).
    pub witness: Option<FencingToken>,
}

/// What became of a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeartbeatOutcome {
    /// The session lives on.
    Alive {
        /// What is left of it.
        expires_in: Duration,
        /// What it still holds. A heartbeat does not stretch a grant's own TTL.
        held: Vec<HeldGrant>,
    },
    /// Unknown or expired: every grant of it is lost.
    SessionNotFound,
    /// The witness is more than [`crate::WITNESS_REACH`] above the last token: not believed, recorded as WITNESS_REFUSED.
    WitnessRefused {
        /// The highest witness that would have been believed.
        highest_believed: u64,
    },
}

/// Asks for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireRequest {
    /// What to lock.
    pub key: LockKey,
    /// For which session.
    pub session_id: SessionId,
    /// The logical acquire this attempt belongs to: the same id from the same session finds its own grant again.
    pub request_id: RequestId,
    /// The lease's own TTL.
    pub ttl: Ttl,
    /// Free metadata, shown to whoever is refused.
    pub metadata: Option<Metadata>,
    /// The highest token the client has ever seen.
    pub witness: Option<FencingToken>,
    /// How long the key is to stay closed should this grant be lost uncleanly.
    pub lock_delay: LockDelay,
}

/// What became of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The key is held by the asking session.
    Granted {
        /// The grant.
        grant: Grant,
        /// True when this request had been granted before and the existing grant is answered again.
        replayed: bool,
    },
    /// Somebody holds it.
    HeldByOther(HeldByOther),
    /// Nobody holds it, and it is closed for a while: its last grant was lost uncleanly and asked for a delay
    /// ([`LockDelay`]). Closed to the session that lost it too.
    Delayed {
        /// The last token minted for the key.
        last_token: FencingToken,
        /// What is left of the delay.
        ends_in: Duration,
    },
    /// The asking session is unknown or expired.
    SessionNotFound,
    /// The store may have been rewound: no grant before the floor is raised (FR-09).
    TokenRegression {
        /// For the operator.
        detail: String,
    },
    /// The witness is not believed; see [`HeartbeatOutcome::WitnessRefused`].
    WitnessRefused {
        /// The highest witness that would have been believed.
        highest_believed: u64,
    },
}

/// Extends a grant by its TTL from the moment the store applies it. The token does not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewRequest {
    /// What is locked.
    pub key: LockKey,
    /// By whom.
    pub session_id: SessionId,
    /// Under which token.
    pub token: FencingToken,
    /// A new TTL, or the grant's own again.
    pub ttl: Option<Ttl>,
}

/// What became of a renew.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "the usual outcome is the large one, and one is made per call"
)]
pub enum RenewOutcome {
    /// Extended.
    Renewed(Grant),
    /// Session and token are not those of the live grant: changed nothing. An expired grant is never revived (case L15).
    NotHolder,
    /// The store does not know the key.
    NotFound,
}

/// Gives a grant back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseRequest {
    /// What is locked.
    pub key: LockKey,
    /// By whom: a token is no credential, the session must be the holder's (case D08).
    pub session_id: SessionId,
    /// Under which token.
    pub token: FencingToken,
}

/// What became of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// Free now.
    Released,
    /// Free before: this very token was the last one and has ended.
    AlreadyFree,
    /// Another holder, or a token that never was: changed nothing.
    NotHolder,
    /// The store does not know the key.
    NotFound,
}

/// Breaks a grant (FR-08).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokeRequest {
    /// What is locked.
    pub key: LockKey,
    /// The token that is to be broken, as the operator saw it.
    pub revoke_token: FencingToken,
    /// Who breaks it.
    pub operator: Operator,
    /// Why: at least 8 characters, checked by the gateway.
    pub reason: String,
}

/// What became of a revoke.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "the usual outcome is the large one, and one is made per call"
)]
pub enum RevokeOutcome {
    /// Broken. The key is free and its last token is the new, higher one.
    Revoked {
        /// The grant that was broken.
        revoked: Grant,
        /// The token the revoke minted, above the revoked one.
        token: FencingToken,
    },
    /// The grant has moved on to another token: changed nothing (case L30).
    NotHolder {
        /// The live grant.
        holder: Box<Grant>,
    },
    /// Nobody holds it.
    NotHeld,
    /// The store does not know the key.
    NotFound,
    /// The store may have been rewound: nothing can be minted.
    TokenRegression {
        /// For the operator.
        detail: String,
    },
}

/// Asks the holder of a grant to give it up by itself: what is tried before a revoke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YieldRequest {
    /// What is locked.
    pub key: LockKey,
    /// The token whose holder is asked, as the asker saw it.
    pub token: FencingToken,
    /// Who asks.
    pub operator: Operator,
    /// Why: at least 8 characters, checked by the gateway.
    pub reason: String,
}

/// What became of a request to yield.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "the usual outcome is the large one, and one is made per call"
)]
pub enum YieldOutcome {
    /// It stands with the grant; the holder sees it in its next heartbeat or renewal. Recorded as YIELD_REQUESTED once:
    /// who asks again finds what the first said.
    Asked(Grant),
    /// The grant has moved on to another token: changed nothing.
    NotHolder {
        /// The live grant.
        holder: Box<Grant>,
    },
    /// Nobody holds it.
    NotHeld,
    /// The store does not know the key.
    NotFound,
}

/// A key as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyState {
    /// Which key.
    pub key: LockKey,
    /// The highest token ever minted for it, a revoke's included; none when the store does not know the key.
    pub last_token: Option<FencingToken>,
    /// The live grant, if any.
    pub grant: Option<Grant>,
    /// What is left of the delay after an unclean loss ([`LockDelay`]); none when nothing keeps a free key from being
    /// granted, and none while it is held.
    pub closed_for: Option<Duration>,
}

/// A grant that the store ended because it was due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredGrant {
    /// What was locked.
    pub key: LockKey,
    /// Under which token.
    pub token: FencingToken,
    /// By whom.
    pub session_id: SessionId,
}

/// A session that the store ended because it was due, with what it held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredSession {
    /// Which session.
    pub session_id: SessionId,
    /// The grants that ended with it.
    pub released: Vec<ExpiredGrant>,
}

/// What one sweep ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpiryReport {
    /// Grants whose own lease ended.
    pub grants: Vec<ExpiredGrant>,
    /// Sessions that ended.
    pub sessions: Vec<ExpiredSession>,
    /// When the next one is due at the earliest, as far as the store can tell without a scan; none when nothing lives.
    pub next_due_in: Option<Duration>,
    /// True when the sweep stopped at its limit and more is due now.
    pub more: bool,
}

/// Kinds of `lock_event` (C1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// A key was granted.
    Granted,
    /// A grant was given back.
    Released,
    /// A grant ended at its time.
    Expired,
    /// A grant was broken.
    Revoked,
    /// The holder of a grant was asked to give it up.
    YieldRequested,
    /// A session was opened.
    SessionOpened,
    /// A session was closed.
    SessionClosed,
    /// A session ended at its time.
    SessionExpired,
    /// The token floor was raised.
    FloorAdvanced,
    /// A doubt about the store's lineage arose.
    RegressionDetected,
    /// An operator dismissed the doubt.
    RegressionDismissed,
    /// A witness was not believed.
    WitnessRefused,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 12] = [
        Self::Granted,
        Self::Released,
        Self::Expired,
        Self::Revoked,
        Self::YieldRequested,
        Self::SessionOpened,
        Self::SessionClosed,
        Self::SessionExpired,
        Self::FloorAdvanced,
        Self::RegressionDetected,
        Self::RegressionDismissed,
        Self::WitnessRefused,
    ];

    /// The kind as it stands in the table and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "GRANTED",
            Self::Released => "RELEASED",
            Self::Expired => "EXPIRED",
            Self::Revoked => "REVOKED",
            Self::YieldRequested => "YIELD_REQUESTED",
            Self::SessionOpened => "SESSION_OPENED",
            Self::SessionClosed => "SESSION_CLOSED",
            Self::SessionExpired => "SESSION_EXPIRED",
            Self::FloorAdvanced => "FLOOR_ADVANCED",
            Self::RegressionDetected => "REGRESSION_DETECTED",
            Self::RegressionDismissed => "REGRESSION_DISMISSED",
            Self::WitnessRefused => "WITNESS_REFUSED",
        }
    }

    /// Reads what [`EventKind::as_str`] wrote.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// One row of `lock_event`: a fact, written in the transaction it describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockEvent {
    /// Its place in the order of all events, from 1.
    pub seq: u64,
    /// When, by the store's wall clock.
    pub at: UnixMillis,
    /// What happened.
    pub kind: EventKind,
    /// To which key.
    pub lock_key: Option<LockKey>,
    /// Of which session.
    pub session_id: Option<SessionId>,
    /// Under which token.
    pub token: Option<FencingToken>,
    /// By whom: a session's owner, an operator, or `lease-clock`.
    pub actor: Option<String>,
    /// Why, where a human said so.
    pub reason: Option<String>,
}

/// Which events to read, in rising order of `seq`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventQuery {
    /// Only those of this key.
    pub key: Option<LockKey>,
    /// Only those after this `seq`; 0 for all.
    pub after: u64,
    /// At most this many.
    pub limit: u32,
}

/// One sealed segment of the event log (C1.1 `lock_event_seal`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Which chain: a new one begins when the sealer's predecessor is unknown.
    pub chain: String,
    /// The place in its chain, from 1.
    pub n: u64,
    /// The first event of the segment.
    pub first_seq: u64,
    /// The last event of the segment.
    pub last_seq: u64,
    /// The hash before, 64 zeros for the first (hex).
    pub prev_hash: String,
    /// sha256 in hex over `prev_hash` and the segment's rows as canonical JSON (C3.3 L9).
    pub hash: String,
}

/// Whether the store trusts its own tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineageState {
    /// It does.
    Ok,
    /// It may have been rewound: nothing is granted until a floor is set or the doubt dismissed.
    Regressed,
}

/// The identity of the store's history (C1.1 `lock_lineage`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// A random id made when the store was first initialised.
    pub lineage: String,
    /// No token at or below it is ever minted.
    pub token_floor: u64,
    /// The last token minted, 0 before the first.
    pub last_token: u64,
    /// Whether the store trusts its own tokens.
    pub state: LineageState,
    /// When state or floor last changed.
    pub changed_at: UnixMillis,
    /// Who changed it.
    pub changed_by: String,
    /// What was found, while in doubt.
    pub detail: Option<String>,
}

/// What became of a change to the floor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FloorOutcome {
    /// Changed.
    Changed(Lineage),
    /// The floor is below the last token or more than [`crate::WITNESS_REACH`] above it.
    OutOfBounds {
        /// The lowest floor that would be taken.
        lowest: u64,
        /// The highest floor that would be taken.
        highest: u64,
    },
    /// There is no doubt to dismiss.
    NothingToDismiss,
}

/// Whether the store can do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreHealth {
    /// The kind of backend, `sqlite`, `pg` or `etcd`.
    pub backend: &'static str,
    /// None when all is well, else what is wrong: one of the words of C3.1 (`full`, `read_only`, …), a colon and the details.
    pub problem: Option<String>,
}
