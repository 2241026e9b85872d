//! What is demanded of the exported ledger.
//!
//! Owns: the balances that plain-text accounting has to come to.
//! Does not own: the export itself (the payment resource writes it), reading it (`scripts/bean-check`), amounts as text
//! (`money-kit`).
//! On failure: nothing can fail.

use crate::model::Account;
use money_kit::decimal;
use std::fmt::Write as _;

/// The file of a run's ledger in plain-text accounting.
pub const LEDGER: &str = "ledger.beancount";

/// Later than every entry: a balance is that of the beginning of its day.
const AT_THE_END: &str = "9999-12-31";

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
