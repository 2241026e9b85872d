//! `dlock fence-kit-worker`: one writer of `dlock scenario fence-kit`, started by the harness, until it is killed.
//!
//! ```text
//! acquire → [dlock_fence] read … write the row under the token → POST to the service under the token → release → again
//! ```
//! It never asks whether it still holds the lock: only the kit stands between its late writes and what they are to.
//! What it was answered it prints, one word of it a line.

use crate::api::LockServerArgs;
use crate::config::ConfigArgs;
use harness::scenario::fence_kit::key;
use host_kit::{Clock, Host, Random};
use lock_api::{FencingToken, LockKey, Owner};
use lock_client::{ClientOptions, LockClient};
use std::time::Duration;
use tokio_postgres::{Client, NoTls};

/// How long one acquire waits for its turn before it looks for another key.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest pause between two steps, in which it may be stopped.
const THINKS: Duration = Duration::from_millis(60);

/// Write to a table and a service under a lock (started by `dlock scenario fence-kit`).
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    servers: LockServerArgs,
    /// Its name.
    #[arg(long)]
    owner: String,
    /// The database with the table.
    #[arg(long, value_name = "URL")]
    database: String,
    /// Where the service, or the proxy before it, listens.
    #[arg(long, value_name = "HOST:PORT")]
    service: String,
    /// How many keys there are.
    #[arg(long)]
    keys: u64,
    /// Whether the table is fenced: then each transaction shows its token first.
    #[arg(long, value_parser = ["on", "off"])]
    fence: String,
    /// Its choices.
    #[arg(long)]
    seed: u64,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs it.
pub fn run(args: Args) -> crate::Outcome {
    crate::block_on(work(args))
}

async fn work(args: Args) -> crate::Outcome {
    let settings = args.config.load(&[])?;
    let clock = Host::system().clock;
    let random = Random::seeded(args.seed);
    let options = ClientOptions::configured(
        Owner::new(args.owner.as_str())?,
        |name| settings.optional_duration(name),
        u32::try_from(settings.integer("lock.acquire.max-attempts")).unwrap_or(u32::MAX),
    );
    let client = LockClient::connect(&args.servers.urls, options).await?;
    let mut database = None;
    let http = awc::Client::default();
    loop {
        let name = key(random.below(args.keys));
        let held = match client.acquire_within(&LockKey::new(name.as_str())?, PATIENCE).await {
            Ok(held) => held,
            Err(error) => {
                println!("acquire {}", error.fate());
                clock.sleep(random.up_to(THINKS)).await;
                continue;
            }
        };
        for _ in 0..=random.below(3) {
            let think = Thinking {
                clock: &clock,
                random: &random,
            };
            let told = match connected(&mut database, &args.database).await {
                Ok(database) => write(database, &name, held.token(), args.fence == "on", &think).await,
                Err(error) => Err(error),
            };
            let told = told.map_or_else(
                |error| error.code().map_or("unknown", |code| code.code()).to_owned(),
                |()| "written".to_owned(),
            );
            println!("table {told}");
            think.a_while().await;
            println!(
                "service {}",
                post(&http, &args.service, &name, held.token(), &random).await
            );
        }
        drop(held.release().await);
    }
}

/// Pauses between steps: where a holder is when it is stopped.
struct Thinking<'a> {
    clock: &'a Clock,
    random: &'a Random,
}

impl Thinking<'_> {
    async fn a_while(&self) {
        self.clock.sleep(self.random.up_to(THINKS)).await;
    }
}

/// The connection to the database, made anew where it is no more.
async fn connected<'a>(database: &'a mut Option<Client>, url: &str) -> Result<&'a mut Client, tokio_postgres::Error> {
    let live = match database.take().filter(|client| !client.is_closed()) {
        Some(live) => live,
        None => {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
            actix_rt::spawn(connection);
            client
        }
    };
    Ok(database.insert(live))
}

async fn write(
    database: &mut Client,
    name: &str,
    token: FencingToken,
    fenced: bool,
    think: &Thinking<'_>,
) -> Result<(), tokio_postgres::Error> {
    let token = i64::try_from(token.get()).unwrap_or(i64::MAX);
    think.a_while().await;
    let transaction = database.transaction().await?;
    // One that was stopped in its transaction holds the row: the others are not to wait for it for ever.
    let bound = "SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL lock_timeout = '5s'";
    transaction.batch_execute(bound).await?;
    if fenced {
        transaction
            .execute("SELECT dlock_fence($1, $2)", &[&name, &token])
            .await?;
    }
    let read = "SELECT n FROM account WHERE id = $1";
    let n: i64 = transaction.query_one(read, &[&name]).await?.get(0);
    let write = "UPDATE account SET n = $2, token = $3 WHERE id = $1";
    transaction.execute(write, &[&name, &(n + 1), &token]).await?;
    transaction.commit().await
}

/// One request: what it was answered, in a word. Some are given up before their answer; some the service holds for long.
async fn post(http: &awc::Client, service: &str, name: &str, token: FencingToken, random: &Random) -> String {
    let hold = if random.chance(0.05) { 450 } else { random.below(25) };
    let patience = if random.chance(0.1) {
        random.up_to(Duration::from_millis(20))
    } else {
        Duration::from_secs(5)
    };
    let asked = http
        .post(format!("http://{service}/{name}?hold={hold}"))
        .insert_header(("X-Fencing-Token", token.to_string()))
        .timeout(Duration::from_secs(10))
        .send_body("x");
    let Ok(answer) = tokio::time::timeout(patience, asked).await else {
        return "given up".to_owned();
    };
    let Ok(mut answer) = answer else {
        return "not reached".to_owned();
    };
    let status = answer.status();
    let body = answer.body().await.unwrap_or_default();
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    problem["code"]
        .as_str()
        .map_or_else(|| status.as_u16().to_string(), str::to_owned)
}
