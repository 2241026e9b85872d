//! One test per operation of R1–R8 over a real socket, and what nobody should send.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

mod support;

use gateway_kit::testing::{Fuzz, Socket, assert_every_operation_is_tested};
use serde_json::{Value, json};
use support::{Proxy, World, await_verdict, submit_body, with_world};

#[test]
fn every_operation_has_a_contract_test() {
    assert_every_operation_is_tested(&rail_proxy::openapi(), env!("CARGO_MANIFEST_DIR"));
}

// operation: submit
#[test]
fn a_claimed_payout_is_submitted_and_its_replay_says_so() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        world.payments().claimed("p1", "a1", 7);
        let answer = proxy.submit("p1", "a1", 7).await;
        assert_eq!(
            (answer.status, answer.outcome(), answer.replayed),
            (200, "ACKED", false),
            "{answer:?}"
        );
        let reference = answer.body["rail_reference"].as_str().unwrap().to_owned();
        assert_eq!(
            world.rail.book("p1").await["executions"][0]["rail_reference"],
            reference
        );

        let again = proxy.submit("p1", "a1", 7).await;
        assert_eq!(
            (again.status, again.replayed),
            (200, true),
            "a replay says so: {again:?}"
        );
        assert_eq!(again.body, answer.body);
        assert_eq!(world.rail.bodies_read("p1").await, 1);
        assert_eq!(proxy.metric("rail_submissions_total{outcome=\"acked\"}").await, 1.0);
        assert_eq!(proxy.metric("rail_duplicate_attempted_total").await, 0.0);
        assert_eq!(proxy.metric("fencing_enabled{point=\"rail\"}").await, 1.0);
    });
}

// operation: submit
#[test]
fn each_refusal_of_a_submit_has_its_code_and_fields() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        let payments = world.payments();
        payments
            .claimed("p1", "a1", 7)
            .claimed("p2", "a1", 7)
            .claimed("p3", "a1", 5)
            .claimed("p4", "a1", 9);
        payments.add("pending", "a1", "PENDING", None);
        assert_eq!(proxy.submit("p1", "a1", 7).await.status, 200);

        let spent = proxy.submit("p2", "a1", 7).await;
        assert_eq!((spent.status, spent.code()), (409, "FENCED_OUT"));
        assert_eq!(
            (
                &spent.body["reason"],
                &spent.body["presented_token"],
                &spent.body["highest_token"]
            ),
            (&json!("token_spent"), &json!(7), &json!(7))
        );
        assert_eq!(spent.content_type, "application/problem+json");
        let stale = proxy.submit("p3", "a1", 5).await;
        assert_eq!((stale.code(), &stale.body["reason"]), ("FENCED_OUT", &json!("stale")));
        assert_eq!(proxy.metric("lock_fenced_out_total{point=\"rail\"}").await, 2.0);

        let submitted = proxy.submit("p1", "a1", 8).await;
        assert_eq!(
            (submitted.status, submitted.code(), submitted.outcome()),
            (409, "ALREADY_SUBMITTED", "ACKED")
        );
        let pending = proxy.submit("pending", "a1", 9).await;
        assert_eq!(
            (pending.status, pending.code(), &pending.body["state"]),
            (409, "NOT_CLAIMED", &json!("PENDING"))
        );
        let missing = proxy.submit("p9", "a1", 9).await;
        assert_eq!((missing.status, missing.code()), (404, "PAYOUT_NOT_FOUND"));

        let changed = |field: &str, value: Value| {
            let mut body = submit_body("p4", "a1");
            body[field] = value;
            body
        };
        for (field, value) in [
            ("amount_minor", json!(1251)),
            ("currency", json!("USD")),
            ("account_id", json!("a2")),
        ] {
            let answer = proxy.submit_body("p4", 9, &changed(field, value)).await;
            assert_eq!(
                (answer.status, answer.code(), &answer.body["field"]),
                (422, "SUBMISSION_MISMATCH", &json!(field))
            );
        }
        let mut other = submit_body("p1", "a1");
        other["amount_minor"] = json!(1);
        assert_eq!(
            proxy.submit_body("p1", 7, &other).await.code(),
            "IDEMPOTENCY_KEY_REUSED"
        );
        let reused = proxy.submit_body("p1", 9, &submit_body("p4", "a1")).await;
        assert_eq!((reused.status, reused.code()), (422, "IDEMPOTENCY_KEY_REUSED"));
        // Case P37: the key of a submission is its payout's id.
        let other_key = proxy.submit_body("another", 9, &submit_body("p4", "a1")).await;
        assert_eq!((other_key.status, other_key.code()), (422, "IDEMPOTENCY_KEY_REUSED"));
        // None of it moved the mark.
        assert_eq!(proxy.get("/v1/rail/high-water/a1").await.body["highest_token"], 7);
        assert_eq!(proxy.submit("p4", "a1", 9).await.status, 200);
    });
}

// operation: submit
#[test]
fn a_submit_out_of_shape_names_its_field() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        world.payments().claimed("p1", "a1", 7);
        let changed = |field: &str, value: Value| {
            let mut body = submit_body("p1", "a1");
            match field.split_once('.') {
                Some((outer, inner)) => body[outer][inner] = value,
                None => body[field] = value,
            }
            body
        };
        for (field, value) in [
            ("payout_id", json!("x".repeat(36))),
            ("payout_id", json!("a/b")),
            ("account_id", json!("")),
            ("account_id", json!("x".repeat(65))),
            ("amount_minor", json!(0)),
            ("amount_minor", json!(-1)),
            ("amount_minor", json!(1.15)),
            ("amount_minor", json!("100")),
            ("amount_minor", json!(9_007_199_254_740_993_i64)),
            ("amount_minor", json!(9_223_372_036_854_775_808_u64)),
            ("currency", json!("eur")),
            ("currency", json!("EURO")),
            ("creditor.name", json!("")),
            ("creditor.name", json!("x".repeat(141))),
            ("creditor.account", json!("a\u{0}b")),
            ("surprise", json!(1)),
        ] {
            let answer = proxy.submit_body("p1", 7, &changed(field, value.clone())).await;
            assert_eq!(
                (answer.status, answer.code()),
                (400, "INVALID_REQUEST"),
                "{field} = {value}: {answer:?}"
            );
            assert_eq!(answer.body["field"], field, "{value}");
        }
        let body = submit_body("p1", "a1");
        let path = "/v1/rail/submissions";
        let no_token = proxy.post(path, &[("X-Idempotency-Key", "p1")], Some(&body)).await;
        assert_eq!((no_token.status, no_token.code()), (400, "FENCING_TOKEN_REQUIRED"));
        for token in ["0", "07", "+7", "x", "9007199254740992"] {
            let headers = [("X-Fencing-Token", token), ("X-Idempotency-Key", "p1")];
            let answer = proxy.post(path, &headers, Some(&body)).await;
            assert_eq!(
                (answer.status, answer.code()),
                (400, "FENCING_TOKEN_INVALID"),
                "{token}"
            );
        }
        let no_key = proxy.post(path, &[("X-Fencing-Token", "7")], Some(&body)).await;
        assert_eq!(
            (no_key.status, &no_key.body["field"]),
            (400, &json!("X-Idempotency-Key"))
        );
        assert_eq!(world.count("SELECT COUNT(*) FROM rail_submission"), 0);
    });
}

// operation: get_submission, list_submissions
#[test]
fn submissions_are_read_one_by_one_and_in_pages() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        for n in 1..=5 {
            world.payments().claimed(&format!("p{n}"), &format!("a{n}"), n);
        }
        world.rail.rule("p5", "decline", 0).await;
        for n in 1..=5 {
            assert_eq!(proxy.submit(&format!("p{n}"), &format!("a{n}"), n).await.status, 200);
        }
        let row = proxy.submission("p5").await;
        assert_eq!((row.status, row.outcome()), (200, "DECLINED"));
        assert_eq!(
            (
                &row.body["token"],
                &row.body["actor"],
                &row.body["client_reference"],
                &row.body["fencing_enforced"]
            ),
            (&json!(5), &json!("worker-1"), &json!("p5"), &json!(true))
        );
        assert!(row.body["forwarded_at"].as_str().unwrap().ends_with('Z'));
        assert_eq!(proxy.submission("p9").await.code(), "SUBMISSION_NOT_FOUND");
        assert_eq!(proxy.submission("a%2Fb").await.status, 400);

        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = proxy.get(&format!("/v1/rail/submissions?limit=2{cursor}")).await.body;
            seen.extend(
                page["items"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|row| row["payout_id"].clone()),
            );
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(seen, ["p1", "p2", "p3", "p4", "p5"]);
        let filtered = proxy.get("/v1/rail/submissions?outcome=DECLINED").await.body;
        assert_eq!(filtered["items"].as_array().unwrap().len(), 1);
        let open = proxy.get("/v1/rail/submissions?outcome=NONE").await.body;
        assert_eq!(open["items"], json!([]));
        for (query, field) in [
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("cursor=zzz", "cursor"),
            ("outcome=PAID", "outcome"),
            ("surprise=1", "surprise"),
        ] {
            let answer = proxy.get(&format!("/v1/rail/submissions?{query}")).await;
            assert_eq!((answer.status, &answer.body["field"]), (400, &json!(field)), "{query}");
        }
    });
}

// operation: list_lookups
#[test]
fn every_lookup_is_listed_oldest_first() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        world.payments().claimed("p1", "a1", 1);
        let none = proxy.get("/v1/rail/submissions/p1/lookups").await;
        assert_eq!(
            (none.status, &none.body),
            (200, &json!({ "items": [], "next_cursor": null }))
        );
        world
            .rail
            .rules(json!([{ "client_reference": "p1", "fault": "timeout_executed" }]))
            .await;
        world.impatient().await.submit("p1", "a1", 1).await;
        world
            .rail
            .rules(json!([{ "client_reference": "p1", "fault": "lookup_error", "times": 1 }]))
            .await;
        proxy.look_up("p1").await;
        proxy.look_up("p1").await;
        let all = proxy.get("/v1/rail/submissions/p1/lookups").await.body;
        let verdicts: Vec<_> = all["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| &row["verdict"])
            .collect();
        assert_eq!(verdicts, ["INCONCLUSIVE", "EXECUTED"]);
        assert_eq!(all["items"][1]["executions"], 1);
        assert!(all["items"][1]["at"].is_string() && all["items"][1]["rail_reference"].is_string());
        let newest = proxy.get("/v1/rail/submissions/p1/lookups?limit=1").await.body;
        assert_eq!(newest["items"], json!([all["items"][1]]));
        assert_eq!(proxy.get("/v1/rail/submissions/p1/lookups?limit=0").await.status, 400);
    });
}

// operation: look_up_submission
#[test]
fn a_lookup_says_what_can_be_concluded() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        world
            .payments()
            .claimed("p1", "a1", 1)
            .claimed("p2", "a2", 2)
            .claimed("p3", "a3", 3);
        world
            .rail
            .rules(json!([
                { "client_reference": "p1", "fault": "timeout_executed" },
                { "client_reference": "p2", "fault": "timeout_not_executed" },
                { "client_reference": "p3", "fault": "decline", "reason": "closed" },
            ]))
            .await;
        let impatient = world.impatient().await;
        for (n, proxy) in [(1, &impatient), (2, &impatient), (3, &proxy)] {
            proxy.submit(&format!("p{n}"), &format!("a{n}"), n).await;
        }
        let found = proxy.look_up("p1").await;
        assert_eq!(
            (found.status, &found.body["verdict"], &found.body["executions"]),
            (200, &json!("EXECUTED"), &json!(1))
        );
        assert_eq!(found.body["submission"]["outcome"], "ACKED");
        assert_eq!(proxy.submission("p1").await.outcome(), "ACKED");
        let nothing = await_verdict(&proxy, "p2", "NOT_RECEIVED").await;
        assert_eq!(nothing["executions"], 0);
        assert_eq!(proxy.look_up("p3").await.body["verdict"], "DECLINED");
        assert_eq!(proxy.look_up("p9").await.code(), "SUBMISSION_NOT_FOUND");
        assert_eq!(
            world.count("SELECT COUNT(*) FROM rail_lookup WHERE payout_id = 'p1' AND verdict = 'EXECUTED'"),
            1
        );
    });
}

// operation: record_ack
#[test]
fn an_ack_becomes_the_outcome_a_duplicate_or_an_anomaly() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        world.payments().claimed("p1", "a1", 1);
        world.rail.rule("p1", "timeout_not_executed", 0).await;
        let lost = world.impatient().await.submit("p1", "a1", 1).await;
        assert_eq!(lost.code(), "RAIL_AMBIGUOUS");
        let ack = json!({ "client_reference": "p1", "outcome": "ACKED", "rail_reference": "R1",
                          "amount_minor": 1250, "currency": "EUR" });
        let with = |field: &str, value: Value| {
            let mut ack = ack.clone();
            ack[field] = value;
            ack
        };
        assert_eq!(
            proxy.ack(&with("amount_minor", json!(1))).await.body["recorded"],
            "anomaly"
        );
        assert_eq!(proxy.ack(&ack).await.body["recorded"], "outcome");
        assert_eq!(proxy.ack(&ack).await.body["recorded"], "duplicate");
        assert_eq!(
            proxy.ack(&with("rail_reference", json!("R2"))).await.body["recorded"],
            "anomaly"
        );
        assert_eq!(proxy.submission("p1").await.body["rail_reference"], "R1");
        assert_eq!(
            proxy.ack(&with("client_reference", json!("p9"))).await.code(),
            "SUBMISSION_NOT_FOUND"
        );
        for (bad, field) in [
            (with("rail_reference", json!("")), "rail_reference"),
            (with("decline_reason", json!("")), "decline_reason"),
            (with("outcome", json!("DECLINED")), "rail_reference"),
            (with("currency", json!("euro")), "currency"),
            (with("outcome", json!("PAID")), "outcome"),
        ] {
            let answer = proxy.ack(&bad).await;
            assert_eq!((answer.status, &answer.body["field"]), (400, &json!(field)), "{bad}");
        }
    });
}

// operation: get_high_water, fence_submission, fence_account
#[test]
fn marks_are_read_and_raised() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        world.payments().claimed("p1", "a1", 7);
        let mark = async || proxy.get("/v1/rail/high-water/a1").await.body["highest_token"].clone();
        assert_eq!(mark().await, 0);
        let fenced = proxy.fence("p1", 7, false).await;
        assert_eq!(
            (fenced.status, &fenced.body["submission"], &fenced.body["highest_token"]),
            (200, &Value::Null, &json!(6))
        );
        assert_eq!(proxy.submit("p1", "a1", 7).await.status, 200);
        let refused = proxy.fence("p1", 7, false).await;
        assert_eq!(
            (refused.status, refused.code(), &refused.body["reason"]),
            (409, "FENCED_OUT", &json!("stale"))
        );
        let found = proxy.fence("p1", 8, true).await;
        assert_eq!(found.body["submission"]["outcome"], "ACKED");
        assert_eq!(proxy.fence("p9", 8, false).await.code(), "PAYOUT_NOT_FOUND");

        let raised = proxy.fence_account("a1", 20).await;
        assert_eq!(
            (raised.status, &raised.body["account_id"], &raised.body["highest_token"]),
            (200, &json!("a1"), &json!(19))
        );
        assert_eq!(proxy.fence_account("a1", 19).await.code(), "FENCED_OUT");
        assert_eq!(mark().await, 19);
        let no_token = proxy.post("/v1/rail/accounts/a1/fence", &[], None).await;
        assert_eq!(no_token.code(), "FENCING_TOKEN_REQUIRED");
        // The body may be left out.
        let path = "/v1/rail/submissions/p1/fence";
        assert_eq!(proxy.post(path, &[("X-Fencing-Token", "30")], None).await.status, 200);
        let null = json!({ "forbid": null });
        assert_eq!(
            proxy.post(path, &[("X-Fencing-Token", "31")], Some(&null)).await.body["field"],
            "forbid"
        );
    });
}

// operation: list_exceptions
#[test]
fn exceptions_are_listed_for_a_human() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        world.payments().claimed("p1", "a1", 1);
        proxy.submit("p1", "a1", 1).await;
        assert_eq!(proxy.exceptions().await, Vec::<Value>::new());
        for reference in ["R7", "R8", "R7"] {
            let ack = json!({ "client_reference": "p1", "outcome": "ACKED", "rail_reference": reference,
                              "amount_minor": 1250, "currency": "EUR" });
            assert_eq!(proxy.ack(&ack).await.body["recorded"], "anomaly");
        }
        let listed = proxy.exceptions().await;
        assert_eq!(listed.len(), 2, "the same thing seen again is no new exception");
        assert_eq!(
            (&listed[0]["payout_id"], &listed[0]["kind"], &listed[0]["closed_by"]),
            (&json!("p1"), &json!("DOUBLE_PAYMENT_SUSPECTED"), &Value::Null)
        );
        let page = proxy.get("/v1/rail/exceptions?limit=1").await.body;
        let next = page["next_cursor"].as_str().unwrap();
        let rest = proxy.get(&format!("/v1/rail/exceptions?cursor={next}")).await.body;
        assert_eq!(
            (rest["items"].as_array().unwrap().len(), &rest["next_cursor"]),
            (1, &Value::Null)
        );
    });
}

/// A payout settled as FAILED that the rail says it executed: an exception is open.
async fn with_an_exception(world: &World, proxy: &Proxy) -> u64 {
    world.payments().claimed("p1", "a1", 1);
    proxy.submit("p1", "a1", 1).await;
    let before = proxy.exceptions().await.len();
    let ack = json!({ "client_reference": "p1", "outcome": "ACKED", "rail_reference": "R7", "amount_minor": 1250,
                      "currency": "EUR" });
    assert_eq!(proxy.ack(&ack).await.body["recorded"], "anomaly");
    let listed = proxy.exceptions().await;
    assert_eq!(listed.len(), before + 1);
    listed[before]["exception_id"].as_u64().unwrap()
}

// operation: get_exception
#[test]
fn one_exception_is_read() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        let id = with_an_exception(&world, &proxy).await;
        let row = proxy.get(&format!("/v1/rail/exceptions/{id}")).await;
        assert_eq!(
            (row.status, &row.body["payout_id"], &row.body["closed_by"]),
            (200, &json!("p1"), &Value::Null)
        );
        let none = proxy.get(&format!("/v1/rail/exceptions/{}", id + 1)).await;
        assert_eq!((none.status, none.code()), (404, "EXCEPTION_NOT_FOUND"));
        for bad in ["0", "01", "x", "-1", "9223372036854775808"] {
            let bad = proxy.get(&format!("/v1/rail/exceptions/{bad}")).await;
            assert_eq!((bad.status, &bad.body["field"]), (400, &json!("exception_id")));
        }
    });
}

// operation: close_exception
#[test]
fn case_p23_an_exception_is_closed_by_an_operator_once_and_a_new_one_is_heard() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        let id = with_an_exception(&world, &proxy).await;
        let path = format!("/v1/rail/exceptions/{id}/close");
        let ada = [("X-Operator", "ada")];
        let body = json!({ "reason": "the rail booked it back" });
        // Who and why are said, and nothing else.
        for (headers, body, field) in [
            (&[][..], json!({ "reason": "the rail booked it back" }), "X-Operator"),
            (&ada, json!({ "reason": "short" }), "reason"),
            (&ada, json!({}), "reason"),
        ] {
            let bad = proxy.post(&path, headers, Some(&body)).await;
            assert_eq!((bad.status, &bad.body["field"]), (400, &json!(field)), "{bad:?}");
        }
        let none = proxy
            .post(&format!("/v1/rail/exceptions/{}/close", id + 1), &ada, Some(&body))
            .await;
        assert_eq!((none.status, none.code()), (404, "EXCEPTION_NOT_FOUND"));

        let submission = proxy.submission("p1").await.body;
        let closed = proxy.post(&path, &ada, Some(&body)).await;
        assert_eq!(
            (closed.status, &closed.body["closed_by"], &closed.body["closed_reason"]),
            (200, &json!("ada"), &json!("the rail booked it back"))
        );
        assert!(closed.body["closed_at"].is_string());
        assert_eq!(proxy.submission("p1").await.body, submission, "nothing else changed");
        let again = proxy.post(&path, &ada, Some(&body)).await;
        assert_eq!((again.status, &again.body), (200, &closed.body));
        let other = proxy.post(&path, &[("X-Operator", "bob")], Some(&body)).await;
        assert_eq!(
            (other.status, other.code(), &other.body["closed_by"]),
            (409, "CONFLICT", &json!("ada"))
        );
        assert!(
            other.body["detail"]
                .as_str()
                .unwrap()
                .contains("ada closed this exception at")
        );

        // The metric goes quiet, and a new one is heard.
        let open = async || proxy.get("/v1/rail/exceptions?open=true").await.body["items"].clone();
        assert_eq!(open().await, json!([]));
        proxy.await_metric("rail_exceptions_open", 0.0).await;
        let ack = json!({ "client_reference": "p1", "outcome": "DECLINED", "decline_reason": "closed", "amount_minor": 1250,
                          "currency": "EUR" });
        assert_eq!(proxy.ack(&ack).await.body["recorded"], "anomaly");
        assert_eq!(open().await[0]["kind"], "CONFLICTING_OUTCOME");
        proxy.await_metric("rail_exceptions_open", 1.0).await;
        let closed = proxy.get("/v1/rail/exceptions?open=false").await.body;
        assert_eq!(closed["items"][0]["exception_id"], id);
    });
}

/// What was forwarded and has no outcome was not refused: it is not among the refusals, and is counted by its own code.
#[test]
fn case_p30_a_submit_whose_outcome_is_unknown_is_no_refusal() {
    with_world(async |world| {
        let proxy = world.impatient().await;
        world.payments().claimed("p1", "a1", 1).claimed("p2", "a2", 2);
        world
            .rail
            .rules(json!([{ "client_reference": "p1", "fault": "timeout_executed" }]))
            .await;
        for _ in 0..2 {
            assert_eq!(proxy.submit("p1", "a1", 1).await.code(), "RAIL_AMBIGUOUS");
        }
        assert_eq!(proxy.submit("p2", "a2", 1).await.code(), "NOT_CLAIMED");
        let refused = proxy.get("/v1/refusals").await.body;
        let codes: Vec<_> = refused["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| &row["code"])
            .collect();
        assert_eq!(codes, [&json!("NOT_CLAIMED")]);
        let line = r#"http_requests_total{method="POST",outcome="RAIL_AMBIGUOUS",route="/v1/rail/submissions"}"#;
        assert_eq!(proxy.metric(line).await, 2.0);
    });
}

#[test]
fn no_request_is_answered_with_a_server_error() {
    with_world(async |world| {
        let proxy = world.proxy().await;
        world.payments().claimed("p1", "a1", 7);
        assert_eq!(proxy.submit("p1", "a1", 7).await.status, 200);
        let address = proxy.base.strip_prefix("http://").unwrap().parse().unwrap();
        let report = Fuzz::new(&rail_proxy::openapi())
            .path("payout_id", "p1")
            .path("account_id", "a1")
            .header("X-Fencing-Token", "7")
            .header("X-Idempotency-Key", "p1")
            .header("X-Actor", "worker-1")
            .query("list_submissions", "cursor", "c0")
            .query("list_exceptions", "cursor", "c0")
            .path("exception_id", "1")
            .header("X-Operator", "ada")
            .body("close_exception", json!({ "reason": "booked back by the rail" }))
            .body("submit", submit_body("p1", "a1"))
            .body(
                "record_ack",
                json!({ "client_reference": "p1", "outcome": "ACKED", "rail_reference": "R1", "amount_minor": 1250, "currency": "EUR" }),
            )
            .run(&Socket(address))
            .await;
        println!("{report:?}");
        assert_eq!(world.rail.bodies_read("p1").await, 1);
    });
}
