//! Cases from the field and from attacks on the design, over real sockets: a rail that misbehaves, several proxies on one
//! paydb, callers that go away.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

mod support;

use futures_util::future::join_all;
use host_kit::Host;
use serde_json::json;
use std::time::Duration;
use support::process::Process;
use support::{BOUND, HORIZON_MS, IMPATIENT_MS, Proxy, World, await_verdict, submit_body, with_world};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// In this binary too a proxy can be a process of its own.
#[test]
fn child() {
    support::process::child();
}

/// Idle connections beyond what the proxy may have open cost no payout anything: each is acked, or refused without a row.
#[test]
fn case_s1_idle_connections_take_nothing_from_payouts() {
    const PAYOUTS: u64 = 24;
    with_world(async |world| {
        let process = Process::start_within(&world, 128).await;
        let address = process.proxy.base.strip_prefix("http://").unwrap();
        let mut idle = Vec::new();
        for n in 0..300 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream
                .write_all(b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                .await
                .unwrap();
            // Answered or closed before the next, so that it is idle then.
            assert!(
                stream.read(&mut [0; 1_024]).await.unwrap() > 0,
                "the probe of caller {n} has no answer"
            );
            idle.push(stream);
        }
        for n in 0..PAYOUTS {
            world.payments().claimed(&format!("p{n}"), &format!("a{n}"), 7);
        }
        let proxy = &process.proxy;
        let calls = (0..PAYOUTS).map(async |n| proxy.submit(&format!("p{n}"), &format!("a{n}"), 7).await);
        for answer in join_all(calls).await {
            let lawful = answer.outcome() == "ACKED" || (answer.status, answer.code()) == (503, "OVERLOADED");
            assert!(lawful, "{answer:?}");
        }
        let unsettled = "SELECT COUNT(*) FROM rail_submission WHERE outcome IS NULL OR outcome <> 'ACKED'";
        assert_eq!(world.count(unsettled), 0);
        // With its descriptors back it pays what it had to refuse, under the same token.
        drop(idle);
        for n in 0..PAYOUTS {
            let answer = proxy.submit(&format!("p{n}"), &format!("a{n}"), 7).await;
            assert_eq!(answer.outcome(), "ACKED", "{answer:?}");
            assert_eq!(world.rail.bodies_read(&format!("p{n}")).await, 1);
        }
    });
}

/// Not one descriptor is to be had: 503 without a row, and the same token pays once there is.
#[test]
fn case_s1_a_full_descriptor_table_costs_no_intent() {
    with_world(async |world| {
        let process = Process::start(&world, "", &[]).await;
        world.payments().claimed("p1", "a1", 7);
        let pid = rlimit_pid(&process);
        let (mut soft, mut hard) = (0, 0);
        rlimit::prlimit(pid, rlimit::Resource::NOFILE, None, Some((&mut soft, &mut hard))).unwrap();
        let address = process.proxy.base.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let probe = "GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
        assert!(exchange(&mut stream, probe).await.starts_with("HTTP/1.1 200"));
        rlimit::prlimit(pid, rlimit::Resource::NOFILE, Some((3, hard)), None).unwrap();
        let body = submit_body("p1", "a1").to_string();
        let submit = format!(
            "POST /v1/rail/submissions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
             x-fencing-token: 7\r\nx-idempotency-key: p1\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let refused = exchange(&mut stream, &submit).await;
        assert!(
            refused.starts_with("HTTP/1.1 503") && refused.contains("OVERLOADED"),
            "{refused}"
        );
        assert_eq!(world.count("SELECT COUNT(*) FROM rail_submission"), 0);
        rlimit::prlimit(pid, rlimit::Resource::NOFILE, Some((soft, hard)), None).unwrap();
        let answer = process.proxy.submit("p1", "a1", 7).await;
        assert_eq!((answer.status, answer.outcome()), (200, "ACKED"), "{answer:?}");
        assert_eq!(world.rail.bodies_read("p1").await, 1);
    });
}

fn rlimit_pid(process: &Process) -> i32 {
    i32::try_from(process.child.id()).unwrap()
}

/// Sends this and reads the answer, whose body is JSON or nothing of length.
async fn exchange(stream: &mut TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    loop {
        let read = tokio::time::timeout(BOUND, stream.read_buf(&mut answer))
            .await
            .unwrap()
            .unwrap();
        let text = String::from_utf8_lossy(&answer).into_owned();
        let whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
            let length = head.to_ascii_lowercase().lines().find_map(|line| {
                line.strip_prefix("content-length: ")
                    .and_then(|length| length.parse().ok())
            });
            body.len() >= length.unwrap_or(0)
        });
        if whole || read == 0 {
            return text;
        }
    }
}

/// A rail whose name leads nowhere: said before anything is recorded, and the account's mark stays.
#[test]
fn case_s1_a_rail_without_an_address_costs_no_intent() {
    with_world(async |world| {
        let nowhere = world
            .proxy_with(&[("rail.url", "http://no-such-rail.invalid")], Host::system())
            .await;
        world.payments().claimed("p1", "a1", 7);
        let answer = nowhere.submit("p1", "a1", 7).await;
        assert_eq!(
            (answer.status, answer.code()),
            (503, "BACKEND_UNAVAILABLE"),
            "{answer:?}"
        );
        assert_eq!(world.count("SELECT COUNT(*) FROM rail_submission"), 0);
        assert_eq!(world.count("SELECT COUNT(*) FROM rail_high_water"), 0);
        let answer = world.proxy().await.submit("p1", "a1", 7).await;
        assert_eq!((answer.status, answer.outcome()), (200, "ACKED"), "{answer:?}");
    });
}

/// The rail times out, then 50 lookups fail: still ambiguous, sent once.
#[test]
fn case_p01_fifty_failing_lookups_leave_it_ambiguous() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        world.payments().claimed("p1", "a1", 7);
        world
            .rail
            .rules(json!([
                { "client_reference": "p1", "fault": "timeout_executed" },
                { "client_reference": "p1", "fault": "lookup_error", "times": 50 },
            ]))
            .await;
        let answer = world.impatient().await.submit("p1", "a1", 7).await;
        assert_eq!(
            (
                answer.status,
                answer.code(),
                answer.outcome(),
                &answer.body["retryable"]
            ),
            (409, "RAIL_AMBIGUOUS", "TIMEOUT", &json!(false))
        );
        world.payments().set("p1", "RAIL_AMBIGUOUS", 7);
        tokio::time::sleep(Duration::from_millis(HORIZON_MS)).await;
        for _ in 0..50 {
            assert_eq!(proxy.look_up("p1").await.body["verdict"], "INCONCLUSIVE");
        }
        assert_eq!(proxy.submission("p1").await.outcome(), "TIMEOUT");
        // The first one that is answered finds it; nothing was sent again meanwhile.
        assert_eq!(proxy.look_up("p1").await.body["verdict"], "EXECUTED");
        assert_eq!(world.rail.bodies_read("p1").await, 1);
    });
}

/// DECLINED, then the same payout under a new token: the recorded DECLINED, sent once.
#[test]
fn case_p03_a_decline_is_not_tried_again() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        world.payments().claimed("p1", "a1", 7);
        world.rail.rule("p1", "decline", 0).await;
        let declined = proxy.submit("p1", "a1", 7).await;
        assert_eq!((declined.status, declined.outcome()), (200, "DECLINED"));
        world.payments().set("p1", "CLAIMED", 8);
        let again = proxy.submit("p1", "a1", 8).await;
        assert_eq!(
            (again.status, again.code(), again.outcome()),
            (409, "ALREADY_SUBMITTED", "DECLINED")
        );
        assert_eq!(again.body["decline_reason"], declined.body["decline_reason"]);
        assert_eq!(world.rail.bodies_read("p1").await, 1);
    });
}

/// 100 first submissions of one payout at once, through two proxies: one row, sent once.
#[test]
fn case_p11_a_hundred_first_submissions_at_once() {
    with_world(async |world| {
        let proxies = [world.proxy().await, world.proxy().await];
        world.payments().claimed("p1", "a1", 7);
        let calls = (0..100).map(|n| {
            let proxy = proxies[n % 2].clone();
            async move { proxy.submit("p1", "a1", 7).await }
        });
        let answers = join_all(calls).await;
        let fresh = answers.iter().filter(|a| a.status == 200 && !a.replayed).count();
        for answer in &answers {
            let lawful = answer.status == 200 && answer.outcome() == "ACKED" || answer.code() == "SUBMISSION_IN_FLIGHT";
            assert!(lawful, "{answer:?}");
        }
        assert_eq!(fresh, 1);
        assert_eq!(world.count("SELECT COUNT(*) FROM rail_submission"), 1);
        assert_eq!(world.rail.bodies_read("p1").await, 1);
        for proxy in &proxies {
            assert_eq!(proxy.metric("rail_duplicate_attempted_total").await, 0.0);
        }
    });
}

/// A creditor in any script and any normal form is compared as it is stored, byte for byte, or refused.
#[test]
fn case_p12_text_is_compared_as_it_is_stored() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        let names = [
            "Zo\u{e9}",
            "Zoe\u{301}",
            "\u{1f4b8} Ltd",
            "\u{202e}\u{5d0}\u{5d1}",
            "line\u{2028}end",
        ];
        for (n, name) in names.iter().enumerate() {
            let (payout, token) = (format!("p{n}"), n as u64 + 1);
            let creditor = json!({ "name": name, "account": "DE02" });
            world
                .payments()
                .claimed(&payout, "a1", token)
                .set_creditor(&payout, &creditor);
            let mut body = submit_body(&payout, "a1");
            body["creditor"] = json!({ "name": names[(n + 1) % 2], "account": "DE02" });
            if n < 2 {
                let other_form = proxy.submit_body(&payout, token, &body).await;
                assert_eq!(
                    (other_form.status, &other_form.body["field"]),
                    (422, &json!("creditor.name")),
                    "{name:?} was taken for its other form"
                );
            }
            body["creditor"] = creditor;
            assert_eq!(
                proxy.submit_body(&payout, token, &body).await.outcome(),
                "ACKED",
                "{name:?}"
            );
        }
        let mut body = submit_body("p0", "a1");
        body["creditor"]["name"] = json!("a\nb");
        assert_eq!(proxy.submit_body("p0", 1, &body).await.status, 400);
    });
}

/// Acks that repeat or contradict the answer, sent by the rail itself.
#[test]
fn case_p14_duplicate_and_conflicting_acks_change_no_outcome() {
    with_acking_rail(async |world, proxy| {
        world
            .payments()
            .claimed("twice", "a1", 1)
            .claimed("conflict", "a2", 2)
            .claimed("late", "a3", 3);
        world
            .rail
            .rules(json!([
                { "client_reference": "twice", "fault": "duplicate_ack" },
                { "client_reference": "conflict", "fault": "conflicting_ack" },
                { "client_reference": "late", "fault": "late_execution", "latency_ms": IMPATIENT_MS + 3_000 },
                { "client_reference": "late", "fault": "duplicate_ack" },
            ]))
            .await;
        let twice = proxy.submit("twice", "a1", 1).await;
        let conflict = proxy.submit("conflict", "a2", 2).await;
        assert_eq!((twice.outcome(), conflict.outcome()), ("ACKED", "ACKED"));
        let late = world.impatient().await.submit("late", "a3", 3).await;
        assert_eq!(late.code(), "RAIL_AMBIGUOUS");
        // TIMEOUT stays open to a late answer.
        let late = proxy.await_outcome("late", "ACKED").await;
        assert_eq!(late["cause"], "ack");
        let exceptions = await_exceptions(&proxy, 1).await;
        assert_eq!(
            (&exceptions[0]["payout_id"], &exceptions[0]["kind"]),
            (&json!("conflict"), &json!("DOUBLE_PAYMENT_SUSPECTED"))
        );
        assert_eq!(
            proxy.submission("conflict").await.body["rail_reference"],
            conflict.body["rail_reference"]
        );
        assert_eq!(
            proxy.submission("twice").await.body["rail_reference"],
            twice.body["rail_reference"]
        );
        for payout in ["twice", "conflict", "late"] {
            assert_eq!(world.rail.bodies_read(payout).await, 1);
        }
    });
}

/// The rail's ack arrives before its own answer: accepted, one outcome, nothing for a human.
#[test]
fn case_p15_the_ack_comes_before_the_answer() {
    with_acking_rail(async |world, proxy| {
        world.payments().claimed("p1", "a1", 1).claimed("p2", "a2", 2);
        world
            .rail
            .rules(json!([
                { "client_reference": "p1", "fault": "ack_before_answer" },
                { "client_reference": "p2", "fault": "ack_before_answer" },
                { "client_reference": "p2", "fault": "timeout_executed" },
            ]))
            .await;
        let answer = proxy.submit("p1", "a1", 1).await;
        assert_eq!((answer.status, answer.outcome()), (200, "ACKED"));
        assert_eq!(proxy.submission("p1").await.body["cause"], "ack", "the ack was first");
        // The answer is lost, the ack was not: the caller gets the outcome all the same.
        let answer = proxy.submit("p2", "a2", 2).await;
        assert_eq!((answer.status, answer.outcome()), (200, "ACKED"), "{answer:?}");
        assert_eq!(proxy.exceptions().await.len(), 0);
    });
}

/// A rail that acks to the proxy, and the proxy.
fn with_acking_rail<F: Future<Output = ()>>(test: impl FnOnce(World, Proxy) -> F) {
    println!("seed {}", support::SEED);
    actix_rt::System::new().block_on(async move {
        // The rail has to know the proxy's address before the proxy can know the rail's: a relay stands in between.
        let relay = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/rail/acks", relay.local_addr().unwrap());
        let world = World::with_acks_to(Some(url)).await;
        let proxy = world.proxy().await;
        let target = proxy.base.strip_prefix("http://").unwrap().to_owned();
        tokio::task::spawn_local(async move {
            loop {
                let (mut from, _) = relay.accept().await.unwrap();
                let target = target.clone();
                tokio::task::spawn_local(async move {
                    let mut to = TcpStream::connect(target).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                });
            }
        });
        test(world, proxy).await;
    });
}

async fn await_exceptions(proxy: &Proxy, wanted: usize) -> Vec<serde_json::Value> {
    tokio::time::timeout(BOUND, async {
        loop {
            let found = proxy.exceptions().await;
            if found.len() >= wanted {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap()
}

/// Not found, not found, found.
#[test]
fn case_p16_found_at_last() {
    with_world(async |world| {
        let proxy = world
            .proxy_with(&[("rail.visibility-horizon", "1h")], Host::system())
            .await;
        world.payments().claimed("p1", "a1", 7);
        world
            .rail
            .rules(json!([
                { "client_reference": "p1", "fault": "timeout_executed" },
                { "client_reference": "p1", "fault": "lookup_lag", "latency_ms": IMPATIENT_MS + 5_000 },
            ]))
            .await;
        let lost = world.impatient().await.submit("p1", "a1", 7).await;
        assert_eq!(lost.code(), "RAIL_AMBIGUOUS");
        for _ in 0..2 {
            let answer = proxy.look_up("p1").await;
            assert_eq!(
                (&answer.body["verdict"], &answer.body["executions"]),
                (&json!("INCONCLUSIVE"), &json!(0))
            );
        }
        let found = await_verdict(&proxy, "p1", "EXECUTED").await;
        assert_eq!(found["executions"], 1);
        assert_eq!(proxy.submission("p1").await.outcome(), "ACKED");
    });
}

/// Whatever a rail does after it has read the request: sent once, outcome TIMEOUT with its cause.
#[test]
fn case_p17_each_way_to_lose_an_answer_is_a_timeout_and_is_sent_once() {
    with_world(async |world| {
        let proxy = world.impatient().await;
        let faults = [
            "close_after_read",
            "reset_after_read",
            "half_response",
            "trickle",
            "garbage",
            "timeout_executed",
            "timeout_not_executed",
            "late_execution",
            "status_500",
            "status_503",
            "redirect_307",
            "redirect_308",
            "continue_100",
            "latency",
        ];
        let rules: Vec<_> = faults
            .iter()
            .map(|fault| {
                let latency = if *fault == "trickle" { 50 } else { 20_000 };
                json!({ "client_reference": fault, "fault": fault, "latency_ms": latency })
            })
            .collect();
        world.rail.rules(json!(rules)).await;
        for (n, fault) in faults.iter().enumerate() {
            world.payments().claimed(fault, &format!("a{n}"), 7);
        }
        let answers = join_all(faults.iter().enumerate().map(|(n, fault)| {
            let proxy = proxy.clone();
            async move { proxy.submit(fault, &format!("a{n}"), 7).await }
        }))
        .await;
        for (fault, answer) in faults.iter().zip(&answers) {
            println!("{fault}: {} {}", answer.code(), answer.body["cause"]);
            assert_eq!(
                (answer.status, answer.code(), answer.outcome()),
                (409, "RAIL_AMBIGUOUS", "TIMEOUT"),
                "{fault}: {answer:?}"
            );
            let row = proxy.submission(fault).await;
            assert_eq!(row.outcome(), "TIMEOUT", "{fault}");
            assert!(
                row.body["cause"].as_str().is_some_and(|cause| !cause.is_empty()),
                "{fault} has no cause"
            );
        }
        // Long enough for anything that would be sent again to have come.
        tokio::time::sleep(Duration::from_millis(IMPATIENT_MS * 2)).await;
        for fault in faults {
            assert_eq!(world.rail.bodies_read(fault).await, 1, "{fault}");
        }
        assert_eq!(
            proxy.metric("rail_submissions_total{outcome=\"timeout\"}").await,
            faults.len() as f64
        );
    });
}

/// A replay while the first is in flight is told so, and never ACKED.
#[test]
fn case_p19_a_replay_of_what_is_in_flight() {
    with_world(async |world| {
        let proxy = world.proxy_with(&[("rail.read-timeout", "9s")], Host::system()).await;
        world.payments().claimed("p1", "a1", 7);
        world.rail.rule("p1", "latency", 5_000).await;
        let first = {
            let proxy = proxy.clone();
            tokio::task::spawn_local(async move { proxy.submit("p1", "a1", 7).await })
        };
        await_read(&world, "p1").await;
        let replay = proxy.submit("p1", "a1", 7).await;
        assert_eq!(
            (replay.status, replay.code(), replay.replayed),
            (409, "SUBMISSION_IN_FLIGHT", true)
        );
        assert_eq!(first.await.unwrap().outcome(), "ACKED");
        assert_eq!(proxy.submit("p1", "a1", 7).await.outcome(), "ACKED");
        assert_eq!(world.rail.bodies_read("p1").await, 1);
    });
}

async fn await_read(world: &World, payout: &str) {
    tokio::time::timeout(BOUND, async {
        while world.rail.bodies_read(payout).await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
}

/// The rail acks between "not received" and FAILED: the ack is recorded. After FAILED it is an exception.
#[test]
fn case_d02_a_late_ack_before_and_after_the_settlement() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        world.payments().claimed("p1", "a1", 1).claimed("p2", "a2", 2);
        world
            .rail
            .rules(json!([
                { "client_reference": "p1", "fault": "timeout_not_executed" },
                { "client_reference": "p2", "fault": "timeout_not_executed" },
            ]))
            .await;
        let ack = |payout: &str| json!({ "client_reference": payout, "outcome": "ACKED", "rail_reference": "LATE", "amount_minor": 1250, "currency": "EUR" });
        for (payout, account, token) in [("p1", "a1", 1), ("p2", "a2", 2)] {
            let lost = world.impatient().await.submit(payout, account, token).await;
            assert_eq!(lost.code(), "RAIL_AMBIGUOUS");
            await_verdict(&proxy, payout, "NOT_RECEIVED").await;
        }
        assert_eq!(proxy.ack(&ack("p1")).await.body["recorded"], "outcome");
        assert_eq!(proxy.submission("p1").await.outcome(), "ACKED");
        world.payments().set("p2", "FAILED", 2);
        assert_eq!(proxy.ack(&ack("p2")).await.body["recorded"], "anomaly");
        assert_eq!(proxy.submission("p2").await.outcome(), "NOT_RECEIVED");
        let exceptions = proxy.exceptions().await;
        assert_eq!(
            (exceptions.len(), &exceptions[0]["kind"]),
            (1, &json!("LATE_ACK_AFTER_FAILED"))
        );
    });
}

/// W1 is revoked and nobody acquires: after the account fence its claim buys it nothing.
#[test]
fn case_d07_a_revoked_holder_is_refused_at_the_rail() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        assert_eq!(proxy.fence_account("a1", 8).await.status, 200);
        world.payments().claimed("p1", "a1", 7);
        let late = proxy.submit("p1", "a1", 7).await;
        assert_eq!(
            (late.status, late.code(), &late.body["reason"]),
            (409, "FENCED_OUT", &json!("stale"))
        );
        assert_eq!(world.rail.bodies_read("p1").await, 0);
    });
}

/// R6 beside a submit, through two proxies: it sees the intent, or the submit is refused.
#[test]
fn case_d11_a_fence_beside_a_submit() {
    with_world(async |world| {
        let proxies = [world.proxy().await, world.proxy().await];
        for round in 0..10 {
            let (payout, account) = (format!("p{round}"), format!("a{round}"));
            world.payments().claimed(&payout, &account, 7);
            let (submitted, fenced) = tokio::join!(
                proxies[0].submit(&payout, &account, 7),
                proxies[1].fence(&payout, 8, false)
            );
            assert_eq!(fenced.status, 200, "{fenced:?}");
            if submitted.status == 200 {
                assert_eq!(
                    fenced.body["submission"]["payout_id"], payout,
                    "the fence missed an intent"
                );
            } else {
                assert_eq!(
                    (submitted.code(), &fenced.body["submission"]),
                    ("FENCED_OUT", &json!(null))
                );
                assert_eq!(world.rail.bodies_read(&payout).await, 0);
            }
        }
    });
}

/// A claim whose submission is refused for ever: R6 with forbid makes the evidence that frees the hold.
#[test]
fn case_d14_forbidding_what_can_never_be_submitted() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        world.payments().claimed("p1", "a1", 7);
        let forbidden = proxy.fence("p1", 8, true).await;
        assert_eq!(
            (forbidden.status, &forbidden.body["submission"]["outcome"]),
            (200, &json!("NOT_SENT"))
        );
        assert_eq!(proxy.submission("p1").await.outcome(), "NOT_SENT");
        for token in [7, 9] {
            world.payments().set("p1", "CLAIMED", token);
            assert_eq!(proxy.submit("p1", "a1", token).await.status, 409);
        }
        assert_eq!(world.rail.bodies_read("p1").await, 0);
    });
}

/// A caller that goes away, by a plain close or by a reset, changes nothing: the submission runs to its outcome.
#[test]
fn a_submission_outlives_its_caller() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        for (n, reset) in [(1_u64, false), (2, true)] {
            let (payout, account) = (format!("p{n}"), format!("a{n}"));
            world.payments().claimed(&payout, &account, n);
            world.rail.rule(&payout, "latency", 400).await;
            let body = submit_body(&payout, &account).to_string();
            let request = format!(
                "POST /v1/rail/submissions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-fencing-token: {n}\r\n\
                 x-idempotency-key: {payout}\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            let mut caller = TcpStream::connect(proxy.base.strip_prefix("http://").unwrap())
                .await
                .unwrap();
            caller.write_all(request.as_bytes()).await.unwrap();
            await_read(&world, &payout).await;
            if reset {
                caller.set_zero_linger().unwrap();
            }
            drop(caller);
            proxy.await_outcome(&payout, "ACKED").await;
            assert_eq!(world.rail.bodies_read(&payout).await, 1);
        }
    });
}

/// A rail of the test's own making: answers each connection with these bytes, once the request is read, and tells when
/// the peer has closed.
async fn raw_rail(answer: Vec<u8>) -> (String, tokio::sync::mpsc::UnboundedReceiver<&'static str>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    tokio::task::spawn_local(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (answer, tell) = (answer.clone(), tell.clone());
            tokio::task::spawn_local(async move {
                let mut request = Vec::new();
                loop {
                    let mut chunk = [0; 4096];
                    let n = stream.read(&mut chunk).await.unwrap();
                    request.extend_from_slice(&chunk[..n]);
                    let text = String::from_utf8_lossy(&request).into_owned();
                    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
                    if body.is_some_and(|body| serde_json::from_str::<serde_json::Value>(&body).is_ok()) {
                        break;
                    }
                    assert_ne!(n, 0, "the peer closed before its request was whole: {text}");
                }
                tell.send("read").unwrap();
                let _ = stream.write_all(&answer).await;
                if !answer.is_empty() {
                    let _ = stream.shutdown().await;
                }
                let mut rest = [0; 64];
                while matches!(stream.read(&mut rest).await, Ok(1..)) {}
                let _ = tell.send("closed");
            });
        }
    });
    (base, told)
}

async fn proxy_to(world: &World, rail: &str) -> Proxy {
    Proxy::start(&support::settings(world.directory.path(), rail, &[]), Host::system()).await
}

/// TIMEOUT is written after the socket is closed, so that nothing can be read from it any more.
#[test]
fn the_socket_is_closed_before_the_timeout_is_recorded() {
    with_world(async |world| {
        let (rail, mut told) = raw_rail(Vec::new()).await;
        let impatient = [("rail.url", rail.as_str()), ("rail.read-timeout", "1s")];
        let proxy = world.proxy_with(&impatient, Host::system()).await;
        world.payments().claimed("p1", "a1", 7);
        assert_eq!(proxy.submit("p1", "a1", 7).await.code(), "RAIL_AMBIGUOUS");
        assert_eq!(tokio::time::timeout(BOUND, told.recv()).await.unwrap(), Some("read"));
        let closed = tokio::time::timeout(BOUND, told.recv()).await.unwrap();
        assert_eq!(closed, Some("closed"));
        assert!(told.try_recv().is_err(), "a second connection was made");
    });
}

#[test]
fn answers_that_are_not_this_submissions_say_nothing() {
    with_world(async |world| {
        let ok = |body: &str| {
            format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        let ack = |reference: &str, amount: i64, currency: &str| {
            json!({ "result": "ACK", "rail_reference": "R1", "client_reference": reference,
                    "amount_minor": amount, "currency": currency })
            .to_string()
        };
        let good = ack("p", 1250, "EUR");
        let cases: Vec<(&str, String, &str)> = vec![
            ("good", ok(&good), "ACKED"),
            ("reference", ok(&ack("q", 1250, "EUR")), "TIMEOUT"),
            ("amount", ok(&ack("p", 1, "EUR")), "TIMEOUT"),
            ("currency", ok(&ack("p", 1250, "USD")), "TIMEOUT"),
            ("empty", ok(""), "TIMEOUT"),
            ("not json", ok("<html>"), "TIMEOUT"),
            ("too large", ok(&format!("{good}{}", " ".repeat(100_000))), "TIMEOUT"),
            ("201", ok(&good).replace("200 OK", "201 Created"), "TIMEOUT"),
            ("204", "HTTP/1.1 204 No Content\r\n\r\n".to_owned(), "TIMEOUT"),
            ("no http", "SMTP ready\r\n\r\n".to_owned(), "TIMEOUT"),
            (
                "longer than it says",
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{good}", good.len() - 1),
                "TIMEOUT",
            ),
            // Readable as far as it came, and not all that was announced.
            (
                "shorter than it says",
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{good}", good.len() + 9),
                "TIMEOUT",
            ),
            (
                "a broken chunk",
                format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{good}\r\n0\r\n\r\n"),
                "TIMEOUT",
            ),
            (
                "whole chunks",
                format!(
                    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{good}\r\n0\r\n\r\n",
                    good.len()
                ),
                "ACKED",
            ),
        ];
        for (what, answer, outcome) in cases {
            let world = World::new().await;
            let (rail, _told) = raw_rail(answer.into_bytes()).await;
            let proxy = proxy_to(&world, &rail).await;
            world.payments().claimed("p", "a1", 7);
            let seen = proxy.submit("p", "a1", 7).await;
            println!("{what}: {} {}", seen.outcome(), seen.body["cause"]);
            assert_eq!(seen.outcome(), outcome, "{what}: {seen:?}");
        }
        drop(world);
    });
}

#[test]
fn a_rail_that_cannot_be_reached_is_ambiguous_too() {
    with_world(async |world| {
        let nobody = test_servers::reserved();
        let proxy = proxy_to(&world, &format!("http://{}", nobody.address())).await;
        world.payments().claimed("p1", "a1", 7);
        let answer = proxy.submit("p1", "a1", 7).await;
        assert_eq!((answer.code(), answer.outcome()), ("RAIL_AMBIGUOUS", "TIMEOUT"));
        assert!(
            answer.body["cause"].as_str().unwrap().starts_with("not_connected"),
            "{answer:?}"
        );
        assert_eq!(proxy.look_up("p1").await.body["verdict"], "INCONCLUSIVE");
    });
}

/// A store that cannot be written: before the intent a 503 and nothing done; afterwards the outcome is kept until it can.
#[test]
fn a_locked_store_loses_no_outcome() {
    with_world(async |world| {
        let proxy = async |store_timeout: &str| {
            let settings = [("rail.store.timeout", store_timeout), ("rail.read-timeout", "9s")];
            world.proxy_with(&settings, Host::system()).await
        };
        world.payments().claimed("p1", "a1", 7);
        let other = world.rail_db();
        let impatient = proxy("300ms").await;
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let refused = impatient.submit("p1", "a1", 7).await;
        assert!(
            refused.status == 503 || refused.code() == "SUBMISSION_IN_FLIGHT",
            "neither refused nor in doubt: {refused:?}"
        );
        assert_eq!(world.rail.bodies_read("p1").await, 0);
        other.execute_batch("ROLLBACK").unwrap();

        let proxy = proxy("2s").await;
        world.payments().claimed("p2", "a2", 8);
        world.rail.rule("p2", "latency", 1_000).await;
        let call = {
            let proxy = proxy.clone();
            tokio::task::spawn_local(async move { proxy.submit("p2", "a2", 8).await })
        };
        await_read(&world, "p2").await;
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        // Longer than the rail and the store's time-out take together.
        tokio::time::sleep(Duration::from_secs(4)).await;
        other.execute_batch("ROLLBACK").unwrap();
        proxy.await_outcome("p2", "ACKED").await;
        assert_eq!(world.rail.bodies_read("p2").await, 1);
        let answer = call.await.unwrap();
        assert!(answer.status < 500, "a 5xx after the intent: {answer:?}");
    });
}

/// Where there is no payment file, nothing is guessed and nothing is sent.
#[test]
fn without_a_payment_file_nothing_is_submitted() {
    with_world(async |world| {
        let empty = tempfile::tempdir().unwrap();
        let proxy = Proxy::start(&support::settings(empty.path(), &world.rail.base, &[]), Host::system()).await;
        let answer = proxy.submit("p1", "a1", 7).await;
        assert_eq!((answer.status, answer.code()), (503, "BACKEND_UNAVAILABLE"));
        assert_eq!(world.rail.bodies_read("p1").await, 0);
        support::Payments::create(empty.path());
        support::Payments::open(empty.path()).claimed("p1", "a1", 7);
        assert_eq!(proxy.submit("p1", "a1", 7).await.outcome(), "ACKED");
    });
}

/// The negative control: with the switch off a late W1 pays a second time, and everything shouts.
#[cfg(feature = "lab")]
#[test]
fn without_the_fence_money_is_lost() {
    with_world(async |world| {
        for (enabled, executions) in [("true", 1), ("false", 2)] {
            let proxy = world
                .proxy_with(&[("rail.fencing.enabled", enabled)], Host::system())
                .await;
            let (payout, account) = (format!("p-{enabled}"), format!("a-{enabled}"));
            // W1 (7) claims and is paused before it submits; W2 (8) re-claims, submits, posts; W1 resumes.
            world.payments().claimed(&payout, &account, 8);
            assert_eq!(proxy.submit(&payout, &account, 8).await.outcome(), "ACKED");
            world.payments().set(&payout, "POSTED", 8);
            let late = proxy.submit(&payout, &account, 7).await;
            println!("fence {enabled}: {} {}", late.status, late.code());
            assert_eq!(world.rail.executions(&payout).await, executions, "fence {enabled}");
            assert_eq!(
                proxy.metric("rail_duplicate_attempted_total").await,
                executions as f64 - 1.0
            );
            let on = f64::from(u8::from(enabled == "true"));
            assert_eq!(proxy.metric("fencing_enabled{point=\"rail\"}").await, on);
            let ready = proxy.get("/readyz").await;
            assert_eq!(ready.status, 200);
            assert_eq!(ready.body["notes"]["fencing"].is_string(), enabled == "false");
            // Reconciliation counts it as well, once.
            let found = proxy.look_up(&payout).await;
            assert_eq!(found.body["executions"], executions);
        }
    });
}

/// A panic between any two steps: the caller is told to read, never a 5xx; nothing is sent again; others go on.
#[cfg(feature = "lab")]
#[test]
fn a_panic_never_forwards_again() {
    with_world(async |world| {
        for (point, sent) in [
            ("before_intent", 0),
            ("after_intent", 0),
            ("before_forwarded_at", 0),
            ("after_forwarded_at", 0),
            ("before_send", 0),
            ("after_send", 1),
            ("before_outcome", 1),
            ("after_outcome", 1),
        ] {
            let mut host = Host::system();
            host.faults = host_kit::Faults::parse(&format!("rail_proxy.{point}=panic")).unwrap();
            let proxy = world.proxy_with(&[], host).await;
            let (payout, account) = (point.replace('_', "-"), format!("a-{}", point.replace('_', "-")));
            world.payments().claimed(&payout, &account, 7);
            let answer = proxy.submit(&payout, &account, 7).await;
            assert_eq!(
                (answer.status, answer.code()),
                (409, "SUBMISSION_IN_FLIGHT"),
                "{point}: {answer:?}"
            );
            assert_eq!(world.rail.bodies_read(&payout).await, sent, "{point}");
            // The same request again: a first one where nothing was committed, else whatever is recorded; never a send.
            let again = proxy.submit(&payout, &account, 7).await;
            let expected = match point {
                "before_intent" | "after_outcome" => "ACKED",
                _ => "",
            };
            assert_eq!(again.outcome(), expected, "{point}: {again:?}");
            let total = if point == "before_intent" { 1 } else { sent };
            assert_eq!(world.rail.bodies_read(&payout).await, total, "{point}");
            assert_eq!(proxy.metric("rail_duplicate_attempted_total").await, 0.0);
            // What is known at the rail can still be found.
            if sent == 1 {
                assert_eq!(proxy.look_up(&payout).await.body["verdict"], "EXECUTED", "{point}");
            }
            // Others go on.
            let other = format!("other-{payout}");
            world.payments().claimed(&other, &account, 8);
            assert_eq!(proxy.submit(&other, &account, 8).await.outcome(), "ACKED", "{point}");
        }
    });
}

#[test]
fn case_p28_a_currency_that_does_not_circulate_is_refused_before_anything_is_written() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        world.payments().claimed("p1", "a1", 5);
        for currency in ["ZZZ", "EUT", "XXX", "XAU", "XTS", "XDR", "CLF", "HRK", "eur"] {
            let mut body = submit_body("p1", "a1");
            body["currency"] = json!(currency);
            let refused = proxy.submit_body("p1", 5, &body).await;
            assert_eq!(
                (refused.status, &refused.body["field"]),
                (400, &json!("currency")),
                "{refused:?}"
            );
            let ack = json!({"client_reference": "p1", "outcome": "ACKED", "rail_reference": "R1", "amount_minor": 1250,
                             "currency": currency});
            let refused = proxy.ack(&ack).await;
            assert_eq!(
                (refused.status, &refused.body["field"]),
                (400, &json!("currency")),
                "{refused:?}"
            );
        }
        assert_eq!(proxy.submission("p1").await.status, 404);
        assert_eq!(world.rail.bodies_read("p1").await, 0);
        assert_eq!(proxy.submit("p1", "a1", 5).await.status, 200);
    });
}

#[test]
fn case_p37_a_key_other_than_the_payouts_id_is_reused_and_nothing_is_written() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        world.payments().claimed("p1", "a1", 5);
        let refused = proxy.submit_body("another", 5, &submit_body("p1", "a1")).await;
        assert_eq!((refused.status, refused.code()), (422, "IDEMPOTENCY_KEY_REUSED"));
        assert_eq!(proxy.submission("p1").await.status, 404);
        assert_eq!(world.rail.bodies_read("p1").await, 0);
        assert_eq!(proxy.submit("p1", "a1", 5).await.status, 200);
    });
}

#[test]
fn case_p27_every_accepted_id_works_in_every_route_and_dots_are_refused() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        for (token, id) in (5..).zip(["...", "-", "--", "-x", ".a", "a..b", ":", "a:b", "_"]) {
            world.payments().claimed(id, id, token);
            assert_eq!(proxy.submit(id, id, token).await.outcome(), "ACKED", "{id}");
            assert_eq!(proxy.submission(id).await.body["payout_id"], id);
            assert_eq!(proxy.look_up(id).await.status, 200, "{id}");
            assert_eq!(
                proxy.get(&format!("/v1/rail/submissions/{id}/lookups")).await.status,
                200,
                "{id}"
            );
            assert_eq!(
                proxy.get(&format!("/v1/rail/high-water/{id}")).await.body["highest_token"],
                token
            );
            assert_eq!(proxy.fence(id, token + 100, false).await.status, 200, "{id}");
            assert_eq!(proxy.fence_account(id, token + 200).await.status, 200, "{id}");
            assert_eq!(world.rail.bodies_read(id).await, 1, "{id}");
        }
        for id in [".", ".."] {
            let refused = proxy.submit(id, "a1", 5).await;
            assert_eq!(
                (refused.status, &refused.body["field"]),
                (400, &json!("payout_id")),
                "{refused:?}"
            );
            let refused = proxy.submit("p1", id, 5).await;
            assert_eq!(
                (refused.status, &refused.body["field"]),
                (400, &json!("account_id")),
                "{refused:?}"
            );
            let encoded = id.replace('.', "%2E");
            assert_eq!(proxy.submission(&encoded).await.status, 400);
            assert_eq!(proxy.get(&format!("/v1/rail/high-water/{encoded}")).await.status, 400);
        }
    });
}

#[test]
fn case_p24_an_exception_about_other_money_says_it_in_major_units() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        world.payments().claimed("p1", "a1", 5);
        assert_eq!(proxy.submit("p1", "a1", 5).await.outcome(), "ACKED");
        for (amount, currency) in [(1_251, "EUR"), (1_250, "JPY"), (1_250, "KWD")] {
            let ack = json!({"client_reference": "p1", "outcome": "ACKED", "rail_reference": "R1", "amount_minor": amount,
                             "currency": currency});
            assert_eq!(proxy.ack(&ack).await.body["recorded"], "anomaly");
        }
        let details: Vec<String> = (proxy.exceptions().await.iter())
            .map(|row| row["detail"].as_str().unwrap().to_owned())
            .collect();
        let said = details.join("\n");
        for wanted in ["12.51 EUR, submitted were 12.50 EUR", "of 1250 JPY,", "of 1.250 KWD,"] {
            assert!(said.contains(wanted), "{said}");
        }
    });
}

/// A rail that answers each request with these bytes, and then closes its connection or leaves it open.
async fn rail_that_says(answer: String, closes: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::task::spawn_local(async move {
        let mut open = Vec::new();
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            loop {
                let text = String::from_utf8_lossy(&read).to_ascii_lowercase();
                if let Some((head, body)) = text.split_once("\r\n\r\n") {
                    let length = head.split("content-length: ").nth(1).map_or(0, |rest| {
                        rest.split("\r\n").next().unwrap().trim().parse::<usize>().unwrap()
                    });
                    if body.len() >= length {
                        break;
                    }
                }
                assert!(socket.read_buf(&mut read).await.unwrap() > 0, "the proxy went away");
            }
            socket.write_all(answer.as_bytes()).await.unwrap();
            if closes {
                socket.shutdown().await.unwrap();
            } else {
                open.push(socket);
            }
        }
    });
    base
}

fn ack(payout: &str) -> String {
    json!({
        "result": "ACK", "rail_reference": "R1", "client_reference": payout, "amount_minor": 1250, "currency": "EUR",
    })
    .to_string()
}

fn chunk(body: &str) -> String {
    format!("{:x}\r\n{body}\r\n", body.len())
}

/// What the rail's own words say of a submit is what counts: none of these is an answer.
#[test]
fn case_p33_an_answer_that_was_cut_off_is_a_timeout() {
    with_world(async |world| {
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let ack = ack("p1");
        let cut = [
            format!("{chunked}{}", chunk(&ack)),
            format!("{chunked}{}0\r\n", chunk(&ack)),
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{ack}", ack.len() + 1),
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n".to_owned(),
        ];
        for (n, answer) in cut.into_iter().enumerate() {
            let world = World::new().await;
            let rail = rail_that_says(answer.clone(), true).await;
            let proxy = world.proxy_with(&[("rail.url", &rail)], Host::system()).await;
            println!("{n}: {answer:?}");
            world.payments().claimed("p1", "a1", 7);
            let submitted = proxy.submit("p1", "a1", 7).await;
            assert_eq!(
                (submitted.status, submitted.code(), submitted.outcome()),
                (409, "RAIL_AMBIGUOUS", "TIMEOUT"),
                "{answer:?}: {submitted:?}"
            );
        }
        // The same words to their end are an answer.
        let whole = format!("{chunked}{}0\r\n\r\n", chunk(&ack));
        let rail = rail_that_says(whole, true).await;
        let proxy = world.proxy_with(&[("rail.url", &rail)], Host::system()).await;
        world.payments().claimed("p1", "a1", 7);
        let submitted = proxy.submit("p1", "a1", 7).await;
        assert_eq!((submitted.status, submitted.outcome()), (200, "ACKED"), "{submitted:?}");
    });
}

/// `100 Continue` and `103 Early Hints` before the answer: the answer counts. Nothing but them: nothing is known.
#[test]
fn case_p36_the_answer_behind_interim_answers_counts() {
    with_world(async |world| {
        let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
        for (payout, has_last, closes, expected) in [
            ("both", true, true, (200, "ACKED")),
            ("kept-open", true, false, (200, "ACKED")),
            ("only-interim", false, true, (409, "TIMEOUT")),
            ("interim-and-silence", false, false, (409, "TIMEOUT")),
        ] {
            let ack = ack(payout);
            let last = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{ack}", ack.len());
            let answer = format!("{interim}{}", if has_last { &last } else { "" });
            let rail = rail_that_says(answer, closes).await;
            let timeout = if expected.0 == 200 { "6s" } else { "400ms" };
            let further = [("rail.url", rail.as_str()), ("rail.read-timeout", timeout)];
            let proxy = world.proxy_with(&further, Host::system()).await;
            world.payments().claimed(payout, payout, 7);
            let submitted = proxy.submit(payout, payout, 7).await;
            assert_eq!(
                (submitted.status, submitted.outcome()),
                expected,
                "{payout}: {submitted:?}"
            );
        }
    });
}
