//! What the components have recorded: transitions, the submission, exceptions, grants of the account's lock, refusals.

use super::line::instant;
use super::{Args, Gathered, Line};
use crate::api::Api;
use crate::exit::Failure;
use http_client::RefusalFilter;
use http_contract::lock::AuditRow;
use http_contract::payment::TransitionRow;
use http_contract::rail::{ExceptionRow, LookupRow, SubmissionRow};
use http_contract::refusal::RefusalRow;
use http_contract::{Code, Page};
use lock_api::LockKey;

/// How many pages of a key's history are read at most.
const PAGES_MAX: u32 = 200;

const PAGE: u32 = 1000;

/// Gathers all of it; answers the payout's account, where somebody knows it.
///
/// # Errors
/// There is no such payout.
pub(super) async fn gather(api: &Api, args: &Args, gathered: &mut Gathered) -> Result<Option<String>, Failure> {
    let (payments, rail) = (api.payments(&args.at.payments), api.rail_proxy(&args.at.rail_proxy));
    let (id, trace) = (args.payout_id.as_str(), &api.trace);
    let payout = match payments.payout(id, trace).await {
        Err(error) if error.code() == Some(Code::PayoutNotFound) => return Err(error.into()),
        answer => gathered.take("payout", &args.at.payments, answer),
    };
    if payout.is_some() {
        let history = payments.payout_history(id, trace).await;
        let history = gathered.take("history", &args.at.payments, history);
        gathered
            .lines
            .extend(history.into_iter().flat_map(|page| page.items).filter_map(transition));
    }
    let submission = match rail.submission(id, trace).await {
        Err(error) if error.code() == Some(Code::SubmissionNotFound) => {
            gathered.read("submission", &args.at.rail_proxy, None);
            None
        }
        answer => gathered.take("submission", &args.at.rail_proxy, answer),
    };
    if let Some(row) = &submission {
        gathered.lines.extend(submitted(row));
    }
    let lookups = rail.lookups(id, PAGE, trace).await;
    let lookups = gathered.take("lookups", &args.at.rail_proxy, lookups);
    gathered
        .lines
        .extend(lookups.into_iter().flat_map(|page| page.items).filter_map(looked_up));
    let exceptions = rail.exceptions(None, PAGE, None, trace).await;
    let exceptions = gathered.take("exceptions", &args.at.rail_proxy, exceptions);
    let of_this = exceptions.into_iter().flat_map(|page| page.items);
    gathered
        .lines
        .extend(of_this.filter(|row| row.payout_id == id).flat_map(|row| raised(&row)));
    for url in [&args.at.payments, &args.at.rail_proxy] {
        let of_this = RefusalFilter {
            payout_id: Some(id),
            ..RefusalFilter::default()
        };
        let answer = api.plain(url).refusals(of_this, PAGE, trace).await;
        if let Some(answer) = gathered.take("refusals", url, answer) {
            gathered
                .traces
                .extend(answer.items.iter().map(|row| row.trace_id.clone()));
            let component = answer.component;
            gathered
                .lines
                .extend(answer.items.into_iter().filter_map(|row| refused(&component, row)));
        }
    }
    gathered.tokens = gathered.lines.iter().filter_map(|line| line.token).collect();
    let account_id = payout
        .map(|payout| payout.account_id)
        .or_else(|| submission.map(|row| row.account_id));
    if let Some(account) = &account_id {
        grants(api, args, account, gathered).await;
    }
    Ok(account_id)
}

fn transition(row: TransitionRow) -> Option<Line> {
    let from = row.from_state.map_or("-", |state| state.as_str());
    let detail = row.detail.map(|detail| format!(" ({detail})")).unwrap_or_default();
    Some(Line {
        at_ns: instant(&row.at)?,
        source: "transition",
        component: "payment-resource".to_owned(),
        actor: row.actor,
        token: row.token,
        what: format!("{from} → {}{detail}", row.to_state.as_str()),
        trace_id: None,
    })
}

/// A submission's intent, its departure, and its outcome.
fn submitted(row: &SubmissionRow) -> Vec<Line> {
    let line = |at: Option<&str>, what: String| {
        Some(Line {
            at_ns: instant(at?)?,
            source: "submission",
            component: "rail-proxy".to_owned(),
            actor: row.actor.clone(),
            token: Some(row.token),
            what,
            trace_id: None,
        })
    };
    let fence = if row.fencing_enforced {
        ""
    } else {
        ", THE FENCE WAS OFF"
    };
    let outcome = row.outcome.map_or("no outcome", |outcome| outcome.as_str());
    let more: Vec<&str> = [&row.cause, &row.decline_reason, &row.rail_reference]
        .into_iter()
        .filter_map(Option::as_deref)
        .collect();
    let more = if more.is_empty() {
        String::new()
    } else {
        format!(" ({})", more.join(", "))
    };
    [
        line(
            Some(&row.intent_at),
            format!("submission {}: intent recorded{fence}", row.submission_id),
        ),
        line(
            row.forwarded_at.as_deref(),
            "submission forwarded to the rail".to_owned(),
        ),
        line(
            row.outcome_at.as_deref(),
            format!("submission's outcome: {outcome}{more}"),
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// An exception, and its end.
fn raised(row: &ExceptionRow) -> Vec<Line> {
    let line = |at: Option<&str>, actor: Option<String>, what: String| {
        Some(Line {
            at_ns: instant(at?)?,
            source: "exception",
            component: "rail-proxy".to_owned(),
            actor,
            what,
            ..Line::default()
        })
    };
    let name = format!("EXCEPTION {} {}", row.exception_id, row.kind);
    let reason = row.closed_reason.as_deref().unwrap_or_default();
    [
        line(Some(&row.at), None, format!("{name}: {}", row.detail)),
        line(
            row.closed_at.as_deref(),
            row.closed_by.clone(),
            format!("{name} closed: {reason}"),
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What the rail said when it was asked.
fn looked_up(row: LookupRow) -> Option<Line> {
    let reference = row
        .rail_reference
        .map(|text| format!(", reference {text}"))
        .unwrap_or_default();
    Some(Line {
        at_ns: instant(&row.at)?,
        source: "lookup",
        component: "rail-proxy".to_owned(),
        what: format!(
            "the rail was asked: {}, {} executions{reference}",
            row.verdict, row.executions
        ),
        ..Line::default()
    })
}

/// Who showed which token, and which one stood against it.
fn refused(component: &str, row: RefusalRow) -> Option<Line> {
    let known = |token: Option<u64>| token.map_or_else(|| "?".to_owned(), |token| token.to_string());
    let who = row.actor.as_deref().unwrap_or("somebody");
    let (shown, highest) = (known(row.presented_token), known(row.highest_token));
    let request = format!("{} {}", row.method, row.route);
    Some(Line {
        at_ns: instant(&row.at)?,
        source: "refusal",
        component: component.to_owned(),
        token: row.presented_token,
        what: match row.reason.as_deref() {
            _ if row.code != Code::FencedOut.as_str() => {
                format!("{}: {who} showed token {shown}: {} ({request})", row.code, row.detail)
            }
            Some("token_spent") => format!(
                "FENCED_OUT: {who} showed token {shown}, refused because it has had its one submission ({request})"
            ),
            _ => format!(
                "FENCED_OUT: {who} showed token {shown}, refused because {highest} is higher or was shut out ({request})"
            ),
        },
        actor: row.actor,
        trace_id: Some(row.trace_id),
    })
}

/// Grants of the account's lock before and during the payout, and those whose token it carried.
async fn grants(api: &Api, args: &Args, account: &str, gathered: &mut Gathered) {
    let place = args.servers.urls.join(",");
    let key = match LockKey::new(format!("payout:{account}")) {
        Ok(key) => key,
        Err(error) => return gathered.unread("lock history", &place, "absent", error.to_string()),
    };
    let (first, last) = match (
        gathered.lines.iter().map(|line| line.at_ns).min(),
        gathered.lines.iter().map(|line| line.at_ns).max(),
    ) {
        (Some(first), Some(last)) => (first, last),
        _ => (i128::MIN / 2, i128::MAX / 2),
    };
    let around = i128::try_from(args.around.as_nanos()).unwrap_or(i128::MAX / 4);
    let (mut cursor, mut shown) = (None::<String>, Vec::new());
    for page in 1..=PAGES_MAX {
        let answer: Result<Page<AuditRow>, Failure> = api
            .lock_server(&args.servers, async |server| {
                server.history(&key, PAGE, cursor.as_deref(), &api.trace).await
            })
            .await;
        let rows = match answer {
            Ok(rows) => rows,
            Err(error) => return gathered.unread("lock history", &place, "unreached", error.to_string()),
        };
        for row in rows.items {
            let Some(at_ns) = instant(&row.at) else { continue };
            // Whoever had the lock before may have been in the way; whoever has it later has nothing to do with this payout.
            let near = at_ns >= first - around && at_ns <= last;
            if near || row.token.is_some_and(|token| gathered.tokens.contains(&token)) {
                shown.push(granted(at_ns, row));
            }
        }
        cursor = rows.next_cursor;
        if cursor.is_none() {
            gathered.read("lock history", &place, None);
            break;
        }
        if page == PAGES_MAX {
            let detail = format!("only the first {} events of {key} were read", PAGES_MAX * PAGE);
            gathered.read("lock history", &place, Some(detail));
        }
    }
    gathered.lines.extend(shown);
}

fn granted(at_ns: i128, row: AuditRow) -> Line {
    let reason = row.reason.map(|reason| format!(", {reason}")).unwrap_or_default();
    let session = row
        .session_id
        .map(|session| format!(" (session {session})"))
        .unwrap_or_default();
    Line {
        at_ns,
        source: "lock",
        component: "lock-server".to_owned(),
        actor: row.actor,
        token: row.token,
        what: format!("{} {}{session}{reason}", row.kind, row.lock_key.unwrap_or_default()),
        trace_id: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_who_showed_what_and_what_stood_against_it() {
        let row = RefusalRow {
            seq: 1,
            at: "2026-11-30T01:00:00.000Z".into(),
            method: "POST".into(),
            route: "/v1/rail/submissions".into(),
            code: Code::FencedOut.as_str().into(),
            payout_id: Some("P".into()),
            actor: Some("W1".into()),
            reason: Some("stale".into()),
            presented_token: Some(33),
            highest_token: Some(34),
            trace_id: "ab".into(),
            ..RefusalRow::default()
        };
        let line = refused("rail-proxy", row).unwrap();
        assert!(
            line.what.contains("W1 showed token 33, refused because 34 is higher"),
            "{}",
            line.what
        );
        assert_eq!((line.token, line.trace_id.as_deref()), (Some(33), Some("ab")));
    }
}
