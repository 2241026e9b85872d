//! Bounds of what arrives (C3.1). A value out of bounds is 400 naming its field.

use gateway_kit::ApiError;
use http_contract::rail::SubmitBody;
use lock_api::TOKEN_MAX;

/// The longest id of a payout, in characters (C1.2).
const PAYOUT_ID_CHARS_MAX: usize = 35;

/// The longest id of an account, in characters.
const ACCOUNT_ID_CHARS_MAX: usize = 64;

/// The longest creditor field, reference or reason, in characters.
const TEXT_CHARS_MAX: usize = 140;

/// 1 to 140 characters, none of them a control character.
pub(crate) fn text(field: &'static str, value: &str) -> Result<(), ApiError> {
    if (1..=TEXT_CHARS_MAX).contains(&value.chars().count()) && !value.chars().any(char::is_control) {
        Ok(())
    } else {
        let reason = format!("must be 1 to {TEXT_CHARS_MAX} characters without control characters");
        Err(ApiError::invalid(field, reason))
    }
}

/// An amount above 0 that survives a JSON number in any language.
pub(crate) fn amount(value: i64) -> Result<(), ApiError> {
    if u64::try_from(value).is_ok_and(|value| (1..=TOKEN_MAX).contains(&value)) {
        Ok(())
    } else {
        let reason = format!("must be between 1 and {TOKEN_MAX} minor units");
        Err(ApiError::invalid("amount_minor", reason))
    }
}

/// A circulating currency of ISO 4217.
pub(crate) fn currency(value: &str) -> Result<(), ApiError> {
    if money_kit::circulates(value) {
        Ok(())
    } else {
        Err(ApiError::invalid("currency", money_kit::REFUSED))
    }
}

/// A payout's id in a path or a body.
pub(crate) fn payout_id(value: &str) -> Result<(), ApiError> {
    gateway_kit::id("payout_id", value, PAYOUT_ID_CHARS_MAX)
}

/// An account's id in a path or a body.
pub(crate) fn account_id(value: &str) -> Result<(), ApiError> {
    gateway_kit::id("account_id", value, ACCOUNT_ID_CHARS_MAX)
}

/// An exception's id in a path.
pub(crate) fn exception_id(value: &str) -> Result<u64, ApiError> {
    let canonical = value.bytes().all(|b| b.is_ascii_digit()) && !value.starts_with('0');
    value
        .parse()
        .ok()
        .filter(|id| canonical && i64::try_from(*id).is_ok())
        .ok_or_else(|| ApiError::invalid("exception_id", "must be a whole number from 1"))
}

/// The shape of R1.
pub(crate) fn submit(body: &SubmitBody) -> Result<(), ApiError> {
    payout_id(&body.payout_id)?;
    account_id(&body.account_id)?;
    amount(body.amount_minor)?;
    currency(&body.currency)?;
    text("creditor.name", &body.creditor.name)?;
    text("creditor.account", &body.creditor.account)
}
