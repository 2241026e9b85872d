//! What becomes of one call: executed or not, answered or not, acked or not.
//!
//! Owns: the behaviour of each fault on the socket. Does not own: which fault is met. On failure: the caller has gone,
//! and what the fault says about execution still holds: the rail does not undo what it was sent.

use crate::Shared;
use crate::ack::Ack;
use crate::fault::{Fault, Group, Met};
use crate::http::{Answer, Connection, Request};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// How long a caller is left without an answer before the stub closes by itself (NFR-11).
const HOLD_MAX: Duration = Duration::from_secs(120);

/// What is submitted.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    client_reference: String,
    amount_minor: i64,
    currency: String,
    creditor: serde_json::Value,
}

/// What is answered.
#[derive(Debug, Serialize)]
struct CallAnswer<'a> {
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rail_reference: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    client_reference: &'a str,
    amount_minor: i64,
    currency: &'a str,
}

/// What the rail decided.
#[derive(Clone, Debug)]
enum Decision {
    Executed { rail_reference: String },
    Declined { reason: String },
}

/// What is to happen to the connection.
enum Ending {
    Answer(Answer),
    Hold,
    Close,
    Reset,
    Half(Answer),
    Trickle(Answer, Duration),
    Continue,
}

/// Handles one call. Answers whether the connection may be used again.
pub async fn submit(shared: &Shared, connection: &mut Connection, request: &Request) -> bool {
    shared.book.borrow_mut().body_read();
    let call = match read_call(&request.body) {
        Ok(call) => call,
        Err(detail) => {
            let answer = Answer::error(400, detail);
            return connection
                .stream
                .write_all(&answer.bytes(request.keep_alive))
                .await
                .is_ok()
                && request.keep_alive;
        }
    };
    let reference = call.client_reference.as_str();
    shared.at("rail_stub.before_read");
    let nth = shared.book.borrow_mut().open(reference);
    shared.at("rail_stub.after_read");
    let (delay, answer_fault, ack_fault, hidden_for) = {
        let mut book = shared.book.borrow_mut();
        let seed = book.seed();
        let mut meet = |group| {
            let met = book.faults.meet(group, seed, reference, nth);
            if let Some(met) = &met {
                book.count(met.fault);
            }
            met
        };
        (
            meet(Group::Delay),
            meet(Group::Answer),
            meet(Group::Ack),
            meet(Group::Visibility).map_or(Duration::ZERO, |met| Duration::from_millis(met.latency_ms)),
        )
    };
    if let Some(met) = delay {
        // The caller may give up meanwhile; the rail goes on with what it has read.
        tokio::time::sleep(Duration::from_millis(met.latency_ms)).await;
    }
    if let Some(late) = answer_fault.as_ref().filter(|met| met.fault == Fault::LateExecution) {
        execute_late(
            shared,
            call,
            ack_fault,
            hidden_for,
            Duration::from_millis(late.latency_ms),
        );
        hold(connection).await;
        return false;
    }
    let decision = decide(shared, &call, answer_fault.as_ref(), hidden_for);
    shared.book.borrow_mut().close(reference);

    let acks = decision
        .as_ref()
        .map_or_else(Vec::new, |decision| acks(shared, &call, decision, ack_fault.as_ref()));
    if ack_fault.is_some_and(|met| met.fault == Fault::AckBeforeAnswer) {
        shared.acks.deliver(acks).await;
    } else if !acks.is_empty() {
        let acks_of_shared = shared.acks.clone();
        tokio::task::spawn_local(async move { acks_of_shared.deliver(acks).await });
    }
    let ending = ending(shared, &call, decision, answer_fault.as_ref());
    shared.at("rail_stub.before_answer");
    let kept = end(connection, ending, request.keep_alive).await;
    shared.at("rail_stub.after_answer");
    kept
}

fn read_call(body: &[u8]) -> Result<Call, String> {
    let call: Call = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if call.client_reference.is_empty() || call.client_reference.len() > 255 {
        return Err("client_reference must be 1 to 255 bytes".into());
    }
    if call.amount_minor <= 0 {
        return Err("amount_minor must be above 0".into());
    }
    if !circulates(&call.currency) {
        return Err("currency must be a circulating currency of ISO 4217".into());
    }
    if call.creditor.is_null() {
        return Err("creditor must be named".into());
    }
    Ok(call)
}

/// Whether a currency circulates by ISO 4217: no fund, no metal or test code, not withdrawn. The rail judges it itself, as
/// it stands alone. VES is current, which the table's version 0.7 has as superseded.
fn circulates(code: &str) -> bool {
    iso_currency::Currency::from_code(code).is_some_and(|currency| {
        let withdrawn = currency.is_superseded().is_some() && code != "VES";
        !currency.is_fund() && !currency.is_special() && !withdrawn
    })
}

/// What the rail does with the call; none where it neither executes nor declines.
fn decide(shared: &Shared, call: &Call, met: Option<&Met>, hidden_for: Duration) -> Option<Decision> {
    match met.map(|met| met.fault) {
        Some(
            Fault::TimeoutNotExecuted | Fault::Status500 | Fault::Status503 | Fault::Redirect307 | Fault::Redirect308,
        ) => None,
        Some(Fault::Decline) => {
            let reason = met
                .and_then(|met| met.reason.clone())
                .unwrap_or_else(|| "declined by the rail".into());
            shared.at("rail_stub.before_decline");
            let now = shared.now();
            shared.book.borrow_mut().decline(&call.client_reference, &reason, now);
            shared.at("rail_stub.after_decline");
            Some(Decision::Declined { reason })
        }
        _ => Some(execute(shared, call, hidden_for)),
    }
}

fn execute(shared: &Shared, call: &Call, hidden_for: Duration) -> Decision {
    shared.at("rail_stub.before_execute");
    let rail_reference = shared.book.borrow_mut().execute(
        &call.client_reference,
        call.amount_minor,
        &call.currency,
        hidden_for,
        shared.now(),
    );
    shared.at("rail_stub.after_execute");
    Decision::Executed { rail_reference }
}

/// Executes after `delay`, whatever becomes of the connection, and then sends the acks asked for.
fn execute_late(shared: &Shared, call: Call, ack_fault: Option<Met>, hidden_for: Duration, delay: Duration) {
    let shared = shared.clone();
    tokio::task::spawn_local(async move {
        tokio::time::sleep(delay).await;
        let decision = execute(&shared, &call, hidden_for);
        shared.book.borrow_mut().close(&call.client_reference);
        let acks = acks(&shared, &call, &decision, ack_fault.as_ref());
        shared.acks.deliver(acks).await;
    });
}

/// The asynchronous acks of a decision: none but for the three ack faults.
fn acks(shared: &Shared, call: &Call, decision: &Decision, met: Option<&Met>) -> Vec<Ack> {
    let Some(met) = met else { return Vec::new() };
    let ack = |decision: &Decision| {
        let (outcome, rail_reference, decline_reason) = match decision {
            Decision::Executed { rail_reference } => ("ACKED", Some(rail_reference.clone()), None),
            Decision::Declined { reason } => ("DECLINED", None, Some(reason.clone())),
        };
        Ack {
            client_reference: call.client_reference.clone(),
            outcome,
            rail_reference,
            decline_reason,
            amount_minor: call.amount_minor,
            currency: call.currency.clone(),
        }
    };
    match met.fault {
        Fault::DuplicateAck => vec![ack(decision), ack(decision)],
        Fault::AckBeforeAnswer => vec![ack(decision)],
        Fault::ConflictingAck => {
            let other = shared.book.borrow().reference(&call.client_reference, 999_999);
            vec![ack(&Decision::Executed { rail_reference: other })]
        }
        _ => Vec::new(),
    }
}

fn ending(shared: &Shared, call: &Call, decision: Option<Decision>, met: Option<&Met>) -> Ending {
    let answer = |decision: &Decision| {
        let (result, rail_reference, reason) = match decision {
            Decision::Executed { rail_reference } => ("ACK", Some(rail_reference.as_str()), None),
            Decision::Declined { reason } => ("DECLINED", None, Some(reason.as_str())),
        };
        Answer::json(
            200,
            &CallAnswer {
                result,
                rail_reference,
                reason,
                client_reference: &call.client_reference,
                amount_minor: call.amount_minor,
                currency: &call.currency,
            },
        )
    };
    let fault = met.map(|met| met.fault);
    let Some(decision) = decision else {
        return match fault {
            Some(Fault::Status500) => Ending::Answer(Answer::error(500, "the rail broke down")),
            Some(Fault::Status503) => Ending::Answer(Answer::error(503, "the rail is busy").header("retry-after", "1")),
            Some(Fault::Redirect307) => Ending::Answer(redirect(307)),
            Some(Fault::Redirect308) => Ending::Answer(redirect(308)),
            _ => Ending::Hold,
        };
    };
    match fault {
        Some(Fault::TimeoutExecuted) => Ending::Hold,
        Some(Fault::CloseAfterRead) => Ending::Close,
        Some(Fault::ResetAfterRead) => Ending::Reset,
        Some(Fault::Continue100) => Ending::Continue,
        Some(Fault::HalfResponse) => Ending::Half(answer(&decision)),
        Some(Fault::Trickle) => {
            let pause = met.map_or(100, |met| met.latency_ms);
            Ending::Trickle(answer(&decision), Duration::from_millis(pause))
        }
        Some(Fault::Garbage) => {
            let noise = shared.book.borrow().reference(&call.client_reference, 0);
            let mut garbage = answer(&decision);
            garbage.body = format!("{{\"result\":\"ACK\",\u{0}{noise}").into_bytes();
            Ending::Answer(garbage)
        }
        _ => Ending::Answer(answer(&decision)),
    }
}

fn redirect(status: u16) -> Answer {
    Answer::error(status, "the rail is elsewhere").header("location", "/submit")
}

/// Leaves the caller without an answer until it goes.
async fn hold(connection: &mut Connection) {
    let _ = tokio::time::timeout(HOLD_MAX, connection.gone()).await;
}

/// Ends the call on the socket. Answers whether the connection may be used again.
async fn end(connection: &mut Connection, ending: Ending, keep_alive: bool) -> bool {
    let stream = &mut connection.stream;
    match ending {
        Ending::Answer(answer) => stream.write_all(&answer.bytes(keep_alive)).await.is_ok() && keep_alive,
        Ending::Hold => {
            hold(connection).await;
            false
        }
        Ending::Close => false,
        Ending::Reset => {
            // Without lingering the close is a reset.
            if let Err(error) = stream.set_zero_linger() {
                tracing::warn!(event = "reset_failed", %error);
            }
            false
        }
        Ending::Half(answer) => {
            let bytes = answer.bytes(false);
            let half = bytes.len() - answer.body.len() / 2;
            let _ = stream.write_all(&bytes[..half]).await;
            false
        }
        Ending::Trickle(answer, pause) => {
            for byte in answer.bytes(false) {
                if stream.write_all(&[byte]).await.is_err() || stream.flush().await.is_err() {
                    break;
                }
                tokio::time::sleep(pause).await;
            }
            false
        }
        Ending::Continue => {
            let _ = stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await;
            false
        }
    }
}
