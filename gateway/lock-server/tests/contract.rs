//! The lock server over a real socket with a real store file: one test per operation, then the cases.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

mod common;

use common::{LONG, Server, encode, token};
use gateway_kit::testing::{Fuzz, Socket, assert_every_operation_is_tested};
use serde_json::{Value, json};
use std::time::Duration;

// operation: open_session
#[actix_web::test]
async fn open_session_answers_ttl_and_heartbeat_interval() {
    let server = Server::start().await;
    let opened = server
        .post(
            "/v1/sessions",
            json!({"owner": "w1", "ttl_ms": 15_000, "metadata": {"pod": "a"}}),
        )
        .await
        .is(201);
    assert_eq!(opened["owner"], "w1");
    assert_eq!(opened["ttl_ms"], 15_000);
    assert_eq!(opened["heartbeat_interval_ms"], 5_000);
    assert!((14_000..=15_000).contains(&opened["expires_in_ms"].as_u64().unwrap()));
    let default = server.post("/v1/sessions", json!({"owner": "w2"})).await.is(201);
    assert_eq!(default["ttl_ms"], 15_000);
    server.post("/v1/sessions", json!({})).await.names("owner");
    server.post("/v1/sessions", json!({"owner": ""})).await.names("owner");
    server
        .post("/v1/sessions", json!({"owner": "a\u{7}"}))
        .await
        .names("owner");
    server
        .post("/v1/sessions", json!({"owner": "x".repeat(129)}))
        .await
        .names("owner");
    server
        .post("/v1/sessions", json!({"owner": "w", "metadata": "x".repeat(4_096)}))
        .await
        .names("metadata");
    server
        .post("/v1/sessions", json!({"owner": "w", "wrong": 1}))
        .await
        .names("wrong");
}

// operation: heartbeat
#[actix_web::test]
async fn heartbeat_answers_what_is_held() {
    let server = Server::start().await;
    let session = server.session().await;
    let grant = server.acquire("k", json!({"session_id": session})).await.is(200);
    let path = format!("/v1/sessions/{session}/heartbeat");
    let beat = server
        .post(&path, json!({"witness_token": token(&grant)}))
        .await
        .is(200);
    assert_eq!(beat["session_id"], session.as_str());
    assert_eq!(beat["held"][0]["key"], "k");
    assert_eq!(beat["held"][0]["token"], grant["token"]);
    server.raw("POST", &path, &[], None).await.is(200);
    server
        .post("/v1/sessions/nobody/heartbeat", json!({}))
        .await
        .refused(404, "SESSION_NOT_FOUND");
    // More than 2^41 above the last token: not believed, and audited.
    server
        .post(&path, json!({"witness_token": 1u64 << 50}))
        .await
        .names("witness_token");
    let audit = server.get("/v1/audit?limit=1000").await.is(200);
    let kinds: Vec<_> = audit["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["kind"])
        .collect();
    assert!(kinds.contains(&&json!("WITNESS_REFUSED")), "{kinds:?}");
}

// operation: close_session
#[actix_web::test]
async fn close_session_frees_what_it_held() {
    let server = Server::start().await;
    let session = server.session().await;
    let grant = server.acquire("k", json!({"session_id": session})).await.is(200);
    let path = format!("/v1/sessions/{session}");
    let closed = server.raw("DELETE", &path, &[], None).await.is(200);
    assert_eq!(closed, json!({"released": [{"key": "k", "token": grant["token"]}]}));
    let again = server.raw("DELETE", &path, &[], None).await.is(200);
    assert_eq!(again, json!({"released": []}));
    assert_eq!(server.lock("k").await["state"], "FREE");
}

// operation: get_session
#[actix_web::test]
async fn get_session_shows_what_it_holds() {
    let server = Server::start().await;
    let session = server
        .session_of(json!({"owner": "w1", "metadata": {"a": [1, null]}}))
        .await;
    server.acquire("k", json!({"session_id": session})).await.is(200);
    let shown = server.get(&format!("/v1/sessions/{session}")).await.is(200);
    assert_eq!(shown["owner"], "w1");
    assert_eq!(shown["metadata"], json!({"a": [1, null]}));
    assert_eq!(shown["held"][0]["key"], "k");
    assert!(shown["opened_at"].as_str().unwrap().ends_with('Z'));
    server
        .get("/v1/sessions/nobody")
        .await
        .refused(404, "SESSION_NOT_FOUND");
    server.get("/v1/sessions/no%20body").await.names("id");
}

// operation: list_sessions
#[actix_web::test]
async fn list_sessions_comes_in_pages() {
    let server = Server::start().await;
    let mut opened = Vec::new();
    for n in 0..5 {
        opened.push(server.session_of(json!({"owner": format!("w{n}")})).await);
    }
    opened.sort();
    let listed = pages(&server, "/v1/sessions?limit=2", "session_id").await;
    assert_eq!(listed, opened);
    server.get("/v1/sessions?limit=0").await.names("limit");
    server.get("/v1/sessions?limit=1001").await.names("limit");
    server.get("/v1/sessions?cursor=xyz").await.names("cursor");
    server.get("/v1/sessions?wrong=1").await.names("wrong");
}

/// All items of a list, page by page.
async fn pages(server: &Server, path: &str, field: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = server.get(&format!("{path}{cursor}")).await.is(200);
        for item in page["items"].as_array().unwrap() {
            found.push(item[field].as_str().unwrap().to_owned());
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return found,
        }
    }
}

// operation: acquire
#[actix_web::test]
async fn acquire_grants_or_says_who_holds() {
    let server = Server::start().await;
    let (one, two) = (server.session().await, server.session_of(json!({"owner": "w2"})).await);
    let grant = server
        .acquire(
            "payout:A",
            json!({"session_id": one, "ttl_ms": 5_000, "metadata": {"payout": "p1"}}),
        )
        .await
        .is(200);
    assert_eq!(grant["key"], "payout:A");
    assert_eq!(grant["session_id"], one.as_str());
    assert_eq!(grant["ttl_ms"], 5_000);
    assert!(grant["expires_in_ms"].as_u64().unwrap() <= 5_000 && grant["waited_ms"].as_u64().unwrap() < 5_000);
    let held = server.acquire("payout:A", json!({"session_id": two})).await;
    assert!(held.retry_after);
    let held = held.refused(409, "HELD_BY_OTHER");
    assert_eq!(held["key"], "payout:A");
    assert_eq!(held["retryable"], true);
    assert_eq!(held["holder"]["owner"], "w1");
    assert_eq!(held["holder"]["token"], grant["token"]);
    assert_eq!(held["holder"]["metadata"], json!({"payout": "p1"}));
    assert!(held["holder"].get("self").is_none() && held["holder"]["since"].as_str().unwrap().ends_with('Z'));
    assert_eq!(held["waiters"], 0);
    assert!(held["expires_in_ms"].as_u64().unwrap() <= 5_000 && held["retry_after_ms"].as_u64().unwrap() > 0);
    server
        .acquire("payout:B", json!({"session_id": "nobody"}))
        .await
        .refused(404, "SESSION_NOT_FOUND");
    // Without a TTL of its own a grant lives as long as its session's TTL.
    let short = server.session_of(json!({"owner": "s", "ttl_ms": 3_000})).await;
    assert_eq!(
        server.acquire("c", json!({"session_id": short})).await.is(200)["ttl_ms"],
        3_000
    );
    server
        .acquire("d", json!({"session_id": one, "witness_token": 1u64 << 50}))
        .await
        .names("witness_token");
    server
        .acquire("d", json!({"session_id": one, "wait_ms": 30_001}))
        .await
        .names("wait_ms");
    server
        .acquire("d", json!({"session_id": one, "request_id": ""}))
        .await
        .names("request_id");
    server
        .acquire("d", json!({"session_id": "a b"}))
        .await
        .names("session_id");
    assert_eq!(server.lock("d").await["state"], "FREE");
}

// operation: renew
#[actix_web::test]
async fn renew_extends_for_the_holder_alone() {
    let server = Server::start().await;
    let (one, two) = (server.session().await, server.session().await);
    let grant = server
        .acquire("k", json!({"session_id": one, "ttl_ms": 10_000}))
        .await
        .is(200);
    let renew = async |session: &str, token: &str, body: Value| {
        let mut body = body;
        body["session_id"] = session.into();
        server
            .raw(
                "POST",
                "/v1/locks/k/renew",
                &[("X-Fencing-Token", token)],
                Some(&body.to_string()),
            )
            .await
    };
    let right = token(&grant).to_string();
    let renewed = renew(&one, &right, json!({"ttl_ms": 14_000})).await.is(200);
    assert_eq!(
        (&renewed["token"], &renewed["ttl_ms"]),
        (&grant["token"], &json!(14_000))
    );
    assert!(renewed["expires_in_ms"].as_u64().unwrap() > 10_000);
    renew(&two, &right, json!({})).await.refused(409, "NOT_HOLDER");
    renew(&one, &(token(&grant) + 1).to_string(), json!({}))
        .await
        .refused(409, "NOT_HOLDER");
    for malformed in ["0", "01", "+1", "-1", "1.0", "x", "9007199254740992"] {
        renew(&one, malformed, json!({}))
            .await
            .refused(400, "FENCING_TOKEN_INVALID");
    }
    server
        .post("/v1/locks/k/renew", json!({"session_id": one}))
        .await
        .refused(400, "FENCING_TOKEN_REQUIRED");
    let twice = [("X-Fencing-Token", right.as_str()), ("X-Fencing-Token", right.as_str())];
    let body = json!({"session_id": one}).to_string();
    server
        .raw("POST", "/v1/locks/k/renew", &twice, Some(&body))
        .await
        .refused(400, "FENCING_TOKEN_INVALID");
    server
        .raw(
            "POST",
            "/v1/locks/unknown/renew",
            &[("X-Fencing-Token", "1")],
            Some(&body),
        )
        .await
        .refused(404, "LOCK_NOT_FOUND");
}

// operation: release
#[actix_web::test]
async fn release_frees_for_the_holder_alone() {
    let server = Server::start().await;
    let (one, two) = (server.session().await, server.session().await);
    let grant = server.acquire("k", json!({"session_id": one})).await.is(200);
    server
        .release("k", &two, token(&grant))
        .await
        .refused(409, "NOT_HOLDER");
    server
        .release("k", &one, token(&grant) + 1)
        .await
        .refused(409, "NOT_HOLDER");
    let released = server.release("k", &one, token(&grant)).await.is(200);
    assert_eq!(released, json!({"key": "k", "token": grant["token"], "released": true}));
    let again = server.release("k", &one, token(&grant)).await.is(200);
    assert_eq!(again, json!({"key": "k", "token": grant["token"], "released": false}));
    let token = [("X-Fencing-Token", "1")];
    server
        .raw("DELETE", "/v1/locks/k", &token, None)
        .await
        .names("session_id");
    let path = format!("/v1/locks/k?session_id={one}");
    server
        .raw("DELETE", &path, &[], None)
        .await
        .refused(400, "FENCING_TOKEN_REQUIRED");
}

// operation: get_lock
#[actix_web::test]
async fn get_lock_shows_holder_token_and_waiters() {
    let server = Server::start().await;
    let unknown = server.lock("k").await;
    assert_eq!(
        unknown,
        json!({"key": "k", "state": "FREE", "token": null, "waiters": 0})
    );
    let session = server.session().await;
    let grant = server.acquire("k", json!({"session_id": session})).await.is(200);
    let held = server.lock("k").await;
    assert_eq!((&held["state"], &held["token"]), (&json!("HELD"), &grant["token"]));
    assert_eq!(held["holder"]["owner"], "w1");
    assert!(held["expires_in_ms"].as_u64().unwrap() > 0);
    server.release("k", &session, token(&grant)).await.is(200);
    let free = server.lock("k").await;
    assert_eq!(
        free,
        json!({"key": "k", "state": "FREE", "token": grant["token"], "waiters": 0})
    );
}

// operation: list_locks
#[actix_web::test]
async fn list_locks_by_prefix_comes_in_pages() {
    let server = Server::start().await;
    let session = server.session().await;
    for key in ["a/1", "a/2", "a/3", "a%2F4", "b"] {
        server.acquire(key, json!({"session_id": session})).await.is(200);
    }
    assert_eq!(
        pages(&server, "/v1/locks?prefix=a%2F&limit=2", "key").await,
        ["a/1", "a/2", "a/3"]
    );
    assert_eq!(pages(&server, "/v1/locks?limit=3", "key").await.len(), 5);
    server
        .get(&format!("/v1/locks?prefix={}", "x".repeat(257)))
        .await
        .names("prefix");
    server.get("/v1/locks?prefix=%00").await.names("prefix");
    server.get("/v1/locks?limit=x").await.names("limit");
}

// operation: revoke
#[actix_web::test]
async fn case_l30_revoke_breaks_what_was_shown_and_says_when_it_moved_on() {
    let server = Server::start().await;
    let session = server.session().await;
    let first = server.acquire("k", json!({"session_id": session})).await.is(200);
    let revoke = async |body: Value, operator: Option<&str>| {
        let headers: Vec<_> = operator.map(|name| ("X-Operator", name)).into_iter().collect();
        server
            .raw("POST", "/v1/locks/k/revoke", &headers, Some(&body.to_string()))
            .await
    };
    let reason = "worker hangs since noon";
    let good = json!({"revoke_token": token(&first), "reason": reason});
    revoke(good.clone(), None).await.names("X-Operator");
    revoke(json!({"revoke_token": token(&first), "reason": "short"}), Some("ann"))
        .await
        .names("reason");
    revoke(json!({"revoke_token": 0, "reason": reason}), Some("ann"))
        .await
        .names("revoke_token");
    let broken = revoke(good.clone(), Some("ann")).await.is(200);
    assert_eq!(broken["key"], "k");
    assert_eq!(broken["revoked_token"], first["token"]);
    assert_eq!(broken["revoked_owner"], "w1");
    assert!(token(&broken) > token(&first));
    let free = server.lock("k").await;
    assert_eq!((&free["state"], &free["token"]), (&json!("FREE"), &broken["token"]));
    revoke(good.clone(), Some("ann")).await.refused(409, "NOT_HELD");
    let second = server.acquire("k", json!({"session_id": session})).await.is(200);
    assert!(token(&second) > token(&broken));
    let moved = revoke(good, Some("ann")).await.refused(409, "NOT_HOLDER");
    assert_eq!(
        moved["holder"]["token"], second["token"],
        "it shows what would be broken now"
    );
    let unknown = server
        .raw(
            "POST",
            "/v1/locks/z/revoke",
            &[("X-Operator", "ann")],
            Some(&json!({"revoke_token": 1, "reason": reason}).to_string()),
        )
        .await;
    unknown.refused(404, "LOCK_NOT_FOUND");
    assert_eq!(server.metric("lock_revoked_total").await, Some(1.0));
    let history = server.get("/v1/locks/k/history").await.is(200);
    let row = history["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["kind"] == "REVOKED")
        .unwrap();
    assert_eq!((&row["actor"], &row["reason"]), (&json!("ann"), &json!(reason)));
}

// operation: check
#[actix_web::test]
async fn check_tells_how_a_token_stands() {
    let server = Server::start().await;
    let check = async |key: &str, presented: Option<&str>| {
        let headers: Vec<_> = presented.map(|token| ("X-Fencing-Token", token)).into_iter().collect();
        server
            .raw("POST", &format!("/v1/locks/{key}/check"), &headers, None)
            .await
    };
    let stands = async |key: &str, presented: u64| check(key, Some(&presented.to_string())).await.is(200);
    check("k", None).await.refused(400, "FENCING_TOKEN_REQUIRED");
    check("k", Some("07")).await.refused(400, "FENCING_TOKEN_INVALID");
    assert_eq!(
        stands("k", 7).await,
        json!({"key": "k", "token": 7, "verdict": "UNKNOWN"}),
        "a key that nobody ever held"
    );
    let session = server.session().await;
    let first = server.acquire("k", json!({"session_id": session})).await.is(200);
    let current = stands("k", token(&first)).await;
    assert_eq!(current["verdict"], "CURRENT");
    assert!(current["expires_in_ms"].as_u64().unwrap() > 0 && current.get("superseded_by").is_none());
    assert_eq!(
        stands("k", token(&first) + 1_000).await["verdict"],
        "UNKNOWN",
        "never minted"
    );
    server.release("k", &session, token(&first)).await.is(200);
    let ended = stands("k", token(&first)).await;
    assert_eq!(ended, json!({"key": "k", "token": token(&first), "verdict": "ENDED"}));
    let second = server.acquire("k", json!({"session_id": session})).await.is(200);
    assert_eq!(
        stands("k", token(&first)).await,
        json!({"key": "k", "token": token(&first), "verdict": "SUPERSEDED", "superseded_by": token(&second)})
    );
    // A revoke mints a token that nobody holds: the holder is superseded, although the key is free.
    let broken = server
        .raw(
            "POST",
            "/v1/locks/k/revoke",
            &[("X-Operator", "ann")],
            Some(&json!({"revoke_token": token(&second), "reason": "worker hangs since noon"}).to_string()),
        )
        .await
        .is(200);
    let stopped = stands("k", token(&second)).await;
    assert_eq!(
        (&stopped["verdict"], &stopped["superseded_by"]),
        (&json!("SUPERSEDED"), &broken["token"])
    );
}

// operation: lock_history, audit
#[actix_web::test]
async fn lock_history_and_audit_are_the_rows_of_the_event_log() {
    let server = Server::start().await;
    let session = server.session().await;
    for _ in 0..3 {
        let grant = server.acquire("k", json!({"session_id": session})).await.is(200);
        server.release("k", &session, token(&grant)).await.is(200);
    }
    server.acquire("other", json!({"session_id": session})).await.is(200);
    let kinds = pages(&server, "/v1/locks/k/history?limit=2", "kind").await;
    assert_eq!(
        kinds,
        ["GRANTED", "RELEASED", "GRANTED", "RELEASED", "GRANTED", "RELEASED"]
    );
    assert_eq!(
        server.get("/v1/locks/unknown/history").await.is(200)["items"],
        json!([])
    );
    let all = server.get("/v1/audit?limit=1000").await.is(200);
    let rows = all["items"].as_array().unwrap();
    let seqs: Vec<_> = rows.iter().map(|row| row["seq"].as_u64().unwrap()).collect();
    assert!(seqs.windows(2).all(|two| two[0] < two[1]), "{seqs:?}");
    assert_eq!(rows.len(), 8);
    assert_eq!(
        rows[0].as_object().unwrap().keys().collect::<Vec<_>>(),
        [
            "actor",
            "at",
            "kind",
            "lock_key",
            "reason",
            "seq",
            "session_id",
            "token"
        ]
    );
    let after = server.get(&format!("/v1/audit?after={}", seqs[5])).await.is(200);
    assert_eq!(after["items"].as_array().unwrap().len(), 2);
    assert_eq!(after["next_cursor"], Value::Null);
    assert_eq!(pages(&server, "/v1/audit?limit=3", "kind").await.len(), 8);
    server.get("/v1/audit?after=-1").await.names("after");
    server.get("/v1/audit?cursor=x").await.names("cursor");
    server.get(&format!("/v1/audit?after={}", u64::MAX)).await.is(200);
}

// operation: audit_seals
#[actix_web::test]
async fn audit_seals_cover_the_events() {
    let server = Server::with(&[("lock.audit.seal-interval", "100ms")]).await;
    let session = server.session().await;
    server.acquire("k", json!({"session_id": session})).await.is(200);
    server
        .until("a seal", || async {
            let seals = server.get("/v1/audit/seals").await.is(200);
            !seals["items"].as_array().unwrap().is_empty()
        })
        .await;
    let seals = server.get("/v1/audit/seals").await.is(200);
    let first = &seals["items"][0];
    assert_eq!(first["n"], 1);
    assert_eq!(first["first_seq"], 1);
    assert_eq!(first["prev_hash"], "0".repeat(64));
    assert_eq!(first["hash"].as_str().unwrap().len(), 64);
    server.get("/v1/audit/seals?limit=0").await.names("limit");
}

// operation: get_lineage, set_floor
#[actix_web::test]
async fn lineage_and_floor() {
    let server = Server::start().await;
    let before = server.get("/v1/lineage").await.is(200);
    assert_eq!(before["state"], "OK");
    let floor = async |body: Value, operator: Option<&str>| {
        let headers: Vec<_> = operator.map(|name| ("X-Operator", name)).into_iter().collect();
        server
            .raw("POST", "/v1/lineage/floor", &headers, Some(&body.to_string()))
            .await
    };
    let reason = "restored from the backup of noon";
    let set = floor(json!({"floor": 1_000, "reason": reason}), Some("ann"))
        .await
        .is(200);
    assert_eq!(
        (&set["token_floor"], &set["changed_by"]),
        (&json!(1_000), &json!("ann"))
    );
    assert_eq!(set["lineage"], before["lineage"]);
    let session = server.session().await;
    assert!(token(&server.acquire("k", json!({"session_id": session})).await.is(200)) > 1_000);
    floor(json!({"floor": 5, "reason": reason}), Some("ann"))
        .await
        .names("floor");
    floor(json!({"floor": 1u64 << 52, "reason": reason}), Some("ann"))
        .await
        .names("floor");
    floor(json!({"floor": 2_000, "reason": reason}), None)
        .await
        .names("X-Operator");
    floor(json!({"floor": 2_000, "reason": "short"}), Some("ann"))
        .await
        .names("reason");
    floor(json!({"reason": reason}), Some("ann")).await.names("floor");
    floor(json!({"floor": 2_000, "dismiss": true, "reason": reason}), Some("ann"))
        .await
        .names("floor");
    floor(json!({"dismiss": false, "reason": reason}), Some("ann"))
        .await
        .names("floor");
    floor(json!({"dismiss": true, "reason": reason}), Some("ann"))
        .await
        .refused(409, "CONFLICT");
}

/// Reads server-sent events off a raw socket, since a client that buffers would hide when they come.
struct Watch {
    socket: tokio::net::TcpStream,
    text: String,
}

impl Watch {
    async fn open(server: &Server, key: &str, last: Option<u64>) -> Self {
        use tokio::io::AsyncWriteExt;
        let mut socket = tokio::net::TcpStream::connect(server.addr).await.unwrap();
        let last = last.map_or(String::new(), |seq| format!("Last-Event-ID: {seq}\r\n"));
        let head = format!("GET /v1/locks/{}/watch HTTP/1.1\r\nHost: x\r\n{last}\r\n", encode(key));
        socket.write_all(head.as_bytes()).await.unwrap();
        Self {
            socket,
            text: String::new(),
        }
    }

    /// The next event: name, id, data.
    async fn next(&mut self) -> (String, u64, Value) {
        use tokio::io::AsyncReadExt;
        let read = async {
            loop {
                if let Some(begin) = self.text.find("event: ")
                    && let Some(length) = self.text[begin..].find("\n\n")
                {
                    let event = self.text[begin..begin + length].to_owned();
                    self.text.drain(..begin + length + 2);
                    return event;
                }
                let mut buffer = [0u8; 4096];
                let read = self.socket.read(&mut buffer).await.unwrap();
                assert!(read > 0, "the watch ended: {}", self.text);
                self.text.push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
        };
        let event = tokio::time::timeout(LONG, read).await.expect("an event");
        let field = |name: &str| {
            let line = event.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name} in {event}")).to_owned()
        };
        let data = serde_json::from_str(&field("data: ")).unwrap();
        (field("event: "), field("id: ").parse().unwrap(), data)
    }
}

// operation: watch_lock
#[actix_web::test]
async fn watch_lock_tells_a_snapshot_then_every_event_and_resumes() {
    let server = Server::start().await;
    let session = server.session().await;
    let mut watch = Watch::open(&server, "k", None).await;
    let (name, id, body) = watch.next().await;
    assert_eq!((name.as_str(), &body["state"]), ("snapshot", &json!("FREE")));
    let mut last = id;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let grant = server.acquire("k", json!({"session_id": session})).await.is(200);
        server
            .acquire("other", json!({"session_id": session, "request_id": "r"}))
            .await
            .is(200);
        server.release("k", &session, token(&grant)).await.is(200);
        for kind in ["GRANTED", "RELEASED"] {
            let (name, id, row) = watch.next().await;
            assert_eq!((name.as_str(), &row["kind"]), (kind, &json!(kind)));
            assert_eq!((&row["lock_key"], &row["token"]), (&json!("k"), &grant["token"]));
            assert_eq!(row["seq"], id);
            assert!(id > last, "{id} after {last}");
            last = id;
            seen.push(id);
        }
    }
    drop(watch);
    let mut resumed = Watch::open(&server, "k", Some(seen[2])).await;
    let (name, id, _) = resumed.next().await;
    assert_eq!((name.as_str(), id), ("snapshot", seen[2]));
    for expected in &seen[3..] {
        assert_eq!(resumed.next().await.1, *expected);
    }
    // Draining ends a watch, or the process would never stop.
    server.stop().await;
}

/// A client's last id can be above all that a restored store has. Such a watch was told its snapshot and then nothing.
#[actix_web::test]
async fn a_watch_resumed_from_the_future_is_not_deaf() {
    let server = Server::start().await;
    let session = server.session().await;
    let mut watch = Watch::open(&server, "k", Some(99_999_999)).await;
    let (name, id, _) = watch.next().await;
    assert_eq!((name.as_str(), id < 99_999_999), ("snapshot", true));
    server.acquire("k", json!({"session_id": session})).await.is(200);
    assert_eq!(watch.next().await.0, "GRANTED");
    server.stop().await;
}

#[actix_web::test]
async fn a_watch_that_is_read_late_misses_nothing() {
    let server = Server::start().await;
    let session = server.session_of(json!({"owner": "w1", "ttl_ms": 300_000})).await;
    let mut watch = Watch::open(&server, "k", None).await;
    assert_eq!(watch.next().await.0, "snapshot");
    let mut tokens = Vec::new();
    for _ in 0..200 {
        let grant = server.acquire("k", json!({"session_id": session})).await.is(200);
        server.release("k", &session, token(&grant)).await.is(200);
        tokens.push(token(&grant));
    }
    for expected in tokens {
        for kind in ["GRANTED", "RELEASED"] {
            let (name, _, row) = watch.next().await;
            assert_eq!((name.as_str(), token(&row)), (kind, expected));
        }
    }
}

#[actix_web::test]
async fn many_clients_share_commits() {
    let server = Server::start().await;
    let clients = (0..64).map(|n| {
        let server = &server;
        async move {
            let session = server.session_of(json!({"owner": "w1", "ttl_ms": 300_000})).await;
            for _ in 0..10 {
                let key = format!("k{n}");
                let grant = server.acquire(&key, json!({"session_id": session})).await.is(200);
                server.release(&key, &session, token(&grant)).await.is(200);
            }
        }
    });
    futures_util::future::join_all(clients).await;
    let of = async |name: &str| {
        server
            .metric(&format!("lock_store_batch_size_{name}{{op=\"acquire\"}}"))
            .await
            .unwrap()
    };
    let (items, calls) = (of("sum").await, of("count").await);
    println!("{items} acquires in {calls} store calls");
    assert_eq!(items, 640.0);
    assert!(calls < items / 2.0, "{items} acquires took {calls} store calls");
    assert_eq!(server.metric("lock_held").await, Some(0.0));
}

// The one that waits is granted a millisecond after the lease of a holder who went silent: nobody polls for it.
#[actix_web::test]
async fn a_waiter_gets_the_key_of_a_holder_that_went_silent() {
    let server = Server::with(&[("lock.session.ttl-min", "200ms")]).await;
    let two = server.session().await;
    let opened = tokio::time::Instant::now();
    let one = server.session_of(json!({"owner": "silent", "ttl_ms": 5_000})).await;
    server.acquire("k", json!({"session_id": one})).await.is(200);
    let granted = server
        .acquire("k", json!({"session_id": two, "wait_ms": 20_000}))
        .await
        .is(200);
    // From before its beginning, so that a slow machine changes nothing: nobody is granted what another still holds.
    assert!(opened.elapsed() >= Duration::from_millis(5_000), "{granted}");
    server
        .post(&format!("/v1/sessions/{one}/heartbeat"), json!({}))
        .await
        .refused(404, "SESSION_NOT_FOUND");
    server
        .until("the expiry is counted", || async {
            server.metric("lock_expired_total").await == Some(1.0)
        })
        .await;
}

#[actix_web::test]
async fn case_l14_a_ttl_that_is_none_names_field_and_bounds_and_grants_nothing() {
    let server = Server::start().await;
    let session = server.session().await;
    let grant = server.acquire("held", json!({"session_id": session})).await.is(200);
    let sessions = server.get("/v1/sessions").await.is(200)["items"]
        .as_array()
        .unwrap()
        .len();
    let header = token(&grant).to_string();
    for bad in [
        "0",
        "-1",
        "1",
        "999",
        "300001",
        "2147483648",
        "9007199254740992",
        "9223372036854775807",
        "18446744073709551616",
        "1e30",
        "1.5",
        "\"15s\"",
        "null",
        "true",
        "[]",
    ] {
        let cases = [
            ("/v1/sessions", format!(r#"{{"owner":"w","ttl_ms":{bad}}}"#)),
            (
                "/v1/locks/k/acquire",
                format!(r#"{{"session_id":"{session}","ttl_ms":{bad}}}"#),
            ),
            (
                "/v1/locks/held/renew",
                format!(r#"{{"session_id":"{session}","ttl_ms":{bad}}}"#),
            ),
        ];
        for (path, body) in cases {
            let reason = server
                .raw("POST", path, &[("X-Fencing-Token", &header)], Some(&body))
                .await
                .names("ttl_ms");
            assert!(
                reason.contains("between 1000 and 300000"),
                "{path} with {bad} answers without the bounds: {reason}"
            );
        }
    }
    assert_eq!(server.lock("k").await["token"], Value::Null, "nothing was granted");
    let now = server.get("/v1/sessions").await.is(200)["items"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(now, sessions, "no session was opened");
}

#[actix_web::test]
async fn case_l17_the_release_of_a_key_never_held_changes_nothing() {
    let server = Server::start().await;
    let session = server.session().await;
    let grant = server.acquire("held", json!({"session_id": session})).await.is(200);
    let before = server.get("/v1/audit?limit=1000").await.is(200);
    server
        .release("never", &session, token(&grant))
        .await
        .refused(404, "LOCK_NOT_FOUND");
    server
        .release("hel", &session, token(&grant))
        .await
        .refused(404, "LOCK_NOT_FOUND");
    assert_eq!(server.get("/v1/audit?limit=1000").await.is(200), before);
    assert_eq!(server.lock("held").await["state"], "HELD");
}

#[actix_web::test]
async fn case_l22_the_same_request_finds_its_grant_again_and_another_does_not() {
    let server = Server::start().await;
    let session = server.session().await;
    let body = json!({"session_id": session, "request_id": "r1"});
    let first = server.acquire("k", body.clone()).await.is(200);
    let again = server.acquire("k", body.clone()).await.is(200);
    assert_eq!(first["token"], again["token"]);
    let other = server
        .acquire("k", json!({"session_id": session, "request_id": "r2"}))
        .await
        .refused(409, "HELD_BY_OTHER");
    assert_eq!(other["holder"]["self"], true);
    let unnamed = server
        .acquire("k", json!({"session_id": session}))
        .await
        .refused(409, "HELD_BY_OTHER");
    assert_eq!(unnamed["holder"]["self"], true);
    // The answer is lost after the commit, the process dies: a new one still finds it.
    let dir = server.stop().await;
    let server = Server::in_dir(dir, &[]).await;
    assert_eq!(server.acquire("k", body).await.is(200)["token"], first["token"]);
}

#[actix_web::test]
async fn case_l28_neighbours_of_a_held_key_are_free() {
    let server = Server::start().await;
    let (one, two) = (server.session().await, server.session().await);
    server.acquire("a/b", json!({"session_id": one})).await.is(200);
    for free in ["a", "a/", "A", "a%2Fb", "a//b", "A/b", "a/b/", "/a/b", "a/B"] {
        assert_eq!(server.lock(free).await["state"], "FREE", "{free}");
        let grant = server.acquire(free, json!({"session_id": two})).await.is(200);
        assert_eq!(grant["key"], free);
    }
    server
        .acquire("a/b", json!({"session_id": two}))
        .await
        .refused(409, "HELD_BY_OTHER");
}

#[actix_web::test]
async fn case_l29_keys_round_trip_exactly() {
    let server = Server::start().await;
    let session = server.session().await;
    let long = "k".repeat(256);
    let mut tokens = std::collections::BTreeMap::new();
    let keys = [
        "/",
        "a/b",
        "%",
        "%25",
        "%2F",
        "a#b",
        "a?b=c&d",
        "a b",
        " ",
        "+",
        "a+b",
        "caf\u{e9}",
        "cafe\u{301}",
        "\u{1f512}",
        "..",
        ".",
        "a/../b",
        "./a",
        "x",
        "\u{202e}abc",
        "\u{2028}",
        "\"'\\<>",
        "watch",
        "k/acquire",
        &long,
    ];
    for key in keys {
        let grant = server.acquire(key, json!({"session_id": session})).await.is(200);
        assert_eq!(grant["key"], key);
        tokens.insert(key, token(&grant));
    }
    assert_eq!(tokens.len(), keys.len());
    for (key, token) in &tokens {
        let shown = server.lock(key).await;
        assert_eq!(
            (&shown["key"], &shown["token"]),
            (&json!(key), &json!(token)),
            "a neighbour's"
        );
        let history = server.get(&format!("/v1/locks/{}/history", encode(key))).await.is(200);
        assert_eq!(history["items"].as_array().unwrap().len(), 1, "{key:?}");
    }
    let listed: std::collections::BTreeSet<_> = pages(&server, "/v1/locks?limit=10", "key").await.into_iter().collect();
    assert_eq!(listed, keys.iter().map(|key| (*key).to_owned()).collect());
    for (key, token) in &tokens {
        assert_eq!(server.release(key, &session, *token).await.is(200)["released"], true);
    }
    for bad in [
        "k".repeat(257),
        "\u{0}".into(),
        "a\nb".into(),
        "\u{7f}".into(),
        "a\u{85}".into(),
        "\u{e9}".repeat(129),
    ] {
        server.acquire(&bad, json!({"session_id": session})).await.names("key");
    }
    for (raw, field) in [("%zz", "key"), ("%", "key"), ("%FF", "key"), ("%C3%28", "key")] {
        server.get(&format!("/v1/locks/{raw}")).await.names(field);
    }
}

#[actix_web::test]
async fn a_waiter_is_granted_at_the_release_and_told_how_long_it_waited() {
    let server = Server::start().await;
    let (one, two) = (server.session().await, server.session().await);
    let grant = server.acquire("k", json!({"session_id": one})).await.is(200);
    let waiting = server.acquire("k", json!({"session_id": two, "wait_ms": 20_000}));
    let releasing = async {
        server.waiters("k", 1).await;
        server.release("k", &one, token(&grant)).await.is(200);
    };
    let (waited, ()) = tokio::join!(waiting, releasing);
    let waited = waited.is(200);
    assert!(token(&waited) > token(&grant));
    assert_eq!(waited["ttl_ms"], 15_000);
    assert!(
        waited["expires_in_ms"].as_u64().unwrap() > 14_000,
        "its full TTL from the grant"
    );
}

#[actix_web::test]
async fn a_wait_ends_with_who_holds_the_key() {
    let server = Server::start().await;
    let (one, two) = (server.session().await, server.session().await);
    server.acquire("k", json!({"session_id": one})).await.is(200);
    let held = server
        .acquire("k", json!({"session_id": two, "wait_ms": 200}))
        .await
        .refused(409, "HELD_BY_OTHER");
    assert_eq!(held["holder"]["owner"], "w1");
}

/// Sends an acquire that waits, and answers the socket.
async fn waiting_socket(server: &Server, key: &str, session: &str, more: &str) -> tokio::net::TcpStream {
    use tokio::io::AsyncWriteExt;
    let mut socket = tokio::net::TcpStream::connect(server.addr).await.unwrap();
    let body = format!(r#"{{"session_id":"{session}","wait_ms":20000{more}}}"#);
    let head = format!(
        "POST /v1/locks/{key}/acquire HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket
}

#[actix_web::test]
async fn a_wait_cut_by_a_closed_or_reset_connection_leaves_the_queue_at_once() {
    let server = Server::start().await;
    let (one, two, three) = (server.session().await, server.session().await, server.session().await);
    for reset in [false, true] {
        for named in ["", r#","request_id":"r""#] {
            let grant = server.acquire("k", json!({"session_id": one})).await.is(200);
            let cut = waiting_socket(&server, "k", &two, named).await;
            server.waiters("k", 1).await;
            let patient = server.acquire("k", json!({"session_id": three, "wait_ms": 20_000}));
            let goes_on = async {
                server.waiters("k", 2).await;
                if reset {
                    cut.set_zero_linger().unwrap();
                }
                drop(cut);
                server.waiters("k", 1).await;
                server.release("k", &one, token(&grant)).await.is(200);
            };
            let clock = host_kit::Clock::system();
            let begun = clock.mono();
            let (granted, ()) = tokio::join!(patient, goes_on);
            let granted = granted.is(200);
            assert_eq!(granted["session_id"], three.as_str(), "who has gone gets nothing");
            assert!(clock.mono() - begun < Duration::from_secs(10), "nobody waited for it");
            server.release("k", &three, token(&granted)).await.is(200);
        }
    }
    assert_eq!(
        server.metric("lock_acquire_total{outcome=\"abandoned\"}").await,
        Some(4.0)
    );
}

#[actix_web::test]
async fn case_l05_a_waiter_whose_session_is_closed_gets_404_at_once() {
    let server = Server::start().await;
    let (one, two, three) = (server.session().await, server.session().await, server.session().await);
    let grant = server.acquire("k", json!({"session_id": one})).await.is(200);
    let dying = server.acquire("k", json!({"session_id": two, "wait_ms": 20_000}));
    let patient = server.acquire("k", json!({"session_id": three, "wait_ms": 20_000}));
    let goes_on = async {
        server.waiters("k", 2).await;
        server
            .raw("DELETE", &format!("/v1/sessions/{two}"), &[], None)
            .await
            .is(200);
        server.waiters("k", 1).await;
        server.release("k", &one, token(&grant)).await.is(200);
    };
    let (dead, granted, ()) = tokio::join!(dying, patient, goes_on);
    dead.refused(404, "SESSION_NOT_FOUND");
    assert_eq!(granted.is(200)["session_id"], three.as_str());
}

#[actix_web::test]
async fn a_drained_server_tells_its_waiters_and_ends() {
    let server = Server::start().await;
    let (one, two) = (server.session().await, server.session().await);
    server.acquire("k", json!({"session_id": one})).await.is(200);
    let waiting = server.acquire("k", json!({"session_id": two, "wait_ms": 20_000}));
    let draining = async {
        server.waiters("k", 1).await;
        server.drain.begin();
    };
    let (told, ()) = tokio::join!(waiting, draining);
    told.refused(503, "OVERLOADED");
    let dir = server.stop().await;
    // What was held stays held: the next process gives it its full TTL again.
    let server = Server::in_dir(dir, &[]).await;
    assert_eq!(server.lock("k").await["state"], "HELD");
}

#[actix_web::test]
async fn a_full_queue_answers_503_with_retry_after() {
    let server = Server::with(&[("lock.acquire.waiters-max", "1")]).await;
    let (one, two, three) = (server.session().await, server.session().await, server.session().await);
    let grant = server.acquire("k", json!({"session_id": one})).await.is(200);
    let first = server.acquire("k", json!({"session_id": two, "wait_ms": 20_000}));
    let second = async {
        server.waiters("k", 1).await;
        let refused = server
            .acquire("k", json!({"session_id": three, "wait_ms": 20_000}))
            .await;
        assert!(refused.retry_after);
        refused.refused(503, "OVERLOADED");
        server.release("k", &one, token(&grant)).await.is(200);
    };
    let (first, ()) = tokio::join!(first, second);
    first.is(200);
}

#[actix_web::test]
async fn readiness_and_metrics_are_there_from_the_start() {
    let server = Server::start().await;
    server.get("/readyz").await.is(200);
    server.get("/livez").await.is(200);
    let text = server.get("/metrics").await.text;
    for name in [
        "lock_acquire_total{outcome=\"granted\"} 0",
        "lock_acquire_total{outcome=\"token_regression\"} 0",
        "lock_acquire_duration_seconds_count 0",
        "lock_wait_duration_seconds_count 0",
        "lock_held 0",
        "lock_sessions 0",
        "lock_expired_total 0",
        "lock_revoked_total 0",
        "lock_store_duration_seconds_count{op=\"acquire\"} 0",
        "lock_store_batch_size_count{op=\"heartbeat\"} 0",
    ] {
        assert!(text.contains(name), "{name} is missing in\n{text}");
    }
    let session = server.session().await;
    let grant = server
        .acquire("payout:secret-account", json!({"session_id": session}))
        .await
        .is(200);
    // A count of the store that began before may say otherwise, until the next one.
    for gauge in ["lock_held", "lock_sessions"] {
        server
            .until(gauge, || async { server.metric(gauge).await == Some(1.0) })
            .await;
    }
    let text = server.get("/metrics").await.text;
    assert!(
        !text.contains("secret-account") && !text.contains(&session),
        "no key, no id in a metric"
    );
    server
        .release("payout:secret-account", &session, token(&grant))
        .await
        .is(200);
    assert_eq!(server.metric("lock_held").await, Some(0.0));
}

#[actix_web::test]
async fn a_store_in_doubt_grants_nothing_until_an_operator_has_decided() {
    let server = Server::start().await;
    let session = server.session().await;
    let before = server.acquire("k", json!({"session_id": session})).await.is(200);
    server.release("k", &session, token(&before)).await.is(200);
    let dir = server.stop().await;
    let server = Server::in_dir(dir, &[("lock.store.lineage", "another-store")]).await;
    let refused = server.acquire("k", json!({"session_id": session})).await;
    assert!(refused.retry_after);
    refused.refused(503, "TOKEN_REGRESSION");
    let ready = server.get("/readyz").await.refused(503, "BACKEND_UNAVAILABLE");
    assert!(ready["failed"]["lineage"].is_string(), "{ready}");
    assert_eq!(server.get("/v1/lineage").await.is(200)["state"], "REGRESSED");
    let floor = token(&before) + 1_000;
    let body = json!({"floor": floor, "reason": "the backup is older than the last grant"}).to_string();
    let operator = [("X-Operator", "ann")];
    let set = server
        .raw("POST", "/v1/lineage/floor", &operator, Some(&body))
        .await
        .is(200);
    assert_eq!(set["state"], "OK");
    let grant = server.acquire("k", json!({"session_id": session})).await.is(200);
    assert!(token(&grant) > floor);
    server.get("/readyz").await.is(200);
    assert_eq!(
        server.metric("lock_acquire_total{outcome=\"token_regression\"}").await,
        Some(1.0)
    );
}

#[actix_web::test]
async fn a_second_process_on_the_store_file_is_refused() {
    let server = Server::start().await;
    let url = format!("sqlite:{}", common::store(server.dir.path()).display());
    let settings = gateway_kit::Settings::load(None, Vec::new(), &[("lock.store.url".to_owned(), url)]).unwrap();
    let second = lock_server::run(settings, "127.0.0.1:0".to_owned(), host_kit::Host::system()).await;
    assert!(matches!(second, Err(lock_server::RunError::Store { .. })), "{second:?}");
    server.get("/readyz").await.is(200);
}

#[test]
fn every_operation_has_a_contract_test() {
    assert_every_operation_is_tested(&lock_server::openapi(), env!("CARGO_MANIFEST_DIR"));
}

#[actix_web::test]
async fn no_request_is_answered_with_a_server_error_and_every_refusal_names_its_field() {
    let server = Server::start().await;
    let session = server.session().await;
    let grant = server
        .acquire("fuzz", json!({"session_id": session, "request_id": "held"}))
        .await
        .is(200);
    let report = Fuzz::new(&lock_server::openapi())
        .path("id", &session)
        .path("key", "fuzz")
        .header("X-Fencing-Token", &token(&grant).to_string())
        .header("X-Operator", "ann")
        .query("release", "session_id", &session)
        .query("list_sessions", "cursor", "61")
        .query("list_locks", "cursor", "61")
        .query("lock_history", "cursor", "7")
        .query("audit", "cursor", "7")
        .query("audit_seals", "cursor", "7")
        .body(
            "acquire",
            json!({"session_id": session, "wait_ms": 1, "witness_token": 1}),
        )
        .body("renew", json!({"session_id": session}))
        .body("heartbeat", json!({"witness_token": 1}))
        .body("set_floor", json!({"floor": 1_000, "dismiss": false}))
        // A watch does not end, and a closed session would end what the others are about.
        .skip("watch_lock")
        .skip("close_session")
        .run(&Socket(server.addr))
        .await;
    println!("{report:?}");
    server.get("/readyz").await.is(200);
}
