//! The databases under a whole dlock are hurt, each fault of the catalogue once, while payouts are made and settled: dlock
//! is well again after each by itself, every payout is settled, and every invariant holds.
#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use futures_util::future::join;
use harness::chaos::catalogue;
use harness::chaos::driver::{Lived, live};
use harness::chaos::fault::{FaultRecord, Ground};
use harness::scenario::{Cx, Setup, StackKind, silent};
use harness::servers::{Backends, ServerOptions};
use harness::stack::processes::Lab;
use harness::stack::{Role, RunError, StackSpec, WorkerSpec, eventually};
use host_kit::Host;
use http_contract::payment::PayoutState;
use std::cell::{Cell, RefCell};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

/// How long a fault stays once its effect was seen.
const HOLD: Duration = Duration::from_secs(1);
/// Between two payouts.
const PAY_EVERY: Duration = Duration::from_millis(500);
/// Payouts that are made between two faults at the least, so that each fault strikes a dlock at work.
const BETWEEN: usize = 3;
/// How long a payout may take to be settled after the last fault. Generous: the machine may be busy.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);

/// Whether containers can be started. With `CI=true` a machine without Docker is a failure.
fn docker() -> bool {
    let answers = Command::new("docker").arg("version").output();
    if answers.is_ok_and(|output| output.status.success()) {
        return true;
    }
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "no Docker for this test: the faults of databases are of servers in containers"
    );
    eprintln!("\n*** SKIPPED: no Docker for this test: the faults of databases are of servers in containers ***\n");
    false
}

/// Pays out all the time until `over`, and answers what was asked for.
async fn paying(cx: &Cx<'_>, made: &RefCell<Vec<String>>, over: &Cell<bool>) -> Result<(), RunError> {
    for n in 0..4 {
        cx.account(&format!("account-{n}"), 10_000_000).await?;
    }
    while !over.get() {
        let n = made.borrow().len();
        let id = format!("payout-{n}");
        cx.payout(&id, &format!("account-{}", n % 4), 1_000).await?;
        made.borrow_mut().push(id);
        cx.host().clock.sleep(PAY_EVERY).await;
    }
    Ok(())
}

async fn faults(
    cx: &Cx<'_>,
    backends: &Backends,
    names: &[&str],
    made: &RefCell<Vec<String>>,
) -> Result<Vec<FaultRecord>, RunError> {
    let ground = Ground {
        stack: cx.stack,
        apis: &cx.apis,
        backends,
        store: backends.kind(),
        random: &cx.random,
    };
    let (host, began) = (cx.host(), cx.host().clock.mono());
    let mut records = Vec::new();
    for name in names {
        let entry = catalogue::named(name).unwrap();
        let wanted = made.borrow().len() + BETWEEN;
        eventually(host, "payouts between faults", SETTLED_WITHIN, async || {
            Ok((made.borrow().len() >= wanted).then_some(()))
        })
        .await?;
        let Lived { record, ill } = live(&ground, &entry, HOLD, began).await?;
        assert_eq!(ill, None);
        eprintln!(
            "| {} | {} | {} | {} |",
            record.kind, record.target, record.observed, record.recovered_ms
        );
        records.push(record);
    }
    Ok(records)
}

async fn settled(cx: &Cx<'_>, payout: &str) -> Result<(), RunError> {
    let what = format!("{payout} settled");
    eventually(cx.host(), &what, SETTLED_WITHIN, async || {
        let payout = cx.look(payout).await?;
        Ok(match payout.state {
            PayoutState::Posted | PayoutState::Failed => Some(()),
            _ => None,
        })
    })
    .await
}

async fn run(cx: Cx<'_>, backends: &Backends, names: &[&str]) -> Result<(), RunError> {
    for name in ["W1", "W2", "W3"] {
        cx.stack.worker(WorkerSpec::new(name, Role::Both)).await?;
    }
    let (made, over) = (RefCell::default(), Cell::new(false));
    let hurt = async {
        let records = faults(&cx, backends, names, &made).await;
        over.set(true);
        records
    };
    let (records, paid) = join(hurt, paying(&cx, &made, &over)).await;
    let records = records?;
    paid?;
    let made = made.into_inner();
    for payout in &made {
        settled(&cx, payout).await?;
    }
    for worker in cx.stack.workers() {
        let state = cx.stack.state(&worker)?;
        assert!(!state.ended(), "{worker}: {state:?}");
    }
    let (report, evidence) = cx.finish("faults", "the databases are hurt").await?;
    for check in &report.checks {
        assert_eq!(check.expected, check.measured, "{}", check.what);
    }
    for verdict in &report.verdicts {
        assert!(verdict.facts > 0 && verdict.violations.is_empty(), "{verdict:?}");
    }
    assert_eq!(records.len(), names.len());
    assert!(records.iter().all(|record| !record.observed.is_empty()));
    // A payout that the rail never got may be given up; it moved no money then.
    let mut posted = 0;
    for id in &made {
        let payout = evidence.payout(id).unwrap();
        let is_posted = payout.state == "POSTED";
        posted += usize::from(is_posted);
        let expected = if is_posted { (1, 2) } else { (0, 0) };
        assert_eq!((evidence.executions(id), evidence.legs(id)), expected, "{payout:?}");
    }
    assert!(posted > names.len(), "{posted} of {} were paid", made.len());
    eprintln!(
        "{} payouts, {posted} paid once, the others given up without a trace of money",
        made.len()
    );
    Ok(())
}

/// Starts servers, a stack on them, and hurts them in this order.
fn hurt(store: &str, names: &[&str]) {
    if !docker() {
        return;
    }
    // Kept where something is wrong.
    let dir = tempfile::tempdir().unwrap().keep();
    let seed = Host::system().random.below(u64::MAX);
    eprintln!("seed {seed}, in {}", dir.display());
    let outcome = actix_rt::System::new().block_on(async {
        let lab = Lab::new(common::binary(), Host::system())?;
        let backends = Rc::new(Backends::with(&lab, Some(store), None, &ServerOptions::for_faults()).await?);
        let setup = Setup {
            lab,
            stack: StackKind::Processes,
            root: dir.clone(),
            seed,
            backends: Rc::clone(&backends),
            say: silent(),
            hold: None,
        };
        // Leases that a busy machine keeps between two faults: what is to be seen is that nothing breaks, not that nothing
        // is done.
        let spec = StackSpec::quick()
            .patient()
            .with("lock.session.ttl", "6s")
            .with("lock.grant.ttl", "6s")
            .with("lock.heartbeat.interval", "1s");
        setup
            .run("faults", spec, async |cx| run(cx, &backends, names).await)
            .await
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// What of the catalogue is not struck here is listed by name, so that a new kind is not forgotten.
#[test]
fn every_fault_of_a_database_is_struck() {
    let mut struck: Vec<&str> = PG.iter().chain(ETCD).copied().collect();
    struck.sort_unstable();
    let entries = catalogue::all();
    let mut there: Vec<&str> = entries
        .iter()
        .map(|entry| entry.kind.name)
        .filter(|name| name.starts_with("postgres.") || name.starts_with("etcd."))
        .collect();
    there.sort_unstable();
    assert_eq!(struck, there);
}

const PG: &[&str] = &[
    "postgres.restart_fast",
    "postgres.restart_immediate",
    "postgres.kill",
    "postgres.pause",
    "postgres.connections_terminated",
    "postgres.too_many_connections",
    "postgres.lock_held",
    "postgres.ledger_locked",
    "postgres.read_only",
    "postgres.commit_delayed",
    "postgres.disk_full",
    "postgres.dump_restored",
    "postgres.standby_promoted",
];

const ETCD: &[&str] = &[
    "etcd.leader_killed",
    "etcd.leader_paused",
    "etcd.leader_cut_off",
    "etcd.quorum_lost",
    "etcd.compaction",
    "etcd.defragmentation",
    "etcd.space_alarm",
    "etcd.member_replaced",
    "etcd.snapshot_restored",
];

#[test]
fn postgresql_is_hurt_and_every_payout_is_paid_once() {
    hurt("pg", PG);
}

#[test]
#[cfg(feature = "etcd")]
fn etcd_is_hurt_and_every_payout_is_paid_once() {
    hurt("etcd", ETCD);
}
