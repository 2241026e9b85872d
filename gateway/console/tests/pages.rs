//! The pages as any client reads them, with no component there: what is shown of that, what is refused, what is sent along.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::ServiceResponse;
use actix_web::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName};
use actix_web::test::{TestRequest, call_service, init_service, read_body};
use futures_util::future::poll_fn;
use gateway_kit::Settings;
use host_kit::Host;
use operator_console::{Assembled, assemble, configure};
use std::pin::pin;

/// Nobody listens on the discard port of this machine.
const NOBODY: &str = "http://127.0.0.1:9";

fn settings(more: &[(&str, &str)]) -> Settings {
    let mut flags = vec![
        ("console.lock-servers", NOBODY),
        ("console.payments", NOBODY),
        ("console.rail-proxy", NOBODY),
        ("console.executors", NOBODY),
    ];
    flags.extend(more);
    let flags: Vec<_> = flags.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    Settings::load(None, [], &flags).unwrap()
}

/// A console without a socket.
macro_rules! console {
    ($more:expr) => {{
        let Assembled { gateway, state } = assemble(&settings($more), &Host::system()).unwrap();
        let apps = gateway.apps(move |config| configure(config, state.clone()));
        init_service(apps.app()).await
    }};
}

/// Asks for a page by this host.
macro_rules! get {
    ($app:expr, $path:expr, $host:expr) => {{
        let request = TestRequest::get()
            .uri($path)
            .insert_header(("host", $host))
            .to_request();
        call_service(&$app, request).await
    }};
    ($app:expr, $path:expr) => {
        get!($app, $path, "127.0.0.1:7406")
    };
}

fn header(answer: &ServiceResponse<BoxBody>, name: impl Into<HeaderName>) -> String {
    let value = answer.headers().get(name.into());
    value.map_or_else(String::new, |value| value.to_str().unwrap().to_owned())
}

async fn text(answer: ServiceResponse<BoxBody>) -> String {
    String::from_utf8(read_body(answer).await.to_vec()).unwrap()
}

const PAGES: [&str; 12] = [
    "/",
    "/locks?prefix=a&state=held",
    "/locks/payout%3Aalpha",
    "/sessions",
    "/sessions/s1",
    "/payouts?state=POSTED&account=alpha",
    "/payouts/p1",
    "/accounts",
    "/queue",
    "/refusals?account=alpha",
    "/actors?component=lock",
    "/scenario",
];

#[actix_web::test]
async fn every_page_is_there_without_any_component_and_says_so() {
    let app = console!(&[]);
    for path in PAGES {
        let answer = get!(app, path);
        assert_eq!(answer.status().as_u16(), 200, "{path}");
        assert_eq!(header(&answer, CONTENT_TYPE), "text/html; charset=utf-8");
        let policy = header(&answer, CONTENT_SECURITY_POLICY);
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(header(&answer, CACHE_CONTROL), "no-store");
        let page = text(answer).await;
        assert_eq!(page.matches("<h1").count(), 1, "{path} has one heading");
        assert!(page.contains("lang=\"en\"") && page.contains("<main"), "{path}");
        assert!(
            !page.contains(" style=") && !page.contains("<style") && !page.contains("javascript:"),
            "{path}"
        );
        let heads = page.matches("<th ").count() + page.matches("<th>").count();
        assert_eq!(
            heads,
            page.matches("scope=\"").count(),
            "{path}: every head of a table has a scope"
        );
        if path != "/scenario" && path != "/sessions/s1" {
            assert!(
                page.contains("not reached") || page.contains("not asked yet"),
                "{path}: {page}"
            );
        }
    }
}

#[actix_web::test]
async fn what_is_no_page_or_cannot_be_read_is_a_page_that_says_so() {
    let app = console!(&[]);
    for (path, status, word) in [
        ("/nowhere", 404, "No such page"),
        ("/locks?state=HELD", 400, "state must be held or free"),
        ("/payouts?state=paid", 400, "state must be a payout"),
        ("/locks/%ff", 400, "key is not UTF-8"),
        ("/live/nowhere", 404, "No such page"),
        ("/assets/console-0000000000000000.css", 404, "No such page"),
    ] {
        let answer = get!(app, path);
        assert_eq!(answer.status().as_u16(), status, "{path}");
        assert_eq!(header(&answer, CONTENT_TYPE), "text/html; charset=utf-8", "{path}");
        let page = text(answer).await;
        assert!(page.contains(word), "{path}: {page}");
    }
}

#[actix_web::test]
async fn a_name_that_was_made_to_point_here_is_refused() {
    let app = console!(&[("console.hosts", "ops.example")]);
    for (host, status) in [("evil.example", 421), ("ops.example", 200), ("localhost:7406", 200)] {
        assert_eq!(get!(app, "/queue", host).status().as_u16(), status, "{host}");
        assert_eq!(get!(app, "/live/queue", host).status().as_u16(), status, "{host}");
    }
}

#[actix_web::test]
async fn assets_are_kept_for_ever_under_the_hash_of_what_they_are() {
    let app = console!(&[]);
    let page = text(get!(app, "/queue")).await;
    for (before, kind) in [
        ("href=\"/assets/console-", "text/css"),
        ("src=\"/assets/console-", "text/javascript"),
    ] {
        let from = page.find(before).unwrap() + before.find('/').unwrap();
        let path = page[from..].split('"').next().unwrap();
        let answer = get!(app, path);
        assert_eq!(answer.status().as_u16(), 200, "{path}");
        assert!(header(&answer, CONTENT_TYPE).starts_with(kind), "{path}");
        assert!(header(&answer, CACHE_CONTROL).contains("immutable"), "{path}");
    }
}

/// The first event is a snapshot, also for whoever comes back and names the last one seen; a stream takes a seat, and gives
/// it back.
#[actix_web::test]
async fn a_stream_begins_with_a_snapshot_and_takes_a_seat() {
    let app = console!(&[("console.viewers-max", "1")]);
    let request = TestRequest::get()
        .uri("/live/queue")
        .insert_header(("host", "localhost"))
        .insert_header(("last-event-id", "99"))
        .to_request();
    let answer = call_service(&app, request).await;
    assert_eq!(header(&answer, CONTENT_TYPE), "text/event-stream");
    {
        let mut body = pin!(answer.into_body());
        let first = poll_fn(|cx| body.as_mut().poll_next(cx)).await.unwrap().unwrap();
        let first = String::from_utf8(first.to_vec()).unwrap();
        assert!(
            first.contains("event: snapshot\nid: ") && first.ends_with("\n\n"),
            "{first}"
        );
        let data = first.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["title"], "Needs a human");
        assert!(data["html"].as_str().unwrap().contains("<h1>Needs a human</h1>"));
        let refused = get!(app, "/live/queue");
        assert_eq!(refused.status().as_u16(), 503);
        assert!(text(refused).await.contains("console.viewers-max"));
        assert_eq!(
            get!(app, "/queue").status().as_u16(),
            200,
            "who loads a page is no viewer (case S6)"
        );
    }
    assert_eq!(
        get!(app, "/live/queue").status().as_u16(),
        200,
        "the seat is free again"
    );
}

/// Somebody goes through many pages, one after the other: each is read a while longer, and none of them keeps him out.
#[actix_web::test]
async fn a_hundred_pages_one_after_the_other_are_all_shown() {
    let app = console!(&[("console.viewers-max", "1")]);
    for page in 0..100 {
        let path = format!("/locks?prefix=page-{page}");
        assert_eq!(get!(app, &path).status().as_u16(), 200, "{path}");
    }
}

/// A console that only reads has no form, and one that may break a grant takes no request without its form.
#[actix_web::test]
async fn nothing_is_broken_without_a_form_of_this_console() {
    for (read_only, word) in [("true", "only reads"), ("false", "Not from this console")] {
        let app = console!(&[("console.read-only", read_only)]);
        let request = TestRequest::post()
            .uri("/locks/a/revoke")
            .insert_header(("host", "localhost"))
            .set_form([
                ("form", "x"),
                ("token", "1"),
                ("key", "a"),
                ("operator", "eve"),
                ("reason", "because I can"),
            ])
            .to_request();
        let answer = call_service(&app, request).await;
        assert_eq!(answer.status().as_u16(), 403);
        let page = text(answer).await;
        assert!(page.contains(word), "{page}");
    }
}
