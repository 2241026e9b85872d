//! The fence as a middleware of an actix-web service.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use actix_web::body::to_bytes;
use actix_web::test::TestRequest;
use actix_web::web::{self, Data};
use actix_web::{App, HttpRequest, HttpResponse, test};
use fence_kit::{Fenced, FencedBy, Keeper, KeeperOptions, OncePerToken, Rule, SqliteMarks};
use gateway_kit::ApiError;
use host_kit::Host;
use lock_api::LockKey;
use serde_json::Value;
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, watch};

/// What the handlers have done, in their order.
#[derive(Clone)]
struct Book {
    effects: Arc<Mutex<Vec<(String, u64)>>>,
    gate: Arc<watch::Sender<bool>>,
    /// Somebody has come to the gate.
    came: Arc<Notify>,
}

async fn keeper(options: KeeperOptions) -> Keeper {
    let host = Host::system();
    let marks = SqliteMarks::in_memory(&host).unwrap();
    Keeper::new(Arc::new(marks), &host, options).await.unwrap()
}

fn key_of(request: &HttpRequest) -> Result<LockKey, ApiError> {
    Ok(LockKey::new(request.match_info().query("account"))?)
}

async fn act(by: FencedBy, way: web::Path<(String, String)>, book: Data<Book>) -> HttpResponse {
    match way.1.as_str() {
        "gate" => {
            book.came.notify_one();
            drop(book.gate.subscribe().wait_for(|open| *open).await);
        }
        "panic" => panic!("as it was asked to"),
        _ => {}
    }
    book.effects
        .lock()
        .unwrap()
        .push((by.key.as_str().to_owned(), by.token.get()));
    HttpResponse::Ok().body(format!("done under {}", by.token))
}

macro_rules! service {
    ($keeper:expr, $book:expr) => {
        test::init_service(
            App::new().app_data(Data::new($book.clone())).service(
                web::resource("/accounts/{account}/{way}")
                    .wrap(Fenced::new($keeper, key_of))
                    .route(web::get().to(|| async { HttpResponse::Ok().body("read") }))
                    .route(web::post().to(act)),
            ),
        )
        .await
    };
}

fn post(path: &str, tokens: &[&str]) -> actix_http::Request {
    tokens
        .iter()
        .fold(TestRequest::post().uri(path), |request, token| {
            request.append_header(("X-Fencing-Token", *token))
        })
        .to_request()
}

/// Status, code and reason, or the text.
async fn told(answer: Result<actix_web::dev::ServiceResponse, actix_web::Error>) -> (u16, String, String) {
    let response = match answer {
        Ok(response) => response.into_parts().1,
        Err(error) => error.error_response(),
    };
    let (status, problem) = (
        response.status().as_u16(),
        response
            .headers()
            .get("content-type")
            .is_some_and(|kind| kind == "application/problem+json"),
    );
    let body = to_bytes(response.into_body()).await.unwrap();
    if !problem {
        return (status, String::from_utf8(body.to_vec()).unwrap(), String::new());
    }
    let json: Value = serde_json::from_slice(&body).unwrap();
    let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
    (status, text("code"), text("reason"))
}

fn book() -> Book {
    Book {
        effects: Arc::default(),
        gate: Arc::new(watch::Sender::new(false)),
        came: Arc::default(),
    }
}

#[actix_web::test]
async fn no_handler_runs_without_a_token_or_under_a_stale_one() {
    let (keeper, book) = (keeper(KeeperOptions::default()).await, book());
    let service = service!(keeper.clone(), book);
    let call = async |request| told(test::try_call_service(&service, request).await).await;
    assert_eq!(call(post("/accounts/A/x", &[])).await.1, "FENCING_TOKEN_REQUIRED");
    for bad in [&["05"][..], &["x"], &["0"], &["9007199254740992"], &["5", "5"]] {
        assert_eq!(
            call(post("/accounts/A/x", bad)).await.1,
            "FENCING_TOKEN_INVALID",
            "{bad:?}"
        );
    }
    assert_eq!(
        call(post("/accounts/A/x", &["5"])).await,
        (200, "done under 5".to_owned(), String::new())
    );
    assert_eq!(
        call(post("/accounts/A/x", &["4"])).await,
        (409, "FENCED_OUT".to_owned(), "stale".to_owned())
    );
    assert_eq!(call(post("/accounts/A/x", &["5"])).await.0, 200);
    assert_eq!(call(post("/accounts/B/x", &["1"])).await.0, 200);
    assert_eq!(
        call(TestRequest::get().uri("/accounts/A/x").to_request()).await.1,
        "read"
    );
    assert_eq!(book.effects.lock().unwrap().len(), 3);
    assert_eq!((keeper.in_flight(), keeper.in_doubt()), (0, 0));
}

#[actix_web::test]
async fn a_handler_runs_to_its_end_though_its_caller_has_gone_and_a_newer_token_waits_for_it() {
    let (keeper, book) = (keeper(KeeperOptions::default()).await, book());
    let service = service!(keeper.clone(), book);
    {
        let begun = test::try_call_service(&service, post("/accounts/A/gate", &["5"]));
        tokio::select! {
            _ = begun => panic!("it waits at the gate"),
            () = book.came.notified() => {}
        }
        // Its caller does not wait.
    }
    let call = async |token| told(test::try_call_service(&service, post("/accounts/A/x", &[token])).await).await;
    let doubt = (409, "IN_DOUBT".to_owned(), "older_request_open".to_owned());
    assert_eq!(call("6").await, doubt);
    assert_eq!(call("5").await.1, "FENCED_OUT", "the older holder was replaced");
    book.gate.send_replace(true);
    for _ in 0..500 {
        if keeper.in_flight() == 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(call("6").await.0, 200);
    let tokens: Vec<_> = book.effects.lock().unwrap().iter().map(|(_, token)| *token).collect();
    assert_eq!(tokens, [5, 6]);
}

#[actix_web::test]
async fn a_handler_that_panics_leaves_its_key_in_doubt() {
    let (keeper, book) = (keeper(KeeperOptions::default()).await, book());
    let service = service!(keeper.clone(), book);
    let call = async |request| told(test::try_call_service(&service, request).await).await;
    let own = call(post("/accounts/A/panic", &["5"])).await;
    assert_eq!(own, (409, "IN_DOUBT".to_owned(), "no_answer".to_owned()));
    assert_eq!(call(post("/accounts/A/x", &["6"])).await.2, "older_request_open");
    let key = LockKey::new("A").unwrap();
    let cleared = keeper.clear(&key, None, "ada", "looked at the table").await.unwrap();
    assert_eq!(cleared.len(), 1);
    assert_eq!(call(post("/accounts/A/x", &["6"])).await.0, 200);
}

#[actix_web::test]
async fn under_the_strict_rule_a_token_runs_one_handler() {
    let options = KeeperOptions {
        rule: OncePerToken::KIND,
        ..KeeperOptions::default()
    };
    let (keeper, book) = (keeper(options).await, book());
    let service = service!(keeper, book);
    let call = async |token| told(test::try_call_service(&service, post("/accounts/A/x", &[token])).await).await;
    assert_eq!(call("5").await.0, 200);
    assert_eq!(
        call("5").await,
        (409, "FENCED_OUT".to_owned(), "token_spent".to_owned())
    );
    assert_eq!(call("6").await.0, 200);
}

/// A handler that stands outside its fence does not run as if it were fenced.
#[actix_web::test]
async fn a_route_without_its_fence_is_a_mistake_that_shows() {
    let book = book();
    let service = test::init_service(
        App::new()
            .app_data(Data::new(book.clone()))
            .route("/accounts/{account}/{way}", web::post().to(act)),
    )
    .await;
    let answer = told(test::try_call_service(&service, post("/accounts/A/x", &["5"])).await).await;
    assert_eq!((answer.0, answer.1.as_str()), (500, "INTERNAL"));
    assert!(book.effects.lock().unwrap().is_empty());
}
