//! The fence inside PostgreSQL, against a real server: what it refuses, and what it does to transactions that race.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "tests")]

use fence_kit::sql::{self, INSTALL, UNINSTALL};
use host_kit::Random;
use http_contract::Code;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use test_servers::{fresh_schema, postgres_or_skip};
use tokio_postgres::{Client, Config, Error, NoTls};

const LONG: Duration = Duration::from_secs(30);

/// A schema with the kit installed, and a table that it fences: `account`, key `account:<id>`.
#[derive(Clone)]
struct Db {
    url: String,
    schema: String,
}

impl Db {
    async fn new() -> Self {
        Self::with(INSTALL).await
    }

    async fn with(install: &str) -> Self {
        let db = Self {
            url: postgres_or_skip().await,
            schema: fresh_schema(),
        };
        let client = db.client().await;
        client
            .batch_execute(&format!("CREATE SCHEMA {}", db.schema))
            .await
            .unwrap();
        // As a tool that runs migrations does: one string, one transaction.
        client.batch_execute(install).await.unwrap();
        let path: String = client.query_one("SHOW search_path", &[]).await.unwrap().get(0);
        assert_eq!(path, db.schema, "the migration leaves the session as it was");
        client
            .batch_execute(
                "CREATE TABLE account (id text PRIMARY KEY, n bigint NOT NULL, token bigint NOT NULL);
                 CREATE TABLE journal (seq bigserial PRIMARY KEY, id text NOT NULL, n bigint NOT NULL, token bigint NOT NULL);
                 CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN INSERT INTO journal (id, n, token) VALUES (NEW.id, NEW.n, NEW.token); RETURN NULL; END $$;
                 CREATE TRIGGER note AFTER INSERT OR UPDATE ON account FOR EACH ROW EXECUTE FUNCTION note();
                 SELECT dlock_fence_table('account', 'account:', 'id')",
            )
            .await
            .unwrap();
        db
    }

    async fn client(&self) -> Client {
        let mut config: Config = self.url.parse().unwrap();
        config.options(format!("-c search_path={}", self.schema));
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

/// Runs statements as one transaction that ends whatever comes.
async fn run(client: &Client, statements: &str) -> Result<(), Error> {
    let done = client.batch_execute(&format!("BEGIN; {statements}; COMMIT")).await;
    if done.is_err() {
        client.batch_execute("ROLLBACK").await.unwrap();
    }
    done
}

fn with_token(token: u64, statements: &str) -> String {
    format!("SELECT set_config('dlock.token', '{token}', true); {statements}")
}

/// The SQLSTATE, and the refusal that the kit makes of it.
fn refused(done: Result<(), Error>) -> (String, http_contract::Problem) {
    let error = done.expect_err("it was let through");
    let error = error.as_db_error().unwrap();
    let refusal = sql::refusal(error.code().code(), error.message(), error.detail());
    let refusal = refusal.unwrap_or_else(|| panic!("none of the fence's: {error:?}"));
    (error.code().code().to_owned(), refusal.problem("00"))
}

const ADD_A: &str = "INSERT INTO account VALUES ('A', 0, 1)";

#[tokio::test]
async fn a_write_without_a_token_or_under_a_stale_one_is_refused() {
    let db = Db::new().await;
    let client = db.client().await;
    let (state, problem) = refused(run(&client, ADD_A).await);
    assert_eq!(
        (state.as_str(), problem.code),
        (sql::REQUIRED, Code::FencingTokenRequired)
    );

    run(&client, &with_token(5, ADD_A)).await.unwrap();
    // The token went with its transaction.
    for statement in ["UPDATE account SET n = 1", "DELETE FROM account"] {
        assert_eq!(refused(run(&client, statement).await).0, sql::REQUIRED);
    }
    let (state, problem) = refused(run(&client, &with_token(4, "UPDATE account SET n = 1")).await);
    assert_eq!((state.as_str(), problem.code), (sql::STALE, Code::FencedOut));
    assert_eq!(
        (
            problem.number("presented_token"),
            problem.number("highest_token"),
            problem.text("reason")
        ),
        (Some(4), Some(5), Some("stale"))
    );
    assert_eq!(
        problem.detail,
        "fenced out of account:A: presented token 4, highest token 5"
    );
    assert_eq!(
        refused(run(&client, "SELECT dlock_fence('account:A', 4)").await).0,
        sql::STALE
    );

    // The same holder goes on, a newer one takes over, another key has its own mark.
    run(&client, &with_token(5, "UPDATE account SET n = 1")).await.unwrap();
    run(&client, "SELECT dlock_fence('account:A', 6); UPDATE account SET n = 2")
        .await
        .unwrap();
    run(&client, &with_token(3, "INSERT INTO account VALUES ('B', 0, 3)"))
        .await
        .unwrap();
    // A token that was given for one key is none for another one.
    let other = "SELECT dlock_fence('account:A', 7); UPDATE account SET n = 9 WHERE id = 'B'";
    assert_eq!(refused(run(&client, other).await).0, sql::REQUIRED);
    // A refused transaction has raised nothing.
    run(&client, &with_token(6, "UPDATE account SET n = 3 WHERE id = 'A'"))
        .await
        .unwrap();
    let rows = client
        .query("SELECT id, n FROM account ORDER BY id", &[])
        .await
        .unwrap();
    let rows: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(rows, [("A".to_owned(), 3), ("B".to_owned(), 0)]);
}

#[tokio::test]
async fn what_is_no_token_and_what_would_slip_past_the_fence_is_refused() {
    let db = Db::new().await;
    let client = db.client().await;
    run(&client, &with_token(5, ADD_A)).await.unwrap();
    for text in [
        "05",
        "+5",
        "-5",
        "5.0",
        "5 ",
        "x",
        "0",
        "9007199254740992",
        "99999999999999999",
    ] {
        let token = format!("SELECT set_config('dlock.token', '{text}', true); UPDATE account SET n = 1");
        let (state, problem) = refused(run(&client, &token).await);
        assert_eq!(
            (state.as_str(), problem.code),
            (sql::INVALID, Code::FencingTokenInvalid),
            "{text:?}"
        );
    }
    for call in [
        "dlock_fence('', 5)",
        "dlock_fence(NULL, 5)",
        "dlock_fence('a', 0)",
        "dlock_fence('a', 9007199254740992)",
    ] {
        assert_eq!(
            refused(run(&client, &format!("SELECT {call}")).await).0,
            sql::INVALID,
            "{call}"
        );
    }
    assert_eq!(
        refused(run(&client, "SELECT dlock_fence('a', NULL)").await).0,
        sql::REQUIRED
    );
    let moved = with_token(6, "UPDATE account SET id = 'C'");
    assert_eq!(refused(run(&client, &moved).await).0, sql::KEY_CHANGED);
    assert_eq!(
        refused(run(&client, &with_token(6, "TRUNCATE account")).await).0,
        sql::TRUNCATED
    );
    let upsert = "INSERT INTO account VALUES ('A', 1, 4) ON CONFLICT (id) DO UPDATE SET n = 1";
    assert_eq!(refused(run(&client, &with_token(4, upsert)).await).0, sql::STALE);
    for mark in [
        "UPDATE dlock_fence_mark SET token = 1",
        "DELETE FROM dlock_fence_mark",
        "TRUNCATE dlock_fence_mark",
    ] {
        assert_eq!(refused(run(&client, mark).await).0, sql::KEY_CHANGED, "{mark}");
    }
    // A column without a value is no key.
    client
        .batch_execute("CREATE TABLE loose (id text); SELECT dlock_fence_table('loose', 'loose:', 'id')")
        .await
        .unwrap();
    assert_eq!(
        refused(run(&client, &with_token(9, "INSERT INTO loose VALUES (NULL)")).await).0,
        sql::INVALID
    );
    assert!(
        run(&client, "SELECT dlock_fence_table('loose', 'x', 'no_such_column')")
            .await
            .is_err()
    );
}

#[tokio::test]
async fn under_the_strict_rule_a_token_has_one_transaction() {
    let db = Db::new().await;
    let client = db.client().await;
    client
        .batch_execute("CREATE TABLE sent (id int, part int); SELECT dlock_fence_table('sent', 'mail', NULL, true)")
        .await
        .unwrap();
    let two = "INSERT INTO sent VALUES (1, 1); INSERT INTO sent VALUES (1, 2)";
    run(&client, &with_token(5, two)).await.unwrap();
    let (state, problem) = refused(run(&client, &with_token(5, two)).await);
    assert_eq!((state.as_str(), problem.code), (sql::SPENT, Code::FencedOut));
    assert_eq!(
        (
            problem.text("reason"),
            problem.number("presented_token"),
            problem.number("highest_token")
        ),
        (Some("token_spent"), Some(5), Some(5))
    );
    // What was rolled back was no effect.
    let broken = with_token(6, &format!("{two}; SELECT 1 / 0"));
    assert!(run(&client, &broken).await.is_err());
    run(&client, &with_token(6, two)).await.unwrap();
    let calls = "SELECT dlock_fence('pay', 6, true); SELECT dlock_fence('pay', 6, once => true)";
    run(&client, calls).await.unwrap();
    assert_eq!(refused(run(&client, calls).await).0, sql::SPENT);
}

/// A role that may write the table and call one function cannot lower, remove or write a mark.
#[tokio::test]
async fn the_writing_role_raises_marks_and_does_nothing_else_to_them() {
    let db = Db::new().await;
    let (client, schema) = (db.client().await, &db.schema);
    let role = format!("writer_{schema}");
    client
        .batch_execute(&format!(
            "CREATE ROLE {role} NOLOGIN; GRANT USAGE ON SCHEMA {schema} TO {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON account TO {role};
             GRANT INSERT ON journal TO {role}; GRANT USAGE ON SEQUENCE journal_seq_seq TO {role};
             GRANT EXECUTE ON FUNCTION dlock_fence(text, bigint, boolean) TO {role}"
        ))
        .await
        .unwrap();
    let as_role = |statements: &str| format!("SET LOCAL ROLE {role}; {statements}");
    run(&client, &as_role(&with_token(5, ADD_A))).await.unwrap();
    let fenced = "SELECT dlock_fence('account:A', 6); UPDATE account SET n = 1";
    run(&client, &as_role(fenced)).await.unwrap();
    assert_eq!(
        refused(run(&client, &as_role(&with_token(5, "UPDATE account SET n = 2"))).await).0,
        sql::STALE
    );
    for forbidden in [
        "SELECT * FROM dlock_fence_mark",
        "UPDATE dlock_fence_mark SET token = 1",
        "INSERT INTO dlock_fence_mark VALUES ('x', 1, '1')",
        "SELECT dlock_fence_judge('x', 1, false)",
        "SELECT dlock_unfence_table('account')",
        "ALTER TABLE account DISABLE TRIGGER ALL",
    ] {
        let error = run(&client, &as_role(forbidden)).await.expect_err(forbidden);
        assert_eq!(
            error.code().map(|code| code.code().to_owned()).as_deref(),
            Some("42501"),
            "{forbidden}: {error}"
        );
    }
    client
        .batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await
        .unwrap();
}

#[tokio::test]
async fn it_can_be_taken_away_again() {
    let db = Db::new().await;
    let client = db.client().await;
    client
        .batch_execute("SELECT dlock_unfence_table('account')")
        .await
        .unwrap();
    client.batch_execute(UNINSTALL).await.unwrap();
    run(&client, ADD_A).await.unwrap();
    client.batch_execute(INSTALL).await.unwrap();
}

/// Waits until that session waits for a lock.
async fn waits(watcher: &Client, pid: i32) {
    let from = Instant::now();
    loop {
        let row = watcher
            .query_one(
                "SELECT coalesce((SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1), false)",
                &[&pid],
            )
            .await
            .unwrap();
        if row.get(0) {
            return;
        }
        assert!(from.elapsed() < LONG, "it never waited for a lock");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn pid(client: &Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

/// Two transactions of one key, the first not yet committed: what the second one finds when it was let go on.
#[tokio::test]
async fn races_under_read_committed_are_decided_by_the_marks_lock() {
    let db = Db::new().await;
    let (first, second, watcher) = (db.client().await, Arc::new(db.client().await), db.client().await);
    let second_pid = pid(&second).await;
    run(&first, &with_token(1, ADD_A)).await.unwrap();
    let (mut older, mut key) = (1_i64, 0);
    // Existing key, and a key that neither has seen.
    for new_key in [false, true] {
        for (newer_first, commits) in [(true, true), (true, false), (false, true), (false, false)] {
            older += 10;
            key += 1;
            let name = if new_key {
                format!("new:{key}")
            } else {
                "account:A".to_owned()
            };
            let (one, two) = if newer_first {
                (older + 1, older)
            } else {
                (older, older + 1)
            };
            let case = format!("{name}: first {one}, then {two}, the first commits: {commits}");
            let before: i64 = first
                .query_one("SELECT n FROM account WHERE id = 'A'", &[])
                .await
                .unwrap()
                .get(0);
            first
                .batch_execute(&format!(
                    "BEGIN; SELECT dlock_fence('{name}', {one}); SELECT set_config('dlock.token', '{one}', true)"
                ))
                .await
                .unwrap();
            if !new_key {
                first
                    .batch_execute("UPDATE account SET n = n + 1 WHERE id = 'A'")
                    .await
                    .unwrap();
            }
            let waiting = {
                let (second, name) = (Arc::clone(&second), name.clone());
                tokio::spawn(async move {
                    second.batch_execute("BEGIN").await.unwrap();
                    let fenced = second
                        .batch_execute(&format!("SELECT dlock_fence('{name}', {two})"))
                        .await;
                    let seen: Option<i64> = match &fenced {
                        Ok(()) => Some(
                            second
                                .query_one("SELECT n FROM account WHERE id = 'A'", &[])
                                .await
                                .unwrap()
                                .get(0),
                        ),
                        Err(_) => None,
                    };
                    second.batch_execute("ROLLBACK").await.unwrap();
                    (fenced, seen)
                })
            };
            waits(&watcher, second_pid).await;
            first
                .batch_execute(if commits { "COMMIT" } else { "ROLLBACK" })
                .await
                .unwrap();
            let (fenced, seen) = waiting.await.unwrap();
            if newer_first && commits {
                assert_eq!(refused(fenced).0, sql::STALE, "{case}");
            } else {
                fenced.unwrap_or_else(|error| panic!("{case}: {error}"));
                // What the earlier holder committed is seen by whoever waited for it.
                let expected = before + i64::from(commits && !new_key);
                assert_eq!(seen, Some(expected), "{case}");
            }
        }
    }
    // The fence as a trigger alone, without the call before: the late write waits, and is refused.
    first
        .batch_execute(&format!("BEGIN; {}", with_token(1_000, "UPDATE account SET n = 100")))
        .await
        .unwrap();
    let late = {
        let second = Arc::clone(&second);
        tokio::spawn(async move { run(&second, &with_token(999, "UPDATE account SET n = 99")).await })
    };
    waits(&watcher, second_pid).await;
    first.batch_execute("COMMIT").await.unwrap();
    assert_eq!(refused(late.await.unwrap()).0, sql::STALE);
    // A snapshot that is older than the newer holder's commit does not get through either.
    second
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .await
        .unwrap();
    run(&first, &with_token(1_001, "UPDATE account SET n = 101"))
        .await
        .unwrap();
    let late = second
        .batch_execute("SELECT dlock_fence('account:A', 1002)")
        .await
        .expect_err("an old snapshot");
    assert_eq!(late.code().map(|code| code.code().to_owned()).as_deref(), Some("40001"));
    second.batch_execute("ROLLBACK").await.unwrap();
}

/// What the races show is the order of two statements: a fence that reads the mark before it has its lock lets the late
/// holder through.
#[tokio::test]
async fn a_fence_that_reads_before_it_locks_would_let_a_stale_token_through() {
    let read = "    SELECT * INTO STRICT mark FROM dlock_fence_mark AS m WHERE m.key = fence_key;\n";
    let lock = "    INSERT INTO dlock_fence_mark AS m (key, token, raised_in)";
    assert_eq!((INSTALL.matches(read).count(), INSTALL.matches(lock).count()), (1, 1));
    let careless = INSTALL
        .replace(read, "")
        .replace(lock, &format!("{}{lock}", read.replace("STRICT ", "")));
    for (install, passes) in [(INSTALL, false), (careless.as_str(), true)] {
        let db = Db::with(install).await;
        let (first, second, watcher) = (db.client().await, db.client().await, db.client().await);
        let second_pid = pid(&second).await;
        run(&first, &with_token(1, ADD_A)).await.unwrap();
        first
            .batch_execute("BEGIN; SELECT dlock_fence('account:A', 11)")
            .await
            .unwrap();
        let late = tokio::spawn(async move { run(&second, "SELECT dlock_fence('account:A', 10)").await });
        waits(&watcher, second_pid).await;
        first.batch_execute("COMMIT").await.unwrap();
        assert_eq!(late.await.unwrap().is_ok(), passes);
    }
}

#[derive(Debug, Default)]
struct Verdict {
    writes: usize,
    refused: u64,
    stale: usize,
    lost: i64,
}

/// Holders with rising tokens, some of which sleep between their grant and their writes, and some whose connection dies
/// while their transaction is on its way.
async fn stress(db: &Db, seed: u64, fenced: bool) -> Verdict {
    const KEYS: [&str; 3] = ["A", "B", "C"];
    let setup = db.client().await;
    setup.batch_execute("DELETE FROM journal").await.unwrap();
    for key in KEYS {
        let insert = with_token(
            1,
            &format!("INSERT INTO account VALUES ('{key}', 0, 0) ON CONFLICT DO NOTHING"),
        );
        if fenced {
            run(&setup, &insert).await.unwrap();
        }
        let _ = run(
            &setup,
            &format!("UPDATE account SET n = 0, token = 0 WHERE id = '{key}'"),
        )
        .await;
    }
    let tokens: Arc<Vec<AtomicU64>> = Arc::new(KEYS.iter().map(|_| AtomicU64::new(1)).collect());
    let refusals = Arc::new(AtomicU64::new(0));
    let random = Random::seeded(seed);
    let mut holders = Vec::new();
    for _ in 0..16 {
        let (db, tokens, refusals) = (db.clone(), Arc::clone(&tokens), Arc::clone(&refusals));
        let random = Random::seeded(random.u64());
        holders.push(tokio::spawn(async move {
            let mut client = Arc::new(db.client().await);
            for _ in 0..40 {
                let at = usize::try_from(random.below(3)).unwrap();
                let (key, token) = (KEYS[at], tokens[at].fetch_add(1, Ordering::SeqCst) + 1);
                for _ in 0..=random.below(2) {
                    if random.chance(0.3) {
                        tokio::time::sleep(random.up_to(Duration::from_millis(60))).await;
                    }
                    let fence = if fenced {
                        format!("SELECT dlock_fence('account:{key}', {token});")
                    } else {
                        String::new()
                    };
                    let nap = random.up_to(Duration::from_millis(4)).as_secs_f64();
                    let read_then_write = format!(
                        "{fence} SELECT set_config('test.n', (SELECT n::text FROM account WHERE id = '{key}'), true);
                         SELECT pg_sleep({nap});
                         UPDATE account SET n = current_setting('test.n')::bigint + 1, token = {token} WHERE id = '{key}'"
                    );
                    if random.chance(0.1) {
                        // Its caller goes away; what was sent is executed all the same.
                        let (gone, late) = (Arc::clone(&client), read_then_write.clone());
                        let task = tokio::spawn(async move { drop(run(&gone, &late).await) });
                        tokio::time::sleep(random.up_to(Duration::from_millis(3))).await;
                        task.abort();
                        client = Arc::new(db.client().await);
                        continue;
                    }
                    if let Err(error) = run(&client, &read_then_write).await {
                        assert_eq!(error.code().map(|code| code.code().to_owned()).as_deref(), Some(sql::STALE), "{error:?}");
                        refusals.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }
        }));
    }
    for holder in holders {
        holder.await.unwrap();
    }
    // Sessions whose caller has gone end by themselves.
    let from = Instant::now();
    let busy = "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace s ON s.oid = c.relnamespace
                 WHERE s.nspname = current_schema() AND l.pid <> pg_backend_pid()";
    while setup.query_one(busy, &[]).await.unwrap().get::<_, i64>(0) > 0 {
        assert!(from.elapsed() < LONG, "a session is still at it");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let rows = setup
        .query("SELECT id, token FROM journal WHERE token > 1 ORDER BY seq", &[])
        .await
        .unwrap();
    let mut verdict = Verdict {
        writes: rows.len(),
        refused: refusals.load(Ordering::SeqCst),
        ..Verdict::default()
    };
    for key in KEYS {
        let of_key: Vec<i64> = rows
            .iter()
            .filter(|row| row.get::<_, &str>(0) == key)
            .map(|row| row.get(1))
            .collect();
        let mut highest = 0;
        for token in &of_key {
            verdict.stale += usize::from(*token < highest);
            highest = highest.max(*token);
        }
        let n: i64 = setup
            .query_one("SELECT n FROM account WHERE id = $1", &[&key])
            .await
            .unwrap()
            .get(0);
        verdict.lost += i64::try_from(of_key.len()).unwrap() - n;
    }
    verdict
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_stress_no_stale_write_gets_through_and_without_the_kit_some_do() {
    let seed = Random::from_os().u64();
    println!("seed {seed}");
    let db = Db::new().await;
    let on = stress(&db, seed, true).await;
    println!("fenced: {on:?}");
    let setup = db.client().await;
    setup
        .batch_execute("SELECT dlock_unfence_table('account')")
        .await
        .unwrap();
    let off = stress(&db, seed, false).await;
    println!("without: {off:?}");
    assert_eq!((on.stale, on.lost), (0, 0), "seed {seed}: {on:?}");
    assert!(
        on.refused > 0 && on.writes > 100,
        "seed {seed}: it was no stress: {on:?}"
    );
    assert!(
        off.stale > 0 && off.lost > 0,
        "seed {seed}: the control shows nothing: {off:?}"
    );
}
