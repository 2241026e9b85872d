//! One connection of a wire: two sockets and what joins them, or keeps them apart.
//!
//! Owns: making the connection to the target, both directions' pumps, the ways a connection ends.
//! Does not own: listening. On failure: both ends are reset.

use super::counters::bytes;
use super::framer::{Framer, Kind, Unanswered};
use super::intercept::Intercept;
use super::link::{Protocol, Shared};
use super::mode::{End, Flow, Line, Messages, Mode};
use super::pump::{Over, Pump};
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// How long the target may take to accept.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long a connection that was closed is still read, so that its end is a FIN: bytes left unread make it a reset.
const LINGER: Duration = Duration::from_secs(1);

/// How the joined connection ended.
enum Joined {
    Ended,
    Reset,
    Held(Vec<u8>),
    Line(Line),
}

/// Serves one caller until its connection is over.
pub(super) async fn serve(shared: Rc<Shared>, caller: TcpStream) {
    let mut mode = shared.mode.subscribe();
    drop(caller.set_nodelay(true));
    let now = *mode.borrow_and_update();
    if now.line == Line::Up && now.requests == Flow::Swallow {
        // Nothing of it would reach the target, the wish to connect included.
        return silent(&shared, End::Caller, caller, &mut mode, |mode| {
            mode.line == Line::Up && mode.requests == Flow::Swallow
        })
        .await;
    }
    let target = match now.line {
        Line::Up | Line::HalfOpen(End::Target) => tokio::select! {
            biased;
            line = line_down(&mut mode), if now.line == Line::Up => return fall(&shared, line, caller, None, &mut mode).await,
            target = connect(&shared) => target,
        },
        line => return fall(&shared, line, caller, None, &mut mode).await,
    };
    let Some(target) = target else {
        return reset(&shared, [Some(caller), None]);
    };
    join(&shared, caller, target, &mut mode).await;
}

async fn connect(shared: &Shared) -> Option<TcpStream> {
    let connecting = tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(&shared.target)).await;
    match connecting {
        Ok(Ok(target)) => {
            drop(target.set_nodelay(true));
            return Some(target);
        }
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            shared.dead.send_replace(true);
        }
        _ => {}
    }
    shared.counters.count(|counts| counts.unconnected += 1);
    None
}

/// Awaits that the line is not up.
async fn line_down(mode: &mut watch::Receiver<Mode>) -> Line {
    let down = mode.wait_for(|mode| mode.line != Line::Up).await;
    down.map_or(Line::Reset, |mode| mode.line)
}

async fn join(shared: &Rc<Shared>, mut caller: TcpStream, mut target: TcpStream, mode: &mut watch::Receiver<Mode>) {
    let framer = |kind, unanswered: &Unanswered| match shared.protocol {
        Protocol::Http => Framer::new(kind, unanswered.clone()),
        Protocol::Postgres | Protocol::Etcd => Framer::opaque(kind),
    };
    let unanswered = Unanswered::default();
    let pump = |kind| Pump::new(shared, kind, Intercept::new(framer(kind, &unanswered), kind));
    let over = {
        let (from_caller, to_caller) = caller.split();
        let (from_target, to_target) = target.split();
        let requests = pump(Kind::Requests).run(from_caller, to_target);
        let answers = pump(Kind::Answers).run(from_target, to_caller);
        tokio::pin!(requests, answers);
        let (mut asked, mut answered) = (false, false);
        loop {
            let over = tokio::select! {
                biased;
                line = line_down(mode) => break Joined::Line(line),
                over = &mut requests, if !asked => {
                    asked = true;
                    over
                }
                over = &mut answers, if !answered => {
                    answered = true;
                    over
                }
            };
            match over {
                Over::Ended if asked && answered => break Joined::Ended,
                Over::Ended => {}
                Over::Reset => break Joined::Reset,
                Over::Held(request) => break Joined::Held(request),
            }
        }
    };
    match over {
        Joined::Ended => {}
        Joined::Reset => reset(shared, [Some(caller), Some(target)]),
        Joined::Line(line) => fall(shared, line, caller, Some(target), mode).await,
        Joined::Held(request) => {
            drop(target);
            hold(shared, caller, request).await;
        }
    }
}

/// Carries out what the line has become.
async fn fall(
    shared: &Shared,
    line: Line,
    caller: TcpStream,
    target: Option<TcpStream>,
    mode: &mut watch::Receiver<Mode>,
) {
    match line {
        Line::Up | Line::Refused | Line::Reset => reset(shared, [Some(caller), target]),
        Line::Cut => {
            shared.counters.count(|counts| counts.cut += 1);
            let target = async {
                if let Some(target) = target {
                    finish(target).await;
                }
            };
            tokio::join!(finish(caller), target);
        }
        Line::HalfOpen(stays) => {
            shared.counters.count(|counts| counts.half_open += 1);
            let (socket, gone) = match stays {
                End::Caller => (Some(caller), target),
                End::Target => (target, Some(caller)),
            };
            drop(gone);
            if let Some(socket) = socket {
                silent(shared, stays, socket, mode, |mode| mode.line == line).await;
            }
        }
    }
}

/// Both ends see a RST.
fn reset(shared: &Shared, ends: [Option<TcpStream>; 2]) {
    shared.counters.count(|counts| counts.resets += 1);
    for end in ends.into_iter().flatten() {
        // A socket that has failed already needs no reset.
        drop(end.set_zero_linger());
    }
}

/// The end sees a FIN, whatever it has sent that nobody read.
async fn finish(mut end: TcpStream) {
    drop(end.shutdown().await);
    let mut buffer = [0; 4096];
    let rest = async { while end.read(&mut buffer).await.is_ok_and(|n| n > 0) {} };
    // It may go on sending: then it is reset after all.
    drop(tokio::time::timeout(LINGER, rest).await);
}

/// Keeps an end open, reads and throws away what it sends, until it leaves or the mode is another; then it is reset.
async fn silent(
    shared: &Shared,
    end: End,
    mut socket: TcpStream,
    mode: &mut watch::Receiver<Mode>,
    stays: impl Fn(&Mode) -> bool,
) {
    let mut buffer = [0; 4096];
    loop {
        tokio::select! {
            biased;
            _ = mode.wait_for(|mode| !stays(mode)) => return reset(shared, [Some(socket), None]),
            read = socket.read(&mut buffer) => match read {
                Ok(n) if n > 0 => shared.counters.count(|counts| match end {
                    End::Caller => counts.swallowed_request_bytes += bytes(n),
                    End::Target => counts.swallowed_answer_bytes += bytes(n),
                }),
                _ => return,
            },
        }
    }
}

/// Leaves the caller without an answer, and delivers its request after it has gone.
async fn hold(shared: &Rc<Shared>, mut caller: TcpStream, request: Vec<u8>) {
    let Messages::Hold { silent, late } = shared.mode.borrow().messages else {
        // The fault was undone while the request was read: it is delivered at once, its caller has to ask again.
        reset(shared, [Some(caller), None]);
        return shared.late(request, Duration::ZERO);
    };
    let mut buffer = [0; 4096];
    let leaves = async { while caller.read(&mut buffer).await.is_ok_and(|n| n > 0) {} };
    let left = tokio::time::timeout(silent, leaves).await.is_ok();
    if left {
        drop(caller);
    } else {
        reset(shared, [Some(caller), None]);
    }
    let late = shared.random.up_to(late);
    shared.late(request, late);
}
