//! A PostgreSQL server of the test's own, for tests that hurt it.
//!
//! Owns: a container that is stopped, paused, killed and started again at one port, with its data; the files and settings
//! it begins with; its removal. What it stands on is the `docker` program alone, so that a test without a runtime can use
//! it too.
//! On failure: a panic that says what Docker said.

use crate::{LABEL, PASSWORD, connect, in_ci};
use host_kit::Reserved;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a server may need to answer.
const READY_WITHIN: Duration = Duration::from_secs(90);

/// What a server begins with.
#[derive(Clone, Debug, Default)]
pub struct OwnOptions {
    /// Settings, as `name=value`.
    pub settings: Vec<String>,
    /// Files by their path in the container, readable by everybody.
    pub files: Vec<(String, String)>,
    /// A shell script that runs once as the server's user when the data has been made, before the real start.
    pub prepare: String,
    /// Volumes, networks and the like, as `docker create` takes them.
    pub docker: Vec<String>,
    /// A shell script to run as the server's user instead of making a new cluster; it ends with `exec postgres …`.
    pub instead: Option<String>,
}

/// A server in a container of its own; removed with its data when it is dropped.
#[derive(Debug)]
pub struct OwnPostgres {
    /// The container's name, which is its host's name in a network too.
    pub name: String,
    reserved: Reserved,
}

/// Runs `docker`.
///
/// # Panics
/// When it fails.
pub fn docker(args: &[&str]) -> String {
    let out = try_docker(args);
    assert!(
        out.status.success(),
        "docker {args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

fn try_docker(args: &[&str]) -> Output {
    Command::new("docker")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("docker: {error}"))
}

/// A name that nothing else has.
#[must_use]
pub fn fresh_name(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!(
        "dlock-test-{what}-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

/// The image of the servers, where Docker and the image are there.
fn image() -> Result<String, String> {
    let images = std::env::var("DLOCK_POSTGRES_IMAGE").map_or_else(
        |_| vec!["dlock-offline/postgres:16".to_owned(), "postgres:16".to_owned()],
        |image| vec![image],
    );
    let there = |image: &String| {
        Command::new("docker")
            .args(["image", "inspect", image])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    images
        .into_iter()
        .find(there)
        .ok_or_else(|| "no Docker, or no image of PostgreSQL in it".to_owned())
}

impl OwnPostgres {
    /// Starts one and waits until it answers. Ends the process, after saying so, where there is no Docker and that is no
    /// failure.
    ///
    /// # Panics
    /// With `CI=true` where there is none, and when it does not start.
    pub async fn start(options: &OwnOptions) -> Self {
        let server = Self::start_unready(options);
        server.ready().await;
        server
    }

    /// As [`OwnPostgres::start`], without waiting until it answers.
    ///
    /// # Panics
    /// As [`OwnPostgres::start`].
    #[must_use]
    pub fn start_unready(options: &OwnOptions) -> Self {
        let image = image().unwrap_or_else(|why| {
            assert!(
                !in_ci(),
                "no server of this test's own: {why}; start Docker and run scripts/test-images"
            );
            eprintln!("\n*** SKIPPED: no server of this test's own: {why}; run scripts/test-images ***\n");
            std::process::exit(0);
        });
        // Docker itself may give the port to another container.
        for _ in 0..20 {
            let server = Self {
                name: fresh_name("pg"),
                reserved: crate::reserved(),
            };
            server.create(&image, options);
            if try_docker(&["start", &server.name]).status.success() {
                return server;
            }
        }
        panic!("no container would start");
    }

    fn create(&self, image: &str, options: &OwnOptions) {
        let label = format!("{}={}", LABEL.0, LABEL.1);
        let publish = format!("{}:5432", self.reserved.address());
        let password = format!("POSTGRES_PASSWORD={PASSWORD}");
        let client = format!("PGPASSWORD={PASSWORD}");
        let mut args = vec![
            "create",
            "--name",
            &self.name,
            "--label",
            &label,
            "--publish",
            &publish,
            "--env",
            &password,
            "--env",
            &client,
            "--env",
            "POSTGRES_INITDB_ARGS=--no-sync --wal-segsize=1",
        ];
        args.extend(options.docker.iter().map(String::as_str));
        args.push(image);
        let mut command = Vec::new();
        if let Some(script) = &options.instead {
            let script = script.replace('\'', "'\\''");
            command.extend([
                "bash".to_owned(),
                "-c".to_owned(),
                format!(
                    "chown postgres:postgres \"$PGDATA\" && chmod 700 \"$PGDATA\" && exec setpriv --reuid=postgres \
                     --regid=postgres --init-groups bash -euc '{script}'"
                ),
            ]);
        } else {
            command.push("postgres".to_owned());
            for setting in ["max_connections=200", "shared_buffers=64MB"] {
                command.extend(["-c".to_owned(), setting.to_owned()]);
            }
            for setting in &options.settings {
                command.extend(["-c".to_owned(), setting.clone()]);
            }
        }
        args.extend(command.iter().map(String::as_str));
        docker(&args);
        for (path, text) in &options.files {
            self.copy_in(path, text);
        }
        if !options.prepare.is_empty() {
            self.copy_in("/docker-entrypoint-initdb.d/prepare.sh", &options.prepare);
        }
    }

    /// Puts a file into the container, which need not run. Root owns it, everybody may read it.
    ///
    /// # Panics
    /// When Docker does not take it.
    pub fn copy_in(&self, path: &str, text: &str) {
        let file = std::env::temp_dir().join(fresh_name("file"));
        std::fs::write(&file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        docker(&["cp", &file.display().to_string(), &format!("{}:{path}", self.name)]);
        drop(std::fs::remove_file(file));
    }

    /// Its port at 127.0.0.1, the same after each start.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.reserved.port()
    }

    /// Its URL, of a user who may do everything.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres:{PASSWORD}@{}/postgres", self.reserved.address())
    }

    /// Waits until it answers.
    ///
    /// # Panics
    /// When it does not, with the end of its log.
    pub async fn ready(&self) {
        let from = Instant::now();
        loop {
            match connect(&self.url()).await {
                Ok(()) => return,
                Err(error) => assert!(
                    from.elapsed() < READY_WITHIN,
                    "{} does not answer: {error}\n{}",
                    self.name,
                    String::from_utf8_lossy(&try_docker(&["logs", "--tail", "30", &self.name]).stderr)
                ),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Sends the server a signal: `INT` shuts down fast, `QUIT` at once without a checkpoint, `KILL` is a crash; `STOP`
    /// and `CONT` reach the first process alone.
    ///
    /// # Panics
    /// When Docker refuses.
    pub async fn signal(&self, signal: &str) {
        self.aside(&["kill", "--signal", signal]).await;
    }

    /// Waits until the container has ended.
    ///
    /// # Panics
    /// When Docker refuses.
    pub async fn ended(&self) {
        self.aside(&["wait"]).await;
    }

    /// Stands still, with every process of it: connections stay, nothing answers.
    ///
    /// # Panics
    /// When Docker refuses.
    pub async fn pause(&self) {
        self.aside(&["pause"]).await;
    }

    /// Goes on after [`OwnPostgres::pause`].
    ///
    /// # Panics
    /// When Docker refuses.
    pub async fn unpause(&self) {
        self.aside(&["unpause"]).await;
    }

    /// Starts again what has ended, or ends yet, and waits until it answers.
    ///
    /// # Panics
    /// When it does not.
    pub async fn start_again(&self) {
        for _ in 0..20 {
            self.aside(&["start"]).await;
            for _ in 0..30 {
                if connect(&self.url()).await.is_ok() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        self.ready().await;
    }

    /// `docker …` on this container, off the runtime's thread.
    async fn aside(&self, args: &[&str]) -> String {
        let mut args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        args.push(self.name.clone());
        tokio::task::spawn_blocking(move || docker(&args.iter().map(String::as_str).collect::<Vec<_>>()))
            .await
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs a shell script inside, as the server's user, with `input`; answers what it printed.
    ///
    /// # Panics
    /// When it fails.
    pub fn shell(&self, script: &str, input: &str) -> String {
        let mut child = Command::new("docker")
            .args(["exec", "-i", "-u", "postgres", &self.name, "bash", "-euc", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("docker: {error}"));
        if let Some(mut stdin) = child.stdin.take() {
            // One that does not read its input closes it.
            drop(stdin.write_all(input.as_bytes()));
        }
        let out = child.wait_with_output().unwrap_or_else(|error| panic!("{error}"));
        assert!(
            out.status.success(),
            "{script}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        String::from_utf8_lossy(&out.stdout).into_owned()
    }
}

impl Drop for OwnPostgres {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let out = try_docker(&["logs", "--tail", "40", &self.name]);
            eprintln!("the log of {}:\n{}", self.name, String::from_utf8_lossy(&out.stderr));
        }
        try_docker(&["rm", "--force", "--volumes", &self.name]);
    }
}

/// A network of containers; removed when it is dropped, which has to be after its containers.
#[derive(Debug)]
pub struct OwnNetwork(pub String);

impl OwnNetwork {
    /// Makes one.
    ///
    /// # Panics
    /// When Docker refuses.
    #[must_use]
    pub fn new() -> Self {
        let name = fresh_name("net");
        docker(&[
            "network",
            "create",
            "--label",
            &format!("{}={}", LABEL.0, LABEL.1),
            &name,
        ]);
        Self(name)
    }
}

impl Default for OwnNetwork {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for OwnNetwork {
    fn drop(&mut self) {
        try_docker(&["network", "rm", &self.0]);
    }
}

/// A volume; removed when it is dropped, which has to be after its containers.
#[derive(Debug)]
pub struct OwnVolume(pub String);

impl OwnVolume {
    /// Makes one, with options as `docker volume create` takes them.
    ///
    /// # Panics
    /// When Docker refuses.
    #[must_use]
    pub fn new(options: &[&str]) -> Self {
        let name = fresh_name("volume");
        let label = format!("{}={}", LABEL.0, LABEL.1);
        let mut args = vec!["volume", "create", "--label", &label];
        args.extend(options);
        args.push(&name);
        docker(&args);
        Self(name)
    }
}

impl Drop for OwnVolume {
    fn drop(&mut self) {
        try_docker(&["volume", "rm", "--force", &self.0]);
    }
}
