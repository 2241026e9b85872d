//! The stores, where they are PostgreSQL: the server, its settings, the schema, the roles.

use super::http::Ahead;
use super::report::Report;
use super::rights;
use host_kit::Clock;
use pg_kit::{Access, Connector, PasswordSource, describe};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::{Client, Row};

/// How long one question to a database may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The oldest major version that was run.
const VERSION_NUM_MIN: i32 = 160_000;

/// The stores, and who works in them.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Stores on PostgreSQL")]
pub struct StoreArgs {
    /// The lock store; any role that may connect will do, its owner sees most.
    #[arg(long, value_name = "URL")]
    lock_store: Option<String>,
    /// paydb; any role that may connect will do, its owner sees most.
    #[arg(long, value_name = "URL")]
    pay_store: Option<String>,
    /// A file with the password for the lock store. Otherwise PGPASSWORD, else the URL's.
    #[arg(long, value_name = "FILE")]
    lock_store_password_file: Option<PathBuf>,
    /// A file with the password for paydb. Otherwise PGPASSWORD, else the URL's.
    #[arg(long, value_name = "FILE")]
    pay_store_password_file: Option<PathBuf>,
    /// The schema of the lock store.
    #[arg(long, value_name = "NAME", default_value = "dlock")]
    lock_schema: String,
    /// The schema of paydb.
    #[arg(long, value_name = "NAME", default_value = "pay")]
    pay_schema: String,
    /// The payment resource's role.
    #[arg(long, value_name = "NAME", default_value = "dlock_payment")]
    payment_role: String,
    /// The rail proxy's role.
    #[arg(long, value_name = "NAME", default_value = "dlock_rail")]
    rail_role: String,
}

impl StoreArgs {
    /// Says where a password stands in the arguments.
    pub fn warn(&self) {
        for (flag, url) in [("--lock-store", &self.lock_store), ("--pay-store", &self.pay_store)] {
            let instead = format!("set PGPASSWORD instead, or give it in a file: {flag}-password-file");
            let url = url.as_deref().unwrap_or_default();
            if let Some(warning) = crate::config::password_in_arguments(flag, url, &instead) {
                eprintln!("dlock: {warning}");
            }
        }
    }

    /// Whether a store was named.
    pub const fn is_given(&self) -> bool {
        self.lock_store.is_some() || self.pay_store.is_some()
    }
}

/// An open connection and what the report calls it.
pub(super) struct Store {
    pub(super) client: Client,
    pub(super) subject: String,
}

impl Store {
    /// Asks in one statement. Its words are this program's own; values go as parameters or checked names.
    pub(super) async fn rows(&self, sql: &str) -> Result<Vec<Row>, String> {
        match timeout(ANSWER_WITHIN, self.client.query_typed(sql, &[])).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(describe(&error)),
            Err(_) => Err(format!("no answer in {}s", ANSWER_WITHIN.as_secs())),
        }
    }
}

/// Looks at the stores that were named.
pub async fn look(args: &StoreArgs, clock: &Clock, report: &mut Report) {
    let lock = match &args.lock_store {
        Some(url) => open("lock store", url, args.lock_store_password_file.as_ref(), report).await,
        None => None,
    };
    let pay = match &args.pay_store {
        Some(url) => open("paydb", url, args.pay_store_password_file.as_ref(), report).await,
        None => None,
    };
    for (store, is_lock) in [(&lock, true), (&pay, false)] {
        if let Some(store) = store {
            settings(store, is_lock, report).await;
            self::clock(store, clock, report).await;
            let (schema, table) = if is_lock {
                (&args.lock_schema, "lock_schema")
            } else {
                (&args.pay_schema, "pay_schema")
            };
            if rights::schema(store, schema, table, is_lock, report).await && !is_lock {
                rights::roles(store, schema, &args.payment_role, &args.rail_role, report).await;
            }
        }
    }
    if let (Some(lock), Some(pay)) = (&lock, &pay) {
        two(lock, pay, report).await;
    }
}

async fn open(what: &str, url: &str, file: Option<&PathBuf>, report: &mut Report) -> Option<Store> {
    let subject = format!("{what} {}", gateway_kit::mask(url));
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        let why = match url.split(':').next() {
            Some("sqlite") => {
                "a file of the component's own host: the component keeps its settings itself (WAL, synchronous=FULL)"
            }
            Some("etcd") => "etcd is looked at with its own tools: etcdctl endpoint status, alarm list",
            _ => "not a URL of PostgreSQL",
        };
        report.not_checked(&subject, "store", why);
        return None;
    }
    let password = match file {
        Some(file) => PasswordSource::File(file.clone()),
        None => PasswordSource::file_or_environment(None),
    };
    let access = Access {
        password,
        ..Access::at(url)
    };
    let connected = match Connector::new(&access) {
        Ok(connector) => connector.connect_alone().await,
        Err(error) => Err(error),
    };
    match connected {
        Ok((client, _io)) => {
            report.ok(&subject, "connect", "connected");
            Some(Store { client, subject })
        }
        Err(error) => {
            report.wrong(
                &subject,
                "connect",
                error.to_string(),
                "look at the server, pg_hba.conf and the password (PGPASSWORD, the URL, or the password file)",
            );
            None
        }
    }
}

/// Settings that answered work rests on.
async fn settings(store: &Store, is_lock: bool, report: &mut Report) {
    let at = &store.subject;
    let sql = "SELECT current_setting('server_version_num')::int, current_setting('fsync'), current_setting('full_page_writes'),
        current_setting('synchronous_commit'), current_setting('wal_level'), pg_is_in_recovery(),
        current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication),
        current_setting('client_connection_check_interval'), current_setting('max_connections')::int,
        (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
        current_setting('transaction_read_only')";
    let rows = match store.rows(sql).await {
        Ok(rows) => rows,
        Err(error) => {
            report.not_checked(at, "server", error);
            return;
        }
    };
    let Some(row) = rows.first() else {
        report.not_checked(at, "server", "no answer");
        return;
    };
    let version: i32 = row.get(0);
    if version < VERSION_NUM_MIN {
        let next = "dlock was run on PostgreSQL 16 only: upgrade";
        report.warning(
            at,
            "server",
            format!("version {}.{}", version / 10_000, version % 10_000),
            next,
        );
    } else {
        report.ok(
            at,
            "server",
            format!("version {}.{}", version / 10_000, version % 10_000),
        );
    }
    if row.get::<_, bool>(5) || row.get::<_, String>(11) == "on" {
        report.wrong(
            at,
            "writable",
            "a standby, or read only: nothing can be granted or posted here",
            "name all hosts in the URL, with target_session_attrs=read-write",
        );
    } else {
        report.ok(at, "writable", "a primary");
    }
    for (place, name) in [(1, "fsync"), (2, "full_page_writes")] {
        match row.get::<_, String>(place).as_str() {
            "on" => report.ok(at, name, "on"),
            other => report.wrong(
                at,
                name,
                format!("{other}: a crash of the machine loses or tears what was answered"),
                format!("ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()"),
            ),
        }
    }
    let commit: String = row.get(3);
    match commit.as_str() {
        "on" | "remote_apply" => report.ok(at, "synchronous_commit", commit),
        _ if !is_lock => report.ok(
            at,
            "synchronous_commit",
            format!("{commit} by default; each writing transaction of paydb sets it on for itself"),
        ),
        _ => report.wrong(
            at,
            "synchronous_commit",
            format!("{commit}: a grant is answered before it is safe"),
            "ALTER SYSTEM SET synchronous_commit = on (or for the role alone); SELECT pg_reload_conf()",
        ),
    }
    match row.get::<_, String>(4).as_str() {
        "minimal" => report.warning(
            at,
            "wal_level",
            "minimal: no standby and no recovery to a point in time",
            "set wal_level = replica and archive the log",
        ),
        level => report.ok(at, "wal_level", level),
    }
    let (names, standbys): (String, i64) = (row.get(6), row.get(7));
    if standbys > 0 && names.is_empty() {
        report.warning(
            at,
            "standbys",
            format!("{standbys}, none of them synchronous: a failover loses the tail of what was answered"),
            "set synchronous_standby_names (docs/postgresql.md, Durability)",
        );
    } else {
        report.ok(at, "standbys", format!("{standbys} connected, synchronous: {names:?}"));
    }
    match row.get::<_, String>(8).as_str() {
        "0" => report.warning(
            at,
            "time-outs",
            "client_connection_check_interval = 0: a client that is gone without a word may hold a row for minutes",
            "set client_connection_check_interval = 5s on the server",
        ),
        interval => report.ok(
            at,
            "time-outs",
            format!("client_connection_check_interval = {interval}"),
        ),
    }
    let (most, used): (i32, i64) = (row.get(9), row.get(10));
    if used * 10 > i64::from(most) * 8 {
        report.warning(
            at,
            "connections",
            format!("{used} of {most} in use"),
            "raise max_connections, lower the pool-max of the components, or put a pooler in between",
        );
    } else {
        report.ok(at, "connections", format!("{used} of {most} in use"));
    }
}

/// On PostgreSQL leases end by the database's clock: a jump is caught, and a wrong clock shows in every audit row.
async fn clock(store: &Store, clock: &Clock, report: &mut Report) {
    let at = &store.subject;
    let sent = clock.wall_ms();
    let answer = store
        .rows("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
        .await;
    let received = clock.wall_ms();
    let said = answer.map(|rows| rows.first().map(|row| row.get::<_, i64>(0)));
    match said {
        Ok(Some(said)) => {
            let apart = Ahead::of(said, 1, sent, received).apart_from_local_ms();
            if apart > super::CLOCK_APART_MS_MAX {
                report.warning(
                    at,
                    "clock",
                    format!("at least {apart} ms from this machine's"),
                    "mend time synchronisation on the database's host, slowly: a jump gives every lease its full TTL again",
                );
            } else {
                report.ok(
                    at,
                    "clock",
                    format!("within {} ms of this machine's", apart + (received - sent) + 1),
                );
            }
        }
        Ok(None) => report.not_checked(at, "clock", "no answer"),
        Err(error) => report.not_checked(at, "clock", error),
    }
}

/// The loss of one must not be the loss of both.
async fn two(lock: &Store, pay: &Store, report: &mut Report) {
    let sql = "SELECT system_identifier::text, current_database()::text FROM pg_control_system()";
    let id = async |store: &Store| -> Result<(String, String), String> {
        let rows = store.rows(sql).await?;
        let row = rows.first().ok_or("no answer")?;
        Ok((row.get(0), row.get(1)))
    };
    let at = "both stores";
    match (id(lock).await, id(pay).await) {
        (Ok(lock), Ok(pay)) if lock.0 != pay.0 => {
            report.ok(
                at,
                "two servers",
                format!("system identifiers {} and {}", lock.0, pay.0),
            );
        }
        (Ok(lock), Ok(pay)) => {
            let shared = if lock.1 == pay.1 {
                "one database"
            } else {
                "two databases of one server"
            };
            report.warning(
                at,
                "two servers",
                format!("{shared} (system identifier {}): lost or restored together", lock.0),
                "put the lock store and paydb on two servers, so that a fault or restore of one leaves the other's marks (docs/containers.md)",
            );
        }
        (Err(error), _) | (_, Err(error)) => report.not_checked(at, "two servers", error),
    }
}
