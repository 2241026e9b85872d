//! Plain-text accounting (hledger): every fact one transaction of two postings that sum to zero, every account and commodity
//! declared, so that `hledger check --strict` accepts it.
//!
//! A client's account is `assets:clients:…`; where the money comes from and goes to is `equity:house:…`.

use super::pairs::Pairs;
use super::period::{day, day_before};
use super::{Cut, Out};
use gateway_kit::rfc3339;
use money_kit::{decimal, exponent};
use payment_store::LedgerRow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Opening balances of the whole ledger are of a day before any entry; those of a period of the day before it.
const OPENED: &str = "1970-01-01";

pub(super) async fn write(out: &Out) -> Result<(), Cut> {
    // Without it 1.234 could be read as one thousand two hundred thirty-four.
    out.write(format!("; dlock ledger\n{}decimal-mark .\n\n", out.about()))
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
                line(&mut text, format_args!("commodity {} {currency}", sample(currency)));
                for house in ["payouts", "credits", "opening"] {
                    line(&mut text, format_args!("account equity:house:{house}:{currency}"));
                }
            }
            line(&mut text, format_args!("account {name}"));
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
                        "\n{opened} * opening balance\n    {name}  {amount} {currency}\n    \
                         equity:house:opening:{currency}  {contra} {currency}\n"
                    ),
                );
            }
        }
        out.write(text).await?;
        after = accounts.last().map(|account| account.account_id.clone());
    }
    Pairs::write(out, fact).await
}

fn fact(text: &mut String, legs: &[LedgerRow]) {
    let first = &legs[0];
    let at = rfc3339(first.at_ms);
    let day = day(first.at_ms);
    let what = first
        .payout_id
        .as_deref()
        .map_or_else(|| "credit".to_owned(), |id| format!("payout {id}"));
    line(text, format_args!("\n{day} * {what}"));
    line(text, format_args!("    ; at:{at}"));
    if let Some(token) = first.token {
        line(text, format_args!("    ; token:{token}"));
    }
    if let Some(reference) = &first.rail_reference {
        line(text, format_args!("    ; rail_reference:{}", tag(reference)));
    }
    for leg in legs {
        let name = match leg.account_id.strip_prefix("house:") {
            Some(house) => {
                let kind = if house.starts_with("payouts:") {
                    "payouts"
                } else {
                    "credits"
                };
                format!("equity:house:{kind}:{}", leg.currency)
            }
            None => client(&leg.account_id),
        };
        let amount = decimal(leg.amount_minor, &leg.currency);
        line(
            text,
            format_args!("    {name}  {amount} {}  ; entry_id:{}", leg.currency, leg.entry_id),
        );
    }
}

/// How a commodity's amounts look; the mark has to be there even where nothing follows it.
fn sample(currency: &str) -> String {
    format!("1000.{}", "0".repeat(exponent(currency) as usize))
}

/// The name of a client's account. A colon would make it an account below another one; the sign for it is in no id.
fn client(account_id: &str) -> String {
    format!("assets:clients:{}", account_id.replace(':', "%3A"))
}

/// A tag's value. A comma would end it; a colon or a bracket could make another tag, or a date, of what follows.
fn tag(value: &str) -> String {
    let mut safe = String::with_capacity(value.len());
    for c in value.chars() {
        if c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ' ') {
            safe.push(c);
        } else {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                // Writing into a String cannot fail.
                let _ = write!(safe, "%{byte:02X}");
            }
        }
    }
    safe
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing into a String cannot fail.
    let _ = writeln!(text, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_rail_says_makes_no_tag_and_no_date() {
        assert_eq!(tag("r-1/é 2"), "r-1/é 2");
        assert_eq!(tag("a,date:2020-13-01;[1]\n%"), "a%2Cdate%3A2020-13-01%3B%5B1%5D%0A%25");
        assert_eq!(client("a:b"), "assets:clients:a%3Ab");
    }

    #[test]
    fn a_commodity_says_its_decimals() {
        assert_eq!(
            (sample("EUR"), sample("JPY"), sample("KWD")),
            ("1000.00".into(), "1000.".into(), "1000.000".into())
        );
    }
}
