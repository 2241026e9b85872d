//! Encryption against a real server with a certificate of its own, and what its bounds end.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "tests read the clock")]

use pg_kit::{Access, Connector, Pooled};
use std::path::Path;
use std::time::Duration;
use test_servers::rcgen::ExtendedKeyUsagePurpose;
use test_servers::{Authority, OwnOptions, OwnPostgres, PASSWORD};
use tokio::time::Instant;
use tokio_postgres::{Client, SimpleQueryMessage};

const WITHIN: Duration = Duration::from_secs(30);

/// A server that speaks TLS alone, whose certificate is for `localhost` and not for 127.0.0.1; the role `badge` shows a
/// certificate instead of a password.
async fn server(authority: &Authority) -> OwnPostgres {
    let (cert, key) = authority.issue("the server", &["localhost"], ExtendedKeyUsagePurpose::ServerAuth);
    OwnPostgres::start_unready(&OwnOptions {
        settings: [
            "ssl=on",
            "ssl_cert_file=server.crt",
            "ssl_key_file=server.key",
            "ssl_ca_file=ca.crt",
        ]
        .map(str::to_owned)
        .to_vec(),
        files: vec![
            ("/server.crt".into(), cert),
            ("/server.key".into(), key),
            ("/ca.crt".into(), authority.pem()),
        ],
        prepare: "cp /server.crt /server.key /ca.crt \"$PGDATA\"; chmod 600 \"$PGDATA/server.key\"
            psql -U postgres -c 'CREATE ROLE badge LOGIN'
            printf 'local all all trust\\nhostssl all badge all cert\\nhostssl all all all scram-sha-256\\n' > \"$PGDATA/pg_hba.conf\"\n"
            .into(),
        ..OwnOptions::default()
    })
}

struct Place<'a> {
    server: &'a OwnPostgres,
    dir: &'a Path,
}

impl Place<'_> {
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        path.display().to_string()
    }

    fn access(&self, who: &str, host: &str, parameters: &str) -> Access {
        Access::at(format!(
            "postgres://{who}@{host}:{}/postgres?{parameters}",
            self.server.port()
        ))
    }

    async fn connect(&self, who: &str, host: &str, parameters: &str) -> Result<Client, String> {
        let connector = Connector::new(&self.access(who, host, parameters)).map_err(|error| error.to_string())?;
        let (client, _io) = connector.connect_alone().await.map_err(|error| error.to_string())?;
        Ok(client)
    }
}

async fn value(client: &Client, sql: &str) -> Option<String> {
    client
        .simple_query(sql)
        .await
        .unwrap()
        .iter()
        .find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
}

const ENCRYPTED: &str = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

#[tokio::test]
async fn each_sslmode_believes_what_it_says() {
    let (authority, other) = (Authority::new("ours"), Authority::new("somebody else's"));
    let server = server(&authority).await;
    let dir = tempfile::tempdir().unwrap();
    let place = Place {
        server: &server,
        dir: dir.path(),
    };
    let (ca, wrong) = (
        place.file("ca.pem", &authority.pem()),
        place.file("wrong.pem", &other.pem()),
    );
    let me = format!("postgres:{PASSWORD}");
    let from = Instant::now();
    while let Err(error) = place.connect(&me, "localhost", "sslmode=require").await {
        assert!(from.elapsed() < WITHIN * 3, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for (host, parameters, expected) in [
        ("localhost", format!("sslmode=verify-full&sslrootcert={ca}"), Ok(())),
        (
            "localhost",
            format!("sslmode=verify-full&sslrootcert={wrong}"),
            Err("UnknownIssuer"),
        ),
        (
            "localhost",
            format!("sslmode=verify-ca&sslrootcert={wrong}"),
            Err("UnknownIssuer"),
        ),
        (
            "127.0.0.1",
            format!("sslmode=verify-full&sslrootcert={ca}"),
            Err("not valid for name"),
        ),
        ("127.0.0.1", format!("sslmode=verify-ca&sslrootcert={ca}"), Ok(())),
        ("127.0.0.1", "sslmode=require".to_owned(), Ok(())),
        (
            "127.0.0.1",
            format!("sslmode=require&sslrootcert={wrong}"),
            Err("UnknownIssuer"),
        ),
        ("127.0.0.1", "sslmode=prefer".to_owned(), Ok(())),
        ("127.0.0.1", String::new(), Ok(())),
        ("127.0.0.1", "sslmode=disable".to_owned(), Err("no encryption")),
    ] {
        match (place.connect(&me, host, &parameters).await, expected) {
            (Ok(client), Ok(())) => {
                assert_eq!(
                    value(&client, ENCRYPTED).await.as_deref(),
                    Some("t"),
                    "{host} {parameters}"
                );
            }
            (Err(said), Err(part)) => assert!(said.contains(part), "{host} {parameters}: {said}"),
            (Ok(_), Err(part)) => panic!("{host} {parameters}: believed, and should say {part}"),
            (Err(said), Ok(())) => panic!("{host} {parameters}: {said}"),
        }
    }

    // Who we are, shown by a certificate instead of a password.
    let (cert, key) = authority.issue("badge", &[], ExtendedKeyUsagePurpose::ClientAuth);
    let (not_ours, its_key) = other.issue("badge", &[], ExtendedKeyUsagePurpose::ClientAuth);
    let identity = |name: &str, cert: &str, key: &str| {
        let (cert, key) = (
            place.file(&format!("{name}.crt"), cert),
            place.file(&format!("{name}.key"), key),
        );
        format!("sslmode=verify-full&sslrootcert={ca}&sslcert={cert}&sslkey={key}")
    };
    let badge = place
        .connect("badge", "localhost", &identity("badge", &cert, &key))
        .await
        .unwrap();
    assert_eq!(
        value(&badge, "SELECT client_dn FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
            .await
            .as_deref(),
        Some("/CN=badge")
    );
    let plain = format!("sslmode=verify-full&sslrootcert={ca}");
    assert!(
        place.connect("badge", "localhost", &plain).await.is_err(),
        "no certificate, no password"
    );
    let forged = identity("forged", &not_ours, &its_key);
    assert!(
        place.connect("badge", "localhost", &forged).await.is_err(),
        "of an authority the server does not know"
    );

    // A call that is given up is cancelled, over a connection like its own.
    let admin = place.connect(&me, "localhost", &plain).await.unwrap();
    let mut access = place.access(&me, "localhost", &format!("{plain}&application_name=given_up"));
    access.statement_within = Some(Duration::from_secs(600));
    let pool = Pooled::new(&access).unwrap();
    let busy = pool.get(Instant::now() + WITHIN).await.unwrap();
    let sleeping =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'given_up' AND query LIKE '%pg_sleep%'";
    tokio::select! {
        _ = busy.batch_execute("SELECT pg_sleep(300)") => panic!("it slept on"),
        () = counts(&admin, sleeping, "1") => {}
    }
    drop(busy);
    counts(&admin, sleeping, "0").await;
}

/// The authority's file is replaced while the server gets a certificate of another: new connections believe the new one
/// without a restart, a file that is none keeps the last one, and the reason of a refused handshake is told.
#[tokio::test]
async fn case_l35_new_connections_use_the_files_as_they_are_now() {
    let (old, new) = (Authority::new("the old one"), Authority::new("the new one"));
    let server = server(&old).await;
    let dir = tempfile::tempdir().unwrap();
    let place = Place {
        server: &server,
        dir: dir.path(),
    };
    let ca = place.file("ca.pem", &old.pem());
    let me = format!("postgres:{PASSWORD}");
    let connector = Connector::new(&place.access(&me, "localhost", &format!("sslmode=verify-full&sslrootcert={ca}")));
    let connector = connector.unwrap();
    let from = Instant::now();
    while let Err(error) = connector.connect_alone().await {
        assert!(from.elapsed() < WITHIN * 3, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (cert, key) = new.issue("the server", &["localhost"], ExtendedKeyUsagePurpose::ServerAuth);
    server.copy_in("/new.crt", &cert);
    server.copy_in("/new.key", &key);
    server.shell(
        "cat /new.crt > \"$PGDATA/server.crt\"; cat /new.key > \"$PGDATA/server.key\"; psql -U postgres -c 'SELECT pg_reload_conf()'",
        "",
    );
    let refused = async || {
        let from = Instant::now();
        loop {
            match connector.connect_alone().await {
                Err(error) => return pg_kit::problem(&error),
                Ok(_) => assert!(from.elapsed() < WITHIN, "still believed"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let said = refused().await;
    assert!(
        said.starts_with("refused: ") && said.contains("UnknownIssuer"),
        "{said}"
    );
    place.file("ca.pem", "no certificate\n");
    let said = refused().await;
    assert!(
        said.contains("UnknownIssuer"),
        "the last file that could be used counts: {said}"
    );
    place.file("ca.pem", &new.pem());
    connector.connect_alone().await.unwrap();
    place.file("ca.pem", "no certificate\n");
    connector.connect_alone().await.unwrap();
}

/// A key and a password that others can read are refused before anything is connected to.
#[tokio::test]
async fn case_s8_a_key_or_password_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let authority = Authority::new("ours");
    let (cert, key) = authority.issue("badge", &[], ExtendedKeyUsagePurpose::ClientAuth);
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str, mode: u32| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let (cert, key) = (put("cert", &cert, 0o644), put("key", &key, 0o644));
    let mut access = Access::at(format!(
        "postgres://badge@127.0.0.1:1/d?sslcert={}&sslkey={}",
        cert.display(),
        key.display()
    ));
    let said = Connector::new(&access).err().unwrap().to_string();
    assert!(said.contains("sslkey") && said.contains("0644"), "{said}");
    put("key", &std::fs::read_to_string(&key).unwrap(), 0o600);
    access.password = pg_kit::PasswordSource::File(put("password", "s3cret", 0o604));
    let said = Connector::new(&access).err().unwrap().to_string();
    assert!(said.contains("the password file") && said.contains("0604"), "{said}");
    put("password", "s3cret", 0o400);
    Connector::new(&access).unwrap();
}

/// A statement whose cancelling does not get through is ended by the server; what the URL says besides is kept.
#[tokio::test]
async fn a_statement_ends_by_itself() {
    let url = test_servers::postgres_or_skip().await;
    let mut access = Access::at(format!("{url}?options=-c%20work_mem%3D1234kB"));
    access.statement_within = Some(Duration::from_secs(2));
    let (client, _io) = Connector::new(&access).unwrap().connect_alone().await.unwrap();
    assert_eq!(value(&client, "SHOW work_mem").await.as_deref(), Some("1234kB"));
    let ended = client.batch_execute("SELECT pg_sleep(300)").await.unwrap_err();
    assert_eq!(ended.code().map(|code| code.code()), Some("57014"));
    assert_eq!(pg_kit::fate(&ended), pg_kit::Fate::Refused);
    // The URL's own word comes after ours.
    access.url = format!("{url}?options=-c%20statement_timeout%3D5min");
    let (client, _io) = Connector::new(&access).unwrap().connect_alone().await.unwrap();
    assert_eq!(value(&client, "SHOW statement_timeout").await.as_deref(), Some("5min"));
}

/// Waits until a statement answers this.
async fn counts(client: &Client, sql: &str, wanted: &str) {
    let from = Instant::now();
    while value(client, sql).await.as_deref() != Some(wanted) {
        assert!(from.elapsed() < WITHIN, "never {wanted}: {sql}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
