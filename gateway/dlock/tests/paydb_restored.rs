//! paydb restored under a real stack: what was paid after the backup is not paid again (case D13).
#![cfg(feature = "lab")]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests wait for real processes"
)]

mod common;

use actor_kit::TraceContext;
use common::{LONG, Process};
use host_kit::Host;
use http_client::{Caller, ClientOptions, PaymentApi, RailStubApi, client};
use http_contract::payment::{CreatePayoutBody, Creditor, OpenAccountBody, PayoutState};
use pay_schema::PaySchema;
use pg_kit::Access;
use std::time::Duration;
use tokio_postgres::{Client, NoTls};

const PASSWORD: &str = "secret";

struct Api {
    payments: PaymentApi,
    rail: RailStubApi,
    trace: TraceContext,
}

impl Api {
    async fn create(&self, payout: &str) {
        let body = CreatePayoutBody {
            payout_id: Some(payout.into()),
            account_id: "A".into(),
            amount_minor: 400,
            currency: "EUR".into(),
            creditor: Creditor {
                name: "Ada".into(),
                account: "DE02".into(),
            },
            reference: None,
        };
        self.payments.create_payout(payout, &body, &self.trace).await.unwrap();
    }

    async fn state(&self, payout: &str) -> PayoutState {
        self.payments.payout(payout, &self.trace).await.unwrap().state
    }

    async fn await_posted(&self, payout: &str) {
        tokio::time::timeout(LONG, async {
            while self.state(payout).await != PayoutState::Posted {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("{payout} was never posted"));
    }

    /// How often the rail read it, and how often it executed it, by its own count.
    async fn at_the_rail(&self, payout: &str) -> (u64, usize) {
        let book = self.rail.book(payout, &self.trace).await.unwrap();
        (book.bodies_read, book.executions.len())
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[actix_web::test]
async fn case_d13_a_worker_settles_what_was_paid_before_the_restore_without_paying_again() {
    let url = test_servers::postgres_or_skip().await;
    let Some(programs) = test_servers::Programs::of(&url) else {
        eprintln!("*** SKIPPED: no pg_dump of the server's version at hand ***");
        return;
    };
    let (_, place) = url.split_once('@').unwrap();
    let schema = test_servers::fresh_schema();
    let (payment, rail) = (format!("{schema}_p"), format!("{schema}_r"));
    let admin = connect(&url).await;
    admin
        .batch_execute(&format!(
            "CREATE ROLE {payment} LOGIN PASSWORD '{PASSWORD}'; CREATE ROLE {rail} LOGIN PASSWORD '{PASSWORD}'"
        ))
        .await
        .unwrap();
    let options = PaySchema {
        access: Access::at(&url),
        schema: schema.clone(),
        payment_role: payment.clone(),
        rail_role: rail.clone(),
    };
    pay_schema::migrate(&options, &Host::system()).await.unwrap();

    let dir = tempfile::tempdir().unwrap();
    let locks = format!("sqlite:{}", dir.path().join("lock.db").display());
    let any = "127.0.0.1:0";
    let lock = Process::start(&["lock-server", "--listen", any, "--store", &locks]);
    let stub = Process::start(&["rail-stub", "--listen", any]);
    let at = |role: &str| format!("postgres://{role}:{PASSWORD}@{place}");
    let in_schema = |row: &str| format!("{row}.store.schema={schema}");
    let payments = Process::start(&[
        "payment-resource",
        "--listen",
        any,
        "--store",
        &at(&payment),
        "--set",
        &in_schema("payment"),
    ]);
    let proxy = Process::start(&[
        "rail-proxy",
        "--listen",
        any,
        "--store",
        &at(&rail),
        "--rail",
        &stub.url(),
        "--set",
        &in_schema("rail"),
        "--set",
        "rail.visibility-horizon=300ms",
    ]);
    let worker = || {
        Process::start(&[
            "payout-executor",
            "--listen",
            any,
            "--lock-server",
            &lock.url(),
            "--payments",
            &payments.url(),
            "--rail-proxy",
            &proxy.url(),
            "--owner",
            "w1",
            "--set",
            "executor.poll.interval=200ms",
        ])
    };
    let caller = |url: String| Caller::new(client(&ClientOptions::default()), url, LONG);
    let api = Api {
        payments: PaymentApi::new(caller(payments.url())),
        rail: RailStubApi::new(caller(stub.url())),
        trace: TraceContext::root(&Host::system().random),
    };
    let account = OpenAccountBody {
        account_id: "A".into(),
        currency: "EUR".into(),
        opening_balance_minor: 10_000,
    };
    api.payments.open_account(&account, &api.trace).await.unwrap();

    api.create("paid").await;
    let backup = programs.dump(&schema);
    // Its client is not told of the restore, and asks for it again.
    api.create("lost").await;
    let first = worker();
    for payout in ["paid", "lost"] {
        api.await_posted(payout).await;
        assert_eq!(api.at_the_rail(payout).await, (1, 1), "{payout}");
    }
    first.terminate();

    test_servers::drop_schema(&admin, &schema).await;
    programs.restore(&backup);
    assert_eq!(api.state("paid").await, PayoutState::Pending);
    api.create("lost").await;
    api.create("new").await;

    let second = worker();
    for payout in ["paid", "lost", "new"] {
        api.await_posted(payout).await;
        assert_eq!(api.at_the_rail(payout).await, (1, 1), "{payout}");
    }
    let verified = api.payments.verify(&api.trace).await.unwrap();
    assert!(verified.ok, "{:?}", verified.violations);
    for process in [second, proxy, payments, stub, lock] {
        process.terminate();
    }
    admin
        .batch_execute(&format!("DROP SCHEMA {schema} CASCADE; DROP ROLE {payment}, {rail}"))
        .await
        .unwrap();
}
