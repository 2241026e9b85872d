//! A paydb of the test's own on a real server: a schema, two roles, and what only the server's master may do.

use host_kit::Host;
use pay_schema::{PaySchema, create_roles, migrate};
use payment_store::{Fencing, PgPayments, PgPaymentsOptions};
use pg_kit::Access;
use tokio_postgres::{Client, NoTls};

const PASSWORD: &str = "secret";

/// Gone when it is dropped.
pub struct Schema {
    /// The server's, as a user who may do everything.
    url: String,
    shared: Client,
    pub name: String,
    pub payment_role: String,
    pub rail_role: String,
}

pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Schema {
    pub async fn fresh() -> Self {
        let url = test_servers::postgres_or_skip().await;
        let name = test_servers::fresh_schema();
        let options = PaySchema {
            payment_role: format!("{name}_p"),
            rail_role: format!("{name}_r"),
            schema: name,
            ..PaySchema::at(Access::at(&url))
        };
        create_roles(&options).await.unwrap();
        let migrated = migrate(&options, &Host::system()).await.unwrap();
        assert_eq!(
            migrated.to,
            payment_store::SCHEMA_VERSION,
            "payment-store knows another version than pay-schema makes"
        );
        let schema = Self {
            shared: connect(&url).await,
            url,
            name: options.schema,
            payment_role: options.payment_role,
            rail_role: options.rail_role,
        };
        schema
            .shared
            .batch_execute(&format!("SET search_path = {}", schema.name))
            .await
            .unwrap();
        for role in [&schema.payment_role, &schema.rail_role] {
            schema
                .shared
                .batch_execute(&format!("ALTER ROLE {role} PASSWORD '{PASSWORD}'"))
                .await
                .unwrap();
        }
        schema
    }

    /// The server's URL for one of the roles.
    pub fn url_of(&self, role: &str) -> String {
        let (_, place) = self.url.split_once('@').unwrap();
        format!("postgres://{role}:{PASSWORD}@{place}")
    }

    pub fn options(&self) -> PgPaymentsOptions {
        PgPaymentsOptions {
            schema: self.name.clone(),
            // The server knows whose connections they are.
            ..PgPaymentsOptions::at(format!(
                "{}?application_name={}",
                self.url_of(&self.payment_role),
                self.name
            ))
        }
    }

    /// A payment resource's store.
    pub async fn store(&self, fencing: Fencing) -> PgPayments {
        PgPayments::open(self.options(), fencing, &Host::system())
            .await
            .unwrap()
    }

    /// The connection of somebody who may do everything, in this schema, for single statements.
    pub fn by_admin(&self) -> &Client {
        &self.shared
    }

    /// Another one, for whoever leaves something set or open on it.
    pub async fn admin(&self) -> Client {
        self.in_schema(connect(&self.url).await).await
    }

    /// A connection of one of the roles, in this schema.
    pub async fn connect_as(&self, role: &str) -> Client {
        self.in_schema(connect(&self.url_of(role)).await).await
    }

    async fn in_schema(&self, client: Client) -> Client {
        client
            .batch_execute(&format!("SET search_path = {}", self.name))
            .await
            .unwrap();
        client
    }

    /// Takes the rail proxy's own rules off its table.
    pub async fn let_the_rail_say_anything(&self) {
        self.by_admin()
            .batch_execute(
                "ALTER TABLE rail_submission DISABLE TRIGGER USER;
                 DO $$
                 DECLARE c name;
                 BEGIN
                     FOR c IN SELECT conname FROM pg_constraint
                              WHERE conrelid = 'rail_submission'::regclass AND contype = 'c' LOOP
                         EXECUTE format('ALTER TABLE rail_submission DROP CONSTRAINT %I', c);
                     END LOOP;
                 END $$",
            )
            .await
            .unwrap();
    }

    /// Every row of these tables, as text.
    pub async fn rows(&self, tables: &[&str]) -> String {
        let admin = self.by_admin();
        let mut text = String::new();
        for table in tables {
            for row in admin
                .query(&format!("SELECT t::text FROM {table} t ORDER BY 1"), &[])
                .await
                .unwrap()
            {
                text.push_str(row.get(0));
                text.push('\n');
            }
        }
        text
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let (url, name) = (self.url.clone(), self.name.clone());
        let roles = format!("{}, {}", self.payment_role, self.rail_role);
        // On a thread of its own: a drop cannot wait.
        let dropping = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(async {
                    // One that a call still uses stays behind; the server does not live long.
                    drop(
                        connect(&url)
                            .await
                            .batch_execute(&format!(
                                "SET lock_timeout = '2s'; SET client_min_messages = error;
                                 DROP SCHEMA {name} CASCADE; DROP ROLE {roles}"
                            ))
                            .await,
                    );
                });
        });
        drop(dropping.join());
    }
}
