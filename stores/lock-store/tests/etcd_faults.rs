//! What goes wrong around the store on etcd: connections, answers, compaction, restarts, restored and wiped data.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "tests make up tokens and read the clock")]

mod etcd_support;

use etcd_support::place::{
    LONG, Place, WITHIN, acquire, ask, beat, count, facts, granted, holder, key, one_holder_at_a_time, open, operator,
    release, until,
};
use etcd_support::proxy::{Mode, Proxy};
use futures_util::future::join_all;
use host_kit::Host;
use lock_api::{
    AcquireOutcome, EventKind, FencingToken, FloorOutcome, HeartbeatOutcome, LineageState, LockStore, ReleaseOutcome,
    ReleaseRequest, StoreError,
};
use lock_store::{EtcdLockStore, EtcdPassword};
use std::time::{Duration, Instant};
use test_servers::testcontainers::core::wait::ExitWaitStrategy;
use test_servers::testcontainers::core::{CmdWaitFor, ExecCommand, Mount, WaitFor};
use test_servers::testcontainers::runners::AsyncRunner;
use test_servers::testcontainers::{ContainerAsync, GenericImage, ImageExt};
use test_servers::{DATA_DIR, etcd_address, etcd_image, etcd_image_with, etcd_images};

/// A server of the test's own. None where there is none to be had.
async fn own_etcd() -> (ContainerAsync<GenericImage>, String) {
    // Skips as every other test where there is no server at all.
    test_servers::etcd_or_skip().await;
    let mut why = String::new();
    for image in etcd_images() {
        match etcd_image(&image).start().await {
            Ok(container) => {
                let at = answering(&container).await;
                return (container, at);
            }
            Err(error) => why = error.to_string(),
        }
    }
    panic!("no etcd of one's own: {why}");
}

/// The address of a container, once it answers.
async fn answering(container: &ContainerAsync<GenericImage>) -> String {
    let mut at = String::new();
    until("the server answers", async || {
        let Ok(found) = etcd_address(container).await else {
            return false;
        };
        at = found;
        test_servers::healthy(&at).await.is_ok()
    })
    .await;
    at
}

async fn refuses(store: &EtcdLockStore, session: &str, request: &str) -> String {
    match acquire(store, ask("refused", session, request, LONG)).await {
        AcquireOutcome::TokenRegression { detail } => detail,
        other => panic!("granted in doubt: {other:?}"),
    }
}

fn token(value: u64) -> FencingToken {
    FencingToken::from_store(value).unwrap()
}

async fn raise_floor(store: &EtcdLockStore, floor: u64) {
    let raised = store
        .advance_floor(floor, operator(), "restored from a backup".into(), WITHIN)
        .await;
    assert!(matches!(raised, Ok(FloorOutcome::Changed(_))), "{raised:?}");
}

/// Connections are cut all the time: each call answers in time with an outcome or a typed error, nobody is granted twice,
/// and afterwards everything works without a restart.
#[tokio::test]
async fn killed_connections_give_typed_errors_and_no_double_grant() {
    let place = Place::fresh().await;
    let proxy = Proxy::to(&place.at).await;
    let mut options = place.options();
    options.access.endpoints = vec![proxy.at.clone()];
    let store = EtcdLockStore::open(options, &Host::system()).await.unwrap();
    for n in 0..8 {
        open(&store, &format!("s{n}"), LONG).await;
    }
    let end = Instant::now() + Duration::from_secs(5);
    let within = Duration::from_secs(3);
    let kill = async {
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(50)).await;
            proxy.kill_all();
        }
    };
    let load = join_all((0..8).map(|n| {
        let store = store.clone();
        async move {
            let session = format!("s{n}");
            let (mut round, mut answered, mut failed) = (0_u32, 0, 0);
            while Instant::now() < end {
                round += 1;
                let began = Instant::now();
                let answer = store
                    .acquire(vec![ask("hot", &session, &format!("r{round}"), LONG)], within)
                    .await;
                assert!(
                    began.elapsed() < within + Duration::from_secs(10),
                    "{answer:?} too late"
                );
                match answer {
                    Ok(_) => answered += 1,
                    Err(StoreError::Unavailable { .. } | StoreError::Unknown { .. }) => failed += 1,
                    Err(StoreError::Corrupt { detail }) => panic!("{detail}"),
                }
                // What may be held is looked up and given back.
                loop {
                    match store.inspect(vec![key("hot")], within).await {
                        Err(_) => {}
                        Ok(states) => match &states[0].grant {
                            Some(grant) if grant.session_id.as_str() == session => {
                                let request = ReleaseRequest {
                                    key: grant.key.clone(),
                                    session_id: grant.session_id.clone(),
                                    token: grant.token,
                                };
                                drop(store.release(vec![request], within).await);
                            }
                            _ => break,
                        },
                    }
                }
            }
            (answered, failed)
        }
    }));
    let (done, ()) = tokio::join!(load, kill);
    let (answered, failed) = done.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    println!("{answered} answered, {failed} failed");
    assert!(answered > 0, "{answered} answered, {failed} failed");
    one_holder_at_a_time(&facts(&store).await);
    open(&store, "after", LONG).await;
    granted(&store, "after", "after", "r", LONG).await;
}

/// L18 on the wire: the grant is made and its answer is lost: unknown, never a grant; the same request finds it again.
#[tokio::test]
async fn case_l18_a_lost_answer_is_unknown_and_found_again() {
    let place = Place::fresh().await;
    let proxy = Proxy::to(&place.at).await;
    let mut options = place.options();
    options.access.endpoints = vec![proxy.at.clone()];
    let store = EtcdLockStore::open(options, &Host::system()).await.unwrap();
    let beside = place.open().await;
    open(&store, "s1", LONG).await;
    let mut unknown = 0;
    for round in 0..20 {
        let (at, request) = (format!("k{round}"), format!("r{round}"));
        let wait = Duration::from_millis(round / 2);
        let (answer, ()) = tokio::join!(
            store.acquire(vec![ask(&at, "s1", &request, LONG)], Duration::from_millis(300)),
            async {
                tokio::time::sleep(wait).await;
                proxy.set(Mode::Deaf);
            }
        );
        proxy.set(Mode::Forward);
        proxy.kill_all();
        match answer {
            Ok(_) | Err(StoreError::Unavailable { .. }) => {}
            Err(StoreError::Unknown { .. }) => unknown += 1,
            Err(StoreError::Corrupt { detail }) => panic!("{detail}"),
        }
        let made = holder(&beside, &at).await;
        let AcquireOutcome::Granted { grant, replayed } = acquire(&store, ask(&at, "s1", &request, LONG)).await else {
            panic!("not found again")
        };
        assert!(
            made.is_none_or(|made| replayed && made == grant.token.get()),
            "a second grant"
        );
    }
    println!("{unknown} unknown");
    one_holder_at_a_time(&facts(&beside).await);
}

/// Two of three members are dead: what was certainly not sent is sent to the next one.
#[tokio::test]
async fn dead_members_cost_no_call() {
    let place = Place::fresh().await;
    let mut options = place.options();
    let dead = [test_servers::reserved(), test_servers::reserved()];
    for member in &dead {
        options.access.endpoints.push(member.address().to_string());
    }
    let store = EtcdLockStore::open(options, &Host::system()).await.unwrap();
    open(&store, "s1", LONG).await;
    for n in 0..50 {
        granted(&store, &format!("k{n}"), "s1", &format!("r{n}"), LONG).await;
        assert!(matches!(beat(&store, "s1", None).await, HeartbeatOutcome::Alive { .. }));
    }
}

/// No member answers: a call ends in time and was certainly not begun.
#[tokio::test]
async fn an_unreachable_cluster_is_unavailable() {
    let place = Place::fresh().await;
    let proxy = Proxy::to(&place.at).await;
    let mut options = place.options();
    options.access.endpoints = vec![proxy.at.clone()];
    let store = EtcdLockStore::open(options, &Host::system()).await.unwrap();
    open(&store, "s1", LONG).await;
    proxy.set(Mode::Cut);
    let within = Duration::from_millis(500);
    let answer = store.acquire(vec![ask("a", "s1", "r", LONG)], within).await;
    assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
    assert!(store.health(within).await.unwrap().problem.is_some());
    proxy.set(Mode::Forward);
    until("it works again", async || {
        store.acquire(vec![ask("a", "s1", "r", LONG)], WITHIN).await.is_ok()
    })
    .await;
}

/// The watch is cut, facts are recorded, their revisions are compacted away: everything is listed again, and the watch goes
/// on. A server of the test's own, since compaction is of everybody's revisions.
#[tokio::test]
async fn a_compaction_during_a_watch_loses_nothing() {
    let (_container, at) = own_etcd().await;
    let place = Place::on(at);
    let proxy = Proxy::to(&place.at).await;
    let mut options = place.options();
    options.access.endpoints = vec![proxy.at.clone()];
    // Only the watch tells.
    options.poll_every = Duration::from_secs(3600);
    let (watches, writes) = (
        EtcdLockStore::open(options, &Host::system()).await.unwrap(),
        place.open().await,
    );
    open(&writes, "s1", LONG).await;
    let seen = watches.changed_since(0, WITHIN).await.unwrap();
    proxy.set(Mode::Cut);
    let kept = granted(&writes, "kept", "s1", "r", LONG).await;
    let freed = granted(&writes, "freed", "s1", "r", LONG).await;
    release(&writes, "freed", "s1", freed).await;
    let mut client = place.client().await;
    let now = client.get("x", None).await.unwrap().header().unwrap().revision();
    client.compact(now, None).await.unwrap();
    let late = granted(&writes, "late", "s1", "r", LONG).await;
    proxy.set(Mode::Forward);
    let woken = watches.changed_since(seen, WITHIN).await.unwrap();
    assert!(woken > seen, "the watch did not go on");
    until("both live grants are observed", async || watches.observed() == (1, 2)).await;
    assert_eq!(facts(&watches).await, facts(&writes).await);
    assert_eq!(holder(&watches, "kept").await, Some(kept.get()));
    assert_eq!(holder(&watches, "late").await, Some(late.get()));
    // And it hears what comes now.
    let seen = watches.changed_since(u64::MAX, Duration::ZERO).await.unwrap();
    let (woken, _) = tokio::join!(
        watches.changed_since(seen, WITHIN),
        release(&writes, "late", "s1", late)
    );
    assert!(woken.unwrap() > seen);
}

/// L10: the server is stopped and started on the same data: grants are there, and no token is used twice.
#[tokio::test]
async fn case_l10_a_restarted_server_keeps_grants_and_uses_no_token_twice() {
    let (container, at) = own_etcd().await;
    let mut place = Place::on(at);
    let before = place.open().await;
    open(&before, "s1", LONG).await;
    let mut tokens = Vec::new();
    for n in 0..20 {
        tokens.push(granted(&before, &format!("k{n}"), "s1", &format!("r{n}"), LONG).await);
    }
    release(&before, "k0", "s1", tokens[0]).await;
    let lineage = before.lineage(WITHIN).await.unwrap();
    before.close();
    container.stop().await.unwrap();
    container.start().await.unwrap();
    place.at = answering(&container).await;
    let after = place.open().await;
    assert_eq!(after.lineage(WITHIN).await.unwrap(), lineage);
    for (n, token) in tokens.iter().enumerate().skip(1) {
        assert_eq!(holder(&after, &format!("k{n}")).await, Some(token.get()));
    }
    assert!(matches!(beat(&after, "s1", None).await, HeartbeatOutcome::Alive { held, .. } if held.len() == 19));
    let again = granted(&after, "k0", "s1", "again", LONG).await;
    assert!(again > *tokens.iter().max().unwrap());
    one_holder_at_a_time(&facts(&after).await);
}

/// L31: the cluster is restored from a snapshot taken a hundred grants ago. The server that ran on knows what it has seen, a
/// new one learns it from a client's witness: no grant, until the floor is above everything that was granted.
#[tokio::test]
async fn case_l31_a_restored_snapshot_grants_nothing_before_the_floor() {
    test_servers::etcd_or_skip().await;
    let image = &etcd_images()[0];
    let volume = Volume(test_servers::fresh_schema());
    let on_volume = || Mount::volume_mount(volume.0.clone(), DATA_DIR);
    let first = etcd_image(image).with_mount(on_volume()).start().await.unwrap();
    let place = Place::on(answering(&first).await);
    let proxy = Proxy::to(&place.at).await;
    let mut options = place.options();
    options.access.endpoints = vec![proxy.at.clone()];
    let ran_on = EtcdLockStore::open(options, &Host::system()).await.unwrap();
    open(&ran_on, "s1", LONG).await;
    granted(&ran_on, "held", "s1", "r", LONG).await;
    let saved = first
        .exec(
            ExecCommand::new(["etcdctl", "snapshot", "save", &format!("{DATA_DIR}/saved")])
                .with_cmd_ready_condition(CmdWaitFor::exit_code(0)),
        )
        .await;
    saved.unwrap();
    let mut highest = 0;
    for n in 0..100 {
        let token = granted(&ran_on, &format!("k{n}"), "s1", &format!("r{n}"), LONG).await;
        highest = token.get();
    }
    let lineage = ran_on.lineage(WITHIN).await.unwrap().lineage;
    first.stop().await.unwrap();
    let (name, tag) = image.rsplit_once(':').unwrap();
    let restore = GenericImage::new(name, tag)
        .with_entrypoint("etcdutl")
        .with_wait_for(WaitFor::exit(ExitWaitStrategy::new().with_exit_code(0)))
        .with_cmd([
            "snapshot".to_owned(),
            "restore".to_owned(),
            format!("{DATA_DIR}/saved"),
            format!("--data-dir={DATA_DIR}/restored"),
        ])
        .with_label(test_servers::LABEL.0, test_servers::LABEL.1)
        .with_mount(on_volume())
        .start()
        .await
        .unwrap();
    let data = format!("--data-dir={DATA_DIR}/restored");
    let second = etcd_image_with(image, &[&data])
        .with_mount(on_volume())
        .start()
        .await
        .unwrap();
    let restored = answering(&second).await;
    proxy.turn_to(&restored);

    // The one that ran on.
    let detail = refuses(&ran_on, "s1", "x1").await;
    println!("{detail}");
    assert_eq!(
        ran_on.lineage(WITHIN).await.unwrap().lineage,
        lineage,
        "the id was restored with the rest"
    );
    // A doubt is the store's: also a new server grants nothing, and no renewal or release is hindered.
    let mut options = place.options();
    options.access.endpoints = vec![restored];
    let new = EtcdLockStore::open(options.clone(), &Host::system()).await.unwrap();
    refuses(&new, "s1", "x2").await;
    let dismissed = new
        .dismiss_regression(operator(), "a test".into(), WITHIN)
        .await
        .unwrap();
    assert!(matches!(dismissed, FloorOutcome::Changed(_)));
    // Dismissed wrongly: a client's witness brings it back.
    let answer = beat(&new, "s1", Some(token(highest))).await;
    assert!(matches!(answer, HeartbeatOutcome::Alive { .. }), "{answer:?}");
    refuses(&new, "s1", "x3").await;
    let found = count(&facts(&new).await, EventKind::RegressionDetected);
    assert_eq!(found, 2);
    raise_floor(&new, highest + 1000).await;
    let next = granted(&new, "held-no-more", "s1", "y", LONG).await;
    assert!(next.get() > highest + 1000);
    let other = granted(&ran_on, "other", "s1", "z", LONG).await;
    assert!(other > next, "the one that ran on goes on above the floor");
    // Under an offset everything works as before.
    assert_eq!(holder(&new, "other").await, Some(other.get()));
    assert_eq!(release(&new, "other", "s1", other).await, ReleaseOutcome::Released);
    drop((new, ran_on));
    for container in [second, restore, first] {
        container.rm().await.unwrap();
    }
}

/// A volume that goes with the test.
struct Volume(String);

impl Drop for Volume {
    fn drop(&mut self) {
        let removed = std::process::Command::new("docker")
            .args(["volume", "rm", "--force", &self.0])
            .output();
        drop(removed);
    }
}

/// All data are wiped under a running server: it grants nothing. A new server takes an empty store for a new one unless it
/// was told which it should be.
#[tokio::test]
async fn wiped_data_grant_nothing_to_who_knew_them() {
    let place = Place::fresh().await;
    let knew = place.open().await;
    open(&knew, "s1", LONG).await;
    let highest = granted(&knew, "a", "s1", "r", LONG).await.get() + 1000;
    let lineage = knew.lineage(WITHIN).await.unwrap().lineage;
    etcd_support::remove(&place.at, &place.prefix).await;
    let problem = knew.health(WITHIN).await.unwrap().problem.unwrap();
    assert!(problem.contains("lineage"), "{problem}");
    open(&knew, "s2", LONG).await;
    refuses(&knew, "s2", "x").await;

    let mut options = place.options();
    options.expected_lineage = Some(lineage.clone());
    etcd_support::remove(&place.at, &place.prefix).await;
    let told = EtcdLockStore::open(options, &Host::system()).await.unwrap();
    let found = told.lineage(WITHIN).await.unwrap();
    assert_eq!(found.state, LineageState::Regressed);
    assert_ne!(found.lineage, lineage);
    open(&told, "s3", LONG).await;
    refuses(&told, "s3", "x").await;
    raise_floor(&told, highest).await;
    assert!(granted(&told, "a", "s3", "y", LONG).await.get() > highest);
    // The floor was raised by somebody who knew the old id: it is accepted by a restarted server as well.
    let mut options = place.options();
    options.expected_lineage = Some(lineage);
    let again = EtcdLockStore::open(options, &Host::system()).await.unwrap();
    assert!(granted(&again, "b", "s3", "z", LONG).await.get() > highest);
}

/// A store without its lineage, or under another cluster's id, is a doubt.
#[tokio::test]
async fn a_lost_lineage_and_another_cluster_are_doubts() {
    let place = Place::fresh().await;
    let first = place.open().await;
    open(&first, "s1", LONG).await;
    let highest = granted(&first, "a", "s1", "r", LONG).await;
    let mut kv = place.client().await.kv_client();
    let at = format!("{}/lineage", place.prefix);
    let row = kv.get(at.as_str(), None).await.unwrap();
    let before = row.kvs()[0].value_str().unwrap().to_owned();

    kv.delete(at.as_str(), None).await.unwrap();
    let second = place.open().await;
    assert_eq!(second.lineage(WITHIN).await.unwrap().state, LineageState::Regressed);
    refuses(&second, "s1", "x").await;
    assert_eq!(
        holder(&second, "a").await,
        Some(highest.get()),
        "what is held stays held"
    );

    let mut elsewhere: serde_json::Value = serde_json::from_str(&before).unwrap();
    elsewhere["cluster"] = serde_json::json!(4711);
    kv.put(at.as_str(), elsewhere.to_string(), None).await.unwrap();
    let third = place.open().await;
    let detail = refuses(&third, "s1", "x").await;
    assert!(detail.contains("cluster"), "{detail}");
    let dismissed = third
        .dismiss_regression(operator(), "moved on purpose".into(), WITHIN)
        .await
        .unwrap();
    assert!(matches!(dismissed, FloorOutcome::Changed(_)));
    assert!(granted(&third, "b", "s1", "y", LONG).await > highest);
}

/// A cluster with users: the right password opens the store, a wrong one, or none, is refused with a word about it.
#[tokio::test]
async fn a_user_and_password_are_presented() {
    let (_container, at) = own_etcd().await;
    let place = Place::on(at);
    let client = place.client().await;
    let mut auth = client.auth_client();
    auth.user_add("root", "sesame", None).await.unwrap();
    auth.user_grant_role("root", "root").await.unwrap();
    auth.auth_enable().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    let mut options = place.options();
    options.access.user = Some("root".to_owned());
    options.access.password = EtcdPassword::File(file.clone());
    std::fs::write(&file, "sesame\n").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let store = EtcdLockStore::open(options.clone(), &Host::system()).await.unwrap();
    open(&store, "s1", LONG).await;
    granted(&store, "a", "s1", "r", LONG).await;
    std::fs::write(&file, "wrong").unwrap();
    let refused = EtcdLockStore::open(options, &Host::system()).await;
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    let anonymous = EtcdLockStore::open(place.options(), &Host::system()).await;
    assert!(
        matches!(anonymous, Err(StoreError::Unavailable { .. })),
        "{anonymous:?}"
    );
}

/// Members with certificates, which ask for one: whoever has one of the same authority is served, anybody else is not.
#[tokio::test]
async fn a_cluster_with_certificates_is_reached_over_tls() {
    use test_servers::rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    test_servers::etcd_or_skip().await;
    let authority = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&authority).unwrap().pem();
    let issuer = Issuer::new(ca, authority);
    let signed = |names: Vec<String>| {
        let key = KeyPair::generate().unwrap();
        let pem = CertificateParams::new(names)
            .unwrap()
            .signed_by(&key, &issuer)
            .unwrap()
            .pem();
        (pem, key.serialize_pem())
    };
    let (server_pem, server_key) = signed(vec!["127.0.0.1".to_owned()]);
    let (client_pem, client_key) = signed(vec!["lock-server".to_owned()]);
    let flags = [
        "--listen-client-urls=https://0.0.0.0:2379",
        "--advertise-client-urls=https://0.0.0.0:2379",
        "--cert-file=/tls/server.pem",
        "--key-file=/tls/server.key",
        "--trusted-ca-file=/tls/ca.pem",
        "--client-cert-auth",
    ];
    let container = etcd_image_with(&etcd_images()[0], &flags)
        .with_copy_to("/tls/ca.pem", ca_pem.clone().into_bytes())
        .with_copy_to("/tls/server.pem", server_pem.into_bytes())
        .with_copy_to("/tls/server.key", server_key.into_bytes())
        .start()
        .await
        .unwrap();
    let place = Place::on(etcd_address(&container).await.unwrap());
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        path
    };
    let mut options = place.options();
    options.access.ca_file = Some(file("ca.pem", &ca_pem));
    let host = Host::system();
    let without = EtcdLockStore::open(options.clone(), &host);
    let without = tokio::time::timeout(Duration::from_secs(3), without).await;
    assert!(!matches!(without, Ok(Ok(_))), "served without a certificate");
    options.access.cert_file = Some(file("client.pem", &client_pem));
    options.access.key_file = Some(file("client.key", &client_key));
    let store = EtcdLockStore::open(options, &Host::system()).await.unwrap();
    open(&store, "s1", LONG).await;
    let token = granted(&store, "a", "s1", "r", LONG).await;
    assert_eq!(holder(&store, "a").await, Some(token.get()));
}

/// A cluster that refuses what takes room (the alarm NOSPACE) is told until a write works again.
#[tokio::test]
async fn case_l36_a_cluster_without_room_is_told_until_a_write_works() {
    use etcd_client::{AlarmAction, AlarmOptions, AlarmType, CompactionOptions};
    test_servers::etcd_or_skip().await;
    let container = etcd_image_with(&etcd_images()[0], &["--quota-backend-bytes=4194304"])
        .start()
        .await
        .unwrap();
    let place = Place::on(answering(&container).await);
    let store = place.open().await;
    open(&store, "s1", LONG).await;
    granted(&store, "a", "s1", "r1", LONG).await;
    assert_eq!(store.health(WITHIN).await.unwrap().problem, None);
    let mut client = place.client().await;
    let mut puts = 0;
    while client.put("ballast", vec![b'x'; 200_000], None).await.is_ok() {
        puts += 1;
        assert!(puts < 1000, "it never filled");
    }
    let refused = store.acquire(vec![ask("b", "s1", "r2", LONG)], WITHIN).await;
    assert!(
        matches!(&refused, Err(StoreError::Unavailable { detail }) if detail.contains("space exceeded")),
        "{refused:?}"
    );
    for _ in 0..3 {
        let said = store.health(WITHIN).await.unwrap().problem.unwrap();
        assert!(said.starts_with("full: "), "{said}");
    }
    client.delete("ballast", None).await.unwrap();
    let revision = client.get("ballast", None).await.unwrap().header().unwrap().revision();
    client
        .compact(revision, Some(CompactionOptions::new().with_physical()))
        .await
        .unwrap();
    client.defragment().await.unwrap();
    let alarms = client.alarm(AlarmAction::Get, AlarmType::Nospace, None).await.unwrap();
    for alarm in alarms.alarms() {
        let mut of_member = AlarmOptions::new();
        of_member.with_member(alarm.member_id());
        client
            .alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(of_member))
            .await
            .unwrap();
    }
    until("a write works", async || {
        store.health(WITHIN).await.unwrap().problem.is_none()
    })
    .await;
    granted(&store, "b", "s1", "r2", LONG).await;
}

/// The certificate, the key and the authorities' file are replaced, and connections are cut: new ones use the new files
/// without a restart; a certificate whose key has not come yet keeps the old pair, and the reason of a refusal is told.
#[tokio::test]
async fn case_l35_new_connections_use_the_files_as_they_are_now() {
    use test_servers::Authority;
    use test_servers::rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    test_servers::etcd_or_skip().await;
    let (old, new) = (Authority::new("the old one"), Authority::new("the new one"));
    let server = |authority: &Authority| authority.issue("etcd", &["127.0.0.1"], ServerAuth);
    let flags = [
        "--listen-client-urls=https://0.0.0.0:2379",
        "--advertise-client-urls=https://0.0.0.0:2379",
        "--cert-file=/tls/server.pem",
        "--key-file=/tls/server.key",
        "--trusted-ca-file=/tls/ca.pem",
        "--client-cert-auth",
    ];
    // Two servers with an authority each, one behind the other: the address stays.
    let start = async |authority: &Authority| {
        let (cert, key) = server(authority);
        let container = etcd_image_with(&etcd_images()[0], &flags)
            .with_copy_to("/tls/ca.pem", authority.pem().into_bytes())
            .with_copy_to("/tls/server.pem", cert.into_bytes())
            .with_copy_to("/tls/server.key", key.into_bytes())
            .start()
            .await
            .unwrap();
        let at = etcd_address(&container).await.unwrap();
        (container, at)
    };
    let ((_first, first), (_second, second)) = tokio::join!(start(&old), start(&new));
    let proxy = Proxy::to(&first).await;
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        path
    };
    let (cert, key) = old.issue("lock-server", &[], ClientAuth);
    let place = Place::on(proxy.at.clone());
    let mut options = place.options();
    options.access.ca_file = Some(file("ca.pem", &old.pem()));
    options.access.cert_file = Some(file("client.pem", &cert));
    options.access.key_file = Some(file("client.key", &key));
    let store = EtcdLockStore::open(options, &Host::system()).await.unwrap();
    assert_eq!(store.health(WITHIN).await.unwrap().problem, None);
    proxy.turn_to(&second);
    proxy.kill_all();
    let within = Duration::from_secs(4);
    let problem = async || store.health(within).await.unwrap().problem.unwrap_or_default();
    until("the handshake is refused", async || {
        problem().await.starts_with("refused: ")
    })
    .await;
    let (cert, key) = new.issue("lock-server", &[], ClientAuth);
    file("ca.pem", &new.pem());
    file("client.pem", &cert);
    // The pair does not fit yet: the old one is kept.
    assert!(problem().await.starts_with("refused: "));
    file("client.key", &key);
    // The other server's store is another one: it answers, and is not believed.
    until("the new files are used", async || {
        problem().await.starts_with("doubt: ")
    })
    .await;
}
