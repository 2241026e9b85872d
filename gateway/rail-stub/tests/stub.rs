//! Each fault over a real socket: what the caller sees, and what stands in the book afterwards.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

use rail_stub::Stub;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Long enough on a busy machine, short enough that an answer which never comes is waited for in vain.
const PATIENCE: Duration = Duration::from_millis(1_500);
const BOUND: Duration = Duration::from_secs(10);

/// Runs a test against a stub of its own.
fn with_stub<F: Future<Output = ()>>(ack_url: Option<String>, test: impl FnOnce(Rail) -> F) {
    actix_rt::System::new().block_on(async move {
        let seed = 7;
        println!("seed {seed}");
        let stub = Stub::bind("127.0.0.1:0", ack_url, seed).await.unwrap();
        let base = format!("http://{}", stub.addr().unwrap());
        tokio::task::spawn_local(stub.serve(std::future::pending()));
        test(Rail {
            base,
            client: awc::Client::builder().timeout(BOUND).disable_redirects().finish(),
        })
        .await;
    });
}

struct Rail {
    base: String,
    client: awc::Client,
}

impl Rail {
    async fn put_faults(&self, faults: Value) {
        let mut answer = self
            .client
            .put(format!("{}/faults", self.base))
            .send_json(&faults)
            .await
            .unwrap();
        let body = answer.body().await.unwrap();
        assert_eq!(answer.status(), 200, "{body:?}");
    }

    async fn rule(&self, reference: &str, fault: &str, latency_ms: u64) {
        let rule = json!({ "client_reference": reference, "fault": fault, "latency_ms": latency_ms });
        self.put_faults(json!({ "rules": [rule] })).await;
    }

    /// Submits on a fresh connection. The error, as text, where no answer could be read.
    async fn submit(&self, reference: &str, within: Duration) -> Result<(u16, Vec<u8>), String> {
        let client = awc::Client::builder().timeout(within).disable_redirects().finish();
        let call = json!({
            "client_reference": reference,
            "amount_minor": 1_250,
            "currency": "EUR",
            "creditor": { "name": "Ada", "account": "DE02" },
        });
        let mut answer = client
            .post(format!("{}/submit", self.base))
            .force_close()
            .send_json(&call)
            .await
            .map_err(|error| format!("{error:?}"))?;
        let body = tokio::time::timeout(within, answer.body())
            .await
            .map_err(|_| "the body took too long".to_owned())?
            .map_err(|error| format!("{error:?}"))?;
        Ok((answer.status().as_u16(), body.to_vec()))
    }

    /// Submits, and goes away once the rail has read it.
    async fn submit_and_leave(&self, reference: &str) {
        let read = async {
            while self.book(reference).await["bodies_read"] == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            answer = self.submit(reference, BOUND) => panic!("{reference} was answered: {answer:?}"),
            () = read => {}
        }
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let mut answer = self.client.get(format!("{}{path}", self.base)).send().await.unwrap();
        let body = answer.body().await.unwrap();
        (answer.status().as_u16(), serde_json::from_slice(&body).unwrap())
    }

    async fn book(&self, reference: &str) -> Value {
        let (status, book) = self.get(&format!("/submissions?client_reference={reference}")).await;
        assert_eq!(status, 200);
        book
    }

    /// How many executions lookups see.
    async fn executions(&self, reference: &str) -> usize {
        self.book(reference).await["executions"].as_array().unwrap().len()
    }

    async fn await_executions(&self, reference: &str, wanted: usize) {
        tokio::time::timeout(BOUND, async {
            while self.executions(reference).await != wanted {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("{reference} never had {wanted} executions"));
    }
}

#[test]
fn a_submission_is_executed_as_often_as_it_is_sent() {
    with_stub(None, async |rail| {
        for _ in 0..3 {
            let (status, body) = rail.submit("p1", BOUND).await.unwrap();
            let answer: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(status, 200);
            assert_eq!(answer["result"], "ACK");
            assert_eq!(
                (
                    &answer["client_reference"],
                    &answer["amount_minor"],
                    &answer["currency"]
                ),
                (&json!("p1"), &json!(1_250), &json!("EUR"))
            );
        }
        let book = rail.book("p1").await;
        assert_eq!((&book["bodies_read"], &book["final"]), (&json!(3), &json!(true)));
        let references: std::collections::BTreeSet<_> = book["executions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|execution| execution["rail_reference"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(references.len(), 3, "each execution has a reference of its own");
        assert_eq!(
            rail.book("never").await["final"],
            false,
            "nothing can be promised about what was never read"
        );
    });
}

#[test]
fn faults_that_lose_the_answer_execute_once() {
    with_stub(None, async |rail| {
        for fault in [
            "timeout_executed",
            "close_after_read",
            "reset_after_read",
            "half_response",
            "trickle",
            "continue_100",
        ] {
            rail.rule(fault, fault, 100).await;
            let seen = rail.submit(fault, PATIENCE).await;
            println!("{fault}: {seen:?}");
            // A client that does not compare lengths takes half a body for a whole one: it must not read as an answer.
            let came_through =
                seen.is_ok_and(|(status, body)| status == 200 && serde_json::from_slice::<Value>(&body).is_ok());
            assert!(!came_through, "{fault}: an answer came through");
            rail.await_executions(fault, 1).await;
            assert_eq!(rail.book(fault).await["bodies_read"], 1, "{fault}");
        }
    });
}

#[test]
fn garbage_is_a_200_that_cannot_be_read() {
    with_stub(None, async |rail| {
        rail.rule("p1", "garbage", 0).await;
        let (status, body) = rail.submit("p1", BOUND).await.unwrap();
        assert_eq!(status, 200);
        assert!(serde_json::from_slice::<Value>(&body).is_err());
        assert_eq!(rail.executions("p1").await, 1);
    });
}

#[test]
fn faults_that_refuse_execute_nothing() {
    with_stub(None, async |rail| {
        for (fault, wanted) in [
            ("status_500", 500),
            ("status_503", 503),
            ("redirect_307", 307),
            ("redirect_308", 308),
        ] {
            rail.rule(fault, fault, 0).await;
            let (status, _) = rail.submit(fault, BOUND).await.unwrap();
            assert_eq!(status, wanted, "{fault}");
        }
        rail.rule("timeout_not_executed", "timeout_not_executed", 0).await;
        assert!(rail.submit("timeout_not_executed", PATIENCE).await.is_err());
        let (_, stats) = rail.get("/stats").await;
        assert_eq!((&stats["bodies_read"], &stats["executed"]), (&json!(5), &json!(0)));
        assert_eq!(stats["by_fault"]["redirect_307"], 1);
    });
}

#[test]
fn a_decline_is_in_the_book_with_its_reason() {
    with_stub(None, async |rail| {
        let rule = json!({ "client_reference": "p1", "fault": "decline", "reason": "no such account", "times": 1 });
        rail.put_faults(json!({ "rules": [rule] })).await;
        let (_, body) = rail.submit("p1", BOUND).await.unwrap();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (&answer["result"], &answer["reason"]),
            (&json!("DECLINED"), &json!("no such account"))
        );
        let book = rail.book("p1").await;
        assert_eq!(book["declined"][0]["reason"], "no such account");
        assert_eq!(book["executions"], json!([]));
        let (_, faults) = rail.get("/faults").await;
        assert_eq!(faults["rules"][0]["times"], 0);
    });
}

#[test]
fn latency_executes_before_it_answers_and_late_execution_after_the_caller_gave_up() {
    with_stub(None, async |rail| {
        rail.rule("slow", "latency", 50).await;
        assert_eq!(rail.submit("slow", BOUND).await.unwrap().0, 200);
        assert_eq!(rail.executions("slow").await, 1);

        rail.rule("late", "late_execution", 4_000).await;
        rail.submit_and_leave("late").await;
        let book = rail.book("late").await;
        assert_eq!((&book["executions"], &book["final"]), (&json!([]), &json!(false)));
        rail.await_executions("late", 1).await;
        assert_eq!(rail.book("late").await["final"], true);
    });
}

#[test]
fn lookups_can_fail_and_lag() {
    with_stub(None, async |rail| {
        rail.rule("p1", "lookup_lag", 4_000).await;
        rail.submit("p1", BOUND).await.unwrap();
        let book = rail.book("p1").await;
        assert_eq!(
            (&book["executions"], &book["bodies_read"], &book["final"]),
            (&json!([]), &json!(1), &json!(false)),
            "while an execution is hidden nothing is promised"
        );
        rail.await_executions("p1", 1).await;
        let rule = json!({ "client_reference": "p1", "fault": "lookup_error", "times": 2 });
        rail.put_faults(json!({ "rules": [rule] })).await;
        for wanted in [500, 500, 200] {
            assert_eq!(rail.get("/submissions?client_reference=p1").await.0, wanted);
        }
    });
}

/// A receiver of acks: answers 200 to each and keeps their bodies.
async fn receiver() -> (String, Rc<RefCell<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1/rail/acks", listener.local_addr().unwrap());
    let acks = Rc::new(RefCell::new(Vec::new()));
    let kept = acks.clone();
    tokio::task::spawn_local(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            let body = loop {
                let mut chunk = [0; 4096];
                let n = stream.read(&mut chunk).await.unwrap();
                bytes.extend_from_slice(&chunk[..n]);
                let text = String::from_utf8(bytes.clone()).unwrap();
                if let Some((_, body)) = text.split_once("\r\n\r\n")
                    && let Ok(body) = serde_json::from_str::<Value>(body)
                {
                    break body;
                }
            };
            kept.borrow_mut().push(body);
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
            stream.write_all(answer).await.unwrap();
        }
    });
    (url, acks)
}

#[test]
fn acks_go_out_for_the_three_ack_faults_alone() {
    actix_rt::System::new().block_on(async {
        let (url, acks) = receiver().await;
        let stub = Stub::bind("127.0.0.1:0", Some(url), 7).await.unwrap();
        let rail = Rail {
            base: format!("http://{}", stub.addr().unwrap()),
            client: awc::Client::new(),
        };
        tokio::task::spawn_local(stub.serve(std::future::pending()));
        let await_acks = async |wanted: usize| {
            tokio::time::timeout(BOUND, async {
                while acks.borrow().len() < wanted {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await
            .unwrap();
            acks.borrow_mut().split_off(0)
        };
        let answered = |body: &[u8]| -> Value {
            let answer: Value = serde_json::from_slice(body).unwrap();
            answer["rail_reference"].clone()
        };
        rail.submit("plain", BOUND).await.unwrap();

        rail.rule("before", "ack_before_answer", 0).await;
        let reference = answered(&rail.submit("before", BOUND).await.unwrap().1);
        let seen = acks.borrow_mut().split_off(0);
        assert_eq!(seen.len(), 1, "the ack is there before the answer");
        assert_eq!(
            seen[0],
            json!({ "client_reference": "before", "outcome": "ACKED", "rail_reference": reference,
                    "amount_minor": 1_250, "currency": "EUR" })
        );

        rail.rule("twice", "duplicate_ack", 0).await;
        let reference = answered(&rail.submit("twice", BOUND).await.unwrap().1);
        let seen = await_acks(2).await;
        assert!(seen.iter().all(|ack| ack["rail_reference"] == reference), "{seen:?}");

        rail.rule("conflict", "conflicting_ack", 0).await;
        let reference = answered(&rail.submit("conflict", BOUND).await.unwrap().1);
        assert_ne!(await_acks(1).await[0]["rail_reference"], reference);

        // A late ack: the answer is lost, the ack comes.
        rail.put_faults(json!({ "rules": [
            { "client_reference": "late", "fault": "late_execution", "latency_ms": 2_000 },
            { "client_reference": "late", "fault": "duplicate_ack" },
        ] }))
        .await;
        rail.submit_and_leave("late").await;
        assert_eq!(await_acks(2).await[0]["client_reference"], "late");
    });
}

#[test]
fn case_p28_the_rail_executes_no_currency_that_does_not_circulate() {
    with_stub(None, async |rail| {
        let submitted = async |currency: &str| {
            let call = json!({ "client_reference": "p", "amount_minor": 1, "currency": currency, "creditor": {} });
            let answer = rail.client.post(format!("{}/submit", rail.base)).send_json(&call).await;
            answer.unwrap().status().as_u16()
        };
        for currency in ["ZZZ", "EUT", "XXX", "XAU", "XTS", "XDR", "CLF", "HRK", "eur", ""] {
            assert_eq!(submitted(currency).await, 400, "{currency}");
        }
        let (_, stats) = rail.get("/stats").await;
        assert_eq!(stats["executed"], 0);
        for currency in ["EUR", "JPY", "KWD", "VES"] {
            assert_eq!(submitted(currency).await, 200, "{currency}");
        }
    });
}

#[test]
fn what_is_no_submission_is_refused_and_counted_as_read() {
    with_stub(None, async |rail| {
        for bad in [
            json!({}),
            json!({ "client_reference": "", "amount_minor": 1, "currency": "EUR", "creditor": {} }),
            json!({ "client_reference": "p", "amount_minor": 0, "currency": "EUR", "creditor": {} }),
            json!({ "client_reference": "p", "amount_minor": 1.5, "currency": "EUR", "creditor": {} }),
            json!({ "client_reference": "p", "amount_minor": 1, "currency": "euro", "creditor": {} }),
            json!({ "client_reference": "p", "amount_minor": 1, "currency": "EUR" }),
        ] {
            let answer = rail
                .client
                .post(format!("{}/submit", rail.base))
                .send_json(&bad)
                .await
                .unwrap();
            assert_eq!(answer.status(), 400, "{bad}");
        }
        let (_, stats) = rail.get("/stats").await;
        assert_eq!((&stats["bodies_read"], &stats["executed"]), (&json!(6), &json!(0)));
        for (bad, status) in [
            (json!({ "rates": { "garbage": 2 } }), 400),
            (json!({ "rates": { "no_such_fault": 0.5 } }), 400),
            (json!({ "rulez": [] }), 400),
            (json!({ "rates": { "garbage": 0.5 } }), 200),
        ] {
            let answer = rail
                .client
                .put(format!("{}/faults", rail.base))
                .send_json(&bad)
                .await
                .unwrap();
            assert_eq!(answer.status().as_u16(), status, "{bad}");
        }
        assert_eq!(
            rail.client
                .delete(format!("{}/faults", rail.base))
                .send()
                .await
                .unwrap()
                .status(),
            200
        );
        assert_eq!(rail.get("/faults").await.1, json!({ "rates": {}, "rules": [] }));
        for probe in ["/livez", "/readyz", "/startupz"] {
            assert_eq!(rail.get(probe).await.0, 200);
        }
        assert_eq!(rail.get("/nothing").await.0, 404);
        assert_eq!(rail.get("/submit").await.0, 405);
    });
}

#[test]
fn a_body_that_never_comes_whole_is_not_read() {
    with_stub(None, async |rail| {
        let addr = rail.base.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream
            .write_all(
                b"POST /submit HTTP/1.1\r\nhost: rail\r\ncontent-length: 100\r\n\r\n{\"client_reference\":\"p1\"",
            )
            .await
            .unwrap();
        drop(stream);
        rail.submit("p2", BOUND).await.unwrap();
        assert_eq!(rail.get("/stats").await.1["bodies_read"], 1);
        for (bytes, status) in [
            ("NONSENSE\r\n\r\n".to_owned(), "400"),
            (
                "POST /submit HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n".to_owned(),
                "411",
            ),
            (
                "POST /submit HTTP/1.1\r\ncontent-length: 99999999\r\n\r\n".to_owned(),
                "413",
            ),
            (format!("GET /{} HTTP/1.1\r\n", "x".repeat(20_000)), "431"),
        ] {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            stream.write_all(bytes.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            let answer = String::from_utf8_lossy(&answer).into_owned();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
    });
}

#[test]
fn it_stops_when_told_and_lets_calls_end() {
    actix_rt::System::new().block_on(async {
        let stub = Stub::bind("127.0.0.1:0", None, 7).await.unwrap();
        let rail = Rail {
            base: format!("http://{}", stub.addr().unwrap()),
            client: awc::Client::new(),
        };
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let served = tokio::task::spawn_local(stub.serve(async {
            let _ = stopped.await;
        }));
        rail.rule("p1", "latency", 300).await;
        let call = rail.submit("p1", BOUND);
        let stop_soon = async {
            while rail.get("/stats").await.1["bodies_read"] != 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            stop.send(()).unwrap();
        };
        let (answer, ()) = tokio::join!(call, stop_soon);
        assert_eq!(answer.unwrap().0, 200);
        tokio::time::timeout(BOUND, served).await.unwrap().unwrap();
    });
}
