//! The fence for somebody's own side effect: its SQL, and what an operator of a fencing proxy sees and does.

use crate::api::{OperatorArgs, url};
use crate::exit::{Failure, OK, REFUSED};
use crate::fence_proxy::{lock_key, sqlite};
use crate::output::{self, OutputArgs};
use fence_kit::proxy::{ClearAnswer, ClearBody, MarkAnswer, OpenAnswer};
use fence_kit::{Keeper, KeeperOptions, SqliteMarks, sql};
use host_kit::Host;
use http_client::path_segment;
use http_contract::{Problem, header};
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
        /// Of this key alone.
        #[arg(value_parser = lock_key)]
        key: Option<LockKey>,
        #[command(flatten)]
        proxy: ProxyArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// A key's mark at a fencing proxy.
    Mark {
        #[arg(value_parser = lock_key)]
        key: LockKey,
        #[command(flatten)]
        proxy: ProxyArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Declares the requests of a key that have no answer to be without effect from now on.
    ///
    /// First find out at the service what became of each (`dlock fence open KEY`): a request that is still executed
    /// afterwards is a stale write that nobody stops. Refused while one of them is on its way. Recorded with name and reason.
    Clear {
        #[arg(value_parser = lock_key)]
        key: LockKey,
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

pub fn run(args: Args) -> crate::Outcome {
    crate::block_on(async {
        match args.verb {
            Verb::Sql { uninstall } => {
                print!("{}", if uninstall { sql::UNINSTALL } else { sql::INSTALL });
            }
            Verb::Open { key, proxy, output } => {
                let query = key
                    .map(|key| format!("?key={}", path_segment(key.as_str())))
                    .unwrap_or_default();
                let answer: OpenAnswer = get(&proxy, &format!("/v1/fence/open{query}")).await?;
                output::object(output.output, &answer)?;
            }
            Verb::Mark { key, proxy, output } => {
                let path = format!("/v1/fence/mark?key={}", path_segment(key.as_str()));
                let answer: MarkAnswer = get(&proxy, &path).await?;
                output::object(output.output, &answer)?;
            }
            Verb::Clear {
                key,
                ids,
                by,
                store,
                proxy,
                output,
            } => {
                let ids = (!ids.is_empty()).then_some(ids);
                if let Some(path) = store {
                    let cleared = in_file(&path, &key, ids.as_deref(), &by).await?;
                    println!("cleared {cleared}");
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
                }
            }
        }
        Ok(OK)
    })
}

/// The file has one owner at a time: a proxy that runs keeps this out, and its operator talks to it instead.
async fn in_file(path: &str, key: &LockKey, ids: Option<&[String]>, by: &OperatorArgs) -> Result<usize, Failure> {
    let unavailable = |error: &dyn std::fmt::Display| Failure::new(crate::exit::UNAVAILABLE, error.to_string());
    if !Path::new(path).exists() {
        return Err(Failure::usage(format!("{path}: there is no such file")));
    }
    if !(8..=500).contains(&by.reason.trim().chars().count()) {
        return Err(Failure::usage("--reason must be 8 to 500 characters"));
    }
    let host = Host::system();
    let marks = SqliteMarks::open(Path::new(path), &host).map_err(|error| unavailable(&error))?;
    let keeper = Keeper::new(Arc::new(marks), &host, KeeperOptions::default())
        .await
        .map_err(|error| unavailable(&error))?;
    match keeper.clear(key, ids, &by.operator, by.reason.trim()).await {
        Ok(cleared) => Ok(cleared.len()),
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
    let mut answer = answer.map_err(|error| garbled(&error))?;
    let body = answer.body().limit(16 << 20).await.map_err(|error| garbled(&error))?;
    if answer.status().is_success() {
        return serde_json::from_slice(&body).map_err(|error| garbled(&error));
    }
    match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) => Err(http_client::CallError::Problem(Box::new(problem)).into()),
        Err(error) => Err(garbled(&error)),
    }
}
