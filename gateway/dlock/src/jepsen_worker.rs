//! `dlock jepsen-worker`: one process of Jepsen's lock workload, started by the harness.
//!
//! ```text
//! acquire → read the register under the token → [stopped here by the harness] → write value + 1 → release → again
//! ```
//! It never asks whether it still holds the lock: only a fence stands between its late write and the register. What it
//! did is written into its history, the leases it was promised too.

use crate::api::LockServerArgs;
use crate::config::ConfigArgs;
use crate::exit::{self, Failure, INTERNAL};
use harness::history::Recorder;
use host_kit::Host;
use lock_api::{LockError, LockKey, Owner};
use lock_client::{ClientOptions, HeldLock, LeaseWatch, LockClient};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// What is locked.
const KEY: &str = "jepsen:register";
/// How long one acquire waits for its turn before it begins anew.
const PATIENCE: Duration = Duration::from_secs(20);

/// Increment a register under a lock (started by `dlock scenario jepsen`).
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    servers: LockServerArgs,
    /// Where the register listens.
    #[arg(long, value_name = "HOST:PORT")]
    register: String,
    /// Its name.
    #[arg(long)]
    owner: String,
    /// How many increments must be acknowledged before it ends.
    #[arg(long)]
    increments: u64,
    /// Where it writes what it saw.
    #[arg(long, value_name = "FILE")]
    history: PathBuf,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs it.
pub fn run(args: Args) -> crate::Outcome {
    crate::block_on(work(args))
}

async fn work(args: Args) -> crate::Outcome {
    let failed = |error: &dyn std::fmt::Display| Failure::new(INTERNAL, error.to_string());
    let settings = args.config.load(&[])?;
    let recorder =
        Recorder::create(&args.history, &args.owner, &Host::system().clock).map_err(|error| failed(&error))?;
    let leases = recorder.clone();
    let options = ClientOptions::configured(
        Owner::new(args.owner.as_str())?,
        |name| settings.optional_duration(name),
        u32::try_from(settings.integer("lock.acquire.max-attempts")).unwrap_or(u32::MAX),
    )
    .lease_watch(LeaseWatch::new(move |seen| {
        leases.lease(seen.key.as_str(), seen.token.get(), seen.sent, seen.until);
    }));
    let key = LockKey::new(KEY)?;
    let client = LockClient::connect(&args.servers.urls, options).await?;
    let mut register = Register::connect(&args).await.map_err(|error| failed(&error))?;
    let mut left = args.increments;
    while left > 0 {
        let seen = recorder.invoke("acquire", Some(KEY), None, None);
        let held = match client.acquire_within(&key, PATIENCE).await {
            Ok(held) => {
                seen.ok(Some(held.token().get()));
                held
            }
            Err(LockError::HeldByOther(_)) => {
                seen.refused("HELD_BY_OTHER", None);
                continue;
            }
            Err(LockError::ContentionExceeded { .. }) => {
                seen.refused("CONTENTION_EXCEEDED", None);
                continue;
            }
            Err(LockError::Delayed { .. }) => {
                seen.refused("LOCK_DELAYED", None);
                continue;
            }
            Err(error) => {
                seen.unknown(&error.to_string());
                continue;
            }
        };
        let token = held.token().get();
        if register
            .increment(&recorder, token)
            .await
            .map_err(|error| failed(&error))?
        {
            left -= 1;
        }
        release(&recorder, held).await;
    }
    client.close().await?;
    Ok(exit::OK)
}

async fn release(recorder: &Recorder, held: HeldLock) {
    let seen = recorder.invoke("release", Some(KEY), Some(held.token().get()), None);
    match held.release().await {
        Ok(()) => seen.ok(None),
        Err(LockError::Lost(lost)) => seen.refused(&format!("LOCK_LOST {}", lost.reason.as_str()), None),
        Err(error) => seen.unknown(&error.to_string()),
    }
}

/// The way to the register.
struct Register {
    owner: String,
    stream: BufReader<TcpStream>,
}

impl Register {
    async fn connect(args: &Args) -> std::io::Result<Self> {
        Ok(Self {
            owner: args.owner.clone(),
            stream: BufReader::new(TcpStream::connect(&args.register).await?),
        })
    }

    async fn ask(&mut self, question: Value) -> std::io::Result<Value> {
        self.stream.write_all(format!("{question}\n").as_bytes()).await?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).await?;
        Ok(serde_json::from_str(&answer)?)
    }

    /// Reads and writes back one more; whether it was taken.
    async fn increment(&mut self, recorder: &Recorder, token: u64) -> std::io::Result<bool> {
        let seen = recorder.invoke("read", None, Some(token), None);
        let worker = self.owner.clone();
        let answer = self
            .ask(json!({ "op": "read", "worker": worker, "token": token }))
            .await?;
        let value = answer["value"]
            .as_u64()
            .ok_or_else(|| std::io::Error::other("the register did not say its value"))?;
        seen.ok(None);
        let seen = recorder.invoke("write", None, Some(token), None);
        let question = json!({ "op": "write", "worker": worker, "token": token, "value": value + 1 });
        let written = self.ask(question).await?["written"] == true;
        if written {
            seen.ok(None);
        } else {
            seen.refused("STALE", None);
        }
        Ok(written)
    }
}
