//! A paydb in a directory.

use host_kit::Host;
use rail_store::{Fencing, SqliteRailStore, SqliteRailStoreOptions};
use tempfile::TempDir;

pub struct Files {
    pub directory: TempDir,
}

impl Files {
    /// A directory without the payment row's file.
    pub fn empty() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub fn with_payments() -> Self {
        let files = Self::empty();
        files.create_payments();
        files
    }

    pub fn create_payments(&self) {
        self.payments()
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
                 CREATE TABLE payout (payout_id TEXT PRIMARY KEY, account_id TEXT, amount_minor INTEGER, currency TEXT,
                     creditor TEXT, state TEXT, claim_token INTEGER, rail_reference TEXT);",
            )
            .unwrap();
    }

    pub fn open(&self, fencing: Fencing, host: &Host) -> SqliteRailStore {
        SqliteRailStore::open(SqliteRailStoreOptions::directory(self.directory.path(), fencing), host).unwrap()
    }

    pub fn payments(&self) -> rusqlite::Connection {
        let db = rusqlite::Connection::open(self.directory.path().join("payment.db")).unwrap();
        // What is tested is the rail's file; this one may be lost with the machine.
        db.execute_batch("PRAGMA synchronous = OFF").unwrap();
        db
    }

    pub fn payout(&self, payout: &str, account: &str, state: &str, claim: Option<i64>) {
        self.payments()
            .execute(
                "INSERT OR REPLACE INTO payout (payout_id, account_id, amount_minor, currency, creditor, state, claim_token)
                 VALUES (?1, ?2, 1250, 'EUR', '{\"name\":\"Ada\",\"account\":\"DE02\"}', ?3, ?4)",
                rusqlite::params![payout, account, state, claim],
            )
            .unwrap();
    }

    pub fn posted_as(&self, payout: &str, reference: &str) {
        let set = "UPDATE payout SET state = 'POSTED', rail_reference = ?2 WHERE payout_id = ?1";
        self.payments().execute(set, [payout, reference]).unwrap();
    }

    pub fn raw(&self, sql: &str) -> Result<(), String> {
        let db = rusqlite::Connection::open(self.directory.path().join("rail.db")).unwrap();
        match db.execute(sql, []) {
            Ok(_) => Ok(()),
            Err(rusqlite::Error::SqliteFailure(code, said))
                if code.code == rusqlite::ErrorCode::ConstraintViolation =>
            {
                Err(said.unwrap_or_default())
            }
            Err(error) => panic!("{sql}: {error}"),
        }
    }
}
