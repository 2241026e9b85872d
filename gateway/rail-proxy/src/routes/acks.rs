//! R4.

use crate::{State, validate};
use actix_web::web::Data;
use gateway_kit::{ApiError, Json};
use host_kit::fault_point;
use http_contract::rail::{AckAnswer, AckBody, AckOutcome, AckRecorded};
use http_contract::{Code, Problem};
use rail_store::{Ack, AckOutcome as Recorded, Evidence};

/// Records an asynchronous ack of the rail. An identical second ack changes nothing; a conflicting one is kept for a
/// human and changes no outcome.
#[utoipa::path(
    post,
    path = "/v1/rail/acks",
    operation_id = "record_ack",
    tag = "rail",
    request_body = AckBody,
    responses(
        (status = 200, description = "What the ack did", body = AckAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem),
        (status = 404, description = "SUBMISSION_NOT_FOUND", body = Problem)
    )
)]
pub(crate) async fn ack(state: Data<State>, body: Json<AckBody>) -> Result<actix_web::web::Json<AckAnswer>, ApiError> {
    let Json(body) = body;
    validate::text("client_reference", &body.client_reference)?;
    validate::amount(body.amount_minor)?;
    validate::currency(&body.currency)?;
    if let Some(rail_reference) = &body.rail_reference {
        validate::text("rail_reference", rail_reference)?;
    }
    if let Some(reason) = &body.decline_reason {
        validate::text("decline_reason", reason)?;
    }
    let evidence = match (body.outcome, body.rail_reference) {
        (AckOutcome::Acked, Some(rail_reference)) => Evidence::Acked { rail_reference },
        (AckOutcome::Acked, None) => return Err(ApiError::invalid("rail_reference", "is required with ACKED")),
        // It says both: a reference is given to what was executed.
        (AckOutcome::Declined, Some(_)) => {
            return Err(ApiError::invalid("rail_reference", "must not be given with DECLINED"));
        }
        (AckOutcome::Declined, None) => Evidence::Declined {
            reason: body.decline_reason,
        },
    };
    let ack = Ack {
        client_reference: body.client_reference,
        evidence,
        amount_minor: body.amount_minor,
        currency: body.currency,
    };
    fault_point!(state.host.faults, "rail_proxy.before_ack");
    let recorded = state.store.record_ack(ack, state.config.store_timeout).await?;
    fault_point!(state.host.faults, "rail_proxy.after_ack");
    let recorded = match recorded {
        Recorded::Recorded => AckRecorded::Outcome,
        Recorded::Duplicate => AckRecorded::Duplicate,
        Recorded::Anomaly => AckRecorded::Anomaly,
        Recorded::Unknown => {
            return Err(ApiError::new(
                Code::SubmissionNotFound,
                "no submission has this client reference",
            ));
        }
    };
    Ok(actix_web::web::Json(AckAnswer { recorded }))
}
