//! What dlock says of a lock store that is in trouble, was moved or restored, and what an operator does about it.
//!
//! Owns: grants of the harness's own to see it by; raising the floor out of a doubt.
//! Does not own: how a store comes to be another one.
//! On failure: a token that was granted at or below one of before is an error of the run at once.

use super::fault::{Ground, SHOWS_WITHIN};
use crate::stack::{RunError, eventually};
use http_client::CallError;
use http_contract::lock::{AcquireBody, FloorBody, GrantAnswer, OpenSessionRequest};
use lock_api::LockKey;
use std::cell::RefCell;

/// Who takes the harness's own key, and who raises floors.
const OPERATOR: &str = "dlock-chaos";
const KEY: &str = "chaos:lineage";
/// The state of a lineage that is not in doubt.
const OK: &str = "OK";
/// How far above the highest token an operator puts the floor.
const ABOVE: u64 = 1_000;

/// What was known before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    last_token: u64,
    floor: u64,
}

impl Before {
    pub(super) async fn read(ground: &Ground<'_>) -> Result<Self, RunError> {
        let lineage = ground.apis.locks.lineage(&ground.apis.trace()).await;
        let lineage = lineage.map_err(RunError::call("the lineage"))?;
        Ok(Self {
            last_token: lineage.last_token,
            floor: lineage.token_floor,
        })
    }
}

/// Takes the harness's own key in a session of its own, and gives it back with the session.
async fn turn(ground: &Ground<'_>) -> Result<GrantAnswer, CallError> {
    let (locks, trace) = (&ground.apis.locks, ground.apis.trace());
    let open = OpenSessionRequest {
        owner: OPERATOR.to_owned(),
        ttl_ms: None,
        metadata: None,
    };
    let session_id = locks.open_session(&open, &trace).await?.session_id;
    let key = LockKey::new(KEY).map_err(|error| CallError::NotSent(error.to_string()))?;
    let body = AcquireBody {
        session_id: session_id.clone(),
        request_id: None,
        ttl_ms: None,
        wait_ms: Some(2_000),
        witness_token: None,
        lock_delay_ms: None,
        metadata: None,
    };
    let granted = locks.acquire(&key, &body, &trace).await;
    locks.close_session(&session_id, &trace).await?;
    granted
}

/// Takes and gives back the harness's own key so many times.
pub(super) async fn turns(ground: &Ground<'_>, times: usize) -> Result<(), RunError> {
    for _ in 0..times {
        eventually(
            ground.stack.host(),
            "a grant to the harness",
            SHOWS_WITHIN,
            async || Ok(turn(ground).await.ok()),
        )
        .await?;
    }
    Ok(())
}

/// Awaits that dlock grants the harness nothing. Says what it answered.
pub(super) async fn refused(ground: &Ground<'_>) -> Result<String, RunError> {
    let said = eventually(
        ground.stack.host(),
        "no grant to the harness",
        SHOWS_WITHIN,
        async || Ok(turn(ground).await.err()),
    )
    .await?;
    Ok(format!("an acquire is answered: {said}"))
}

/// Awaits a grant, which must be above every token of before, or a refusal in doubt. Says which it was.
pub(super) async fn verdict(ground: &Ground<'_>, before: &RefCell<Option<Before>>) -> Result<String, RunError> {
    let before = before
        .borrow()
        .ok_or_else(|| RunError::Other("what was before is not known".to_owned()))?;
    let what = "a grant above the tokens of before, or a doubt";
    let seen = eventually(ground.stack.host(), what, SHOWS_WITHIN, async || {
        match turn(ground).await {
            Ok(grant) => Ok(Some(Ok(grant.token))),
            Err(CallError::Problem(problem)) if problem.code.as_str() == "TOKEN_REGRESSION" => {
                Ok(Some(Err(problem.to_string())))
            }
            Err(error) => {
                tracing::debug!(event = "no_verdict_yet", %error);
                Ok(None)
            }
        }
    })
    .await?;
    let token = match seen {
        Err(doubt) => return Ok(format!("dlock is in doubt and grants nothing: {doubt}")),
        Ok(token) => token,
    };
    if token <= before.last_token {
        return Err(RunError::Other(format!(
            "token {token} was granted after a restore, {} had been before",
            before.last_token
        )));
    }
    let floor = Before::read(ground).await?.floor;
    Ok(if floor > before.floor {
        format!(
            "the floor has jumped from {} to {floor}, above the last token {}; {token} is granted",
            before.floor, before.last_token
        )
    } else {
        format!("{token} is granted, above the last token {}", before.last_token)
    })
}

/// What an operator does after a restore: where the store is in doubt, the floor is raised above everything that can have
/// been granted.
pub(super) async fn clear(ground: &Ground<'_>) -> Result<(), RunError> {
    let (locks, host) = (&ground.apis.locks, ground.stack.host());
    eventually(host, "the lineage out of doubt", SHOWS_WITHIN, async || {
        let Ok(lineage) = locks.lineage(&ground.apis.trace()).await else {
            return Ok(None);
        };
        if lineage.state == OK {
            return Ok(Some(()));
        }
        let highest = highest(ground).await?.max(lineage.last_token).max(lineage.token_floor);
        let body = FloorBody {
            floor: Some(highest + ABOVE),
            dismiss: None,
            reason: "restored from a snapshot by a fault of the lab".to_owned(),
        };
        let raised = locks.floor(OPERATOR, &body, &ground.apis.trace()).await;
        Ok(match raised {
            Ok(_) => Some(()),
            Err(error) => {
                tracing::debug!(event = "floor_not_raised", %error);
                None
            }
        })
    })
    .await
}

/// The highest token that any fence or client knows of: what the documentation tells an operator to look for.
async fn highest(ground: &Ground<'_>) -> Result<u64, RunError> {
    let lost = crate::evidence::lost(ground.stack.dir())?;
    Ok(lost.iter().filter_map(|fact| fact.token).max().unwrap_or(0))
}
