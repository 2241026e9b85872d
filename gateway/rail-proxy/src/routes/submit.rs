//! R1.

use super::{REPLAYED, TRUE, fenced_out};
use crate::{State, validate, view};
use actix_web::HttpResponse;
use actix_web::web::Data;
use actor_kit::AskError;
use gateway_kit::{ActorName, ApiError, IdempotencyKey, Json, Noted, Token, Trace};
use http_contract::rail::{SubmitAnswer, SubmitBody};
use http_contract::{Code, Problem, header};
use rail_core::{Submit, Submitted, Unprepared};
use rail_store::{Outcome, Submission, SubmitOutcome, SubmitRequest};
use std::time::Duration;

/// Submits a claimed payout to the rail, once. A submission is forwarded once whatever happens: read R2 after anything
/// but a 200, never submit anew.
#[utoipa::path(
    post,
    path = "/v1/rail/submissions",
    operation_id = "submit",
    tag = "rail",
    request_body = SubmitBody,
    params(
        ("X-Fencing-Token" = u64, Header, description = "The token of the account's lock"),
        ("X-Idempotency-Key" = String, Header, description = "The payout's id"),
        ("X-Actor" = Option<String>, Header, description = "The owner of the session on whose behalf it is done")
    ),
    responses(
        (status = 200, description = "The rail acknowledged or declined; or what is recorded now, replayed", body = SubmitAnswer),
        (status = 400, description = "INVALID_REQUEST, FENCING_TOKEN_REQUIRED, FENCING_TOKEN_INVALID", body = Problem),
        (status = 404, description = "PAYOUT_NOT_FOUND", body = Problem),
        (status = 409, description = "RAIL_AMBIGUOUS, FENCED_OUT, SUBMISSION_IN_FLIGHT, ALREADY_SUBMITTED, NOT_CLAIMED", body = Problem),
        (status = 422, description = "IDEMPOTENCY_KEY_REUSED, SUBMISSION_MISMATCH", body = Problem),
        (
            status = 503,
            description = "BACKEND_UNAVAILABLE, OVERLOADED, SUBMISSIONS_IN_DOUBT: nothing was done",
            body = Problem
        )
    )
)]
pub(crate) async fn submit(
    state: Data<State>,
    token: Token,
    key: IdempotencyKey,
    actor: ActorName,
    trace: Trace,
    noted: Noted,
    body: Json<SubmitBody>,
) -> Result<HttpResponse, ApiError> {
    let Json(body) = body;
    noted.payout(&body.payout_id);
    validate::submit(&body)?;
    let request = SubmitRequest {
        submission_id: state.host.ids.prefixed("submission"),
        token: token.0,
        idempotency_key: key.0,
        payout_id: body.payout_id,
        account_id: body.account_id,
        amount_minor: body.amount_minor,
        currency: body.currency,
        creditor_name: body.creditor.name,
        creditor_account: body.creditor.account,
        actor: actor.0,
    };
    let (payout_id, account_id) = (request.payout_id.clone(), request.account_id.clone());
    let within = state.config.submit_within();
    // The path names neither, and whoever reads a refusal wants to know what it was about.
    let about = |error: ApiError| error.about("payout_id", payout_id).about("account_id", account_id);
    let answered = match state.desk.ask(Submit(request), within, &trace.0).await {
        Ok(submitted) => answer(submitted),
        // Whatever it was doing may have gone past the intent: never a 5xx, which would be retried.
        Err(AskError::Deadline | AskError::Restarting) => Err(in_flight(None)),
        Err(error) => Err(error.into()),
    };
    answered.map_err(about)
}

fn answer(submitted: Submitted) -> Result<HttpResponse, ApiError> {
    match submitted {
        Submitted::Recorded { submission, replayed } => recorded(*submission, replayed),
        Submitted::InDoubt => Err(in_flight(None)),
        Submitted::StoreFailed(error) => Err(error.into()),
        Submitted::Overloaded => {
            Err(ApiError::new(Code::Overloaded, "too many submissions are under way")
                .retry_after(Duration::from_secs(1)))
        }
        Submitted::Unprepared(missing) => Err(match missing {
            Unprepared::NoSocket(why) => ApiError::new(
                Code::Overloaded,
                format!("no socket to the rail can be had here: {why}"),
            ),
            Unprepared::NoAddress(why) => ApiError::new(
                Code::BackendUnavailable,
                format!("the rail's address is not known: {why}"),
            ),
        }
        .retry_after(Duration::from_secs(1))),
        Submitted::Refused(refused) => Err(refusal(refused)),
    }
}

/// What is recorded now.
fn recorded(submission: Submission, replayed: bool) -> Result<HttpResponse, ApiError> {
    let refused = |error: ApiError| Err(if replayed { error.header(REPLAYED, TRUE) } else { error });
    match submission.outcome {
        None => refused(in_flight(Some(&submission))),
        Some(Outcome::Timeout) => {
            let detail = "the rail's outcome is not known; it may have been executed";
            let error = ApiError::new(Code::RailAmbiguous, detail)
                .field("submission_id", submission.submission_id)
                .field("outcome", Outcome::Timeout.as_str())
                .field("cause", submission.cause);
            refused(error)
        }
        Some(outcome) => {
            let mut response = HttpResponse::Ok();
            if replayed {
                response.insert_header((header::IDEMPOTENT_REPLAYED, "true"));
            }
            Ok(response.json(SubmitAnswer {
                submission_id: submission.submission_id,
                outcome: view::outcome(outcome),
                rail_reference: submission.rail_reference,
                decline_reason: submission.decline_reason,
            }))
        }
    }
}

fn in_flight(submission: Option<&Submission>) -> ApiError {
    let detail = "the submission has no outcome yet: read it, never send it anew";
    ApiError::new(Code::SubmissionInFlight, detail).field(
        "submission_id",
        submission.map(|submission| submission.submission_id.clone()),
    )
}

fn refusal(refused: SubmitOutcome) -> ApiError {
    match refused {
        SubmitOutcome::KeyReused => ApiError::new(
            Code::IdempotencyKeyReused,
            "the idempotency key was used with another body, or is not this payout's id",
        ),
        SubmitOutcome::FencedOut(refused) => fenced_out(refused),
        SubmitOutcome::AlreadySubmitted(existing) => ApiError::new(
            Code::AlreadySubmitted,
            "another token's submission of the payout exists",
        )
        .field("submission_id", existing.submission_id)
        .field("outcome", existing.outcome.map(Outcome::as_str))
        .field("rail_reference", existing.rail_reference)
        .field("decline_reason", existing.decline_reason),
        SubmitOutcome::PayoutNotFound => ApiError::new(Code::PayoutNotFound, "there is no such payout"),
        SubmitOutcome::Mismatch { field } => ApiError::new(
            Code::SubmissionMismatch,
            format!("{field} does not agree with the payout"),
        )
        .field("field", field),
        SubmitOutcome::NotClaimed { state, claim_token } => ApiError::new(
            Code::NotClaimed,
            format!("the payout is {state}, not CLAIMED under this token"),
        )
        .field("state", state)
        .field("claim_token", claim_token),
        SubmitOutcome::PayoutsUnknown => ApiError::new(
            Code::BackendUnavailable,
            "the payouts cannot be read yet; nothing was done",
        )
        .retry_after(Duration::from_secs(1)),
        SubmitOutcome::RailUnasked => ApiError::new(
            Code::SubmissionsInDoubt,
            "paydb was restored and the rail has not been asked about this payout: look it up, then submit or settle",
        )
        .retry_after(Duration::from_secs(1)),
        // The actor answers these as recorded.
        SubmitOutcome::Intent(submission) | SubmitOutcome::Replay(submission) => in_flight(Some(&submission)),
    }
}
