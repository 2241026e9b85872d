//! `dlock lock audit` and `dlock verify`: what the product exports is right, and a changed byte is found.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::whole::Whole;
use common::{Process, code, dlock, stderr, stdout, until};
use http_contract::lock::{AuditRow, SealRow};
use http_contract::payment::PayoutState;
use lock_server::seal::{FIRST_PREV_HASH, seal_hash};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;
use std::process::Output;

fn verify(args: &[&str]) -> Output {
    dlock().arg("verify").args(args).output().unwrap()
}

/// A trail with its seals, of a server that seals at once. Answers both files' texts.
fn exported(dir: &Path) -> (String, String) {
    let store = format!("sqlite:{}", dir.join("lock.db").display());
    let server = Process::start(&[
        "lock-server",
        "--listen",
        "127.0.0.1:0",
        "--store",
        &store,
        "--set",
        "lock.audit.seal-interval=100ms",
    ]);
    let run = |args: &[&str]| {
        let ran = dlock()
            .args(args)
            .env("DLOCK_LOCK_SERVER", server.url())
            .output()
            .unwrap();
        assert_eq!(code(&ran), 0, "{args:?}: {}", stderr(&ran));
        stdout(&ran)
    };
    let seals_to = dir.join("seals.jsonl");
    let export = || run(&["lock", "audit", "--seals-to", seals_to.to_str().unwrap()]);
    // Two grants of one key and one of another, in two segments at least.
    let sealed = |at_least: usize| {
        until("the rows are sealed", || {
            let rows = export().lines().count();
            let seals = std::fs::read_to_string(&seals_to).unwrap();
            let last: Value = seals
                .lines()
                .last()
                .map_or(Value::Null, |line| serde_json::from_str(line).unwrap());
            rows >= at_least && last["last_seq"].as_u64() == u64::try_from(rows).ok()
        });
    };
    for (key, rows) in [("a/b", 4), ("c", 8), ("a/b", 12)] {
        let ran = run(&["lock", "acquire", key, "--owner", "Ünal \"x\"", "-o", "json"]);
        let grant: Value = serde_json::from_str(&ran).unwrap();
        let (session, token) = (grant["session_id"].as_str().unwrap(), grant["token"].to_string());
        run(&["lock", "release", key, "--session", session, "--token", &token]);
        run(&["session", "close", session]);
        sealed(rows);
    }
    // Of a single key, so that something is held at the end, and revoked.
    run(&["lock", "acquire", "held", "--ttl", "60s"]);
    let token =
        serde_json::from_str::<Value>(&run(&["lock", "acquire", "d", "--ttl", "60s", "-o", "json"])).unwrap()["token"]
            .to_string();
    run(&[
        "lock",
        "revoke",
        "d",
        "--token",
        &token,
        "--operator",
        "op",
        "--reason",
        "for the test",
    ]);
    sealed(17);
    let trail = export();
    (trail, std::fs::read_to_string(seals_to).unwrap())
}

/// Runs it over these texts.
fn checked(dir: &Path, trail: &str, seals: Option<&str>) -> Output {
    let (trail_at, seals_at) = (dir.join("t.jsonl"), dir.join("s.jsonl"));
    std::fs::write(&trail_at, trail).unwrap();
    let mut args = vec!["--audit", trail_at.to_str().unwrap()];
    if let Some(seals) = seals {
        std::fs::write(&seals_at, seals).unwrap();
        args.extend(["--seals", seals_at.to_str().unwrap()]);
    }
    verify(&args)
}

/// What is said in a file: whatever its bytes are, these values are judged.
fn values(text: &str) -> Option<Vec<Value>> {
    serde_json::Deserializer::from_str(text)
        .into_iter()
        .collect::<Result<_, _>>()
        .ok()
}

/// The text with one byte changed; none where that would say the same.
fn changed(text: &str, at: usize) -> Option<String> {
    let mut bytes = text.as_bytes().to_vec();
    bytes[at] = match bytes[at] {
        b'1' => b'2',
        b'a' => b'b',
        b'"' => b'\'',
        byte if byte.is_ascii_digit() => b'1',
        byte if byte.is_ascii_graphic() => b'a',
        _ => b'0',
    };
    let other = String::from_utf8_lossy(&bytes).into_owned();
    (values(&other) != values(text)).then_some(other)
}

#[test]
fn an_exported_trail_is_right_and_a_changed_byte_is_found_wherever_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (trail, seals) = exported(dir.path());
    let ran = checked(dir.path(), &trail, Some(&seals));
    let said = stdout(&ran);
    assert_eq!(code(&ran), 0, "{said}{}", stderr(&ran));
    for line in [
        "chain and hashes are right",
        "no key had two holders; 1 still held",
        "rise with each of 5 grants of 4 keys",
    ] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
    // Every eleventh byte, so that each column is met in some row; of the seals every fifth.
    let mut tried = 0;
    for at in (0..trail.len()).step_by(11) {
        if let Some(other) = changed(&trail, at) {
            let ran = checked(dir.path(), &other, Some(&seals));
            assert_eq!(code(&ran), 1, "byte {at} of the trail: {}", stdout(&ran));
            tried += 1;
        }
    }
    for at in (0..seals.len()).step_by(5) {
        if let Some(other) = changed(&seals, at) {
            let ran = checked(dir.path(), &trail, Some(&other));
            // The chain's name is its own: it stands in no hash, and only in the last seal can it change alone.
            assert_eq!(code(&ran), 1, "byte {at} of the seals: {}", stdout(&ran));
            tried += 1;
        }
    }
    assert!(tried > 100, "{tried}");
}

#[test]
fn rows_that_are_missing_moved_or_put_in_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let (trail, seals) = exported(dir.path());
    let rows: Vec<&str> = trail.lines().collect();
    let without = |gone: usize| {
        let kept = rows
            .iter()
            .enumerate()
            .filter(|(place, _)| *place != gone)
            .map(|(_, row)| *row);
        kept.collect::<Vec<_>>().join("\n")
    };
    // A first segment of one row that is gone looks as if retention had dropped it: it is said, and is not wrong.
    let first: SealRow = serde_json::from_str(seals.lines().next().unwrap()).unwrap();
    for gone in usize::from(first.last_seq == 1)..rows.len() {
        let ran = checked(dir.path(), &without(gone), Some(&seals));
        assert_eq!(code(&ran), 1, "without row {gone}: {}", stdout(&ran));
    }
    let mut swapped = rows.clone();
    swapped.swap(2, 3);
    let ran = checked(dir.path(), &swapped.join("\n"), Some(&seals));
    assert!(code(&ran) == 1 && stdout(&ran).contains("order"), "{}", stdout(&ran));
    // A seal less, in the middle: the chain has a hole.
    let mut fewer: Vec<&str> = seals.lines().collect();
    fewer.remove(1);
    let ran = checked(dir.path(), &trail, Some(&fewer.join("\n")));
    assert!(
        code(&ran) == 1 && stdout(&ran).contains("seals are missing in between"),
        "{}",
        stdout(&ran)
    );
    // The last seal less: the tail is said to be unsealed.
    let cut: Vec<&str> = seals.lines().take(1).collect();
    let ran = checked(dir.path(), &trail, Some(&cut.join("\n")));
    assert!(
        code(&ran) == 0 && stdout(&ran).contains("not sealed yet"),
        "{}",
        stdout(&ran)
    );
}

/// The trail sealed anew, in the segments of these seals, as one who can write the store would leave it.
fn sealed_anew(rows: &[AuditRow], seals: &[SealRow]) -> String {
    let mut prev_hash = FIRST_PREV_HASH.to_owned();
    let mut text = String::new();
    for (n, seal) in (1..).zip(seals) {
        let inside = |row: &&AuditRow| (seal.first_seq..=seal.last_seq).contains(&row.seq);
        let segment: Vec<AuditRow> = rows.iter().filter(inside).cloned().collect();
        let hash = seal_hash(&prev_hash, &segment).unwrap();
        let seal = SealRow {
            n,
            prev_hash: std::mem::replace(&mut prev_hash, hash.clone()),
            hash,
            ..seal.clone()
        };
        text.push_str(&lines(&[seal]));
    }
    text
}

fn parsed<T: DeserializeOwned>(text: &str) -> Vec<T> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn lines<T: Serialize>(rows: &[T]) -> String {
    rows.iter()
        .map(|row| serde_json::to_string(row).unwrap() + "\n")
        .collect()
}

/// What somebody who can write the store leaves behind is found with seals that were kept before, and not with those of
/// the same export. What is not found even then is said.
#[test]
fn case_s3_an_older_head_finds_what_the_seals_of_the_same_export_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let (trail, kept) = exported(dir.path());
    let (rows, seals) = (parsed::<AuditRow>(&trail), parsed::<SealRow>(&kept));
    assert!(seals.len() > 2, "{kept}");
    let fits = |what: &str, trail: &str, seals: &str| {
        let ran = checked(dir.path(), trail, Some(seals));
        let said = stdout(&ran);
        assert!(
            code(&ran) == 0 && said.contains("who can write the store"),
            "{what}: {said}"
        );
        said
    };
    let found = |what: &str, trail: &str, why: &str| {
        let ran = checked(dir.path(), trail, Some(&kept));
        let said = stdout(&ran);
        assert!(code(&ran) == 1 && said.contains(why), "{what}: {said}");
    };

    // A revoke is given to somebody else, and everything is sealed anew.
    let mut edited = rows.clone();
    let revoked = edited.iter_mut().find(|row| row.kind == "REVOKED").unwrap();
    revoked.actor = Some("somebody else".to_owned());
    fits("edited", &lines(&edited), &sealed_anew(&edited, &seals));
    found("edited", &lines(&edited), "a row was changed, removed or put in");

    // The tail is cut, which is also what an older copy of the store in its place looks like.
    let cut = &seals[..seals.len() - 1];
    let last = cut.last().unwrap().last_seq;
    let older: Vec<AuditRow> = rows.iter().filter(|row| row.seq <= last).cloned().collect();
    fits("cut", &lines(&older), &lines(cut));
    found("cut", &lines(&older), "are not all in the trail");

    // The front is dropped, and what is left is sealed anew as if retention had dropped it.
    let later: Vec<AuditRow> = rows
        .iter()
        .filter(|row| row.seq >= seals[1].first_seq)
        .cloned()
        .collect();
    // With the older head nothing is wrong either: retention does the same. The row that the trail begins with is named.
    let begins = format!("what came before row {} is not in the files", seals[1].first_seq);
    for seals in [&sealed_anew(&later, &seals[1..]), &lines(&seals[1..]), &kept] {
        let ran = checked(dir.path(), &lines(&later), Some(seals));
        let said = stdout(&ran);
        assert!(code(&ran) == 0 && said.contains(&begins), "{said}");
    }

    // What is later than the head that was kept is not covered by it.
    let head = lines(&seals[..1]);
    let said = fits("later", &lines(&edited), &head);
    assert!(said.contains("later than this file of seals"), "{said}");
}

#[test]
fn without_seals_the_order_of_grants_is_judged_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let row = |seq: u64, kind: &str, token: u64| {
        format!(
            r#"{{"seq":{seq},"at":"2026-01-01T00:00:00.000Z","kind":"{kind}","lock_key":"k","session_id":"s","token":{token},{}}}"#,
            r#""actor":null,"reason":null"#
        )
    };
    let judged = |rows: &[(u64, &str, u64)]| {
        let text: Vec<String> = rows.iter().map(|(seq, kind, token)| row(*seq, kind, *token)).collect();
        let ran = checked(dir.path(), &text.join("\n"), None);
        (code(&ran), stdout(&ran))
    };
    let (code, said) = judged(&[
        (1, "GRANTED", 1),
        (2, "EXPIRED", 1),
        (3, "GRANTED", 2),
        (4, "REVOKED", 2),
        (5, "GRANTED", 4),
    ]);
    assert!(code == 0 && said.contains("not checked"), "{said}");
    for (rows, what) in [
        (vec![(1, "GRANTED", 1), (2, "GRANTED", 2)], "while held under 1"),
        (
            vec![(1, "GRANTED", 2), (2, "RELEASED", 2), (3, "GRANTED", 2)],
            "was granted under 2 after 2",
        ),
        (
            vec![(1, "GRANTED", 2), (2, "RELEASED", 2), (3, "GRANTED", 1)],
            "was granted under 1 after 2",
        ),
        (vec![(1, "GRANTED", 1), (2, "RELEASED", 2)], "which did not hold it"),
        (vec![(1, "RELEASED", 2)], "which did not hold it"),
    ] {
        let (code, said) = judged(&rows);
        assert!(code == 1 && said.contains(what), "{what} is not in\n{said}");
    }
    // A trail that begins later may end what it does not show.
    assert_eq!(judged(&[(7, "RELEASED", 2)]).0, 0);
    let (code, said) = judged(&[(1, "GRANTED", 1), (4, "RELEASED", 1)]);
    assert!(code == 0 && said.contains("missing: 2 to 3"), "{said}");
}

#[test]
fn pages_of_the_route_are_read_too_and_what_is_no_export_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (trail, seals) = exported(dir.path());
    let pages = |text: &str| {
        let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let page = |rows: &[Value]| serde_json::json!({ "items": rows, "next_cursor": "7" }).to_string();
        let (one, two) = rows.split_at(rows.len() / 2);
        format!("{}\n{}", page(one), page(two))
    };
    let ran = checked(dir.path(), &pages(&trail), Some(&pages(&seals)));
    assert_eq!(code(&ran), 0, "{}", stdout(&ran));
    let ran = checked(dir.path(), "no json", None);
    assert_eq!(code(&ran), 1, "{}", stdout(&ran));
    assert_eq!(code(&verify(&["--audit", "/nowhere"])), 64);
    assert_eq!(code(&verify(&[])), 64);
    assert_eq!(code(&verify(&["--audit", "-", "--ledger", "-"])), 64);
}

#[test]
fn a_ledger_is_right_as_jsonl_and_as_csv_and_a_changed_byte_is_found() {
    let mut whole = Whole::new(&[]);
    whole.worker("w", &[], &[]);
    for (account, payout) in [("A", "P1"), ("-b", "P2"), ("A2", "P3")] {
        whole.payout(account, payout);
        whole.await_state(payout, PayoutState::Posted);
    }
    let dir = tempfile::tempdir().unwrap();
    let accounts = dir.path().join("accounts");
    std::fs::write(&accounts, whole.get(&whole.payments, "/v1/accounts?limit=1000")).unwrap();
    let file = dir.path().join("ledger");
    let check = |text: &str, accounts: Option<&Path>| {
        std::fs::write(&file, text).unwrap();
        let mut args = vec!["--ledger", file.to_str().unwrap()];
        if let Some(accounts) = accounts {
            args.extend(["--accounts", accounts.to_str().unwrap()]);
        }
        verify(&args)
    };
    for format in ["jsonl", "csv"] {
        let text = whole.get(&whole.payments, &format!("/v1/ledger/export?format={format}"));
        let ran = check(&text, Some(&accounts));
        let said = stdout(&ran);
        assert_eq!(code(&ran), 0, "{format}: {said}");
        for line in ["3 payouts, two legs each", "of 3 accounts follow"] {
            assert!(said.contains(line), "{line} is not in\n{said}");
        }
        let head = if format == "csv" {
            text.lines().next().unwrap().len() + 1
        } else {
            0
        };
        let mut tried = 0;
        for at in (head..text.len()).step_by(5) {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = if bytes[at] == b'7' { b'8' } else { b'7' };
            let other = String::from_utf8(bytes).unwrap();
            let ran = check(&other, Some(&accounts));
            let said = stdout(&ran);
            // The number of an entry stands alone: another one is a gap, which PostgreSQL makes too, so it is a warning.
            assert!(
                code(&ran) == 1 || said.contains("missing:"),
                "{format}, byte {at}:\n{other}\n{said}"
            );
            tried += 1;
        }
        assert!(tried > 50, "{tried}");
        // A leg less.
        let mut lines: Vec<&str> = text.lines().collect();
        lines.pop();
        let ran = check(&lines.join("\n"), None);
        assert!(
            code(&ran) == 1 && stdout(&ran).contains("1 legs that sum to"),
            "{}",
            stdout(&ran)
        );
    }
    // Both legs doubled together: only the balances show it.
    let text = whole.get(&whole.payments, "/v1/ledger/export?format=jsonl");
    let doubled = text.replacen("\"amount_minor\":-1000", "\"amount_minor\":-2000", 1);
    let doubled = doubled.replacen("\"amount_minor\":1000", "\"amount_minor\":2000", 1);
    assert_eq!(code(&check(&doubled, None)), 0);
    let ran = check(&doubled, Some(&accounts));
    assert!(
        code(&ran) == 1 && stdout(&ran).contains("by its legs"),
        "{}",
        stdout(&ran)
    );
}

/// An export that failed looked verified.
#[test]
fn nothing_is_not_silently_right() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("empty.jsonl");
    std::fs::write(&file, "\n").unwrap();
    let name = file.to_str().unwrap();
    for args in [
        &["--ledger", name][..],
        &["--audit", name],
        &["--audit", name, "--seals", name],
    ] {
        let said = verify(args);
        assert!(
            stdout(&said).contains("the file is empty"),
            "{args:?}: {}",
            stdout(&said)
        );
    }
}
