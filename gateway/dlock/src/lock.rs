//! Locks, by hand.

use crate::api::{Api, LockServerArgs, OperatorArgs};
use crate::config::duration;
use crate::exit::{Failure, OK};
use crate::output::{self, OutputArgs};
use http_client::CallError;
use http_contract::lock::{AcquireBody, AuditRow, CheckVerdict, KeyStatus, LockView, OpenSessionRequest, RevokeBody};
use lock_api::{FencingToken, LockKey};
use std::time::Duration;

/// Locks of the lock service.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Take a lock and leave it held until its TTL ends: for scripts that release it themselves. `dlock exec` keeps one
    /// alive around a command.
    Acquire {
        #[command(flatten)]
        servers: LockServerArgs,
        /// What to lock: 1 to 256 bytes.
        key: String,
        /// Who takes it, shown to whoever is refused.
        #[arg(long, value_name = "NAME", env = "USER", default_value = "dlock")]
        owner: String,
        /// How long it is held.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        ttl: Option<Duration>,
        /// How long to wait for it in the server's queue, at most 30s.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        wait: Option<Duration>,
        /// Take it for a session that exists already.
        #[arg(long, value_name = "ID")]
        session: Option<String>,
        /// The same id from the same session answers the same grant again.
        #[arg(long, value_name = "ID")]
        request_id: Option<String>,
    },
    /// Give a lock back.
    Release {
        #[command(flatten)]
        servers: LockServerArgs,
        /// What is locked.
        key: String,
        /// The session that holds it.
        #[arg(long, value_name = "ID")]
        session: String,
        /// Its token.
        #[arg(long, value_name = "TOKEN")]
        token: FencingToken,
    },
    /// One key: held or free, by whom, under which token.
    Show {
        #[command(flatten)]
        servers: LockServerArgs,
        /// Which key.
        key: String,
    },
    /// How a token stands: current, superseded, ended or unknown. It tells who should stop, never who may write. Exit code 1
    /// unless it is current.
    Check {
        #[command(flatten)]
        servers: LockServerArgs,
        /// Which key.
        key: String,
        /// The token in question.
        #[arg(long, value_name = "TOKEN")]
        token: FencingToken,
    },
    /// Keys by prefix, in order.
    List {
        #[command(flatten)]
        servers: LockServerArgs,
        /// Only keys that begin with this.
        #[arg(long)]
        prefix: Option<String>,
        /// The most keys to show.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// Where the page before ended.
        #[arg(long)]
        cursor: Option<String>,
    },
    /// What happened to a key.
    History {
        #[command(flatten)]
        servers: LockServerArgs,
        /// Which key.
        key: String,
        /// The most rows to show.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// Where the page before ended.
        #[arg(long)]
        cursor: Option<String>,
    },
    /// The whole audit trail, one JSON object a line, for `dlock verify --audit` and for archives.
    Audit {
        #[command(flatten)]
        servers: LockServerArgs,
        /// Only what comes after this event.
        #[arg(long, value_name = "SEQ", default_value_t = 0)]
        after: u64,
        /// Write the seals to this file before the trail is read, so that the trail holds every row they cover.
        #[arg(long, value_name = "FILE")]
        seals_to: Option<std::path::PathBuf>,
    },
    /// Break a live lock (break-glass). Without `--token` it only shows what would be broken.
    Revoke {
        #[command(flatten)]
        servers: LockServerArgs,
        /// Which key.
        key: String,
        /// The token to be revoked, as `dlock lock show` showed it.
        #[arg(long, value_name = "TOKEN")]
        token: Option<FencingToken>,
        #[command(flatten)]
        by: OperatorArgs,
    },
    /// A key's changes as they happen, until interrupted.
    Watch {
        #[command(flatten)]
        servers: LockServerArgs,
        /// Which key.
        key: String,
        /// Go on after this event.
        #[arg(long, value_name = "SEQ")]
        after: Option<u64>,
        /// End after so many events, the snapshot counted.
        #[arg(long, value_name = "N")]
        events: Option<u64>,
    },
}

pub fn run(args: Args) -> crate::Outcome {
    crate::block_on(verb(args))
}

fn ms(duration: Option<Duration>) -> Option<u64> {
    duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

async fn verb(args: Args) -> crate::Outcome {
    let format = args.output.output;
    let api = Api::new();
    let trace = &api.trace;
    match args.verb {
        Verb::Acquire {
            servers,
            key,
            owner,
            ttl,
            wait,
            session,
            request_id,
        } => {
            let key = LockKey::new(key)?;
            let session_id = match session {
                Some(id) => id,
                None => {
                    let open = OpenSessionRequest {
                        owner,
                        ttl_ms: ms(ttl),
                        metadata: None,
                    };
                    api.lock_server(&servers, async |s| s.open_session(&open, trace).await)
                        .await?
                        .session_id
                }
            };
            let body = AcquireBody {
                session_id,
                request_id,
                ttl_ms: ms(ttl),
                wait_ms: ms(wait),
                witness_token: None,
                metadata: None,
            };
            let grant = api
                .lock_server(&servers, async |s| s.acquire(&key, &body, trace).await)
                .await?;
            output::object(format, &grant)?;
        }
        Verb::Release {
            servers,
            key,
            session,
            token,
        } => {
            let key = LockKey::new(key)?;
            let released = api
                .lock_server(&servers, async |s| s.release(&key, &session, token, trace).await)
                .await?;
            output::object(format, &released)?;
        }
        Verb::Show { servers, key } => {
            let view = show(&api, &servers, &LockKey::new(key)?).await?;
            output::object(format, &view)?;
        }
        Verb::Check { servers, key, token } => {
            let key = LockKey::new(key)?;
            let answer = api
                .lock_server(&servers, async |s| s.check(&key, token, trace).await)
                .await?;
            output::object(format, &answer)?;
            if answer.verdict != CheckVerdict::Current {
                return Ok(crate::exit::REFUSED);
            }
        }
        Verb::List {
            servers,
            prefix,
            limit,
            cursor,
        } => {
            let page = api
                .lock_server(&servers, async |s| {
                    s.locks(prefix.as_deref(), limit, cursor.as_deref(), trace).await
                })
                .await?;
            let columns = [
                ("KEY", "key"),
                ("STATE", "state"),
                ("TOKEN", "token"),
                ("OWNER", "holder.owner"),
                ("SINCE", "holder.since"),
                ("EXPIRES_IN_MS", "expires_in_ms"),
                ("WAITERS", "waiters"),
            ];
            output::list(format, &page, &columns)?;
        }
        Verb::History {
            servers,
            key,
            limit,
            cursor,
        } => {
            let key = LockKey::new(key)?;
            let page = api
                .lock_server(&servers, async |s| {
                    s.history(&key, limit, cursor.as_deref(), trace).await
                })
                .await?;
            let columns = [
                ("SEQ", "seq"),
                ("AT", "at"),
                ("KIND", "kind"),
                ("TOKEN", "token"),
                ("SESSION", "session_id"),
                ("ACTOR", "actor"),
                ("REASON", "reason"),
            ];
            output::list(format, &page, &columns)?;
        }
        Verb::Audit {
            servers,
            after,
            seals_to,
        } => crate::verify::export::run(&api, &servers, after, seals_to.as_deref()).await?,
        Verb::Revoke {
            servers,
            key,
            token,
            by,
        } => {
            let key = LockKey::new(key)?;
            let Some(token) = token else {
                return Err(would_break(&show(&api, &servers, &key).await?));
            };
            let body = RevokeBody {
                revoke_token: token.get(),
                reason: by.reason,
            };
            let revoked = api
                .lock_server(&servers, async |s| s.revoke(&key, &by.operator, &body, trace).await)
                .await?;
            output::object(format, &revoked)?;
            if let Some(account) = key.as_str().strip_prefix("payout:") {
                eprintln!(
                    "dlock: nobody has to acquire before {} is refused: dlock payout fence {account} --token {}",
                    revoked.revoked_owner, revoked.token
                );
            }
        }
        Verb::Watch {
            servers,
            key,
            after,
            events,
        } => {
            watch(&api, &servers, &LockKey::new(key)?, after, events, format).await?;
        }
    }
    Ok(OK)
}

/// L7 for one key.
pub async fn show(api: &Api, servers: &LockServerArgs, key: &LockKey) -> Result<LockView, Failure> {
    api.lock_server(servers, async |s| s.lock(key, &api.trace).await).await
}

/// A revoke says what it breaks before it breaks it (case L30).
fn would_break(view: &LockView) -> Failure {
    let Some(holder) = view.holder.as_ref().filter(|_| view.state == KeyStatus::Held) else {
        return Failure::new(
            crate::exit::REFUSED,
            format!("{} is free: there is nothing to revoke", view.key),
        );
    };
    Failure::usage(format!(
        "this would break the lock of {} on {}, held since {}, {} ms left, {} waiting; to do it, add --token {}",
        holder.owner,
        view.key,
        holder.since,
        view.expires_in_ms.unwrap_or_default(),
        view.waiters,
        holder.token
    ))
}

async fn watch(
    api: &Api,
    servers: &LockServerArgs,
    key: &LockKey,
    mut after: Option<u64>,
    events: Option<u64>,
    format: output::Format,
) -> Result<(), Failure> {
    let mut seen = 0;
    let mut broken = 0;
    loop {
        let mut stream = api
            .lock_server(servers, async |s| s.watch(key, after, &api.trace).await)
            .await?;
        loop {
            if events.is_some_and(|events| seen >= events) {
                return Ok(());
            }
            let event = match stream.next().await {
                Ok(Some(event)) => event,
                // The server drains, or the connection broke: another one may go on where this one ended.
                Ok(None) => break,
                Err(CallError::Ambiguous(_)) if broken < RECONNECTS_MAX => break,
                Err(error) => return Err(error.into()),
            };
            broken = 0;
            seen += 1;
            if let Some(seq) = event.id.as_deref().and_then(|id| id.parse().ok()) {
                after = Some(seq);
            }
            let data: serde_json::Value = serde_json::from_str(&event.data)
                .map_err(|error| Failure::new(crate::exit::UNAVAILABLE, format!("an unreadable event: {error}")))?;
            let line = serde_json::json!({ "event": event.event, "id": event.id, "data": data });
            output::line(format, &line, || watch_line(&event.event, &data))?;
        }
        broken += 1;
        if broken > RECONNECTS_MAX {
            return Err(Failure::new(
                crate::exit::UNAVAILABLE,
                "the watch was interrupted and could not be resumed",
            ));
        }
    }
}

/// How often a watch is resumed without a single event in between.
const RECONNECTS_MAX: u32 = 3;

fn watch_line(event: &str, data: &serde_json::Value) -> String {
    if let Ok(view) = serde_json::from_value::<LockView>(data.clone()) {
        let state = match (view.state, view.holder) {
            (KeyStatus::Held, Some(holder)) => format!("held by {} since {}", holder.owner, holder.since),
            (KeyStatus::Held, None) => "held".to_owned(),
            (KeyStatus::Free, _) => "free".to_owned(),
        };
        let token = view.token.map_or_else(|| "-".to_owned(), |token| token.to_string());
        return format!("{event} {state}, token {token}, {} waiting", view.waiters);
    }
    match serde_json::from_value::<AuditRow>(data.clone()) {
        Ok(row) => {
            let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            let token = or_dash(row.token.map(|token| token.to_string()));
            let (actor, reason) = (or_dash(row.actor), or_dash(row.reason));
            format!("{} {} token {token} actor {actor} reason {reason}", row.at, row.kind)
        }
        Err(_) => format!("{event} {data}"),
    }
}
