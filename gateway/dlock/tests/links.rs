//! Every fault of a link, once, on a running dlock: injected, its effect seen, undone; then all payouts are settled, and
//! every invariant has held.
#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use harness::chaos::catalogue;
use harness::chaos::driver::{Lived, live};
use harness::chaos::fault::{Ground, Level};
use harness::scenario::{Cx, Setup, StackKind, silent};
use harness::servers::Backends;
use harness::stack::processes::Lab;
use harness::stack::{Role, RunError, StackSpec, WorkerSpec};
use harness::wire::{Wire, Wires};
use host_kit::{Host, Random};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// How long each fault is held at least once it was seen: several polls and renewals of a worker.
const HOLD: Duration = Duration::from_millis(300);
/// How much longer by chance, at most: some are held for longer than a lease lasts.
const HOLD_MORE: Duration = Duration::from_millis(1_700);
const ACCOUNTS: [&str; 3] = ["alpha", "beta", "gamma"];

/// Runs all of them and answers the kinds that were injected.
async fn all_links(store: &str) -> Vec<String> {
    let seed = Random::from_os().u64();
    println!("seed {seed}");
    let lab = Lab::new(PathBuf::from(env!("CARGO_BIN_EXE_dlock")), Host::system()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let backends = Rc::new(Backends::of(&lab, Some(store), None).await.unwrap());
    let setup = Setup {
        lab,
        stack: StackKind::Processes,
        root: dir.path().to_owned(),
        seed,
        backends: Rc::clone(&backends),
        say: silent(),
        hold: None,
    };
    let spec = StackSpec::quick().wired(seed);
    let run = setup.run("links", spec, async |cx| every_fault(cx, &backends, seed).await);
    match run.await {
        Ok(kinds) => kinds,
        Err(error) => {
            let kept = dir.keep();
            panic!("seed {seed}, kept in {}: {error}", kept.display());
        }
    }
}

async fn every_fault(cx: Cx<'_>, backends: &Backends, seed: u64) -> Result<Vec<String>, RunError> {
    for account in ACCOUNTS {
        cx.account(account, 10_000_000).await?;
    }
    for worker in ["W1", "W2"] {
        cx.stack.worker(WorkerSpec::new(worker, Role::Both)).await?;
    }
    let random = Random::seeded(seed);
    let ground = Ground {
        stack: cx.stack,
        apis: &cx.apis,
        backends,
        store: backends.kind(),
        random: &random,
    };
    let began = cx.host().clock.mono();
    let (mut kinds, mut payouts) = (Vec::new(), Vec::new());
    for entry in catalogue::available(ground.store, StackKind::Processes) {
        if entry.kind.level != Level::Link {
            continue;
        }
        // The work that the fault disturbs.
        for account in ACCOUNTS {
            let payout = format!("{}-{account}", entry.kind.name.replace(['.', '_'], "-"));
            cx.payout(&payout, account, 1_000).await?;
            payouts.push(payout);
        }
        let hold = HOLD + random.up_to(HOLD_MORE);
        let Lived { record, ill } = live(&ground, &entry, hold, began).await?;
        assert_eq!(ill, None);
        println!(
            "{} on {}: {}; recovered after {} ms",
            record.kind, record.target, record.observed, record.recovered_ms
        );
        assert!(!record.target.is_empty() && !record.observed.is_empty());
        kinds.push(record.kind);
    }
    for payout in &payouts {
        let settled = |state: &str| ["POSTED", "FAILED"].contains(&state);
        cx.await_payout(payout, "settled", |payout| settled(payout.state.as_str()))
            .await?;
    }
    let wires = cx.stack.wires().map(Wires::all).unwrap_or_default();
    let (report, evidence) = cx.finish("links", "every fault of a link, once").await?;
    for verdict in &report.verdicts {
        println!("{verdict:?}");
    }
    assert!(report.ok(), "seed {seed}: {}", report.text());
    let mut executions = 0;
    for payout in &payouts {
        let executed = evidence.executions(payout);
        assert!(executed <= 1, "seed {seed}: {payout}");
        executions += u64::try_from(executed).unwrap();
    }
    // The wires carried the work, not the probes alone: each execution, and the workers' heartbeats.
    let requests = |link: &str| carried(&wires, link);
    assert!(executions > 0 && requests("rail-proxy->rail-stub") >= executions);
    for worker in ["W1", "W2"] {
        assert!(requests(&format!("{worker}->lock-server")) > 20);
    }
    Ok(kinds)
}

fn carried(wires: &[Rc<Wire>], link: &str) -> u64 {
    let wire = wires.iter().find(|wire| wire.name() == link);
    wire.unwrap_or_else(|| panic!("there is no wire {link}"))
        .counts()
        .requests
}

fn run(store: &str) -> Vec<String> {
    actix_rt::System::new().block_on(all_links(store))
}

/// Whether containers can be started. With `CI=true` a machine without Docker is a failure.
fn docker() -> bool {
    let answers = std::process::Command::new("docker").arg("version").output();
    if answers.is_ok_and(|output| output.status.success()) {
        return true;
    }
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "no Docker for this test: it starts databases in containers"
    );
    eprintln!("\n*** SKIPPED: no Docker for this test: it starts databases in containers ***\n");
    false
}

#[test]
fn every_fault_of_a_link_is_survived_on_sqlite() {
    assert_eq!(run("sqlite").len(), 18);
}

#[test]
fn every_fault_of_a_link_is_survived_on_postgresql() {
    if docker() {
        let kinds = run("pg");
        assert!(kinds.contains(&"link.paydb_cut".to_owned()), "{kinds:?}");
        assert_eq!(kinds.len(), 21);
    }
}

#[test]
#[cfg(feature = "etcd")]
fn every_fault_of_a_link_is_survived_on_etcd() {
    if docker() {
        let kinds = run("etcd");
        assert!(kinds.contains(&"link.lockdb_swallow".to_owned()), "{kinds:?}");
        assert_eq!(kinds.len(), 20);
    }
}
