//! Kill and stop, with real processes: the store runs in a child that is this very test binary.

use crate::support::{Bench, claim, command, done};
use host_kit::{Faults, Host};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use payment_store::{Fencing, PaymentStore, PayoutState, PgPayments, PgPaymentsOptions, SqlitePayments, StepOutcome};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const CHILD_DIR: &str = "DLOCK_TEST_CHILD_DIR";
const CHILD_URL: &str = "DLOCK_TEST_CHILD_URL";
const CHILD_SCHEMA: &str = "DLOCK_TEST_CHILD_SCHEMA";
const CHILD_FAULTS: &str = "DLOCK_TEST_CHILD_FAULTS";

/// Starts the child on the bench's store; it claims P1, P2, … under rising tokens and prints each answer.
fn child(bench: &Bench, faults: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    match bench.on_server() {
        None => command.env(CHILD_DIR, bench.dir()),
        Some(schema) => command
            .env(CHILD_URL, schema.url_of(&schema.payment_role))
            .env(CHILD_SCHEMA, &schema.name),
    };
    command
        .args(["--exact", "processes::the_child", "--ignored", "--nocapture"])
        .env(CHILD_FAULTS, faults)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// How long a call of the child may take: what it holds when it is stopped is held no longer.
const CHILD_WITHIN: Duration = Duration::from_secs(3);

#[tokio::test]
#[ignore = "the child of the tests below"]
async fn the_child() {
    #[cfg(feature = "lab")]
    let faults = Faults::parse(&std::env::var(CHILD_FAULTS).unwrap()).unwrap();
    #[cfg(not(feature = "lab"))]
    let faults = Faults::none();
    let host = Host {
        faults,
        ..Host::system()
    };
    let store: Arc<dyn PaymentStore> = match std::env::var(CHILD_DIR) {
        Ok(dir) => Arc::new(
            SqlitePayments::open(dir.as_ref(), Fencing::Enforced, &host)
                .await
                .unwrap(),
        ),
        Err(_) => {
            let mut options = PgPaymentsOptions::at(std::env::var(CHILD_URL).expect("only as a child"));
            options.schema = std::env::var(CHILD_SCHEMA).unwrap();
            Arc::new(PgPayments::open(options, Fencing::Enforced, &host).await.unwrap())
        }
    };
    for n in 1.. {
        match store
            .apply(command(&format!("P{n}"), claim(n)), CHILD_WITHIN)
            .await
            .unwrap()
        {
            StepOutcome::Done(payout) => println!("\nanswered {}", payout.payout_id),
            other => panic!("{other:?}"),
        }
    }
}

async fn with_payouts(b: Bench, n: u64) -> Bench {
    b.account("A", 1_000_000).await;
    for n in 1..=n {
        b.payout(&format!("P{n}"), "A", 1).await;
    }
    b
}

#[tokio::test]
async fn a_kill_loses_nothing_that_was_answered() {
    kill_in_the_middle(with_payouts(Bench::on_sqlite(Fencing::Enforced).await, 400).await).await;
}

#[tokio::test]
async fn a_kill_loses_nothing_that_was_answered_on_pg() {
    kill_in_the_middle(with_payouts(Bench::on_pg(Fencing::Enforced).await, 200).await).await;
}

async fn kill_in_the_middle(b: Bench) {
    let mut child = child(&b, "");
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    let mut answered = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        if let Some(payout) = line.unwrap().strip_prefix("answered ") {
            answered.push(payout.to_owned());
            if answered.len() == 40 {
                kill(pid, Signal::SIGKILL).unwrap();
            }
        }
    }
    child.wait().unwrap();
    assert!(answered.len() >= 40);
    for payout in &answered {
        assert_eq!(b.now(payout).await.state, PayoutState::Claimed, "{payout} was answered");
    }
    let mark = b.mark("A").await;
    assert!(mark >= answered.len() as u64);
    assert_eq!(b.violations().await, Vec::<String>::new());
    // The next process goes on where the killed one stopped.
    done(b.claim(&format!("P{}", mark + 1), mark + 1).await);
}

#[cfg(feature = "lab")]
#[tokio::test]
async fn case_d12_a_process_stopped_inside_its_transaction_does_not_stop_the_rail() {
    use crate::support::{Rail, t};
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

    let b = with_payouts(Bench::on_sqlite(Fencing::Enforced).await, 3).await;
    let mut child = child(&b, "payment_resource.before_claim_commit=stop@2");
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    assert!(matches!(
        waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap(),
        WaitStatus::Stopped(_, Signal::SIGSTOP)
    ));
    // The child holds the write lock of payment.db. The rail's file is another one.
    let rail = Rail::open(b.dir());
    rail.says("P1", Some("ACKED"), Some("r")).await;
    // What the rail proxy needs of the payouts it can read: the last commit.
    rail.file()
        .execute(
            "ATTACH DATABASE ?1 AS payment",
            [format!("file:{}?mode=ro", b.dir().join("payment.db").display())],
        )
        .unwrap();
    let seen: (String, i64) = rail
        .file()
        .query_row(
            "SELECT p.state, p.claim_token FROM payment.payout p JOIN rail_submission s ON s.payout_id = p.payout_id",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();
    assert_eq!(seen, ("CLAIMED".to_owned(), 1));
    // Reads of payment.db go on, its writers wait and are told that nothing was done.
    assert_eq!(b.now("P2").await.state, PayoutState::Pending);
    let post = payment_store::Verb::Post {
        token: t(1),
        rail_reference: "r".into(),
    };
    let waited = b
        .store
        .apply(command("P1", post.clone()), Duration::from_millis(100))
        .await
        .unwrap_err();
    assert!(!waited.is_ambiguous(), "{waited}");
    kill(pid, Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    // The unanswered claim is undone as a whole.
    assert_eq!((b.now("P2").await.state, b.mark("A").await), (PayoutState::Pending, 1));
    done(
        b.store
            .apply(command("P1", post), crate::support::WITHIN)
            .await
            .unwrap(),
    );
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[cfg(feature = "lab")]
#[tokio::test]
async fn case_d12_a_process_stopped_inside_its_transaction_does_not_stop_the_other_replica() {
    use crate::support::WITHIN;
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

    let b = with_payouts(Bench::on_pg(Fencing::Enforced).await, 3).await;
    let mut child = child(&b, "payment_resource.before_claim_commit=stop@2");
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    assert!(matches!(
        waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap(),
        WaitStatus::Stopped(_, Signal::SIGSTOP)
    ));
    // It holds the rows of A and P2, and the server ends its session once its caller has given up.
    done(b.store.apply(command("P3", claim(9)), WITHIN).await.unwrap());
    assert_eq!((b.now("P2").await.state, b.mark("A").await), (PayoutState::Pending, 9));
    // Awake again, its writes find no session.
    kill(pid, Signal::SIGCONT).unwrap();
    child.wait().unwrap();
    assert_eq!((b.now("P2").await.state, b.mark("A").await), (PayoutState::Pending, 9));
    assert_eq!(b.violations().await, Vec::<String>::new());
}
