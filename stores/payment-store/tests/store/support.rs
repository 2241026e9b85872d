//! A store of its own for each test, with a rail beside it that says what the test wants.

use crate::pg_schema::Schema;
use host_kit::Host;
use lock_api::FencingToken;
use payment_store::{
    Account, ByHand, Command, CreateOutcome, Creditor, FenceOutcome, FenceReason, Fencing, NewAccount, NewPayout,
    PaymentStore, Payout, RaiseFence, Refusal, Resolution, SqlitePayments, StepOutcome, Verb,
};
use rusqlite::params;
use std::path::Path;
#[cfg(feature = "lab")]
use std::sync::MutexGuard;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_postgres::Client;

/// Far above anything a healthy machine needs.
pub const WITHIN: Duration = Duration::from_secs(20);

/// A store on a backend, with a rail beside it.
pub struct Bench {
    pub store: Arc<dyn PaymentStore>,
    pub rail: Rail,
    fencing: Fencing,
    place: Place,
}

enum Place {
    Files(tempfile::TempDir),
    Pg(Box<Schema>),
}

/// Where the rail proxy writes, written by the test: the rail says whatever the test wants, also what the rail proxy's own
/// rules would not let it say.
pub enum Rail {
    /// The rail proxy's file, as contract C1.2 describes it.
    File(Mutex<rusqlite::Connection>),
    /// The rail proxy's tables, by a connection that may do everything.
    Pg(Client),
}

pub fn t(token: u64) -> FencingToken {
    token.to_string().parse().unwrap()
}

impl Rail {
    pub fn open(dir: &Path) -> Self {
        let db = rusqlite::Connection::open(dir.join("rail.db")).unwrap();
        db.busy_timeout(WITHIN).unwrap();
        db.execute_batch(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE IF NOT EXISTS rail_submission (submission_id TEXT PRIMARY KEY, payout_id TEXT NOT NULL,
               account_id TEXT, token INTEGER, idempotency_key TEXT, client_reference TEXT, amount_minor INTEGER,
               currency TEXT, intent_at INTEGER, forwarded_at INTEGER, outcome TEXT, actor TEXT, cause TEXT,
               rail_reference TEXT, decline_reason TEXT, outcome_at INTEGER, fencing_enforced INTEGER);",
        )
        .unwrap();
        Self::File(Mutex::new(db))
    }

    #[cfg(feature = "lab")]
    pub fn file(&self) -> MutexGuard<'_, rusqlite::Connection> {
        match self {
            Self::File(file) => file.lock().unwrap(),
            Self::Pg(_) => panic!("no file"),
        }
    }

    /// Records one submission of the payout, with this outcome; replaces an earlier one of the same number.
    pub async fn says(&self, payout_id: &str, outcome: Option<&str>, rail_reference: Option<&str>) {
        self.says_of(payout_id, 1, outcome, rail_reference).await;
    }

    pub async fn says_of(&self, payout_id: &str, n: u32, outcome: Option<&str>, rail_reference: Option<&str>) {
        let id = format!("s-{payout_id}-{n}");
        match self {
            Self::File(file) => {
                file.lock()
                    .unwrap()
                    .execute(
                        "INSERT OR REPLACE INTO rail_submission (submission_id, payout_id, outcome, rail_reference)
                         VALUES (?1, ?2, ?3, ?4)",
                        params![id, payout_id, outcome, rail_reference],
                    )
                    .unwrap();
            }
            Self::Pg(client) => {
                client
                    .execute(
                        "INSERT INTO rail_submission (submission_id, payout_id, account_id, token, idempotency_key,
                             client_reference, amount_minor, currency, intent_at, outcome, rail_reference, outcome_at,
                             fencing_enforced)
                         VALUES ($1, $2, 'A', 1, $2, $2, 1, 'EUR', 0, $3, $4, 0, false)
                         ON CONFLICT (submission_id) DO UPDATE SET outcome = $3, rail_reference = $4",
                        &[&id, &payout_id, &outcome, &rail_reference],
                    )
                    .await
                    .unwrap();
            }
        }
    }
}

impl Bench {
    /// Files in a directory of its own.
    pub async fn on_sqlite(fencing: Fencing) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let rail = Rail::open(dir.path());
        let store = SqlitePayments::open(dir.path(), fencing, &Host::system())
            .await
            .unwrap();
        Self {
            store: Arc::new(store),
            rail,
            fencing,
            place: Place::Files(dir),
        }
    }

    /// A schema and roles of its own on a real server.
    pub async fn on_pg(fencing: Fencing) -> Self {
        let schema = Schema::fresh().await;
        schema.let_the_rail_say_anything().await;
        Self {
            store: Arc::new(schema.store(fencing).await),
            rail: Rail::Pg(schema.admin().await),
            fencing,
            place: Place::Pg(Box::new(schema)),
        }
    }

    /// The same database opened once more, as another process would.
    pub async fn another_store(&self) -> Arc<dyn PaymentStore> {
        match &self.place {
            Place::Files(dir) => Arc::new(
                SqlitePayments::open(dir.path(), self.fencing, &Host::system())
                    .await
                    .unwrap(),
            ),
            Place::Pg(schema) => Arc::new(schema.store(self.fencing).await),
        }
    }

    pub async fn another_rail(&self) -> Rail {
        match &self.place {
            Place::Files(dir) => Rail::open(dir.path()),
            Place::Pg(schema) => Rail::Pg(schema.admin().await),
        }
    }

    /// Where the files are.
    pub fn dir(&self) -> &Path {
        match &self.place {
            Place::Files(dir) => dir.path(),
            Place::Pg(_) => panic!("no files"),
        }
    }

    /// Where the schema is, unless it is in files.
    pub fn on_server(&self) -> Option<&Schema> {
        match &self.place {
            Place::Pg(schema) => Some(schema),
            Place::Files(_) => None,
        }
    }

    /// Where the schema is.
    pub fn schema(&self) -> &Schema {
        match &self.place {
            Place::Pg(schema) => schema,
            Place::Files(_) => panic!("no schema"),
        }
    }

    pub async fn account(&self, account_id: &str, opening_balance_minor: i64) -> Account {
        let new = NewAccount {
            account_id: account_id.into(),
            currency: "EUR".into(),
            opening_balance_minor,
            actor: None,
        };
        match self.store.open_account(new, WITHIN).await.unwrap() {
            CreateOutcome::Created(account) => account,
            other => panic!("{other:?}"),
        }
    }

    pub async fn payout(&self, payout_id: &str, account_id: &str, amount_minor: i64) -> Payout {
        match self
            .store
            .create_payout(new_payout(payout_id, account_id, amount_minor), WITHIN)
            .await
            .unwrap()
        {
            CreateOutcome::Created(payout) => payout,
            other => panic!("{other:?}"),
        }
    }

    pub async fn apply(&self, payout_id: &str, verb: Verb) -> StepOutcome {
        self.store.apply(command(payout_id, verb), WITHIN).await.unwrap()
    }

    pub async fn claim(&self, payout_id: &str, token: u64) -> StepOutcome {
        self.apply(payout_id, claim(token)).await
    }

    pub async fn post(&self, payout_id: &str, token: u64, rail_reference: &str) -> StepOutcome {
        self.apply(payout_id, post(token, rail_reference)).await
    }

    pub async fn fail(&self, payout_id: &str, token: u64) -> StepOutcome {
        self.apply(payout_id, fail(token)).await
    }

    pub async fn ambiguous(&self, payout_id: &str, token: u64) -> StepOutcome {
        self.apply(payout_id, ambiguous(token)).await
    }

    pub async fn resolve(&self, payout_id: &str, token: u64, outcome: Resolution) -> StepOutcome {
        self.apply(payout_id, resolve(token, outcome)).await
    }

    pub async fn fence(&self, account_id: &str, token: u64) -> FenceOutcome {
        let request = RaiseFence {
            account_id: account_id.into(),
            token: t(token),
            actor: Some("op".into()),
        };
        self.store.raise_fence(request, WITHIN).await.unwrap()
    }

    pub async fn now(&self, payout_id: &str) -> Payout {
        self.store.payout(payout_id.into(), WITHIN).await.unwrap().unwrap()
    }

    pub async fn account_now(&self, account_id: &str) -> Account {
        self.store.account(account_id.into(), WITHIN).await.unwrap().unwrap()
    }

    pub async fn mark(&self, account_id: &str) -> u64 {
        self.account_now(account_id).await.fence
    }

    /// How many ledger legs the payout has.
    pub async fn legs(&self, payout_id: &str) -> u64 {
        let sql = format!("SELECT count(*) FROM ledger_entry WHERE payout_id = '{payout_id}'");
        let count: i64 = match &self.place {
            Place::Files(_) => self.side().query_row(&sql, [], |row| row.get(0)).unwrap(),
            Place::Pg(schema) => schema.by_admin().query_one(&sql, &[]).await.unwrap().get(0),
        };
        count.unsigned_abs()
    }

    pub async fn violations(&self) -> Vec<String> {
        self.store.verify(WITHIN).await.unwrap().violations
    }

    /// Does what no role of the service may do.
    pub async fn execute(&self, sql: &str) -> Result<(), String> {
        match &self.place {
            Place::Files(_) => self.side().execute_batch(sql).map_err(|error| error.to_string()),
            Place::Pg(schema) => schema
                .by_admin()
                .batch_execute(sql)
                .await
                .map_err(|error| format!("{:?}", error.as_db_error())),
        }
    }

    /// A connection of the test's own.
    pub fn side(&self) -> rusqlite::Connection {
        let db = rusqlite::Connection::open(self.dir().join("payment.db")).unwrap();
        db.busy_timeout(WITHIN).unwrap();
        db
    }

    /// Every row that a verb could change, as text: equal before and after a refusal (INV-05).
    pub async fn all_rows(&self) -> String {
        const TABLES: [&str; 6] = [
            "account",
            "payout",
            "payout_transition",
            "ledger_entry",
            "payment_event",
            "payout_tally",
        ];
        match &self.place {
            Place::Files(_) => rows_of_files(&self.side(), &TABLES),
            Place::Pg(schema) => schema.rows(&TABLES).await,
        }
    }
}

fn rows_of_files(db: &rusqlite::Connection, tables: &[&str]) -> String {
    let mut text = String::new();
    for table in tables {
        let mut rows = db.prepare(&format!("SELECT * FROM {table} ORDER BY 1")).unwrap();
        let columns = rows.column_count();
        let mut rows = rows.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            for column in 0..columns {
                text.push_str(&format!("{:?},", row.get_ref(column).unwrap()));
            }
            text.push('\n');
        }
    }
    text
}

pub fn new_payout(payout_id: &str, account_id: &str, amount_minor: i64) -> NewPayout {
    NewPayout {
        idempotency_key: format!("key-{payout_id}"),
        chosen_id: Some(payout_id.into()),
        fresh_id: "unused".into(),
        account_id: account_id.into(),
        amount_minor,
        currency: "EUR".into(),
        creditor: Creditor {
            name: "A. Payee".into(),
            account: "XX00".into(),
        },
        reference: Some("invoice 7".into()),
        actor: Some("client".into()),
    }
}

pub fn command(payout_id: &str, verb: Verb) -> Command {
    Command {
        payout_id: payout_id.into(),
        actor: Some("w1".into()),
        verb,
    }
}

pub fn claim(token: u64) -> Verb {
    Verb::Claim {
        token: t(token),
        expected_version: None,
    }
}

pub fn post(token: u64, rail_reference: &str) -> Verb {
    Verb::Post {
        token: t(token),
        rail_reference: rail_reference.into(),
    }
}

pub fn fail(token: u64) -> Verb {
    Verb::Fail {
        token: t(token),
        reason: "declined".into(),
    }
}

pub fn ambiguous(token: u64) -> Verb {
    Verb::Ambiguous {
        token: t(token),
        reason: "no answer".into(),
    }
}

pub fn resolve(token: u64, outcome: Resolution) -> Verb {
    Verb::Resolve {
        token: t(token),
        outcome,
        rail_reference: None,
        by_hand: None,
    }
}

pub fn by_hand(token: u64, outcome: Resolution, rail_reference: Option<&str>) -> Verb {
    Verb::Resolve {
        token: t(token),
        outcome,
        rail_reference: rail_reference.map(str::to_owned),
        by_hand: Some(ByHand {
            operator: "op".into(),
            reason: "seen on the statement".into(),
        }),
    }
}

#[track_caller]
pub fn done(outcome: StepOutcome) -> Payout {
    match outcome {
        StepOutcome::Done(payout) => *payout,
        other => panic!("not done: {other:?}"),
    }
}

#[track_caller]
pub fn replayed(outcome: StepOutcome) -> Payout {
    match outcome {
        StepOutcome::Replayed(payout) => *payout,
        other => panic!("not replayed: {other:?}"),
    }
}

#[track_caller]
pub fn refused(outcome: StepOutcome) -> Refusal {
    match outcome {
        StepOutcome::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[track_caller]
pub fn fenced_out(outcome: StepOutcome) -> (FenceReason, u64) {
    match refused(outcome) {
        Refusal::FencedOut { reason, highest, .. } => (reason, highest),
        other => panic!("not fenced out: {other:?}"),
    }
}

#[track_caller]
pub fn no_evidence(outcome: StepOutcome) -> String {
    match refused(outcome) {
        Refusal::EvidenceMissing { found, .. } => found,
        other => panic!("not for want of evidence: {other:?}"),
    }
}
