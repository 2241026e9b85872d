//! Whether the ledger holds together. One snapshot, read only.

use super::rows::{odd, unsigned};
use crate::VerifyReport;
use crate::checks::{CHECKS, failed_but_executed};
use lock_api::StoreError;
use pg_kit::{Statement, Transactions};
use std::time::Duration;

const COUNTS: &str = "SELECT (SELECT count(*) FROM account), (SELECT count(*) FROM payout),
                             (SELECT count(*) FROM ledger_entry)";

pub(super) async fn verify(database: &Transactions, within: Duration) -> Result<VerifyReport, StoreError> {
    let checks: Vec<String> = CHECKS
        .iter()
        .map(|check| (*check).to_owned())
        .chain([failed_but_executed("rail_submission")])
        .map(|check| format!("{check} LIMIT {}", VerifyReport::VIOLATIONS_MAX))
        .collect();
    let mut statements: Vec<Statement<'_>> = vec![(COUNTS, &[])];
    statements.extend(checks.iter().map(|check| -> Statement<'_> { (check, &[]) }));
    let answers = database.read(within, &statements).await?;
    let (counts, found) = answers.split_first().ok_or_else(|| odd("the ledger"))?;
    let counts = counts.first().ok_or_else(|| odd("the ledger"))?;
    Ok(VerifyReport {
        accounts: unsigned(counts.get(0)),
        payouts: unsigned(counts.get(1)),
        entries: unsigned(counts.get(2)),
        violations: found
            .iter()
            .flatten()
            .map(|row| money_kit::spoken(row.get(0)))
            .collect(),
    })
}
