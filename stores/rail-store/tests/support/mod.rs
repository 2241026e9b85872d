//! A store on files of its own, a clock moved by hand, and payouts as the payment row writes them.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test says what is wrong by panicking"
)]

use host_kit::{Blocking, Faults, Host, Ids, ManualClock, Random};
use lock_api::FencingToken;
use rail_store::{
    Evidence, Execution, FenceOutcome, FenceRequest, Fencing, ForwardClaim, LookupOutcome, LookupRecord, RailStore,
    Sighting, SqliteRailStore, SqliteRailStoreOptions, Submission, SubmitOutcome, SubmitRequest,
};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

pub const SEED: u64 = 20_260_101;
pub const WITHIN: Duration = Duration::from_secs(10);
pub const HORIZON: Duration = Duration::from_secs(60);

pub fn token(value: u64) -> FencingToken {
    FencingToken::from_store(value).unwrap()
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// One process's view of paydb.
pub struct World {
    pub directory: TempDir,
    pub hand: ManualClock,
    pub host: Host,
    pub store: SqliteRailStore,
    lookups: std::cell::Cell<u64>,
}

impl World {
    pub fn new() -> Self {
        let world = Self::without_payments(Fencing::Enforced);
        create_payments(world.directory.path());
        world
    }

    #[cfg(feature = "lab")]
    pub fn unfenced() -> Self {
        let world = Self::without_payments(Fencing::Off);
        create_payments(world.directory.path());
        world
    }

    /// A store in memory beside a payment file: for tests of many rounds, which wait for no disk.
    pub fn in_memory() -> Self {
        let world = Self::at(Fencing::Enforced, |_| sql_kit::Location::Memory);
        create_payments(world.directory.path());
        world
    }

    pub fn without_payments(fencing: Fencing) -> Self {
        Self::at(fencing, |directory| sql_kit::Location::File(directory.join("rail.db")))
    }

    fn at(fencing: Fencing, location: impl FnOnce(&Path) -> sql_kit::Location) -> Self {
        println!("seed {SEED}");
        let hand = ManualClock::new();
        hand.advance(Duration::from_secs(1_000));
        let (clock, random) = (hand.clock(), Random::seeded(SEED));
        let host = Host {
            ids: Ids::new(clock.clone(), random.clone()),
            clock,
            random,
            blocking: Blocking::Inline,
            faults: Faults::none(),
        };
        let directory = tempfile::tempdir().unwrap();
        let options = SqliteRailStoreOptions {
            location: location(directory.path()),
            payments: directory.path().join("payment.db"),
            fencing,
        };
        let store = SqliteRailStore::open(options, &host).unwrap();
        Self {
            directory,
            hand,
            host,
            store,
            lookups: std::cell::Cell::new(0),
        }
    }

    /// Another process on the same files.
    pub fn another(&self, fencing: Fencing) -> SqliteRailStore {
        let options = SqliteRailStoreOptions::directory(self.directory.path(), fencing);
        SqliteRailStore::open(options, &self.host).unwrap()
    }

    pub fn payments(&self) -> rusqlite::Connection {
        let db = rusqlite::Connection::open(self.directory.path().join("payment.db")).unwrap();
        // What is tested is the rail's file; this one may be lost with the machine.
        db.execute_batch("PRAGMA synchronous = OFF").unwrap();
        db
    }

    pub fn rail_db(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.directory.path().join("rail.db")).unwrap()
    }

    /// A payout of 12.50 EUR from `account`.
    pub fn payout(&self, payout: &str, account: &str, state: &str, claim: Option<u64>) {
        self.payments()
            .execute(
                "INSERT OR REPLACE INTO payout (payout_id, account_id, amount_minor, currency, creditor, state, claim_token)
                 VALUES (?1, ?2, 1250, 'EUR', '{\"name\":\"Ada\",\"account\":\"DE02\"}', ?3, ?4)",
                rusqlite::params![payout, account, state, claim.map(|token| i64::try_from(token).unwrap())],
            )
            .unwrap();
    }

    pub fn claimed(&self, payout: &str, account: &str, claim: u64) {
        self.payout(payout, account, "CLAIMED", Some(claim));
    }

    pub fn submit(&self, payout: &str, account: &str, t: u64) -> SubmitOutcome {
        block_on(self.store.submit(request(payout, account, t), WITHIN)).unwrap()
    }

    /// An intent, which must be admitted.
    pub fn intent(&self, payout: &str, account: &str, t: u64) -> Submission {
        match self.submit(payout, account, t) {
            SubmitOutcome::Intent(submission) => *submission,
            refused => panic!("{payout} under {t} was refused: {refused:?}"),
        }
    }

    pub fn claim(&self, submission: &Submission) -> ForwardClaim {
        block_on(self.store.claim_forward(submission.submission_id.clone(), WITHIN)).unwrap()
    }

    pub fn record(&self, submission: &Submission, evidence: Evidence) -> Submission {
        let id = submission.submission_id.clone();
        block_on(self.store.record_answer(id, evidence, WITHIN))
            .unwrap()
            .unwrap()
    }

    /// An intent, forwarded, with this evidence as its answer.
    pub fn settled(&self, payout: &str, account: &str, t: u64, evidence: Evidence) -> Submission {
        self.claimed(payout, account, t);
        let intent = self.intent(payout, account, t);
        assert_eq!(self.claim(&intent), ForwardClaim::Forward { duplicate: false });
        self.record(&intent, evidence)
    }

    pub fn now(&self, payout: &str) -> Submission {
        block_on(self.store.submission(payout.to_owned(), WITHIN))
            .unwrap()
            .unwrap()
    }

    pub fn look_up(&self, payout: &str, sighting: Sighting) -> LookupOutcome {
        self.look_up_dated(payout, sighting, true)
    }

    pub fn look_up_dated(&self, payout: &str, sighting: Sighting, clock_trusted: bool) -> LookupOutcome {
        self.lookups.set(self.lookups.get() + 1);
        let lookup = LookupRecord {
            lookup_id: format!("lookup-{}", self.lookups.get()),
            payout_id: payout.to_owned(),
            asked_at: lock_api::UnixMillis(self.host.clock.wall_ms()),
            clock_trusted,
            visibility_horizon_ms: u64::try_from(HORIZON.as_millis()).unwrap(),
            sighting,
        };
        block_on(self.store.record_lookup(lookup, WITHIN)).unwrap().unwrap()
    }

    pub fn fence(&self, payout: &str, t: u64, forbid: bool) -> FenceOutcome {
        let request = FenceRequest {
            submission_id: format!("forbidden-{payout}"),
            payout_id: payout.to_owned(),
            token: token(t),
            forbid,
            actor: Some("worker-2".to_owned()),
        };
        block_on(self.store.fence_submission(request, WITHIN)).unwrap()
    }

    pub fn mark(&self, account: &str) -> u64 {
        block_on(self.store.high_water(account.to_owned(), WITHIN))
            .unwrap()
            .highest_token
    }

    pub fn exceptions(&self) -> Vec<(String, String)> {
        block_on(self.store.exceptions(0, 1_000, WITHIN))
            .unwrap()
            .into_iter()
            .map(|exception| (exception.payout_id, exception.kind))
            .collect()
    }

    pub fn pass(&self, time: Duration) {
        self.hand.advance(time);
    }
}

pub fn create_payments(directory: &Path) {
    rusqlite::Connection::open(directory.join("payment.db"))
        .unwrap()
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
             CREATE TABLE payout (payout_id TEXT PRIMARY KEY, account_id TEXT, amount_minor INTEGER, currency TEXT,
                 creditor TEXT, state TEXT, claim_token INTEGER);",
        )
        .unwrap();
}

pub fn request(payout: &str, account: &str, t: u64) -> SubmitRequest {
    SubmitRequest {
        submission_id: format!("submission-{payout}-{t}"),
        token: token(t),
        idempotency_key: payout.to_owned(),
        payout_id: payout.to_owned(),
        account_id: account.to_owned(),
        amount_minor: 1_250,
        currency: "EUR".to_owned(),
        creditor_name: "Ada".to_owned(),
        creditor_account: "DE02".to_owned(),
        actor: Some("worker-1".to_owned()),
    }
}

pub fn acked(reference: &str) -> Evidence {
    Evidence::Acked {
        rail_reference: reference.to_owned(),
    }
}

pub fn declined(reason: &str) -> Evidence {
    Evidence::Declined {
        reason: Some(reason.to_owned()),
    }
}

pub fn timeout() -> Evidence {
    Evidence::Timeout {
        cause: "read_timeout".to_owned(),
    }
}

pub fn executed(reference: &str) -> Execution {
    Execution {
        rail_reference: reference.to_owned(),
        amount_minor: 1_250,
        currency: "EUR".to_owned(),
    }
}

/// The rail's book with these executions.
pub fn book(executions: &[&str]) -> Sighting {
    Sighting::Book {
        executions: executions.iter().map(|reference| executed(reference)).collect(),
        declined: Vec::new(),
        is_final: false,
    }
}

/// The rail knows nothing, and promises that it stays so.
pub fn final_nothing() -> Sighting {
    Sighting::Book {
        executions: Vec::new(),
        declined: Vec::new(),
        is_final: true,
    }
}
