//! What a server has too little of: connections for a role, room on its disk; and who it may not be.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "tests read the clock")]

use host_kit::Random;
use pg_kit::{Access, Connector, Effect, Pooled, Transaction, Transactions};
use std::time::Duration;
use test_servers::{OwnOptions, OwnPostgres, PASSWORD, change_database, fresh_schema, postgres_or_skip};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_postgres::Client;

/// Far more than anything here takes.
const WITHIN: Duration = Duration::from_secs(120);

async fn admin(url: &str) -> Client {
    let (client, _io) = Connector::new(&Access::at(url)).unwrap().connect_alone().await.unwrap();
    client
}

/// Two pools want eight connections each of a role that may have three: whoever finds none waits for one that works.
#[tokio::test]
async fn case_l46_callers_wait_for_a_connection_that_exists() {
    let url = postgres_or_skip().await;
    let role = fresh_schema();
    let admin = admin(&url).await;
    change_database(
        &admin,
        &format!("CREATE ROLE {role} LOGIN CONNECTION LIMIT 3 PASSWORD '{PASSWORD}'"),
    )
    .await;
    let (_, place) = url.split_once('@').unwrap();
    let pool = || {
        Pooled::new(&Access {
            pool_max: 8,
            ..Access::at(format!("postgres://{role}:{PASSWORD}@{place}"))
        })
        .unwrap()
    };
    let (one, two) = (pool(), pool());
    // Each has a connection before the other could take them all.
    for pool in [&one, &two] {
        pool.get(Instant::now() + WITHIN).await.unwrap().done();
    }
    let callers = (0..32).map(|n| {
        let pool = if n % 2 == 0 { one.clone() } else { two.clone() };
        tokio::spawn(async move {
            for _ in 0..5 {
                let connection = pool.get(Instant::now() + WITHIN).await.unwrap();
                connection.batch_execute("SELECT pg_sleep(0.02)").await.unwrap();
                connection.done();
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    let open = one.connections().0 + two.connections().0;
    assert!(open <= 3, "{open} connections of a role that may have three");
    // With nobody else it has all that it may have again.
    drop(two);
    one.close();
    // One that has none at all says why, when its time is over.
    let mut held = Vec::new();
    let other = pool();
    for _ in 0..3 {
        held.push(other.get(Instant::now() + WITHIN).await.unwrap());
    }
    let none = pool().get(Instant::now() + Duration::from_millis(400)).await;
    let said = none.err().unwrap().to_string();
    assert!(said.contains("too many connections"), "{said}");
    drop((held, other));
    drop(admin);
}

fn transactions(url: &str) -> Transactions {
    Transactions::new(Pooled::new(&Access::at(url)).unwrap(), "public", Random::seeded(7))
}

async fn write(transactions: &Transactions, sql: &'static str) -> Result<(), String> {
    let done = transactions.run(Effect::Writes, WITHIN, async |transaction: Transaction| {
        transaction.commit(&[(sql, &[])]).await
    });
    done.await.map(drop).map_err(|error| error.to_string())
}

async fn health(transactions: &Transactions) -> Result<(), String> {
    let well = transactions.health("SELECT 1", WITHIN).await;
    well.map_err(|error| error.detail().to_owned())
}

/// Until the trial, which is made once a second, has been made.
async fn well_again(transactions: &Transactions) {
    let from = Instant::now();
    while let Err(said) = health(transactions).await {
        assert!(from.elapsed() < WITHIN, "never well again: {said}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A database whose tablespace is full, and one that is read-only.
#[tokio::test]
async fn case_l36_a_full_or_read_only_database_is_told_until_a_write_works() {
    let server = OwnPostgres::start(&OwnOptions {
        docker: ["--tmpfs", "/small:size=24m,mode=1777"].map(str::to_owned).to_vec(),
        prepare: "mkdir /small/data\n".into(),
        ..OwnOptions::default()
    })
    .await;
    let root = admin(&server.url()).await;
    root.batch_execute("CREATE TABLESPACE small LOCATION '/small/data'")
        .await
        .unwrap();
    root.batch_execute("CREATE DATABASE small TABLESPACE small")
        .await
        .unwrap();
    let url = server
        .url()
        .replace("/postgres", "/small")
        .replace("postgres://small", "postgres://postgres");
    let url = if url.contains("/small?") || url.ends_with("/small") {
        url
    } else {
        panic!("{url}")
    };
    let small = admin(&url).await;
    small
        .batch_execute("CREATE TABLE t (x text); ALTER TABLE t ALTER COLUMN x SET STORAGE PLAIN")
        .await
        .unwrap();
    server.shell("head -c 8M /dev/zero > /small/ballast", "");
    let transactions = transactions(&url);
    health(&transactions).await.unwrap();
    let insert = "INSERT INTO t SELECT repeat('y', 4000) FROM generate_series(1, 100)";
    let mut written = 0;
    let refused = loop {
        match write(&transactions, insert).await {
            Ok(()) => written += 1,
            Err(said) => break said,
        }
        assert!(written < 1000, "the disk never filled");
    };
    assert!(refused.contains("53100"), "{refused}");
    let said = health(&transactions).await.unwrap_err();
    assert!(said.starts_with("full: "), "{said}");
    server.shell("rm /small/ballast", "");
    well_again(&transactions).await;
    write(&transactions, insert).await.unwrap();

    // Read-only, as a provider makes a server whose disk is nearly full: what does not say that it writes is refused.
    let pool = transactions.pool();
    let busy = pool.get(Instant::now() + WITHIN).await.unwrap();
    busy.batch_execute("SET default_transaction_read_only = on")
        .await
        .unwrap();
    busy.note(&busy.batch_execute("CREATE TABLE u (x int)").await.unwrap_err());
    assert!(
        pool.writable(Instant::now() + WITHIN).await.is_ok(),
        "the trial says that it writes"
    );
    drop(busy);
    drop((root, small));
}

/// A server that encrypts, but not as the one that knows the password, and asks for it in the clear.
#[tokio::test]
async fn case_s4_channel_binding_gives_no_password_in_the_clear() {
    use std::sync::Arc;
    use test_servers::Authority;
    use test_servers::rcgen::ExtendedKeyUsagePurpose;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

    let (cert, key) = Authority::new("anybody").issue("me", &["localhost"], ExtendedKeyUsagePurpose::ServerAuth);
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            CertificateDer::pem_slice_iter(cert.as_bytes())
                .map(Result::unwrap)
                .collect(),
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // Answers everything that it was told after the handshake.
    let heard = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut ask = [0; 8];
        stream.read_exact(&mut ask).await.unwrap();
        stream.write_all(b"S").await.unwrap();
        let mut tls = TlsAcceptor::from(Arc::new(config)).accept(stream).await.unwrap();
        let mut startup = vec![0; 4096];
        let read = tls.read(&mut startup).await.unwrap();
        startup.truncate(read);
        // AuthenticationCleartextPassword
        tls.write_all(&[b'R', 0, 0, 0, 8, 0, 0, 0, 3]).await.unwrap();
        tls.flush().await.unwrap();
        drop(tls.read_to_end(&mut startup).await);
        startup
    });
    let url = format!("postgres://me:hunter2@127.0.0.1:{port}/d?sslmode=require&channel_binding=require");
    let said = Connector::new(&Access::at(url))
        .unwrap()
        .connect_alone()
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(said.contains("channel binding"), "{said}");
    let heard = heard.await.unwrap();
    assert!(
        !heard.windows(7).any(|bytes| bytes == b"hunter2"),
        "the password in the clear"
    );
}
