//! What each error says of itself, against what really happened: on real servers over real sockets, some behind a front
//! that loses requests or answers. The audit trail of the server is the judge.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod served;
mod wire;

use actor_kit::{Kit, TraceContext};
use host_kit::Host;
use http_client::{Caller, LockServerApi};
use http_contract::lock::RevokeBody;
use lock_api::{Fate, LockError, LockKey, LostReason, Owner};
use lock_client::{CallFailure, ClientOptions, LockClient, LockMetrics, Placement};
use served::Server;
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use wire::message;

const LONG: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_secs(15);

fn key(key: &str) -> LockKey {
    LockKey::new(key).unwrap()
}

fn options(owner: &str) -> ClientOptions {
    ClientOptions::new(Owner::new(owner).unwrap())
        .session_ttl(TTL)
        .call_timeout(Duration::from_secs(5))
        .attempts_max(2)
}

async fn connect(url: &str, owner: &str) -> LockClient {
    LockClient::connect(&[url], options(owner)).await.unwrap()
}

/// What a front does with the requests whose first line holds `verb`; everything else goes to the server.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// The server does it, and the connection ends instead of the answer.
    LoseAnswer,
    /// The connection ends before the server has seen the request.
    LoseRequest,
    /// Neither an answer nor an end.
    Silence,
}

type Rules = &'static [(&'static str, Trouble)];

/// A way to the server that can be troubled.
struct Front {
    url: String,
    rules: Rc<Cell<Rules>>,
}

impl Front {
    async fn to(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let rules: Rc<Cell<Rules>> = Rc::default();
        let now = rules.clone();
        actix_rt::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let now = now.clone();
                actix_rt::spawn(async move { drop(serve(stream, upstream, &now).await) });
            }
        });
        Self { url, rules }
    }
}

async fn serve(mut stream: TcpStream, upstream: SocketAddr, rules: &Cell<Rules>) -> io::Result<()> {
    let mut server = TcpStream::connect(upstream).await?;
    while let Some(request) = message(&mut stream).await? {
        let text = String::from_utf8_lossy(&request);
        let line = text.lines().next().unwrap_or_default();
        let rule = rules.get().iter().find(|(verb, _)| line.contains(verb));
        match rule.map(|(_, trouble)| trouble) {
            Some(Trouble::LoseRequest) => return Ok(()),
            Some(Trouble::Silence) => std::future::pending().await,
            _ => {}
        }
        server.write_all(&request).await?;
        let Some(answer) = message(&mut server).await? else {
            return Ok(());
        };
        if rule.is_some() {
            return Ok(());
        }
        stream.write_all(&answer).await?;
    }
    Ok(())
}

/// The judge: what the server itself says, over an untroubled way.
struct Judge {
    api: LockServerApi,
    trace: TraceContext,
}

impl Judge {
    fn of(server: &Server) -> Self {
        let client = http_client::client(&http_client::ClientOptions::default());
        Self {
            api: LockServerApi::new(Caller::new(client, server.url(), LONG)),
            trace: TraceContext::root(&Host::system().random),
        }
    }

    /// How often this happened to the key.
    async fn count(&self, key: &LockKey, kind: &str) -> usize {
        let rows = self.api.history(key, 1000, None, &self.trace).await.unwrap().items;
        rows.iter().filter(|row| row.kind == kind).count()
    }

    async fn until(&self, key: &LockKey, kind: &str, times: usize) {
        let seen = async {
            while self.count(key, kind).await < times {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let seen = tokio::time::timeout(LONG, seen).await;
        seen.unwrap_or_else(|_| panic!("{key} was never {kind}"));
    }

    async fn revoke(&self, key: &LockKey, token: u64) {
        let body = RevokeBody {
            revoke_token: token,
            reason: "stuck for an hour".into(),
        };
        self.api.revoke(key, "olga", &body, &self.trace).await.unwrap();
    }

    async fn end_session(&self, owner: &str) {
        let sessions = self.api.sessions(1000, None, &self.trace).await.unwrap().items;
        let id = &sessions
            .iter()
            .find(|session| session.owner == owner)
            .unwrap()
            .session_id;
        self.api.close_session(id, &self.trace).await.unwrap();
    }
}

#[actix_rt::test]
async fn a_refused_connection_is_definite() {
    let host = Host::system();
    let registry = prometheus::Registry::new();
    let (kit, metrics) = (Kit::new("test", &host, &registry), LockMetrics::new(&registry).unwrap());
    let nobody = host_kit::Reserved::loopback().unwrap();
    let connect = lock_client::over_http(&[format!("http://{}", nobody.address())], &kit).unwrap();
    let client = LockClient::start(options("w1"), &kit, &metrics, Placement::OwnThread, connect)
        .await
        .unwrap();
    let mut began = false;
    let k = key("k");
    let with_lock = client.with_lock(&k, |_, _| {
        began = true;
        std::future::ready(())
    });
    let with_lock = with_lock.await.unwrap_err();
    assert!(!began, "there was no lock");
    for error in [
        client.ready().await.unwrap_err(),
        client.acquire(&key("k")).await.unwrap_err(),
        with_lock,
        client.inspect(&key("k")).await.unwrap_err(),
    ] {
        assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
        assert_eq!(error.fate(), Fate::Definite, "{error}");
    }
}

#[actix_rt::test]
async fn an_acquire_whose_answers_are_lost_is_indefinite_and_its_grant_is_given_back() {
    let server = Server::start().await;
    let (front, judge) = (Front::to(server.addr).await, Judge::of(&server));
    let client = connect(&front.url, "w1").await;
    front.rules.set(&[("/acquire", Trouble::LoseAnswer)]);
    let error = client.acquire(&key("k")).await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    assert_eq!(error.fate(), Fate::Indefinite);
    // It had happened, once for both attempts; and nobody keeps it.
    assert_eq!(judge.count(&key("k"), "GRANTED").await, 1);
    judge.until(&key("k"), "RELEASED", 1).await;

    // Lost on the way there: it did not happen, and nobody here can know.
    front.rules.set(&[("/acquire", Trouble::LoseRequest)]);
    let error = client.try_acquire(&key("never")).await.unwrap_err();
    assert_eq!(error.fate(), Fate::Indefinite, "{error}");
    assert_eq!(judge.count(&key("never"), "GRANTED").await, 0);

    front.rules.set(&[]);
    let work_ran = client.with_lock(&key("k"), |token, _| async move { token.get() }).await;
    assert!(matches!(work_ran, Ok(token) if token > 1), "{work_ran:?}");
    client.close().await.unwrap();
    server.stop().await;
}

#[actix_rt::test]
async fn what_a_server_refuses_is_definite() {
    let server = Server::start().await;
    let judge = Judge::of(&server);
    let (holder, client) = (connect(&server.url(), "w1").await, connect(&server.url(), "w2").await);
    let held = holder.acquire(&key("k")).await.unwrap();

    let refused = client.try_acquire(&key("k")).await.unwrap_err();
    assert!(matches!(refused, LockError::HeldByOther(_)), "{refused:?}");
    let contended = client.acquire(&key("k")).await.unwrap_err();
    assert!(
        matches!(contended, LockError::ContentionExceeded { attempts: 2 }),
        "{contended:?}"
    );
    let waited = client
        .acquire_within(&key("k"), Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(matches!(waited, LockError::ContentionExceeded { .. }), "{waited:?}");
    let too_short = client
        .lock(&key("free"))
        .ttl(Duration::from_millis(1))
        .acquire()
        .await
        .unwrap_err();
    assert!(matches!(too_short, LockError::Invalid { .. }), "{too_short:?}");
    let too_much = serde_json::json!("x".repeat(5000));
    let too_much = client
        .lock(&key("free"))
        .metadata(too_much)
        .acquire()
        .await
        .unwrap_err();
    assert!(matches!(too_much, LockError::Invalid { .. }), "{too_much:?}");

    // Waiting when the client is closed.
    let (closing, k) = (client.clone(), key("k"));
    let waiting = client.acquire_within(&k, LONG);
    let close = async {
        while judge.api.lock(&k, &judge.trace).await.unwrap().waiters == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        closing.close().await.unwrap();
    };
    let (closed, ()) = tokio::join!(waiting, close);
    // Told by the server that the session has ended, or by its own client that it has stopped.
    match closed.unwrap_err() {
        error @ LockError::SessionLost => assert_eq!(error.fate(), Fate::Definite),
        error => assert_eq!(error.fate(), Fate::Indefinite, "{error}"),
    }

    for error in [refused, contended, waited, too_short, too_much] {
        assert_eq!(error.fate(), Fate::Definite, "{error}");
    }
    assert_eq!(judge.count(&key("k"), "GRANTED").await, 1);
    assert_eq!(judge.count(&key("free"), "GRANTED").await, 0);
    held.release().await.unwrap();
    holder.close().await.unwrap();
    server.stop().await;
}

#[actix_rt::test]
async fn a_service_that_may_have_been_rewound_refuses_definitely() {
    let (first, second) = (Server::start().await, Server::start().await);
    let judge = Judge::of(&second);
    let client = LockClient::connect(&[first.url(), second.url()], options("w1"))
        .await
        .unwrap();
    drop(client.acquire(&key("k")).await.unwrap());
    first.stop().await;
    let refused = loop {
        let refused = tokio::time::timeout(LONG, client.acquire_within(&key("k"), LONG)).await;
        match refused.unwrap().unwrap_err() {
            // The session was the first server's; the client opens another one.
            error @ LockError::SessionLost => assert_eq!(error.fate(), Fate::Definite),
            error => break error,
        }
    };
    assert!(matches!(refused, LockError::TokenRegression { .. }), "{refused:?}");
    assert_eq!(refused.fate(), Fate::Definite);
    assert_eq!(judge.count(&key("k"), "GRANTED").await, 0);
    client.close().await.unwrap();
    second.stop().await;
}

#[actix_rt::test]
async fn a_renewal_is_indefinite_when_its_answer_is_lost_and_the_lock_is_still_held() {
    const EITHER: [Rules; 2] = [&[("/renew", Trouble::LoseAnswer)], &[("/renew", Trouble::LoseRequest)]];
    let server = Server::start().await;
    let front = Front::to(server.addr).await;
    let client = connect(&front.url, "w1").await;
    let held = client.acquire(&key("k")).await.unwrap();
    for rules in EITHER {
        front.rules.set(rules);
        let error = held.renew().await.unwrap_err();
        assert_eq!(error.fate(), Fate::Indefinite, "{error}");
        assert!(held.check_still_held().is_ok());
        front.rules.set(&[]);
        held.renew().await.unwrap();
    }
    held.release().await.unwrap();
    client.close().await.unwrap();
    server.stop().await;
}

#[actix_rt::test]
async fn a_release_or_a_close_without_an_answer_is_indefinite() {
    let server = Server::start().await;
    let (front, judge) = (Front::to(server.addr).await, Judge::of(&server));
    let client = connect(&front.url, "w1").await;
    let held = client.acquire(&key("k")).await.unwrap();
    front.rules.set(&[("DELETE ", Trouble::LoseRequest)]);
    let error = held.release().await.unwrap_err();
    assert_eq!(error.fate(), Fate::Indefinite, "{error}");
    assert_eq!(judge.count(&key("k"), "RELEASED").await, 0);
    // The client had not given up.
    front.rules.set(&[]);
    judge.until(&key("k"), "RELEASED", 1).await;

    let held = client.acquire(&key("k")).await.unwrap();
    front.rules.set(&[("DELETE ", Trouble::LoseAnswer)]);
    let error = client.clone().close().await.unwrap_err();
    assert_eq!(error.fate(), Fate::Indefinite, "{error}");
    // It had happened: the lock went with the session.
    assert!(
        judge
            .api
            .sessions(10, None, &judge.trace)
            .await
            .unwrap()
            .items
            .is_empty()
    );
    let lost = held.release().await.unwrap_err();
    assert_eq!(lost.fate(), Fate::Lost, "{lost}");
    let stopped = client.acquire(&key("k")).await.unwrap_err();
    assert_eq!(stopped.fate(), Fate::Definite, "{stopped}");
    server.stop().await;
}

#[actix_rt::test]
async fn what_was_held_and_is_not_any_more_is_lost() {
    let server = Server::start().await;
    let (front, judge) = (Front::to(server.addr).await, Judge::of(&server));
    let client = connect(&front.url, "w1").await;
    let lost = |error: LockError, reasons: &[LostReason]| {
        assert_eq!(error.fate(), Fate::Lost, "{error}");
        assert!(
            matches!(&error, LockError::Lost(lost) if reasons.contains(&lost.reason)),
            "{error:?}"
        );
    };

    let held = client.acquire(&key("revoked")).await.unwrap();
    judge.revoke(&key("revoked"), held.token().get()).await;
    lost(held.renew().await.unwrap_err(), &[LostReason::Revoked]);
    lost(held.release().await.unwrap_err(), &[LostReason::Revoked]);

    // The guard has not noticed: the server refuses the release.
    let held = client.acquire(&key("unnoticed")).await.unwrap();
    judge.revoke(&key("unnoticed"), held.token().get()).await;
    lost(
        held.release().await.unwrap_err(),
        &[LostReason::Revoked, LostReason::Superseded],
    );

    let held = client.acquire(&key("session")).await.unwrap();
    judge.end_session("w1").await;
    lost(held.renew().await.unwrap_err(), &[LostReason::SessionLost]);
    lost(held.release().await.unwrap_err(), &[LostReason::SessionLost]);

    // Nobody answers until the lease has ended by the client's own count.
    let held = client.acquire(&key("expired")).await.unwrap();
    front
        .rules
        .set(&[("/renew", Trouble::Silence), ("/heartbeat", Trouble::Silence)]);
    let told = tokio::time::timeout(LONG, held.lost()).await.unwrap();
    lost(told.into(), &[LostReason::DeadlineLapsed]);
    lost(held.renew().await.unwrap_err(), &[LostReason::DeadlineLapsed]);
    lost(held.release().await.unwrap_err(), &[LostReason::DeadlineLapsed]);
    client.close().await.unwrap();
    server.stop().await;
}

#[test]
fn a_servers_word_is_definite_except_where_it_does_not_know() {
    for code in http_contract::Code::ALL {
        let problem = http_contract::Problem::new(*code, "said so", "0123456789abcdef0123456789abcdef");
        let expected = match code.as_str() {
            "INTERNAL" | "BACKEND_UNAVAILABLE" | "SUBMISSIONS_IN_DOUBT" => Fate::Indefinite,
            _ => Fate::Definite,
        };
        assert_eq!(CallFailure::Problem(Box::new(problem)).fate(), expected, "{code}");
    }
    assert_eq!(CallFailure::NotSent("refused".into()).fate(), Fate::Definite);
    assert_eq!(CallFailure::Ambiguous("time-out".into()).fate(), Fate::Indefinite);
}
