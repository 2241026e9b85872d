//! `pg_dump` and `psql` of a shared server's own version: a schema is dumped, and put back later.
//!
//! Owns: finding the container behind a URL, running the programs in it. Does not own: what becomes of the schema between
//! the two.
//! On failure: a server that is in no container here has no programs at hand; one that fails ends the test.

use std::io::Write;
use std::process::{Command, Stdio};

/// The programs beside one server.
#[derive(Debug)]
pub struct Programs {
    container: String,
}

/// The container that listens on the server's port, which has the programs of its version.
fn container(url: &str) -> Option<String> {
    let port = url.rsplit_once(':')?.1.split_once('/')?.0;
    let out = Command::new("docker")
        .args(["ps", "--format", "{{.ID}} {{.Ports}}"])
        .output()
        .ok()?;
    String::from_utf8(out.stdout)
        .ok()?
        .lines()
        .filter_map(|line| line.split_once(' '))
        // Another container may have the same port on `[::]`.
        .find(|(_, ports)| {
            ["0.0.0.0", "127.0.0.1"]
                .iter()
                .any(|host| ports.contains(&format!("{host}:{port}->")))
        })
        .map(|(id, _)| id.to_owned())
}

impl Programs {
    /// Those of the server at this URL. None where it is in no container of this machine.
    #[must_use]
    pub fn of(url: &str) -> Option<Self> {
        Some(Self {
            container: container(url)?,
        })
    }

    /// A schema as SQL.
    ///
    /// # Panics
    /// When `pg_dump` fails.
    #[must_use]
    pub fn dump(&self, schema: &str) -> Vec<u8> {
        let out = Command::new("docker")
            .args(["exec", &self.container, "pg_dump", "-U", "postgres"])
            .args(["-h", "/var/run/postgresql", "-n", schema, "postgres"])
            .output()
            .unwrap_or_else(|error| panic!("docker: {error}"));
        // That a program is not there is said on standard output.
        let said = [&out.stderr, &out.stdout].map(|said| String::from_utf8_lossy(said).into_owned());
        assert!(out.status.success(), "pg_dump: {}: {}", out.status, said.concat());
        out.stdout
    }

    /// Puts back what was dumped, where there is no such schema any more.
    ///
    /// # Panics
    /// When it cannot be put back.
    pub fn restore(&self, dump: &[u8]) {
        let restored = Command::new("docker")
            .args(["exec", "-i", &self.container, "psql", "-q", "-v", "ON_ERROR_STOP=1"])
            .args(["-U", "postgres", "-h", "/var/run/postgresql", "postgres"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .and_then(|mut psql| {
                // Dropped at the end of the statement, so that psql sees the end of it.
                psql.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(dump))?;
                psql.wait()
            });
        assert!(
            restored.as_ref().is_ok_and(std::process::ExitStatus::success),
            "psql: {restored:?}"
        );
    }
}
