//! Each fault of the actors, the rail and the operator once, on a live stack with two workers and payouts: injected, its
//! effect seen, taken back; afterwards everything is settled and every invariant holds.
#![cfg(feature = "lab")]
#![allow(clippy::unwrap_used, reason = "tests")]

use harness::chaos::catalogue;
use harness::chaos::driver::{self, Lived};
use harness::chaos::fault::{FaultRecord, Ground, Level, SHOWS_WITHIN, StoreKind};
use harness::evidence::Apis;
use harness::report::ScenarioReport;
use harness::scenario::{Cx, Setup, StackKind, silent};
use harness::servers::Backends;
use harness::stack::processes::Lab;
use harness::stack::{Role, RunError, StackSpec, WorkerSpec, eventually};
use host_kit::Host;
use http_client::PayoutFilter;
use http_contract::payment::PayoutState;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// How long each fault lasts once it was seen.
const HOLD: Duration = Duration::from_millis(500);
/// The accounts of the load.
const ACCOUNTS: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

/// Awaits that every payout is settled: the load's and those of the faults. One that a proxy had forwarded and could not
/// follow to an outcome may lawfully end with a human.
async fn quiet(cx: &Cx<'_>) -> Result<(), RunError> {
    eventually(cx.host(), "every payout settled", SHOWS_WITHIN, async || {
        let (trace, all) = (cx.apis.trace(), PayoutFilter::default());
        let Ok(page) = cx.apis.payments.payouts(&all, 1_000, None, &trace).await else {
            return Ok(None);
        };
        let settled = page.items.iter().all(|payout| match payout.state {
            PayoutState::Posted | PayoutState::Failed => true,
            PayoutState::RailAmbiguous => payout.escalated_at.is_some(),
            _ => false,
        });
        Ok(settled.then_some(()))
    })
    .await
}

async fn each_once(cx: Cx<'_>, backends: &Backends, level: Level) -> Result<ScenarioReport, RunError> {
    let began = cx.host().clock.mono();
    for account in ACCOUNTS {
        cx.account(account, 100_000_000).await?;
    }
    for worker in ["W1", "W2"] {
        cx.stack.worker(WorkerSpec::new(worker, Role::Both)).await?;
    }
    let entries = catalogue::all();
    let entries: Vec<_> = entries.into_iter().filter(|entry| entry.kind.level == level).collect();
    assert!(!entries.is_empty());
    let mut records: Vec<FaultRecord> = Vec::new();
    for (n, entry) in entries.iter().enumerate() {
        for account in ACCOUNTS {
            cx.payout(&format!("load-{n:02}-{account}"), account, 1_000).await?;
        }
        let apis = Apis::new(&cx.stack.links(), cx.host());
        let ground = Ground {
            stack: cx.stack,
            apis: &apis,
            backends,
            store: StoreKind::Sqlite,
            random: &cx.random,
        };
        let Lived { record, ill } = driver::live(&ground, entry, HOLD, began).await?;
        assert_eq!(ill, None);
        println!("{} on {}: {}", record.kind, record.target, record.observed);
        assert!(!record.observed.is_empty());
        records.push(record);
    }
    quiet(&cx).await?;
    let (mut report, evidence) = cx.finish("chaos", "each fault of a level once").await?;
    report.compare("faults seen", entries.len(), records.len());
    for payout in &evidence.payouts {
        let id = &payout.payout_id;
        let found = (evidence.executions(id), evidence.legs(id));
        let once = match payout.state.as_str() {
            "POSTED" => (1, 2),
            // Nobody knows; the rail may have it, the ledger must not.
            "RAIL_AMBIGUOUS" => (found.0.min(1), 0),
            _ => (0, 0),
        };
        report.compare(format!("{id}: executions, legs"), once, found);
    }
    Ok(report)
}

fn run(level: Level) {
    actix_rt::System::new().block_on(async {
        let host = Host::system();
        let seed = host.random.below(1_000_000);
        println!("seed {seed}");
        let dir = tempfile::tempdir().unwrap();
        let lab = Lab::new(PathBuf::from(env!("CARGO_BIN_EXE_dlock")), host).unwrap();
        let backends = Rc::new(Backends::embedded(&lab));
        let setup = Setup {
            lab,
            stack: StackKind::Processes,
            root: dir.path().to_owned(),
            seed,
            backends: backends.clone(),
            say: silent(),
            hold: None,
        };
        // Leases that a busy machine does not lose by itself: only the faults end them early.
        let mut spec = StackSpec::quick()
            .controlled()
            .with("lock.session.ttl", "5s")
            .with("lock.grant.ttl", "5s");
        if level != Level::Rail {
            // Nobody gives the rail up while it keeps a fault's own payout waiting.
            spec = spec
                .with("rail.read-timeout", "4s")
                .with("executor.rail-timeout", "6s")
                .with("rail.visibility-horizon", "5s");
        }
        let report = setup.run("level", spec, async |cx| each_once(cx, &backends, level).await);
        match report.await {
            Ok(report) => assert!(report.ok(), "{:#?}", report.complaints()),
            Err(error) => {
                let kept = dir.keep();
                unreachable!("{error}; kept in {}", kept.display());
            }
        }
    });
}

#[test]
fn each_fault_of_an_actor_is_seen_and_nothing_is_lost() {
    run(Level::Actor);
}

#[test]
fn each_fault_of_the_rail_is_seen_and_nothing_is_lost() {
    run(Level::Rail);
}

#[test]
fn each_fault_of_an_operator_is_seen_and_nothing_is_lost() {
    run(Level::Operator);
}
