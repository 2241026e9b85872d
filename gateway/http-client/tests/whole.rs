//! An answer that was cut off is no answer, an interim answer is not the last one, and a connection carries many answers
//! (cases P33, P36).

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

use actor_kit::TraceContext;
use host_kit::Random;
use http_client::{CallError, Caller, ClientOptions};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const WITHIN: Duration = Duration::from_secs(30);
const BODY: &str = r#"{"a":1}"#;

/// A server that gives each request on its one connection the next of these answers, and closes after the last.
async fn server(answers: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    actix_rt::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        for answer in answers {
            let mut read = Vec::new();
            while !read.ends_with(b"\r\n\r\n") {
                assert!(socket.read_buf(&mut read).await.unwrap() > 0, "the client went away");
            }
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
        socket.shutdown().await.unwrap();
    });
    base
}

async fn calls(answers: &[String]) -> Vec<Result<Value, CallError>> {
    let base = server(answers.to_vec()).await;
    let caller = Caller::new(http_client::client(&ClientOptions::default()), base, WITHIN);
    let trace = TraceContext::root(&Random::seeded(1));
    let mut seen = Vec::new();
    for _ in answers {
        seen.push(caller.get_json("/x", &trace).await);
    }
    seen
}

fn chunked(end: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{BODY}\r\n{end}",
        BODY.len()
    )
}

fn sized(more: usize) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{BODY}", BODY.len() + more)
}

#[actix_rt::test]
async fn case_p33_an_answer_that_was_cut_off_is_no_answer_of_any_component() {
    for cut in [chunked(""), chunked("0\r\n"), sized(1)] {
        let seen = calls(std::slice::from_ref(&cut)).await;
        assert!(matches!(&seen[0], Err(CallError::Ambiguous(_))), "{cut:?}: {seen:?}");
        // Behind answers that were whole, on a connection that was kept.
        let seen = calls(&[sized(0), chunked("0\r\n\r\n"), cut.clone()]).await;
        assert_eq!(seen[..2], [Ok(json!({"a": 1})), Ok(json!({"a": 1}))]);
        assert!(matches!(&seen[2], Err(CallError::Ambiguous(_))), "{cut:?}: {seen:?}");
    }
}

#[actix_rt::test]
async fn case_p36_interim_answers_are_passed_over_on_a_kept_connection() {
    let interim = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
    let answers = [
        format!("{interim}{}", sized(0)),
        format!("{interim}{}", chunked("0\r\n\r\n")),
    ];
    assert_eq!(calls(&answers).await, [Ok(json!({"a": 1})), Ok(json!({"a": 1}))]);
}
