//! UC-07, backend failover.
//!
//! The lock store's own servers fail over while workers pay, clients hold grants and others take and give keys back all
//! the time: of a cluster of three etcd members the leader is killed, paused until it is deposed, and cut off from its
//! peers while clients still reach it; of a PostgreSQL primary with a synchronous standby the primary is killed and the
//! standby promoted. No grant is lost, no token comes out of order, every payout is paid once; how long nobody was
//! granted anything is measured (NFR-02).

use super::{CURRENCY, Cx, SETTLE_WITHIN, Setup};
use crate::evidence::Apis;
use crate::history::Invocation;
use crate::report::{Measured, ScenarioReport};
use crate::servers::docker::Docker;
use crate::servers::etcd::{EtcdCluster, EtcdOptions};
use crate::servers::postgres::{Postgres, PostgresOptions};
use crate::servers::{Backends, LockBackend, PayBackend};
use crate::stack::{Role, RunError, StackSpec, WorkerSpec, eventually};
use futures_util::future::{join, join_all};
use http_client::CallError;
use http_contract::lock::{AcquireBody, HeartbeatRequest, OpenSessionRequest, RenewBody};
use http_contract::payment::PayoutState;
use lock_api::LockKey;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// What fails over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failover {
    /// Three etcd members.
    Etcd,
    /// A PostgreSQL primary and its synchronous standby.
    Pg,
}

impl Failover {
    /// What `--store` names. UC-07 hurts its servers, so it starts its own.
    ///
    /// # Errors
    /// What to say instead.
    pub fn of(store: Option<&str>) -> Result<Self, RunError> {
        match store {
            Some("etcd") => Ok(Self::Etcd),
            Some("pg") => Ok(Self::Pg),
            _ => Err(RunError::Other(
                "UC-07 needs a backend that can fail over, and starts servers of its own to hurt them: say --store etcd \
                 or --store pg"
                    .to_owned(),
            )),
        }
    }
}

/// A session that the failover must outlive: longer than an election and a promotion take on a busy machine.
const TTL: &str = "20s";
const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);
/// Clients that take and give back keys of their own all the time.
const PROBES: usize = 4;
const PROBE_PAUSE: Duration = Duration::from_millis(20);
/// Clients that hold one key from the beginning to the end.
const HOLDERS: usize = 4;
/// How long a leader is paused or cut off: long enough for another to be elected.
const AWAY: Duration = Duration::from_secs(5);
/// What has to be granted before a fault and after it.
const STEADY_GRANTS: u64 = 100;
/// NFR-02, of etcd; a database is promoted by hand or by whoever watches it, so nothing is wanted there.
const ETCD_WANTED_MS: u64 = 2_000;

/// Both fences on, and a lock server that gives a call up soon enough to try another member.
fn spec() -> StackSpec {
    StackSpec::quick()
        .patient()
        .with("lock.session.ttl", TTL)
        .with("lock.grant.ttl", TTL)
        .with("lock.heartbeat.interval", "2s")
        .with("lock.store.timeout", "1s")
}

/// Runs it on servers of its own.
///
/// # Errors
/// When it cannot be run.
pub async fn run(setup: &Setup, failover: Failover) -> Result<ScenarioReport, RunError> {
    let host = setup.lab.host();
    let docker = Docker::connect(&setup.lab).await?;
    let on = |lock, postgres, etcd| {
        let mut backends = Backends::embedded(&setup.lab);
        (backends.lock, backends.pay) = (lock, PayBackend::Embedded);
        // A stack of containers finds them in their own networks.
        (backends.postgres, backends.etcd) = (postgres, etcd);
        Setup {
            backends: Rc::new(backends),
            ..setup.clone()
        }
    };
    match failover {
        Failover::Etcd => {
            let options = EtcdOptions {
                members: 3,
                ..EtcdOptions::default()
            };
            let cluster = EtcdCluster::start(&docker, host, &options).await?;
            let report = on(LockBackend::Etcd(cluster.url()), None, Some(cluster.clone()))
                .run("uc-07", spec(), async |cx| etcd(cx, &cluster).await)
                .await;
            told(
                report,
                join_all(cluster.members.iter().map(|member| member.log_tail())).await,
            )
        }
        Failover::Pg => {
            let options = PostgresOptions {
                standby: true,
                ..PostgresOptions::default()
            };
            let pair = Postgres::start(&docker, host, &options).await?;
            let report = on(LockBackend::Pg(pair.url()), Some(pair.clone()), None)
                .run("uc-07", spec(), async |cx| pg(cx, &pair).await)
                .await;
            told(report, vec![pair.primary().container.log_tail().await])
        }
    }
}

/// A run that could not be made says what the servers said last.
fn told(report: Result<ScenarioReport, RunError>, logs: Vec<String>) -> Result<ScenarioReport, RunError> {
    report.map_err(|error| RunError::Other(format!("{error}\nthe servers' logs end with:\n{}", logs.join("\n…\n"))))
}

async fn etcd(cx: Cx<'_>, cluster: &EtcdCluster) -> Result<ScenarioReport, RunError> {
    let host = cx.host().clone();
    let faults = async |watch: &Watch| {
        let mut measured = Vec::new();
        let leader = cluster.leader(&host, &[]).await?;
        let mut gap = watch.fault(&cx, "the leader is killed").await?;
        cluster.members[leader].kill().await?;
        cluster.leader(&host, &[leader]).await?;
        measured.push(gap.over(&cx).await?);
        cluster.members[leader].restart().await?;
        cluster.healthy(&host).await?;

        let leader = cluster.leader(&host, &[]).await?;
        gap = watch
            .fault(&cx, "the leader is paused until it is deposed, and comes back")
            .await?;
        cluster.members[leader].pause().await?;
        cluster.leader(&host, &[leader]).await?;
        host.clock.sleep(AWAY).await;
        cluster.members[leader].resume().await?;
        measured.push(gap.over(&cx).await?);
        cluster.healthy(&host).await?;

        let leader = cluster.leader(&host, &[]).await?;
        gap = watch
            .fault(
                &cx,
                "the leader is cut off from its peers, while clients still reach it",
            )
            .await?;
        cluster.cut_off(leader).await?;
        cluster.leader(&host, &[leader]).await?;
        host.clock.sleep(AWAY).await;
        cluster.heal(leader).await?;
        measured.push(gap.over(&cx).await?);
        cluster.healthy(&host).await?;
        Ok(measured)
    };
    let seen = through(&cx, Some(ETCD_WANTED_MS), faults).await?;
    finish(cx, seen).await
}

async fn pg(cx: Cx<'_>, pair: &Postgres) -> Result<ScenarioReport, RunError> {
    let faults = async |watch: &Watch| {
        let gap = watch
            .fault(&cx, "the primary is killed and the standby promoted")
            .await?;
        pair.primary().container.kill().await?;
        pair.promote().await?;
        Ok(vec![gap.over(&cx).await?])
    };
    let seen = through(&cx, None, faults).await?;
    finish(cx, seen).await
}

/// What was seen from the beginning to the end.
struct Seen {
    measured: Vec<Measured>,
    payouts: Vec<String>,
    granted: u64,
    out_of_order: u64,
    held: usize,
    renew_refused: u64,
}

/// Lets workers pay, holders hold and probes take and give, while the servers are hurt.
async fn through(
    cx: &Cx<'_>,
    wanted_ms: Option<u64>,
    faults: impl AsyncFnOnce(&Watch) -> Result<Vec<Measured>, RunError>,
) -> Result<Seen, RunError> {
    cx.account("alpha", 10_000_000).await?;
    cx.stack.worker(WorkerSpec::new("W1", Role::Both)).await?;
    cx.stack.worker(WorkerSpec::new("W2", Role::Both)).await?;
    let watch = Watch::new(cx, wanted_ms);
    let holders = join_all((0..HOLDERS).map(|n| Holder::open(&cx.apis, n))).await;
    let holders: Vec<Holder> = holders.into_iter().collect::<Result<_, _>>()?;
    cx.step(format!(
        "two workers pay, {HOLDERS} clients hold a key each, {PROBES} take and give keys back all the time"
    ));
    let payouts = RefCell::new(Vec::new());
    let hurt = async {
        let measured = faults(&watch).await;
        watch.over.set(true);
        measured
    };
    let background = async {
        let holding = join_all(holders.iter().map(|holder| holder.keep(cx, &watch)));
        let probing = join_all((0..PROBES).map(|n| probe(cx, &watch, n)));
        let paying = async {
            while !watch.over.get() {
                let id = format!("uc07-{}", payouts.borrow().len() + 1);
                cx.payout(&id, "alpha", 1_000).await?;
                payouts.borrow_mut().push(id);
                cx.host().clock.sleep(Duration::from_millis(500)).await;
            }
            Ok::<_, RunError>(())
        };
        let (paid, (refused, probed)) = join(paying, join(holding, probing)).await;
        paid?;
        probed.into_iter().collect::<Result<Vec<()>, _>>()?;
        Ok::<u64, RunError>(refused.into_iter().sum())
    };
    let (measured, renew_refused) = join(hurt, background).await;
    let (measured, renew_refused) = (measured?, renew_refused?);
    let mut held = 0;
    for holder in &holders {
        held += usize::from(holder.holds(cx).await?);
    }
    let payouts = payouts.into_inner();
    for payout in &payouts {
        cx.await_state(payout, PayoutState::Posted).await?;
    }
    cx.step(format!("{} payouts are paid", payouts.len()));
    Ok(Seen {
        measured,
        payouts,
        granted: watch.granted.get(),
        out_of_order: watch.out_of_order.get(),
        held,
        renew_refused,
    })
}

async fn finish(cx: Cx<'_>, seen: Seen) -> Result<ScenarioReport, RunError> {
    cx.check("grants held from the beginning to the end", HOLDERS, seen.held);
    cx.check("renewals refused", 0, seen.renew_refused);
    cx.check("tokens out of order", 0, seen.out_of_order);
    let (mut report, evidence) = cx
        .finish(
            "UC-07",
            "the lock store failed over: no grant lost, no token out of order, every payout paid once",
        )
        .await?;
    report.compare(
        "payouts with one execution and two legs",
        seen.payouts.len(),
        seen.payouts
            .iter()
            .filter(|payout| evidence.executions(payout) == 1 && evidence.legs(payout) == 2)
            .count(),
    );
    report.compare("something was granted", true, seen.granted > STEADY_GRANTS);
    report.measured = seen.measured;
    Ok(report)
}

/// When somebody was granted something, and in which order.
struct Watch {
    /// On the monotonic clock.
    last: Cell<Duration>,
    longest: Cell<Duration>,
    granted: Cell<u64>,
    out_of_order: Cell<u64>,
    over: Cell<bool>,
    wanted_ms: Option<u64>,
}

impl Watch {
    fn new(cx: &Cx<'_>, wanted_ms: Option<u64>) -> Self {
        Self {
            wanted_ms,
            last: Cell::new(cx.host().clock.mono()),
            longest: Cell::default(),
            granted: Cell::default(),
            out_of_order: Cell::default(),
            over: Cell::default(),
        }
    }

    fn grant(&self, now: Duration) {
        self.longest
            .set(self.longest.get().max(now.saturating_sub(self.last.get())));
        self.last.set(now);
        self.granted.set(self.granted.get() + 1);
    }

    async fn steady(&self, cx: &Cx<'_>, what: &str) -> Result<(), RunError> {
        let before = self.granted.get();
        eventually(cx.host(), what, SETTLE_WITHIN, async || {
            Ok((self.granted.get() >= before + STEADY_GRANTS).then_some(()))
        })
        .await
    }

    /// Awaits a steady flow of grants; the fault comes next.
    async fn fault<'a>(&'a self, cx: &Cx<'_>, what: &'a str) -> Result<Gap<'a>, RunError> {
        self.steady(cx, "grants before a fault").await?;
        cx.step(what);
        self.longest.set(Duration::ZERO);
        Ok(Gap { watch: self, what })
    }
}

/// The time around a fault.
struct Gap<'a> {
    watch: &'a Watch,
    what: &'a str,
}

impl Gap<'_> {
    /// Awaits a steady flow again. Answers the longest time in which nobody was granted anything since the fault.
    async fn over(self, cx: &Cx<'_>) -> Result<Measured, RunError> {
        self.watch.steady(cx, "grants after a fault").await?;
        let ms = u64::try_from(self.watch.longest.get().as_millis()).unwrap_or(u64::MAX);
        cx.step(format!("keys are granted again; nothing was for {ms} ms"));
        Ok(Measured {
            what: format!("{}: nothing granted", self.what),
            ms,
            wanted_ms: self.watch.wanted_ms,
        })
    }
}

async fn session(apis: &Apis, owner: String) -> Result<String, RunError> {
    let open = OpenSessionRequest {
        owner,
        ttl_ms: None,
        metadata: None,
    };
    let opened = apis.locks.open_session(&open, &apis.trace()).await;
    Ok(opened.map_err(RunError::call("opening a session"))?.session_id)
}

fn body(session_id: &str, request_id: Option<String>) -> AcquireBody {
    AcquireBody {
        session_id: session_id.to_owned(),
        request_id,
        ttl_ms: None,
        wait_ms: None,
        witness_token: None,
        lock_delay_ms: None,
        metadata: None,
    }
}

/// Takes and gives back one key of its own until the run is over. Errors are what the failover is about; a token that
/// does not rise is counted.
async fn probe(cx: &Cx<'_>, watch: &Watch, n: usize) -> Result<(), RunError> {
    let (apis, host) = (&cx.apis, cx.host());
    let key = LockKey::new(format!("uc07:{CURRENCY}:probe:{n}")).map_err(|error| RunError::Other(error.to_string()))?;
    let session = session(apis, format!("probe-{n}")).await?;
    let (mut last_token, mut last_beat) = (0, host.clock.mono());
    while !watch.over.get() {
        if host.clock.mono().saturating_sub(last_beat) > HEARTBEAT_EVERY {
            last_beat = host.clock.mono();
            let beat = apis
                .locks
                .heartbeat(&session, &HeartbeatRequest::default(), &apis.trace())
                .await;
            if let Err(error) = beat {
                tracing::debug!(event = "probe_heartbeat", %error);
            }
        }
        // One logical acquire: asked again under its id until the answer is known.
        let request_id = host.ids.ulid();
        let token = loop {
            let seen = cx.recorder.invoke("acquire", Some(key.as_str()), None, None);
            match apis
                .locks
                .acquire(&key, &body(&session, Some(request_id.clone())), &apis.trace())
                .await
            {
                Ok(grant) => {
                    seen.ok(Some(grant.token));
                    break grant.token;
                }
                Err(error) => settle(seen, error)?,
            }
            if watch.over.get() {
                return Ok(());
            }
            host.clock.sleep(PROBE_PAUSE).await;
        };
        watch.grant(host.clock.mono());
        if token <= last_token {
            watch.out_of_order.set(watch.out_of_order.get() + 1);
        }
        last_token = token;
        let presented = http_contract::token(token).map_err(|error| RunError::Other(error.to_string()))?;
        loop {
            let seen = cx.recorder.invoke("release", Some(key.as_str()), Some(token), None);
            match apis.locks.release(&key, &session, presented, &apis.trace()).await {
                Ok(_) => {
                    seen.ok(None);
                    break;
                }
                Err(error) => settle(seen, error)?,
            }
            if watch.over.get() {
                return Ok(());
            }
            host.clock.sleep(PROBE_PAUSE).await;
        }
        host.clock.sleep(PROBE_PAUSE).await;
    }
    Ok(())
}

/// Writes a failed call of a probe into the history. A failover may make the service unavailable; a definite no means
/// that the probe's session or grant was lost.
fn settle(seen: Invocation<'_>, error: CallError) -> Result<(), RunError> {
    let lost = error.problem().is_some_and(|problem| problem.status < 500);
    let said = error.to_string();
    drop(super::record(seen, Err(error)));
    if lost {
        return Err(RunError::Other(format!("a probe lost what it held: {said}")));
    }
    Ok(())
}

/// Holds one key from the beginning to the end.
struct Holder {
    session: String,
    key: LockKey,
    token: u64,
}

impl Holder {
    async fn open(apis: &Apis, n: usize) -> Result<Self, RunError> {
        let key = LockKey::new(format!("uc07:held:{n}")).map_err(|error| RunError::Other(error.to_string()))?;
        let session = session(apis, format!("holder-{n}")).await?;
        let granted = apis.locks.acquire(&key, &body(&session, None), &apis.trace()).await;
        let token = granted.map_err(RunError::call("acquiring a holder's key"))?.token;
        Ok(Self { session, key, token })
    }

    /// Heartbeats and renews until the run is over. Answers how often a renewal was refused.
    async fn keep(&self, cx: &Cx<'_>, watch: &Watch) -> u64 {
        let (locks, host) = (&cx.apis.locks, cx.host());
        let mut refused = 0;
        let Ok(token) = http_contract::token(self.token) else {
            return 1;
        };
        while !watch.over.get() {
            let renew = RenewBody {
                session_id: self.session.clone(),
                ttl_ms: None,
            };
            let trace = cx.apis.trace();
            let beat = locks
                .heartbeat(&self.session, &HeartbeatRequest::default(), &trace)
                .await;
            let renewed = locks.renew(&self.key, token, &renew, &trace).await;
            for error in [beat.err(), renewed.err()].into_iter().flatten() {
                // Unavailable for a moment is what a failover is; a definite no is a loss.
                let lost = error.problem().is_some_and(|problem| problem.status < 500);
                refused += u64::from(lost);
                tracing::debug!(event = "holder_call_failed", key = %self.key, %error);
            }
            host.clock.sleep(HEARTBEAT_EVERY).await;
        }
        refused
    }

    /// Whether the key is still held by this session under its first token.
    async fn holds(&self, cx: &Cx<'_>) -> Result<bool, RunError> {
        let beat = cx
            .apis
            .locks
            .heartbeat(&self.session, &HeartbeatRequest::default(), &cx.apis.trace())
            .await;
        let beat = beat.map_err(RunError::call("a holder's last heartbeat"))?;
        Ok(beat
            .held
            .iter()
            .any(|held| held.key == self.key.as_str() && held.token == self.token))
    }
}
