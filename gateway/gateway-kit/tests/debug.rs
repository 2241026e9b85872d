//! The debug routes over a real actor (C4.5).

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, outside of the functions that clippy knows as tests"
)]

use actix_web::web;
use actor_kit::{Ask, Behaviour, Cx, Handle, Kit, Receive, Reply, TraceContext};
use gateway_kit::testing::{Answer, InProcess, Sent, Target};
use gateway_kit::{Gateway, Settings};
use host_kit::Host;
use prometheus::Registry;
use std::time::Duration;

#[derive(Default)]
struct Counter(u64);

struct Add;

impl Ask for Add {
    type Answer = u64;
    const NAME: &'static str = "Add";
}

impl Behaviour for Counter {
    const KIND: &'static str = "counter";

    fn observe(&self) -> serde_json::Value {
        serde_json::json!({"count": self.0})
    }
}

impl Receive<Add> for Counter {
    fn receive(&mut self, _: Add, reply: Reply<u64>, _: &mut Cx<'_, Self>) {
        self.0 += 1;
        reply.send(self.0);
    }
}

fn gateway(flags: &[(&str, &str)]) -> (Gateway, Kit, Handle<Counter>) {
    let (host, registry) = (Host::system(), Registry::new());
    let kit = Kit::new("test", &host, &registry);
    let counter = kit.spawn("counter/a b", Counter::default);
    let flags: Vec<_> = flags
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let settings = Settings::load(None, [], &flags).unwrap();
    (
        Gateway::new("test", &host, settings, registry, kit.clone()),
        kit,
        counter,
    )
}

fn request(method: &str, target: &str, body: Option<&str>) -> Sent {
    Sent {
        method: method.into(),
        target: target.into(),
        headers: body
            .map(|_| ("Content-Type".into(), b"application/json".to_vec()))
            .into_iter()
            .collect(),
        body: body.map(|body| body.as_bytes().to_vec()),
        ..Sent::default()
    }
}

async fn send(target: &impl Target, method: &str, path: &str, body: Option<&str>) -> Answer {
    target.send(&request(method, path, body)).await.unwrap()
}

#[actix_web::test]
async fn actors_and_their_trace_are_shown() {
    let (gateway, kit, counter) = gateway(&[("debug.endpoints", "true")]);
    let service = InProcess(actix_web::test::init_service(gateway.apps(|_: &mut web::ServiceConfig| {}).app()).await);
    let trace = TraceContext::root(&kit.host().random);
    assert_eq!(counter.ask(Add, Duration::from_secs(5), &trace).await, Ok(1));
    let actors = send(&service, "GET", "/debug/actors", None).await.json();
    let shown = &actors["actors"][0];
    assert_eq!(
        (&shown["path"], &shown["state"]["count"]),
        (&counter.path().into(), &1.into()),
        "{actors}"
    );
    let lines = send(&service, "GET", "/debug/trace?format=jsonl", None).await;
    assert_eq!(lines.header("content-type"), Some("application/x-ndjson"));
    let text = String::from_utf8(lines.body).unwrap();
    let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&line["message"], &line["trace_id"]),
        (&"Add".into(), &trace.trace_id_hex().into())
    );
    let since = format!("/debug/trace?since={}", line["seq"]);
    assert!(
        !String::from_utf8(send(&service, "GET", &since, None).await.body)
            .unwrap()
            .contains("\"seq\":1,")
    );
    let perfetto = send(&service, "GET", "/debug/trace?format=perfetto&actor=test", None)
        .await
        .json();
    let slice = perfetto["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .find(|event| event["ph"] == "X")
        .unwrap();
    assert_eq!(
        (&slice["name"], &slice["args"]["trace_id"]),
        (&"Add".into(), &trace.trace_id_hex().into())
    );
    for bad in ["format=xml", "since=x", "zz=1", "limit=-1"] {
        let answer = send(&service, "GET", &format!("/debug/trace?{bad}"), None).await;
        assert_eq!(answer.json()["field"], bad.split('=').next().unwrap());
    }
}

#[actix_web::test]
async fn debug_routes_are_not_there_unless_switched_on() {
    let (gateway, _kit, _counter) = gateway(&[("debug.endpoints", "false")]);
    let service = InProcess(actix_web::test::init_service(gateway.apps(|_: &mut web::ServiceConfig| {}).app()).await);
    for (method, path) in [
        ("GET", "/debug/actors"),
        ("GET", "/debug/trace"),
        ("POST", "/debug/actors/test%2Fcounter/pause"),
        ("POST", "/debug/actors/test%2Fcounter/resume"),
        ("POST", "/debug/actors/test%2Fcounter/panic"),
    ] {
        let answer = send(&service, method, path, None).await;
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (404, Some("NOT_FOUND")),
            "{path}"
        );
    }
}

#[cfg(feature = "lab")]
#[actix_web::test]
async fn an_actor_is_paused_and_resumed_by_its_path() {
    let (gateway, kit, counter) = gateway(&[("debug.control", "true")]);
    let service = InProcess(actix_web::test::init_service(gateway.apps(|_: &mut web::ServiceConfig| {}).app()).await);
    let trace = TraceContext::root(&kit.host().random);
    let encoded: String = counter.path().bytes().map(|byte| format!("%{byte:02X}")).collect();
    let (pause, resume) = (
        format!("/debug/actors/{encoded}/pause"),
        format!("/debug/actors/{encoded}/resume"),
    );
    let paused = send(&service, "POST", &pause, Some(r#"{"for_ms": 600000}"#)).await;
    assert_eq!((paused.status, &paused.json()["paused_for_ms"]), (200, &600_000.into()));
    let held = counter.ask(Add, Duration::from_millis(200), &trace).await;
    assert_eq!(held, Err(actor_kit::AskError::Deadline));
    assert_eq!(send(&service, "POST", &resume, None).await.status, 200);
    let answered = counter.ask(Add, Duration::from_secs(10), &trace).await;
    assert!(answered.is_ok(), "{answered:?}");
    for (body, field) in [
        (r#"{"for_ms": 0}"#, "for_ms"),
        (r#"{"for_ms": 3600001}"#, "for_ms"),
        ("{}", "for_ms"),
    ] {
        assert_eq!(send(&service, "POST", &pause, Some(body)).await.json()["field"], field);
    }
    let nobody = send(&service, "POST", "/debug/actors/test%2Fnobody/resume", None).await;
    assert_eq!(
        (nobody.status, nobody.json()["code"].as_str()),
        (404, Some("NOT_FOUND"))
    );
}

#[cfg(feature = "lab")]
#[actix_web::test]
async fn an_actor_that_is_told_to_panic_is_built_anew_and_the_tree_counts_it() {
    let (gateway, kit, counter) = gateway(&[("debug.control", "true"), ("debug.endpoints", "true")]);
    let service = InProcess(actix_web::test::init_service(gateway.apps(|_: &mut web::ServiceConfig| {}).app()).await);
    let trace = TraceContext::root(&kit.host().random);
    let encoded: String = counter.path().bytes().map(|byte| format!("%{byte:02X}")).collect();
    assert_eq!(counter.ask(Add, Duration::from_secs(10), &trace).await, Ok(1));
    let told = send(&service, "POST", &format!("/debug/actors/{encoded}/panic"), None).await;
    assert_eq!((told.status, &told.json()["actor"]), (200, &counter.path().into()));
    // What it had counted is forgotten: this is a new one under the same path.
    assert_eq!(counter.ask(Add, Duration::from_secs(10), &trace).await, Ok(1));
    let shown = send(&service, "GET", "/debug/actors", None).await.json();
    assert_eq!(shown["actors"][0]["restarts"], 1, "{shown}");
    let nobody = send(&service, "POST", "/debug/actors/test%2Fnobody/panic", None).await;
    assert_eq!(
        (nobody.status, nobody.json()["code"].as_str()),
        (404, Some("NOT_FOUND"))
    );
}

#[cfg(feature = "lab")]
#[actix_web::test]
async fn no_actor_is_paused_or_panics_where_only_the_tree_is_shown() {
    let (gateway, _kit, counter) = gateway(&[("debug.endpoints", "true")]);
    let service = InProcess(actix_web::test::init_service(gateway.apps(|_: &mut web::ServiceConfig| {}).app()).await);
    let encoded: String = counter.path().bytes().map(|byte| format!("%{byte:02X}")).collect();
    for verb in ["pause", "resume", "panic"] {
        let answer = send(&service, "POST", &format!("/debug/actors/{encoded}/{verb}"), None).await;
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (404, Some("NOT_FOUND")),
            "{verb}"
        );
    }
}
