//! A paydb on a real server, in a schema and with roles of its own.

use super::{BOUND, creditor};
use host_kit::Host;
use pay_schema::PaySchema;
use pg_kit::Access;
use test_servers::Programs;
use tokio_postgres::{Client, NoTls};

const PASSWORD: &str = "rail-test";

/// paydb, and who may look into it. Dropped with its schema by [`Paydb::end`].
pub struct Paydb {
    /// The server, for a user who may do everything.
    url: String,
    pub schema: String,
    rail_role: String,
    payment_role: String,
    /// No trigger fires for it: what stands in the payment row's tables is another package's business.
    admin: Client,
}

impl Paydb {
    /// None where there is no server and that is no failure.
    pub async fn fresh() -> Option<Self> {
        let url = test_servers::postgres().await?;
        let schema = test_servers::fresh_schema();
        let (payment_role, rail_role) = (format!("{schema}_p"), format!("{schema}_r"));
        let (admin, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        tokio::spawn(connection);
        admin
            .batch_execute(&format!(
                "SET search_path = {schema}; SET session_replication_role = replica;
                 CREATE ROLE {payment_role} LOGIN; CREATE ROLE {rail_role} LOGIN PASSWORD '{PASSWORD}'"
            ))
            .await
            .unwrap();
        let options = PaySchema {
            access: Access::at(&url),
            schema: schema.clone(),
            payment_role: payment_role.clone(),
            rail_role: rail_role.clone(),
        };
        pay_schema::migrate(&options, &Host::system()).await.unwrap();
        Some(Self {
            url,
            schema,
            rail_role,
            payment_role,
            admin,
        })
    }

    /// The settings under which a proxy finds it, with the password in the URL.
    pub fn settings(&self) -> [(&'static str, String); 2] {
        [
            (
                "rail.store.url",
                self.url_with(&format!("{}:{PASSWORD}", self.rail_role)),
            ),
            ("rail.store.schema", self.schema.clone()),
        ]
    }

    /// The same with the password in a file.
    pub fn settings_with_file(&self, directory: &std::path::Path) -> [(&'static str, String); 4] {
        let file = directory.join("password");
        std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        [
            ("rail.store.url", self.url_with(&self.rail_role)),
            ("rail.store.schema", self.schema.clone()),
            ("rail.store.password-file", file.display().to_string()),
            ("rail.store.pool-max", "4".to_owned()),
        ]
    }

    fn url_with(&self, user: &str) -> String {
        let (_, place) = self.url.split_once('@').unwrap();
        format!("postgres://{user}@{place}?application_name={}", self.schema)
    }

    /// A payout of 12.50 EUR from `account`, claimed under `token`.
    pub async fn claimed(&self, payout: &str, account: &str, token: i64) {
        self.admin
            .execute(
                "INSERT INTO account (account_id, currency, opening_balance_minor, balance_minor, opened_at)
                 VALUES ($1, 'EUR', 0, 0, 0) ON CONFLICT DO NOTHING",
                &[&account],
            )
            .await
            .unwrap();
        self.admin
            .execute(
                "INSERT INTO payout (payout_id, account_id, amount_minor, currency, creditor, state, claim_token,
                     created_at, updated_at)
                 VALUES ($1, $2, 1250, 'EUR', $3, 'CLAIMED', $4, 0, 0)
                 ON CONFLICT (payout_id) DO UPDATE SET state = 'CLAIMED', claim_token = excluded.claim_token",
                &[&payout, &account, &creditor().to_string(), &token],
            )
            .await
            .unwrap();
    }

    /// The payout as the payment row leaves it.
    pub async fn set(&self, payout: &str, state: &str) {
        let sql = "UPDATE payout SET state = $2 WHERE payout_id = $1";
        assert_eq!(self.admin.execute(sql, &[&payout, &state]).await.unwrap(), 1);
    }

    pub async fn number(&self, sql: &str) -> i64 {
        self.admin.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// None where the server's own programs are not at hand.
    pub fn programs(&self) -> Option<Programs> {
        Programs::of(&self.url)
    }

    /// Puts the schema back to what it was.
    pub async fn restore(&self, programs: &Programs, dump: &[u8]) {
        test_servers::drop_schema(&self.admin, &self.schema).await;
        programs.restore(dump);
    }

    /// Drops it, whoever still uses it.
    pub async fn end(self) {
        let sql = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{0}';
             SET client_min_messages = error; DROP SCHEMA {0} CASCADE; DROP ROLE {1}, {2}",
            self.schema, self.payment_role, self.rail_role
        );
        tokio::time::timeout(BOUND, self.admin.batch_execute(&sql))
            .await
            .unwrap()
            .unwrap();
    }
}
