//! `dlock exec KEY -- COMMAND`: a lock around any command.
//!
//! ```text
//! connect → acquire → spawn in a process group of its own → wait for: its end │ a signal (forwarded) │ the lock lost
//!                                                                             └→ SIGTERM → grace → SIGKILL to the group
//! ```
//!
//! Owns: the command's process group, from its start until nothing of it is left; only then is the lock given back.
//! Does not own: processes that leave the group on purpose (`setsid`); whatever they write must carry `DLOCK_TOKEN`.
//! On failure: a lock that is lost ends the group before the server can grant the key to another (case L01): the loss is
//! told a safety margin before that moment, SIGTERM comes at once, SIGKILL after half of the margin.

use crate::api::LockServerArgs;
use crate::config::{ConfigArgs, duration};
use crate::exit::{CANNOT_RUN, Failure, INTERNAL, LOST, NOT_FOUND, OK, SIGNALLED};
use lock_api::{LockError, LockKey, LockLost, Owner};
use lock_client::{ClientOptions, HeldLock, LockClient};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Run a command while holding a lock.
///
/// The command gets DLOCK_KEY and DLOCK_TOKEN in its environment and runs in a process group of its own; standard input
/// passes through, signals are forwarded. When the lock is lost the whole group gets SIGTERM and, half a safety margin
/// later, SIGKILL. When the command ends, what it left behind in its group is ended too, and the lock is given back.
///
/// Exit codes: the command's own · 75 the lock is held by somebody else · 76 the lock was lost · 69 the lock service is
/// unavailable · 64 usage · 126 the command could not be run · 127 there is no such command · 128+n it was ended by signal n.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    servers: LockServerArgs,
    /// What to lock: 1 to 256 bytes.
    key: String,
    /// How long the lock outlives a crash of this process; while it runs, it renews itself.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    ttl: Option<Duration>,
    /// How long to wait for the lock; without it, one refusal is the answer.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,
    /// Who holds the lock, shown to whoever is refused.
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
    /// The command and its arguments, as they are: no shell reads them.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The margin used where none is configured: a quarter of the TTL up to this, because a command needs time to be ended.
const MARGIN_MAX: Duration = Duration::from_secs(3);

/// How long to wait for the end of the session, once the lock is given back.
const CLOSE_WITHIN: Duration = Duration::from_millis(500);

/// How often a group that was told to end is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// How long to wait for the reason of a loss: longer than the client looks for it.
const REASON_MAX: Duration = Duration::from_secs(5);

/// How long to look for the rest of a group after SIGKILL. Only processes that the kernel cannot end are left by then.
const REAP_MAX: Duration = Duration::from_secs(1);

pub fn run(args: Args) -> crate::Outcome {
    // Standard error belongs to the command; whoever wants to see the client's inside says so.
    if std::env::var_os("DLOCK_LOG").is_some() {
        gateway_kit::init_logging_to_stderr("dlock-exec");
    }
    crate::block_on(exec(args))
}

fn default_owner() -> String {
    let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.as_deref().map(str::trim).filter(|host| !host.is_empty());
    format!(
        "{}@{}:{}",
        user.as_deref().unwrap_or("dlock"),
        host.unwrap_or("localhost"),
        std::process::id()
    )
}

fn options(args: &Args) -> Result<ClientOptions, Failure> {
    let ttl = args.ttl.map(|ttl| humantime::format_duration(ttl).to_string());
    let flags = [("lock.session.ttl", ttl.clone()), ("lock.grant.ttl", ttl)];
    let explicit_margin = args.config.names("lock.client.safety-margin");
    // A short TTL and the default margin do not go together; the margin follows the TTL unless somebody chose it.
    let margin = args
        .ttl
        .filter(|_| !explicit_margin)
        .map(|ttl| (ttl / 4).min(MARGIN_MAX));
    let margin_text = margin.map(|margin| format!("{}ms", margin.as_millis()));
    let mut flags = flags.to_vec();
    if let Some(ttl) = args.ttl.filter(|_| !args.config.names("lock.heartbeat.interval")) {
        let interval = (ttl / 3).max(Duration::from_millis(10));
        flags.push(("lock.heartbeat.interval", Some(format!("{}ms", interval.as_millis()))));
    }
    flags.push(("lock.client.safety-margin", margin_text));
    let settings = args.config.load(&flags)?;
    let owner = args.owner.clone().unwrap_or_else(default_owner);
    Ok(ClientOptions::configured(
        Owner::new(owner)?,
        |name| settings.optional_duration(name),
        u32::try_from(settings.integer("lock.acquire.max-attempts")).unwrap_or(u32::MAX),
    ))
}

async fn exec(args: Args) -> crate::Outcome {
    let key = LockKey::new(args.key.as_str())?;
    let options = options(&args)?;
    let grace = options.safety_margin / 2;
    let mut signals = Signals::listen()?;
    let acquired = {
        let acquire = acquire(&args, options, &key);
        tokio::select! {
            biased;
            signal = signals.ending() => {
                return Ok(SIGNALLED.saturating_add(u8::try_from(signal as i32).unwrap_or(u8::MAX - SIGNALLED)));
            }
            acquired = acquire => acquired,
        }
    };
    let (client, held) = acquired.map_err(Failure::from)?;
    let outcome = guarded(&args, &key, &held, grace, &mut signals).await;
    // Nothing of the command is left, so the key may be had by others. A loss that comes to light only now does not mask
    // the command's own result (case L21).
    match held.release().await {
        Ok(()) | Err(LockError::Lost(_)) => {}
        Err(error) => eprintln!("dlock: {key} was not given back and will expire: {error}"),
    }
    // A close that is not answered soon leaves a session that expires by itself; the caller waits for its exit code.
    drop(tokio::time::timeout(CLOSE_WITHIN, client.close()).await);
    outcome
}

async fn acquire(args: &Args, options: ClientOptions, key: &LockKey) -> Result<(LockClient, HeldLock), LockError> {
    let client = LockClient::connect(&args.servers.urls, options).await?;
    let held = match args.wait {
        Some(budget) => client.acquire_within(key, budget).await?,
        None => client.try_acquire(key).await?,
    };
    Ok((client, held))
}

/// Runs the command and sees to it that its whole group has ended when this returns.
async fn guarded(
    args: &Args,
    key: &LockKey,
    held: &HeldLock,
    grace: Duration,
    signals: &mut Signals,
) -> crate::Outcome {
    let token = match held.check_still_held() {
        Ok(token) => token,
        // Its reason may not be known yet; whoever is told waits for it.
        Err(lost) => return Ok(lost_code(key, &reason(held).await.unwrap_or(lost))),
    };
    let (program, arguments) = args.command.split_first().ok_or_else(|| Failure::usage("no command"))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("DLOCK_KEY", key.as_str())
        .env("DLOCK_TOKEN", token.to_string())
        .process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let code = if error.kind() == ErrorKind::NotFound {
                NOT_FOUND
            } else {
                CANNOT_RUN
            };
            return Err(Failure::new(code, format!("{}: {error}", program.display())));
        }
    };
    let Some(group) = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw) else {
        return Err(Failure::new(INTERNAL, "the command has no process id"));
    };
    let terminal = Terminal::lend(group);
    let code = watch(&mut child, group, key, held, grace, signals).await;
    if let Some(terminal) = terminal {
        terminal.take_back();
    }
    code
}

/// Waits for the end of the command, whichever way it comes.
async fn watch(
    child: &mut Child,
    group: Pid,
    key: &LockKey,
    held: &HeldLock,
    grace: Duration,
    signals: &mut Signals,
) -> crate::Outcome {
    let must_stop = held.must_stop();
    tokio::pin!(must_stop);
    loop {
        tokio::select! {
            biased;
            () = &mut must_stop => {
                // The command is ended at once; why, is told as soon as it is known.
                let told = async {
                    match reason(held).await {
                        Some(lost) => lost_code(key, &lost),
                        None => {
                            eprintln!("dlock: {key}: lock lost; the command is ended");
                            LOST
                        }
                    }
                };
                let ((), code) = tokio::join!(end_group(group, Some(child), grace), told);
                return Ok(code);
            }
            status = child.wait() => {
                let status = status.map_err(|error| Failure::new(INTERNAL, format!("waiting for the command: {error}")))?;
                return Ok(left_behind(group, held, grace, key, status).await);
            }
            signal = signals.next() => {
                send(group, signal);
                if ENDING.contains(&signal) {
                    // A stopped process sees it only when it goes on.
                    send(group, Signal::SIGCONT);
                }
            }
        }
    }
}

/// Why the lock was lost. None where the client does not say within the time it has for that.
async fn reason(held: &HeldLock) -> Option<LockLost> {
    tokio::time::timeout(REASON_MAX, held.lost()).await.ok()
}

/// The terminal on standard input, lent to the command's group: a group in the background is stopped when it reads.
struct Terminal {
    ours: Pid,
}

impl Terminal {
    /// Lends it, where there is one and it is ours to lend.
    fn lend(group: Pid) -> Option<Self> {
        let (stdin, ours) = (std::io::stdin(), getpgrp());
        if !stdin.is_terminal() || tcgetpgrp(&stdin) != Ok(ours) {
            return None;
        }
        // Taken back from the background, which would stop us if the signal were not blocked.
        SigSet::from(Signal::SIGTTOU).thread_block().ok()?;
        tcsetpgrp(&stdin, group).ok()?;
        // It may have read too early and been stopped for it.
        send(group, Signal::SIGCONT);
        Some(Self { ours })
    }

    fn take_back(self) {
        if let Err(error) = tcsetpgrp(std::io::stdin(), self.ours) {
            eprintln!("dlock: the terminal could not be taken back: {error}");
        }
    }
}

/// The command has ended. Whatever it left in its group would go on without the lock: it is ended first, and a loss
/// meanwhile makes that quicker.
async fn left_behind(group: Pid, held: &HeldLock, grace: Duration, key: &LockKey, status: ExitStatus) -> u8 {
    if somebody_runs(group) {
        eprintln!("dlock: the command left processes behind in its group; they are ended before {key} is given back");
        let left = held.remaining();
        end_group(group, None, grace.min(left)).await;
    }
    code_of(status)
}

/// SIGTERM, time to comply, SIGKILL, until nobody is left.
async fn end_group(group: Pid, mut child: Option<&mut Child>, grace: Duration) {
    send(group, Signal::SIGTERM);
    // A stopped process sees SIGTERM only when it goes on.
    send(group, Signal::SIGCONT);
    let gone = async |child: &mut Option<&mut Child>| {
        loop {
            if let Some(child) = child {
                drop(child.try_wait());
            }
            if !somebody_runs(group) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    if tokio::time::timeout(grace, gone(&mut child)).await.is_ok() {
        return;
    }
    send(group, Signal::SIGKILL);
    drop(tokio::time::timeout(REAP_MAX, gone(&mut child)).await);
}

/// Whether a process of the group can still do anything. One that has ended and that nobody has reaped cannot, and may
/// stay for ever where the container's first process reaps nobody.
fn somebody_runs(group: Pid) -> bool {
    if killpg(group, None) == Err(Errno::ESRCH) {
        return false;
    }
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return true;
    };
    processes.flatten().any(|process| {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // The name in parentheses may hold anything; state, parent and group follow its end.
        let Some((_, rest)) = stat.rsplit_once(')') else {
            return false;
        };
        let mut fields = rest.split_ascii_whitespace();
        let (state, member) = (fields.next(), fields.nth(1));
        member.and_then(|member| member.parse().ok()) == Some(group.as_raw()) && !matches!(state, Some("Z" | "X"))
    })
}

fn send(group: Pid, signal: Signal) {
    match killpg(group, signal) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => eprintln!("dlock: {signal} could not be sent to the command: {error}"),
    }
}

fn lost_code(key: &LockKey, lost: &LockLost) -> u8 {
    eprintln!("dlock: {key}: {lost}; the command is ended");
    LOST
}

fn code_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => SIGNALLED.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX - SIGNALLED)),
        (None, None) => OK,
    }
}

/// Signals on their way to the command.
struct Signals(mpsc::UnboundedReceiver<Signal>);

/// What is forwarded. SIGKILL and SIGSTOP cannot be seen; SIGCHLD is about the command itself.
const FORWARDED: &[Signal] = &[
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGALRM,
];

/// Those that somebody sends so that the command ends.
const ENDING: &[Signal] = &[Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let (tell, told) = mpsc::unbounded_channel();
        for forwarded in FORWARDED {
            let mut stream = signal(SignalKind::from_raw(*forwarded as i32))
                .map_err(|error| Failure::new(INTERNAL, format!("{forwarded} cannot be awaited: {error}")))?;
            let tell = tell.clone();
            actix_rt::spawn(async move { while stream.recv().await.is_some() && tell.send(*forwarded).is_ok() {} });
        }
        Ok(Self(told))
    }

    async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            // The senders live as long as the process.
            None => std::future::pending().await,
        }
    }

    /// The next signal that would end a process that does not handle it.
    async fn ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if signal != Signal::SIGWINCH {
                return signal;
            }
        }
    }
}
