//! From the row's values to bodies and problems.

use actix_web::HttpResponse;
use gateway_kit::{ApiError, rfc3339};
use http_contract::payment::{
    AccountAnswer, Creditor, LedgerRow, PaymentAuditRow, PayoutAnswer, PayoutState, TransitionRow,
};
use http_contract::{Code, header};
use payment_core::StepError;
use payment_store::{CreateOutcome, Refusal, StepOutcome, allowed_from};
use serde::Serialize;
use serde_json::json;
use std::time::Duration;

/// How long a caller is told to stay away from something that is full.
const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(crate) const fn state(state: payment_store::PayoutState) -> PayoutState {
    match state {
        payment_store::PayoutState::Pending => PayoutState::Pending,
        payment_store::PayoutState::Claimed => PayoutState::Claimed,
        payment_store::PayoutState::RailAmbiguous => PayoutState::RailAmbiguous,
        payment_store::PayoutState::Posted => PayoutState::Posted,
        payment_store::PayoutState::Failed => PayoutState::Failed,
    }
}

pub(crate) const fn asked_state(state: PayoutState) -> payment_store::PayoutState {
    match state {
        PayoutState::Pending => payment_store::PayoutState::Pending,
        PayoutState::Claimed => payment_store::PayoutState::Claimed,
        PayoutState::RailAmbiguous => payment_store::PayoutState::RailAmbiguous,
        PayoutState::Posted => payment_store::PayoutState::Posted,
        PayoutState::Failed => payment_store::PayoutState::Failed,
    }
}

pub(crate) fn account(account: payment_store::Account) -> AccountAnswer {
    AccountAnswer {
        available_minor: account.balance_minor - account.held_minor,
        account_id: account.account_id,
        currency: account.currency,
        opening_balance_minor: account.opening_balance_minor,
        balance_minor: account.balance_minor,
        held_minor: account.held_minor,
        fence: account.fence,
    }
}

pub(crate) fn payout(payout: payment_store::Payout) -> PayoutAnswer {
    PayoutAnswer {
        payout_id: payout.payout_id,
        account_id: payout.account_id,
        amount_minor: payout.amount_minor,
        currency: payout.currency,
        creditor: Creditor {
            name: payout.creditor.name,
            account: payout.creditor.account,
        },
        reference: payout.reference,
        state: state(payout.state),
        claim_token: payout.claim_token,
        rail_reference: payout.rail_reference,
        failure_reason: payout.failure_reason,
        created_at: rfc3339(payout.created_at_ms),
        updated_at: rfc3339(payout.updated_at_ms),
        ambiguous_since: payout.ambiguous_since_ms.map(rfc3339),
        escalated_at: payout.escalated_at_ms.map(rfc3339),
        version: payout.version,
    }
}

pub(crate) fn transition(row: payment_store::TransitionRow) -> TransitionRow {
    TransitionRow {
        seq: row.seq,
        payout_id: row.payout_id,
        from_state: row.from_state.map(state),
        to_state: state(row.to_state),
        token: row.token,
        actor: Some(row.actor),
        at: rfc3339(row.at_ms),
        detail: row.detail,
    }
}

pub(crate) fn ledger(row: payment_store::LedgerRow) -> LedgerRow {
    LedgerRow {
        entry_id: row.entry_id,
        payout_id: row.payout_id,
        account_id: row.account_id,
        amount_minor: row.amount_minor,
        currency: row.currency,
        token: row.token,
        at: rfc3339(row.at_ms),
        rail_reference: row.rail_reference,
    }
}

pub(crate) fn audit(row: payment_store::AuditRow) -> PaymentAuditRow {
    PaymentAuditRow {
        seq: row.seq,
        at: rfc3339(row.at_ms),
        kind: row.kind,
        account_id: row.account_id,
        payout_id: row.payout_id,
        token: row.token,
        actor: row.actor,
        reason: row.reason,
    }
}

pub(crate) use gateway_kit::page;

/// What a request to make something came to: 201, 200 for the same again, or a problem.
pub(crate) fn created<T, A: Serialize>(
    outcome: CreateOutcome<T>,
    keyed: bool,
    render: impl Fn(T) -> A,
) -> Result<HttpResponse, ApiError> {
    match outcome {
        CreateOutcome::Created(made) => Ok(HttpResponse::Created().json(render(made))),
        CreateOutcome::Existing(stands) => {
            let mut answer = HttpResponse::Ok();
            if keyed {
                answer.insert_header((header::IDEMPOTENT_REPLAYED, "true"));
            }
            Ok(answer.json(render(stands)))
        }
        CreateOutcome::Conflict { detail } => Err(ApiError::new(Code::Conflict, detail)),
        CreateOutcome::KeyReused => Err(ApiError::new(
            Code::IdempotencyKeyReused,
            "this idempotency key was used with another body",
        )
        .field("field", header::IDEMPOTENCY_KEY)),
        CreateOutcome::AccountNotFound => Err(account_not_found()),
        CreateOutcome::CurrencyMismatch { currency } => Err(ApiError::invalid(
            "currency",
            format!("must be the account's: {currency}"),
        )),
        CreateOutcome::BalanceTooLarge => Err(ApiError::invalid(
            "amount_minor",
            format!(
                "must leave the balance at most {} minor units",
                payment_store::AMOUNT_MAX_MINOR
            ),
        )),
    }
}

pub(crate) fn account_not_found() -> ApiError {
    ApiError::new(Code::AccountNotFound, "there is no such account")
}

pub(crate) fn payout_not_found() -> ApiError {
    ApiError::new(Code::PayoutNotFound, "there is no such payout")
}

/// What a step came to: the payout, with the replay said in a header, or a problem.
pub(crate) fn step(outcome: StepOutcome) -> Result<HttpResponse, ApiError> {
    match outcome {
        StepOutcome::Done(done) => Ok(HttpResponse::Ok().json(payout(*done))),
        StepOutcome::Replayed(now) => Ok(HttpResponse::Ok()
            .insert_header((header::IDEMPOTENT_REPLAYED, "true"))
            .json(payout(*now))),
        StepOutcome::Refused(refusal) => Err(refused(refusal)),
    }
}

fn refused(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::PayoutNotFound => payout_not_found(),
        Refusal::FencedOut {
            reason,
            presented,
            highest,
        } => fenced_out(reason, presented.get(), highest),
        Refusal::IllegalTransition { from, to } => ApiError::new(
            Code::IllegalTransition,
            format!("the payout is {from}; it cannot become {to} by this"),
        )
        .field("from", from.as_str())
        .field("to", to.as_str())
        .field(
            "allowed",
            json!(
                allowed_from(from)
                    .into_iter()
                    .map(payment_store::PayoutState::as_str)
                    .collect::<Vec<_>>()
            ),
        ),
        Refusal::VersionConflict { expected, actual } => ApiError::new(
            Code::VersionConflict,
            format!("the payout is at version {actual}, not at {expected}: read it again"),
        )
        .field("expected_version", expected)
        .field("actual_version", actual),
        Refusal::InsufficientFunds {
            available_minor,
            amount_minor,
            currency,
        } => ApiError::new(
            Code::InsufficientFunds,
            format!(
                "available are {}, the payout needs {}",
                money_kit::amount(available_minor, &currency),
                money_kit::amount(amount_minor, &currency)
            ),
        )
        .field("available_minor", available_minor)
        .field("amount_minor", amount_minor),
        Refusal::EvidenceMissing { needed, found } => ApiError::new(
            Code::OutcomeEvidenceMissing,
            format!("the rail must have recorded {needed}; it has recorded {found}"),
        )
        .field("needed", needed)
        .field("recorded", found),
    }
}

/// 409 `FENCED_OUT`.
pub(crate) fn fenced_out(reason: payment_store::FenceReason, presented: u64, highest: u64) -> ApiError {
    ApiError::new(
        Code::FencedOut,
        format!(
            "token {presented} against the mark {highest}: {}; nothing was changed",
            reason.as_str()
        ),
    )
    .field("reason", reason.as_str())
    .field("presented_token", presented)
    .field("highest_token", highest)
}

pub(crate) fn step_error(error: StepError) -> ApiError {
    match error {
        StepError::Overloaded => ApiError::new(Code::Overloaded, error.to_string()).retry_after(RETRY_AFTER),
        StepError::Store(error) => error.into(),
        StepError::Actor(error) => error.into(),
    }
}
