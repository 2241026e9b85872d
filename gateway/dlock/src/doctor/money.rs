//! The payment resource and the rail proxy: fences on, and nothing that waits for a human.

use super::component::{Component, Facts};
use super::report::Report;
use crate::api::Api;
use http_client::{Caller, ClientOptions, PaymentApi};
use std::time::Duration;

/// A ledger is verified within this, as the server bounds it.
const VERIFY_WITHIN: Duration = Duration::from_secs(66);

/// From this age on the backlog pages (alert DlockBacklogAge).
const BACKLOG_SECONDS_MAX: f64 = 300.0;

/// How many ids are named in a line.
const NAMED_MAX: usize = 5;

/// Whether a fence is on, as the component itself counts it.
fn fence(at: &str, point: &str, facts: &Facts, report: &mut Report) {
    match facts.metrics.get(&format!("fencing_enabled{{point=\"{point}\"}}")) {
        Some(value) if value >= 1.0 => report.ok(at, "fence", "on: a stale token is refused here"),
        Some(_) => report.wrong(
            at,
            "fence",
            "OFF: a worker that lost its lock may write here, money can be lost",
            format!("remove {point}.fencing.enabled=false from its configuration and restart it; then look for what was paid twice"),
        ),
        None => report.wrong(
            at,
            "fence",
            format!("no fencing_enabled{{point=\"{point}\"}} in /metrics, so nobody knows"),
            "ask the component itself, not a proxy that keeps /metrics back",
        ),
    }
}

/// Backlog, ambiguous payouts, the ledger.
pub async fn payments(api: &Api, component: &Component, facts: &Facts, report: &mut Report) {
    let at = &component.subject;
    fence(at, "payment", facts, report);
    match facts.metrics.get("payout_backlog_age_seconds") {
        Some(age) if age > BACKLOG_SECONDS_MAX => report.warning(
            at,
            "backlog",
            format!("the oldest payout waits for {age:.0} s"),
            "see the lock servers and executors; dlock payout list --state PENDING",
        ),
        Some(age) => report.ok(at, "backlog", format!("the oldest payout waits for {age:.0} s")),
        None => report.not_checked(at, "backlog", "payout_backlog_age_seconds is not in /metrics"),
    }
    ambiguous(at, facts, report);
    let caller = Caller::new(
        http_client::client(&ClientOptions::default()),
        &component.url,
        VERIFY_WITHIN,
    );
    match PaymentApi::new(caller).verify(&api.trace).await {
        Ok(answer) if answer.ok => report.ok(at, "ledger", "verified: legs, balances and states hold together"),
        Ok(answer) => report.wrong(
            at,
            "ledger",
            format!("{} violations: {}", answer.violations.len(), some(&answer.violations)),
            "stop the executors; export the ledger and look at these payouts (dlock payout trace) before anything is mended",
        ),
        Err(error) => report.not_checked(at, "ledger", error.to_string()),
    }
}

fn ambiguous(at: &str, facts: &Facts, report: &mut Report) {
    let metrics = &facts.metrics;
    let Some(count) = metrics.get("payout_state{state=\"RAIL_AMBIGUOUS\"}") else {
        report.not_checked(at, "ambiguous", "payout_state is not in /metrics");
        return;
    };
    let escalated = metrics.get("payout_escalated").unwrap_or(0.0);
    let next = "dlock payout list --state RAIL_AMBIGUOUS; settle by hand what the rail's own records show (dlock payout resolve)";
    if escalated > 0.0 {
        report.wrong(
            at,
            "ambiguous",
            format!("{escalated} past the SLA, {count} in all: they wait for a human"),
            next,
        );
    } else if count > 0.0 {
        report.warning(
            at,
            "ambiguous",
            format!("{count}, none past the SLA: being looked up"),
            next,
        );
    } else {
        report.ok(at, "ambiguous", "none");
    }
}

/// Open exceptions, attempts to pay twice.
pub async fn rail(api: &Api, component: &Component, facts: &Facts, report: &mut Report) {
    let at = &component.subject;
    fence(at, "rail", facts, report);
    match api
        .rail_proxy(&component.url)
        .exceptions(Some(true), http_contract::PAGE_LIMIT_MAX, None, &api.trace)
        .await
    {
        Ok(page) => {
            let open: Vec<String> = page
                .items
                .iter()
                .map(|row| format!("{} {}", row.kind, row.payout_id))
                .collect();
            if open.is_empty() {
                report.ok(at, "exceptions", "none open");
            } else {
                report.wrong(
                    at,
                    "exceptions",
                    format!(
                        "{}{} open: {}",
                        if page.next_cursor.is_some() { "more than " } else { "" },
                        open.len(),
                        some(&open)
                    ),
                    "each is money that may be gone: dlock payout exception list, dlock payout trace, docs/alerts.md; then dlock payout exception close",
                );
            }
        }
        Err(error) => report.not_checked(at, "exceptions", error.to_string()),
    }
    match facts.metrics.get("rail_duplicate_attempted_total") {
        Some(count) if count > 0.0 => report.wrong(
            at,
            "duplicates",
            format!("{count} payouts would have been, or were, sent twice"),
            "look whether a fence is off, then docs/alerts.md, DlockDuplicateAttempted",
        ),
        Some(_) => report.ok(at, "duplicates", "none attempted since the start"),
        None => report.not_checked(at, "duplicates", "rail_duplicate_attempted_total is not in /metrics"),
    }
}

fn some(items: &[String]) -> String {
    let mut text = items.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join("; ");
    if items.len() > NAMED_MAX {
        text.push_str("; …");
    }
    text
}
