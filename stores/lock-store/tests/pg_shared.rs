//! What only a shared server can show: several lock servers on one database, connections that are killed, a database that
//! is restored, a clock and a sequence that somebody else moves.
#![cfg(feature = "pg")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "tests make up tokens and read the clock")]

mod pg_steps;

use futures_util::future::join_all;
use host_kit::Host;
use lock_api::{
    AcquireOutcome, EventKind, FencingToken, FloorOutcome, Heartbeat, HeartbeatOutcome, LineageState, LockKey,
    LockStore, Operator, ReleaseOutcome, RenewOutcome, RenewRequest, SessionRegistry, StoreError,
};
use lock_store::PgLockStore;
use pg_kit::PasswordSource;
use pg_steps::{LONG, Place, SHORT, WITHIN, acquire, ask, facts, granted, one_holder_at_a_time, open, release, sid};
use std::time::{Duration, Instant};

/// L09: sixteen clients on two lock servers acquire and release one hot key: tokens strictly increase in grant order.
#[tokio::test]
async fn case_l09_a_hot_key_over_two_servers_for_ten_seconds() {
    let place = Place::fresh().await;
    let stores = [place.open().await, place.open().await];
    let until = Instant::now() + Duration::from_secs(10);
    join_all((0..16).map(|n| {
        let store = stores[n % 2].clone();
        async move {
            let session = format!("s{n}");
            open(&store, &session, LONG).await;
            let mut round = 0;
            while Instant::now() < until {
                round += 1;
                let seen = store.changed_since(u64::MAX, Duration::ZERO).await.unwrap();
                match acquire(&store, ask("hot", &session, &format!("r{round}"), LONG)).await {
                    AcquireOutcome::Granted { grant, .. } => {
                        assert_eq!(
                            release(&store, "hot", &session, grant.token).await,
                            ReleaseOutcome::Released
                        );
                    }
                    AcquireOutcome::HeldByOther(_) => {
                        store.changed_since(seen, WITHIN).await.unwrap();
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }))
    .await;
    let grants = one_holder_at_a_time(&facts(&stores[0]).await);
    assert!(grants > 0);
}

/// L07 on the database's own clock: the grant's row is locked by somebody for longer than its TTL.
#[tokio::test]
async fn case_l07_the_clock_is_read_after_the_row_lock() {
    let place = Place::fresh().await;
    let (store, admin, other) = (place.open().await, place.client().await, place.client().await);
    for id in ["s1", "s2", "s3"] {
        open(&store, id, LONG).await;
    }
    let ttl = Duration::from_secs(6);
    let token = granted(&store, "a", "s1", "r1", ttl).await;
    other
        .batch_execute("BEGIN; SELECT 1 FROM lock_grant WHERE lock_key = 'a' FOR UPDATE")
        .await
        .unwrap();
    let renew = RenewRequest {
        key: LockKey::new("a").unwrap(),
        session_id: sid("s1"),
        token,
        ttl: None,
    };
    let free = async {
        place.waiting(&admin, 3).await;
        other.batch_execute("COMMIT").await.unwrap();
    };
    // The renew waits from before the lease's end, the acquires from after it: one that comes before needs no lock to be
    // refused.
    let late = async {
        place.waiting(&admin, 1).await;
        assert!(matches!(
            acquire(&store, ask("a", "s2", "r2", LONG)).await,
            AcquireOutcome::HeldByOther(_)
        ));
        tokio::time::sleep(ttl + SHORT).await;
        tokio::join!(
            acquire(&store, ask("a", "s2", "r3", LONG)),
            acquire(&store, ask("a", "s3", "r4", LONG)),
            free
        )
    };
    let (renewed, (two, three, ())) = tokio::join!(store.renew(vec![renew], WITHIN), late);
    assert_eq!(renewed.unwrap(), [RenewOutcome::NotHolder]);
    let new = [&two, &three]
        .into_iter()
        .filter(|answer| matches!(answer, AcquireOutcome::Granted { .. }))
        .count();
    assert_eq!(new, 1, "{two:?} {three:?}");
    one_holder_at_a_time(&facts(&store).await);
}

/// D09: an acquire waits on the grant's row while the holder is granted it and its heartbeat commits: the holder keeps its
/// grant.
#[tokio::test]
async fn case_d09_the_holder_whose_heartbeat_commits_keeps_its_grant() {
    let place = Place::fresh().await;
    let (store, admin, other) = (place.open().await, place.client().await, place.client().await);
    open(&store, "s1", Duration::from_secs(20)).await;
    open(&store, "s2", LONG).await;
    let old = granted(&store, "a", "s2", "r0", LONG).await;
    assert_eq!(release(&store, "a", "s2", old).await, ReleaseOutcome::Released);
    other
        .batch_execute("BEGIN; SELECT 1 FROM lock_grant WHERE lock_key = 'a' FOR UPDATE")
        .await
        .unwrap();
    let first = granted(&store, "a", "s1", "r1", LONG);
    let second = async {
        place.waiting(&admin, 1).await;
        acquire(&store, ask("a", "s2", "r2", LONG)).await
    };
    let beat = async {
        place.waiting(&admin, 2).await;
        let beat = Heartbeat {
            session_id: sid("s1"),
            witness: None,
        };
        store.heartbeat(vec![beat], WITHIN).await.unwrap();
        other.batch_execute("COMMIT").await.unwrap();
    };
    let (token, asked, ()) = tokio::join!(first, second, beat);
    assert!(
        matches!(&asked, AcquireOutcome::HeldByOther(held) if held.holder.token == token),
        "{asked:?}"
    );
    let beat = Heartbeat {
        session_id: sid("s1"),
        witness: None,
    };
    let beat = store.heartbeat(vec![beat], WITHIN).await.unwrap().remove(0);
    assert!(
        matches!(&beat, HeartbeatOutcome::Alive { held, .. } if held.len() == 1),
        "{beat:?}"
    );
}

/// The losers of a held key are refused without its row's lock: they neither queue nor make its holder wait.
#[tokio::test]
async fn losers_of_a_held_key_do_not_wait_for_its_row() {
    let place = Place::fresh().await;
    let (store, other) = (place.open().await, place.client().await);
    for id in ["s1", "s2", "s3"] {
        open(&store, id, LONG).await;
    }
    let token = granted(&store, "a", "s1", "r1", LONG).await;
    other
        .batch_execute("BEGIN; SELECT 1 FROM lock_grant WHERE lock_key = 'a' FOR UPDATE")
        .await
        .unwrap();
    // A batch with a key that is free, one's own session twice, and a session that nobody knows.
    let batch = vec![
        ask("a", "s2", "r2", LONG),
        ask("b", "s2", "r3", LONG),
        ask("a", "s3", "r4", LONG),
        ask("b", "s3", "r5", LONG),
        ask("b", "nobody", "r6", LONG),
    ];
    let answers = store.acquire(batch, WITHIN).await.unwrap();
    let [
        AcquireOutcome::HeldByOther(one),
        AcquireOutcome::Granted { grant, .. },
        AcquireOutcome::HeldByOther(two),
        AcquireOutcome::HeldByOther(three),
        AcquireOutcome::SessionNotFound,
    ] = answers.as_slice()
    else {
        panic!("{answers:?}")
    };
    assert_eq!((one.holder.token, two.holder.token), (token, token));
    assert_eq!(one.holder.owner.as_str(), "owner of s1");
    assert!(one.holder.expires_in > LONG / 2 && !one.is_self);
    assert_eq!(three.holder.token, grant.token);
    // What only its row's lock can tell waits for it: the holder's own call, and a witness above the last token.
    let soon = Duration::from_millis(500);
    let own = store.acquire(vec![ask("a", "s1", "r1", LONG)], soon).await;
    assert!(
        matches!(own, Err(StoreError::Unavailable { .. } | StoreError::Unknown { .. })),
        "{own:?}"
    );
    other.batch_execute("COMMIT").await.unwrap();
    let mut doubtful = ask("a", "s2", "r7", LONG);
    doubtful.witness = Some(FencingToken::from_store(grant.token.get() + 5).unwrap());
    let answer = acquire(&store, doubtful).await;
    assert!(matches!(answer, AcquireOutcome::TokenRegression { .. }), "{answer:?}");
    // In doubt nobody is told that a key is merely held.
    let answer = acquire(&store, ask("a", "s3", "r8", LONG)).await;
    assert!(matches!(answer, AcquireOutcome::TokenRegression { .. }), "{answer:?}");
}

/// A lock server that starts again and again beside one that watches the clock, or within the moment that it needs to
/// start, makes no lease longer.
#[tokio::test]
async fn starting_over_and_over_makes_no_lease_longer() {
    let place = Place::fresh().await;
    let watching = place.open().await;
    open(&watching, "s1", LONG).await;
    granted(&watching, "a", "s1", "r1", LONG).await;
    let admin = place.client().await;
    // Half of its time is over: its full TTL again would be five minutes more.
    admin
        .batch_execute("UPDATE lock_grant SET expires_at = expires_at - interval '5 minutes'")
        .await
        .unwrap();
    let ends = async || {
        let sql = "SELECT extract(epoch FROM expires_at)::float8 FROM lock_grant WHERE lock_key = 'a'";
        admin.query_one(sql, &[]).await.unwrap().get::<_, f64>(0)
    };
    let before = ends().await;
    for _ in 0..10 {
        place.open().await.close();
    }
    // On a busy machine a look at the clock comes late: then the time since the last one does not count, and no more.
    assert!(ends().await < before + 60.0, "with another lock server beside");
    watching.close();
    for _ in 0..10 {
        place.open().await.close();
    }
    assert!(ends().await < before + 60.0, "one after the other");
}

/// The time in which no lock server watched the clock counts against no lease: it has left what it had left then, however
/// far the clock jumped meanwhile, and never more than its TTL.
#[tokio::test]
async fn time_that_nobody_watched_ends_nothing() {
    let place = Place::fresh().await;
    let store = place.open().await;
    open(&store, "s1", LONG).await;
    granted(&store, "young", "s1", "r1", LONG).await;
    granted(&store, "old", "s1", "r2", LONG).await;
    granted(&store, "over", "s1", "r3", LONG).await;
    store.close();
    for jump in ["20 minutes", "-20 minutes"] {
        let admin = place.client().await;
        // As if all of it had been written, and the clock last been watched, that much earlier by the clock's word.
        admin
            .batch_execute(&format!(
                "UPDATE lock_clock SET watched_at = clock_timestamp();
                 UPDATE lock_session SET expires_at = clock_timestamp() + interval '10 minutes';
                 UPDATE lock_grant SET expires_at = clock_timestamp() + CASE lock_key WHEN 'young' THEN interval '10 minutes'
                     WHEN 'old' THEN interval '1 minute' ELSE interval '-1 minute' END;
                 UPDATE lock_clock SET watched_at = watched_at - interval '{jump}';
                 UPDATE lock_session SET expires_at = expires_at - interval '{jump}';
                 UPDATE lock_grant SET expires_at = expires_at - interval '{jump}'"
            ))
            .await
            .unwrap();
        let store = place.open().await;
        let mut left = Vec::new();
        for key in ["young", "old", "over"] {
            let state = store
                .inspect(vec![LockKey::new(key).unwrap()], WITHIN)
                .await
                .unwrap()
                .remove(0);
            left.push(state.grant.map(|grant| grant.expires_in.as_secs()));
        }
        assert!(
            matches!(left[..], [Some(540..=600), Some(30..=60), None]),
            "after {jump}: {left:?}"
        );
        store.close();
    }
}

/// What another lock server watched is written down at least every second, without anybody calling.
#[tokio::test]
async fn the_clock_is_watched_while_nobody_calls() {
    let place = Place::fresh().await;
    let (store, admin) = (place.open().await, place.client().await);
    let at = async || {
        let sql = "SELECT extract(epoch FROM watched_at)::float8 FROM lock_clock";
        admin.query_one(sql, &[]).await.unwrap().get::<_, f64>(0)
    };
    let (first, deadline) = (at().await, Instant::now() + WITHIN);
    while at().await <= first + 1.0 {
        assert!(Instant::now() < deadline, "nobody watches");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    store.close();
}

/// A grant that one lock server records wakes who waits on another, at once and not by looking.
#[tokio::test]
async fn a_fact_wakes_who_waits_on_another_server() {
    let place = Place::fresh().await;
    let mut options = place.options();
    // Far longer than the test may take: only a notification wakes in time.
    options.poll_every = Duration::from_secs(3600);
    let (one, two) = (
        PgLockStore::open(options, &Host::system()).await.unwrap(),
        place.open().await,
    );
    open(&two, "s1", LONG).await;
    let mut seen = one.changed_since(0, WITHIN).await.unwrap();
    for round in 0..20 {
        let key = format!("k{round}");
        let (woken, _) = tokio::join!(one.changed_since(seen, WITHIN), granted(&two, &key, "s1", "r", LONG));
        let woken = woken.unwrap();
        assert!(woken > seen, "slept through {seen}");
        seen = woken;
    }
}

/// A row that somebody else holds: the call gives up within its time, was certainly not done, and leaves nothing behind.
#[tokio::test]
async fn a_wait_for_a_row_ends_within_the_deadline() {
    let place = Place::fresh().await;
    let (store, other, admin) = (place.open().await, place.client().await, place.client().await);
    open(&store, "s1", LONG).await;
    let token = granted(&store, "a", "s1", "r1", LONG).await;
    assert_eq!(release(&store, "a", "s1", token).await, ReleaseOutcome::Released);
    other
        .batch_execute("BEGIN; SELECT 1 FROM lock_grant FOR UPDATE")
        .await
        .unwrap();
    let within = Duration::from_millis(1500);
    // The server gives up shortly before the call does. Where a busy machine lets its word come too late, the call cannot
    // know, and is made again.
    let mut calls = 0;
    loop {
        calls += 1;
        let began = Instant::now();
        let request = ask("a", "s1", &format!("r2-{calls}"), LONG);
        let answer = store.acquire(vec![request], within).await;
        assert!(began.elapsed() < within + Duration::from_secs(10));
        match answer {
            Err(StoreError::Unavailable { .. }) => break,
            Err(StoreError::Unknown { .. }) if calls < 20 => {}
            other => panic!("{other:?}"),
        }
    }
    place.nobody_waits(&admin).await;
    other.batch_execute("COMMIT").await.unwrap();
    assert!(granted(&store, "a", "s1", "r3", LONG).await > token);
}

/// Many programs that start at once make one schema and one lineage.
#[tokio::test]
async fn starting_at_once_makes_one_store() {
    let place = Place::fresh().await;
    let stores = join_all((0..6).map(|_| place.open())).await;
    let ids = join_all(stores.iter().map(|store| store.lineage(WITHIN))).await;
    let first = ids[0].clone().unwrap().lineage;
    assert!(ids.into_iter().all(|one| one.unwrap().lineage == first));
}

/// A store of another lineage than the configured one grants nothing until an operator has set a floor.
#[tokio::test]
async fn another_lineage_than_the_configured_one_is_a_doubt() {
    let place = Place::fresh().await;
    place.open().await.close();
    let mut options = place.options();
    options.expected_lineage = Some("another".to_owned());
    let store = PgLockStore::open(options, &Host::system()).await.unwrap();
    open(&store, "s1", LONG).await;
    let answer = acquire(&store, ask("a", "s1", "r1", LONG)).await;
    assert!(matches!(answer, AcquireOutcome::TokenRegression { .. }), "{answer:?}");
    assert!(store.health(WITHIN).await.unwrap().problem.is_some());
    let cleared = store
        .advance_floor(1000, Operator::new("ops").unwrap(), "moved on purpose".into(), WITHIN)
        .await
        .unwrap();
    assert!(matches!(cleared, FloorOutcome::Changed(_)), "{cleared:?}");
    assert!(granted(&store, "a", "s1", "r2", LONG).await.get() > 1000);
}

/// `lock_last` waits for an advisory lock after it has read what it answers, where the table `gate` names it as the nth of
/// its transaction.
const GATED: &str = "
    CREATE TABLE gate (nth int NOT NULL);
    CREATE OR REPLACE FUNCTION lock_last() RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE
        v_last bigint;
        v_nth int := coalesce(nullif(current_setting('gate.nth', true), ''), '0')::int + 1;
    BEGIN
        SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END INTO v_last FROM lock_token_seq;
        PERFORM set_config('gate.nth', v_nth::text, true);
        IF EXISTS (SELECT FROM gate WHERE nth = v_nth) THEN
            PERFORM pg_advisory_xact_lock_shared(hashtext(current_schema()));
        END IF;
        RETURN v_last;
    END $$";

/// A key without a row is locked by nobody: another server's grant of it, made between the reading of the last token and
/// that of the key's own, was taken for a token above the last one minted, and from then on nothing was granted. So was a
/// floor that was raised in between.
#[tokio::test]
async fn what_is_minted_and_raised_between_two_reads_is_no_doubt() {
    let place = Place::fresh().await;
    place.open().await.close();
    let admin = place.client().await;
    admin.batch_execute(GATED).await.unwrap();
    let stores = [place.open().await, place.open().await];
    for id in ["s0", "s1"] {
        open(&stores[0], id, LONG).await;
    }
    for raised in [false, true] {
        for nth in 1..=3 {
            let name = format!("{nth}/{raised}");
            admin
                .batch_execute(&format!(
                    "SELECT pg_advisory_lock(hashtext(current_schema())); INSERT INTO gate VALUES ({nth})"
                ))
                .await
                .unwrap();
            let meanwhile = async {
                place.waiting(&admin, 1).await;
                admin.batch_execute("DELETE FROM gate").await.unwrap();
                let last = if raised {
                    let floor = stores[1].lineage(WITHIN).await.unwrap().last_token + 1_000;
                    let operator = Operator::new("ops").unwrap();
                    let raised = stores[1].advance_floor(floor, operator, "raised on purpose".into(), WITHIN);
                    assert!(matches!(raised.await.unwrap(), FloorOutcome::Changed(_)));
                    floor
                } else {
                    granted(&stores[1], &name, "s1", "r", LONG).await.get()
                };
                admin
                    .batch_execute("SELECT pg_advisory_unlock(hashtext(current_schema()))")
                    .await
                    .unwrap();
                last
            };
            let (answer, last) = tokio::join!(acquire(&stores[0], ask(&name, "s0", "r", LONG)), meanwhile);
            match answer {
                AcquireOutcome::Granted { grant, .. } if raised => {
                    assert!(grant.token.get() > last, "{name}: {grant:?}")
                }
                AcquireOutcome::HeldByOther(held) if !raised => assert_eq!(held.holder.token.get(), last, "{name}"),
                answer => panic!("{name}: {answer:?}"),
            }
            assert_eq!(
                stores[0].lineage(WITHIN).await.unwrap().state,
                LineageState::Ok,
                "{name}"
            );
        }
    }
}

/// The sequence is set back by hand: nothing is granted until the floor is above it again.
#[tokio::test]
async fn a_sequence_that_was_set_back_grants_nothing() {
    let place = Place::fresh().await;
    let (store, admin) = (place.open().await, place.client().await);
    open(&store, "s1", LONG).await;
    let mut last = granted(&store, "a", "s1", "r0", LONG).await;
    for n in 1..10 {
        assert_eq!(release(&store, "a", "s1", last).await, ReleaseOutcome::Released);
        last = granted(&store, "a", "s1", &format!("r{n}"), LONG).await;
    }
    assert_eq!(release(&store, "a", "s1", last).await, ReleaseOutcome::Released);
    admin.batch_execute("SELECT setval('lock_token_seq', 2)").await.unwrap();
    let answer = acquire(&store, ask("a", "s1", "again", LONG)).await;
    assert!(matches!(answer, AcquireOutcome::TokenRegression { .. }), "{answer:?}");
    assert_eq!(store.lineage(WITHIN).await.unwrap().state, LineageState::Regressed);
    let floor = last.get() + 1;
    store
        .advance_floor(floor, Operator::new("ops").unwrap(), "set back by hand".into(), WITHIN)
        .await
        .unwrap();
    assert!(granted(&store, "a", "s1", "r", LONG).await.get() > floor);
}

/// L31: the database is dumped, a thousand more grants are made, and the dump is restored under a running lock server. The
/// row of the lineage was written by another transaction than it says: the floor jumps before the first grant.
#[tokio::test]
async fn case_l31_no_token_of_the_lost_history_is_granted_again() {
    let place = Place::fresh().await;
    let (store, admin) = (place.open().await, place.client().await);
    open(&store, "s1", LONG).await;
    granted(&store, "a", "s1", "r", LONG).await;
    let Some(programs) = test_servers::Programs::of(&place.url) else {
        eprintln!("*** SKIPPED: no pg_dump of the server's version at hand ***");
        return;
    };
    let dump = programs.dump(&place.schema);
    let mut highest = 0;
    for batch in 0..10 {
        let asks = (0..100)
            .map(|n| ask(&format!("lost/{batch}/{n}"), "s1", "r", LONG))
            .collect();
        for answer in store.acquire(asks, WITHIN).await.unwrap() {
            let AcquireOutcome::Granted { grant, .. } = answer else {
                panic!("{answer:?}")
            };
            highest = highest.max(grant.token.get());
        }
    }
    test_servers::drop_schema(&admin, &place.schema).await;
    let gone = store.acquire(vec![ask("x", "s1", "r", LONG)], WITHIN).await;
    assert!(matches!(gone, Err(StoreError::Corrupt { .. })), "{gone:?}");
    programs.restore(&dump);
    let first = granted(&store, "lost/0/0", "s1", "new", LONG).await;
    assert!(first.get() > highest, "{first} after {highest}");
    let lineage = store.lineage(WITHIN).await.unwrap();
    assert!(
        lineage.token_floor > highest && lineage.state == LineageState::Ok,
        "{lineage:?}"
    );
    let raised = facts(&store)
        .await
        .into_iter()
        .filter(|fact| fact.kind == EventKind::FloorAdvanced)
        .count();
    assert_eq!(raised, 1, "one restore is one jump");
}

/// Nobody changes a fact, not even the owner of the table.
#[tokio::test]
async fn facts_are_append_only() {
    let place = Place::fresh().await;
    let (store, admin) = (place.open().await, place.client().await);
    open(&store, "s1", LONG).await;
    granted(&store, "a", "s1", "r", LONG).await;
    store.seal(100, WITHIN).await.unwrap().unwrap();
    let before = facts(&store).await;
    for forbidden in [
        "UPDATE lock_event SET actor = 'nobody'",
        "DELETE FROM lock_event",
        "TRUNCATE lock_event",
        "UPDATE lock_event_seal SET hash = prev_hash",
        "DELETE FROM lock_event_seal",
        "TRUNCATE lock_event_seal",
        "UPDATE lock_event_retention SET dropped_up_to = 1",
        "DELETE FROM lock_event_retention",
    ] {
        let error = admin.batch_execute(forbidden).await.expect_err(forbidden);
        assert_eq!(
            error.code().map(|code| code.code()),
            Some("DL009"),
            "{forbidden}: {error}"
        );
    }
    assert_eq!(facts(&store).await, before);
}

/// The password is in a file that is read again for each connection: it may change while the store is in use.
#[tokio::test]
async fn a_password_is_read_again_for_each_connection() {
    let place = Place::fresh().await;
    let admin = place.client().await;
    let role = &place.schema;
    let rights = format!("CREATE ROLE {role} LOGIN PASSWORD 'first'; GRANT CREATE ON DATABASE postgres TO {role}");
    test_servers::change_database(&admin, &rights).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "first\n").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut options = place.options();
    let at = place.url.split_once('@').unwrap().1;
    options.access.url = format!("postgres://{role}@{at}?application_name={role}");
    options.access.password = PasswordSource::File(file.clone());
    let store = PgLockStore::open(options, &Host::system()).await.unwrap();
    open(&store, "s1", LONG).await;
    admin
        .batch_execute(&format!("ALTER ROLE {role} PASSWORD 'second'"))
        .await
        .unwrap();
    std::fs::write(&file, "second").unwrap();
    let terminate = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = $1";
    admin.execute(terminate, &[role]).await.unwrap();
    // The first call may find its connection gone.
    let mut answer = store.lineage(WITHIN).await;
    if answer.is_err() {
        answer = store.lineage(WITHIN).await;
    }
    assert!(answer.is_ok(), "{answer:?}");
    // With a wrong one nothing was done, and it says so.
    std::fs::write(&file, "wrong").unwrap();
    admin.execute(terminate, &[role]).await.unwrap();
    let mut refused = store.acquire(vec![ask("a", "s1", "r", LONG)], WITHIN).await;
    if matches!(refused, Err(StoreError::Unknown { .. })) {
        refused = store.acquire(vec![ask("a", "s1", "r", LONG)], WITHIN).await;
    }
    assert!(
        matches!(&refused, Err(StoreError::Unavailable { detail }) if detail.contains("28P01")),
        "{refused:?}"
    );
}
