//! `dlock lock acquire`: one logical acquire over as many calls as its `--wait` has room for.

use crate::api::{Api, LockServerArgs};
use crate::exit::{CONTENTION, Failure, SIGNALLED, UNAVAILABLE};
use host_kit::{Clock, Host};
use http_contract::Code;
use http_contract::lock::{AcquireBody, GrantAnswer, HeartbeatRequest, OpenSessionAnswer, OpenSessionRequest};
use lock_api::LockKey;
use nix::sys::signal::Signal;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Between a call that brought no grant at once and the next one.
const AGAIN: Duration = Duration::from_millis(200);

/// What is asked for, and for how long.
pub(super) struct Wanted {
    pub(super) key: LockKey,
    /// The session to be opened for it; none where `body` names one that exists.
    pub(super) open: Option<OpenSessionRequest>,
    pub(super) body: AcquireBody,
    pub(super) wait: Duration,
}

/// Takes the lock, or leaves nothing behind: a session that was opened for it is closed again, on a signal too.
pub(super) async fn take(api: &Api, servers: &LockServerArgs, wanted: Wanted) -> Result<GrantAnswer, Failure> {
    let (clock, trace) = (Clock::system(), &api.trace);
    let until = clock.mono().saturating_add(wanted.wait);
    let Wanted {
        key, open, mut body, ..
    } = wanted;
    let named = body.request_id.is_some();
    let granted = tokio::select! {
        granted = granted(api, servers, &key, &mut body, open.as_ref(), until) => granted,
        signal = ended() => Err(Failure::new(
            SIGNALLED + u8::try_from(signal as i32).unwrap_or_default(),
            format!("{signal} while waiting for {key}: it is not taken"),
        )),
    };
    let interrupted = granted.as_ref().is_err_and(|failure| failure.code() > SIGNALLED);
    if interrupted && open.is_none() && !named {
        // The session goes on, and nobody else knows the request id: what was granted meanwhile is found by it and given back.
        let last = AcquireBody {
            wait_ms: None,
            ..body.clone()
        };
        let found = api
            .lock_server(servers, async |s| s.acquire(&key, &last, trace).await)
            .await;
        if let Some(token) = found.ok().and_then(|grant| http_contract::token(grant.token).ok()) {
            let release = api.lock_server(servers, async |s| s.release(&key, &last.session_id, token, trace).await);
            drop(release.await);
        }
    }
    if granted.is_err() && open.is_some() && !body.session_id.is_empty() {
        // Nobody else knows of it. What was granted without our hearing of it is given back with it.
        let close = api.lock_server(servers, async |s| s.close_session(&body.session_id, trace).await);
        drop(close.await);
    }
    granted
}

/// A signal that asks this process to end.
async fn ended() -> Signal {
    let listen = |kind| signal(kind).ok();
    let (interrupt, terminate) = (listen(SignalKind::interrupt()), listen(SignalKind::terminate()));
    let (Some(mut interrupt), Some(mut terminate)) = (interrupt, terminate) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => Signal::SIGINT,
        _ = terminate.recv() => Signal::SIGTERM,
    }
}

/// Whether the same call may do better a moment later.
fn is_outage(failure: &Failure) -> bool {
    let never = |problem: &http_contract::Problem| problem.code == Code::TokenRegression;
    failure.code() == UNAVAILABLE && !failure.problem().is_some_and(never)
}

async fn session(
    api: &Api,
    servers: &LockServerArgs,
    open: &OpenSessionRequest,
    until: Duration,
) -> Result<OpenSessionAnswer, Failure> {
    let clock = Clock::system();
    loop {
        let answer = api
            .lock_server(servers, async |s| s.open_session(open, &api.trace).await)
            .await;
        match answer {
            Err(failure) if is_outage(&failure) && clock.mono() + AGAIN < until => tokio::time::sleep(AGAIN).await,
            answer => return answer,
        }
    }
}

async fn granted(
    api: &Api,
    servers: &LockServerArgs,
    key: &LockKey,
    body: &mut AcquireBody,
    open: Option<&OpenSessionRequest>,
    until: Duration,
) -> Result<GrantAnswer, Failure> {
    let (clock, trace) = (Clock::system(), &api.trace);
    let mut wait_max = Duration::MAX;
    if let Some(open) = open {
        let opened = session(api, servers, open, until).await?;
        body.session_id = opened.session_id;
        // Waiting is no heartbeat: between two calls the session is given a life sign. One that exists has its own.
        wait_max = Duration::from_millis(opened.ttl_ms / 3);
    }
    if until > clock.mono() && body.request_id.is_none() {
        // Its calls are one acquire, with one place in the line.
        body.request_id = Some(Host::system().ids.prefixed("r"));
    }
    loop {
        let asked = clock.mono();
        let wait = until.saturating_sub(asked).min(wait_max);
        body.wait_ms = super::ms(Some(wait)).filter(|wait| *wait > 0);
        let answer = api
            .lock_server(servers, async |s| s.acquire(key, body, trace).await)
            .await;
        let failure = match answer {
            Ok(grant) => return Ok(grant),
            Err(failure) => failure,
        };
        let bound = failure.problem().and_then(lock_client::wait_bound);
        if let Some(bound) = bound.filter(|bound| *bound < wait) {
            // The server's own bound: each refusal names a smaller one than was asked for.
            wait_max = bound;
            continue;
        }
        if let Some(open) = open
            && failure
                .problem()
                .is_some_and(|problem| problem.code == Code::SessionNotFound)
            && clock.mono() < until
        {
            // An outage was longer than its TTL.
            body.session_id = session(api, servers, open, until).await?.session_id;
            continue;
        }
        let may_change = failure.code() == CONTENTION || is_outage(&failure);
        if !may_change || clock.mono() >= until {
            return Err(failure);
        }
        if clock.mono().saturating_sub(asked) < AGAIN {
            tokio::time::sleep(AGAIN.min(until.saturating_sub(clock.mono()))).await;
        }
        if open.is_some() {
            let alive = HeartbeatRequest { witness_token: None };
            // Not answered: the acquire says whether the session lives.
            drop(
                api.lock_server(servers, async |s| s.heartbeat(&body.session_id, &alive, trace).await)
                    .await,
            );
        }
    }
}
