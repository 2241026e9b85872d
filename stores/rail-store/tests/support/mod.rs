//! A store on a paydb of its own, on either backend, a clock moved by hand, and payouts as the payment row writes them.

#![allow(dead_code, unused_macros, unused_imports, reason = "each test file uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test says what is wrong by panicking"
)]

pub mod files;
pub mod pg;

use files::Files;
use host_kit::{Blocking, Faults, Host, Ids, ManualClock, Random};
use lock_api::FencingToken;
use pg::Database;
use rail_store::{
    Evidence, Exception, ExceptionFilter, Execution, FenceOutcome, FenceRequest, Fencing, ForwardClaim, LookupOutcome,
    LookupRecord, RailStore, Sighting, Submission, SubmitOutcome, SubmitRequest,
};
use std::sync::Arc;
use std::time::Duration;

pub const SEED: u64 = 20_260_101;
pub const WITHIN: Duration = Duration::from_secs(30);
pub const HORIZON: Duration = Duration::from_secs(60);

pub fn token(value: u64) -> FencingToken {
    FencingToken::from_store(value).unwrap()
}

thread_local! {
    // One for the whole test: a pool's connections live on it.
    static RUNTIME: tokio::runtime::Runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// Where a paydb is made.
#[derive(Clone, Debug)]
pub enum Place {
    /// In a directory.
    Files,
    /// On a server, in a schema of its own.
    Pg {
        /// The server, for a user who may do everything.
        url: String,
    },
}

impl Place {
    /// A server; none where there is none and that is no failure.
    pub fn pg() -> Option<Self> {
        Some(Self::Pg {
            url: block_on(test_servers::postgres())?,
        })
    }

    pub fn is_pg(&self) -> bool {
        matches!(self, Self::Pg { .. })
    }
}

/// Runs each case on each backend.
macro_rules! on_every_backend {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(#[test]
            fn $case() {
                super::$case(&$crate::support::Place::Files);
            })*
        }
        mod postgres {
            $(#[test]
            fn $case() {
                if let Some(place) = $crate::support::Place::pg() {
                    super::$case(&place);
                }
            })*
        }
    };
}
pub(crate) use on_every_backend;

/// A paydb.
pub enum Paydb {
    Files(Files),
    Pg(Box<Database>),
}

/// One process's view of a paydb.
pub struct World {
    pub paydb: Paydb,
    pub hand: ManualClock,
    pub host: Host,
    pub store: Arc<dyn RailStore>,
    lookups: std::cell::Cell<u64>,
}

impl World {
    pub fn new(place: &Place) -> Self {
        Self::with(place, Fencing::Enforced)
    }

    #[cfg(feature = "lab")]
    pub fn unfenced(place: &Place) -> Self {
        Self::with(place, Fencing::Off)
    }

    pub fn with(place: &Place, fencing: Fencing) -> Self {
        let paydb = match place {
            Place::Files => Paydb::Files(Files::with_payments()),
            Place::Pg { url } => Paydb::Pg(Box::new(block_on(Database::fresh(url)))),
        };
        Self::on(paydb, fencing)
    }

    pub fn on(paydb: Paydb, fencing: Fencing) -> Self {
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
        let store = open(&paydb, fencing, &host);
        Self {
            paydb,
            hand,
            host,
            store,
            lookups: std::cell::Cell::new(0),
        }
    }

    /// Another process on the same paydb.
    pub fn another(&self, fencing: Fencing) -> Arc<dyn RailStore> {
        open(&self.paydb, fencing, &self.host)
    }

    /// Another process on a clock and threads of its own.
    pub fn another_process(&self) -> Arc<dyn RailStore> {
        open(&self.paydb, Fencing::Enforced, &Host::system())
    }

    /// What the database itself says to a statement of somebody who may do everything. Ok: it was let through.
    pub fn raw(&self, sql: &str) -> Result<(), String> {
        match &self.paydb {
            Paydb::Files(files) => files.raw(sql),
            Paydb::Pg(database) => block_on(database.raw(sql)),
        }
    }

    /// A payout of 12.50 EUR from `account`.
    pub fn payout(&self, payout: &str, account: &str, state: &str, claim: Option<u64>) {
        let claim = claim.map(|token| i64::try_from(token).unwrap());
        match &self.paydb {
            Paydb::Files(files) => files.payout(payout, account, state, claim),
            Paydb::Pg(database) => block_on(database.payout(payout, account, state, claim)),
        }
    }

    /// A payout that is POSTED with this reference from now on.
    pub fn posted_as(&self, payout: &str, reference: &str) {
        match &self.paydb {
            Paydb::Files(files) => files.posted_as(payout, reference),
            Paydb::Pg(database) => block_on(database.posted_as(payout, reference)),
        }
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
        let lookup = self.lookup(payout, sighting, clock_trusted);
        block_on(self.store.record_lookup(lookup, WITHIN)).unwrap().unwrap()
    }

    /// What a lookup made now would record.
    pub fn lookup(&self, payout: &str, sighting: Sighting, clock_trusted: bool) -> LookupRecord {
        self.lookups.set(self.lookups.get() + 1);
        LookupRecord {
            lookup_id: format!("lookup-{}", self.lookups.get()),
            submission_id: format!("found-{}", self.lookups.get()),
            payout_id: payout.to_owned(),
            asked_at: lock_api::UnixMillis(self.host.clock.wall_ms()),
            clock_trusted,
            visibility_horizon_ms: u64::try_from(HORIZON.as_millis()).unwrap(),
            sighting,
        }
    }

    pub fn fence(&self, payout: &str, t: u64, forbid: bool) -> FenceOutcome {
        block_on(self.store.fence_submission(fence_request(payout, t, forbid), WITHIN)).unwrap()
    }

    pub fn mark(&self, account: &str) -> u64 {
        block_on(self.store.high_water(account.to_owned(), WITHIN))
            .unwrap()
            .highest_token
    }

    pub fn listed(&self, filter: ExceptionFilter) -> Vec<Exception> {
        block_on(self.store.exceptions(filter, 0, 1_000, WITHIN)).unwrap()
    }

    pub fn exceptions(&self) -> Vec<(String, String)> {
        self.listed(ExceptionFilter::All)
            .into_iter()
            .map(|exception| (exception.payout_id, exception.kind))
            .collect()
    }

    pub fn pass(&self, time: Duration) {
        self.hand.advance(time);
    }
}

fn open(paydb: &Paydb, fencing: Fencing, host: &Host) -> Arc<dyn RailStore> {
    match paydb {
        Paydb::Files(files) => Arc::new(files.open(fencing, host)),
        Paydb::Pg(database) => Arc::new(block_on(database.open(fencing, host)).unwrap()),
    }
}

pub fn fence_request(payout: &str, t: u64, forbid: bool) -> FenceRequest {
    FenceRequest {
        submission_id: format!("forbidden-{payout}"),
        payout_id: payout.to_owned(),
        token: token(t),
        forbid,
        actor: Some("worker-2".to_owned()),
    }
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
