//! paydb on PostgreSQL as an operator sets it up: migrated by its owner, served by the real process as another role.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use actor_kit::TraceContext;
use common::{Process, code, dlock, stderr, stdout};
use host_kit::Host;
use http_client::{Caller, ClientOptions, PaymentApi, client};
use http_contract::payment::{ClaimBody, CreatePayoutBody, Creditor, OpenAccountBody, PayoutState};
use std::time::Duration;
use tokio_postgres::{Client, NoTls};

const PASSWORD: &str = "secret";

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[actix_web::test]
async fn paydb_on_postgresql_is_migrated_by_its_owner_and_served_by_another_role() {
    let url = test_servers::postgres_or_skip().await;
    let (_, place) = url.split_once('@').unwrap();
    let schema = test_servers::fresh_schema();
    let (owner, payment, rail) = (format!("{schema}_o"), format!("{schema}_p"), format!("{schema}_r"));
    let admin = connect(&url).await;
    let database: String = admin
        .query_one("SELECT current_database()::text", &[])
        .await
        .unwrap()
        .get(0);
    // An owner who is no superuser.
    let rights = format!(
        "CREATE ROLE {owner} LOGIN CREATEROLE PASSWORD '{PASSWORD}'; GRANT CREATE ON DATABASE {database} TO {owner}"
    );
    test_servers::change_database(&admin, &rights).await;

    let dir = tempfile::tempdir().unwrap();
    let password_file = dir.path().join("password");
    std::fs::write(&password_file, format!("{PASSWORD}\n")).unwrap();
    std::fs::set_permissions(&password_file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let served_as = |role: &str| -> Vec<String> {
        [
            "payment-resource",
            "--listen",
            "127.0.0.1:0",
            "--store",
            &format!("postgres://{role}@{place}"),
            "--set",
            &format!("payment.store.schema={schema}"),
            "--set",
            &format!("payment.store.password-file={}", password_file.display()),
            "--set",
            "payment.store.pool-max=4",
        ]
        .map(str::to_owned)
        .to_vec()
    };
    let migrate = |more: &[&str]| {
        dlock()
            .args([
                "migrate",
                "--store",
                &format!("postgres://{owner}@{place}"),
                "--schema",
                &schema,
            ])
            .args(["--payment-role", &payment, "--rail-role", &rail])
            .arg("--password-file")
            .arg(&password_file)
            .args(more)
            .env("PGPASSWORD", "the file comes first")
            .output()
            .unwrap()
    };

    // It migrated all the same, once.
    let printed = migrate(&["--print-config"]);
    assert_eq!(code(&printed), 0, "{}", stderr(&printed));
    assert!(stdout(&printed).contains("[payment]"), "{}", stdout(&printed));

    // Not set up yet: each says what to do.
    let early = dlock().args(served_as(&owner)).output().unwrap();
    assert_eq!(code(&early), 69, "{}", stderr(&early));
    assert!(stderr(&early).contains("run dlock migrate"), "{}", stderr(&early));
    let without = migrate(&[]);
    assert_eq!(code(&without), 69);
    assert!(
        stderr(&without).contains(&format!("CREATE ROLE \"{payment}\" LOGIN")),
        "{}",
        stderr(&without)
    );

    let first = migrate(&["--create-roles"]);
    assert_eq!(code(&first), 0, "{}", stderr(&first));
    assert!(
        stdout(&first).contains("it was 0") && stdout(&first).contains(&rail),
        "{}",
        stdout(&first)
    );
    let again = migrate(&[]);
    assert_eq!(code(&again), 0, "{}", stderr(&again));
    let lineage = |said: &str| {
        said.split("lineage ")
            .nth(1)
            .and_then(|rest| rest.split([';', '\n']).next())
            .map(str::to_owned)
    };
    assert_eq!(lineage(&stdout(&first)), lineage(&stdout(&again)));
    assert!(
        lineage(&stdout(&first)).is_some_and(|id| id.len() == 36),
        "{}",
        stdout(&first)
    );
    admin
        .batch_execute(&format!("ALTER ROLE {payment} PASSWORD '{PASSWORD}'"))
        .await
        .unwrap();

    let args = served_as(&payment);
    let process = Process::start(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let api = PaymentApi::new(Caller::new(
        client(&ClientOptions::default()),
        process.url(),
        Duration::from_secs(30),
    ));
    let trace = TraceContext::root(&Host::system().random);
    let account = OpenAccountBody {
        account_id: "A".into(),
        currency: "EUR".into(),
        opening_balance_minor: 1_000,
    };
    api.open_account(&account, &trace).await.unwrap();
    let payout = CreatePayoutBody {
        payout_id: Some("P".into()),
        account_id: "A".into(),
        amount_minor: 400,
        currency: "EUR".into(),
        creditor: Creditor {
            name: "Ada".into(),
            account: "DE02".into(),
        },
        reference: None,
    };
    api.create_payout("key", &payout, &trace).await.unwrap();
    let claimed = api
        .claim(
            "P",
            "5".parse().unwrap(),
            Some("w1"),
            &ClaimBody { expected_version: None },
            &trace,
        )
        .await
        .unwrap();
    assert_eq!((claimed.body.state, claimed.replayed), (PayoutState::Claimed, false));
    let verified = api.verify(&trace).await.unwrap();
    assert!(verified.ok, "{:?}", verified.violations);
    let account = api.account("A", &trace).await.unwrap();
    assert_eq!((account.fence, account.held_minor), (5, 400));
    process.terminate();

    let rights = format!(
        "DROP SCHEMA {schema} CASCADE; DROP ROLE {payment}, {rail};
             REVOKE ALL ON DATABASE {database} FROM {owner}; DROP ROLE {owner}"
    );
    test_servers::change_database(&admin, &rights).await;
}
