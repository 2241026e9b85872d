//! Many live keys: every session holds some and heartbeats; nobody acquires any more. Errors, latencies and the
//! server's memory per live key.

use super::load::{acquire_body, api, kind, open_session};
use super::server::Server;
use super::{Latency, LiveKeys, LivePlan, histogram};
use crate::stack::RunError;
use hdrhistogram::Histogram;
use host_kit::Host;
use http_client::LockServerApi;
use http_contract::lock::HeartbeatRequest;
use lock_api::LockKey;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::Semaphore;

/// How many calls are in flight while sessions are opened and keys are taken.
const AT_ONCE: usize = 64;
/// Connections of the driver.
const CONNECTIONS: usize = 512;
/// The longest TTL that the server's defaults allow.
const TTL_MAX_MS: u64 = 300_000;

/// What all sessions share.
struct Load<'a> {
    server: &'a Server,
    host: &'a Host,
    api: LockServerApi,
    plan: LivePlan,
    for_: Duration,
    say: &'a dyn Fn(&str),
    opening: Semaphore,
    opened: Cell<usize>,
    /// From when on heartbeats are measured, known once every session is open.
    from: Cell<Option<Duration>>,
    rss_open_kib: Cell<Option<u64>>,
    measured: RefCell<Measured>,
}

struct Measured {
    latencies: Histogram<u64>,
    errors: BTreeMap<String, u64>,
    answered: u64,
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) async fn run(
    server: &Server,
    host: &Host,
    plan: LivePlan,
    for_: Duration,
    say: &dyn Fn(&str),
) -> Result<LiveKeys, RunError> {
    let rss_before_kib = server.rss_kib();
    say(&format!(
        "opening {} sessions that hold {} keys",
        plan.sessions, plan.keys
    ));
    let load = Load {
        server,
        host,
        api: api(server, CONNECTIONS),
        plan,
        for_,
        say,
        opening: Semaphore::new(AT_ONCE),
        opened: Cell::new(0),
        from: Cell::new(None),
        rss_open_kib: Cell::new(None),
        measured: RefCell::new(Measured {
            latencies: histogram(),
            errors: BTreeMap::new(),
            answered: 0,
        }),
    };
    let held = futures_util::future::try_join_all((0..plan.sessions).map(|n| load.session(n))).await?;
    let rss_live_kib = server.rss_kib().max(load.rss_open_kib.get());
    let bytes_per_live_key = match (rss_before_kib, rss_live_kib) {
        (Some(before), Some(with)) if plan.keys > 0 => {
            Some(with.saturating_sub(before) * 1024 / u64::try_from(plan.keys).unwrap_or(u64::MAX))
        }
        _ => None,
    };
    let measured = load.measured.into_inner();
    Ok(LiveKeys {
        keys: plan.keys,
        sessions: plan.sessions,
        heartbeat_ms: ms(plan.heartbeat),
        heartbeats: measured.answered,
        heartbeat: Latency::of(&measured.latencies),
        errors: measured.errors,
        held_at_end: held.into_iter().sum(),
        rss_before_kib,
        rss_live_kib,
        bytes_per_live_key,
    })
}

impl Load<'_> {
    /// One session: opens, takes its keys, and heartbeats until the measured time is over. Answers how many grants its
    /// last heartbeat showed.
    async fn session(&self, n: usize) -> Result<usize, RunError> {
        let clock = &self.host.clock;
        let session = self.open(n).await?;
        let mut due = clock.mono() + self.plan.heartbeat;
        self.opened.set(self.opened.get() + 1);
        if self.opened.get() == self.plan.sessions {
            self.rss_open_kib.set(self.server.rss_kib());
            self.from.set(Some(clock.mono()));
            (self.say)(&format!(
                "heartbeating every {:?} for {:?}",
                self.plan.heartbeat, self.for_
            ));
        }
        let mut held = 0;
        // Each beats from the moment it was opened, so that they are spread as they came.
        while self.from.get().is_none_or(|from| due < from + self.for_) {
            if let Some(wait) = due.checked_sub(clock.mono()) {
                clock.sleep(wait).await;
            }
            held = self.beat(&session, due).await;
            due += self.plan.heartbeat;
        }
        Ok(held)
    }

    async fn open(&self, n: usize) -> Result<String, RunError> {
        let _turn = self
            .opening
            .acquire()
            .await
            .map_err(|closed| RunError::Other(closed.to_string()))?;
        // Three missed heartbeats end a session, as in the defaults. Nobody renews a grant here, so that each
        // lives as long as it may.
        let session = open_session(self.server, &self.api, ms(self.plan.heartbeat * 3)).await?;
        for number in (n..self.plan.keys).step_by(self.plan.sessions) {
            let key = LockKey::new(format!("live:{number}")).expect("a short name without control characters is a key");
            self.api
                .acquire(&key, &acquire_body(&session, TTL_MAX_MS), &self.server.apis().trace())
                .await
                .map_err(RunError::call(format!("acquiring live:{number}")))?;
        }
        Ok(session)
    }

    async fn beat(&self, session: &str, due: Duration) -> usize {
        let answer = self
            .api
            .heartbeat(session, &HeartbeatRequest::default(), &self.server.apis().trace())
            .await;
        let took = self.host.clock.mono().saturating_sub(due);
        let measured = &mut *self.measured.borrow_mut();
        match answer {
            Ok(answer) => {
                if self.from.get().is_some_and(|from| due >= from) {
                    measured.answered += 1;
                    let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
                    measured.latencies.saturating_record(took);
                }
                answer.held.len()
            }
            Err(error) => {
                *measured.errors.entry(kind(&error)).or_default() += 1;
                0
            }
        }
    }
}
