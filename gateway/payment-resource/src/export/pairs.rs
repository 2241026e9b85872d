//! Brings the two legs of each fact together, for the forms of plain-text accounting that write a fact as one transaction.

use super::{Cut, Out, PAGE_ROWS};
use payment_store::LedgerRow;

/// Writes a fact with its legs.
type Write = fn(&mut String, &[LedgerRow]);

/// Brings the legs of each fact together. They were written in one transaction, but two transactions at once may draw
/// the numbers of their entries by turns, so that what stands side by side need not belong together.
#[derive(Default)]
pub(super) struct Pairs {
    /// Legs whose other one has not come yet.
    waiting: Vec<LedgerRow>,
    /// Only facts with a leg of this account are written.
    account_id: Option<String>,
}

impl Pairs {
    /// Writes every fact of the export.
    pub(super) async fn write(out: &Out, fact: Write) -> Result<(), Cut> {
        let mut pairs = Self {
            account_id: out.account_id.clone(),
            ..Self::default()
        };
        // Of one account too: the other leg of its facts is the house's.
        let mut entries = out.entries(None);
        while let Some(rows) = entries.next().await? {
            out.write(pairs.facts(rows, fact)).await?;
        }
        if pairs.waiting.is_empty() {
            return Ok(());
        }
        // What was committed while the export went on may have one leg before the export's end and one after it.
        let store = out.payments.store();
        let mut beyond = store.ledger(None, out.last_entry, PAGE_ROWS, out.within).await?;
        beyond.retain(|row| out.period.place(row.at_ms).is_eq());
        out.write(pairs.rest(beyond, fact)).await
    }

    /// The facts that these entries complete.
    fn facts(&mut self, rows: Vec<LedgerRow>, fact: Write) -> String {
        let mut text = String::new();
        for row in rows {
            match self.other(&row) {
                Some(other) => self.put(&mut text, &[other, row], fact),
                None => self.waiting.push(row),
            }
        }
        text
    }

    /// The facts that began before the export's end. A leg that has lost its other one is written alone, so that
    /// whoever reads the ledger refuses it.
    fn rest(mut self, beyond: Vec<LedgerRow>, fact: Write) -> String {
        let mut text = String::new();
        for row in beyond {
            if let Some(other) = self.other(&row) {
                self.put(&mut text, &[other, row], fact);
            }
        }
        for lone in std::mem::take(&mut self.waiting) {
            self.put(&mut text, &[lone], fact);
        }
        text
    }

    fn put(&self, text: &mut String, legs: &[LedgerRow], fact: Write) {
        let wanted = self.account_id.as_ref();
        if wanted.is_none_or(|wanted| legs.iter().any(|leg| leg.account_id == *wanted)) {
            fact(text, legs);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::beancount::fact;

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
        let text = pairs.facts(rows, fact);
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
    fn case_p25_facts_of_one_account_are_whole() {
        let rows = vec![
            leg(1, "P", "a", -400),
            leg(2, "P", "house:payouts:EUR", 400),
            leg(3, "Q", "b", -900),
            leg(4, "Q", "house:payouts:EUR", 900),
        ];
        let mut pairs = Pairs {
            account_id: Some("b".to_owned()),
            ..Pairs::default()
        };
        let text = pairs.facts(rows, fact);
        assert_eq!(
            transactions(&text),
            [("payout Q".to_owned(), vec!["-9.00".to_owned(), "9.00".to_owned()])]
        );
    }

    #[test]
    fn a_leg_that_has_lost_its_other_is_not_hidden() {
        let mut pairs = Pairs::default();
        assert_eq!(pairs.facts(vec![leg(1, "P", "a", -400)], fact), "");
        let text = pairs.rest(vec![leg(2, "Q", "house:payouts:EUR", 400)], fact);
        assert_eq!(transactions(&text), [("payout P".to_owned(), vec!["-4.00".to_owned()])]);
    }

    #[test]
    fn a_fact_across_the_exports_end_is_whole() {
        let mut pairs = Pairs::default();
        assert_eq!(pairs.facts(vec![leg(1, "P", "a", -400)], fact), "");
        let text = pairs.rest(vec![leg(3, "P", "house:payouts:EUR", 400)], fact);
        assert_eq!(transactions(&text)[0].1, ["-4.00", "4.00"]);
    }
}
