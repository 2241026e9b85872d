//! Bodies of the lock server, L1–L11 (C3.3).

use crate::present;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// L1: opens a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenSessionRequest {
    /// Who opens it: 1–128 characters.
    pub owner: String,
    /// How long it lives without a heartbeat, in milliseconds.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    pub ttl_ms: Option<u64>,
    /// Free metadata, at most 4,096 bytes as compact JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object, required = false)]
    pub metadata: Option<Value>,
}

/// L1: the opened session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpenSessionAnswer {
    /// Its id.
    pub session_id: String,
    /// Who opened it.
    pub owner: String,
    /// How long it lives without a heartbeat.
    pub ttl_ms: u64,
    /// How often the server asks for a heartbeat.
    pub heartbeat_interval_ms: u64,
    /// What is left of it.
    pub expires_in_ms: u64,
}

/// L2: keeps a session alive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// The highest token the client has ever seen.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    pub witness_token: Option<u64>,
}

/// L2: the session lives on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatAnswer {
    /// Which session.
    pub session_id: String,
    /// What is left of it.
    pub expires_in_ms: u64,
    /// What it still holds.
    pub held: Vec<Held>,
}

/// A grant in short form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Held {
    /// What is locked.
    pub key: String,
    /// Its token.
    pub token: u64,
    /// What is left of the lease.
    pub expires_in_ms: u64,
    /// That its holder is asked to give it up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yield_requested: Option<YieldRequested>,
}

/// That the holder of a grant is asked to give it up. Nothing ends by it: the holder releases, or goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct YieldRequested {
    /// Who asked first.
    #[schema(example = "ann")]
    pub by: String,
    /// Why.
    #[schema(example = "this node is drained at noon")]
    pub reason: String,
    /// When (RFC 3339).
    #[schema(example = "2026-11-30T11:40:00.000Z")]
    pub at: String,
}

/// A key and the token it was freed under.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Freed {
    /// What was locked.
    pub key: String,
    /// Under which token.
    pub token: u64,
}

/// L3: what ended with the session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CloseSessionAnswer {
    /// The grants that were freed; none when the session had ended before.
    pub released: Vec<Freed>,
}

/// L4: asks for a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcquireBody {
    /// For which session.
    pub session_id: String,
    /// The logical acquire this attempt belongs to.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub request_id: Option<String>,
    /// The lease's own TTL in milliseconds.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    pub ttl_ms: Option<u64>,
    /// How long to wait in the key's queue, at most 30,000 ms.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    pub wait_ms: Option<u64>,
    /// The highest token the client has ever seen.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    pub witness_token: Option<u64>,
    /// How long the key stays closed to everybody should this grant be lost uncleanly (its time or its session's over, or
    /// revoked), at most 60,000 ms; none where it is missing.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false, example = 5000)]
    pub lock_delay_ms: Option<u64>,
    /// Free metadata, shown to whoever is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object, required = false)]
    pub metadata: Option<Value>,
}

/// L4, L5: the grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrantAnswer {
    /// What is locked.
    pub key: String,
    /// The fencing token of this grant.
    pub token: u64,
    /// For which session.
    pub session_id: String,
    /// The lease's own TTL.
    pub ttl_ms: u64,
    /// What is left of the lease at the moment of the answer.
    pub expires_in_ms: u64,
    /// From the receipt of the request to the start of the granting store call; 0 for a renew.
    #[serde(default)]
    pub waited_ms: u64,
    /// How long the key stays closed should this grant be lost uncleanly.
    #[serde(default)]
    pub lock_delay_ms: u64,
    /// That the holder is asked to give it up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yield_requested: Option<YieldRequested>,
}

/// Who holds a key, as others see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Holder {
    /// The owner name of the holding session.
    pub owner: String,
    /// Since when (RFC 3339).
    pub since: String,
    /// Under which token. No credential: it releases nothing without the session.
    pub token: u64,
    /// Metadata given with the acquire.
    #[serde(default)]
    #[schema(value_type = Option<Object>, required = false)]
    pub metadata: Option<Value>,
    /// Present and true when the asking session is itself the holder.
    #[serde(default, rename = "self", skip_serializing_if = "std::ops::Not::not")]
    pub is_self: bool,
}

/// L5: extends a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewBody {
    /// By whom.
    pub session_id: String,
    /// A new TTL in milliseconds, or the grant's own again.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    pub ttl_ms: Option<u64>,
}

/// L6: the key is not held under this token any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReleaseAnswer {
    /// What was locked.
    pub key: String,
    /// Under which token.
    pub token: u64,
    /// Whether this very call freed it.
    pub released: bool,
}

/// Whether a key is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum KeyStatus {
    /// Somebody holds it.
    Held,
    /// Nobody does.
    Free,
}

/// L7: a key as the server has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LockView {
    /// Which key.
    pub key: String,
    /// Whether it is held.
    pub state: KeyStatus,
    /// The highest token ever minted for it; null when the store does not know the key.
    pub token: Option<u64>,
    /// Who holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
    /// What is left of the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
    /// How long the key stays closed should its holder lose it uncleanly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_delay_ms: Option<u64>,
    /// That its holder is asked to give it up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yield_requested: Option<YieldRequested>,
    /// What is left of the delay after an unclean loss; while it is there, the free key is granted to nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_for_ms: Option<u64>,
    /// How many wait for it at this replica.
    pub waiters: u64,
}

/// L10: how a token stands with the lock server. Advice about liveness and nothing more: see [`CheckAnswer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum CheckVerdict {
    /// The key was held under this very token when the store was asked.
    Current,
    /// A higher token was minted for the key: whoever shows this one must stop.
    Superseded,
    /// It is the key's last token, and its grant has ended.
    Ended,
    /// The store has no such token: never minted for this key, or forgotten with it.
    Unknown,
}

/// L10: the answer. It is about the past by the time it is read: a holder that was current may be stale when its write
/// arrives, so no resource may take it for a fence. It helps to stop early, and to explain a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckAnswer {
    /// Which key.
    pub key: String,
    /// The token that was presented.
    pub token: u64,
    /// How it stands.
    pub verdict: CheckVerdict,
    /// The highest token minted for the key, where that is above the presented one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<u64>,
    /// What is left of the lease, where the token is current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
}

/// L8: breaks a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeBody {
    /// The token to be revoked, as L7 showed it.
    pub revoke_token: u64,
    /// Why: 8–500 characters.
    pub reason: String,
}

/// L8: the grant is broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevokeAnswer {
    /// Which key.
    pub key: String,
    /// The token that is stale from now on.
    pub revoked_token: u64,
    /// Who held it.
    pub revoked_owner: String,
    /// The token the revoke minted, above the revoked one.
    pub token: u64,
}

/// L11: asks the holder to give its grant up by itself: what is tried before a revoke.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct YieldBody {
    /// The token whose holder is asked, as L7 showed it.
    #[schema(example = 42)]
    pub token: u64,
    /// Why: 8–500 characters.
    #[schema(example = "this node is drained at noon")]
    pub reason: String,
}

/// L11: the holder is asked, now or by somebody before. It reads so in its next heartbeat or renewal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct YieldAnswer {
    /// Which key.
    pub key: String,
    /// The token whose holder is asked.
    #[schema(example = 42)]
    pub token: u64,
    /// Who holds it.
    #[schema(example = "worker-1")]
    pub owner: String,
    /// Who asked first, why and when.
    pub yield_requested: YieldRequested,
}

/// L9: a session as the server has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionAnswer {
    /// Its id.
    pub session_id: String,
    /// Who opened it.
    pub owner: String,
    /// How long it lives without a heartbeat.
    pub ttl_ms: u64,
    /// What is left of it.
    pub expires_in_ms: u64,
    /// When it was opened (RFC 3339).
    pub opened_at: String,
    /// When its last heartbeat was recorded (RFC 3339).
    pub last_heartbeat_at: String,
    /// Free metadata.
    #[serde(default)]
    #[schema(value_type = Option<Object>, required = false)]
    pub metadata: Option<Value>,
    /// What it holds.
    pub held: Vec<Held>,
}

/// L7, L9: a row of `lock_event`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditRow {
    /// Its place in the order of all events.
    pub seq: u64,
    /// When (RFC 3339).
    pub at: String,
    /// What happened.
    pub kind: String,
    /// To which key.
    pub lock_key: Option<String>,
    /// Of which session.
    pub session_id: Option<String>,
    /// Under which token.
    pub token: Option<u64>,
    /// By whom.
    pub actor: Option<String>,
    /// Why.
    pub reason: Option<String>,
}

/// L9: a sealed segment of the audit trail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SealRow {
    /// Which chain.
    pub chain: String,
    /// The place in its chain, from 1.
    pub n: u64,
    /// The first event of the segment.
    pub first_seq: u64,
    /// The last event of the segment.
    pub last_seq: u64,
    /// The hash before it.
    pub prev_hash: String,
    /// Its hash.
    pub hash: String,
}

/// L9: the identity of the store's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LineageAnswer {
    /// A random id made when the store was first initialised.
    pub lineage: String,
    /// No token at or below it is ever minted.
    pub token_floor: u64,
    /// The last token minted, 0 before the first.
    pub last_token: u64,
    /// `OK` or `REGRESSED`.
    pub state: String,
    /// When state or floor last changed (RFC 3339).
    pub changed_at: String,
    /// Who changed it.
    pub changed_by: String,
    /// What was found, while in doubt.
    pub detail: Option<String>,
}

/// L9: raises the floor, or dismisses the doubt: exactly one of `floor` and `dismiss: true`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FloorBody {
    /// The new floor.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    pub floor: Option<u64>,
    /// True when a witness lied and the floor stays.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = bool, required = false)]
    pub dismiss: Option<bool>,
    /// Why: 8–500 characters.
    pub reason: String,
}
