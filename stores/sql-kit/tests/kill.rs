//! A process is killed at a random moment while many callers write: whatever was answered is there.

#![allow(clippy::unwrap_used, reason = "a test")]

use host_kit::{Host, Random};
use sql_kit::rusqlite;
use sql_kit::{Decision, Location, Migration, Sqlite, SqliteOptions};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const FILE: &str = "SQL_KIT_KILL_FILE";
const ROUND: &str = "SQL_KIT_KILL_ROUND";
const ROUNDS: u64 = 25;

const SCHEMA: &[Migration] = &[Migration {
    version: 1,
    name: "one",
    // Two tables and an index, so that half a transaction would be seen.
    sql: "CREATE TABLE t (x INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
          CREATE TABLE u (x INTEGER PRIMARY KEY REFERENCES t) STRICT;
          CREATE INDEX t_body ON t (body);",
}];

fn open(path: &Path) -> Sqlite {
    let mut options = SqliteOptions::new(Location::File(path.to_owned()), SCHEMA);
    options.exclusive = true;
    Sqlite::open(options, &Host::system()).unwrap()
}

/// Not a test of its own: what is killed. Writes with sixteen callers and prints each number once it was answered.
#[test]
#[ignore = "run and killed by what_was_answered_survives_a_kill"]
fn child_writes_until_it_is_killed() {
    let (path, round): (PathBuf, i64) = (
        std::env::var(FILE).unwrap().into(),
        std::env::var(ROUND).unwrap().parse().unwrap(),
    );
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(async {
            let sqlite = open(&path);
            println!("\nready");
            let mut callers = tokio::task::JoinSet::new();
            for caller in 0..16 {
                let sqlite = sqlite.clone();
                callers.spawn(async move {
                    for n in 0.. {
                        let x = round * 1_000_000_000 + caller * 10_000_000 + n;
                        sqlite
                            .write(SOON, move |c| {
                                c.execute("INSERT INTO t VALUES (?1, randomblob(300))", [x])?;
                                c.execute("INSERT INTO u VALUES (?1)", [x]).map(Decision::Commit)
                            })
                            .await
                            .unwrap();
                        let mut out = std::io::stdout().lock();
                        writeln!(out, "answered {x}").and_then(|()| out.flush()).unwrap();
                    }
                });
            }
            callers.join_all().await;
        });
}

#[tokio::test]
async fn what_was_answered_survives_a_kill() {
    let seed = std::env::var("SEED").map_or_else(|_| Random::from_os().u64(), |seed| seed.parse().unwrap());
    eprintln!("SEED={seed}");
    let random = Random::seeded(seed);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let mut answered = BTreeSet::new();
    let mut unanswered = 0;
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "child_writes_until_it_is_killed", "--nocapture"])
            .env(FILE, &path)
            .env(ROUND, round.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (kill_after, mut seen) = (random.below(400), 0);
        for line in lines {
            // The last line may be cut off by the kill: then it was not told.
            let Ok(line) = line else { break };
            if line == "ready" && kill_after == 0 {
                child.kill().unwrap();
            }
            let Some(x) = line.strip_prefix("answered ") else {
                continue;
            };
            answered.insert(x.parse::<i64>().unwrap());
            seen += 1;
            if seen == kill_after {
                // SIGKILL, while the writer works on what the other callers sent.
                child.kill().unwrap();
            }
        }
        assert!(!child.wait().unwrap().success(), "it ended by itself");
        // Opening at once: the file is free as soon as the process is dead.
        let sqlite = open(&path);
        let (kept, whole) = sqlite
            .read(SOON, |c| {
                let integrity: String = c.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
                assert_eq!(integrity, "ok");
                let list = |sql: &str| {
                    c.prepare(sql)?
                        .query_map([], |row| row.get(0))?
                        .collect::<rusqlite::Result<BTreeSet<i64>>>()
                };
                Ok((list("SELECT x FROM t")?, list("SELECT x FROM u")?))
            })
            .await
            .unwrap();
        assert_eq!(kept, whole, "half a transaction");
        let lost: Vec<_> = answered.difference(&kept).collect();
        assert!(lost.is_empty(), "round {round}: answered and lost: {lost:?}");
        unanswered = kept.len() - answered.len();
        sqlite.close().await;
    }
    eprintln!(
        "{} answered in {ROUNDS} lives, {unanswered} more committed without an answer",
        answered.len()
    );
    assert!(answered.len() > 500, "too little was written to mean anything");
}
