//! Locks, by hand.

mod acquire;
mod hand_over;

use crate::api::{Api, KeyArgs, LOCK_SERVER, LockServerArgs, OperatorArgs};
use crate::config::duration;
use crate::exit::{Failure, OK};
use crate::output::{self, OutputArgs};
use host_kit::Clock;
use http_client::{CallError, SseReader};
use http_contract::lock::{
    AcquireBody, AuditRow, CheckVerdict, KeyStatus, LockView, OpenSessionRequest, RevokeBody, YieldRequested,
};
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
        #[command(flatten)]
        key: KeyArgs,
        /// Who takes it, shown to whoever is refused.
        #[arg(long, value_name = "NAME", env = "USER", default_value = "dlock")]
        owner: String,
        /// How long it is held.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        ttl: Option<Duration>,
        /// How long to wait for it in the server's queue, an outage of the lock servers included.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        wait: Option<Duration>,
        /// How long the lock stays closed to everybody when its TTL ends without a release, or it is revoked: at most 60s.
        /// For what is behind it and checks no token.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        lock_delay: Option<Duration>,
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
        #[command(flatten)]
        key: KeyArgs,
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
        #[command(flatten)]
        key: KeyArgs,
    },
    /// How a token stands: current, superseded, ended or unknown. It tells who should stop, never who may write. Exit code 1
    /// unless it is current.
    Check {
        #[command(flatten)]
        servers: LockServerArgs,
        #[command(flatten)]
        key: KeyArgs,
        /// The token in question.
        #[arg(long, value_name = "TOKEN")]
        token: FencingToken,
    },
    /// Keys by prefix, in order.
    List {
        #[command(flatten)]
        servers: LockServerArgs,
        /// Only keys that begin with this.
        #[arg(long, allow_hyphen_values = true)]
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
        #[command(flatten)]
        key: KeyArgs,
        /// The most rows to show.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// Where the page before ended.
        #[arg(long)]
        cursor: Option<String>,
    },
    /// The whole audit trail, one JSON object a line, for `dlock verify --audit` and for archives.
    ///
    /// Who can write the store can change the trail and seal it anew. Keep the seals (`--seals-to`) where that one cannot
    /// write: an older file of them is what a later trail is checked with.
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
    /// Ask the holder to give its lock up by itself: try it before a revoke. It ends nothing; the holder reads of it in its
    /// next heartbeat. Without `--token` it only shows who would be asked.
    Yield {
        #[command(flatten)]
        servers: LockServerArgs,
        #[command(flatten)]
        key: KeyArgs,
        /// The token whose holder is asked, as `dlock lock show` showed it.
        #[arg(long, value_name = "TOKEN")]
        token: Option<FencingToken>,
        #[command(flatten)]
        by: OperatorArgs,
    },
    /// Break a live lock (break-glass). Try `dlock lock yield` first, or `--yield-first`: a holder that gives its lock up by
    /// itself comes to a good end. Without `--token` it only shows what would be broken.
    Revoke {
        #[command(flatten)]
        servers: LockServerArgs,
        #[command(flatten)]
        key: KeyArgs,
        /// The token to be revoked, as `dlock lock show` showed it.
        #[arg(long, value_name = "TOKEN")]
        token: Option<FencingToken>,
        /// Ask the holder to give it up by itself, and break it only if it is still held after this long. A holder reads of
        /// it within a third of its session's TTL.
        #[arg(long, value_name = "DURATION", value_parser = duration, requires = "token")]
        yield_first: Option<Duration>,
        #[command(flatten)]
        by: OperatorArgs,
    },
    /// A key's changes as they happen, until interrupted.
    Watch {
        #[command(flatten)]
        servers: LockServerArgs,
        #[command(flatten)]
        key: KeyArgs,
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
            lock_delay,
            session,
            request_id,
        } => {
            let open = session.is_none().then(|| OpenSessionRequest {
                owner,
                ttl_ms: ms(ttl),
                metadata: None,
            });
            let wanted = acquire::Wanted {
                key: key.get()?,
                open,
                body: AcquireBody {
                    session_id: session.unwrap_or_default(),
                    request_id,
                    ttl_ms: ms(ttl),
                    wait_ms: None,
                    witness_token: None,
                    lock_delay_ms: ms(lock_delay),
                    metadata: None,
                },
                wait: wait.unwrap_or_default(),
            };
            output::object(format, &acquire::take(&api, &servers, wanted).await?)?;
        }
        Verb::Release {
            servers,
            key,
            session,
            token,
        } => {
            let key = key.get()?;
            let released = api
                .lock_server(&servers, async |s| s.release(&key, &session, token, trace).await)
                .await?;
            output::object(format, &released)?;
        }
        Verb::Show { servers, key } => {
            let view = show(&api, &servers, &key.get()?).await?;
            output::object(format, &view)?;
        }
        Verb::Check { servers, key, token } => {
            let key = key.get()?;
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
                ("LOCK_DELAY_MS", "lock_delay_ms"),
                ("CLOSED_FOR_MS", "closed_for_ms"),
                ("YIELD_TO", "yield_requested.by"),
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
            let key = key.get()?;
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
        Verb::Yield {
            servers,
            key,
            token,
            by,
        } => {
            let key = key.get()?;
            let Some(token) = token else {
                return Err(would(&Act::AskToYield, &show(&api, &servers, &key).await?));
            };
            let asked = hand_over::ask(&api, &servers, &key, token, &by).await?;
            output::object(format, &asked)?;
        }
        Verb::Revoke {
            servers,
            key,
            token,
            yield_first,
            by,
        } => {
            let key = key.get()?;
            let Some(token) = token else {
                return Err(would(&Act::Break, &show(&api, &servers, &key).await?));
            };
            if let Some(within) = yield_first
                && let Some(yielded) = hand_over::ask_first(&api, &servers, &key, token, &by, within).await?
            {
                output::object(format, &yielded)?;
                return Ok(OK);
            }
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
            watch(&api, &servers, &key.get()?, after, events, format).await?;
        }
    }
    Ok(OK)
}

/// L7 for one key.
pub async fn show(api: &Api, servers: &LockServerArgs, key: &LockKey) -> Result<LockView, Failure> {
    api.lock_server(servers, async |s| s.lock(key, &api.trace).await).await
}

/// What an operator is about to do to a holder.
enum Act {
    AskToYield,
    Break,
}

/// A verb that meets a holder says whom it meets before it does (case L30).
fn would(act: &Act, view: &LockView) -> Failure {
    let (nothing, what) = match act {
        Act::AskToYield => ("nobody to ask", "ask for the lock of"),
        Act::Break => ("nothing to revoke", "break the lock of"),
    };
    let Some(holder) = view.holder.as_ref().filter(|_| view.state == KeyStatus::Held) else {
        return Failure::new(
            crate::exit::REFUSED,
            format!("{} is free: there is {nothing}", view.key),
        );
    };
    let asked = view.yield_requested.as_ref().map(|asked| {
        let YieldRequested { by, at, .. } = asked;
        format!(", asked to yield by {by} at {at}")
    });
    Failure::usage(format!(
        "this would {what} {} on {}, held since {}{}, {} ms left, {} waiting; to do it, add --token {}",
        holder.owner,
        view.key,
        holder.since,
        asked.unwrap_or_default(),
        view.expires_in_ms.unwrap_or_default(),
        view.waiters,
        holder.token
    ))
}

/// Goes on over restarts of servers, and from one server to another, after the last event that was told: nothing is told twice
/// and nothing is left out (case L44).
async fn watch(
    api: &Api,
    servers: &LockServerArgs,
    key: &LockKey,
    after: Option<u64>,
    events: Option<u64>,
    format: output::Format,
) -> Result<(), Failure> {
    let clock = Clock::system();
    let mut servers = servers.clone();
    let mut told = Told {
        last: after,
        left: events,
        resumed: false,
        format,
    };
    let (mut unreached_since, mut pause) = (None, AGAIN_MIN);
    loop {
        let opened = api
            .first_that_answers(&servers, async |s| s.watch(key, told.last, &api.trace).await)
            .await;
        match opened {
            Ok((at, stream)) => {
                unreached_since = None;
                // What breaks off is asked last the next time.
                servers.urls.rotate_left(at + 1);
                if told.read(stream).await? {
                    pause = AGAIN_MIN;
                }
                if told.left == Some(0) {
                    return Ok(());
                }
                told.resumed = true;
            }
            // A server that is not there, or not ready, may be soon. Whoever never had an answer is told at once.
            Err(error) if told.resumed && error.is_passing() => {
                let now = clock.mono();
                if unreached_since.is_none() {
                    eprintln!("dlock: the watch was interrupted and is tried again: {error}");
                }
                if now.saturating_sub(*unreached_since.get_or_insert(now)) > UNREACHED_MAX {
                    let last = told
                        .last
                        .map_or(String::new(), |seq| format!("; go on with --after {seq}"));
                    let detail = format!("the watch was interrupted and could not be resumed: {error}{last}");
                    return Err(Failure::new(crate::exit::UNAVAILABLE, detail));
                }
            }
            Err(error) => return Err(error.with_next_step(&LOCK_SERVER.next_step())),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(AGAIN_MAX);
    }
}

/// How soon a watch that broke off is resumed, at first and at last.
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(2);

/// For how long no server may answer.
const UNREACHED_MAX: Duration = Duration::from_secs(600);

/// What a watch has told.
struct Told {
    /// The last event.
    last: Option<u64>,
    /// How many events more are wanted; none where all are.
    left: Option<u64>,
    /// Whether a stream came before this one.
    resumed: bool,
    format: output::Format,
}

impl Told {
    /// Tells a stream's events to its end. Whether there was one.
    async fn read(&mut self, mut stream: SseReader) -> Result<bool, Failure> {
        let mut any = false;
        while self.left != Some(0) {
            let event = match stream.next().await {
                Ok(Some(event)) => event,
                // The server drains, or the connection broke.
                Ok(None) | Err(CallError::Ambiguous(_)) => return Ok(any),
                Err(error) => return Err(error.into()),
            };
            let seq = event.id.as_deref().and_then(|id| id.parse::<u64>().ok());
            // The snapshot of a resumed stream stands where the one before ended, unless the store was restored to before that.
            let known = self.resumed && event.event == "snapshot" && seq == self.last;
            self.last = seq.or(self.last);
            if known {
                continue;
            }
            let data: serde_json::Value = serde_json::from_str(&event.data)
                .map_err(|error| Failure::new(crate::exit::UNAVAILABLE, format!("an unreadable event: {error}")))?;
            let line = serde_json::json!({ "event": event.event, "id": event.id, "data": data });
            output::line(self.format, &line, || watch_line(&event.event, &data))?;
            self.left = self.left.map(|left| left - 1);
            any = true;
        }
        Ok(any)
    }
}

fn watch_line(event: &str, data: &serde_json::Value) -> String {
    if let Ok(view) = serde_json::from_value::<LockView>(data.clone()) {
        let state = match (view.state, view.holder) {
            (KeyStatus::Held, Some(holder)) => format!("held by {} since {}", holder.owner, holder.since),
            (KeyStatus::Held, None) => "held".to_owned(),
            (KeyStatus::Free, _) => match view.closed_for_ms {
                Some(closed) => format!("free, closed for {closed} ms"),
                None => "free".to_owned(),
            },
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
