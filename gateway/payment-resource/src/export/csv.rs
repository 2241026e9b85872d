//! Comma separated values, one row per entry.

use super::{Cut, Out};
use gateway_kit::rfc3339;
use money_kit::exponent;
use payment_store::LedgerRow;
use std::borrow::Cow;

/// The header, as the contract gives it.
const HEADER: [&str; 9] = [
    "entry_id",
    "payout_id",
    "account_id",
    "amount_minor",
    "currency",
    "exponent",
    "token",
    "at",
    "rail_reference",
];

pub(super) async fn write(out: &Out) -> Result<(), Cut> {
    out.write(page(Some(HEADER), &[])?).await?;
    let mut entries = out.entries(out.account_id.as_deref());
    while let Some(rows) = entries.next().await? {
        out.write(page(None, &rows)?).await?;
    }
    Ok(())
}

fn page(header: Option<[&str; 9]>, rows: &[LedgerRow]) -> Result<Vec<u8>, Cut> {
    let failed = |error: csv::Error| Cut::Format(error.to_string());
    let mut writer = csv::Writer::from_writer(Vec::new());
    if let Some(header) = header {
        writer.write_record(header).map_err(failed)?;
    }
    for row in rows {
        let number = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
        writer
            .write_record([
                row.entry_id.to_string().as_str(),
                &cell(row.payout_id.as_deref().unwrap_or_default()),
                &cell(&row.account_id),
                &row.amount_minor.to_string(),
                &cell(&row.currency),
                &exponent(&row.currency).to_string(),
                &number(row.token),
                &cell(&rfc3339(row.at_ms)),
                &cell(row.rail_reference.as_deref().unwrap_or_default()),
            ])
            .map_err(failed)?;
    }
    writer.into_inner().map_err(|error| Cut::Format(error.to_string()))
}

/// A text cell that a spreadsheet would take for a formula is disarmed.
fn cell(text: &str) -> Cow<'_, str> {
    if gateway_kit::is_formula(text) {
        Cow::Owned(format!("'{text}"))
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_could_be_a_formula_is_disarmed_and_numbers_are_not() {
        let row = LedgerRow {
            entry_id: 1,
            payout_id: Some("-P".into()),
            account_id: "A".into(),
            amount_minor: -400,
            currency: "EUR".into(),
            token: Some(5),
            at_ms: 0,
            rail_reference: Some("=cmd(),\"x\"".into()),
        };
        let text = String::from_utf8(page(Some(HEADER), &[row]).unwrap()).unwrap();
        assert_eq!(
            text,
            "entry_id,payout_id,account_id,amount_minor,currency,exponent,token,at,rail_reference\n\
             1,'-P,A,-400,EUR,2,5,1970-01-01T00:00:00.000Z,\"'=cmd(),\"\"x\"\"\"\n"
        );
    }

    #[test]
    fn case_s9_a_formula_in_fullwidth_is_disarmed() {
        assert_eq!(cell("\u{ff1d}cmd"), "'\u{ff1d}cmd");
        assert_eq!(cell("\u{200b}=cmd"), "'\u{200b}=cmd");
        assert_eq!(cell("plain"), "plain");
    }
}
