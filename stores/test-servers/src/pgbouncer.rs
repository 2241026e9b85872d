//! A pooler before a PostgreSQL server: the `pgbouncer` of this machine, in transaction mode.

use crate::in_ci;
use crate::own::fresh_name;
use crate::reserved;
use host_kit::Reserved;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A pooler on a port of its own; ended when it is dropped.
#[derive(Debug)]
pub struct PgBouncer {
    child: Child,
    dir: PathBuf,
    reserved: Reserved,
    path: String,
}

fn program() -> Option<&'static str> {
    ["pgbouncer", "/usr/sbin/pgbouncer"].into_iter().find(|program| {
        Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })
}

impl PgBouncer {
    /// Starts one before the server at `url`. Ends the process, after saying so, where the program is missing and that is
    /// no failure.
    ///
    /// # Panics
    /// With `CI=true` where it is missing, and when it does not start.
    #[must_use]
    pub fn before(url: &str) -> Self {
        let Some(program) = program() else {
            let wanted = "install the package pgbouncer";
            assert!(!in_ci(), "no pgbouncer for this test: {wanted}");
            eprintln!("\n*** SKIPPED: no pgbouncer for this test: {wanted} ***\n");
            std::process::exit(0);
        };
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let (who, place) = rest.rsplit_once('@').unwrap_or(("postgres", rest));
        let (user, password) = who.split_once(':').unwrap_or((who, ""));
        let (host, database) = place.split_once('/').unwrap_or((place, "postgres"));
        let (host, server_port) = host.rsplit_once(':').unwrap_or((host, "5432"));
        let database = database.split('?').next().unwrap_or(database);
        let dir = std::env::temp_dir().join(fresh_name("pgbouncer"));
        let reserved = reserved();
        let port = reserved.port();
        // Few connections for many clients, so that each is really shared.
        let config = format!(
            "[databases]\n{database} = host={host} port={server_port} user={user} password={password}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = 8\nmax_client_conn = 500\nserver_round_robin = 1\n\
             ignore_startup_parameters = extra_float_digits\nlog_connections = 0\nlog_disconnections = 0\n"
        );
        let file = dir.join("pgbouncer.ini");
        let made = std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(&file, config));
        made.unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        let mut command = Command::new(program);
        // It refuses to run as root; Debian's package brings this user along.
        if std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
            command.args(["-u", "postgres"]);
        }
        let child = command
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("pgbouncer: {error}"));
        let path = format!("{user}@127.0.0.1:{port}/{database}");
        let mut pooler = Self {
            child,
            dir,
            reserved,
            path,
        };
        pooler.ready();
        pooler
    }

    fn ready(&mut self) {
        let from = Instant::now();
        while TcpStream::connect(self.reserved.address()).is_err() {
            let ended = self.child.try_wait().ok().flatten();
            assert!(
                ended.is_none() && from.elapsed() < Duration::from_secs(30),
                "pgbouncer does not listen: {ended:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The server's URL through the pooler.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{}", self.path)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_dir_all(&self.dir));
    }
}
