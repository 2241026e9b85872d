//! What only a server with row locks can show: real concurrency over many connections and two stores, as two payment
//! resources would have it; deadlocks, serialization failures, sessions that are ended in the middle, and durability.

use crate::support::{Bench, WITHIN, ambiguous, claim, command, done, fail, new_payout, post};
use lock_api::StoreError;
use payment_store::{
    Account, CreateOutcome, Fencing, NewAccount, NewCredit, PaymentStore, PayoutState, RaiseFence, Refusal,
    StepOutcome, Verb,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

/// A claimed payout P of 400 on an account of 1,000, and two stores.
async fn claimed() -> (Bench, [Arc<dyn PaymentStore>; 2]) {
    let b = Bench::on_pg(Fencing::Enforced).await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 400).await;
    done(b.claim("P", 5).await);
    let stores = [b.store.clone(), b.another_store().await];
    (b, stores)
}

fn call(store: &Arc<dyn PaymentStore>, payout_id: &str, verb: Verb) -> JoinHandle<Result<StepOutcome, StoreError>> {
    let (store, command) = (store.clone(), command(payout_id, verb));
    tokio::spawn(async move { store.apply(command, WITHIN).await })
}

#[tokio::test]
async fn case_p07_fifty_posts_over_two_stores_write_two_legs() {
    let (b, stores) = claimed().await;
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    let calls: Vec<_> = (0..50).map(|n| call(&stores[n % 2], "P", post(5, "r1"))).collect();
    let (mut fresh, mut again) = (0, 0);
    for call in calls {
        match call.await.unwrap().unwrap() {
            StepOutcome::Done(_) => fresh += 1,
            StepOutcome::Replayed(_) => again += 1,
            StepOutcome::Refused(refusal) => panic!("{refusal:?}"),
        }
    }
    assert_eq!((fresh, again, b.legs("P").await), (1, 49, 2));
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn case_p08_post_fail_and_ambiguous_over_two_stores_have_one_winner() {
    for (outcome, expected) in [("ACKED", (600, 0)), ("DECLINED", (1_000, 0)), ("TIMEOUT", (1_000, 400))] {
        let (b, stores) = claimed().await;
        b.rail.says("P", Some(outcome), Some("r1")).await;
        let calls: Vec<_> = (0..12)
            .map(|n| {
                let verb = match n % 3 {
                    0 => post(5, "r1"),
                    1 => fail(5),
                    _ => ambiguous(5),
                };
                call(&stores[n % 2], "P", verb)
            })
            .collect();
        let mut won = 0;
        for call in calls {
            match call.await.unwrap().unwrap() {
                StepOutcome::Done(_) => won += 1,
                StepOutcome::Replayed(_) => {}
                StepOutcome::Refused(refusal) => assert!(
                    matches!(
                        refusal,
                        Refusal::IllegalTransition { .. } | Refusal::EvidenceMissing { .. }
                    ),
                    "{refusal:?}"
                ),
            }
        }
        let account = b.account_now("A").await;
        assert_eq!(
            (won, account.balance_minor, account.held_minor),
            (1, expected.0, expected.1),
            "with {outcome}"
        );
        assert_eq!(b.violations().await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn case_p09_six_claims_at_once_never_hold_more_than_the_balance() {
    let b = Bench::on_pg(Fencing::Enforced).await;
    b.account("A", 5_000).await;
    for n in 1..=6 {
        b.payout(&format!("P{n}"), "A", 1_000).await;
    }
    let stores = [b.store.clone(), b.another_store().await];
    let calls: Vec<_> = (1..=6_u64)
        .map(|n| call(&stores[usize::from(n % 2 == 0)], &format!("P{n}"), claim(n)))
        .collect();
    for call in calls {
        // Later tokens may overtake lower ones.
        assert!(matches!(
            call.await.unwrap().unwrap(),
            StepOutcome::Done(_) | StepOutcome::Refused(Refusal::FencedOut { .. } | Refusal::InsufficientFunds { .. })
        ));
    }
    // Whoever was overtaken comes again; the last one finds nothing left.
    let mut last = None;
    for (n, token) in (1..=6).zip(7..) {
        let payout = format!("P{n}");
        if b.now(&payout).await.state == PayoutState::Pending {
            last = Some(b.claim(&payout, token).await);
        }
    }
    assert_eq!(
        last,
        Some(StepOutcome::Refused(Refusal::InsufficientFunds {
            available_minor: 0,
            amount_minor: 1_000,
            currency: "EUR".into(),
        }))
    );
    assert_eq!(b.account_now("A").await.held_minor, 5_000);
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn case_p20_the_same_post_on_the_other_store_is_a_replay() {
    let (b, [one, other]) = claimed().await;
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    done(one.apply(command("P", post(5, "r1")), WITHIN).await.unwrap());
    let before = b.all_rows().await;
    crate::support::replayed(other.apply(command("P", post(5, "r1")), WITHIN).await.unwrap());
    assert_eq!(b.all_rows().await, before);
}

#[tokio::test]
async fn case_p10_one_key_used_by_many_at_once_makes_one_payout_and_one_credit() {
    let b = Bench::on_pg(Fencing::Enforced).await;
    b.account("A", 1_000).await;
    let stores = [b.store.clone(), b.another_store().await];
    let calls: Vec<_> = (0..20)
        .map(|n| {
            let store = stores[n % 2].clone();
            tokio::spawn(async move {
                let credit = NewCredit {
                    idempotency_key: "k".into(),
                    account_id: "A".into(),
                    amount_minor: 5,
                    reference: "top-up".into(),
                    actor: None,
                };
                (
                    store.create_payout(new_payout("P", "A", 10), WITHIN).await.unwrap(),
                    store.credit(credit, WITHIN).await.unwrap(),
                )
            })
        })
        .collect();
    let mut made = (0, 0);
    let mut answers = BTreeSet::new();
    for call in calls {
        let (payout, credit) = call.await.unwrap();
        made.0 += i32::from(matches!(payout, CreateOutcome::Created(_)));
        made.1 += i32::from(matches!(credit, CreateOutcome::Created(_)));
        let (CreateOutcome::Created(payout) | CreateOutcome::Existing(payout)) = payout else {
            panic!("{payout:?}");
        };
        let (CreateOutcome::Created(account) | CreateOutcome::Existing(account)) = credit else {
            panic!("{credit:?}");
        };
        // A replay answers what the first one did, to the last field.
        answers.insert(format!("{payout:?} {account:?}"));
    }
    assert_eq!((made, answers.len()), ((1, 1), 1), "{answers:?}");
    assert_eq!(b.account_now("A").await.balance_minor, 1_005);
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_claim_and_a_cancellation_at_once_have_one_winner() {
    let b = Bench::on_pg(Fencing::Enforced).await;
    b.account("A", 1_000_000).await;
    for n in 1..=20 {
        let payout = format!("P{n}");
        b.payout(&payout, "A", 1).await;
        let cancel = Verb::Cancel {
            operator: "op".into(),
            reason: None,
        };
        let (claim, cancel) = (call(&b.store, &payout, claim(n)), call(&b.store, &payout, cancel));
        let (claim, cancel) = (claim.await.unwrap().unwrap(), cancel.await.unwrap().unwrap());
        let won = [&claim, &cancel]
            .iter()
            .filter(|outcome| matches!(outcome, StepOutcome::Done(_)))
            .count();
        assert_eq!(won, 1, "{claim:?} {cancel:?}");
    }
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn case_p13_a_deadlock_is_tried_again_and_never_shown() {
    let b = Bench::on_pg(Fencing::Enforced).await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 400).await;
    let admin = b.schema().admin().await;
    // Somebody who locks in the wrong order and never looks for the deadlock, so that the store's session is the one that
    // the server rolls back.
    admin
        .batch_execute("SET deadlock_timeout = '10min'; BEGIN; SELECT 1 FROM payout WHERE payout_id = 'P' FOR UPDATE")
        .await
        .unwrap();
    let claim = call(&b.store, "P", claim(5));
    wait_until(
        &b,
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'",
    )
    .await;
    admin
        .batch_execute("SELECT 1 FROM account WHERE account_id = 'A' FOR UPDATE")
        .await
        .unwrap();
    // The claim was rolled back, or this could not have been locked. It is made again, and waits again.
    assert!(!claim.is_finished());
    admin.batch_execute("COMMIT").await.unwrap();
    assert_eq!(done(claim.await.unwrap().unwrap()).claim_token, Some(5));
    assert_eq!(b.violations().await, Vec::<String>::new());
}

/// Awaits what a question with the store's application name in it says.
async fn wait_until(b: &Bench, question: &str) {
    let admin = b.schema().by_admin();
    for _ in 0..2_000 {
        if admin.query_one(question, &[&b.schema().name]).await.unwrap().get(0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never came true: {question}");
}

/// Makes the database refuse the next `times` facts with this SQLSTATE, at once or when the transaction commits.
async fn refuse_facts(b: &Bench, state: &str, times: u32, at_commit: bool) {
    let kind = if at_commit { "CONSTRAINT TRIGGER" } else { "TRIGGER" };
    let when = if at_commit { "DEFERRABLE INITIALLY DEFERRED" } else { "" };
    b.execute(&format!(
        "DROP SEQUENCE IF EXISTS refused CASCADE; CREATE SEQUENCE refused; GRANT USAGE ON refused TO PUBLIC;
         CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             -- What a sequence gave is not rolled back.
             IF nextval('refused') <= {times} THEN
                 RAISE EXCEPTION 'refused by the test' USING ERRCODE = '{state}';
             END IF;
             RETURN NULL;
         END $$;
         DROP TRIGGER IF EXISTS refuse ON payment_event;
         CREATE {kind} refuse AFTER INSERT ON payment_event {when} FOR EACH ROW EXECUTE FUNCTION refuse()"
    ))
    .await
    .unwrap();
}

#[tokio::test]
async fn case_p13_a_serialization_failure_is_tried_again_wherever_it_comes() {
    for at_commit in [false, true] {
        let (b, _) = claimed().await;
        b.rail.says("P", Some("ACKED"), Some("r1")).await;
        refuse_facts(&b, "40001", 3, at_commit).await;
        done(b.post("P", 5, "r1").await);
        assert_eq!(b.legs("P").await, 2, "at commit: {at_commit}");
        assert_eq!(b.violations().await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_write_that_fails_in_front_of_commit_is_no_success_and_leaves_nothing() {
    // COMMIT was sent together with it, and is answered without an error: by a rollback.
    for (state, at_commit) in [("53100", false), ("53100", true), ("XX000", false)] {
        let (b, _) = claimed().await;
        b.rail.says("P", Some("ACKED"), Some("r1")).await;
        refuse_facts(&b, state, 1, at_commit).await;
        let before = b.all_rows().await;
        let error = b.store.apply(command("P", post(5, "r1")), WITHIN).await.unwrap_err();
        assert!(!error.is_ambiguous(), "{state} at commit {at_commit}: {error}");
        assert_eq!(b.all_rows().await, before, "{state} at commit {at_commit}");
        done(b.post("P", 5, "r1").await);
    }
}

#[tokio::test]
async fn a_fenced_write_that_finds_nothing_undoes_the_whole_verb() {
    // The mark was advanced and COMMIT sent by then. Nothing can bring this about, so the test makes the row unmovable.
    let b = Bench::on_pg(Fencing::Enforced).await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 400).await;
    b.execute(
        "CREATE FUNCTION unmoved() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER unmoved BEFORE UPDATE ON payout FOR EACH ROW EXECUTE FUNCTION unmoved()",
    )
    .await
    .unwrap();
    let before = b.all_rows().await;
    let error = b.store.apply(command("P", claim(5)), WITHIN).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    assert_eq!(b.all_rows().await, before);
}

#[tokio::test]
async fn a_commit_that_is_not_answered_in_time_is_unknown_and_the_verb_can_be_repeated() {
    let (b, _) = claimed().await;
    b.rail.says("P", Some("ACKED"), Some("r1")).await;
    b.execute(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(600); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER dawdle AFTER INSERT ON payment_event DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION dawdle()",
    )
    .await
    .unwrap();
    let error = b
        .store
        .apply(command("P", post(5, "r1")), Duration::from_secs(6))
        .await
        .unwrap_err();
    assert!(error.is_ambiguous(), "{error}");
    // The given-up COMMIT is cancelled, so that whoever comes next does not wait for it.
    wait_until(
        &b,
        "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = $1 AND state = 'active'",
    )
    .await;
    b.execute("DROP FUNCTION dawdle() CASCADE").await.unwrap();
    done(b.post("P", 5, "r1").await);
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_row_that_somebody_holds_delays_and_never_refuses() {
    let b = Bench::on_pg(Fencing::Enforced).await;
    b.account("A", 1_000).await;
    b.payout("P", "A", 400).await;
    let admin = b.schema().admin().await;
    admin
        .batch_execute("BEGIN; SELECT 1 FROM account FOR UPDATE")
        .await
        .unwrap();
    let patient = call(&b.store, "P", claim(6));
    // Too short a time to begin: certainly not done, and said so.
    let hurried = b
        .store
        .apply(command("P", claim(7)), Duration::from_millis(100))
        .await
        .unwrap_err();
    assert!(!hurried.is_ambiguous(), "{hurried}");
    assert!(!patient.is_finished());
    admin.batch_execute("COMMIT").await.unwrap();
    assert_eq!(done(patient.await.unwrap().unwrap()).claim_token, Some(6));
}

#[tokio::test]
async fn an_answer_is_durable_whatever_the_servers_default_is() {
    let b = Bench::on_pg(Fencing::Enforced).await;
    let schema = b.schema();
    b.execute(&format!(
        "ALTER ROLE {} SET synchronous_commit = off;
         CREATE TABLE seen (verb text, setting text);
         CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
         BEGIN
             INSERT INTO seen VALUES (NEW.kind, current_setting('synchronous_commit'));
             RETURN NULL;
         END $$;
         CREATE TRIGGER see AFTER INSERT ON payment_event FOR EACH ROW EXECUTE FUNCTION see()",
        schema.payment_role
    ))
    .await
    .unwrap();
    // Connections that begin now have the default.
    let store = b.another_store().await;
    let row = schema
        .connect_as(&schema.payment_role)
        .await
        .query_one("SELECT current_setting('synchronous_commit')", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, String>(0), "off");
    let open = NewAccount {
        account_id: "A".into(),
        currency: "EUR".into(),
        opening_balance_minor: 10,
        actor: None,
    };
    store.open_account(open, WITHIN).await.unwrap();
    let credit = NewCredit {
        idempotency_key: "k".into(),
        account_id: "A".into(),
        amount_minor: 5,
        reference: "top-up".into(),
        actor: None,
    };
    store.credit(credit, WITHIN).await.unwrap();
    for payout in ["P", "Q", "R"] {
        store.create_payout(new_payout(payout, "A", 1), WITHIN).await.unwrap();
    }
    let apply = async |payout: &str, verb| done(store.apply(command(payout, verb), WITHIN).await.unwrap());
    apply("P", claim(1)).await;
    b.rail.says("P", Some("ACKED"), Some("r")).await;
    apply("P", post(1, "r")).await;
    apply("Q", claim(2)).await;
    b.rail.says("Q", Some("TIMEOUT"), None).await;
    apply("Q", ambiguous(2)).await;
    store.escalate(i64::MAX, 10, WITHIN).await.unwrap();
    b.rail.says("Q", Some("ACKED"), Some("r")).await;
    apply("Q", crate::support::resolve(3, payment_store::Resolution::Posted)).await;
    let fence = RaiseFence {
        account_id: "A".into(),
        token: crate::support::t(9),
        actor: None,
    };
    store.raise_fence(fence, WITHIN).await.unwrap();
    let cancel = Verb::Cancel {
        operator: "op".into(),
        reason: None,
    };
    apply("R", cancel).await;
    let seen: Vec<(String, String)> = schema
        .admin()
        .await
        .query("SELECT verb, setting FROM seen", &[])
        .await
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    let verbs: BTreeSet<_> = seen.iter().map(|(verb, _)| verb.as_str()).collect();
    assert_eq!(
        verbs,
        BTreeSet::from([
            "ACCOUNT_OPENED",
            "AMBIGUOUS",
            "CANCEL",
            "CLAIM",
            "CREATE",
            "CREDITED",
            "ESCALATED",
            "FENCE_RAISED",
            "POST",
            "RESOLVE_POSTED"
        ])
    );
    assert!(seen.iter().all(|(_, setting)| setting == "on"), "{seen:?}");
}

#[tokio::test]
async fn sessions_that_are_ended_in_the_middle_leave_no_half_verb() {
    const ACCOUNTS: usize = 4;
    const PAYOUTS: usize = 6;
    // Sessions ended in a row without a verb getting through meanwhile: on a slow machine a verb takes longer than the time
    // between two ends, and nobody would ever get on.
    const IN_A_ROW: u32 = 8;
    let b = Bench::on_pg(Fencing::Enforced).await;
    let stores = [b.store.clone(), b.another_store().await];
    for account in 0..ACCOUNTS {
        b.account(&format!("A{account}"), 100_000).await;
        for n in 0..PAYOUTS {
            let payout = format!("P{account}-{n}");
            b.payout(&payout, &format!("A{account}"), 10).await;
            b.rail.says(&payout, Some("ACKED"), Some("r")).await;
        }
    }
    // Ends the stores' sessions one after the other, wherever they are.
    let over = Arc::new(AtomicBool::new(false));
    let through = Arc::new(AtomicUsize::new(0));
    let (admin, name, ended, passed) = (
        b.schema().admin().await,
        b.schema().name.clone(),
        over.clone(),
        through.clone(),
    );
    let killer = tokio::spawn(async move {
        let (mut killed, mut in_a_row, mut seen) = (0_i64, 0, 0);
        while !ended.load(Ordering::SeqCst) {
            let now = passed.load(Ordering::SeqCst);
            if now != seen {
                (seen, in_a_row) = (now, 0);
            }
            if in_a_row == IN_A_ROW {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            let hit = admin
                .query_one(
                    "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
                      WHERE application_name = $1 AND state <> 'idle' ORDER BY random() LIMIT 1) busy",
                    &[&name],
                )
                .await
                .unwrap()
                .get::<_, i64>(0);
            killed += hit;
            in_a_row += u32::from(hit > 0);
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        killed
    });
    let workers: Vec<_> = (0..ACCOUNTS)
        .map(|account| {
            let (stores, through) = (stores.clone(), through.clone());
            tokio::spawn(async move {
                let mut unknown = 0;
                for n in 0..PAYOUTS {
                    let (payout, token) = (format!("P{account}-{n}"), n as u64 + 1);
                    for verb in [claim(token), post(token, "r")] {
                        // The same verb under the same token is always safe: it replays, or is done now.
                        for attempt in 0.. {
                            assert!(attempt < 200, "{payout}: {verb:?} never got through");
                            let store = &stores[(account + n + attempt) % 2];
                            match store.apply(command(&payout, verb.clone()), WITHIN).await {
                                Ok(StepOutcome::Done(_) | StepOutcome::Replayed(_)) => break,
                                Ok(StepOutcome::Refused(refusal)) => panic!("{payout}: {verb:?}: {refusal:?}"),
                                Err(error) => unknown += i32::from(error.is_ambiguous()),
                            }
                        }
                        through.fetch_add(1, Ordering::SeqCst);
                    }
                }
                unknown
            })
        })
        .collect();
    let mut unknown = 0;
    for worker in workers {
        unknown += worker.await.unwrap();
    }
    over.store(true, Ordering::SeqCst);
    let killed = killer.await.unwrap();
    println!("{killed} sessions ended, {unknown} answers unknown");
    assert!(killed > 0, "nothing was interrupted");
    for account in 0..ACCOUNTS {
        let Account {
            balance_minor,
            held_minor,
            fence,
            ..
        } = b.account_now(&format!("A{account}")).await;
        assert_eq!((balance_minor, held_minor, fence), (99_940, 0, PAYOUTS as u64));
        for n in 0..PAYOUTS {
            let payout = format!("P{account}-{n}");
            assert_eq!(
                (b.now(&payout).await.state, b.legs(&payout).await),
                (PayoutState::Posted, 2)
            );
        }
    }
    assert_eq!(b.violations().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_cursor_over_the_facts_misses_none() {
    let b = Bench::on_pg(Fencing::Enforced).await;
    // Between the moment a fact gets its place and its commit some time passes, as it may.
    b.execute(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_sleep(random() * 0.02); RETURN NULL; END $$;
         CREATE TRIGGER dawdle AFTER INSERT ON payment_event FOR EACH ROW EXECUTE FUNCTION dawdle()",
    )
    .await
    .unwrap();
    let stores = [b.store.clone(), b.another_store().await];
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let store = stores[writer % 2].clone();
            tokio::spawn(async move {
                let account = format!("A{writer}");
                let open = NewAccount {
                    account_id: account.clone(),
                    currency: "EUR".into(),
                    opening_balance_minor: 1_000,
                    actor: None,
                };
                store.open_account(open, WITHIN).await.unwrap();
                for n in 0..10 {
                    let credit = NewCredit {
                        idempotency_key: format!("k{writer}-{n}"),
                        account_id: account.clone(),
                        amount_minor: 1,
                        reference: "top-up".into(),
                        actor: None,
                    };
                    store.credit(credit, WITHIN).await.unwrap();
                }
            })
        })
        .collect();
    // Reads on from what it saw last, while others write.
    let (mut cursor, mut seen) = (0, Vec::new());
    while !writers.iter().all(JoinHandle::is_finished) {
        for fact in b.store.audit(cursor, 5, WITHIN).await.unwrap() {
            cursor = fact.seq;
            seen.push(fact);
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    seen.extend(b.store.audit(cursor, 1_000, WITHIN).await.unwrap());
    assert_eq!(seen.len(), 88);
    assert_eq!(seen, b.store.audit(0, 1_000, WITHIN).await.unwrap());
}

#[tokio::test]
async fn what_is_settled_costs_nothing_any_more() {
    // NFR-04: the tally, the list of what is due and the next claim go along indexes, however much is settled.
    let b = Bench::on_pg(Fencing::Enforced).await;
    b.account("A", 1_000).await;
    b.execute(
        "INSERT INTO payout (payout_id, account_id, amount_minor, currency, creditor, state, created_at, updated_at)
         SELECT 'S' || n, 'A', 1, 'EUR', '{\"name\":\"n\",\"account\":\"a\"}', 'FAILED', n, n
           FROM generate_series(1, 20000) n;
         INSERT INTO payout_transition (payout_id, step, from_state, to_state, token, actor, at)
         SELECT payout_id, 'fail', 'CLAIMED', 'FAILED', seq, 'w', 0 FROM payout;
         ANALYZE",
    )
    .await
    .unwrap();
    b.payout("P", "A", 400).await;
    // Sessions tell the server what they did when they end at the latest; this one read all payouts, and tells it now.
    b.execute("SELECT pg_stat_force_next_flush()").await.unwrap();
    let store = b.schema().store(Fencing::Enforced).await;
    let before = scans(&b).await;
    store.tally(WITHIN).await.unwrap();
    store.escalate(i64::MAX, 10, WITHIN).await.unwrap();
    done(store.apply(command("P", claim(30_000)), WITHIN).await.unwrap());
    b.rail.says("P", Some("TIMEOUT"), None).await;
    done(store.apply(command("P", ambiguous(30_000)), WITHIN).await.unwrap());
    assert_eq!(store.escalate(i64::MAX, 10, WITHIN).await.unwrap(), ["P"]);
    store.tally(WITHIN).await.unwrap();
    let open = payment_store::PayoutQuery {
        state: Some(PayoutState::Claimed),
        limit: 100,
        ..Default::default()
    };
    store.payouts(open, WITHIN).await.unwrap();
    store.close();
    drop(store);
    let mut after = scans(&b).await;
    for _ in 0..1_000 {
        if after.1 >= before.1 + 10 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        after = scans(&b).await;
    }
    assert!(
        after.1 >= before.1 + 10,
        "the server's statistics never came: {before:?} {after:?}"
    );
    assert_eq!(after.0, before.0, "somebody read a whole table");
}

/// How often payouts and their histories were read as a whole, and by an index.
async fn scans(b: &Bench) -> (i64, i64) {
    let row = b
        .schema()
        .by_admin()
        .query_one(
            "SELECT sum(seq_scan)::bigint, sum(idx_scan)::bigint FROM pg_stat_user_tables
              WHERE schemaname = $1 AND relname IN ('payout', 'payout_transition')",
            &[&b.schema().name],
        )
        .await
        .unwrap();
    (row.get(0), row.get(1))
}
