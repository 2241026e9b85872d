//! The fence for somebody's own side effect: its SQL, and what an operator of a fencing proxy sees and does.

use crate::api::{KeyArgs, OperatorArgs, lock_key, url};
use crate::exit::{Failure, OK, REFUSED};
use crate::fence_proxy::sqlite;
use crate::output::{self, Column, Format, OutputArgs};
use fence_kit::proxy::{ClearAnswer, ClearBody, MarkAnswer, OpenAnswer, OpenRow};
use fence_kit::{Keeper, KeeperOptions, SqliteMarks, sql};
use host_kit::Host;
use http_client::path_segment;
use http_contract::{PAGE_LIMIT_MAX, Problem, header};
use lock_api::LockKey;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::sync::Arc;

/// The fence for your own side effect.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Prints the migration that fences tables of a PostgreSQL database, for `psql -1 -f -` or your own migrations.
    Sql {
        /// The one that takes it away again.
        #[arg(long)]
        uninstall: bool,
    },
    /// The requests that a fencing proxy passed on and has no answer to.
    Open {
        /// Of this key alone. One that begins with a dash is given as --key=KEY.
        #[arg(value_name = "KEY", value_parser = lock_key, conflicts_with = "named_key")]
        key: Option<LockKey>,
        /// The same, whatever the key begins with: `--key=-x`.
        #[arg(long = "key", id = "named_key", value_name = "KEY", value_parser = lock_key, allow_hyphen_values = true)]
        named: Option<LockKey>,
        /// The store's file, `sqlite:PATH`, of a proxy that does not run.
        #[arg(long, value_name = "URL", value_parser = sqlite, conflicts_with = "admin")]
        store: Option<String>,
        #[command(flatten)]
        proxy: ProxyArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// A key's mark at a fencing proxy.
    Mark {
        #[command(flatten)]
        key: KeyArgs,
        #[command(flatten)]
        proxy: ProxyArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Declares the requests of a key that have no answer to be without effect from now on.
    ///
    /// First find out at the service what became of each (`dlock fence open KEY`): a request that is still executed
    /// afterwards is a stale write that nobody stops. Refused while one of them is on its way. Recorded with name and reason.
    /// Exit code 1 where one was not found.
    Clear {
        #[command(flatten)]
        key: KeyArgs,
        /// Only these of them, by the ids that `dlock fence open` shows; may be repeated.
        #[arg(long = "id", value_name = "ID")]
        ids: Vec<String>,
        #[command(flatten)]
        by: OperatorArgs,
        /// The store's file, `sqlite:PATH`, of a proxy that does not run.
        #[arg(long, value_name = "URL", value_parser = sqlite, conflicts_with = "admin")]
        store: Option<String>,
        #[command(flatten)]
        proxy: ProxyArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// Where the proxy is.
#[derive(clap::Args)]
struct ProxyArgs {
    /// The proxy's admin address.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7408", value_parser = url)]
    admin: String,
}

/// What is shown of a request without an answer.
const OPEN: [Column; 7] = [
    ("KEY", "key"),
    ("TOKEN", "token"),
    ("ID", "id"),
    ("WHAT", "what"),
    ("SINCE", "begun_at"),
    ("IN_FLIGHT", "in_flight"),
    ("CAUSE", "cause"),
];

pub fn run(args: Args) -> crate::Outcome {
    crate::block_on(async {
        match args.verb {
            Verb::Sql { uninstall } => {
                print!("{}", if uninstall { sql::UNINSTALL } else { sql::INSTALL });
            }
            Verb::Open {
                key,
                named,
                store: Some(path),
                output,
                ..
            } => {
                let key = key.or(named);
                let keeper = keeper_of(&path).await?;
                let open = keeper.open_requests(key, PAGE_LIMIT_MAX).await;
                let open = open.map_err(|error| Failure::new(crate::exit::UNAVAILABLE, error.to_string()))?;
                let items = open.into_iter().map(|(open, _)| OpenRow::from(open)).collect();
                output::list(output.output, &OpenAnswer { items }, &OPEN)?;
            }
            Verb::Open {
                key,
                named,
                proxy,
                output,
                ..
            } => {
                let query = key
                    .or(named)
                    .map(|key| format!("?key={}", path_segment(key.as_str())))
                    .unwrap_or_default();
                let answer: OpenAnswer = get(&proxy, &format!("/v1/fence/open{query}")).await?;
                output::list(output.output, &answer, &OPEN)?;
            }
            Verb::Mark { key, proxy, output } => {
                let key = key.get()?;
                let path = format!("/v1/fence/mark?key={}", path_segment(key.as_str()));
                let answer: MarkAnswer = get(&proxy, &path).await?;
                output::object(output.output, &answer)?;
            }
            Verb::Clear {
                key,
                mut ids,
                by,
                store,
                proxy,
                output,
            } => {
                let key = key.get()?;
                ids.sort();
                ids.dedup();
                let ids = (!ids.is_empty()).then_some(ids);
                let asked = ids.as_ref().map_or(1, Vec::len);
                let none_such = |cleared: usize| {
                    let (cleared, key) = (cleared.min(asked), gateway_kit::shown(key.as_str()).into_owned());
                    let missing = asked - cleared;
                    if missing == 0 {
                        return Ok(OK);
                    }
                    let what = match (asked, cleared) {
                        (_, 0) => "no such request".to_owned(),
                        (asked, _) => format!("{missing} of {asked} requests"),
                    };
                    Err(Failure::new(REFUSED, format!("not found: {what} of {key} was open")))
                };
                if let Some(path) = store {
                    let cleared = in_file(&path, &key, ids.as_deref(), &by).await?;
                    match output.output {
                        Format::Json => output::object(Format::Json, &cleared)?,
                        Format::Table => println!("cleared {}", cleared.cleared.len()),
                    }
                    return none_such(cleared.cleared.len());
                } else {
                    let body = ClearBody {
                        key: key.as_str().to_owned(),
                        reason: by.reason,
                        ids,
                    };
                    let client = http_client::client(&http_client::ClientOptions::default());
                    let request = client
                        .post(format!("{}/v1/fence/clear", proxy.admin))
                        .insert_header((header::OPERATOR, by.operator))
                        .send_json(&body);
                    let answer: ClearAnswer = read(&proxy, request.await).await?;
                    output::object(output.output, &answer)?;
                    return none_such(answer.cleared.len());
                }
            }
        }
        Ok(OK)
    })
}

/// The file has one owner at a time: a proxy that runs keeps this out, and its operator talks to it instead.
async fn keeper_of(path: &str) -> Result<Keeper, Failure> {
    let unavailable = |error: &dyn std::fmt::Display| Failure::new(crate::exit::UNAVAILABLE, error.to_string());
    if !Path::new(path).exists() {
        return Err(Failure::usage(format!("{path}: there is no such file")));
    }
    let host = Host::system();
    let marks = SqliteMarks::open(Path::new(path), &host).map_err(|error| unavailable(&error))?;
    Keeper::new(Arc::new(marks), &host, KeeperOptions::default())
        .await
        .map_err(|error| unavailable(&error))
}

async fn in_file(path: &str, key: &LockKey, ids: Option<&[String]>, by: &OperatorArgs) -> Result<ClearAnswer, Failure> {
    match keeper_of(path).await?.clear(key, ids, &by.operator, &by.reason).await {
        Ok(cleared) => Ok(ClearAnswer {
            cleared: cleared.into_iter().map(OpenRow::from).collect(),
        }),
        Err(error) => Err(Failure::new(REFUSED, format!("nothing was cleared: {error:?}"))),
    }
}

async fn get<T: DeserializeOwned>(proxy: &ProxyArgs, path: &str) -> Result<T, Failure> {
    let client = http_client::client(&http_client::ClientOptions::default());
    let answer = client.get(format!("{}{path}", proxy.admin)).send().await;
    read(proxy, answer).await
}

async fn read<T: DeserializeOwned, S>(
    proxy: &ProxyArgs,
    answer: Result<awc::ClientResponse<S>, awc::error::SendRequestError>,
) -> Result<T, Failure>
where
    S: futures_util::Stream<Item = Result<actix_web::web::Bytes, awc::error::PayloadError>> + Unpin,
{
    let garbled =
        |error: &dyn std::fmt::Display| Failure::new(crate::exit::UNAVAILABLE, format!("{}: {error}", proxy.admin));
    let next_step = "is the proxy running? Its admin address is given with --admin; without it, --store reads its file";
    let mut answer = answer.map_err(|error| garbled(&error).with_next_step(next_step))?;
    let body = answer.body().limit(16 << 20).await.map_err(|error| garbled(&error))?;
    if answer.status().is_success() {
        return serde_json::from_slice(&body).map_err(|error| garbled(&error));
    }
    match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) => Err(http_client::CallError::Problem(Box::new(problem)).into()),
        Err(error) => Err(garbled(&error)),
    }
}
