//! A paydb on a real server, in a schema and with roles of its own.

pub mod cut;

use super::block_on;
use host_kit::Host;
use lock_api::StoreError;
use pay_schema::PaySchema;
use pg_kit::Access;
use rail_store::{Fencing, PgRail, PgRailOptions};
use tokio_postgres::{Client, NoTls};

const PASSWORD: &str = "rail-test";

pub struct Database {
    /// The server, for a user who may do everything.
    pub url: String,
    pub schema: String,
    pub payment_role: String,
    pub rail_role: String,
    /// A connection of the test's own, with the schema in its path.
    pub admin: Client,
    /// One for which no trigger fires: what stands in the payment row's tables is another package's business.
    payments: Client,
}

pub async fn connect(url: &str, schema: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
        .batch_execute(&format!("SET search_path = {schema}"))
        .await
        .unwrap();
    client
}

impl Database {
    pub async fn fresh(url: &str) -> Self {
        let schema = test_servers::fresh_schema();
        let (payment_role, rail_role) = (format!("{schema}_p"), format!("{schema}_r"));
        let admin = connect(url, &schema).await;
        admin
            .batch_execute(&format!(
                "CREATE ROLE {payment_role} LOGIN PASSWORD '{PASSWORD}'; CREATE ROLE {rail_role} LOGIN PASSWORD '{PASSWORD}'"
            ))
            .await
            .unwrap();
        let options = PaySchema {
            access: Access::at(url),
            schema: schema.clone(),
            payment_role: payment_role.clone(),
            rail_role: rail_role.clone(),
        };
        pay_schema::migrate(&options, &Host::system()).await.unwrap();
        let payments = connect(url, &schema).await;
        payments
            .batch_execute("SET session_replication_role = replica")
            .await
            .unwrap();
        Self {
            url: url.to_owned(),
            schema,
            payment_role,
            rail_role,
            admin,
            payments,
        }
    }

    /// The URL of one of the two roles.
    pub fn url_of(&self, role: &str) -> String {
        let (_, place) = self.url.split_once('@').unwrap();
        format!("postgres://{role}:{PASSWORD}@{place}")
    }

    pub fn access(&self) -> Access {
        let url = self.url_of(&self.rail_role);
        Access::at(format!("{url}?application_name={}", self.schema))
    }

    pub fn options(&self, fencing: Fencing) -> PgRailOptions {
        PgRailOptions {
            access: self.access(),
            schema: self.schema.clone(),
            fencing,
        }
    }

    pub async fn open(&self, fencing: Fencing, host: &Host) -> Result<PgRail, StoreError> {
        PgRail::open(self.options(fencing), host).await
    }

    pub async fn payout(&self, payout: &str, account: &str, state: &str, claim: Option<i64>) {
        self.payments
            .execute(
                "INSERT INTO payout (payout_id, account_id, amount_minor, currency, creditor, state, claim_token,
                     created_at, updated_at)
                 VALUES ($1, $2, 1250, 'EUR', '{\"name\":\"Ada\",\"account\":\"DE02\"}', $3, $4, 0, 0)
                 ON CONFLICT (payout_id) DO UPDATE SET state = excluded.state, claim_token = excluded.claim_token,
                     account_id = excluded.account_id",
                &[&payout, &account, &state, &claim],
            )
            .await
            .unwrap();
    }

    pub async fn posted_as(&self, payout: &str, reference: &str) {
        let set = "UPDATE payout SET state = 'POSTED', rail_reference = $2 WHERE payout_id = $1";
        self.payments.execute(set, &[&payout, &reference]).await.unwrap();
    }

    pub async fn raw(&self, sql: &str) -> Result<(), String> {
        match self.admin.batch_execute(sql).await {
            Ok(()) => Ok(()),
            Err(error) => {
                let said = error.as_db_error().unwrap();
                // Refused by a rule of the tables, not as nonsense.
                assert!(said.code().code().starts_with("23"), "{sql}: {said}");
                Err(said.message().to_owned())
            }
        }
    }

    /// The first column of the first row, as a number.
    pub async fn number(&self, sql: &str) -> i64 {
        self.admin.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Ends every session of the rail.
    pub async fn terminate(&self) {
        let sql = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{}'",
            self.schema
        );
        self.admin.batch_execute(&sql).await.unwrap();
    }

    /// What a restored dump does to the lineage: the same row, written by another transaction.
    pub async fn as_if_restored(&self) {
        self.payments
            .batch_execute(
                "BEGIN;
                 CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT * FROM pay_lineage;
                 DELETE FROM pay_lineage;
                 INSERT INTO pay_lineage SELECT * FROM kept;
                 COMMIT",
            )
            .await
            .unwrap();
    }

    /// Waits until so many sessions of the rail wait for a lock.
    pub async fn await_waiting(&self, sessions: i64) {
        let waiting = async {
            loop {
                let sql = format!(
                    "SELECT count(*) FROM pg_stat_activity
                      WHERE application_name = '{}' AND wait_event_type = 'Lock'",
                    self.schema
                );
                if self.number(&sql).await >= sessions {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(super::WITHIN, waiting).await.unwrap();
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // What a call still uses stays behind; the server does not live long.
        let sql = format!(
            "SET lock_timeout = '2s'; SET client_min_messages = error;
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{0}';
             DROP SCHEMA {0} CASCADE; DROP ROLE {1}, {2}",
            self.schema, self.payment_role, self.rail_role
        );
        drop(block_on(self.admin.batch_execute(&sql)));
    }
}
