//! Real servers for tests: PostgreSQL and etcd, named by a URL or started in a container.
//!
//! Owns: where a test's server comes from. `DLOCK_TEST_PG_URL` names one that runs already and always wins; otherwise one
//! container is started and shared by every test process of this machine (cargo-nextest runs each test in a process of
//! its own), labelled `dlock-test=servers`, removed by `scripts/test-servers stop`. The image is `DLOCK_POSTGRES_IMAGE`,
//! else the public one, else the one that `scripts/build-offline-images` makes.
//! Does not own: what is done with it. Each test makes a schema of its own ([`fresh_schema`]), so that tests run at once.
//! On failure: with `CI=true` the test fails; elsewhere it is skipped and says so loudly.

#![allow(clippy::disallowed_methods, reason = "tests alone use this, on the system's clock")]
#![allow(clippy::panic, reason = "a test without its server fails")]

mod authority;
mod etcd;
mod own;
mod pgbouncer;
mod programs;

pub use rcgen;
pub use testcontainers;

pub use authority::Authority;
pub use etcd::{DATA_DIR, etcd, etcd_address, etcd_image, etcd_image_with, etcd_images, etcd_or_skip, healthy};
pub use own::{OwnNetwork, OwnOptions, OwnPostgres, OwnVolume, docker, fresh_name};
pub use pgbouncer::PgBouncer;
pub use programs::Programs;

use host_kit::Reserved;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use testcontainers::core::{IntoContainerPort, Mount, WaitFor};
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, GenericImage, ImageExt, ReuseDirective, TestcontainersError};

/// The label of every container that is started here.
pub const LABEL: (&str, &str) = ("dlock-test", "servers");

/// The password of the servers that are started here, on the loopback interface alone.
pub const PASSWORD: &str = "dlock-test";

/// A PostgreSQL server's URL, of a user who may do everything. None where there is none and that is no failure.
///
/// # Panics
/// With `CI=true`, when there is none.
pub async fn postgres() -> Option<String> {
    match find_postgres().await {
        Ok(url) => Some(url),
        Err(detail) => {
            let wanted = "name a server by DLOCK_TEST_PG_URL, or start Docker and run scripts/test-images";
            assert!(!in_ci(), "no PostgreSQL for this test: {detail}; {wanted}");
            eprintln!("\n*** SKIPPED: no PostgreSQL for this test: {detail}; {wanted} ***\n");
            None
        }
    }
}

/// A port of the loopback interface that is kept: for a program that has to be told one, for one that comes back, or for
/// nobody at all.
///
/// # Panics
/// When none is free.
#[must_use]
pub fn reserved() -> Reserved {
    Reserved::loopback().unwrap_or_else(|error| panic!("no free port: {error}"))
}

/// Whether what is missing here is a failure.
fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|ci| ci == "true")
}

/// Drops a schema under whoever uses it. A transaction of theirs may want its tables in another order than the drop, and then
/// the server ends either of the two: the drop is made again.
///
/// # Panics
/// When the server refuses it for another reason.
pub async fn drop_schema(admin: &tokio_postgres::Client, schema: &str) {
    use tokio_postgres::error::SqlState;
    loop {
        match admin.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await {
            Ok(()) => return,
            Err(error) if error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) => {}
            Err(error) => panic!("dropping {schema}: {error:?}"),
        }
    }
}

/// Runs statements in one transaction that changes rights on a database, one test at a time: of two at once the server ends
/// one ("tuple concurrently updated").
///
/// # Panics
/// When the server refuses them.
pub async fn change_database(admin: &tokio_postgres::Client, sql: &str) {
    let alone = format!("SELECT pg_advisory_xact_lock(7319); {sql}");
    if let Err(error) = admin.batch_execute(&alone).await {
        panic!("{sql}: {error:?}");
    }
}

/// A name that no other test uses.
#[must_use]
pub fn fresh_schema() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis());
    format!(
        "t{now:x}_{:x}_{:x}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Name and tag of an image.
fn parts(image: &str) -> (String, String) {
    image.rsplit_once(':').map_or_else(
        || (image.to_owned(), "latest".to_owned()),
        |(name, tag)| (name.to_owned(), tag.to_owned()),
    )
}

/// A PostgreSQL server in a container, not started yet.
pub fn postgres_image(image: &str) -> testcontainers::ContainerRequest<GenericImage> {
    let (name, tag) = parts(image);
    GenericImage::new(name, tag)
        .with_exposed_port(5432.tcp())
        // The server of the set-up logs to standard output, the real one to standard error.
        .with_wait_for(WaitFor::message_on_stderr(
            "database system is ready to accept connections",
        ))
        .with_env_var("POSTGRES_PASSWORD", PASSWORD)
        .with_label(LABEL.0, LABEL.1)
        .with_mount(Mount::tmpfs_mount("/var/lib/postgresql/data"))
        .with_cmd(["-c", "max_connections=400", "-c", "shared_buffers=256MB"])
        .with_startup_timeout(Duration::from_secs(60))
}

async fn find_postgres() -> Result<String, String> {
    if let Ok(url) = std::env::var("DLOCK_TEST_PG_URL") {
        return connect(&url).await.map(|()| url);
    }
    let images = std::env::var("DLOCK_POSTGRES_IMAGE").map_or_else(
        |_| vec!["dlock-offline/postgres:16".to_owned(), "postgres:16".to_owned()],
        |image| vec![image],
    );
    // One process at a time looks for the shared container, so that it is started once.
    let turn = tokio::task::spawn_blocking(|| {
        let path = std::env::temp_dir().join("dlock-test-servers.lock");
        let file = File::create(path).map_err(|error| error.to_string())?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.to_string())
    })
    .await
    .map_err(|error| error.to_string())??;
    let mut why = String::new();
    for image in images {
        let started = postgres_image(&image)
            .with_label("dlock-test-server", "postgres")
            .with_reuse(ReuseDirective::Always)
            .start()
            .await;
        match url_of(started).await {
            Ok(url) => {
                // A container that just began may still be refusing.
                for _ in 0..100 {
                    if connect(&url).await.is_ok() {
                        drop(turn);
                        return Ok(url);
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                why = format!("{image} does not answer at its port");
            }
            Err(error) => why = format!("{image}: {error}"),
        }
    }
    Err(why)
}

async fn url_of(started: Result<ContainerAsync<GenericImage>, TestcontainersError>) -> Result<String, String> {
    let container = started.map_err(|error| error.to_string())?;
    url(&container).await
}

/// The URL of a container started from [`postgres_image`]. Its port changes when it is started again.
///
/// # Errors
/// What Docker said.
pub async fn url(container: &ContainerAsync<GenericImage>) -> Result<String, String> {
    let port = container
        .get_host_port_ipv4(5432.tcp())
        .await
        .map_err(|error| error.to_string())?;
    Ok(format!("postgres://postgres:{PASSWORD}@127.0.0.1:{port}/postgres"))
}

async fn connect(url: &str) -> Result<(), String> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
        .await
        .map_err(|error| {
            format!(
                "{error}: {:?}",
                std::error::Error::source(&error).map(ToString::to_string)
            )
        })?;
    let io = tokio::spawn(connection);
    let answer = client
        .batch_execute("SELECT 1")
        .await
        .map_err(|error| error.to_string());
    drop(client);
    drop(io.await);
    answer
}

/// As [`postgres`], for a test binary all of whose tests need one: ends the process where there is none and that is no
/// failure, after saying so.
///
/// # Panics
/// As [`postgres`].
pub async fn postgres_or_skip() -> String {
    match postgres().await {
        Some(url) => url,
        None => std::process::exit(0),
    }
}
