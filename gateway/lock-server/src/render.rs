//! From the contract's types to bodies and problems.

use crate::bounds::millis;
use gateway_kit::ApiError;
use http_contract::Code;
use http_contract::lock::{
    AuditRow, CheckAnswer, CheckVerdict, Freed, GrantAnswer, Held, Holder, KeyStatus, LineageAnswer, LockView, SealRow,
    SessionAnswer, YieldRequested,
};
use lock_api::{
    ExpiredGrant, FencingToken, Grant, HeldByOther, HeldGrant, KeyState, Lineage, LineageState, LockEvent, LockKey,
    Metadata, Seal, SessionView, UnixMillis, YieldAsked,
};
use lock_core::Refusal;
use lock_store::canonical::rfc3339;
use serde_json::{Value, json};
use std::time::Duration;

/// How long a caller is told to stay away from something that is full.
const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(crate) fn refusal(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::Store(error) => error.into(),
        Refusal::Ask(error) => error.into(),
        overloaded @ (Refusal::Overloaded(_) | Refusal::Draining) => {
            ApiError::new(Code::Overloaded, overloaded.to_string()).retry_after(RETRY_AFTER)
        }
    }
}

pub(crate) fn regression(detail: &str) -> ApiError {
    ApiError::new(
        Code::TokenRegression,
        format!("no grant until an operator has set the token floor: {detail}"),
    )
    .retry_after(Duration::from_secs(5))
}

pub(crate) fn witness_refused(highest_believed: u64) -> ApiError {
    ApiError::invalid(
        "witness_token",
        format!("must be at most {highest_believed}: a higher one is not believed"),
    )
}

pub(crate) fn session_not_found() -> ApiError {
    ApiError::new(
        Code::SessionNotFound,
        "the session is unknown or has expired; treat every grant of it as lost",
    )
}

pub(crate) fn lock_not_found() -> ApiError {
    ApiError::new(Code::LockNotFound, "the store does not know this key")
}

pub(crate) fn not_holder() -> ApiError {
    ApiError::new(
        Code::NotHolder,
        "session and token are not those of the live grant; nothing was changed",
    )
}

/// Text that was JSON when it was taken.
fn value(metadata: Option<&Metadata>) -> Option<Value> {
    metadata.map(|text| serde_json::from_str(text.as_str()).unwrap_or_else(|_| Value::from(text.as_str())))
}

pub(crate) fn grant(grant: &Grant, waited: Duration) -> GrantAnswer {
    GrantAnswer {
        key: grant.key.as_str().to_owned(),
        token: grant.token.get(),
        session_id: grant.session_id.as_str().to_owned(),
        ttl_ms: grant.ttl.as_millis(),
        expires_in_ms: millis(grant.expires_in),
        waited_ms: millis(waited),
        lock_delay_ms: grant.lock_delay.as_millis(),
        yield_requested: grant.yield_asked.as_ref().map(yield_requested),
    }
}

pub(crate) fn yield_requested(asked: &YieldAsked) -> YieldRequested {
    YieldRequested {
        by: asked.by.as_str().to_owned(),
        reason: asked.reason.clone(),
        at: rfc3339(asked.at),
    }
}

pub(crate) fn holder(grant: &Grant, is_self: bool) -> Holder {
    Holder {
        owner: grant.owner.as_str().to_owned(),
        since: rfc3339(grant.granted_at),
        token: grant.token.get(),
        metadata: value(grant.metadata.as_ref()),
        is_self,
    }
}

/// 409 `HELD_BY_OTHER`.
pub(crate) fn held_by_other(key: &LockKey, held: &HeldByOther, waiters: u32) -> ApiError {
    let left = held.holder.expires_in;
    // A second at most: the holder may release long before its lease ends.
    let retry_after = left.clamp(Duration::from_millis(50), Duration::from_secs(1));
    ApiError::new(Code::HeldByOther, format!("held by {}", held.holder.owner))
        .field("key", key.as_str())
        .field("holder", json!(holder(&held.holder, held.is_self)))
        .field("expires_in_ms", millis(left))
        .field("waiters", waiters)
        .field("retry_after_ms", millis(retry_after))
        .retry_after(retry_after)
}

/// 409 `LOCK_DELAYED`.
pub(crate) fn delayed(key: &LockKey, last_token: FencingToken, ends_in: Duration, waiters: u32) -> ApiError {
    // Nothing opens the key sooner, so there is no use in asking sooner.
    let retry_after = ends_in.max(Duration::from_millis(50));
    ApiError::new(
        Code::LockDelayed,
        "nobody holds this key; it is closed for a while, because its last holder lost it uncleanly",
    )
    .field("key", key.as_str())
    .field("token", last_token.get())
    .field("expires_in_ms", millis(ends_in))
    .field("waiters", waiters)
    .field("retry_after_ms", millis(retry_after))
    .retry_after(retry_after)
}

pub(crate) fn held(grant: &HeldGrant) -> Held {
    Held {
        key: grant.key.as_str().to_owned(),
        token: grant.token.get(),
        expires_in_ms: millis(grant.expires_in),
        yield_requested: grant.yield_asked.as_ref().map(yield_requested),
    }
}

pub(crate) fn freed(grant: &ExpiredGrant) -> Freed {
    Freed {
        key: grant.key.as_str().to_owned(),
        token: grant.token.get(),
    }
}

pub(crate) fn lock(state: &KeyState, waiters: u32) -> LockView {
    LockView {
        key: state.key.as_str().to_owned(),
        state: if state.grant.is_some() {
            KeyStatus::Held
        } else {
            KeyStatus::Free
        },
        token: state.last_token.map(FencingToken::get),
        holder: state.grant.as_ref().map(|grant| holder(grant, false)),
        expires_in_ms: state.grant.as_ref().map(|grant| millis(grant.expires_in)),
        lock_delay_ms: state.grant.as_ref().map(|grant| grant.lock_delay.as_millis()),
        yield_requested: state
            .grant
            .as_ref()
            .and_then(|grant| grant.yield_asked.as_ref())
            .map(yield_requested),
        closed_for_ms: state.closed_for.map(millis),
        waiters: u64::from(waiters),
    }
}

/// How a token stands with what the store knows of its key.
pub(crate) fn check(state: &KeyState, token: FencingToken) -> CheckAnswer {
    let current = state.grant.as_ref().filter(|grant| grant.token == token);
    let last = state.last_token;
    let superseded_by = last.filter(|last| *last > token).map(FencingToken::get);
    let verdict = if current.is_some() {
        CheckVerdict::Current
    } else if superseded_by.is_some() {
        CheckVerdict::Superseded
    } else if last == Some(token) {
        CheckVerdict::Ended
    } else {
        CheckVerdict::Unknown
    };
    CheckAnswer {
        key: state.key.as_str().to_owned(),
        token: token.get(),
        verdict,
        superseded_by,
        expires_in_ms: current.map(|grant| millis(grant.expires_in)),
    }
}

pub(crate) fn session(view: &SessionView) -> SessionAnswer {
    SessionAnswer {
        session_id: view.session_id.as_str().to_owned(),
        owner: view.owner.as_str().to_owned(),
        ttl_ms: view.ttl.as_millis(),
        expires_in_ms: millis(view.expires_in),
        opened_at: rfc3339(view.opened_at),
        last_heartbeat_at: rfc3339(view.last_heartbeat_at),
        metadata: value(view.metadata.as_ref()),
        held: view.held.iter().map(held).collect(),
    }
}

/// A row of `lock_event`, in the form its seal is taken over.
pub(crate) fn event(event: &LockEvent) -> AuditRow {
    AuditRow {
        seq: event.seq,
        at: rfc3339(event.at),
        kind: event.kind.as_str().to_owned(),
        lock_key: event.lock_key.as_ref().map(|key| key.as_str().to_owned()),
        session_id: event.session_id.as_ref().map(|id| id.as_str().to_owned()),
        token: event.token.map(FencingToken::get),
        actor: event.actor.clone(),
        reason: event.reason.clone(),
    }
}

pub(crate) fn seal(seal: &Seal) -> SealRow {
    SealRow {
        chain: seal.chain.clone(),
        n: seal.n,
        first_seq: seal.first_seq,
        last_seq: seal.last_seq,
        prev_hash: seal.prev_hash.clone(),
        hash: seal.hash.clone(),
    }
}

pub(crate) fn lineage(lineage: &Lineage) -> LineageAnswer {
    LineageAnswer {
        lineage: lineage.lineage.clone(),
        token_floor: lineage.token_floor,
        last_token: lineage.last_token,
        state: match lineage.state {
            LineageState::Ok => "OK",
            LineageState::Regressed => "REGRESSED",
        }
        .to_owned(),
        changed_at: rfc3339(UnixMillis(lineage.changed_at.0)),
        changed_by: lineage.changed_by.clone(),
        detail: lineage.detail.clone(),
    }
}
