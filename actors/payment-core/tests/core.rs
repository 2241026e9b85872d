//! The payment row's actors: order, restart, idleness, escalation, and that the store does what the table says.

#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use actor_kit::{Kit, TraceContext, TraceQuery};
use host_kit::{Host, Random};
use lock_api::FencingToken;
use payment_core::{Payments, state_machine_page};
use payment_store::{
    Command, Creditor, Fencing, NewAccount, NewPayout, PaymentStore, PayoutState, Refusal, Resolution, SqlitePayments,
    Step, StepOutcome, TRANSITIONS, Verb, allowed_from, transition,
};
use std::sync::Arc;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(20);

struct Row {
    kit: Kit,
    store: Arc<SqlitePayments>,
    payments: Payments,
    dir: tempfile::TempDir,
    registry: prometheus::Registry,
}

async fn row(host: &Host, sla: Duration) -> Row {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(SqlitePayments::open(dir.path(), Fencing::Enforced, host).await.unwrap());
    let registry = prometheus::Registry::new();
    let kit = Kit::new("payment-resource", host, &registry);
    let payments = Payments::start(&kit, &registry, store.clone(), true, sla, WITHIN);
    Row {
        kit,
        store,
        payments,
        dir,
        registry,
    }
}

fn t(token: u64) -> FencingToken {
    token.to_string().parse().unwrap()
}

impl Row {
    async fn account(&self, opening_balance_minor: i64) {
        let new = NewAccount {
            account_id: "A".into(),
            currency: "EUR".into(),
            opening_balance_minor,
            actor: None,
        };
        self.store.open_account(new, WITHIN).await.unwrap();
    }

    async fn payout(&self, payout_id: &str) {
        let new = NewPayout {
            idempotency_key: payout_id.into(),
            chosen_id: Some(payout_id.into()),
            fresh_id: String::new(),
            account_id: "A".into(),
            amount_minor: 10,
            currency: "EUR".into(),
            creditor: Creditor {
                name: "n".into(),
                account: "a".into(),
            },
            reference: None,
            actor: None,
        };
        self.store.create_payout(new, WITHIN).await.unwrap();
    }

    async fn apply(&self, payout_id: &str, verb: Verb) -> StepOutcome {
        let trace = TraceContext::root(&Random::seeded(1));
        self.apply_in(payout_id, verb, &trace).await
    }

    async fn apply_in(&self, payout_id: &str, verb: Verb, trace: &TraceContext) -> StepOutcome {
        let command = Command {
            payout_id: payout_id.into(),
            actor: Some("w1".into()),
            verb,
        };
        self.payments.apply(command, WITHIN, trace).await.unwrap()
    }

    fn rail(&self, payout_id: &str, outcome: &str) {
        // The rail proxy's table (contract C1.2), as far as it matters here.
        let db = rusqlite::Connection::open(self.dir.path().join("rail.db")).unwrap();
        db.execute_batch(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE IF NOT EXISTS rail_submission (submission_id TEXT PRIMARY KEY, payout_id TEXT, outcome TEXT,
               rail_reference TEXT, decline_reason TEXT);",
        )
        .unwrap();
        db.execute(
            "INSERT OR REPLACE INTO rail_submission VALUES (?1, ?1, ?2, 'r', NULL)",
            [payout_id, outcome],
        )
        .unwrap();
    }

    fn metric(&self, line: &str) -> f64 {
        let text = prometheus::TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .unwrap();
        text.lines()
            .find_map(|l| l.strip_prefix(line).and_then(|rest| rest.trim().parse().ok()))
            .unwrap_or_else(|| panic!("no {line} in\n{text}"))
    }
}

fn claim(token: u64) -> Verb {
    Verb::Claim {
        token: t(token),
        expected_version: None,
    }
}

fn verb(step: Step, token: u64) -> Option<Verb> {
    Some(match step {
        Step::Create => return None,
        Step::Claim => claim(token),
        Step::Post => Verb::Post {
            token: t(token),
            rail_reference: "r".into(),
        },
        Step::Fail => Verb::Fail {
            token: t(token),
            reason: "x".into(),
        },
        Step::Ambiguous => Verb::Ambiguous {
            token: t(token),
            reason: "x".into(),
        },
        Step::ResolvePosted | Step::ResolveFailed => Verb::Resolve {
            token: t(token),
            outcome: if step == Step::ResolvePosted {
                Resolution::Posted
            } else {
                Resolution::Failed
            },
            rail_reference: None,
            by_hand: None,
        },
        Step::Cancel => Verb::Cancel {
            operator: "op".into(),
            reason: None,
        },
    })
}

/// Brings a fresh payout into the state; answers the mark.
async fn bring(row: &Row, payout_id: &str, state: PayoutState, mark: u64) -> u64 {
    row.payout(payout_id).await;
    let (outcome, last) = match state {
        PayoutState::Pending => return mark,
        PayoutState::Claimed => ("", None),
        PayoutState::RailAmbiguous => ("TIMEOUT", Some(Step::Ambiguous)),
        PayoutState::Posted => ("ACKED", Some(Step::Post)),
        PayoutState::Failed => ("DECLINED", Some(Step::Fail)),
    };
    assert!(matches!(
        row.apply(payout_id, claim(mark + 1)).await,
        StepOutcome::Done(_)
    ));
    if let Some(last) = last {
        row.rail(payout_id, outcome);
        assert!(matches!(
            row.apply(payout_id, verb(last, mark + 1).unwrap()).await,
            StepOutcome::Done(_)
        ));
    }
    mark + 1
}

#[actix_rt::test]
async fn the_store_does_exactly_what_the_table_says() {
    // Every step from every state, with a token and evidence that fit where the table has the arrow.
    let row = row(&Host::system(), WITHIN).await;
    row.account(1_000_000).await;
    let mut mark = 0;
    let mut arrows = 0;
    for from in PayoutState::ALL {
        for step in Step::ALL {
            // The token that brings the payout into `from` is the next one, where any is needed.
            let own = mark + u64::from(from != PayoutState::Pending);
            let token = match step {
                Step::Post | Step::Fail | Step::Ambiguous => own.max(1),
                _ => own + 1,
            };
            let Some(verb) = verb(step, token) else { continue };
            let payout_id = format!("{from}-{}", step.as_str());
            mark = bring(&row, &payout_id, from, mark).await;
            let outcome = match step {
                Step::Post | Step::ResolvePosted => "ACKED",
                Step::Fail | Step::ResolveFailed => "DECLINED",
                _ => "TIMEOUT",
            };
            row.rail(&payout_id, outcome);
            let done_by_own_token = matches!(
                (from, step),
                (PayoutState::Posted, Step::Post)
                    | (PayoutState::Failed, Step::Fail)
                    | (PayoutState::RailAmbiguous, Step::Ambiguous)
            );
            match row.apply(&payout_id, verb).await {
                StepOutcome::Done(after) => {
                    let arrow = transition(step, Some(from)).unwrap_or_else(|| panic!("{step:?} from {from} was done"));
                    assert_eq!(after.state, arrow.to);
                    arrows += 1;
                    mark = row.store.account("A".into(), WITHIN).await.unwrap().unwrap().fence;
                }
                StepOutcome::Replayed(_) => assert!(done_by_own_token, "{step:?} from {from} was replayed"),
                StepOutcome::Refused(refusal) => {
                    assert!(
                        transition(step, Some(from)).is_none(),
                        "{step:?} from {from}: {refusal:?}"
                    );
                    // From PENDING nothing stands under the token yet, so the fence speaks before the state does.
                    match refusal {
                        Refusal::IllegalTransition { from: said, to } => assert_eq!((said, to), (from, step.to())),
                        Refusal::FencedOut { .. } => assert_eq!(from, PayoutState::Pending, "{step:?}"),
                        other => panic!("{step:?} from {from}: {other:?}"),
                    }
                }
            }
        }
    }
    assert_eq!(arrows, TRANSITIONS.iter().filter(|t| t.from.is_some()).count());
    // The test itself has let the rail execute what had failed; nothing else is wrong.
    let mut violations = row.store.verify(WITHIN).await.unwrap().violations;
    violations.retain(|said| !said.contains("is FAILED, the rail executed"));
    assert_eq!(violations, Vec::<String>::new());
}

#[test]
fn the_documented_state_machine_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/payout-states.md");
    let page = state_machine_page();
    let all = std::fs::read_to_string(path).unwrap_or_default();
    // The part below is the rail row's, and compared there.
    let late = all.find("\n## Late evidence\n").map_or("", |at| &all[at..]);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{page}{late}")).unwrap();
    }
    let all = std::fs::read_to_string(path).unwrap_or_default();
    let written = &all[..all.len() - late.len()];
    assert_eq!(written, page, "run this test with UPDATE_DOCS=1 to write the page anew");
    for state in PayoutState::ALL {
        for to in allowed_from(state) {
            assert!(page.contains(&format!("{state} --> {to}")));
        }
    }
}

#[actix_rt::test]
async fn steps_of_one_payout_are_taken_in_the_order_they_came() {
    let row = row(&Host::system(), WITHIN).await;
    row.account(1_000).await;
    row.payout("P").await;
    let calls = (1..=50u64).map(|token| row.apply("P", claim(token)));
    for outcome in futures_util::future::join_all(calls).await {
        assert!(matches!(outcome, StepOutcome::Done(_)), "{outcome:?}");
    }
    let history = row.store.history("P".into(), 0, 100, WITHIN).await.unwrap().unwrap();
    let tokens: Vec<_> = history.iter().filter_map(|step| step.token).collect();
    assert_eq!(tokens, (1..=50).collect::<Vec<_>>());
    assert!(row.metric("payout_steps_total{outcome=\"done\",step=\"claim\"}") >= 50.0);
}

/// A step that waited for the one before it ended in the trace of the first one.
#[actix_rt::test]
async fn a_step_that_waits_for_another_stays_in_its_own_trace() {
    let row = row(&Host::system(), WITHIN).await;
    row.account(1_000).await;
    row.payout("P").await;
    let random = Random::seeded(4);
    let traces: Vec<_> = (0..10).map(|_| TraceContext::root(&random)).collect();
    let calls = traces
        .iter()
        .zip(1..)
        .map(|(trace, token)| row.apply_in("P", claim(token), trace));
    futures_util::future::join_all(calls).await;
    let ended = row.kit.trace().read(&TraceQuery::default());
    let ended = ended.iter().filter(|record| record.message == "Finished");
    let ended: Vec<_> = ended.map(|record| record.trace.trace_id()).collect();
    assert_eq!(ended, traces.iter().map(TraceContext::trace_id).collect::<Vec<_>>());
}

#[actix_rt::test]
async fn a_refused_token_is_counted_at_this_point() {
    let row = row(&Host::system(), WITHIN).await;
    row.account(1_000).await;
    row.payout("P").await;
    row.apply("P", claim(5)).await;
    assert_eq!(row.metric("lock_fenced_out_total{point=\"payment\"}"), 0.0);
    assert!(matches!(
        row.apply("P", claim(4)).await,
        StepOutcome::Refused(Refusal::FencedOut { .. })
    ));
    assert_eq!(row.metric("lock_fenced_out_total{point=\"payment\"}"), 1.0);
    assert_eq!(row.metric("fencing_enabled{point=\"payment\"}"), 1.0);
}

#[test]
fn an_idle_payout_leaves_no_actor_behind() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let host = Host::simulated(7);
        let row = row(&host, WITHIN).await;
        row.account(1_000_000).await;
        let base = row.kit.actor_count();
        for n in 0..100 {
            row.payout(&format!("P{n}")).await;
            row.apply(&format!("P{n}"), claim(n + 1)).await;
        }
        assert_eq!(row.kit.actor_count(), base + 100);
        host.clock.sleep(Duration::from_secs(60)).await;
        assert_eq!(row.kit.actor_count(), base);
        // And it comes back when it is needed.
        assert!(matches!(row.apply("P0", claim(1_000)).await, StepOutcome::Done(_)));
        assert_eq!(row.kit.actor_count(), base + 1);
    });
}

#[test]
fn what_stays_ambiguous_is_escalated_by_the_resource_itself() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let host = Host::simulated(7);
        let row = row(&host, Duration::from_secs(1_200)).await;
        row.account(1_000).await;
        bring(&row, "P", PayoutState::RailAmbiguous, 0).await;
        host.clock.sleep(Duration::from_secs(1_000)).await;
        let payout = row.store.payout("P".into(), WITHIN).await.unwrap().unwrap();
        assert_eq!(payout.escalated_at_ms, None);
        assert!(row.metric("rail_ambiguous_age_seconds") > 900.0);
        host.clock.sleep(Duration::from_secs(205)).await;
        let payout = row.store.payout("P".into(), WITHIN).await.unwrap().unwrap();
        assert!(payout.escalated_at_ms.is_some());
        assert_eq!(payout.state, PayoutState::RailAmbiguous);
        assert_eq!(row.metric("payout_escalated"), 1.0);
        assert_eq!(row.metric("payout_state{state=\"RAIL_AMBIGUOUS\"}"), 1.0);
    });
}

/// Tokio's (paused) clock, whose wall time is set by hand.
#[derive(Clone)]
struct SetByHand {
    base: tokio::time::Instant,
    ahead_ms: Arc<std::sync::atomic::AtomicI64>,
}

impl host_kit::ClockSource for SetByHand {
    fn mono(&self) -> Duration {
        self.base.elapsed()
    }

    fn boot(&self) -> Duration {
        self.base.elapsed()
    }

    fn wall_ms(&self) -> i64 {
        let ahead = self.ahead_ms.load(std::sync::atomic::Ordering::Relaxed);
        1_767_225_600_000 + i64::try_from(self.base.elapsed().as_millis()).unwrap() + ahead
    }
}

#[test]
fn case_p31_a_wall_clock_that_jumps_ahead_escalates_nothing_young_and_no_date_stays_in_the_future() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let source = SetByHand {
            base: tokio::time::Instant::now(),
            ahead_ms: Arc::default(),
        };
        let host = Host {
            clock: host_kit::Clock::new(source.clone()),
            ..Host::simulated(7)
        };
        let row = row(&host, Duration::from_secs(3_600)).await;
        let payout = async |id: &str| row.store.payout(id.into(), WITHIN).await.unwrap().unwrap();
        row.account(1_000).await;
        bring(&row, "before", PayoutState::RailAmbiguous, 0).await;
        host.clock.sleep(Duration::from_secs(5)).await;

        source
            .ahead_ms
            .store(5 * 3_600_000, std::sync::atomic::Ordering::Relaxed);
        host.clock.sleep(Duration::from_secs(5)).await;
        assert_eq!(payout("before").await.escalated_at_ms, None, "ten seconds old");
        assert!(row.metric("rail_ambiguous_age_seconds") < 20.0);
        bring(&row, "meanwhile", PayoutState::RailAmbiguous, 100).await;
        host.clock.sleep(Duration::from_secs(5)).await;
        assert_eq!(payout("meanwhile").await.escalated_at_ms, None);

        source.ahead_ms.store(0, std::sync::atomic::Ordering::Relaxed);
        host.clock.sleep(Duration::from_secs(5)).await;
        let now_ms = host.clock.wall_ms();
        assert!(payout("meanwhile").await.ambiguous_since_ms.unwrap() <= now_ms);
        assert_eq!(row.metric("payout_escalated"), 0.0);
        // Both are a human's when the SLA has passed, by the time that passed.
        host.clock.sleep(Duration::from_secs(3_570)).await;
        assert_eq!(row.metric("payout_escalated"), 0.0);
        host.clock.sleep(Duration::from_secs(60)).await;
        assert_eq!(row.metric("payout_escalated"), 2.0);
    });
}

#[cfg(feature = "lab")]
#[actix_rt::test]
async fn a_crashed_payout_actor_is_back_and_has_lost_nothing() {
    let row = row(&Host::system(), WITHIN).await;
    row.account(1_000).await;
    row.payout("P").await;
    row.apply("P", claim(5)).await;
    row.kit.crash("payment-resource/payouts/P").unwrap();
    assert!(matches!(row.apply("P", claim(5)).await, StepOutcome::Replayed(_)));
    row.kit.crash("payment-resource/payouts").unwrap();
    assert!(matches!(row.apply("P", claim(5)).await, StepOutcome::Replayed(_)));
}
