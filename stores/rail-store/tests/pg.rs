//! What only a database with row locks, roles and a network can show.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test says what is wrong by panicking"
)]

mod support;

use futures_util::future::join_all;
use lock_api::StoreError;
use rail_store::{
    AckOutcome, FenceOutcome, Fencing, ForwardClaim, Outcome, OutcomeFilter, PgRail, RailStore, SubmitOutcome, Verdict,
};
use std::time::Duration;
use support::pg::{Database, connect, cut::Cut};
use support::{
    HORIZON, Paydb, Place, WITHIN, World, acked, block_on, book, fence_request, final_nothing, request, timeout,
};
use tokio_postgres::Client;

/// A world on a server, and its database; none where there is no server and that is no failure.
fn world() -> Option<World> {
    Place::pg().map(|place| World::new(&place))
}

fn database(world: &World) -> &Database {
    match &world.paydb {
        Paydb::Pg(database) => database,
        Paydb::Files(_) => panic!("not on a server"),
    }
}

macro_rules! world_or_return {
    () => {
        match world() {
            Some(world) => world,
            None => return,
        }
    };
}

/// A session of the rail's role, as a proxy would have it.
async fn side(db: &Database) -> Client {
    connect(&db.url_of(&db.rail_role), &db.schema).await
}

/// The statements of a submit that is about to commit, in a session of its own.
async fn half_a_submit(client: &Client, payout: &str, account: &str, token: i64) {
    client
        .batch_execute(&format!(
            "BEGIN;
             INSERT INTO rail_high_water VALUES ('{account}', {token}, 0)
                 ON CONFLICT (account_id) DO UPDATE SET highest_token = excluded.highest_token;
             INSERT INTO rail_submission (submission_id, payout_id, account_id, token, idempotency_key,
                 client_reference, amount_minor, currency, intent_at, fencing_enforced)
             VALUES ('side-{payout}', '{payout}', '{account}', {token}, '{payout}', '{payout}', 1250, 'EUR', 0, true)"
        ))
        .await
        .unwrap();
}

/// Every statement that matters, for each role: done, or refused for want of a right.
#[test]
fn each_role_may_do_its_own_work_and_nothing_else() {
    let world = world_or_return!();
    let db = database(&world);
    world.settled("p1", "a1", 7, timeout());
    world.look_up("p1", book(&[]));
    let submission = "INSERT INTO rail_submission (submission_id, payout_id, account_id, token, idempotency_key,
        client_reference, amount_minor, currency, intent_at, fencing_enforced)
        VALUES ('s9', 'p9', 'a9', 9, 'p9', 'p9', 1, 'EUR', 0, true)";
    let lookup = "INSERT INTO rail_lookup VALUES ('l9', 'p9', 0, 'INCONCLUSIVE', 0, NULL, false, 0)";
    let exception = "INSERT INTO rail_exception (payout_id, at, kind, detail) VALUES ('p9', 0, 'k', 'd')";
    let (rail, payment) = (&db.rail_role, &db.payment_role);
    for (role, allowed, statements) in [
        (
            rail,
            true,
            &[
                "SELECT * FROM payout",
                "SELECT * FROM pay_lineage",
                "SELECT * FROM pay_schema",
                "SELECT * FROM rail_submission FOR UPDATE",
                "SELECT rail_payout_state('p1')",
                submission,
                lookup,
                exception,
                "INSERT INTO rail_high_water VALUES ('a9', 9, 0)",
                "UPDATE rail_high_water SET highest_token = highest_token + 1, updated_at = 1",
                "UPDATE rail_submission SET outcome = 'ACKED', rail_reference = 'R', outcome_at = 1, cause = 'ack'",
                "UPDATE rail_exception SET closed_by = 'ops'",
                "UPDATE pay_lineage SET epoch = epoch + 1, restored_at = 1",
            ] as &[&str],
        ),
        (
            rail,
            false,
            &[
                "SELECT * FROM account",
                "SELECT * FROM ledger_entry",
                "SELECT * FROM payout_transition",
                "SELECT * FROM payment_event",
                "SELECT * FROM idempotency",
                "SELECT * FROM payout_tally",
                "SELECT * FROM payout FOR SHARE",
                "SELECT * FROM payout FOR UPDATE",
                "UPDATE payout SET state = 'FAILED'",
                "INSERT INTO payout (payout_id) VALUES ('p9')",
                "DELETE FROM payout",
                "UPDATE account SET balance_minor = 0",
                "INSERT INTO ledger_entry (account_id) VALUES ('a1')",
                "DELETE FROM rail_submission",
                "TRUNCATE rail_submission",
                "UPDATE rail_submission SET token = 99",
                "UPDATE rail_submission SET amount_minor = 1",
                "UPDATE rail_submission SET fencing_enforced = false",
                "UPDATE rail_high_water SET account_id = 'a2'",
                "DELETE FROM rail_high_water",
                "UPDATE rail_lookup SET verdict = 'EXECUTED'",
                "DELETE FROM rail_lookup",
                "UPDATE rail_exception SET detail = ''",
                "DELETE FROM rail_exception",
                "UPDATE pay_lineage SET lineage = 'x'",
                "DELETE FROM pay_lineage",
                "INSERT INTO pay_schema VALUES (99, now())",
                "ALTER TABLE rail_submission DISABLE TRIGGER USER",
                "DROP INDEX rail_submission_once",
                "CREATE TABLE mine (n int)",
            ],
        ),
        (
            payment,
            true,
            &["SELECT * FROM rail_submission", "SELECT * FROM rail_lookup"],
        ),
        (
            payment,
            false,
            &[
                "SELECT * FROM rail_high_water",
                "SELECT * FROM rail_exception",
                "SELECT * FROM rail_submission FOR SHARE",
                "SELECT rail_payout_state('p1')",
                "UPDATE rail_submission SET outcome = 'ACKED', rail_reference = 'R', outcome_at = 1",
                "UPDATE rail_high_water SET highest_token = 99",
                submission,
                lookup,
                exception,
                "DELETE FROM rail_submission",
                "DELETE FROM rail_lookup",
                "ALTER TABLE rail_submission DISABLE TRIGGER USER",
            ],
        ),
    ] {
        block_on(async {
            let client = connect(&db.url_of(role), &db.schema).await;
            for sql in statements {
                client.batch_execute("BEGIN").await.unwrap();
                let said = client.batch_execute(sql).await.err();
                let code = said
                    .as_ref()
                    .map(|error| error.code().map_or("no word", |state| state.code()));
                let expected = (!allowed).then_some("42501");
                assert_eq!(code, expected, "{role}: {sql}: {said:?}");
                client.batch_execute("ROLLBACK").await.unwrap();
            }
        });
    }
}

/// No table is forgotten: what each role may do with each, as the database itself lists it.
#[test]
fn the_rights_on_every_table_are_these() {
    let world = world_or_return!();
    let db = database(&world);
    let rights = |role: &str| -> Vec<String> {
        let sql = "SELECT table_name || ' ' || string_agg(DISTINCT privilege_type, ',' ORDER BY privilege_type)
             FROM (SELECT table_name::text, privilege_type::text FROM information_schema.table_privileges
                    WHERE table_schema = $1 AND grantee IN ($2, 'PUBLIC')
                   UNION SELECT table_name::text, lower(privilege_type) || '(' || column_name || ')'
                     FROM information_schema.column_privileges
                    WHERE table_schema = $1 AND grantee IN ($2, 'PUBLIC') AND privilege_type = 'UPDATE') AS granted
            GROUP BY table_name ORDER BY table_name COLLATE \"C\"";
        block_on(db.admin.query(sql, &[&db.schema, &role]))
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect()
    };
    assert_eq!(
        rights(&db.rail_role),
        [
            "pay_lineage SELECT,update(changed_at),update(changed_by),update(detail),update(epoch),update(origin),\
             update(restored_at),update(written_by)",
            "pay_schema SELECT",
            "payout SELECT",
            "rail_exception INSERT,SELECT,update(closed_at),update(closed_by),update(closed_reason)",
            "rail_high_water INSERT,SELECT,update(highest_token),update(updated_at)",
            "rail_lookup INSERT,SELECT",
            "rail_submission INSERT,SELECT,update(cause),update(decline_reason),update(forwarded_at),update(outcome),\
             update(outcome_at),update(rail_reference)",
        ]
    );
    let of_payment: Vec<_> = rights(&db.payment_role)
        .into_iter()
        .filter(|line| line.starts_with("rail_"))
        .collect();
    assert_eq!(of_payment, ["rail_lookup SELECT", "rail_submission SELECT"]);
}

/// 100 first submissions of one payout at once, through two proxies: one row.
#[test]
fn case_p11_a_hundred_first_submissions_make_one_row() {
    let world = world_or_return!();
    let stores = [world.another_process(), world.another_process()];
    // Under one token, which submits once and is answered what it did; and under as many tokens as there are callers.
    for (payout, tokens) in [("same", 1), ("each", 100)] {
        world.claimed(payout, payout, 1);
        let outcomes = block_on(join_all((0..100_u64).map(|n| {
            let mut request = request(payout, payout, 1 + n % tokens);
            request.submission_id = format!("{payout}-{n}");
            stores[usize::try_from(n % 2).unwrap()].submit(request, WITHIN)
        })));
        let mut intents = 0;
        for outcome in outcomes {
            match outcome.unwrap() {
                SubmitOutcome::Intent(_) => intents += 1,
                SubmitOutcome::Replay(_) => {}
                SubmitOutcome::AlreadySubmitted(_) | SubmitOutcome::FencedOut(_) | SubmitOutcome::NotClaimed { .. }
                    if tokens > 1 => {}
                other => panic!("{payout}: {other:?}"),
            }
        }
        let sql = format!("SELECT count(*) FROM rail_submission WHERE payout_id = '{payout}'");
        assert_eq!((intents, block_on(database(&world).number(&sql))), (1, 1), "{payout}");
    }
}

/// The unique index is met while the other row is not committed yet: tried again, and the row is seen.
#[test]
fn case_p11_a_concurrent_first_submission_is_seen_after_another_try() {
    let world = world_or_return!();
    let db = database(&world);
    world.claimed("p1", "a1", 7);
    block_on(async {
        let side = side(db).await;
        // From another account, so that the mark does not already keep the two apart.
        half_a_submit(&side, "p1", "a2", 6).await;
        let store = world.store.clone();
        let waiting = tokio::spawn(async move { store.submit(request("p1", "a1", 7), WITHIN).await });
        db.await_waiting(1).await;
        side.batch_execute("COMMIT").await.unwrap();
        let SubmitOutcome::AlreadySubmitted(existing) = waiting.await.unwrap().unwrap() else {
            panic!("submitted twice")
        };
        assert_eq!(existing.submission_id, "side-p1");
    });
    assert_eq!(world.mark("a1"), 0, "a refusal moves no mark");
}

/// A submit is about to commit when the new holder fences: the fence waits for it and sees its intent.
#[test]
fn case_d11_a_fence_beside_a_submit_that_is_about_to_commit_sees_its_intent() {
    let world = world_or_return!();
    let db = database(&world);
    for (payout, account, earlier) in [("p1", "a1", false), ("p2", "a2", true)] {
        world.claimed(payout, account, 7);
        if earlier {
            // The mark exists already: its row is waited for, not its key.
            world.fence(payout, 3, false);
        }
        block_on(async {
            let side = side(db).await;
            half_a_submit(&side, payout, account, 7).await;
            let store = world.store.clone();
            // Without forbidding, which would meet the unique index too.
            let fence = fence_request(payout, 8, earlier);
            let fencing = tokio::spawn(async move { store.fence_submission(fence, WITHIN).await });
            db.await_waiting(1).await;
            side.batch_execute("COMMIT").await.unwrap();
            let FenceOutcome::Fenced {
                submission: Some(seen),
                highest_token: 7,
            } = fencing.await.unwrap().unwrap()
            else {
                panic!("{payout}: the fence missed the intent")
            };
            assert_eq!((seen.token.get(), seen.outcome), (7, None), "{payout}");
        });
    }
}

/// The other way round: the fence is about to commit when the old holder submits.
#[test]
fn a_submit_beside_a_fence_that_is_about_to_commit_is_fenced_out() {
    let world = world_or_return!();
    let db = database(&world);
    world.claimed("p1", "a1", 7);
    block_on(async {
        let side = side(db).await;
        side.batch_execute("BEGIN; INSERT INTO rail_high_water VALUES ('a1', 8, 0)")
            .await
            .unwrap();
        let store = world.store.clone();
        let submitting = tokio::spawn(async move { store.submit(request("p1", "a1", 7), WITHIN).await });
        db.await_waiting(1).await;
        side.batch_execute("COMMIT").await.unwrap();
        let outcome = submitting.await.unwrap().unwrap();
        assert!(
            matches!(outcome, SubmitOutcome::FencedOut(refused) if refused.highest_token == 8),
            "{outcome:?}"
        );
    });
}

/// Proxy 1 is stopped between intent and send, proxy 2 concludes that nothing was received; however close the two are,
/// what is concluded is not sent.
#[test]
fn case_d01_what_another_proxy_concluded_is_not_sent() {
    let world = world_or_return!();
    let (one, two) = (world.another_process(), world.another_process());
    let (mut sent, mut concluded) = (0, 0);
    for round in 0..30_u64 {
        let payout = format!("p{round}");
        world.claimed(&payout, &payout, 7);
        let intent = world.intent(&payout, &payout, 7);
        let lookup = world.lookup(&payout, final_nothing(), true);
        let (claim, found) = block_on(async {
            if round % 2 == 0 {
                tokio::join!(
                    one.claim_forward(intent.submission_id, WITHIN),
                    two.record_lookup(lookup, WITHIN)
                )
            } else {
                let (found, claim) = tokio::join!(
                    two.record_lookup(lookup, WITHIN),
                    one.claim_forward(intent.submission_id, WITHIN)
                );
                (claim, found)
            }
        });
        match (claim.unwrap(), found.unwrap().unwrap().verdict) {
            (ForwardClaim::Forward { .. }, Verdict::Inconclusive) => sent += 1,
            (ForwardClaim::Refused { .. }, Verdict::NotReceived) => concluded += 1,
            both => panic!("round {round}: {both:?}"),
        }
    }
    println!("sent {sent}, concluded {concluded}");
}

/// A settlement as FAILED that is about to commit and a late ack: the ack waits, and a human hears of it.
#[test]
fn case_d02_a_late_ack_and_a_settlement_cannot_miss_each_other() {
    let world = world_or_return!();
    let db = database(&world);
    world.settled("p1", "a1", 7, timeout());
    world.look_up("p1", final_nothing());
    let ack = || rail_store::Ack {
        client_reference: "p1".into(),
        evidence: acked("R1"),
        amount_minor: 1_250,
        currency: "EUR".into(),
    };
    block_on(async {
        let payment = connect(&db.url_of(&db.payment_role), &db.schema).await;
        payment
            .batch_execute("BEGIN; UPDATE payout SET state = 'FAILED', version = version + 1 WHERE payout_id = 'p1'")
            .await
            .unwrap();
        let store = world.store.clone();
        let acking = tokio::spawn(async move { store.record_ack(ack(), WITHIN).await });
        db.await_waiting(1).await;
        payment.batch_execute("COMMIT").await.unwrap();
        assert_eq!(acking.await.unwrap().unwrap(), AckOutcome::Anomaly);

        // And an ack that is about to commit is waited for by whoever settles.
        let rail = side(db).await;
        rail.batch_execute("BEGIN; SELECT rail_payout_state('p1')")
            .await
            .unwrap();
        let refused = payment
            .batch_execute("SET lock_timeout = '100ms'; UPDATE payout SET version = version + 1 WHERE payout_id = 'p1'")
            .await
            .unwrap_err();
        assert_eq!(refused.code().map(|state| state.code()), Some("55P03"));
    });
    assert_eq!(world.now("p1").outcome, Some(Outcome::NotReceived));
    assert_eq!(world.exceptions(), [("p1".into(), "LATE_ACK_AFTER_FAILED".into())]);
}

/// The database rolls a transaction back for the sake of another one: tried again inside, never an answer of its own.
#[test]
fn case_p13_a_deadlock_is_tried_again_inside() {
    let world = world_or_return!();
    let db = database(&world);
    world.settled("p1", "a1", 7, timeout());
    block_on(async {
        // Locks in the wrong order, and is patient, so that the other one is the victim.
        let odd = connect(&db.url, &db.schema).await;
        odd.batch_execute(
            "SET deadlock_timeout = '1h'; BEGIN; SELECT 1 FROM rail_submission WHERE payout_id = 'p1' FOR UPDATE",
        )
        .await
        .unwrap();
        let store = world.store.clone();
        let ack = rail_store::Ack {
            client_reference: "p1".into(),
            evidence: acked("R1"),
            amount_minor: 1_250,
            currency: "EUR".into(),
        };
        let acking = tokio::spawn(async move { store.record_ack(ack, WITHIN).await });
        db.await_waiting(1).await;
        odd.batch_execute("UPDATE payout SET version = version + 1 WHERE payout_id = 'p1'; COMMIT")
            .await
            .unwrap();
        assert_eq!(acking.await.unwrap().unwrap(), AckOutcome::Recorded);
        let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
        println!("deadlocks so far: {}", db.number(deadlocks).await);
    });
    assert_eq!(world.now("p1").outcome, Some(Outcome::Acked));
}

/// Sessions that are ended from outside in front of their COMMIT have done nothing, and the work is done by another one.
#[test]
fn a_session_that_is_ended_before_its_commit_is_replaced() {
    let world = world_or_return!();
    let db = database(&world);
    world.claimed("p1", "a1", 7);
    block_on(async {
        let side = side(db).await;
        side.batch_execute("BEGIN; INSERT INTO rail_high_water VALUES ('a1', 3, 0)")
            .await
            .unwrap();
        let store = world.store.clone();
        let submitting = tokio::spawn(async move { store.submit(request("p1", "a1", 7), WITHIN).await });
        db.await_waiting(1).await;
        db.terminate().await;
        db.await_waiting(1).await;
        side.batch_execute("ROLLBACK").await.unwrap();
        let outcome = submitting.await.unwrap().unwrap();
        assert!(matches!(outcome, SubmitOutcome::Intent(_)), "{outcome:?}");
        assert_eq!(db.number("SELECT count(*) FROM rail_submission").await, 1);
    });
}

/// Sessions ended at any moment: what was answered as done is there, what was answered as not done is not, and nothing is
/// claimed for forwarding twice.
#[test]
fn sessions_ended_at_any_moment_leave_no_answer_wrong() {
    let world = world_or_return!();
    let db = database(&world);
    let store = world.another_process();
    for n in 0..60 {
        world.claimed(&format!("p{n}"), &format!("a{n}"), 7);
    }
    let answers = block_on(async {
        let ending = async {
            for _ in 0..40 {
                tokio::task::yield_now().await;
                db.terminate().await;
            }
        };
        let working = join_all((0..60).map(|n| {
            let store = store.clone();
            async move {
                let submitted = store
                    .submit(request(&format!("p{n}"), &format!("a{n}"), 7), WITHIN)
                    .await;
                let claims = match &submitted {
                    Ok(SubmitOutcome::Intent(intent)) => vec![
                        store.claim_forward(intent.submission_id.clone(), WITHIN).await,
                        store.claim_forward(intent.submission_id.clone(), WITHIN).await,
                    ],
                    _ => Vec::new(),
                };
                (submitted, claims)
            }
        }));
        tokio::join!(working, ending).0
    });
    let mut unknown = 0;
    for (n, (submitted, claims)) in answers.into_iter().enumerate() {
        let row = block_on(world.store.submission(format!("p{n}"), WITHIN)).unwrap();
        match submitted {
            Ok(SubmitOutcome::Intent(_)) => assert!(row.is_some(), "p{n} was lost"),
            Err(StoreError::Unknown { .. }) => unknown += 1,
            Err(StoreError::Unavailable { .. }) => assert!(row.is_none(), "p{n} was done"),
            other => panic!("p{n}: {other:?}"),
        }
        let permissions = claims
            .iter()
            .filter(|claim| matches!(claim, Ok(ForwardClaim::Forward { .. })))
            .count();
        assert!(permissions <= 1, "p{n}: {claims:?}");
        if permissions == 1 {
            assert!(row.unwrap().forwarded_at.is_some(), "p{n} is sent without a trace");
        }
    }
    println!("{unknown} of 60 unknown");
}

/// The server commits, and its answer is lost: unknown, never a permission to send; what it did is found by reading.
#[test]
fn an_unanswered_commit_is_unknown() {
    let world = world_or_return!();
    let db = database(&world);
    world.claimed("p1", "a1", 7);
    world.claimed("p2", "a2", 7);
    let other = world.intent("p2", "a2", 7);
    block_on(async {
        let cut = Cut::before(&db.url).await;
        let mut options = db.options(Fencing::Enforced);
        options.access.url = cut.instead_of(&options.access.url);
        let store = PgRail::open(options, &host_kit::Host::system()).await.unwrap();

        cut.lose_the_next_commit();
        let submitted = store.submit(request("p1", "a1", 7), WITHIN).await;
        assert!(matches!(submitted, Err(StoreError::Unknown { .. })), "{submitted:?}");
        cut.lose_the_next_commit();
        let claimed = store.claim_forward(other.submission_id.clone(), WITHIN).await;
        assert!(matches!(claimed, Err(StoreError::Unknown { .. })), "{claimed:?}");
        cut.lose_the_next_commit();
        let fenced = store.fence_submission(fence_request("p1", 9, false), WITHIN).await;
        assert!(matches!(fenced, Err(StoreError::Unknown { .. })), "{fenced:?}");

        // All three were done, and the same store says so.
        let SubmitOutcome::Replay(row) = store.submit(request("p1", "a1", 7), WITHIN).await.unwrap() else {
            panic!("the intent is lost")
        };
        assert_eq!(row.forwarded_at, None);
        let again = store.claim_forward(other.submission_id, WITHIN).await.unwrap();
        assert_eq!(again, ForwardClaim::Refused { duplicate: false });
        assert_eq!(store.high_water("a1".into(), WITHIN).await.unwrap().highest_token, 8);
    });
}

/// A row that somebody holds is waited for no longer than the caller waits, and nothing is done then.
#[test]
fn a_wait_for_a_row_ends_with_the_callers_patience() {
    let world = world_or_return!();
    let db = database(&world);
    world.claimed("p1", "a1", 7);
    block_on(async {
        let side = side(db).await;
        side.batch_execute("BEGIN; INSERT INTO rail_high_water VALUES ('a1', 3, 0)")
            .await
            .unwrap();
        let refused = world
            .store
            .submit(request("p1", "a1", 7), Duration::from_millis(500))
            .await;
        assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
        side.batch_execute("ROLLBACK").await.unwrap();
    });
    assert_eq!(
        block_on(world.store.submissions(OutcomeFilter::All, 0, 10, WITHIN)).unwrap(),
        []
    );
    world.intent("p1", "a1", 7);
}

#[test]
fn a_schema_that_is_missing_older_or_newer_is_not_opened() {
    let world = world_or_return!();
    let db = database(&world);
    assert_eq!(rail_store::SCHEMA_VERSION, pay_schema::VERSION);
    block_on(async {
        let open = async |schema: &str| {
            let mut options = db.options(Fencing::Enforced);
            schema.clone_into(&mut options.schema);
            PgRail::open(options, &world.host).await.map(drop)
        };
        let said = open("not_there").await.unwrap_err();
        assert!(
            matches!(&said, StoreError::Unavailable { detail } if detail.contains("dlock migrate")),
            "{said}"
        );
        assert!(open("no\"name").await.unwrap_err().to_string().contains("the schema"));
        db.admin
            .batch_execute("INSERT INTO pay_schema VALUES (99, now())")
            .await
            .unwrap();
        let said = open(&db.schema).await.unwrap_err();
        assert!(matches!(said, StoreError::Corrupt { .. }), "{said}");
        db.admin
            .batch_execute("DELETE FROM pay_schema WHERE version > 1")
            .await
            .unwrap();
        let said = open(&db.schema).await.unwrap_err();
        assert!(matches!(said, StoreError::Unavailable { .. }), "{said}");
    });
}

/// A database that was restored: nothing without a submission is sent before the rail was asked.
/// Regression: one proxy recorded the new epoch while the other one's statement read it, which then believed both that the
/// database stands and that it was never restored, and was about to send.
#[test]
fn case_d13_of_two_proxies_that_notice_a_restore_at_once_neither_sends() {
    const ROUNDS: usize = 30;
    let world = world_or_return!();
    let db = database(&world);
    for round in 0..ROUNDS {
        let payouts = [0, 1].map(|n| (format!("p{round}-{n}"), format!("a{round}-{n}")));
        for (payout, account) in &payouts {
            world.claimed(payout, account, 7);
        }
        block_on(db.as_if_restored());
        let (one, two) = (world.another_process(), world.another_process());
        let (first, second) = block_on(async {
            tokio::join!(
                one.submit(request(&payouts[0].0, &payouts[0].1, 7), WITHIN),
                two.submit(request(&payouts[1].0, &payouts[1].1, 7), WITHIN)
            )
        });
        assert_eq!(
            (first.unwrap(), second.unwrap()),
            (SubmitOutcome::RailUnasked, SubmitOutcome::RailUnasked),
            "round {round}"
        );
    }
}

#[test]
fn case_d13_a_restored_payout_is_not_sent_before_the_rail_was_asked() {
    let world = world_or_return!();
    let db = database(&world);
    for (payout, account) in [("paid", "a1"), ("unpaid", "a2"), ("refused", "a3"), ("known", "a4")] {
        world.claimed(payout, account, 7);
    }
    world.settled("known", "a4", 7, acked("R4"));
    assert!(!block_on(world.store.rail_unasked("paid".into(), WITHIN)).unwrap());
    let lookup = world.lookup("paid", book(&["R1"]), true);
    assert_eq!(block_on(world.store.record_lookup(lookup, WITHIN)).unwrap(), None);
    block_on(db.as_if_restored());

    // Two proxies notice at once: one epoch.
    let (one, two) = (world.another_process(), world.another_process());
    let (first, second) = block_on(async {
        tokio::join!(
            one.submit(request("paid", "a1", 7), WITHIN),
            two.submit(request("unpaid", "a2", 7), WITHIN)
        )
    });
    assert_eq!(
        (first.unwrap(), second.unwrap()),
        (SubmitOutcome::RailUnasked, SubmitOutcome::RailUnasked)
    );
    assert_eq!(block_on(db.number("SELECT epoch FROM pay_lineage")), 1);
    assert_eq!((world.mark("a1"), world.mark("a2")), (0, 0));
    // What is recorded is as good as before, and a fence forbids nothing that may have been paid.
    assert!(matches!(world.submit("known", "a4", 7), SubmitOutcome::Replay(_)));
    assert!(!block_on(world.store.rail_unasked("known".into(), WITHIN)).unwrap());
    assert!(matches!(
        world.fence("paid", 7, true),
        FenceOutcome::Fenced { submission: None, .. }
    ));

    // The rail knows the first: it is settled without being sent.
    assert!(block_on(world.store.rail_unasked("paid".into(), WITHIN)).unwrap());
    let found = world.look_up("paid", book(&["R1"]));
    let row = found.submission.unwrap();
    assert_eq!(
        (
            found.verdict,
            row.outcome,
            row.rail_reference.as_deref(),
            row.forwarded_at
        ),
        (Verdict::Executed, Some(Outcome::Acked), Some("R1"), None)
    );
    assert_eq!(world.now("paid"), row);
    assert!(matches!(world.submit("paid", "a1", 7), SubmitOutcome::Replay(again) if *again == row));
    assert_eq!(world.claim(&row), ForwardClaim::Refused { duplicate: false });

    // It refused the third.
    let refused = rail_store::Sighting::Book {
        executions: Vec::new(),
        declined: vec!["closed".into()],
        is_final: false,
    };
    assert_eq!(world.look_up("refused", refused).verdict, Verdict::Declined);
    assert_eq!(world.now("refused").outcome, Some(Outcome::Declined));

    // Of the second it knows nothing: twice after the horizon, or still in doubt.
    assert_eq!(world.look_up("unpaid", book(&[])).verdict, Verdict::Inconclusive);
    world.pass(HORIZON);
    assert_eq!(world.submit("unpaid", "a2", 7), SubmitOutcome::RailUnasked);
    // The restore was noticed by the system's clock, which is ahead of the one that the test moves.
    let noticed = block_on(db.number("SELECT restored_at FROM pay_lineage"));
    world.pass(Duration::from_millis(
        u64::try_from(noticed - world.host.clock.wall_ms()).unwrap_or(0) + 1,
    ));
    world.pass(HORIZON);
    assert_eq!(world.look_up("unpaid", book(&[])).verdict, Verdict::Inconclusive);
    assert_eq!(world.submit("unpaid", "a2", 7), SubmitOutcome::RailUnasked);
    let found = world.look_up("unpaid", book(&[]));
    assert_eq!((found.verdict, found.submission), (Verdict::NotReceived, None));
    world.intent("unpaid", "a2", 7);

    // Another restore is another epoch: what was asked before it says nothing.
    world.claimed("later", "a5", 9);
    world.look_up("later", final_nothing());
    block_on(db.as_if_restored());
    assert_eq!(world.submit("later", "a5", 9), SubmitOutcome::RailUnasked);
    assert_eq!(block_on(db.number("SELECT epoch FROM pay_lineage")), 2);
}
