//! What this process refused to do under a token, to be read while it lives (`GET /v1/refusals`, C3.1).
//!
//! Owns: a bounded memory of the latest refusals of requests that showed a token, or should have.
//! Does not own: any decision; a refusal changes nothing and leaves nothing in a store (INV-05), so this is gone with the
//! process. The log has every refusal.
//! On failure: where there are more than fit, the oldest are forgotten and counted.

use super::Shared;
use crate::extract::{Query, decoded, raw_value_at};
use crate::openapi::Route;
use crate::{ApiError, rfc3339};
use actix_web::HttpResponse;
use actix_web::http::header::{CACHE_CONTROL, HeaderMap, HeaderValue};
use actix_web::web::Data;
use http_contract::refusal::{RefusalRow, RefusalsAnswer};
use http_contract::{Code, PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, header};
use serde::Deserialize;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many refusals are remembered.
const REMEMBERED_MAX: usize = 1_024;
/// The longest text of one field that is remembered, in characters.
const CHARS_MAX: usize = 256;

/// The latest refusals.
#[derive(Debug)]
pub(crate) struct Refusals {
    since_ms: i64,
    rows: Mutex<Rows>,
}

#[derive(Debug, Default)]
struct Rows {
    last: u64,
    kept: VecDeque<RefusalRow>,
}

/// What the head of a request shows, as it came: most requests are not refused, and nobody reads it then.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    token: Option<HeaderValue>,
    actor: Option<HeaderValue>,
    operator: Option<HeaderValue>,
}

impl Shown {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let one = |name: &str| headers.get(name).cloned();
        Self {
            token: one(header::FENCING_TOKEN),
            actor: one(header::ACTOR),
            operator: one(header::OPERATOR),
        }
    }
}

/// Where a request went.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) route: Option<&'a Route>,
    pub(super) trace_id: &'a str,
}

impl Asked<'_> {
    /// The value that stands in the path for `{name}`.
    fn part(&self, name: &str) -> Option<String> {
        let raw = raw_value_at(&self.route?.template, self.path, name)?;
        decoded(raw).map(|value| short(&value))
    }
}

impl Refusals {
    pub(super) fn new(since_ms: i64) -> Self {
        Self {
            since_ms,
            rows: Mutex::default(),
        }
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        // Nothing that can panic happens under it.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a refusal of a request that was to be done under a token.
    pub(super) fn note(&self, shown: &Shown, asked: Asked<'_>, refusal: &ApiError, now_ms: i64) {
        let code = refusal.code();
        let token = read(shown.token.as_ref());
        if token.is_none() && !matches!(code, Code::FencingTokenRequired | Code::FencingTokenInvalid) {
            return;
        }
        // What was passed on and has no answer was not refused: it may have been done (case P30).
        let passed_on = code == Code::InDoubt && refusal.known("reason").and_then(Value::as_str) == Some("no_answer");
        if code.is_outcome_unknown() || passed_on {
            return;
        }
        let problem = refusal.problem(asked.trace_id);
        let text = |name: &str| refusal.known(name).and_then(Value::as_str).map(short);
        let about = |name: &str| asked.part(name).or_else(|| text(name));
        let mut row = RefusalRow {
            seq: 0,
            at: rfc3339(now_ms),
            method: asked.method.to_owned(),
            route: asked.route.map_or_else(String::new, |route| route.template.clone()),
            status: problem.status,
            code: code.as_str().to_owned(),
            detail: short(&problem.detail),
            trace_id: asked.trace_id.to_owned(),
            actor: read(shown.actor.as_ref()),
            operator: read(shown.operator.as_ref()),
            presented_token: problem
                .number("presented_token")
                .or(token.and_then(|text| text.parse().ok())),
            highest_token: problem.number("highest_token"),
            reason: text("reason"),
            payout_id: about("payout_id"),
            account_id: about("account_id"),
            key: about("key"),
        };
        if code == Code::FencedOut {
            tracing::info!(
                event = "fenced_out",
                request = format!("{} {}", row.method, row.route),
                payout_id = row.payout_id,
                account_id = row.account_id,
                actor = row.actor,
                reason = row.reason,
                presented_token = row.presented_token,
                highest_token = row.highest_token,
            );
        }
        let mut rows = self.rows();
        rows.last += 1;
        row.seq = rows.last;
        if rows.kept.len() == REMEMBERED_MAX {
            rows.kept.pop_front();
        }
        rows.kept.push_back(row);
    }

    fn answer(&self, component: &str, params: &Params, limit: usize) -> RefusalsAnswer {
        let rows = self.rows();
        let is = |wanted: &Option<String>, row: &Option<String>| wanted.is_none() || wanted == row;
        let mut items: Vec<RefusalRow> = rows
            .kept
            .iter()
            .rev()
            .take_while(|row| row.seq > params.after.unwrap_or(0))
            .filter(|row| is(&params.payout_id, &row.payout_id))
            .filter(|row| is(&params.account_id, &row.account_id))
            .filter(|row| is(&params.key, &row.key))
            .take(limit)
            .cloned()
            .collect();
        items.reverse();
        RefusalsAnswer {
            component: component.to_owned(),
            since: rfc3339(self.since_ms),
            forgotten: rows.last - rows.kept.len() as u64,
            items,
        }
    }
}

/// A header as text; none where it is missing or no text.
fn read(value: Option<&HeaderValue>) -> Option<String> {
    std::str::from_utf8(value?.as_bytes()).ok().map(short)
}

fn short(text: &str) -> String {
    text.chars().take(CHARS_MAX).collect()
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Params {
    after: Option<u64>,
    limit: Option<u32>,
    payout_id: Option<String>,
    account_id: Option<String>,
    key: Option<String>,
}

pub(super) async fn refusals(shared: Data<Shared>, Query(params): Query<Params>) -> Result<HttpResponse, ApiError> {
    let limit = params.limit.unwrap_or(PAGE_LIMIT_DEFAULT);
    if !(1..=PAGE_LIMIT_MAX).contains(&limit) {
        return Err(ApiError::invalid(
            "limit",
            format!("must be between 1 and {PAGE_LIMIT_MAX}"),
        ));
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    Ok(HttpResponse::Ok()
        .insert_header((CACHE_CONTROL, "no-store"))
        .json(shared.refusals.answer(shared.component, &params, limit)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openapi::Routes;
    use actix_web::http::header::HeaderName;

    fn note(refusals: &Refusals, token: Option<&str>, refusal: &ApiError, now_ms: i64) {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static("x-actor"), HeaderValue::from_static("W1"));
        if let Some(token) = token {
            let value = HeaderValue::from_str(token).unwrap();
            headers.insert(HeaderName::from_static("x-fencing-token"), value);
        }
        let mut routes = Routes::default();
        routes.add("/v1/payouts/{payout_id}/claim", "POST");
        let route = routes.all().next().unwrap();
        let asked = Asked {
            method: "POST",
            path: "/v1/payouts/a%2Eb/claim",
            route: Some(route),
            trace_id: "00",
        };
        refusals.note(&Shown::of(&headers), asked, refusal, now_ms);
    }

    fn fenced(highest: u64) -> ApiError {
        ApiError::new(Code::FencedOut, "stale")
            .field("presented_token", 3)
            .field("highest_token", highest)
            .field("account_id", "alpha")
    }

    #[test]
    fn who_showed_which_token_and_what_stood_against_it() {
        let refusals = Refusals::new(0);
        note(&refusals, Some("3"), &fenced(5), 1_000);
        let answer = refusals.answer("x", &Params::default(), 10);
        let [row] = answer.items.as_slice() else {
            panic!("{answer:?}")
        };
        assert_eq!(row.actor.as_deref(), Some("W1"));
        assert_eq!((row.presented_token, row.highest_token), (Some(3), Some(5)));
        assert_eq!(row.payout_id.as_deref(), Some("a.b"));
        assert_eq!(row.account_id.as_deref(), Some("alpha"));
        assert_eq!(row.at, "1970-01-01T00:00:01.000Z");
    }

    #[test]
    fn only_what_was_to_be_done_under_a_token_is_remembered() {
        let refusals = Refusals::new(0);
        let held = ApiError::new(Code::HeldByOther, "held");
        note(&refusals, None, &held, 0);
        let naked = ApiError::new(Code::FencingTokenRequired, "X-Fencing-Token is required");
        note(&refusals, None, &naked, 0);
        let answer = refusals.answer("x", &Params::default(), 10);
        let codes: Vec<_> = answer.items.iter().map(|row| row.code.as_str()).collect();
        assert_eq!(codes, ["FENCING_TOKEN_REQUIRED"]);
    }

    #[test]
    fn the_memory_is_bounded_and_says_what_it_forgot() {
        let refusals = Refusals::new(0);
        for n in 0..REMEMBERED_MAX as u64 + 7 {
            note(&refusals, Some("3"), &fenced(n), 0);
        }
        let answer = refusals.answer("x", &Params::default(), 2);
        assert_eq!(answer.forgotten, 7);
        let seqs: Vec<_> = answer.items.iter().map(|row| row.seq).collect();
        let last = REMEMBERED_MAX as u64 + 7;
        assert_eq!(seqs, [last - 1, last], "the newest, oldest first");
        let of_another = Params {
            payout_id: Some("other".to_owned()),
            ..Params::default()
        };
        assert!(refusals.answer("x", &of_another, 10).items.is_empty());
    }
}
