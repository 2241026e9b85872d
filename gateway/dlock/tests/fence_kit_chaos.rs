//! The fence kit in random chaos, of processes and of the links between them: what is written behind it is never stale;
//! without it some is. `make chaos` runs it for longer.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::scenario::judged;

#[actix_web::test]
async fn nothing_stale_gets_past_the_fence_kit_in_random_chaos_and_without_it_something_does() {
    let url = test_servers::postgres_or_skip().await;
    // A run with the kit off that wrote nothing stale is void, and fails.
    let report = judged(&["scenario", "fence-kit", "--for", "8s", "--pay-store", &url]);
    println!("seed {}", report["seed"]);
    let steps: Vec<&str> = report["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["text"].as_str().unwrap())
        .collect();
    for step in &steps {
        println!("{step}");
    }
    // Each half says what was written, and of the links to each node what was done to them.
    let halves = [
        ("fence off", &["lock-server", "table", "service"][..]),
        ("fence on", &["lock-server", "table", "fence-proxy", "service"]),
    ];
    let mut wanted = Vec::new();
    for (half, nodes) in halves {
        wanted.push(format!("{half}: table "));
        wanted.extend(nodes.iter().map(|node| format!("{half}: links to the {node}: ")));
    }
    assert_eq!(steps.len(), wanted.len(), "{steps:#?}");
    for (step, wanted) in steps.iter().zip(&wanted) {
        assert!(step.starts_with(wanted), "{step}, not {wanted}…");
    }
    // What a fence is for: the request of one that is no longer there.
    let late = steps
        .iter()
        .find(|step| step.starts_with("fence on: links to the fence-proxy"));
    assert!(late.unwrap().contains("\"link.hold_request\": "), "{late:?}");
}
