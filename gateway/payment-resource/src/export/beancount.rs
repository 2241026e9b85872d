//! Plain-text accounting (beancount): every fact one transaction of two postings that sum to zero, as the tool demands.
//!
//! A client's account is `Assets:Clients:…`; where the money comes from and goes to is `Equity:House:…`.

use super::{Cut, Out, PAGE_ROWS};
use crate::currency::{decimal, exponent};
use gateway_kit::rfc3339;
use payment_store::LedgerRow;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Accounts are open from a day before any entry.
const OPENED: &str = "1970-01-01";

pub(super) async fn write(out: &Out) -> Result<(), Cut> {
    out.write("option \"title\" \"dlock ledger\"\n\n").await?;
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
            if account.opening_balance_minor != 0 {
                let amount = decimal(account.opening_balance_minor, exponent(currency));
                let contra = decimal(-account.opening_balance_minor, exponent(currency));
                line(
                    &mut text,
                    format_args!(
                        "{OPENED} * \"opening balance\"\n  {name}  {amount} {currency}\n  \
                         Equity:House:Opening:{currency}  {contra} {currency}"
                    ),
                );
            }
        }
        out.write(text).await?;
        after = accounts.last().map(|account| account.account_id.clone());
    }
    let (mut after, mut pairs) = (0, Pairs::default());
    while let Some(rows) = out.entries(None, after).await? {
        after = rows.last().map_or(after, |row| row.entry_id);
        out.write(pairs.facts(rows)).await?;
    }
    if pairs.waiting.is_empty() {
        return Ok(());
    }
    // What was committed while the export went on may have one leg before the export's end and one after it.
    let store = out.payments.store();
    let beyond = store.ledger(None, out.last_entry, PAGE_ROWS, out.within).await?;
    out.write(pairs.rest(beyond)).await
}

/// Brings the legs of each fact together. They were written in one transaction, but two transactions at once may draw
/// the numbers of their entries by turns, so that what stands side by side need not belong together.
#[derive(Default)]
struct Pairs {
    /// Legs whose other one has not come yet.
    waiting: Vec<LedgerRow>,
}

impl Pairs {
    /// The facts that these entries complete.
    fn facts(&mut self, rows: Vec<LedgerRow>) -> String {
        let mut text = String::new();
        for row in rows {
            match self.other(&row) {
                Some(other) => fact(&mut text, &[other, row]),
                None => self.waiting.push(row),
            }
        }
        text
    }

    /// The facts that began before the export's end. A leg that has lost its other one is written alone, so that
    /// whoever reads the ledger refuses it.
    fn rest(mut self, beyond: Vec<LedgerRow>) -> String {
        let mut text = String::new();
        for row in beyond {
            if let Some(other) = self.other(&row) {
                fact(&mut text, &[other, row]);
            }
        }
        for lone in self.waiting {
            fact(&mut text, &[lone]);
        }
        text
    }

    fn other(&mut self, row: &LedgerRow) -> Option<LedgerRow> {
        let is_house = |row: &LedgerRow| row.account_id.starts_with("house:");
        let at = self.waiting.iter().position(|leg| {
            (&leg.payout_id, leg.token, leg.at_ms, &leg.currency)
                == (&row.payout_id, row.token, row.at_ms, &row.currency)
                && leg.amount_minor.checked_add(row.amount_minor) == Some(0)
                && is_house(leg) != is_house(row)
        })?;
        Some(self.waiting.remove(at))
    }
}

fn fact(text: &mut String, legs: &[LedgerRow]) {
    let first = &legs[0];
    let at = rfc3339(first.at_ms);
    let day = at.split('T').next().unwrap_or(OPENED);
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
        let amount = decimal(leg.amount_minor, exponent(&leg.currency));
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
    fn leg(entry_id: u64, payout_id: &str, account_id: &str, amount_minor: i64) -> LedgerRow {
        LedgerRow {
            entry_id,
            payout_id: Some(payout_id.to_owned()),
            account_id: account_id.to_owned(),
            amount_minor,
            currency: "EUR".to_owned(),
            token: Some(7),
            at_ms: 1_000,
            rail_reference: None,
        }
    }

    /// The payouts and signed amounts of each transaction, in order.
    fn transactions(text: &str) -> Vec<(String, Vec<String>)> {
        let mut found: Vec<(String, Vec<String>)> = Vec::new();
        for line in text.lines() {
            if let Some((_, what)) = line.split_once(" * ") {
                found.push((what.trim_matches('"').to_owned(), Vec::new()));
            } else if let Some((_, amount)) = line.strip_suffix(" EUR").and_then(|line| line.rsplit_once("  ")) {
                found.last_mut().unwrap().1.push(amount.to_owned());
            }
        }
        found
    }

    #[test]
    fn legs_of_two_payouts_that_were_posted_at_once_are_not_mixed() {
        let house = "house:payouts:EUR";
        let rows = vec![
            leg(1, "P", "a", -400),
            leg(2, "Q", "b", -900),
            leg(3, "P", house, 400),
            leg(4, "Q", house, 900),
        ];
        let mut pairs = Pairs::default();
        let text = pairs.facts(rows);
        assert!(pairs.waiting.is_empty());
        let pair = |payout: &str, amount: &str| {
            (
                format!("payout {payout}"),
                vec![format!("-{amount}"), amount.to_owned()],
            )
        };
        assert_eq!(transactions(&text), [pair("P", "4.00"), pair("Q", "9.00")]);
    }

    #[test]
    fn a_leg_that_has_lost_its_other_is_not_hidden() {
        let mut pairs = Pairs::default();
        assert_eq!(pairs.facts(vec![leg(1, "P", "a", -400)]), "");
        let text = pairs.rest(vec![leg(2, "Q", "house:payouts:EUR", 400)]);
        assert_eq!(transactions(&text), [("payout P".to_owned(), vec!["-4.00".to_owned()])]);
    }

    #[test]
    fn a_fact_across_the_exports_end_is_whole() {
        let mut pairs = Pairs::default();
        assert_eq!(pairs.facts(vec![leg(1, "P", "a", -400)]), "");
        let text = pairs.rest(vec![leg(3, "P", "house:payouts:EUR", 400)]);
        assert_eq!(transactions(&text)[0].1, ["-4.00", "4.00"]);
    }
}
