//! The rail behind TLS: who is believed, who is not, and that nothing reaches whom the proxy does not believe.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

mod support;

use gateway_kit::Settings;
use rustls::HandshakeKind;
use std::time::Duration;
use support::process::Process;
use support::tls::{Entrance, Shown, file};
use support::{BOUND, HORIZON_MS, Proxy, World, await_verdict, with_world};
use test_servers::Authority;
use test_servers::rcgen::ExtendedKeyUsagePurpose;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Long enough for a handshake on a busy machine, so that a time-out is no answer to the question asked here.
const READ_TIMEOUT: &str = "9s";

#[test]
fn child() {
    support::process::child();
}

async fn proxy(world: &World, url: &str, further: &[(&str, &str)]) -> Proxy {
    let flags = [&[("rail.url", url), ("rail.read-timeout", READ_TIMEOUT)][..], further].concat();
    world.proxy_with(&flags, host_kit::Host::system()).await
}

/// Submits `payout` and has it refused by a rail that is not believed: TIMEOUT with this in its cause, and the stub has read nothing.
async fn is_not_sent(world: &World, proxy: &Proxy, payout: &str, cause: &str) {
    let account = format!("account-{payout}");
    world.payments().claimed(payout, &account, 7);
    let answer = proxy.submit(payout, &account, 7).await;
    assert_eq!(
        (answer.status, answer.code(), answer.outcome()),
        (409, "RAIL_AMBIGUOUS", "TIMEOUT"),
        "{answer:?}"
    );
    let row = proxy.submission(payout).await.body;
    let said = row["cause"].as_str().unwrap();
    assert!(said.contains(cause), "{said}");
    assert_eq!(world.rail.bodies_read(payout).await, 0, "{said}");
    assert_eq!(world.rail.executions(payout).await, 0, "{said}");
}

/// A rail of the given authority is believed, by submissions and lookups, each over a connection of its own that verifies anew.
#[test]
fn a_rail_of_the_authority_is_spoken_to_over_tls() {
    with_world(async |world| {
        let authority = Authority::new("the rail's");
        let entrance = Entrance::before(&world.rail.base, &Shown::of(&authority, &["localhost", "127.0.0.1"])).await;
        let ca = file(&world.path(), "ca.pem", &authority.pem());
        for (n, host) in ["localhost", "127.0.0.1"].into_iter().enumerate() {
            let payout = format!("p{n}");
            let proxy = proxy(&world, &entrance.url(host), &[("rail.tls.ca-file", &ca)]).await;
            world.payments().claimed(&payout, "a1", 7 + n as u64);
            let answer = proxy.submit(&payout, "a1", 7 + n as u64).await;
            assert_eq!((answer.status, answer.outcome()), (200, "ACKED"), "{answer:?}");
            assert_eq!(world.rail.executions(&payout).await, 1);
            assert_eq!(await_verdict(&proxy, &payout, "EXECUTED").await["executions"], 1);
        }
        let seen = entrance.seen(4).await;
        assert!(
            seen.iter()
                .all(|kind| matches!(kind, Ok(HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest))),
            "{seen:?}"
        );
    });
}

/// A rail that would rather speak h2 is offered HTTP/1.1 alone, by submissions and by lookups.
#[test]
fn case_s10_the_rail_is_offered_http_1_1_alone() {
    with_world(async |world| {
        let authority = Authority::new("the rail's");
        let entrance = Entrance::before(&world.rail.base, &Shown::of(&authority, &["localhost"])).await;
        let ca = file(&world.path(), "ca.pem", &authority.pem());
        let proxy = proxy(&world, &entrance.url("localhost"), &[("rail.tls.ca-file", &ca)]).await;
        world.payments().claimed("p1", "a1", 7);
        assert_eq!(proxy.submit("p1", "a1", 7).await.outcome(), "ACKED");
        assert_eq!(proxy.look_up("p1").await.body["verdict"], "EXECUTED");
        entrance.seen(2).await;
        let settled = entrance.protocols.borrow();
        assert!(
            settled.iter().all(|name| name.as_deref() == Some("http/1.1")),
            "{settled:?}"
        );
    });
}

/// Whoever is not the rail gets no submission: recorded as TIMEOUT with the reason, for an intermediary may have done anything (C3.7).
#[test]
fn a_rail_that_is_not_believed_is_told_nothing() {
    with_world(async |world| {
        let (authority, other) = (Authority::new("the rail's"), Authority::new("somebody else's"));
        let ca = file(&world.path(), "ca.pem", &authority.pem());
        let expired = {
            let usage = ExtendedKeyUsagePurpose::ServerAuth;
            let (chain, key) = authority.issue_until("the rail", &["localhost"], usage, Some(2020));
            Shown {
                chain,
                key,
                callers: None,
            }
        };
        let no_server = {
            let (chain, key) = authority.issue("the rail", &["localhost"], ExtendedKeyUsagePurpose::ClientAuth);
            Shown {
                chain,
                key,
                callers: None,
            }
        };
        let wrong = [
            (
                Shown::of(&other, &["localhost"]),
                "invalid peer certificate: UnknownIssuer",
            ),
            (Shown::of(&authority, &["rail.example.com"]), "not valid for name"),
            (expired, "certificate expired"),
            (no_server, "extended key usage"),
        ];
        for (n, (shown, cause)) in wrong.into_iter().enumerate() {
            let entrance = Entrance::before(&world.rail.base, &shown).await;
            let proxy = proxy(&world, &entrance.url("localhost"), &[("rail.tls.ca-file", &ca)]).await;
            let payout = format!("p{n}");
            is_not_sent(&world, &proxy, &payout, cause).await;
            let cause = proxy.submission(&payout).await.body["cause"].clone();
            assert!(cause.as_str().unwrap().starts_with("not_connected: tls: "), "{cause}");
            // One connection, which came to nothing: refused is not retried.
            let seen = entrance.seen(1).await;
            assert!(matches!(seen[..], [Err(_)]), "{seen:?}");
            // Nor is it asked what it has in its book.
            tokio::time::sleep(Duration::from_millis(HORIZON_MS)).await;
            assert_eq!(proxy.look_up(&payout).await.body["verdict"], "INCONCLUSIVE");
            let seen = entrance.seen(2).await;
            assert!(matches!(seen[..], [Err(_), Err(_)]), "{seen:?}");
            // Once the rail is the rail again, the lookup says what was: nothing.
            let good = Entrance::before(&world.rail.base, &Shown::of(&authority, &["localhost"])).await;
            let proxy = self::proxy(&world, &good.url("localhost"), &[("rail.tls.ca-file", &ca)]).await;
            assert_eq!(await_verdict(&proxy, &payout, "NOT_RECEIVED").await["executions"], 0);
        }
    });
}

/// This machine's authorities are those that are asked where no file is named, and no others.
#[test]
fn without_a_file_the_authorities_of_this_machine_are_asked() {
    with_world(async |world| {
        let (known, unknown) = (Authority::new("known"), Authority::new("unknown"));
        let machine = file(&world.path(), "machine.pem", &known.pem());
        for (n, (authority, outcome)) in [(&known, "ACKED"), (&unknown, "TIMEOUT")].into_iter().enumerate() {
            let entrance = Entrance::before(&world.rail.base, &Shown::of(authority, &["localhost"])).await;
            let flags = [
                ("rail.url", entrance.url("localhost")),
                ("rail.read-timeout", READ_TIMEOUT.to_owned()),
            ];
            let flags: Vec<_> = flags.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let process = Process::start_with(&world, "", &flags, &[("SSL_CERT_FILE", &machine)]).await;
            let (payout, token) = (format!("p{n}"), 7 + n as u64);
            world.payments().claimed(&payout, "a1", token);
            assert_eq!(process.proxy.submit(&payout, "a1", token).await.outcome(), outcome);
        }
    });
}

/// A rail that asks who we are is shown the certificate; without one, or with another's, it hears nothing.
#[test]
fn mutual_tls() {
    with_world(async |world| {
        let (authority, ours, other) = (
            Authority::new("the rail's"),
            Authority::new("ours"),
            Authority::new("other"),
        );
        let shown = Shown::of(&authority, &["localhost"]).asking_for(&ours);
        let entrance = Entrance::before(&world.rail.base, &shown).await;
        let url = entrance.url("localhost");
        let directory = world.path();
        let ca = file(&directory, "ca.pem", &authority.pem());
        let identity = |name: &str, authority: &Authority| {
            let (cert, key) = authority.issue("rail-proxy", &[], ExtendedKeyUsagePurpose::ClientAuth);
            let put = |kind: &str, text: &str| file(&directory, &format!("{name}.{kind}"), text);
            (put("pem", &cert), put("key", &key))
        };

        let (cert, key) = identity("ours", &ours);
        let with = [
            ("rail.tls.ca-file", ca.as_str()),
            ("rail.tls.cert-file", &cert),
            ("rail.tls.key-file", &key),
        ];
        let known = proxy(&world, &url, &with).await;
        world.payments().claimed("p1", "a1", 7);
        let answer = known.submit("p1", "a1", 7).await;
        assert_eq!((answer.status, answer.outcome()), (200, "ACKED"), "{answer:?}");
        assert_eq!(await_verdict(&known, "p1", "EXECUTED").await["executions"], 1);

        // The rail says so in its own words, after our side of the handshake: only that nothing was read counts.
        let stranger = proxy(&world, &url, &with[..1]).await;
        is_not_sent(&world, &stranger, "p2", "").await;
        let (cert, key) = identity("forged", &other);
        let forged = [with[0], ("rail.tls.cert-file", &cert), ("rail.tls.key-file", &key)];
        let forger = proxy(&world, &url, &forged).await;
        is_not_sent(&world, &forger, "p3", "").await;
        tokio::time::sleep(Duration::from_millis(HORIZON_MS)).await;
        assert_eq!(forger.look_up("p3").await.body["verdict"], "INCONCLUSIVE");
    });
}

/// The files are replaced while the proxy runs: the next connection uses them, a certificate whose key has not come yet keeps
/// the pair before, and the readiness says why a handshake was refused as long as the last one was.
#[test]
fn case_l35_new_connections_use_the_files_as_they_are_now() {
    with_world(async |world| {
        let (authority, ours, other) = (
            Authority::new("the rail's"),
            Authority::new("ours"),
            Authority::new("other"),
        );
        let shown = Shown::of(&authority, &["localhost"]).asking_for(&ours);
        let entrance = Entrance::before(&world.rail.base, &shown).await;
        let directory = world.path();
        let ca = file(&directory, "ca.pem", &other.pem());
        let identity = |authority: &Authority| authority.issue("rail-proxy", &[], ExtendedKeyUsagePurpose::ClientAuth);
        let (first_cert, first_key) = identity(&ours);
        let (cert, key) = (
            file(&directory, "own.pem", &first_cert),
            file(&directory, "own.key", &first_key),
        );
        let with = [
            ("rail.tls.ca-file", ca.as_str()),
            ("rail.tls.cert-file", &cert),
            ("rail.tls.key-file", &key),
        ];
        let proxy = proxy(&world, &entrance.url("localhost"), &with).await;
        let note = async || proxy.get("/readyz").await.body["notes"]["rail"].clone();
        assert!(note().await.is_null());
        is_not_sent(&world, &proxy, "p1", "UnknownIssuer").await;
        let said = note().await;
        let said = said.as_str().unwrap();
        assert!(
            said.starts_with("refused: ") && said.contains("UnknownIssuer"),
            "{said}"
        );

        let acked = async |payout: &str, token: u64| {
            world.payments().claimed(payout, "a1", token);
            let answer = proxy.submit(payout, "a1", token).await;
            assert_eq!((answer.status, answer.outcome()), (200, "ACKED"), "{answer:?}");
        };
        file(&directory, "ca.pem", &authority.pem());
        acked("p2", 8).await;
        assert!(note().await.is_null());
        // Half a pair, and no certificate at all.
        let (second_cert, second_key) = identity(&ours);
        file(&directory, "own.pem", &second_cert);
        acked("p3", 9).await;
        file(&directory, "own.key", &second_key);
        acked("p4", 10).await;
        file(&directory, "ca.pem", "no certificate");
        acked("p5", 11).await;
    });
}

/// Somebody who speaks no TLS, and somebody who does not speak at all.
#[test]
fn a_rail_without_tls_behind_https_hears_nothing() {
    with_world(async |world| {
        let ca = file(&world.path(), "ca.pem", &Authority::new("the rail's").pem());
        let listener = async || {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("https://{}", listener.local_addr().unwrap());
            (listener, url)
        };
        let (plain, url) = listener().await;
        tokio::task::spawn_local(async move {
            loop {
                let (mut stream, _) = plain.accept().await.unwrap();
                stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
                // Closed with something unread it would be reset, and the answer with it.
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
        });
        let speaks_plainly = proxy(&world, &url, &[("rail.tls.ca-file", &ca)]).await;
        is_not_sent(&world, &speaks_plainly, "p1", "not_connected: tls: ").await;

        // With the short time-out of the other tests: nothing else can come.
        let (silent, url) = listener().await;
        let flags = [("rail.url", url.as_str()), ("rail.tls.ca-file", &ca)];
        let says_nothing = world.proxy_with(&flags, host_kit::Host::system()).await;
        // The bounds of the connection and of the whole call are the same, and either may be noticed first.
        is_not_sent(&world, &says_nothing, "p2", "imeout").await;
        // What came to it was a greeting, and then the end of the connection.
        let (mut stream, _) = silent.accept().await.unwrap();
        let mut heard = Vec::new();
        tokio::time::timeout(BOUND, stream.read_to_end(&mut heard))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(heard.first(), Some(&0x16), "a handshake");
        assert!(!heard.windows(2).any(|bytes| bytes == b"p2"), "the payout in the clear");
    });
}

/// Wrong settings are named, by whoever only looks at them and by whoever starts.
#[test]
fn what_cannot_be_is_refused_before_anything_is_served() {
    with_world(async |world| {
        let directory = world.path();
        let authority = Authority::new("the rail's");
        let (cert, key) = authority.issue("rail-proxy", &[], ExtendedKeyUsagePurpose::ClientAuth);
        let (_, another_key) = authority.issue("rail-proxy", &[], ExtendedKeyUsagePurpose::ClientAuth);
        let put = |name: &str, text: &str| file(&directory, name, text);
        let ca = put("ca.pem", &authority.pem());
        let (cert, key, another_key) = (
            put("c.pem", &cert),
            put("c.key", &key),
            put("another.key", &another_key),
        );
        let text = put("text.pem", "no PEM\n");
        let rail = "https://rail.example.com";
        let (ca_file, cert_file, key_file) = ("rail.tls.ca-file", "rail.tls.cert-file", "rail.tls.key-file");
        type Tried<'a> = (&'a str, Vec<(&'a str, &'a str)>, String);
        let tried: Vec<Tried<'_>> = vec![
            (
                rail,
                vec![(ca_file, "/not/there.pem")],
                "rail.tls.ca-file: /not/there.pem: ".to_owned(),
            ),
            (
                rail,
                vec![(ca_file, &text)],
                format!("rail.tls.ca-file: {text}: there is no certificate in it"),
            ),
            (
                rail,
                vec![(ca_file, &key)],
                format!("rail.tls.ca-file: {key}: there is no certificate in it"),
            ),
            (
                rail,
                vec![(ca_file, &ca), (cert_file, "/not/there.pem"), (key_file, &key)],
                "rail.tls.cert-file: /not/there.pem: ".to_owned(),
            ),
            (
                rail,
                vec![(ca_file, &ca), (cert_file, &cert), (key_file, &text)],
                format!("rail.tls.key-file: {text}: there is no private key in it"),
            ),
            (
                rail,
                vec![(ca_file, &ca), (cert_file, &cert), (key_file, &another_key)],
                "rail.tls.cert-file: and rail.tls.key-file: the certificate and the key: ".to_owned(),
            ),
            (
                "https://[::1]:1",
                vec![(ca_file, &ca)],
                "rail.url: with https: it must have a host name".to_owned(),
            ),
            ("https://", vec![], String::new()),
            ("http:///path", vec![], "rail.url: must be an address".to_owned()),
            (
                "https://a rail",
                vec![(ca_file, &ca)],
                "rail.url: must be an address".to_owned(),
            ),
        ];
        for (url, more, part) in tried {
            let mut flags = vec![("rail.url".to_owned(), url.to_owned())];
            flags.extend(
                more.iter()
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
            );
            let Ok(settings) = Settings::load(None, [], &flags) else {
                assert_eq!(url, "https://", "refused by the settings");
                continue;
            };
            let said = rail_proxy::check(&settings).unwrap_err().to_string();
            assert!(said.starts_with(&part), "{url} {more:?}: {said}");
            // Starting says the same.
            let settings = world.settings(&[&[("rail.url", url)][..], &more].concat());
            match rail_proxy::assemble(&settings, &host_kit::Host::system()).await {
                Err(error) => assert_eq!(error.to_string(), said),
                Ok(_) => panic!("{url} {more:?}: served"),
            }
        }
    });
}
