//! A small service inside a gateway, over a real socket: the frame, the extractors, the routes that every component has,
//! and how a component's own contract tests are written.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, outside of the functions that clippy knows as tests"
)]
#![allow(clippy::disallowed_methods, reason = "a test's deadline is real time")]

use actix_web::web::{self, Data, ServiceConfig};
use actix_web::{HttpResponse, Responder};
use actor_kit::Kit;
use gateway_kit::testing::{Answer, Fuzz, InProcess, Sent, Socket, Target, assert_every_operation_is_tested};
use gateway_kit::{
    ApiError, Apps, Drain, Gateway, Id, Json, JsonOrDefault, Key, OperatorName, Peer, Query, Settings, Token, Trace,
};
use host_kit::Host;
use http_contract::Code;
use prometheus::Registry;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use utoipa::{IntoParams, OpenApi, ToSchema};

/// Notes under keys, each with the highest token that wrote it.
#[derive(Default)]
struct Notes {
    notes: Mutex<BTreeMap<String, Note>>,
    /// `/slow` says that it has begun, then waits.
    slow_began: Notify,
    slow_may_end: Notify,
    /// `/wait` has ended, one way or the other.
    wait_ended: Notify,
}

#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
struct Note {
    key: String,
    text: String,
    token: u64,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Author {
    #[schema(min_length = 1, max_length = 20)]
    name: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Write {
    #[schema(min_length = 1, max_length = 100)]
    text: String,
    #[schema(minimum = 1000, maximum = 300_000)]
    #[serde(default, deserialize_with = "http_contract::present")]
    #[schema(nullable = false)]
    ttl_ms: Option<u64>,
    author: Option<Author>,
    #[allow(dead_code, reason = "free-form, kept by nobody here")]
    metadata: Option<serde_json::Value>,
}

fn check(field: &str, text: &str, chars_max: usize) -> Result<(), ApiError> {
    if (1..=chars_max).contains(&text.chars().count()) && !text.chars().any(char::is_control) {
        return Ok(());
    }
    Err(ApiError::invalid(
        field,
        format!("must be 1 to {chars_max} characters without control characters"),
    ))
}

#[utoipa::path(post, path = "/v1/notes/{key}", operation_id = "write_note", request_body = Write,
    params(("key" = String, Path), ("X-Fencing-Token" = u64, Header)),
    responses((status = 200, body = Note), (status = 409, description = "FENCED_OUT")))]
async fn write_note(
    notes: Data<Notes>,
    Key(key): Key,
    Token(token): Token,
    Json(write): Json<Write>,
) -> Result<impl Responder, ApiError> {
    check("text", &write.text, 100)?;
    if let Some(author) = &write.author {
        check("author.name", &author.name, 20)?;
    }
    if write.ttl_ms.is_some_and(|ttl| !(1_000..=300_000).contains(&ttl)) {
        return Err(ApiError::invalid("ttl_ms", "must be between 1000 and 300000"));
    }
    let mut notes = notes.notes.lock().unwrap();
    if let Some(known) = notes.get(key.as_str()).filter(|known| known.token > token.get()) {
        return Err(
            ApiError::new(Code::FencedOut, format!("token {token} is below {}", known.token))
                .field("reason", "stale")
                .field("presented_token", token.get())
                .field("highest_token", known.token),
        );
    }
    let note = Note {
        key: key.to_string(),
        text: write.text,
        token: token.get(),
    };
    notes.insert(key.to_string(), note.clone());
    Ok(HttpResponse::Ok().json(note))
}

#[utoipa::path(get, path = "/v1/notes/{key}", operation_id = "read_note", params(("key" = String, Path)),
    responses((status = 200, body = Note)))]
async fn read_note(notes: Data<Notes>, Key(key): Key) -> Result<impl Responder, ApiError> {
    let notes = notes.notes.lock().unwrap();
    let note = notes
        .get(key.as_str())
        .ok_or_else(|| ApiError::new(Code::LockNotFound, format!("no note {key}")))?;
    Ok(HttpResponse::Ok().json(note))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct List {
    #[param(max_length = 256)]
    prefix: Option<String>,
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

#[utoipa::path(get, path = "/v1/notes", operation_id = "list_notes", params(List), responses((status = 200)))]
async fn list_notes(notes: Data<Notes>, Query(list): Query<List>) -> Result<impl Responder, ApiError> {
    let limit = list.limit.unwrap_or(100);
    if !(1..=1_000).contains(&limit) {
        return Err(ApiError::invalid("limit", "must be between 1 and 1000"));
    }
    let prefix = list.prefix.unwrap_or_default();
    if prefix.len() > 256 {
        return Err(ApiError::invalid("prefix", "must be at most 256 bytes"));
    }
    let notes = notes.notes.lock().unwrap();
    let found: Vec<&Note> = notes
        .values()
        .filter(|note| note.key.starts_with(&prefix))
        .take(limit as usize)
        .collect();
    Ok(HttpResponse::Ok().json(found))
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Wipe {
    #[schema(min_length = 8, max_length = 500)]
    reason: Option<String>,
}

#[utoipa::path(post, path = "/v1/archive/{shelf}/wipe", operation_id = "wipe", request_body(content = Option<Wipe>),
    params(("shelf" = String, Path), ("X-Operator" = String, Header)), responses((status = 200)))]
async fn wipe(
    OperatorName(operator): OperatorName,
    Id(shelf): Id,
    JsonOrDefault(wipe): JsonOrDefault<Wipe>,
) -> Result<impl Responder, ApiError> {
    if let Some(reason) = &wipe.reason {
        if reason.chars().count() < 8 {
            return Err(ApiError::invalid("reason", "must be at least 8 characters"));
        }
        check("reason", reason, 500)?;
    }
    Ok(HttpResponse::Ok().json(serde_json::json!({"shelf": shelf, "by": operator.as_str()})))
}

#[derive(OpenApi)]
#[openapi(paths(write_note, read_note, list_notes, wipe))]
struct Document;

async fn crash() -> HttpResponse {
    panic!("asked for")
}

async fn slow(notes: Data<Notes>) -> HttpResponse {
    notes.slow_began.notify_one();
    notes.slow_may_end.notified().await;
    HttpResponse::Ok().body("slow but done")
}

/// Waits for nothing but the other end's goodbye.
async fn wait(request: actix_web::HttpRequest, notes: Data<Notes>) -> HttpResponse {
    struct Ended(Data<Notes>);
    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.wait_ended.notify_one();
        }
    }
    let _ended = Ended(notes.clone());
    let peer = Peer::of(&request);
    assert!(!peer.is_gone());
    notes.slow_began.notify_one();
    peer.gone().await;
    assert!(peer.is_gone());
    HttpResponse::Ok().finish()
}

async fn trace(trace: Trace) -> String {
    trace.0.to_traceparent()
}

fn routes(notes: Data<Notes>) -> impl Fn(&mut ServiceConfig) + Clone + Send + 'static {
    move |config| {
        config
            .app_data(notes.clone())
            .route("/v1/notes", web::get().to(list_notes))
            .service(
                web::resource("/v1/notes/{key}")
                    .route(web::get().to(read_note))
                    .route(web::post().to(write_note)),
            )
            .route("/v1/archive/{shelf}/wipe", web::post().to(wipe))
            .route("/v1/undocumented", web::get().to(crash))
            .route("/crash", web::get().to(crash))
            .route("/slow", web::get().to(slow))
            .route("/wait", web::get().to(wait))
            .route("/trace", web::get().to(trace))
            .route(
                "/hungry",
                web::post().to(|_: Json<Wipe>| async { HttpResponse::Ok().finish() }),
            );
    }
}

fn gateway(flags: &[(&str, &str)]) -> Gateway {
    let flags: Vec<_> = flags
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let (host, registry) = (Host::system(), Registry::new());
    let kit = Kit::new("notes", &host, &registry);
    let settings = Settings::load(None, [], &flags).unwrap();
    Gateway::new("notes", &host, settings, registry, kit).openapi(Document::openapi())
}

struct Running {
    socket: Socket,
    notes: Data<Notes>,
    drain: Drain,
    ended: oneshot::Receiver<std::io::Result<()>>,
}

async fn start(gateway: Gateway) -> Running {
    let notes = Data::from(Arc::new(Notes::default()));
    let (drain, (tell, told), (end, ended)) = (gateway.drain(), oneshot::channel(), oneshot::channel());
    let routes = routes(notes.clone());
    actix_web::rt::spawn(async move {
        let served = gateway
            .serve_and_tell("127.0.0.1:0", routes, |address| {
                tell.send(address).expect("somebody waits")
            })
            .await;
        let _ = end.send(served);
    });
    let address: SocketAddr = told.await.expect("the gateway listens");
    Running {
        socket: Socket(address),
        notes,
        drain,
        ended,
    }
}

impl Running {
    async fn get(&self, target: &str) -> Answer {
        self.send(Sent {
            method: "GET".into(),
            target: target.into(),
            ..Sent::default()
        })
        .await
    }

    async fn send(&self, request: Sent) -> Answer {
        self.socket
            .send(&request)
            .await
            .unwrap_or_else(|error| panic!("{request}: {error}"))
    }

    async fn write(&self, key: &str, token: &str, body: &str) -> Answer {
        self.send(Sent {
            method: "POST".into(),
            target: format!("/v1/notes/{key}"),
            headers: vec![
                ("X-Fencing-Token".into(), token.into()),
                ("Content-Type".into(), b"application/json".to_vec()),
            ],
            body: Some(body.into()),
            ..Sent::default()
        })
        .await
    }
}

#[test]
fn every_operation_has_a_contract_test() {
    assert_every_operation_is_tested(&Document::openapi(), env!("CARGO_MANIFEST_DIR"));
}

// operation: write_note, read_note
#[actix_web::test]
async fn case_l29_keys_round_trip_exactly_over_a_socket() {
    let service = start(gateway(&[])).await;
    let encode = |key: &str| key.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    let long = "k".repeat(256);
    let keys = [
        "a",
        "a/b",
        "a/",
        "A",
        "a%2Fb",
        "a//b",
        "/",
        "%",
        "%25",
        "%2F",
        "#",
        "?",
        "a?b=c",
        " ",
        "a b",
        "+",
        "a+b",
        ".",
        "..",
        "../..",
        "caf\u{e9}",
        "cafe\u{301}",
        "\u{1f512}",
        ";",
        "a;b",
        "\\",
        "{key}",
        "a:b",
        "\u{202e}x",
        &long,
    ];
    for (token, key) in keys.iter().enumerate() {
        let body = serde_json::json!({"text": format!("note {token}")}).to_string();
        let answer = service.write(&encode(key), &(token + 1).to_string(), &body).await;
        assert_eq!(
            (answer.status, answer.json()["key"].as_str()),
            (200, Some(*key)),
            "{answer:?}"
        );
    }
    for (token, key) in keys.iter().enumerate() {
        let answer = service.get(&format!("/v1/notes/{}", encode(key))).await;
        assert_eq!(
            answer.json()["text"],
            format!("note {token}"),
            "{key:?} shares a note with a neighbour"
        );
    }
    assert_eq!(service.notes.notes.lock().unwrap().len(), keys.len());
    // What needs no encoding may stand as it is; lower-case digits mean the same.
    for (target, key) in [
        ("a%2fb", "a/b"),
        ("..", ".."),
        ("a+b", "a+b"),
        ("a:b", "a:b"),
        ("a;b", "a;b"),
    ] {
        assert_eq!(service.get(&format!("/v1/notes/{target}")).await.json()["key"], key);
    }
    for bad in [
        "%zz",
        "%",
        "%2",
        "%FF",
        "%C3",
        "%00",
        "a%0Ab",
        "a%7F",
        "%C2%85",
        &"k".repeat(257),
    ] {
        let answer = service.get(&format!("/v1/notes/{bad}")).await;
        let body = answer.json();
        assert_eq!(
            (answer.status, body["field"].as_str()),
            (400, Some("key")),
            "{bad}: {body}"
        );
    }
    // An empty key, and one whose slash was not encoded, are no routes.
    assert_eq!(service.get("/v1/notes/").await.json()["code"], "NOT_FOUND");
    assert_eq!(service.get("/v1/notes/a/b").await.json()["code"], "NOT_FOUND");
}

// operation: list_notes
#[actix_web::test]
async fn a_list_is_filtered_by_its_exact_prefix() {
    let service = start(gateway(&[])).await;
    for key in ["a%2Fb", "a%2Fc", "b"] {
        assert_eq!(service.write(key, "1", r#"{"text":"x"}"#).await.status, 200);
    }
    let keys = |answer: Answer| {
        answer
            .json()
            .as_array()
            .unwrap()
            .iter()
            .map(|note| note["key"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(service.get("/v1/notes?prefix=a%2F").await), ["a/b", "a/c"]);
    assert_eq!(keys(service.get("/v1/notes?prefix=a%2F&limit=1").await), ["a/b"]);
    assert_eq!(service.get("/v1/notes?limit=0").await.json()["field"], "limit");
}

// operation: wipe
#[actix_web::test]
async fn a_body_without_required_fields_may_be_left_out() {
    let service = start(gateway(&[])).await;
    let request = |headers| Sent {
        method: "POST".into(),
        target: "/v1/archive/s-1/wipe".into(),
        headers,
        ..Sent::default()
    };
    let operator = vec![("X-Operator".to_owned(), "Zo\u{eb}".as_bytes().to_vec())];
    let answer = service.send(request(operator)).await;
    assert_eq!(answer.json(), serde_json::json!({"shelf": "s-1", "by": "Zo\u{eb}"}));
    assert_eq!(service.send(request(Vec::new())).await.json()["field"], "X-Operator");
}

#[actix_web::test]
async fn no_request_is_answered_with_a_server_error_over_a_socket() {
    let service = start(gateway(&[])).await;
    let report = Fuzz::new(&Document::openapi()).run(&service.socket).await;
    println!("{report:?}");
    assert!(report.requests > 300 && report.operations == 4, "{report:?}");
}

#[actix_web::test]
async fn no_request_is_answered_with_a_server_error_in_process() {
    let notes = Data::from(Arc::new(Notes::default()));
    let apps: Apps<_> = gateway(&[]).apps(routes(notes));
    let service = actix_web::test::init_service(apps.app()).await;
    let report = Fuzz::new(&Document::openapi()).seed(7).run(&InProcess(service)).await;
    println!("{report:?}");
    assert!(
        report.requests > 300 && report.statuses.keys().all(|status| *status < 500),
        "{report:?}"
    );
}

/// A fuzzer that finds nothing would be worth nothing: here is a service with one fault of each kind.
#[actix_web::test]
async fn the_fuzzer_finds_what_is_wrong() {
    async fn found(configure: impl Fn(&mut ServiceConfig) + Clone + Send + 'static) -> String {
        let apps = gateway(&[]).apps(configure);
        let service = actix_web::test::init_service(apps.app()).await;
        let fuzz = Fuzz::new(&Document::openapi()).seed(1).cases(2).only("write_note");
        let (done, result) = oneshot::channel();
        actix_web::rt::spawn(async move {
            let target = InProcess(service);
            let run = std::panic::AssertUnwindSafe(fuzz.run(&target));
            let _ = done.send(futures_util::FutureExt::catch_unwind(run).await);
        });
        let panic = result.await.unwrap().expect_err("the fuzzer found nothing");
        panic.downcast_ref::<String>().expect("a text").clone()
    }
    let notes = Data::from(Arc::new(Notes::default()));
    // A handler that panics on a long text.
    let text = found(move |config| {
        let notes = notes.clone();
        config.app_data(notes).route(
            "/v1/notes/{key}",
            web::post().to(|body: Json<Write>| async move {
                assert!(body.0.text.len() < 50);
                HttpResponse::Ok().finish()
            }),
        );
    })
    .await;
    assert!(text.contains("write_note") && text.contains("a server error"), "{text}");
    // A handler that takes no token, and one that takes any body.
    let text = found(|config| {
        config.route(
            "/v1/notes/{key}",
            web::post().to(|_: Key, _: Json<serde_json::Value>| async { HttpResponse::Ok().finish() }),
        );
    })
    .await;
    assert!(
        text.contains("no X-Fencing-Token") && text.contains("expected FENCING_TOKEN_REQUIRED"),
        "{text}"
    );
}

#[actix_web::test]
async fn what_has_no_route_is_a_problem_too() {
    let service = start(gateway(&[])).await;
    for target in [
        "/",
        "/nothing",
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v1/undocumented",
        "//v1/notes",
        "/docs/errors/NO_SUCH",
    ] {
        let answer = service.get(target).await;
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (404, Some("NOT_FOUND")),
            "{target}"
        );
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    }
    for (method, target, allow) in [
        ("PUT", "/v1/notes/a", "GET, POST, HEAD, OPTIONS"),
        ("DELETE", "/v1/notes", "GET, HEAD, OPTIONS"),
        ("POST", "/livez", "GET, HEAD, OPTIONS"),
        ("BREW", "/v1/notes/a", "GET, POST, HEAD, OPTIONS"),
    ] {
        let answer = service
            .send(Sent {
                method: method.into(),
                target: target.into(),
                ..Sent::default()
            })
            .await;
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (405, Some("METHOD_NOT_ALLOWED")),
            "{target}"
        );
        assert_eq!(answer.header("allow"), Some(allow));
    }
}

#[actix_web::test]
async fn a_refusal_carries_the_callers_trace_and_request_id() {
    let service = start(gateway(&[])).await;
    let headers = vec![
        (
            "traceparent".to_owned(),
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_vec(),
        ),
        ("X-Request-Id".to_owned(), b"r-42".to_vec()),
    ];
    let request = |target: &str| Sent {
        method: "GET".into(),
        target: target.into(),
        headers: headers.clone(),
        ..Sent::default()
    };
    for target in ["/v1/notes/none", "/v1/nothing", "/nothing", "/crash"] {
        let answer = service.send(request(target)).await;
        assert_eq!(
            answer.json()["trace_id"],
            "4bf92f3577b34da6a3ce929d0e0e4736",
            "{target}"
        );
        assert_eq!(answer.header("x-request-id"), Some("r-42"), "{target}");
    }
    let answer = service.send(request("/trace")).await;
    let below = String::from_utf8(answer.body).unwrap();
    assert!(
        below.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && !below.contains("00f067aa0ba902b7"),
        "{below}"
    );
    let made = service.get("/v1/notes/none").await;
    assert_eq!(made.header("x-request-id").map(str::len), Some(26));
    assert_ne!(made.json()["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
}

#[actix_web::test]
async fn a_handler_that_panics_is_answered_and_the_process_goes_on() {
    let service = start(gateway(&[])).await;
    for _ in 0..3 {
        let answer = service.get("/crash").await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (500, Some("INTERNAL")));
        assert!(
            !String::from_utf8_lossy(&answer.body).contains("asked for"),
            "the cause stays in the log"
        );
    }
    assert_eq!(service.get("/livez").await.status, 200);
}

#[actix_web::test]
async fn a_request_that_takes_too_long_is_answered() {
    let service = start(gateway(&[("http.request-timeout", "100ms")])).await;
    let answer = service.get("/slow").await;
    assert_eq!(
        (answer.status, answer.json()["code"].as_str()),
        (503, Some("BACKEND_UNAVAILABLE"))
    );
    assert_eq!(answer.header("retry-after"), Some("1"));
    // A body that never comes is the caller's fault.
    let mut stream = tokio::net::TcpStream::connect(service.socket.0).await.unwrap();
    let head = b"POST /hungry HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{";
    tokio::io::AsyncWriteExt::write_all(&mut stream, head).await.unwrap();
    let (mut text, mut received) = (String::new(), vec![0; 4_096]);
    while !text.contains("did not arrive in time") {
        let read = tokio::io::AsyncReadExt::read(&mut stream, &mut received).await.unwrap();
        assert!(read > 0, "it ended: {text}");
        text.push_str(&String::from_utf8_lossy(&received[..read]));
    }
    assert!(text.starts_with("HTTP/1.1 400"), "{text}");
}

#[actix_web::test]
async fn a_route_that_waits_on_purpose_has_its_own_time_out() {
    let gateway = gateway(&[("http.request-timeout", "50ms")]).route_timeout("/v1/notes", Duration::from_secs(20));
    let apps = gateway.apps(|config| {
        config.route(
            "/v1/notes",
            web::get().to(|| async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                HttpResponse::Ok().finish()
            }),
        );
    });
    let service = InProcess(actix_web::test::init_service(apps.app()).await);
    let request = Sent {
        method: "GET".into(),
        target: "/v1/notes".into(),
        ..Sent::default()
    };
    assert_eq!(service.send(&request).await.unwrap().status, 200);
}

#[actix_web::test]
async fn every_component_answers_the_probes_and_shows_its_metrics() {
    let state = Arc::new(Mutex::new(Err("the store is away".to_owned())));
    let seen = Arc::clone(&state);
    let gateway = gateway(&[])
        .ready_note("fencing", "rail.fencing.enabled is OFF")
        .ready_check("store", move || {
            let answer = seen.lock().unwrap().clone();
            Box::pin(async move { answer })
        });
    let service = start(gateway).await;
    assert_eq!(service.get("/livez").await.status, 200);
    let unready = service.get("/readyz").await;
    assert_eq!(
        (unready.status, &unready.json()["failed"]["store"]),
        (503, &"the store is away".into())
    );
    assert_eq!(service.get("/startupz").await.status, 503);
    *state.lock().unwrap() = Ok(());
    assert_eq!(service.get("/startupz").await.status, 200);
    let ready = service.get("/readyz").await.json();
    assert_eq!(
        (&ready["status"], &ready["notes"]["fencing"]),
        (&"ready".into(), &"rail.fencing.enabled is OFF".into())
    );
    *state.lock().unwrap() = Err("away again".to_owned());
    assert_eq!(
        (
            service.get("/readyz").await.status,
            service.get("/startupz").await.status
        ),
        (503, 200)
    );
    service.write("a%2Fsecret", "3", r#"{"text":"x"}"#).await;
    service.write("a%2Fsecret", "2", r#"{"text":"x"}"#).await;
    let metrics = service.get("/metrics").await;
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4"));
    let text = String::from_utf8(metrics.body).unwrap();
    for line in [
        r#"http_requests_total{method="POST",outcome="FENCED_OUT",route="/v1/notes/{key}"} 1"#,
        r#"http_requests_total{method="POST",outcome="ok",route="/v1/notes/{key}"} 1"#,
        r#"build_info{commit=""#,
        r#"component="notes""#,
        "http_request_duration_seconds_bucket",
    ] {
        assert!(text.contains(line), "no {line} in {text}");
    }
    assert!(!text.contains("secret"), "a metric carries a key (NFR-09)");
    assert_eq!(service.get("/version").await.json()["component"], "notes");
}

#[actix_web::test]
async fn what_a_fence_refused_is_remembered() {
    let service = start(gateway(&[])).await;
    assert_eq!(service.get("/v1/refusals").await.json()["items"], serde_json::json!([]));
    service.write("a", "3", r#"{"text":"x"}"#).await;
    service.write("a", "2", r#"{"text":"x"}"#).await;
    let answer = service.get("/v1/refusals?limit=5").await.json();
    assert_eq!(
        (&answer["component"], &answer["forgotten"]),
        (&"notes".into(), &0.into())
    );
    let refused = &answer["items"][0];
    assert_eq!(
        (
            &refused["presented_token"],
            &refused["highest_token"],
            &refused["route"]
        ),
        (&2.into(), &3.into(), &"/v1/notes/{key}".into())
    );
    assert_eq!(refused["trace_id"].as_str().unwrap().len(), 32);
    assert_eq!(
        service.get("/v1/refusals?payout_id=P").await.json()["items"],
        serde_json::json!([])
    );
    for bad in ["limit=0", "limit=1001", "limit=x", "other=1"] {
        assert_eq!(service.get(&format!("/v1/refusals?{bad}")).await.status, 400, "{bad}");
    }
}

#[actix_web::test]
async fn the_documentation_is_served_without_a_network() {
    let service = start(gateway(&[])).await;
    let document = service.get("/openapi.json").await.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    assert!(document["paths"]["/v1/notes/{key}"]["post"].is_object());
    assert_eq!(service.get("/docs").await.header("location"), Some("/docs/"));
    let mut pages = vec!["/docs/".to_owned()];
    let page = String::from_utf8(service.get("/docs/").await.body).unwrap();
    for part in page
        .split(['"', '\''])
        .filter(|part| part.ends_with(".js") || part.ends_with(".css"))
    {
        assert!(!part.contains("//"), "{part} is fetched from elsewhere");
        pages.push(format!("/docs/{}", part.trim_start_matches("./")));
    }
    assert!(pages.len() > 3, "{page}");
    for page in pages {
        let answer = service.get(&page).await;
        assert!(
            answer.status == 200 && !answer.body.is_empty(),
            "{page}: {}",
            answer.status
        );
    }
    for code in Code::ALL {
        let problem = http_contract::Problem::new(*code, "", "");
        let answer = service.get(&problem.kind).await;
        assert!(
            answer.status == 200 && answer.body.starts_with(format!("# {code}").as_bytes()),
            "{code}"
        );
    }
    assert!(
        String::from_utf8(service.get("/docs/errors").await.body)
            .unwrap()
            .contains("/docs/errors/FENCED_OUT")
    );
}

#[actix_web::test]
async fn a_drain_finishes_what_is_in_flight_and_ends() {
    let acted = Arc::new(Mutex::new(false));
    let seen = Arc::clone(&acted);
    let flags = [
        ("http.drain-delay", "4s"),
        ("http.drain-timeout", "20s"),
        ("http.request-timeout", "30s"),
    ];
    let gateway = gateway(&flags).on_drain(move || Box::pin(async move { *seen.lock().unwrap() = true }));
    let service = start(gateway).await;
    assert_eq!(service.get("/readyz").await.status, 200);
    let socket = service.socket;
    let flight = actix_web::rt::spawn(async move {
        socket
            .send(&Sent {
                method: "GET".into(),
                target: "/slow".into(),
                ..Sent::default()
            })
            .await
    });
    service.notes.slow_began.notified().await;
    // A client that keeps its connection open and says nothing must not hold the process up.
    let mut idle = tokio::net::TcpStream::connect(socket.0).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut idle, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    assert!(tokio::io::AsyncReadExt::read(&mut idle, &mut [0; 1_024]).await.unwrap() > 0);
    service.drain.begin();
    let unready = service.get("/readyz").await;
    assert_eq!(
        (unready.status, unready.json()["failed"]["drain"].as_str()),
        (503, Some("draining"))
    );
    assert_eq!(
        service.get("/livez").await.status,
        200,
        "draining is no reason to be killed"
    );
    // Once the delay is over nobody new is let in, while the request in flight still waits.
    while socket
        .send(&Sent {
            method: "GET".into(),
            target: "/livez".into(),
            ..Sent::default()
        })
        .await
        .is_ok()
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!flight.is_finished());
    service.notes.slow_may_end.notify_one();
    let answer = flight.await.unwrap().unwrap();
    assert_eq!((answer.status, &answer.body[..]), (200, &b"slow but done"[..]));
    let ended = tokio::time::timeout(Duration::from_secs(10), service.ended).await;
    ended
        .expect("the gateway ends once nothing is in flight")
        .unwrap()
        .unwrap();
    assert!(*acted.lock().unwrap(), "the hook ran");
}

#[actix_web::test]
async fn an_address_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let notes = Data::from(Arc::new(Notes::default()));
    let error = gateway(&[]).serve(&address, routes(notes)).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(
        error.to_string().contains(&format!("cannot listen on {address}")),
        "{error}"
    );
    let notes = Data::from(Arc::new(Notes::default()));
    let error = gateway(&[]).serve("nonsense", routes(notes)).await.unwrap_err();
    assert!(error.to_string().contains("cannot listen on nonsense"), "{error}");
}

#[actix_web::test]
async fn case_l14_what_is_no_ttl_is_refused_with_its_bounds() {
    let service = start(gateway(&[])).await;
    for bad in [
        "-1",
        "0",
        "999",
        "300001",
        "2147483648",
        "9007199254740992",
        "9223372036854775807",
        "1e30",
        "1.5",
        "\"15s\"",
        "null",
    ] {
        let answer = service
            .write("a", "1", &format!(r#"{{"text":"x","ttl_ms":{bad}}}"#))
            .await;
        let problem = answer.json();
        assert_eq!(
            (answer.status, problem["field"].as_str()),
            (400, Some("ttl_ms")),
            "{bad}: {problem}"
        );
        assert!(
            problem["reason"].as_str().unwrap().contains("between 1000 and 300000"),
            "{bad}: {problem}"
        );
    }
    assert!(service.notes.notes.lock().unwrap().is_empty(), "nothing was written");
}

#[actix_web::test]
async fn a_handler_that_waits_sees_its_caller_close_or_reset() {
    let service = start(gateway(&[("http.request-timeout", "60s")])).await;
    let bound = Duration::from_secs(20);
    for reset in [false, true] {
        let mut stream = tokio::net::TcpStream::connect(service.socket.0).await.unwrap();
        let request = b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut stream, request).await.unwrap();
        tokio::time::timeout(bound, service.notes.slow_began.notified())
            .await
            .unwrap();
        // The next request, sent early, is no goodbye.
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        let early = tokio::time::timeout(Duration::from_millis(200), service.notes.wait_ended.notified()).await;
        assert!(early.is_err(), "the handler ended although its caller is there");
        if reset {
            stream.set_zero_linger().unwrap();
        }
        drop(stream);
        tokio::time::timeout(bound, service.notes.wait_ended.notified())
            .await
            .expect("the goodbye is seen");
    }
    assert_eq!(service.get("/livez").await.status, 200);
}
