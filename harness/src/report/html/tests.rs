use super::page;
use crate::chaos::fault::FaultRecord;
use crate::history::{Call, Outcome};
use crate::invariant::{check_all, sample};
use crate::model::{Account, Evidence, LockEvent, NodeChange, NodeEvent, Payout, lock_key};
use crate::report::{Check, Control, Run, ScenarioReport, StepTaken, Timing, files};

/// The largest page that is still usable: a browser and a mail server take it.
const BYTES_MAX: usize = 3_000_000;

fn good() -> ScenarioReport {
    ScenarioReport {
        took_ms: 1_000,
        verdicts: check_all(&sample::good()),
        replay: "dlock scenario UC-01 --seed 1".to_owned(),
        ..ScenarioReport::new("UC-01", "a run", 1)
    }
}

fn control(lost_minor: i64) -> Control {
    Control {
        lost_minor,
        currency: "EUR".to_owned(),
        executions: 12,
        payouts_paid_twice: 3,
        what: "the same with the fences off".to_owned(),
    }
}

fn shown(report: &ScenarioReport, evidence: Evidence) -> String {
    page(&Run::with_evidence(report, evidence, "dlock scenario UC-01"))
}

/// The page needs nothing else, wherever it is opened, and runs nothing.
fn stands_alone(html: &str) {
    for foreign in [
        "http://",
        "https://",
        "<script",
        "javascript:",
        "<link",
        "<img",
        "<iframe",
        "@import",
        "style=\"",
        " onload",
    ] {
        assert!(!html.contains(foreign), "{foreign} in the page");
    }
    assert!(html.contains("Content-Security-Policy") && html.contains("default-src 'none'"));
}

#[test]
fn a_good_run_says_so_in_words_and_names_the_facts() {
    let html = shown(&good(), sample::good());
    stands_alone(&html);
    assert!(html.contains("HELD: all 11 verdicts held"));
    for n in 1..=8 {
        assert!(html.contains(&format!("INV-0{n}")));
    }
    assert!(html.contains("Not part of this run."), "the control was not run");
    assert!(
        html.contains("dlock scenario UC-01 --seed 1"),
        "the report's own line wins"
    );
}

#[test]
fn a_verdict_without_facts_is_shown_as_failed() {
    let mut report = good();
    report.verdicts[4].facts = 0;
    report.verdicts[4].violations.clear();
    let html = shown(&report, sample::good());
    assert!(html.contains("FAILED: no facts"));
    assert!(html.contains("FAILED: 10 of 11 verdicts held"));
    assert!(html.contains("INV-05: no facts to look at"));
}

#[test]
fn a_violation_and_a_failed_check_are_said_at_the_top() {
    let mut report = good();
    report.verdicts[1].violations.push("P1 executed twice".to_owned());
    report.checks.push(Check {
        what: "legs".to_owned(),
        expected: "2".to_owned(),
        measured: "4".to_owned(),
    });
    let html = shown(&report, sample::good());
    let top = &html[..html.find("id=\"invariants\"").unwrap()];
    assert!(top.contains("INV-02: P1 executed twice") && top.contains("legs: expected 2, measured 4"));
}

#[test]
fn a_control_that_lost_money_says_how_much_and_one_that_lost_none_voids_the_run() {
    let lost = ScenarioReport {
        control: Some(control(300_001)),
        ..good()
    };
    let html = shown(&lost, sample::good());
    assert!(html.contains("3000.01 EUR lost, as it must be: 3 payouts were paid more than once."));
    assert!(lost.ok());

    let void = ScenarioReport {
        control: Some(control(0)),
        ..good()
    };
    assert!(!void.ok(), "a void run has not passed");
    let html = shown(&void, sample::good());
    assert!(html.contains("VOID: with the fences off no money was lost"));
    assert!(!html.contains("HELD: all"));
}

#[test]
fn hostile_names_are_text_and_nothing_else() {
    const HOSTILE: &str = "</title><script>alert(1)</script>\"'&<b>é💶\u{202e}";
    let call = |verb: &str, token, outcome, code: Option<&str>| Call {
        client: HOSTILE.to_owned(),
        verb: verb.to_owned(),
        key: Some(lock_key(HOSTILE)),
        token,
        payout: Some(HOSTILE.to_owned()),
        invoked_us: 1_000,
        answered_us: Some(2_000),
        until_us: None,
        delay_us: None,
        outcome,
        code: code.map(str::to_owned),
        reason: None,
    };
    let granted = |token| LockEvent {
        seq: token,
        at: format!("2026-01-01T00:00:0{token}Z"),
        kind: "GRANTED".to_owned(),
        lock_key: Some(lock_key(HOSTILE)),
        token: Some(token),
        actor: Some(HOSTILE.to_owned()),
        ..LockEvent::default()
    };
    let evidence = Evidence {
        began_us: 1,
        calls: vec![
            call("acquire", Some(1), Outcome::Ok, None),
            call(HOSTILE, Some(1), Outcome::Refused, Some("FENCED_OUT")),
        ],
        lock_events: vec![granted(1), granted(2)],
        payouts: vec![Payout {
            payout_id: HOSTILE.to_owned(),
            account_id: HOSTILE.to_owned(),
            ..Payout::default()
        }],
        nodes: vec![NodeEvent {
            node: HOSTILE.to_owned(),
            at_us: 1_500,
            what: NodeChange::Killed,
        }],
        ..Evidence::default()
    };
    let report = ScenarioReport {
        title: HOSTILE.to_owned(),
        id: HOSTILE.to_owned(),
        replay: HOSTILE.to_owned(),
        steps: vec![StepTaken {
            at_ms: 1,
            text: HOSTILE.to_owned(),
        }],
        checks: vec![Check {
            what: HOSTILE.to_owned(),
            expected: HOSTILE.to_owned(),
            measured: String::new(),
        }],
        faults: vec![FaultRecord {
            kind: HOSTILE.to_owned(),
            target: HOSTILE.to_owned(),
            injected_ms: 0,
            observed: HOSTILE.to_owned(),
            undone_ms: 2,
            recovered_ms: 1,
        }],
        timings: vec![Timing {
            what: HOSTILE.to_owned(),
            intended_ms: 0,
            done_ms: None,
        }],
        control: Some(Control {
            what: HOSTILE.to_owned(),
            currency: HOSTILE.to_owned(),
            ..control(1)
        }),
        ..good()
    };
    let run = Run::with_evidence(&report, evidence, HOSTILE);
    let html = page(&run);
    stands_alone(&html);
    assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot;") && !html.contains("<b>"));
    assert_eq!(
        html.matches("</title></head>").count() + html.matches("</title><style>").count(),
        1
    );

    let dir = tempfile::tempdir().unwrap();
    run.write(dir.path()).unwrap();
    let xml = std::fs::read_to_string(dir.path().join("junit.xml")).unwrap();
    assert!(!xml.contains("<script") && xml.contains("&lt;script&gt;"));
}

#[test]
fn a_run_of_nothing_has_a_page_that_says_so() {
    let report = ScenarioReport::new("UC-01", "nothing", 1);
    let html = shown(&report, Evidence::default());
    stands_alone(&html);
    assert!(html.contains("FAILED: no verdict was reached") && html.contains("there is no timeline"));
}

#[test]
fn a_load_that_never_settled_is_told_and_stands_in_no_percentile() {
    let timing = |intended_ms, done_ms| Timing {
        what: "payout".to_owned(),
        intended_ms,
        done_ms,
    };
    let report = ScenarioReport {
        timings: vec![timing(0, Some(40)), timing(10, Some(90)), timing(20, None)],
        ..good()
    };
    let html = shown(&report, sample::good());
    assert!(html.contains("1 thing was never settled"));
    assert!(html.contains("Latency by intended start") && html.contains("80 ms"));
}

/// As a long sitting leaves it: ten minutes, twelve workers, thousands of grants, refusals and faults.
fn big() -> (ScenarioReport, Evidence) {
    const PAYOUTS: u64 = 5_000;
    let mut evidence = Evidence {
        began_us: 1,
        accounts: vec![Account::default()],
        ..Evidence::default()
    };
    let mut report = good();
    for n in 0..PAYOUTS {
        let (worker, account) = (format!("worker-{}", n % 12), format!("account-{}", n % 40));
        let at_us = 1 + n * 120_000;
        let call = |verb: &str, after_us: u64, refused: bool| Call {
            client: worker.clone(),
            verb: verb.to_owned(),
            key: Some(lock_key(&account)),
            token: Some(n + 1),
            payout: Some(format!("payout-{n}")),
            invoked_us: at_us + after_us,
            answered_us: Some(at_us + after_us + 900),
            until_us: None,
            delay_us: None,
            outcome: if refused { Outcome::Refused } else { Outcome::Ok },
            code: refused.then(|| "FENCED_OUT".to_owned()),
            reason: None,
        };
        evidence.calls.push(call("acquire", 0, false));
        evidence.calls.push(call("submit", 20_000, n % 3 == 0));
        evidence.calls.push(call("release", 40_000, false));
        evidence.lock_events.push(LockEvent {
            seq: n,
            at: format!(
                "2026-01-01T00:{:02}:{:02}.{:03}Z",
                n * 120 / 60_000,
                n * 120 / 1_000 % 60,
                n * 120 % 1_000
            ),
            kind: "GRANTED".to_owned(),
            lock_key: Some(lock_key(&account)),
            token: Some(n + 1),
            actor: Some(worker.clone()),
            ..LockEvent::default()
        });
        evidence.payouts.push(Payout {
            payout_id: format!("payout-{n}"),
            account_id: account,
            ..Payout::default()
        });
        report.timings.push(Timing {
            what: "payout".to_owned(),
            intended_ms: n * 120,
            done_ms: (n % 100 != 0).then_some(n * 120 + 30 + n % 900),
        });
        report.faults.push(FaultRecord {
            kind: "process.worker_pause".to_owned(),
            target: worker,
            injected_ms: n * 120,
            observed: "the kernel shows it as stopped".to_owned(),
            undone_ms: n * 120 + 60,
            recovered_ms: 10,
        });
        report.steps.push(StepTaken {
            at_ms: n,
            text: format!("step {n}"),
        });
        report.verdicts[1].violations.push(format!("violation {n}"));
    }
    (report, evidence)
}

#[test]
fn a_big_run_stays_small_and_says_what_was_left_out() {
    let (report, evidence) = big();
    let html = shown(&report, evidence);
    stands_alone(&html);
    assert!(html.len() < BYTES_MAX, "{} bytes", html.len());
    for left_out in [
        "4800 faults more",
        "4800 steps more",
        "4800 violations more",
        "1467 refusals more",
    ] {
        assert!(html.contains(left_out), "{left_out}");
    }
}

#[test]
fn the_files_of_a_run_agree() {
    let dir = tempfile::tempdir().unwrap();
    let mut report = good();
    report.verdicts[1].violations.push("P1 executed twice".to_owned());
    report.faults.push(FaultRecord {
        kind: "process.worker_kill".to_owned(),
        target: "W1".to_owned(),
        injected_ms: 0,
        observed: "ended".to_owned(),
        undone_ms: 5,
        recovered_ms: 7,
    });
    Run::with_evidence(&report, sample::good(), "")
        .write(dir.path())
        .unwrap();
    let text = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text("report.json")).unwrap();
    assert_eq!(json["format"], "dlock-report/1");
    assert_eq!(
        (json["ok"].as_bool(), json["void"].as_bool()),
        (Some(false), Some(false))
    );
    assert_eq!(json["verdicts"][1]["held"], false);
    assert!(json["control"].is_null());
    let lines: Vec<serde_json::Value> = text("history.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let calls = lines.iter().filter(|line| line["event"] == "call").count();
    assert_eq!(calls, sample::good().calls.len());
    assert_eq!(lines.len(), calls + 3, "a fault has three moments");
    assert!(lines.is_sorted_by_key(|line| line["boot_us"].as_u64()));
    let junit = text("junit.xml");
    assert!(junit.contains("P1 executed twice") && junit.contains("fault 1: process.worker_kill on W1"));
    assert!(junit.contains("not part of this run"), "{junit}");
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    for error in [
        files::writable(&file).unwrap_err(),
        files::writable(&file.join("below")).unwrap_err(),
        Run::with_evidence(&good(), sample::good(), "")
            .write(&file)
            .unwrap_err(),
    ] {
        assert!(error.to_string().contains(&file.display().to_string()), "{error}");
    }
}
