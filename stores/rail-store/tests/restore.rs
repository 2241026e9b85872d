//! paydb in files that is restored from a copy: nothing that may have been sent is sent before the rail was asked (case P35).

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test says what is wrong by panicking"
)]

mod support;

use rail_store::{FenceOutcome, Fencing, ForwardClaim, Outcome, SubmitOutcome, Verdict};
use std::fs;
use std::path::Path;
use support::files::Files;
use support::{Paydb, World, acked, block_on, book, final_nothing, request};

/// Puts `rail.db` of `copy` back.
type Way = fn(&Path, &Path);

fn over(copy: &Path, live: &Path) {
    fs::write(live, fs::read(copy).unwrap()).unwrap();
}

fn moved_in(copy: &Path, live: &Path) {
    let part = live.with_extension("part");
    fs::copy(copy, &part).unwrap();
    fs::rename(part, live).unwrap();
}

fn lost(_: &Path, live: &Path) {
    fs::remove_file(live).unwrap();
}

/// A world whose rail.db was put back to before `paid` was paid; `known` is in the copy.
fn restored(put_back: Way, all: bool) -> World {
    let files = Files::with_payments();
    let directory = files.directory.path().to_owned();
    let world = World::on(Paydb::Files(files), Fencing::Enforced);
    for (payout, account) in [("paid", "a1"), ("unpaid", "a2"), ("refused", "a3")] {
        world.claimed(payout, account, 7);
    }
    world.settled("known", "a4", 7, acked("R4"));
    // Copied while it is open, as a backup of the directory would: the log holds what is not yet in the file.
    rusqlite::Connection::open(directory.join("rail.db"))
        .unwrap()
        .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
        .unwrap();
    let copy = tempfile::tempdir().unwrap();
    let files_of_paydb: &[&str] = if all { &["rail.db", "payment.db"] } else { &["rail.db"] };
    for file in files_of_paydb {
        fs::copy(directory.join(file), copy.path().join(file)).unwrap();
    }
    world.settled("paid", "a1", 7, acked("R1"));
    let World { paydb, store, .. } = world;
    drop(store);
    assert!(!directory.join("rail.db-wal").exists(), "the store is still open");
    for file in files_of_paydb {
        put_back(&copy.path().join(file), &directory.join(file));
    }
    World::on(paydb, Fencing::Enforced)
}

fn nothing_is_sent_before_the_rail_was_asked(world: &World) {
    for (payout, account) in [("paid", "a1"), ("unpaid", "a2"), ("refused", "a3")] {
        assert!(
            block_on(world.store.rail_unasked(payout.into(), support::WITHIN)).unwrap(),
            "{payout}"
        );
        assert_eq!(world.submit(payout, account, 7), SubmitOutcome::RailUnasked, "{payout}");
    }
    assert_eq!(world.mark("a1"), 0, "a refusal leaves the mark");
    // A fence forbids nothing that may have been paid.
    assert!(matches!(
        world.fence("paid", 7, true),
        FenceOutcome::Fenced { submission: None, .. }
    ));

    // The rail knows the first: it is settled without being sent.
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

    // It refused the third, and knows nothing of the second.
    let refused = rail_store::Sighting::Book {
        executions: Vec::new(),
        declined: vec!["closed".into()],
        is_final: false,
    };
    assert_eq!(world.look_up("refused", refused).verdict, Verdict::Declined);
    assert_eq!(world.now("refused").decline_reason.as_deref(), Some("closed"));
    assert_eq!(world.look_up("unpaid", book(&[])).verdict, Verdict::Inconclusive);
    assert_eq!(world.submit("unpaid", "a2", 7), SubmitOutcome::RailUnasked);
    world.pass(support::HORIZON);
    assert_eq!(world.look_up("unpaid", final_nothing()).verdict, Verdict::NotReceived);
    world.intent("unpaid", "a2", 7);
}

#[test]
fn case_p35_a_restored_rail_db_asks_the_rail_before_it_sends_again() {
    let ways: [(&str, Way); 3] = [("copied over", over), ("moved in", moved_in), ("lost", lost)];
    for (way, put_back) in ways {
        println!("rail.db alone: {way}");
        let world = restored(put_back, false);
        if way != "lost" {
            assert!(matches!(world.submit("known", "a4", 7), SubmitOutcome::Replay(_)));
        }
        nothing_is_sent_before_the_rail_was_asked(&world);
    }
    for (way, put_back) in &ways[..2] {
        println!("all of paydb: {way}");
        nothing_is_sent_before_the_rail_was_asked(&restored(*put_back, true));
    }
}

/// What was asked before a restore says nothing after it.
#[test]
fn case_p35_each_restore_is_an_epoch_of_its_own() {
    let world = restored(over, false);
    assert_eq!(
        world.look_up("unpaid", final_nothing()).verdict,
        Verdict::Inconclusive,
        "as old as the restore"
    );
    world.pass(std::time::Duration::from_millis(1));
    assert_eq!(world.look_up("unpaid", final_nothing()).verdict, Verdict::NotReceived);
    assert!(!block_on(world.store.rail_unasked("unpaid".into(), support::WITHIN)).unwrap());
    let Paydb::Files(files) = &world.paydb else {
        unreachable!()
    };
    let live = files.directory.path().join("rail.db");
    let World { paydb, store, .. } = world;
    drop(store);
    let part = live.with_extension("part");
    fs::copy(&live, &part).unwrap();
    fs::rename(part, &live).unwrap();
    let world = World::on(paydb, Fencing::Enforced);
    assert_eq!(world.submit("unpaid", "a2", 7), SubmitOutcome::RailUnasked);
}

/// A plain stop and start, and two processes on one file, are no restore.
#[test]
fn case_p35_a_file_that_was_written_last_sends_at_once() {
    let files = Files::with_payments();
    let world = World::on(Paydb::Files(files), Fencing::Enforced);
    let another = world.another_process();
    for round in 0..5 {
        let (one, two) = (format!("one-{round}"), format!("two-{round}"));
        world.claimed(&one, &one, 7);
        world.claimed(&two, &two, 7);
        world.intent(&one, &one, 7);
        let answer = block_on(another.submit(request(&two, &two, 7), support::WITHIN)).unwrap();
        assert!(matches!(answer, SubmitOutcome::Intent(_)), "{answer:?}");
    }
    drop(another);
    let World { paydb, store, .. } = world;
    drop(store);
    let world = World::on(paydb, Fencing::Enforced);
    world.claimed("later", "a1", 9);
    world.intent("later", "a1", 9);
}
