//! Money as text, and what is demanded of the exported ledger.
//!
//! Owns: minor units for a human; the balances that plain-text accounting has to come to.
//! Does not own: the export itself (the payment resource writes it), reading it (`scripts/bean-check`).
//! On failure: nothing can fail.

use crate::model::Account;
use std::fmt::Write as _;

/// The file of a run's ledger in plain-text accounting.
pub const LEDGER: &str = "ledger.beancount";

/// Later than every entry: a balance is that of the beginning of its day.
const AT_THE_END: &str = "9999-12-31";

/// Currencies whose minor unit is not a hundredth, as far as a run may use them. The judge has its own list.
const EXPONENTS: &[(&str, usize)] = &[("BHD", 3), ("ISK", 0), ("JPY", 0), ("KRW", 0), ("KWD", 3), ("TND", 3)];

/// An amount in minor units as a decimal number, exactly.
#[must_use]
pub fn decimal(minor: i64, currency: &str) -> String {
    let listed = EXPONENTS.iter().find(|(code, _)| *code == currency);
    let places = listed.map_or(2, |(_, places)| *places);
    let sign = if minor < 0 { "-" } else { "" };
    let digits = format!("{:0>width$}", minor.unsigned_abs(), width = places + 1);
    let (whole, part) = digits.split_at(digits.len() - places);
    let point = if places == 0 { "" } else { "." };
    format!("{sign}{whole}{point}{part}")
}

/// An amount in minor units with its currency, for a human.
#[must_use]
pub fn amount(minor: i64, currency: &str) -> String {
    format!("{currency} {}", decimal(minor, currency))
}

/// Each account's stored balance as a demand on its entries: the export says what happened, the accounts say what it
/// came to, and beancount adds up.
#[must_use]
pub fn balances(accounts: &[Account]) -> String {
    let mut text = String::new();
    for account in accounts {
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "{AT_THE_END} balance {}  {} {}",
            name(&account.account_id),
            decimal(account.balance_minor, &account.currency),
            account.currency
        );
    }
    text
}

/// The name that the export gives an account: what is no letter or digit is a dash and two hexadecimal digits.
fn name(account_id: &str) -> String {
    let mut name = "Assets:Clients:A".to_owned();
    for byte in account_id.bytes() {
        if byte.is_ascii_alphanumeric() {
            name.push(char::from(byte));
        } else {
            let _ = write!(name, "-{byte:02X}");
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact() {
        for (minor, currency, text) in [
            (0, "EUR", "EUR 0.00"),
            (-1, "EUR", "EUR -0.01"),
            (300_000, "EUR", "EUR 3000.00"),
            (7, "JPY", "JPY 7"),
            (-7, "KWD", "KWD -0.007"),
            (i64::MIN, "EUR", "EUR -92233720368547758.08"),
        ] {
            assert_eq!(amount(minor, currency), text);
        }
    }

    #[test]
    fn each_account_has_its_balance_demanded() {
        let account = Account {
            account_id: "a.b".to_owned(),
            currency: "EUR".to_owned(),
            balance_minor: 950,
            ..Account::default()
        };
        assert_eq!(
            balances(&[account]),
            "9999-12-31 balance Assets:Clients:Aa-2Eb  9.50 EUR\n"
        );
    }
}
