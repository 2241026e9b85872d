//! Open and closed loop of acquire+release, and heartbeats.

use super::server::{CALL_WITHIN, Server, between};
use super::{BenchPlan, ClosedLoop, Latency, OpenLoop, histogram};
use crate::stack::RunError;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hdrhistogram::Histogram;
use host_kit::{Clock, Host};
use http_client::{CallError, Caller, ClientOptions, LockServerApi};
use http_contract::lock::{AcquireBody, HeartbeatRequest, OpenSessionRequest};
use lock_api::LockKey;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Sessions that share the open loop's load.
const SESSIONS: usize = 32;
/// The TTL of the driver's sessions and grants: far beyond any load's length.
const TTL_MS: u64 = 300_000;

/// What one load measured.
struct Measured {
    acquire: Histogram<u64>,
    release: Histogram<u64>,
    pair: Histogram<u64>,
    heartbeat: Histogram<u64>,
    errors: BTreeMap<String, u64>,
}

impl Measured {
    fn new() -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            acquire: histogram(),
            release: histogram(),
            pair: histogram(),
            heartbeat: histogram(),
            errors: BTreeMap::new(),
        }))
    }

    fn failed(&mut self, error: &CallError) {
        *self.errors.entry(kind(error)).or_default() += 1;
    }
}

/// A failure in a word that does not differ from call to call.
pub(super) fn kind(error: &CallError) -> String {
    match error {
        CallError::Problem(problem) => problem.code.to_string(),
        CallError::NotSent(_) => "not sent".to_owned(),
        CallError::Ambiguous(_) => "no answer".to_owned(),
        CallError::Garbled { status, .. } => format!("unreadable answer, status {status}"),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A client with connections of its own.
pub(super) fn api(server: &Server, connections: usize) -> LockServerApi {
    let options = ClientOptions {
        connections_max: connections,
        ..ClientOptions::default()
    };
    let base = server.apis().locks.caller().base().to_owned();
    LockServerApi::new(Caller::new(http_client::client(&options), base, CALL_WITHIN))
}

pub(super) async fn open_session(server: &Server, api: &LockServerApi, ttl_ms: u64) -> Result<String, RunError> {
    let body = OpenSessionRequest {
        owner: "bench".to_owned(),
        ttl_ms: Some(ttl_ms),
        metadata: None,
    };
    api.open_session(&body, &server.apis().trace())
        .await
        .map(|session| session.session_id)
        .map_err(RunError::call("opening a session"))
}

async fn sessions(server: &Server, api: &LockServerApi, n: usize) -> Result<Vec<String>, RunError> {
    let opened = (0..n).map(|_| open_session(server, api, TTL_MS));
    futures_util::future::try_join_all(opened).await
}

fn key(load: &str, n: u64) -> LockKey {
    LockKey::new(format!("bench:{load}:{n}")).expect("a short name without control characters is a key")
}

pub(super) fn acquire_body(session: &str, ttl_ms: u64) -> AcquireBody {
    AcquireBody {
        session_id: session.to_owned(),
        request_id: None,
        ttl_ms: Some(ttl_ms),
        wait_ms: None,
        witness_token: None,
        lock_delay_ms: None,
        metadata: None,
    }
}

/// One acquire and its release. `due` is when it was meant to begin; nothing is recorded before `from`.
async fn pair(
    server: &Server,
    api: &LockServerApi,
    clock: &Clock,
    session: &str,
    key: &LockKey,
    (due, from): (Duration, Duration),
    measured: &RefCell<Measured>,
) {
    let trace = server.apis().trace();
    let grant = match api.acquire(key, &acquire_body(session, TTL_MS), &trace).await {
        Ok(grant) => grant,
        Err(error) => return measured.borrow_mut().failed(&error),
    };
    let granted = clock.mono();
    let token = match http_contract::token(grant.token) {
        Ok(token) => token,
        Err(error) => {
            *measured.borrow_mut().errors.entry(error.to_string()).or_default() += 1;
            return;
        }
    };
    let released = api.release(key, session, token, &trace).await;
    let done = clock.mono();
    let mut measured = measured.borrow_mut();
    match released {
        Ok(_) if due >= from => {
            measured.acquire.saturating_record(micros(granted.saturating_sub(due)));
            measured.release.saturating_record(micros(done.saturating_sub(granted)));
            measured.pair.saturating_record(micros(done.saturating_sub(due)));
        }
        Ok(_) => {}
        Err(error) => measured.failed(&error),
    }
}

async fn heartbeat(
    server: &Server,
    api: &LockServerApi,
    clock: &Clock,
    session: &str,
    (due, from): (Duration, Duration),
    measured: &RefCell<Measured>,
) {
    let answer = api
        .heartbeat(session, &HeartbeatRequest::default(), &server.apis().trace())
        .await;
    let done = clock.mono();
    let mut measured = measured.borrow_mut();
    match answer {
        Ok(_) if due >= from => measured.heartbeat.saturating_record(micros(done.saturating_sub(due))),
        Ok(_) => {}
        Err(error) => measured.failed(&error),
    }
}

/// Starts what is due at `rate` a second until `end`, however long each takes, and returns when all are done.
async fn at_rate<F: Future<Output = ()>>(
    clock: &Clock,
    rate: u32,
    (begin, end): (Duration, Duration),
    mut start: impl FnMut(u64, Duration) -> F,
) {
    if rate == 0 {
        return;
    }
    let mut running = FuturesUnordered::new();
    for n in 0.. {
        let due = begin + Duration::from_nanos(n * 1_000_000_000 / u64::from(rate));
        if due >= end {
            break;
        }
        // What runs goes on while the next is not yet due; what is overdue starts at once, its delay counted.
        while let Some(wait) = due.checked_sub(clock.mono()).filter(|wait| !wait.is_zero()) {
            if running.is_empty() {
                clock.sleep(wait).await;
            } else {
                tokio::select! {
                    biased;
                    () = clock.sleep(wait) => {}
                    _ = running.next() => {}
                }
            }
        }
        running.push(start(n, due));
    }
    while running.next().await.is_some() {}
}

pub(super) async fn open_loop(server: &Server, host: &Host, plan: &BenchPlan) -> Result<OpenLoop, RunError> {
    let api = api(server, 1024);
    let sessions = sessions(server, &api, SESSIONS).await?;
    let clock = &host.clock;
    let measured = Measured::new();
    let before = server.batch_totals().await;
    let begin = clock.mono();
    let (from, end) = (begin + plan.warm_up, begin + plan.warm_up + plan.for_);
    let pairs = at_rate(clock, plan.rate, (begin, end), |n, due| {
        let (api, sessions, measured) = (&api, &sessions, &measured);
        async move {
            let session = &sessions[usize::try_from(n).unwrap_or(0) % sessions.len()];
            pair(
                server,
                api,
                clock,
                session,
                &key("open", n % 5_000),
                (due, from),
                measured,
            )
            .await;
        }
    });
    let heartbeats = at_rate(clock, plan.heartbeat_rate, (begin, end), |n, due| {
        let (api, sessions, measured) = (&api, &sessions, &measured);
        async move {
            let session = &sessions[usize::try_from(n).unwrap_or(0) % sessions.len()];
            heartbeat(server, api, clock, session, (due, from), measured).await;
        }
    });
    futures_util::future::join(pairs, heartbeats).await;
    let after = server.batch_totals().await;
    let measured = measured.borrow();
    Ok(OpenLoop {
        rate_per_s: plan.rate,
        heartbeat_rate_per_s: plan.heartbeat_rate,
        acquire: Latency::of(&measured.acquire),
        release: Latency::of(&measured.release),
        pair: Latency::of(&measured.pair),
        heartbeat: Latency::of(&measured.heartbeat),
        errors: measured.errors.clone(),
        batches: between(&before, &after),
    })
}

pub(super) async fn closed_loop(
    server: &Server,
    host: &Host,
    clients: usize,
    plan: &BenchPlan,
) -> Result<ClosedLoop, RunError> {
    let api = api(server, clients.max(1));
    let sessions = sessions(server, &api, clients).await?;
    let clock = &host.clock;
    let measured = Measured::new();
    let before = server.batch_totals().await;
    let begin = clock.mono();
    let (from, end) = (begin + plan.warm_up, begin + plan.warm_up + plan.for_);
    let load = format!("closed:{clients}");
    let running = sessions.iter().enumerate().map(|(n, session)| {
        let (api, measured, load) = (&api, &measured, &load);
        async move {
            let key = key(load, u64::try_from(n).unwrap_or(0));
            while clock.mono() < end {
                pair(server, api, clock, session, &key, (clock.mono(), from), measured).await;
            }
        }
    });
    futures_util::future::join_all(running).await;
    let took = clock.mono().saturating_sub(from).as_secs_f64();
    let after = server.batch_totals().await;
    let measured = measured.borrow();
    #[allow(clippy::cast_precision_loss, reason = "a count of pairs, far below 2^52")]
    let pairs = measured.pair.len() as f64;
    Ok(ClosedLoop {
        clients,
        pairs_per_s: pairs / took,
        pair: Latency::of(&measured.pair),
        errors: measured.errors.clone(),
        batches: between(&before, &after),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_loop_starts_what_is_due_however_slow_the_rest_is() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let clock = Clock::tokio();
            let (begin, started) = (clock.mono(), RefCell::new(Vec::new()));
            at_rate(&clock, 10, (begin, begin + Duration::from_secs(1)), |_, due| {
                started.borrow_mut().push((due - begin, clock.mono() - begin));
                // Each takes longer than the whole load.
                clock.sleep(Duration::from_secs(5))
            })
            .await;
            let started = started.into_inner();
            assert_eq!(started.len(), 10);
            for (due, at) in started {
                assert!(
                    at >= due && at - due <= Duration::from_millis(2),
                    "due {due:?}, started {at:?}"
                );
            }
        });
    }
}
