//! Bounds of what arrives (C3.1). A value out of bounds is 400 naming its field; text is never changed, only looked at.

use gateway_kit::{ApiError, IdempotencyKey};
use http_contract::payment::{CreatePayoutBody, CreditBody, Creditor, OpenAccountBody};
use http_contract::{PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX};
use lock_api::TOKEN_MAX;
use payment_store::AMOUNT_MAX_MINOR;

/// The longest id of a payout, in characters (C1.2): it travels to the rail as the client reference.
pub(crate) const PAYOUT_ID_CHARS_MAX: usize = 35;

/// The longest id of an account, in characters.
pub(crate) const ACCOUNT_ID_CHARS_MAX: usize = 64;

/// The longest creditor field, reference or reason of a worker, in characters.
pub(crate) const TEXT_CHARS_MAX: usize = 140;

/// A payout's id in a path or a body.
pub(crate) fn payout_id(value: &str) -> Result<(), ApiError> {
    gateway_kit::id("payout_id", value, PAYOUT_ID_CHARS_MAX)
}

/// An account's id in a path or a body.
pub(crate) fn account_id(value: &str) -> Result<(), ApiError> {
    gateway_kit::id("account_id", value, ACCOUNT_ID_CHARS_MAX)
}

/// A house account exists in the ledger alone; nobody opens one.
pub(crate) fn is_house(account_id: &str) -> bool {
    account_id.starts_with("house:")
}

/// Text of so many characters, none of them a control character. Whatever its Unicode form, it is kept byte for byte.
fn text(field: &'static str, value: &str, chars: std::ops::RangeInclusive<usize>) -> Result<(), ApiError> {
    if chars.contains(&value.chars().count()) && !value.chars().any(char::is_control) {
        return Ok(());
    }
    let (low, high) = (chars.start(), chars.end());
    Err(ApiError::invalid(
        field,
        format!("must be {low} to {high} characters without control characters"),
    ))
}

/// Why an operator acts (FR-26), where it is said.
pub(crate) fn reason(value: Option<&str>) -> Result<Option<String>, ApiError> {
    Ok(value.map(gateway_kit::reason).transpose()?.map(str::to_owned))
}

pub(crate) fn line(field: &'static str, value: &str) -> Result<(), ApiError> {
    text(field, value, 1..=TEXT_CHARS_MAX)
}

fn amount(field: &'static str, value: i64, low: i64) -> Result<(), ApiError> {
    if (low..=AMOUNT_MAX_MINOR).contains(&value) {
        Ok(())
    } else {
        let reason = format!("must be between {low} and {AMOUNT_MAX_MINOR} minor units");
        Err(ApiError::invalid(field, reason))
    }
}

/// A circulating currency of ISO 4217 (case P28).
fn currency(value: &str) -> Result<(), ApiError> {
    if money_kit::circulates(value) {
        Ok(())
    } else {
        Err(ApiError::invalid("currency", money_kit::REFUSED))
    }
}

fn creditor(value: &Creditor) -> Result<(), ApiError> {
    line("creditor.name", &value.name)?;
    line("creditor.account", &value.account)
}

pub(crate) fn open_account(body: &OpenAccountBody) -> Result<(), ApiError> {
    account_id(&body.account_id)?;
    if is_house(&body.account_id) {
        return Err(ApiError::invalid(
            "account_id",
            "must not begin with house:, which is the ledger's own",
        ));
    }
    currency(&body.currency)?;
    amount("opening_balance_minor", body.opening_balance_minor, 0)
}

pub(crate) fn credit(body: &CreditBody) -> Result<(), ApiError> {
    amount("amount_minor", body.amount_minor, 1)?;
    text("reference", &body.reference, 0..=TEXT_CHARS_MAX)
}

pub(crate) fn create_payout(body: &CreatePayoutBody) -> Result<(), ApiError> {
    if let Some(id) = &body.payout_id {
        payout_id(id)?;
    }
    account_id(&body.account_id)?;
    amount("amount_minor", body.amount_minor, 1)?;
    currency(&body.currency)?;
    creditor(&body.creditor)?;
    match &body.reference {
        Some(reference) => text("reference", reference, 0..=TEXT_CHARS_MAX),
        None => Ok(()),
    }
}

pub(crate) fn version(expected: Option<u64>) -> Result<(), ApiError> {
    match expected {
        Some(version) if version > TOKEN_MAX => Err(ApiError::invalid(
            "expected_version",
            format!("must be between 0 and {TOKEN_MAX}"),
        )),
        _ => Ok(()),
    }
}

pub(crate) fn limit(limit: Option<u32>) -> Result<u32, ApiError> {
    let limit = limit.unwrap_or(PAGE_LIMIT_DEFAULT);
    if (1..=PAGE_LIMIT_MAX).contains(&limit) {
        Ok(limit)
    } else {
        Err(ApiError::invalid(
            "limit",
            format!("must be between 1 and {PAGE_LIMIT_MAX}"),
        ))
    }
}

/// A cursor that is a place in an order: the `seq` of the last item seen.
pub(crate) fn place(cursor: Option<&str>) -> Result<u64, ApiError> {
    cursor.map_or(Ok(0), |text| {
        text.parse::<u64>()
            .ok()
            // The store counts in signed numbers of 64 bits.
            .filter(|seq| i64::try_from(*seq).is_ok() && text.bytes().all(|b| b.is_ascii_digit()))
            .ok_or_else(|| ApiError::invalid("cursor", "must be one that this list answered"))
    })
}

/// The key as it is kept.
pub(crate) fn key(key: IdempotencyKey) -> String {
    key.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payout() -> CreatePayoutBody {
        CreatePayoutBody {
            payout_id: None,
            account_id: "A".into(),
            amount_minor: 1,
            currency: "EUR".into(),
            creditor: Creditor {
                name: "n".into(),
                account: "a".into(),
            },
            reference: None,
        }
    }

    fn field(result: Result<(), ApiError>) -> String {
        result
            .unwrap_err()
            .problem("")
            .text("field")
            .unwrap_or_default()
            .to_owned()
    }

    #[test]
    fn each_value_out_of_bounds_is_named() {
        assert!(create_payout(&payout()).is_ok());
        type Spoil = fn(&mut CreatePayoutBody);
        let spoilt: [(Spoil, &str); 14] = [
            (|b| b.payout_id = Some("x".repeat(36)), "payout_id"),
            (|b| b.payout_id = Some("a/b".into()), "payout_id"),
            (|b| b.account_id = String::new(), "account_id"),
            (|b| b.amount_minor = 0, "amount_minor"),
            (|b| b.amount_minor = AMOUNT_MAX_MINOR + 1, "amount_minor"),
            (|b| b.payout_id = Some(".".into()), "payout_id"),
            (|b| b.payout_id = Some("..".into()), "payout_id"),
            (|b| b.account_id = "..".into(), "account_id"),
            (|b| b.currency = "eur".into(), "currency"),
            (|b| b.currency = "XXX".into(), "currency"),
            (|b| b.currency = "EUT".into(), "currency"),
            (|b| b.creditor.name = String::new(), "creditor.name"),
            (|b| b.creditor.account = "a\u{7}".into(), "creditor.account"),
            (|b| b.reference = Some("x".repeat(141)), "reference"),
        ];
        for (spoil, name) in spoilt {
            let mut body = payout();
            spoil(&mut body);
            assert_eq!(field(create_payout(&body)), name);
        }
    }

    #[test]
    fn length_is_counted_in_characters_and_controls_are_refused() {
        assert!(line("x", &"\u{e9}".repeat(140)).is_ok());
        assert!(line("x", "a\u{2028}b \u{5e9} 👩‍🚀 e\u{301}").is_ok());
        for control in ['\u{0}', '\n', '\t', '\u{7f}', '\u{85}', '\u{9b}'] {
            assert_eq!(field(line("x", &format!("a{control}b"))), "x");
        }
    }

    #[test]
    fn a_cursor_is_a_place() {
        assert_eq!(place(None).unwrap(), 0);
        assert_eq!(place(Some("17")).unwrap(), 17);
        for bad in ["", "-1", "+1", "x", "99999999999999999999", "9223372036854775808"] {
            assert!(place(Some(bad)).is_err(), "{bad}");
        }
    }
}
