//! R2 and R3.

use super::{page, page_after, page_limit};
use crate::{State, validate, view};
use actix_web::web::{Data, Json};
use gateway_kit::{ApiError, Id, Query};
use http_contract::rail::{LookupAnswer, LookupRow, SubmissionRow};
use http_contract::{Code, Page, Problem};
use rail_store::{Outcome, OutcomeFilter};
use serde::Deserialize;
use utoipa::ToSchema;

/// Which submissions are listed.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum OutcomeParam {
    /// Acknowledged by the rail.
    Acked,
    /// Declined by the rail.
    Declined,
    /// Sent, and not known.
    Timeout,
    /// Never received by the rail, by lookup.
    NotReceived,
    /// Never sent and never to be sent.
    NotSent,
    /// Without an outcome yet.
    None,
}

impl OutcomeParam {
    const fn filter(self) -> OutcomeFilter {
        match self {
            Self::Acked => OutcomeFilter::Is(Outcome::Acked),
            Self::Declined => OutcomeFilter::Is(Outcome::Declined),
            Self::Timeout => OutcomeFilter::Is(Outcome::Timeout),
            Self::NotReceived => OutcomeFilter::Is(Outcome::NotReceived),
            Self::NotSent => OutcomeFilter::Is(Outcome::NotSent),
            Self::None => OutcomeFilter::None,
        }
    }
}

/// The parameters of a list of submissions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListParams {
    outcome: Option<OutcomeParam>,
    limit: Option<u32>,
    cursor: Option<String>,
}

fn not_found() -> ApiError {
    ApiError::new(Code::SubmissionNotFound, "the payout has no submission")
}

/// Submissions in the order of their intents.
#[utoipa::path(
    get,
    path = "/v1/rail/submissions",
    operation_id = "list_submissions",
    tag = "rail",
    params(
        ("outcome" = Option<OutcomeParam>, Query, description = "Only those; NONE for intents without outcome"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000, description = "How many, by default 100"),
        ("cursor" = Option<String>, Query, description = "next_cursor of the page before")
    ),
    responses(
        (status = 200, description = "A page", body = Page<SubmissionRow>),
        (status = 400, description = "INVALID_REQUEST", body = Problem)
    )
)]
pub(crate) async fn list(
    state: Data<State>,
    Query(params): Query<ListParams>,
) -> Result<Json<Page<SubmissionRow>>, ApiError> {
    let filter = params.outcome.map_or(OutcomeFilter::All, OutcomeParam::filter);
    let (limit, after) = (page_limit(params.limit)?, page_after(params.cursor.as_deref())?);
    let rows = state
        .store
        .submissions(filter, after, limit + 1, state.config.store_timeout)
        .await?;
    Ok(Json(page(rows, limit, |row| row.seq, view::submission)))
}

/// One payout's submission as it is recorded now.
#[utoipa::path(
    get,
    path = "/v1/rail/submissions/{payout_id}",
    operation_id = "get_submission",
    tag = "rail",
    params(("payout_id" = String, Path, description = "The payout")),
    responses(
        (status = 200, description = "The submission", body = SubmissionRow),
        (status = 400, description = "INVALID_REQUEST", body = Problem),
        (status = 404, description = "SUBMISSION_NOT_FOUND", body = Problem)
    )
)]
pub(crate) async fn read(state: Data<State>, id: Id) -> Result<Json<SubmissionRow>, ApiError> {
    validate::payout_id(&id.0)?;
    let row = state.store.submission(id.0, state.config.store_timeout).await?;
    row.map(|row| Json(view::submission(row))).ok_or_else(not_found)
}

/// Asks the rail, read-only, what became of a payout's submission, and records what may be concluded from it.
#[utoipa::path(
    post,
    path = "/v1/rail/submissions/{payout_id}/lookup",
    operation_id = "look_up_submission",
    tag = "rail",
    params(("payout_id" = String, Path, description = "The payout")),
    responses(
        (status = 200, description = "What can be concluded now", body = LookupAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem),
        (status = 404, description = "SUBMISSION_NOT_FOUND", body = Problem)
    )
)]
pub(crate) async fn look_up(state: Data<State>, id: Id) -> Result<Json<LookupAnswer>, ApiError> {
    validate::payout_id(&id.0)?;
    let found = state.reconciler.look_up(&id.0).await?.ok_or_else(not_found)?;
    Ok(Json(LookupAnswer {
        verdict: view::verdict(found.verdict),
        executions: found.executions,
        submission: found.submission.map(view::submission),
    }))
}

/// The parameters of the list of lookups.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LookupParams {
    limit: Option<u32>,
}

/// What the rail said of a payout whenever it was asked: the newest lookups, oldest first. Empty where it never was.
#[utoipa::path(
    get,
    path = "/v1/rail/submissions/{payout_id}/lookups",
    operation_id = "list_lookups",
    tag = "rail",
    params(
        ("payout_id" = String, Path, description = "The payout"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000, description = "How many of the newest, by default 100")
    ),
    responses(
        (status = 200, description = "The newest lookups; there is no further page", body = Page<LookupRow>),
        (status = 400, description = "INVALID_REQUEST", body = Problem)
    )
)]
pub(crate) async fn lookups(
    state: Data<State>,
    id: Id,
    Query(params): Query<LookupParams>,
) -> Result<Json<Page<LookupRow>>, ApiError> {
    validate::payout_id(&id.0)?;
    let limit = page_limit(params.limit)?;
    let rows = state.store.lookups(id.0, limit, state.config.store_timeout).await?;
    Ok(Json(Page {
        items: rows.into_iter().map(view::lookup).collect(),
        next_cursor: None,
    }))
}
