//! Whether the ledger holds together. One snapshot, read only.

use super::rail_view;
use super::rows::unsigned;
use crate::VerifyReport;
use crate::checks::{CHECKS, failed_but_executed};
use rusqlite::{Connection, params};

pub(super) fn verify(db: &Connection) -> rusqlite::Result<VerifyReport> {
    let count = |table: &str| -> rusqlite::Result<u64> {
        db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| {
            row.get(0).map(unsigned)
        })
    };
    let mut report = VerifyReport {
        accounts: count("account")?,
        payouts: count("payout")?,
        entries: count("ledger_entry")?,
        violations: Vec::new(),
    };
    for check in CHECKS {
        run(db, check, &mut report)?;
    }
    if rail_view::is_there(db)? {
        run(db, &failed_but_executed("rail.rail_submission"), &mut report)?;
    }
    Ok(report)
}

fn run(db: &Connection, check: &str, report: &mut VerifyReport) -> rusqlite::Result<()> {
    let mut statement = db.prepare_cached(&format!("{check} LIMIT ?1"))?;
    let found = statement.query_map(params![VerifyReport::VIOLATIONS_MAX], |row| row.get::<_, String>(0))?;
    for sentence in found {
        report.violations.push(money_kit::spoken(&sentence?));
    }
    Ok(())
}
