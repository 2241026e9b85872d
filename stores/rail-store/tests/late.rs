//! What late evidence does to a payout that is settled, cell by cell: `docs/payout-states.md` holds the table, and both
//! backends must come to what it says (cases P21, P29, P32). And what becomes of the exceptions (case P23).

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

mod support;

use rail_store::{
    Ack, AckOutcome, CloseException, CloseOutcome, Evidence, Exception, ExceptionFilter, Execution, Outcome, Sighting,
    Submission, Verdict,
};
use std::fmt::Write as _;
use std::time::Duration;
use support::{
    HORIZON, Place, WITHIN, World, acked, block_on, book, declined, executed, final_nothing, on_every_backend, timeout,
};

const MOMENT: Duration = Duration::from_secs(1);
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/payout-states.md");
/// Where the part of the page begins that this test owns; the part before is the payment row's.
const MARK: &str = "## Late evidence\n";

/// How a payout came to where it stands.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    PostedByHand,
    PostedByHandAs,
    PostedByHandUnanswered,
    PostedByEvidence,
    FailedByHand,
    FailedByHandUnanswered,
    FailedByDecline,
    FailedByNotReceived,
    FailedByNotSent,
}

impl Way {
    const ALL: [(Self, &'static str); 9] = [
        (Self::PostedByHand, "POSTED by hand without a reference, over TIMEOUT"),
        (Self::PostedByHandAs, "POSTED by hand as R1, over TIMEOUT"),
        (
            Self::PostedByHandUnanswered,
            "POSTED by hand, over an intent without outcome",
        ),
        (Self::PostedByEvidence, "POSTED as R1, over ACKED"),
        (Self::FailedByHand, "FAILED by hand, over TIMEOUT"),
        (
            Self::FailedByHandUnanswered,
            "FAILED by hand, over an intent without outcome",
        ),
        (Self::FailedByDecline, "FAILED, over DECLINED (no funds)"),
        (Self::FailedByNotReceived, "FAILED, over NOT_RECEIVED"),
        (Self::FailedByNotSent, "FAILED, over NOT_SENT"),
    ];

    fn go(self, world: &World, payout: &str) {
        let account = payout;
        let settled = |evidence| drop(world.settled(payout, account, 7, evidence));
        match self {
            Self::PostedByHand | Self::PostedByHandAs | Self::FailedByHand | Self::FailedByNotReceived => {
                settled(timeout());
            }
            Self::PostedByHandUnanswered | Self::FailedByHandUnanswered => {
                world.claimed(payout, account, 7);
                let intent = world.intent(payout, account, 7);
                world.claim(&intent);
            }
            Self::PostedByEvidence => settled(acked("R1")),
            Self::FailedByDecline => settled(declined("no funds")),
            Self::FailedByNotSent => {
                world.claimed(payout, account, 7);
                world.fence(payout, 7, true);
            }
        }
        if self == Self::FailedByNotReceived {
            assert_eq!(world.look_up(payout, final_nothing()).verdict, Verdict::NotReceived);
        }
        match self {
            Self::PostedByHand | Self::PostedByHandUnanswered => world.payout(payout, account, "POSTED", Some(7)),
            Self::PostedByHandAs | Self::PostedByEvidence => world.posted_as(payout, "R1"),
            _ => world.payout(payout, account, "FAILED", Some(7)),
        }
    }

    const fn is_posted(self) -> bool {
        matches!(
            self,
            Self::PostedByHand | Self::PostedByHandAs | Self::PostedByHandUnanswered | Self::PostedByEvidence
        )
    }
}

/// What comes late.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Late {
    Ack,
    AckTwice,
    AckOther,
    AckThenDecline,
    Decline,
    DeclineTwice,
    DeclineThenAck,
    OtherAmount,
    OtherCurrency,
    Answer,
    AnswerDecline,
    LookUp,
    LookUpOther,
    LookUpOtherAmount,
    LookUpDeclined,
    LookUpNothing,
    LookUpNothingTwice,
    LookUpFinal,
    LookUpTwoExecutions,
    AckThenLookUpNothing,
}

impl Late {
    const ALL: [(Self, &'static str); 20] = [
        (Self::Ack, "ACK R1"),
        (Self::AckTwice, "ACK R1, twice"),
        (Self::AckOther, "ACK R2"),
        (Self::Decline, "DECLINE (closed)"),
        (Self::DeclineTwice, "DECLINE (closed), twice"),
        (Self::AckThenDecline, "ACK R1, then DECLINE (closed)"),
        (Self::DeclineThenAck, "DECLINE (closed), then ACK R1"),
        (Self::OtherAmount, "ACK R1 of another amount"),
        (Self::OtherCurrency, "ACK R1 in another currency"),
        (Self::Answer, "the answer itself: ACK R1"),
        (Self::AnswerDecline, "the answer itself: DECLINE (closed)"),
        (Self::LookUp, "lookup: R1"),
        (Self::LookUpOther, "lookup: R2"),
        (Self::LookUpOtherAmount, "lookup: R1 of another amount"),
        (Self::LookUpDeclined, "lookup: declined (closed)"),
        (Self::LookUpNothing, "lookup: nothing"),
        (Self::LookUpNothingTwice, "lookup: nothing, twice"),
        (Self::LookUpFinal, "lookup: nothing, and final"),
        (Self::LookUpTwoExecutions, "lookup: R1 and R2"),
        (Self::AckThenLookUpNothing, "ACK R1, then lookup: nothing"),
    ];

    /// What was answered, in words.
    fn come(self, world: &World, payout: &str) -> String {
        let ack = |evidence, amount_minor, currency: &str| {
            let ack = Ack {
                client_reference: payout.to_owned(),
                evidence,
                amount_minor,
                currency: currency.to_owned(),
            };
            match block_on(world.store.record_ack(ack, WITHIN)).unwrap() {
                AckOutcome::Recorded => "outcome",
                AckOutcome::Duplicate => "duplicate",
                AckOutcome::Anomaly => "anomaly",
                AckOutcome::Unknown => "unknown",
            }
            .to_owned()
        };
        let said = |evidence| ack(evidence, 1_250, "EUR");
        let answer = |evidence: Evidence| {
            let now = world.record(&world.now(payout), evidence);
            now.outcome.map_or("none", Outcome::as_str).to_owned()
        };
        let look_up = |sighting| {
            let found = world.look_up(payout, sighting);
            format!("{}, executions {}", found.verdict.as_str(), found.executions)
        };
        let nothing = || look_up(book(&[]));
        let refused = Sighting::Book {
            executions: Vec::new(),
            declined: vec!["closed".to_owned()],
            is_final: false,
        };
        let other_money = Sighting::Book {
            executions: vec![Execution {
                amount_minor: 1,
                ..executed("R1")
            }],
            declined: Vec::new(),
            is_final: false,
        };
        let two = |first: String, second: String| format!("{first}; {second}");
        match self {
            Self::Ack => said(acked("R1")),
            Self::AckTwice => two(said(acked("R1")), said(acked("R1"))),
            Self::AckOther => said(acked("R2")),
            Self::AckThenDecline => two(said(acked("R1")), said(declined("closed"))),
            Self::Decline => said(declined("closed")),
            Self::DeclineTwice => two(said(declined("closed")), said(declined("closed"))),
            Self::DeclineThenAck => two(said(declined("closed")), said(acked("R1"))),
            Self::OtherAmount => ack(acked("R1"), 1, "EUR"),
            Self::OtherCurrency => ack(acked("R1"), 1_250, "USD"),
            Self::Answer => answer(acked("R1")),
            Self::AnswerDecline => answer(declined("closed")),
            Self::LookUp => look_up(book(&["R1"])),
            Self::LookUpOther => look_up(book(&["R2"])),
            Self::LookUpOtherAmount => look_up(other_money),
            Self::LookUpDeclined => look_up(refused),
            Self::LookUpNothing => nothing(),
            Self::LookUpNothingTwice => two(nothing(), nothing()),
            Self::LookUpFinal => look_up(final_nothing()),
            Self::LookUpTwoExecutions => look_up(book(&["R1", "R2"])),
            Self::AckThenLookUpNothing => {
                let first = said(acked("R1"));
                world.pass(HORIZON + MOMENT);
                two(first, nothing())
            }
        }
    }

    /// Whether it contradicts what a payout counts as.
    fn contradicts(self, way: Way) -> bool {
        match self {
            Self::OtherAmount
            | Self::OtherCurrency
            | Self::LookUpOtherAmount
            | Self::LookUpTwoExecutions
            | Self::AckThenDecline
            | Self::DeclineThenAck
            | Self::AckThenLookUpNothing => true,
            Self::Ack | Self::AckTwice | Self::Answer | Self::LookUp => !way.is_posted(),
            Self::AckOther | Self::LookUpOther => !matches!(way, Way::PostedByHand | Way::PostedByHandUnanswered),
            Self::Decline | Self::DeclineTwice | Self::AnswerDecline | Self::LookUpDeclined => {
                way.is_posted() || matches!(way, Way::FailedByDecline | Way::FailedByNotSent)
            }
            Self::LookUpNothing | Self::LookUpNothingTwice | Self::LookUpFinal => way.is_posted(),
        }
    }
}

fn recorded(now: &Submission) -> String {
    let mut text = now.outcome.map_or("none", Outcome::as_str).to_owned();
    if let Some(reference) = &now.rail_reference {
        let _ = write!(text, ", {reference}");
    }
    if let Some(reason) = &now.decline_reason {
        let _ = write!(text, " ({reason})");
    }
    text
}

fn said(exceptions: &[Exception]) -> String {
    if exceptions.is_empty() {
        return "—".to_owned();
    }
    let each: Vec<_> = exceptions
        .iter()
        .map(|one| format!("`{}`: {}", one.kind, one.detail))
        .collect();
    each.join("<br>")
}

/// The table as this backend comes to it.
fn table(place: &Place) -> String {
    let world = World::new(place);
    let mut text = String::from(
        "| where the payout stands | what comes late | answer | the submission then | exception |\n|---|---|---|---|---|\n",
    );
    for (n, (way, how)) in Way::ALL.into_iter().enumerate() {
        for (m, (late, what)) in Late::ALL.into_iter().enumerate() {
            // Each has a payout and an account of its own.
            let payout = format!("p{n}-{m}");
            way.go(&world, &payout);
            world.pass(HORIZON + MOMENT);
            let answer = late.come(&world, &payout);
            let exceptions: Vec<_> = world
                .listed(ExceptionFilter::Open)
                .into_iter()
                .filter(|one| one.payout_id == payout)
                .collect();
            assert_eq!(
                !exceptions.is_empty(),
                late.contradicts(way),
                "{how}: {what}: {exceptions:?}"
            );
            for one in exceptions {
                let reason = "written into the table".to_owned();
                close(&world, one.seq, "test", &reason);
            }
            let exceptions: Vec<_> = world
                .listed(ExceptionFilter::All)
                .into_iter()
                .filter(|one| one.payout_id == payout)
                .collect();
            let _ = writeln!(
                text,
                "| {how} | {what} | {answer} | {} | {} |",
                recorded(&world.now(&payout)),
                said(&exceptions)
            );
        }
    }
    text
}

/// Both backends come to the table of the page, cell by cell.
fn case_p21_late_evidence_leaves_the_payout_and_is_told(place: &Place) {
    let table = table(place);
    let page = std::fs::read_to_string(DOCS).unwrap();
    let (before, own) = page.split_once(MARK).unwrap();
    let (words, written) = own.split_once("\n| ").unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(DOCS, format!("{before}{MARK}{words}\n{table}")).unwrap();
        return;
    }
    for (line, wanted) in format!("| {written}").lines().zip(table.lines()) {
        assert_eq!(line, wanted, "run this test with UPDATE_DOCS=1 to write the table anew");
    }
    assert_eq!(format!("| {written}"), table);
}

/// A lookup after the horizon that finds nothing for an ACKED submission.
fn case_p29_an_acked_submission_that_the_rail_does_not_know_is_told(place: &Place) {
    let world = World::new(place);
    world.settled("p1", "a1", 7, acked("R1"));
    let look_up = |trusted| world.look_up_dated("p1", book(&[]), trusted).verdict;
    assert_eq!(
        look_up(true),
        Verdict::Executed,
        "within the horizon it may not show yet"
    );
    assert_eq!(
        look_up(false),
        Verdict::Inconclusive,
        "a clock that was set does not say"
    );
    assert_eq!(world.exceptions(), []);
    world.pass(HORIZON + MOMENT);
    for _ in 0..3 {
        assert_eq!(look_up(true), Verdict::Inconclusive);
    }
    assert_eq!(world.exceptions(), [("p1".into(), "NOT_FOUND_AT_RAIL".into())]);
    assert_eq!(world.now("p1").outcome, Some(Outcome::Acked), "what is recorded stays");
}

/// {ACK, then DECLINE} of a FAILED payout, and the other order: the same end, and both are named.
fn case_p32_each_order_keeps_every_evidence_and_names_both(place: &Place) {
    let world = World::new(place);
    for (payout, acks_first) in [("p1", true), ("p2", false)] {
        world.settled(payout, payout, 7, timeout());
        world.payout(payout, payout, "FAILED", Some(7));
        let mut evidence = [acked("R1"), declined("closed")];
        if !acks_first {
            evidence.reverse();
        }
        for evidence in evidence {
            let ack = Ack {
                client_reference: payout.to_owned(),
                evidence,
                amount_minor: 1_250,
                currency: "EUR".to_owned(),
            };
            block_on(world.store.record_ack(ack, WITHIN)).unwrap();
        }
        let now = world.now(payout);
        assert_eq!(recorded(&now), "DECLINED, R1 (closed)", "{payout}");
        let last = world.listed(ExceptionFilter::Open).pop().unwrap();
        assert!(
            last.payout_id == payout && last.detail.contains("R1") && last.detail.contains("closed"),
            "{last:?}"
        );
    }
}

fn close(world: &World, seq: u64, operator: &str, reason: &str) -> CloseOutcome {
    let close = CloseException {
        seq,
        operator: operator.to_owned(),
        reason: reason.to_owned(),
    };
    block_on(world.store.close_exception(close, WITHIN)).unwrap()
}

fn case_p23_an_exception_is_closed_once_and_a_new_one_is_heard(place: &Place) {
    let world = World::new(place);
    world.settled("p1", "a1", 7, timeout());
    world.payout("p1", "a1", "FAILED", Some(7));
    world.look_up("p1", book(&["R1"]));
    let open = || block_on(world.store.survey(WITHIN)).unwrap().exceptions_open;
    assert_eq!(open(), 1);
    let seq = world.listed(ExceptionFilter::Open)[0].seq;
    assert_eq!(
        close(&world, seq + 1, "ada", "called back by phone"),
        CloseOutcome::NotFound
    );
    let CloseOutcome::Closed(closed) = close(&world, seq, "ada", "called back by phone") else {
        panic!("not closed");
    };
    assert_eq!(
        (closed.closed_by.as_deref(), closed.closed_reason.as_deref()),
        (Some("ada"), Some("called back by phone"))
    );
    assert!(closed.closed_at.is_some());
    assert_eq!(
        close(&world, seq, "ada", "called back by phone"),
        CloseOutcome::Replay(closed.clone())
    );
    for (operator, reason) in [("bob", "called back by phone"), ("ada", "another reason")] {
        assert_eq!(
            close(&world, seq, operator, reason),
            CloseOutcome::ClosedBefore(closed.clone())
        );
    }
    assert_eq!(open(), 0);
    assert_eq!(world.listed(ExceptionFilter::Open), []);
    assert_eq!(world.listed(ExceptionFilter::Closed), [*closed.clone()]);
    assert_eq!(block_on(world.store.exception(seq, WITHIN)).unwrap(), Some(*closed));
    // The same thing seen again is none; something new is.
    world.look_up("p1", book(&["R1"]));
    assert_eq!(open(), 0);
    world.look_up("p1", book(&["R2"]));
    assert_eq!(open(), 1);
    // The database itself refuses to open it again, or to change what it says.
    for change in ["closed_by = NULL", "closed_by = 'eve'", "detail = 'nothing'"] {
        let refused = world.raw(&format!(
            "UPDATE rail_exception SET {change} WHERE exception_id = {seq}"
        ));
        assert!(refused.unwrap_err().contains("closed once"), "{change}");
    }
}

/// What is kept beside a final outcome is filled in, never changed, and the outcome itself stays.
fn evidence_beside_an_outcome_never_changes(place: &Place) {
    let world = World::new(place);
    world.settled("p1", "a1", 7, declined("no funds"));
    let update = |set: &str| world.raw(&format!("UPDATE rail_submission SET {set} WHERE payout_id = 'p1'"));
    assert_eq!(update("rail_reference = 'R1'"), Ok(()));
    for set in [
        "rail_reference = 'R2'",
        "rail_reference = NULL",
        "decline_reason = 'x'",
        "decline_reason = NULL",
        "outcome = 'ACKED'",
        "cause = 'x'",
        "outcome_at = 1",
    ] {
        assert!(update(set).is_err(), "{set}");
    }
}

on_every_backend! {
    case_p21_late_evidence_leaves_the_payout_and_is_told,
    case_p29_an_acked_submission_that_the_rail_does_not_know_is_told,
    case_p32_each_order_keeps_every_evidence_and_names_both,
    case_p23_an_exception_is_closed_once_and_a_new_one_is_heard,
    evidence_beside_an_outcome_never_changes,
}
