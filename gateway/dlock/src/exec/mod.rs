//! `dlock exec KEY -- COMMAND`: a lock around any command.
//!
//! ```text
//! connect → acquire → spawn in a process group of its own → watch it to its end → give the lock back → close the session
//!    └ a signal, a refusal, an outage ────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Owns: the command and all its descendants, wherever they went (`setsid`, a double fork), from its start until nothing of
//! them is left; only then is the lock given back.
//! Does not own: what runs elsewhere on the command's behalf (another host, a service manager); whatever that writes must
//! carry `DLOCK_TOKEN`.
//! On failure: a lock that is lost ends all of them before the server can grant the key to another (case L01): the loss is
//! told a safety margin before that moment, SIGTERM comes at once, SIGKILL after half of the margin.

mod options;
mod processes;
mod say;
mod signals;
mod terminal;
mod watch;

use crate::api::{KeyArgs, LOCK_SERVER, LockServerArgs};
use crate::config::{ConfigArgs, duration};
use crate::exit::{Failure, LOST, UNAVAILABLE};
use host_kit::Clock;
use lock_api::{LockError, LockKey};
use lock_client::{HeldLock, LockClient};
use nix::sys::signal::Signal;
use say::say;
use signals::Signals;
use std::ffi::OsString;
use std::time::Duration;
use watch::{Watch, lost_code, signalled};

/// Run a command while holding a lock.
///
/// The command gets DLOCK_KEY and DLOCK_TOKEN in its environment and runs in a process group of its own; standard input
/// passes through, signals are forwarded, and those that are ignored (nohup) stay so. When the lock is lost, the command and all its descendants get SIGTERM and, half a
/// safety margin later, SIGKILL. When the command ends, what it left behind (daemons too) is ended the same way before the
/// lock is given back.
///
/// ^Z stops the command and dlock; nobody renews the lock meanwhile. `fg` and `bg` ask for the lock first: a command whose
/// lock was lost is killed without having gone on.
///
/// Exit codes: the command's own · 75 the lock is held by somebody else, or closed by its delay · 76 the lock was lost · 69 the lock service is
/// unavailable · 64 usage · 126 the command could not be run · 127 there is no such command · 128+n it was ended by signal n.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    servers: LockServerArgs,
    #[command(flatten)]
    key: KeyArgs,
    /// How long the lock outlives a crash of this process; while it runs, it renews itself.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    ttl: Option<Duration>,
    /// How long to wait for the lock, an outage of the lock servers included; without it, one refusal is the answer.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,
    /// How long the lock stays closed to everybody when it is lost, by a crash of this process say: at most 60s. For what
    /// the command writes to and checks no token.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lock_delay: Option<Duration>,
    /// What the command is sent when somebody asks for the lock (`dlock lock yield`), TERM say: it brings its work to a
    /// good end and the lock is given back. Without it, a line on standard error is all.
    #[arg(long, value_name = "SIGNAL", value_parser = signals::named)]
    on_yield: Option<Signal>,
    /// Who holds the lock, shown to whoever is refused.
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
    /// The command and its arguments, as they are: no shell reads them.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How long to wait for the end of the session.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// The same where no server was heard any more: the caller waits for its exit code.
const CLOSE_UNHEARD_WITHIN: Duration = Duration::from_millis(500);

/// How much longer than `--wait` the answer may take, where a server keeps silent.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// How long to wait before another session is asked for.
const SESSION_AGAIN: Duration = Duration::from_millis(100);

pub fn run(args: Args) -> crate::Outcome {
    // Standard error belongs to the command; whoever wants to see the client's inside says so.
    if std::env::var_os("DLOCK_LOG").is_some() {
        gateway_kit::init_logging_to_stderr("dlock-exec");
    }
    say::begin()?;
    let code = crate::block_on(exec(args)).unwrap_or_else(|failure| {
        say!("dlock: {failure}");
        failure.code()
    });
    say::flush();
    Ok(code)
}

async fn exec(args: Args) -> crate::Outcome {
    if args.command.first().is_none_or(|program| program.is_empty()) {
        return Err(Failure::usage("COMMAND is empty: there is nothing to run"));
    }
    let key = args.key.get()?;
    let options = options::options(&args)?;
    let (grace, ttl) = (options.safety_margin / 2, options.session_ttl);
    let mut signals = Signals::listen()?;
    let client = LockClient::connect_in_background(&args.servers.urls, options).await?;
    let outcome = under_the_lock(&args, &client, &key, grace, &mut signals).await;
    close(client, &key, ttl, &outcome).await;
    outcome
}

/// The one way out, however it ended: the session is closed, and with it ends a grant that is still on its way (cases L32,
/// L33).
async fn close(client: LockClient, key: &LockKey, ttl: Duration, outcome: &crate::Outcome) {
    let code = outcome.as_ref().map_or_else(Failure::code, |code| *code);
    let within = match code {
        UNAVAILABLE | LOST => CLOSE_UNHEARD_WITHIN,
        _ => CLOSE_WITHIN,
    };
    let why = match tokio::time::timeout(within, client.close()).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no lock server answered in time".to_owned(),
    };
    say!(
        "dlock: the session could not be closed: {why}; it ends within {}, and until then {key} may be held by it",
        humantime::format_duration(ttl)
    );
}

async fn under_the_lock(
    args: &Args,
    client: &LockClient,
    key: &LockKey,
    grace: Duration,
    signals: &mut Signals,
) -> crate::Outcome {
    let acquired = tokio::select! {
        biased;
        signal = signals.ending() => return Ok(signalled(signal as i32)),
        acquired = acquire(args, client, key) => acquired,
    };
    let next_step = || LOCK_SERVER.next_step_at(&args.servers.urls);
    let held = acquired.map_err(|error| Failure::from(error).with_next_step(&next_step()))?;
    if let Some(signal) = signals.ending_already().await {
        return Ok(signalled(signal as i32));
    }
    let outcome = guarded(args, key, &held, grace, signals).await;
    // Nothing of the command is left, so the key may be had by others. A loss that comes to light only now does not mask
    // the command's own result (case L21).
    match held.release().await {
        Ok(()) | Err(LockError::Lost(_)) => {}
        Err(error) => say!("dlock: {key} was not given back and will expire: {error}"),
    }
    outcome
}

async fn acquire(args: &Args, client: &LockClient, key: &LockKey) -> Result<HeldLock, LockError> {
    let Some(budget) = args.wait else {
        return client.try_acquire(key).await;
    };
    let acquired = acquire_within(client, key, budget);
    let acquired = tokio::time::timeout(budget.saturating_add(ANSWER_WITHIN), acquired).await;
    acquired.unwrap_or_else(|_| {
        Err(LockError::Unavailable {
            detail: format!("no answer within --wait {}", humantime::format_duration(budget)),
            perhaps_done: true,
        })
    })
}

async fn acquire_within(client: &LockClient, key: &LockKey, budget: Duration) -> Result<HeldLock, LockError> {
    let clock = Clock::system();
    let until = clock.mono().saturating_add(budget);
    loop {
        let left = until.saturating_sub(clock.mono());
        match client.acquire_within(key, left).await {
            // An outage was longer than the session: the client opens another one.
            Err(LockError::SessionLost) if clock.mono() < until => tokio::time::sleep(SESSION_AGAIN).await,
            acquired => return acquired,
        }
    }
}

/// Runs the command and sees to it that all of it has ended when this returns.
async fn guarded(
    args: &Args,
    key: &LockKey,
    held: &HeldLock,
    grace: Duration,
    signals: &mut Signals,
) -> crate::Outcome {
    if let Err(lost) = held.check_still_held() {
        // Its reason may not be known yet; whoever is told waits for it.
        let told = tokio::time::timeout(watch::REASON_MAX, held.lost()).await;
        return Ok(lost_code(key, &told.unwrap_or(lost)));
    }
    Watch::start(args, key, held, grace)?.run_to_its_end(signals).await
}
