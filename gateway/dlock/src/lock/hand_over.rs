//! A holder is asked to give its lock up, and whether it did is looked at before a lock is broken.
//!
//! Owns: the request to yield and the wait for its effect.
//! Does not own: the answer. A holder that does not look at its heartbeats, or does not want to, keeps its lock.
//! On failure: a request that was refused is the caller's answer; nothing is broken here.

use crate::api::{Api, LockServerArgs, OperatorArgs};
use crate::exit::Failure;
use http_contract::lock::{YieldAnswer, YieldBody};
use lock_api::{FencingToken, LockKey};
use serde::Serialize;
use std::time::Duration;
use tokio::time::Instant;

/// How often the key is looked at while its holder may be coming to an end.
const LOOK: Duration = Duration::from_millis(200);

/// Asks the holder of this grant to give it up.
pub async fn ask(
    api: &Api,
    servers: &LockServerArgs,
    key: &LockKey,
    token: FencingToken,
    by: &OperatorArgs,
) -> Result<YieldAnswer, Failure> {
    let body = YieldBody {
        token: token.get(),
        reason: by.reason.clone(),
    };
    api.lock_server(servers, async |s| {
        s.ask_to_yield(key, &by.operator, &body, &api.trace).await
    })
    .await
}

/// The holder gave the lock up by itself.
#[derive(Serialize)]
pub struct Yielded {
    key: String,
    token: u64,
    yielded: bool,
}

/// Asks, and waits so long for the grant to end. None when it did not, and is to be broken.
pub async fn ask_first(
    api: &Api,
    servers: &LockServerArgs,
    key: &LockKey,
    token: FencingToken,
    by: &OperatorArgs,
    within: Duration,
) -> Result<Option<Yielded>, Failure> {
    let until = Instant::now() + within;
    let asked = ask(api, servers, key, token, by).await?;
    eprintln!(
        "dlock: {} was asked to give {key} up, and has {} for it",
        asked.owner,
        humantime::format_duration(within)
    );
    loop {
        let view = super::show(api, servers, key).await?;
        if view.holder.is_none_or(|holder| holder.token != token.get()) {
            return Ok(Some(Yielded {
                key: key.as_str().to_owned(),
                token: token.get(),
                yielded: true,
            }));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        tokio::time::sleep(LOOK.min(left)).await;
    }
}
