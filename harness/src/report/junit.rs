//! `junit.xml`: the run for a CI server. A suite for the whole, and one for each scenario; a case for each verdict, check
//! and fault.
//!
//! Owns: what is a case, and the text of a failure.
//! Does not own: judging.
//! On failure: the writer's error, which plain text does not have.

use super::{Run, Story, VOID, amount};
use crate::invariant::Verdict;
use quick_junit::{NonSuccessKind, Report, SerializeError, TestCase, TestCaseStatus, TestSuite};
use std::time::Duration;

/// The run as XML.
pub(super) fn xml(run: &Run) -> Result<String, SerializeError> {
    let mut report = Report::new(format!("dlock: {}", run.name));
    report.set_time(Duration::from_millis(run.took_ms));
    let mut whole = TestSuite::new("the whole run");
    whole.set_time(Duration::from_millis(run.took_ms));
    whole.add_property(("seed", run.seed.to_string().as_str()));
    whole.add_property(("replay", run.replay.as_str()));
    whole.add_test_cases(run.verdicts.iter().map(|verdict| verdict_case(verdict, false)));
    whole.add_test_case(control(run));
    whole.add_test_case(case("as it must be", (!run.ok()).then(|| run.wrong.join("\n"))));
    report.add_test_suite(whole);
    report.add_test_suites(run.stories.iter().map(suite));
    report.to_string()
}

fn suite(story: &Story) -> TestSuite {
    let report = &story.report;
    let mut suite = TestSuite::new(format!("{}: {}", report.id, report.title));
    suite.set_time(Duration::from_millis(report.took_ms));
    // A cell with a fence off breaks what the fence protects, and is right to.
    let on_purpose = story.ok && !report.ok();
    let verdicts = report.verdicts.iter();
    suite.add_test_cases(verdicts.map(|verdict| verdict_case(verdict, on_purpose)));
    for check in &report.checks {
        let otherwise = format!("expected {}, measured {}", check.expected, check.measured);
        suite.add_test_case(case(
            &format!("check: {}", check.what),
            (!check.ok()).then_some(otherwise),
        ));
    }
    for (n, fault) in report.faults.iter().enumerate() {
        let unseen = fault
            .observed
            .is_empty()
            .then(|| "its effect was not observed".to_owned());
        let mut case = case(&format!("fault {}: {} on {}", n + 1, fault.kind, fault.target), unseen);
        case.set_time(Duration::from_millis(fault.undone_ms.saturating_sub(fault.injected_ms)));
        case.set_system_out(format!(
            "injected at {} ms; {}; undone at {} ms; recovered after {} ms",
            fault.injected_ms, fault.observed, fault.undone_ms, fault.recovered_ms
        ));
        suite.add_test_case(case);
    }
    suite.add_test_case(case(
        "as it must be",
        (!story.ok).then(|| report.complaints().join("\n")),
    ));
    suite
}

fn control(run: &Run) -> TestCase {
    let name = "negative control: with the fences off money is lost";
    let Some(control) = &run.control else {
        let mut skipped = TestCaseStatus::skipped();
        skipped.set_message("not part of this run");
        return TestCase::new(name, skipped);
    };
    let mut case = case(name, control.void().then(|| VOID.to_owned()));
    case.set_system_out(format!(
        "{}: {} lost",
        control.what,
        amount(control.lost_minor, &control.currency)
    ));
    case
}

fn verdict_case(verdict: &Verdict, on_purpose: bool) -> TestCase {
    let name = format!("{}: {}", verdict.invariant.id(), verdict.invariant.sentence());
    let wrong = if verdict.facts == 0 {
        Some("no facts to look at".to_owned())
    } else {
        verdict.broken().then(|| verdict.violations.join("\n"))
    };
    let mut case = match wrong {
        Some(wrong) if on_purpose => {
            let mut case = case(&name, None);
            case.set_system_out(format!("broken, as it must be with a fence off:\n{wrong}"));
            return case;
        }
        wrong => case(&name, wrong),
    };
    case.set_assertions(usize::try_from(verdict.facts).unwrap_or(usize::MAX));
    case
}

/// A case that failed with this text, or did not.
fn case(name: &str, wrong: Option<String>) -> TestCase {
    let status = match wrong {
        None => TestCaseStatus::success(),
        Some(text) => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(text.lines().next().unwrap_or_default());
            status.set_description(text);
            status
        }
    };
    TestCase::new(name, status)
}
