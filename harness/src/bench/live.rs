//! Many live keys: every session holds some and heartbeats; nobody acquires any more. Errors, latencies and the
//! server's memory per live key.

use super::load::{acquire_body, api, kind, open_session};
use super::server::Server;
use super::{Latency, LiveKeys, LivePlan, histogram};
use crate::stack::RunError;
use futures_util::{StreamExt, TryStreamExt};
use host_kit::Host;
use http_contract::lock::HeartbeatRequest;
use lock_api::LockKey;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

/// How many calls are in flight while sessions are opened and keys are taken.
const AT_ONCE: usize = 64;
/// Connections of the driver.
const CONNECTIONS: usize = 512;

pub(super) async fn run(
    server: &Server,
    host: &Host,
    plan: LivePlan,
    for_: Duration,
    say: &dyn Fn(&str),
) -> Result<LiveKeys, RunError> {
    let api = api(server, CONNECTIONS);
    let rss_before_kib = server.rss_kib();
    // Three missed heartbeats end a session, as in the defaults. A grant lives as long as the session's
    // whole run: nobody renews here.
    let session_ttl = u64::try_from((plan.heartbeat * 3).as_millis()).unwrap_or(u64::MAX);
    let grant_ttl = u64::try_from((for_ * 2).as_millis())
        .unwrap_or(u64::MAX)
        .clamp(session_ttl, 300_000);
    say(&format!(
        "opening {} sessions that hold {} keys",
        plan.sessions, plan.keys
    ));
    let clock = &host.clock;
    let opened: Vec<(String, Duration)> = futures_util::stream::iter(0..plan.sessions)
        .map(|n| {
            let api = &api;
            async move {
                let session = open_session(server, api, session_ttl).await?;
                for number in (n..plan.keys).step_by(plan.sessions) {
                    let key = LockKey::new(format!("live:{number}"))
                        .expect("a short name without control characters is a key");
                    api.acquire(&key, &acquire_body(&session, grant_ttl), &server.apis().trace())
                        .await
                        .map_err(RunError::call(format!("acquiring live:{number}")))?;
                }
                Ok::<_, RunError>((session, clock.mono()))
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    let rss_live_kib = server.rss_kib();
    say(&format!("heartbeating every {:?} for {for_:?}", plan.heartbeat));
    let measured = RefCell::new((histogram(), BTreeMap::<String, u64>::new(), 0_u64));
    let end = clock.mono() + for_;
    let beating = opened.iter().map(|(session, since)| {
        let (api, measured) = (&api, &measured);
        async move {
            let mut held = 0;
            // Each session beats from the moment it was opened, so that they are spread as they came.
            let mut due = *since + plan.heartbeat;
            while due < end {
                if let Some(wait) = due.checked_sub(clock.mono()) {
                    clock.sleep(wait).await;
                }
                let answer = api
                    .heartbeat(session, &HeartbeatRequest::default(), &server.apis().trace())
                    .await;
                let took = clock.mono().saturating_sub(due);
                let (latencies, errors, answered) = &mut *measured.borrow_mut();
                match answer {
                    Ok(answer) => {
                        held = answer.held.len();
                        *answered += 1;
                        latencies.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
                    }
                    Err(error) => {
                        held = 0;
                        *errors.entry(kind(&error)).or_default() += 1;
                    }
                }
                due += plan.heartbeat;
            }
            held
        }
    });
    let held_at_end = futures_util::future::join_all(beating).await.into_iter().sum();
    let (latencies, errors, heartbeats) = measured.into_inner();
    let rss_live_kib = server.rss_kib().max(rss_live_kib);
    let bytes_per_live_key = match (rss_before_kib, rss_live_kib) {
        (Some(before), Some(with)) if plan.keys > 0 => {
            Some(with.saturating_sub(before) * 1024 / u64::try_from(plan.keys).unwrap_or(u64::MAX))
        }
        _ => None,
    };
    Ok(LiveKeys {
        keys: plan.keys,
        sessions: plan.sessions,
        heartbeat_ms: u64::try_from(plan.heartbeat.as_millis()).unwrap_or(u64::MAX),
        heartbeats,
        heartbeat: Latency::of(&latencies),
        errors,
        held_at_end,
        rss_before_kib,
        rss_live_kib,
        bytes_per_live_key,
    })
}
