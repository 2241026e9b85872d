//! What a rail speaks, and what its answers mean. The port that a gateway implements, and pure classification (C3.7).

use futures_util::future::LocalBoxFuture;
use rail_store::{Evidence, Execution, Sighting};
use serde::Deserialize;
use std::time::Duration;

/// The longest reference of a rail that is taken, in characters (C3.1).
const REFERENCE_CHARS_MAX: usize = 140;

/// The longest reason of a refusal that is kept, in characters.
const REASON_CHARS_MAX: usize = 140;

/// What is sent to the rail. It sees neither a token nor a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailCall {
    /// What the rail is to know it by: the payout's id.
    pub client_reference: String,
    /// How much, in minor units.
    pub amount_minor: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// To whom.
    pub creditor_name: String,
    /// Where.
    pub creditor_account: String,
}

/// What came back, and what did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RailReply {
    /// A response, read to the length it announced.
    Answer {
        /// The HTTP status.
        status: u16,
        /// The body.
        body: Vec<u8>,
    },
    /// No response, or none that could be read to its end.
    Nothing(NoAnswer),
}

/// Why there is no answer. Each may have executed: even a connection that could not be made says nothing about what an
/// intermediary did (C3.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// `rail.read-timeout` passed.
    ReadTimeout,
    /// No connection.
    NotConnected(String),
    /// The connection broke, or what came was no HTTP.
    Broken(String),
    /// The body ended before its announced length.
    Truncated,
    /// The body was larger than any answer may be.
    Oversized,
}

impl NoAnswer {
    fn cause(&self) -> String {
        match self {
            Self::ReadTimeout => "read_timeout".to_owned(),
            Self::NotConnected(detail) => format!("not_connected: {detail}"),
            Self::Broken(detail) => format!("broken: {detail}"),
            Self::Truncated => "truncated_body".to_owned(),
            Self::Oversized => "oversized_body".to_owned(),
        }
    }
}

/// What is missing here for a submission. Nothing was recorded, nothing was sent: it may be asked for again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unprepared {
    /// This machine gives no socket or no local port now.
    NoSocket(String),
    /// The rail's name leads to no address.
    NoAddress(String),
}

/// What one submission needs of this machine, in hand: its sockets are open and have their local ports, but no connection
/// is. Dropped unused, it gives all of it back.
pub trait Line: Send {
    /// Opens the connection and sends the submission, once. Ready within the read time-out whatever the rail does. Needs no
    /// further descriptor, port or address.
    fn submit(self: Box<Self>, call: RailCall) -> LocalBoxFuture<'static, RailReply>;
}

/// The rail. An implementation follows no redirect, retries nothing, and uses a fresh connection per submission; when a
/// future is ready or dropped, its socket is closed.
pub trait Rail: Send + Sync {
    /// Gets what one submission needs, before its intent is recorded: a submission that was recorded can then fail at the
    /// rail and on the way there, never for want of what is ours (case S1). Sends nothing.
    ///
    /// # Errors
    /// [`Unprepared`], within a second.
    fn prepare(&self) -> LocalBoxFuture<'static, Result<Box<dyn Line>, Unprepared>>;

    /// Asks what the rail has in its book for a reference. Changes nothing there.
    fn look_up(&self, client_reference: String, within: Duration) -> LocalBoxFuture<'static, RailReply>;
}

/// The rail's answer to a submission. Read leniently where that is harmless: the rail is not ours.
#[derive(Debug, Deserialize)]
struct CallAnswer {
    result: String,
    #[serde(default)]
    rail_reference: Option<String>,
    #[serde(default)]
    reason: Option<String>,
    client_reference: String,
    amount_minor: i64,
    currency: String,
}

/// What a reply says about the submission. Anything that is not a well-formed ACK or DECLINE echoing this submission's
/// amount, currency and reference says nothing, and its cause is kept.
#[must_use]
pub fn classify(call: &RailCall, reply: &RailReply) -> Evidence {
    read_answer(call, reply).unwrap_or_else(|cause| Evidence::Timeout { cause })
}

fn read_answer(call: &RailCall, reply: &RailReply) -> Result<Evidence, String> {
    let body = match reply {
        RailReply::Nothing(why) => return Err(why.cause()),
        RailReply::Answer { status: 200, body } => body,
        RailReply::Answer { status, .. } => return Err(format!("status_{status}")),
    };
    let answer: CallAnswer = serde_json::from_slice(body).map_err(|_| "unreadable_body".to_owned())?;
    for (field, echoed) in [
        ("client_reference", answer.client_reference == call.client_reference),
        ("amount_minor", answer.amount_minor == call.amount_minor),
        ("currency", answer.currency == call.currency),
    ] {
        if !echoed {
            return Err(format!("not_echoed: {field}"));
        }
    }
    match (answer.result.as_str(), answer.rail_reference) {
        ("ACK", Some(rail_reference)) if is_reference(&rail_reference) => Ok(Evidence::Acked { rail_reference }),
        ("ACK", _) => Err("ack_without_reference".to_owned()),
        ("DECLINED", None) => Ok(Evidence::Declined {
            reason: answer.reason.map(|reason| plain(&reason)),
        }),
        ("DECLINED", Some(_)) => Err("decline_with_reference".to_owned()),
        _ => Err("unknown_result".to_owned()),
    }
}

fn is_reference(text: &str) -> bool {
    let chars = text.chars().count();
    (1..=REFERENCE_CHARS_MAX).contains(&chars) && !text.chars().any(char::is_control)
}

/// A text of the rail as it may be stored and shown.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(REASON_CHARS_MAX)
        .collect()
}

/// The rail's book for one reference.
#[derive(Debug, Deserialize)]
struct Book {
    client_reference: String,
    executions: Vec<RailBookEntry>,
    #[serde(default)]
    declined: Vec<BookDecline>,
    #[serde(default, rename = "final")]
    is_final: bool,
}

/// One execution in the rail's book.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RailBookEntry {
    /// The rail's reference.
    pub rail_reference: String,
    /// How much, in minor units.
    pub amount_minor: i64,
    /// ISO 4217 code.
    pub currency: String,
}

#[derive(Debug, Deserialize)]
struct BookDecline {
    #[serde(default)]
    reason: String,
}

/// What a lookup's reply says. A reply that cannot be read, or speaks of another reference, says nothing.
#[must_use]
pub fn read_book(client_reference: &str, reply: &RailReply) -> Sighting {
    let RailReply::Answer { status: 200, body } = reply else {
        return Sighting::Failed;
    };
    match serde_json::from_slice::<Book>(body) {
        Ok(book)
            if book.client_reference == client_reference
                && book.executions.iter().all(|e| is_reference(&e.rail_reference)) =>
        {
            Sighting::Book {
                executions: book
                    .executions
                    .into_iter()
                    .map(|entry| Execution {
                        rail_reference: entry.rail_reference,
                        amount_minor: entry.amount_minor,
                        currency: entry.currency,
                    })
                    .collect(),
                declined: book.declined.iter().map(|decline| plain(&decline.reason)).collect(),
                is_final: book.is_final,
            }
        }
        _ => Sighting::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn call() -> RailCall {
        RailCall {
            client_reference: "p1".into(),
            amount_minor: 1_250,
            currency: "EUR".into(),
            creditor_name: "Ada".into(),
            creditor_account: "DE02".into(),
        }
    }

    fn answer(status: u16, body: &Value) -> RailReply {
        RailReply::Answer {
            status,
            body: serde_json::to_vec(body).unwrap(),
        }
    }

    fn ack() -> Value {
        json!({"result": "ACK", "rail_reference": "R1", "client_reference": "p1", "amount_minor": 1250, "currency": "EUR"})
    }

    fn is_timeout(reply: &RailReply) -> bool {
        matches!(classify(&call(), reply), Evidence::Timeout { .. })
    }

    #[test]
    fn a_well_formed_ack_or_decline_is_believed() {
        let acked = Evidence::Acked {
            rail_reference: "R1".into(),
        };
        assert_eq!(classify(&call(), &answer(200, &ack())), acked);
        let decline = json!({"result": "DECLINED", "reason": "no\nfunds", "client_reference": "p1",
                             "amount_minor": 1250, "currency": "EUR", "further": true});
        let declined = Evidence::Declined {
            reason: Some("no funds".into()),
        };
        assert_eq!(classify(&call(), &answer(200, &decline)), declined);
    }

    #[test]
    fn anything_else_is_a_timeout_with_its_cause() {
        for status in [100, 201, 202, 204, 301, 307, 308, 400, 404, 409, 429, 500, 503] {
            assert!(is_timeout(&answer(status, &ack())), "status {status} was believed");
        }
        for (field, value) in [
            ("result", json!("ack")),
            ("result", json!("PENDING")),
            ("result", Value::Null),
            ("rail_reference", Value::Null),
            ("rail_reference", json!("")),
            ("rail_reference", json!("R\u{0}1")),
            ("rail_reference", json!("x".repeat(141))),
            ("rail_reference", json!(7)),
            ("client_reference", json!("p2")),
            ("client_reference", json!("P1")),
            ("amount_minor", json!(1251)),
            ("amount_minor", json!(1250.5)),
            ("amount_minor", json!("1250")),
            ("currency", json!("USD")),
            ("currency", json!("eur")),
        ] {
            let mut body = ack();
            body[field] = value.clone();
            assert!(is_timeout(&answer(200, &body)), "{field} = {value} was believed");
            let mut body = ack();
            body.as_object_mut().unwrap().remove(field);
            assert!(is_timeout(&answer(200, &body)), "a body without {field} was believed");
        }
        let mut contradictory = ack();
        contradictory["result"] = json!("DECLINED");
        assert!(is_timeout(&answer(200, &contradictory)));
        let doubled = br#"{"result":"DECLINED","result":"ACK","rail_reference":"R1","client_reference":"p1","amount_minor":1250,"currency":"EUR"}"#;
        for body in [&doubled[..], b"", b"[]", b"null", b"{\"result\":\"ACK\"", b"\xff\xfe"] {
            let reply = RailReply::Answer {
                status: 200,
                body: body.to_vec(),
            };
            assert!(is_timeout(&reply), "{body:?} was believed");
        }
        for why in [
            NoAnswer::ReadTimeout,
            NoAnswer::NotConnected("refused".into()),
            NoAnswer::Broken("reset".into()),
            NoAnswer::Truncated,
            NoAnswer::Oversized,
        ] {
            assert!(is_timeout(&RailReply::Nothing(why)));
        }
    }

    #[test]
    fn a_book_is_read_or_says_nothing() {
        let book = json!({"client_reference": "p1", "bodies_read": 1, "final": true, "declined": [],
            "executions": [{"rail_reference": "R1", "amount_minor": 1250, "currency": "EUR", "at": "2026-01-01T00:00:00Z"}]});
        let Sighting::Book {
            executions, is_final, ..
        } = read_book("p1", &answer(200, &book))
        else {
            panic!("a good book says nothing");
        };
        assert_eq!((executions.len(), is_final), (1, true));
        assert_eq!(read_book("p2", &answer(200, &book)), Sighting::Failed);
        assert_eq!(read_book("p1", &answer(500, &book)), Sighting::Failed);
        assert_eq!(
            read_book("p1", &answer(200, &json!({"client_reference": "p1"}))),
            Sighting::Failed
        );
        assert_eq!(
            read_book("p1", &RailReply::Nothing(NoAnswer::ReadTimeout)),
            Sighting::Failed
        );
    }

    proptest! {
        /// No bytes whatever are taken for an outcome unless they say so in full.
        #[test]
        fn noise_is_never_an_outcome(status in 0u16..600, body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let reply = RailReply::Answer { status, body };
            prop_assert!(is_timeout(&reply));
        }

        /// A good answer with any one byte changed is either still that answer, or another reference, or nothing.
        #[test]
        fn a_flipped_byte_never_turns_into_other_money(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut body = serde_json::to_vec(&ack()).unwrap();
            let at = at.index(body.len());
            body[at] = byte;
            match classify(&call(), &RailReply::Answer { status: 200, body: body.clone() }) {
                Evidence::Timeout { .. } => {}
                Evidence::Acked { rail_reference } => prop_assert!(is_reference(&rail_reference)),
                Evidence::Declined { .. } => prop_assert!(false, "{} reads as a decline", String::from_utf8_lossy(&body)),
            }
        }
    }
}
