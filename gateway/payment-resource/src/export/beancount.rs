//! Plain-text accounting (beancount): every fact one transaction of two postings that sum to zero, as the tool demands.
//!
//! A client's account is `Assets:Clients:…`; where the money comes from and goes to is `Equity:House:…`.

use super::pairs::Pairs;
use super::period::{day, day_before};
use super::{Cut, Out};
use gateway_kit::rfc3339;
use money_kit::decimal;
use payment_store::LedgerRow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Accounts are open from a day before any entry.
const OPENED: &str = "1970-01-01";

pub(super) async fn write(out: &Out) -> Result<(), Cut> {
    out.write(format!("{}option \"title\" \"dlock ledger\"\n\n", out.about()))
        .await?;
    // Balances are brought forward from what lies before the period.
    let sums = match out.period.from_ms {
        Some(_) => out.sums().await?,
        None => BTreeMap::new(),
    };
    let opened = out.period.from_ms.map_or_else(|| OPENED.to_owned(), day_before);
    let (mut after, mut currencies) = (None, BTreeSet::new());
    while let Some(accounts) = out.accounts(after.clone()).await? {
        let mut text = String::new();
        for account in &accounts {
            let (name, currency) = (client(&account.account_id), &account.currency);
            if currencies.insert(currency.clone()) {
                for house in ["Payouts", "Credits", "Opening"] {
                    line(
                        &mut text,
                        format_args!("{OPENED} open Equity:House:{house}:{currency} {currency}"),
                    );
                }
            }
            line(&mut text, format_args!("{OPENED} open {name} {currency}"));
            let (opening, _) = sums
                .get(&account.account_id)
                .copied()
                .unwrap_or_default()
                .balances(account)?;
            if opening != 0 {
                let amount = decimal(opening, currency);
                let contra = decimal(-opening, currency);
                line(
                    &mut text,
                    format_args!(
                        "{opened} * \"opening balance\"\n  {name}  {amount} {currency}\n  \
                         Equity:House:Opening:{currency}  {contra} {currency}"
                    ),
                );
            }
        }
        out.write(text).await?;
        after = accounts.last().map(|account| account.account_id.clone());
    }
    Pairs::write(out, fact).await
}

pub(super) fn fact(text: &mut String, legs: &[LedgerRow]) {
    let first = &legs[0];
    let at = rfc3339(first.at_ms);
    let day = day(first.at_ms);
    let what = first
        .payout_id
        .as_deref()
        .map_or_else(|| "credit".to_owned(), |id| format!("payout {id}"));
    line(text, format_args!("\n{day} * \"{}\"", quoted(&what)));
    line(text, format_args!("  at: \"{}\"", quoted(&at)));
    if let Some(token) = first.token {
        line(text, format_args!("  token: \"{token}\""));
    }
    if let Some(reference) = &first.rail_reference {
        line(text, format_args!("  rail_reference: \"{}\"", quoted(reference)));
    }
    for leg in legs {
        let name = match leg.account_id.strip_prefix("house:") {
            Some(house) => {
                let kind = if house.starts_with("payouts:") {
                    "Payouts"
                } else {
                    "Credits"
                };
                format!("Equity:House:{kind}:{}", leg.currency)
            }
            None => client(&leg.account_id),
        };
        let amount = decimal(leg.amount_minor, &leg.currency);
        line(
            text,
            format_args!(
                "  {name}  {amount} {}\n    entry_id: \"{}\"",
                leg.currency, leg.entry_id
            ),
        );
    }
}

/// The name of a client's account. A part of a name may hold letters, digits and dashes: anything else, and the dash
/// itself, is written as a dash and two hexadecimal digits, so that no two accounts share a name.
fn client(account_id: &str) -> String {
    let mut name = String::from("Assets:Clients:A");
    for byte in account_id.bytes() {
        if byte.is_ascii_alphanumeric() {
            name.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(name, "-{byte:02X}");
        }
    }
    name
}

fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing into a String cannot fail.
    let _ = writeln!(text, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_accounts_share_a_name() {
        let ids = ["a", "A", "a.b", "a-b", "a_b", "a:b", "a-2Eb", "ab"];
        let names: BTreeSet<_> = ids.iter().map(|id| client(id)).collect();
        assert_eq!(names.len(), ids.len());
        assert_eq!(client("a.b"), "Assets:Clients:Aa-2Eb");
    }
}
