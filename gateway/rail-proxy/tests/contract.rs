//! One test per operation of R1–R7, over a real socket.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

mod support;

use serde_json::{Value, json};
use support::{submit_body, with_world};

#[test]
fn submit() {
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
