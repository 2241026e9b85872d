//! The actors of the rail on a paused clock: the store in memory, a rail in this process behind the port, no socket.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

use actix::System;
use actor_kit::{AskError, Handle, Kit, TraceContext, TraceQuery};
use futures_util::future::LocalBoxFuture;
use host_kit::Host;
use lock_api::FencingToken;
use prometheus::{Registry, TextEncoder};
use rail_core::{
    AwaitQuiet, Line, NoAnswer, Rail, RailCall, RailDesk, RailMetrics, RailReply, RailWatch, Reconciler,
    SUBMISSIONS_MAX, SubmissionLimits, Submit, Submitted, Unprepared,
};
use rail_store::{
    Fencing, Location, Outcome, RailStore, SqliteRailStore, SqliteRailStoreOptions, Submission, SubmitOutcome,
    SubmitRequest, Verdict,
};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

const SEED: u64 = 20_260_101;
const STORE: Duration = Duration::from_secs(2);
const READ_TIMEOUT: Duration = Duration::from_secs(8);
const HORIZON: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(3_600);

/// What the rail does with a reference.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    /// Executes and answers after this time.
    After(Duration),
    /// Never answers, and executes nothing.
    Silent,
}

#[derive(Default)]
struct Book {
    manners: BTreeMap<String, Manner>,
    /// Every submission that was sent.
    read: Vec<String>,
    executed: Vec<String>,
    /// What its lines want for, where they do.
    unprepared: Option<Unprepared>,
}

/// A rail in this process. Not idempotent: it executes whatever it answers.
#[derive(Clone, Default)]
struct NearRail(Arc<Mutex<Book>>);

impl NearRail {
    fn set(&self, reference: &str, manner: Manner) {
        self.0.lock().unwrap().manners.insert(reference.to_owned(), manner);
    }

    fn read(&self) -> usize {
        self.0.lock().unwrap().read.len()
    }

    fn execute(&self, reference: &str) {
        self.0.lock().unwrap().executed.push(reference.to_owned());
    }
}

impl Line for NearRail {
    fn submit(self: Box<Self>, call: RailCall) -> LocalBoxFuture<'static, RailReply> {
        let rail = *self;
        Box::pin(async move {
            let manner = {
                let mut book = rail.0.lock().unwrap();
                book.read.push(call.client_reference.clone());
                book.manners.get(&call.client_reference).copied()
            };
            match manner.unwrap_or(Manner::After(Duration::ZERO)) {
                Manner::After(time) if time < READ_TIMEOUT => {
                    tokio::time::sleep(time).await;
                    rail.execute(&call.client_reference);
                    let body = json!({
                        "result": "ACK", "rail_reference": format!("R-{}", call.client_reference),
                        "client_reference": call.client_reference, "amount_minor": call.amount_minor,
                        "currency": call.currency,
                    });
                    RailReply::Answer {
                        status: 200,
                        body: body.to_string().into_bytes(),
                    }
                }
                _ => {
                    tokio::time::sleep(READ_TIMEOUT).await;
                    RailReply::Nothing(NoAnswer::ReadTimeout)
                }
            }
        })
    }
}

impl Rail for NearRail {
    fn prepare(&self) -> LocalBoxFuture<'static, Result<Box<dyn Line>, Unprepared>> {
        let prepared = match self.0.lock().unwrap().unprepared.clone() {
            Some(missing) => Err(missing),
            None => Ok(Box::new(self.clone()) as Box<dyn Line>),
        };
        Box::pin(std::future::ready(prepared))
    }

    fn look_up(&self, client_reference: String, _: Duration) -> LocalBoxFuture<'static, RailReply> {
        let executed = self
            .0
            .lock()
            .unwrap()
            .executed
            .iter()
            .filter(|r| **r == client_reference)
            .count();
        let executions: Vec<_> = (0..executed)
            .map(|_| json!({ "rail_reference": format!("R-{client_reference}"), "amount_minor": 1250, "currency": "EUR" }))
            .collect();
        let body = json!({ "client_reference": client_reference, "executions": executions, "final": false });
        Box::pin(async move {
            RailReply::Answer {
                status: 200,
                body: body.to_string().into_bytes(),
            }
        })
    }
}

struct World {
    _directory: TempDir,
    payouts: rusqlite::Connection,
    host: Host,
    kit: Kit,
    registry: Registry,
    store: Arc<dyn RailStore>,
    rail: NearRail,
    desk: Handle<RailDesk>,
    reconciler: Reconciler,
}

fn with_world<F: Future<Output = ()>>(test: impl FnOnce(World) -> F) {
    println!("seed {SEED}");
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
    };
    System::with_tokio_rt(runtime).block_on(async move { test(World::new()).await });
}

impl World {
    fn new() -> Self {
        let host = Host::simulated(SEED);
        let directory = tempfile::tempdir().unwrap();
        let payments = directory.path().join("payment.db");
        let payouts = rusqlite::Connection::open(&payments).unwrap();
        // What is tested is the rail's store; this file may be lost with the machine.
        payouts
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
                 CREATE TABLE payout (payout_id TEXT PRIMARY KEY, account_id TEXT, amount_minor INTEGER, currency TEXT,
                     creditor TEXT, state TEXT, claim_token INTEGER, rail_reference TEXT);",
            )
            .unwrap();
        let options = SqliteRailStoreOptions {
            location: Location::Memory,
            payments,
            fencing: Fencing::Enforced,
        };
        let store: Arc<dyn RailStore> = Arc::new(SqliteRailStore::open(options, &host).unwrap());
        let registry = Registry::new();
        let kit = Kit::new("rail-proxy", &host, &registry);
        let metrics = RailMetrics::register(&registry, true);
        let rail = NearRail::default();
        let desk = {
            let (store, rail, metrics) = (store.clone(), rail.clone(), metrics.clone());
            kit.spawn("submissions", move || {
                let limits = SubmissionLimits { store: STORE };
                RailDesk::new(store.clone(), Arc::new(rail.clone()), metrics.clone(), limits)
            })
        };
        {
            let (store, metrics) = (store.clone(), metrics.clone());
            kit.spawn("watch", move || RailWatch::new(store.clone(), metrics.clone(), STORE));
        }
        let reconciler = Reconciler::new(
            store.clone(),
            Arc::new(rail.clone()),
            metrics,
            &host,
            HORIZON,
            STORE,
            STORE,
        );
        Self {
            _directory: directory,
            payouts,
            host,
            kit,
            registry,
            store,
            rail,
            desk,
            reconciler,
        }
    }

    fn claimed(&self, payout: &str, token: u64) {
        self.payouts
            .execute(
                "INSERT INTO payout VALUES (?1, ?2, 1250, 'EUR', '{\"name\":\"Ada\",\"account\":\"DE02\"}', 'CLAIMED', ?3, NULL)",
                rusqlite::params![payout, format!("a-{payout}"), i64::try_from(token).unwrap()],
            )
            .unwrap();
    }

    async fn submit(&self, payout: &str, token: u64, within: Duration) -> Result<Submitted, AskError> {
        let token: FencingToken = token.to_string().parse().unwrap();
        let request = SubmitRequest {
            submission_id: self.host.ids.prefixed("submission"),
            token,
            idempotency_key: payout.to_owned(),
            payout_id: payout.to_owned(),
            account_id: format!("a-{payout}"),
            amount_minor: 1_250,
            currency: "EUR".to_owned(),
            creditor_name: "Ada".to_owned(),
            creditor_account: "DE02".to_owned(),
            actor: None,
        };
        let trace = TraceContext::root(&self.host.random);
        self.desk.ask(Submit(request), within, &trace).await
    }

    async fn now(&self, payout: &str) -> Option<Submission> {
        self.store.submission(payout.to_owned(), STORE).await.unwrap()
    }

    async fn outcome(&self, payout: &str) -> Option<Outcome> {
        self.now(payout).await.unwrap().outcome
    }

    fn metric(&self, line: &str) -> f64 {
        let text = TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap();
        let found = text
            .lines()
            .find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
        found.unwrap_or_else(|| panic!("{line} is not among the metrics:\n{text}"))
    }

    /// Lets whatever is due now happen.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn recorded(answer: Result<Submitted, AskError>) -> (Submission, bool) {
    match answer {
        Ok(Submitted::Recorded { submission, replayed }) => (*submission, replayed),
        other => panic!("nothing is recorded: {other:?}"),
    }
}

#[test]
fn a_submission_goes_through_its_steps_once_and_each_is_in_the_trace() {
    with_world(async |world| {
        world.claimed("p1", 7);
        let (submission, replayed) = recorded(world.submit("p1", 7, LONG).await);
        assert_eq!((submission.outcome, replayed), (Some(Outcome::Acked), false));
        assert_eq!(world.rail.read(), 1);
        assert!(recorded(world.submit("p1", 7, LONG).await).1, "again it is a replay");
        assert_eq!(world.rail.read(), 1);
        let steps: Vec<_> = world
            .kit
            .trace()
            .read(&TraceQuery::default())
            .into_iter()
            .filter(|record| &*record.actor == "rail-proxy/submissions/p1")
            .map(|record| record.message)
            .collect();
        assert_eq!(
            steps[..6],
            [
                "Submit",
                "LinePrepared",
                "IntentDecided",
                "ForwardClaimed",
                "RailAnswered",
                "OutcomeRecorded"
            ]
        );
        assert_eq!(world.metric("rail_submissions_total{outcome=\"acked\"}"), 1.0);
        world.settle().await;
        assert_eq!(world.kit.actor_count(), 2, "an ended submission has no actor left");
    });
}

#[test]
fn a_submission_outlives_the_patience_of_its_caller() {
    with_world(async |world| {
        world.claimed("p1", 7);
        world.rail.set("p1", Manner::After(Duration::from_secs(6)));
        let answer = world.submit("p1", 7, Duration::from_secs(1)).await;
        assert_eq!(answer, Err(AskError::Deadline));
        assert_eq!(world.outcome("p1").await, None);
        let in_flight = recorded(world.submit("p1", 7, LONG).await);
        assert_eq!((in_flight.0.outcome, in_flight.1), (None, true));
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(world.outcome("p1").await, Some(Outcome::Acked));
        assert_eq!(world.rail.read(), 1);
    });
}

#[test]
fn an_actor_that_is_paused_for_an_hour_settles_when_it_resumes() {
    with_world(async |world| {
        world.claimed("p1", 7);
        world.rail.set("p1", Manner::After(Duration::from_secs(1)));
        let call = async { recorded(world.submit("p1", 7, LONG * 2).await) };
        let pause = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            world.kit.pause("rail-proxy/submissions/p1", LONG).unwrap();
            tokio::time::sleep(LONG / 2).await;
            assert_eq!(world.outcome("p1").await, None);
        };
        let ((submission, _), ()) = tokio::join!(call, pause);
        assert_eq!((submission.outcome, world.rail.read()), (Some(Outcome::Acked), 1));
    });
}

#[test]
fn what_a_refusal_refuses_is_not_sent() {
    with_world(async |world| {
        world.claimed("p1", 7);
        let refused = world.submit("p1", 8, LONG).await;
        assert!(
            matches!(refused, Ok(Submitted::Refused(SubmitOutcome::NotClaimed { .. }))),
            "{refused:?}"
        );
        recorded(world.submit("p1", 7, LONG).await);
        let fenced = world.submit("p1", 6, LONG).await;
        assert!(
            matches!(fenced, Ok(Submitted::Refused(SubmitOutcome::FencedOut(_)))),
            "{fenced:?}"
        );
        assert_eq!(world.rail.read(), 1);
        assert_eq!(world.metric("lock_fenced_out_total{point=\"rail\"}"), 1.0);
    });
}

/// What sending needs is had before the intent: without it nothing is recorded, and the same token may ask again.
#[test]
fn case_s1_without_a_socket_or_an_address_there_is_no_intent() {
    with_world(async |world| {
        world.claimed("p1", 7);
        for missing in [
            Unprepared::NoSocket("too many open files".into()),
            Unprepared::NoAddress("no such name".into()),
        ] {
            world.rail.0.lock().unwrap().unprepared = Some(missing.clone());
            let answer = world.submit("p1", 7, LONG).await;
            assert_eq!(answer, Ok(Submitted::Unprepared(missing)));
            assert_eq!((world.now("p1").await, world.rail.read()), (None, 0));
        }
        world.rail.0.lock().unwrap().unprepared = None;
        let (submission, replayed) = recorded(world.submit("p1", 7, LONG).await);
        assert_eq!((submission.outcome, replayed), (Some(Outcome::Acked), false));
        assert_eq!(world.rail.read(), 1);
    });
}

#[test]
fn there_is_a_bound_on_what_is_under_way_and_an_end_that_can_be_awaited() {
    with_world(async |world| {
        for n in 0..SUBMISSIONS_MAX {
            let payout = format!("p{n}");
            world.claimed(&payout, 7);
            world.rail.set(&payout, Manner::Silent);
            // The caller goes at once; the submission does not.
            assert_eq!(
                world.submit(&payout, 7, Duration::from_millis(1)).await,
                Err(AskError::Deadline)
            );
        }
        world.claimed("one too many", 7);
        assert_eq!(world.submit("one too many", 7, LONG).await, Ok(Submitted::Overloaded));
        assert_eq!(world.rail.read(), SUBMISSIONS_MAX);
        let trace = TraceContext::root(&world.host.random);
        assert_eq!(
            world.desk.ask(AwaitQuiet, Duration::from_millis(5), &trace).await,
            Err(AskError::Deadline)
        );
        assert_eq!(world.desk.ask(AwaitQuiet, READ_TIMEOUT * 2, &trace).await, Ok(()));
        assert_eq!(world.outcome("p0").await, Some(Outcome::Timeout));
        assert_eq!(
            recorded(world.submit("one too many", 7, LONG).await).0.outcome,
            Some(Outcome::Acked)
        );
    });
}

/// Silence becomes a conclusion after two lookups behind the horizon, on a clock that nobody set.
#[test]
fn case_p16_lookups_conclude_by_the_horizon_and_not_before() {
    with_world(async |world| {
        for payout in ["silent", "late"] {
            world.claimed(payout, 7);
            world.rail.set(payout, Manner::Silent);
            assert_eq!(
                recorded(world.submit(payout, 7, LONG).await).0.outcome,
                Some(Outcome::Timeout)
            );
        }
        let verdict = async |payout: &str| world.reconciler.look_up(payout).await.unwrap().unwrap().verdict;
        for payout in ["silent", "late"] {
            for _ in 0..3 {
                assert_eq!(verdict(payout).await, Verdict::Inconclusive, "{payout}");
            }
        }
        tokio::time::sleep(HORIZON + READ_TIMEOUT).await;
        assert_eq!(verdict("silent").await, Verdict::Inconclusive);
        assert_eq!(verdict("late").await, Verdict::Inconclusive);
        world.rail.execute("late");
        assert_eq!(verdict("late").await, Verdict::Executed);
        assert_eq!(verdict("silent").await, Verdict::NotReceived);
        assert!(world.reconciler.look_up("never").await.unwrap().is_none());
        assert_eq!(world.metric("rail_duplicate_attempted_total"), 0.0);
        // A second execution, however it came about, is counted once.
        world.rail.execute("late");
        for _ in 0..2 {
            assert_eq!(verdict("late").await, Verdict::Executed);
        }
        assert_eq!(world.metric("rail_duplicate_attempted_total"), 1.0);
    });
}

#[test]
fn the_watch_shows_what_is_open() {
    with_world(async |world| {
        world.settle().await;
        assert_eq!(world.metric("rail_ambiguous_age_seconds"), 0.0);
        world.claimed("p1", 7);
        world.rail.set("p1", Manner::Silent);
        recorded(world.submit("p1", 7, LONG).await);
        tokio::time::sleep(Duration::from_secs(100)).await;
        let age = world.metric("rail_ambiguous_age_seconds");
        assert!((90.0..=100.0).contains(&age), "{age}");
        assert_eq!(world.metric("rail_exceptions_open"), 0.0);
        world.rail.execute("p1");
        world.rail.execute("p1");
        world.reconciler.look_up("p1").await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(world.metric("rail_ambiguous_age_seconds"), 0.0);
        assert_eq!(world.metric("rail_exceptions_open"), 1.0);
    });
}

/// An actor that crashes while it waits for the rail ends: nothing is forwarded again, the intent stays open.
#[cfg(feature = "lab")]
#[test]
fn a_crashed_submission_is_not_taken_up_again() {
    with_world(async |world| {
        world.claimed("p1", 7);
        world.rail.set("p1", Manner::After(Duration::from_secs(5)));
        let crash = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            world.kit.crash("rail-proxy/submissions/p1").unwrap();
        };
        let (answer, ()) = tokio::join!(world.submit("p1", 7, LONG), crash);
        assert_eq!(
            answer,
            Err(AskError::Restarting),
            "the caller is told that it may have been done"
        );
        tokio::time::sleep(LONG).await;
        assert_eq!((world.outcome("p1").await, world.rail.read()), (None, 1));
        assert_eq!(world.kit.actor_count(), 2, "the rebuilt actor ended");
        let again = recorded(world.submit("p1", 7, LONG).await);
        assert_eq!((again.0.outcome, again.1, world.rail.read()), (None, true, 1));
        assert_eq!(world.metric("actor_restarts_total{actor=\"rail_submission\"}"), 1.0);
    });
}
