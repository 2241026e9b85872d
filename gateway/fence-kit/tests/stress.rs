//! A service that knows nothing of dlock under holders with rising tokens: some are paused and deliver late, some go away,
//! requests are held and executed after everybody has gone, the proxy is killed and started again. Then the same without
//! the proxy.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "tests")]

mod support;

use host_kit::Random;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::process::Process;
use support::service::Service;
use support::{send, wire};
use tokio::sync::Mutex;

/// Not a test: the proxy as a process of its own, when this binary is started again as one.
#[test]
fn child() {
    support::process::child();
}

const KEYS: [&str; 4] = ["A", "B", "C", "D"];
const HOLDERS: usize = 16;

#[derive(Default)]
struct Counts {
    passed: AtomicU64,
    fenced_out: AtomicU64,
    in_doubt: AtomicU64,
    no_answer: AtomicU64,
    gave_up: AtomicU64,
    unreached: AtomicU64,
    cleared: AtomicU64,
}

impl Counts {
    fn shown(&self) -> String {
        let get = |count: &AtomicU64| count.load(Ordering::SeqCst);
        format!(
            "passed {}, fenced out {}, in doubt {}, without an answer {}, callers gone {}, proxy not reached {}, cleared {}",
            get(&self.passed),
            get(&self.fenced_out),
            get(&self.in_doubt),
            get(&self.no_answer),
            get(&self.gave_up),
            get(&self.unreached),
            get(&self.cleared)
        )
    }
}

/// The holders, against whatever listens at `address`, until `until`.
async fn holders(address: &str, seed: u64, until: Instant, counts: &Arc<Counts>) {
    let random = Random::seeded(seed);
    let tokens: Arc<Vec<AtomicU64>> = Arc::new(KEYS.iter().map(|_| AtomicU64::new(0)).collect());
    let mut running = Vec::new();
    for holder in 0..HOLDERS {
        let (address, tokens, counts) = (address.to_owned(), Arc::clone(&tokens), Arc::clone(counts));
        let random = Random::seeded(random.u64());
        running.push(tokio::spawn(async move {
            let mut turn = 0;
            while Instant::now() < until {
                let at = usize::try_from(random.below(u64::try_from(KEYS.len()).unwrap())).unwrap();
                // The lock's part: whoever takes it over has a higher token.
                let (key, token) = (KEYS[at], tokens[at].fetch_add(1, Ordering::SeqCst) + 1);
                for _ in 0..=random.below(3) {
                    turn += 1;
                    if random.chance(0.3) {
                        // Stopped, and it does not know for how long.
                        tokio::time::sleep(random.up_to(Duration::from_millis(150))).await;
                    }
                    let hold = if random.chance(0.03) { 600 } else { random.below(25) };
                    let path = format!("/accounts/{key}/{holder}-{turn}?hold={hold}");
                    let request = wire("POST", &path, &[("x-fencing-token", &token.to_string())], Some(b"x"));
                    let asked = send(&address, &request);
                    let answer = if random.chance(0.1) {
                        match tokio::time::timeout(random.up_to(Duration::from_millis(15)), asked).await {
                            Ok(answer) => answer,
                            Err(_) => {
                                counts.gave_up.fetch_add(1, Ordering::SeqCst);
                                continue;
                            }
                        }
                    } else {
                        asked.await
                    };
                    let count = match answer {
                        None => {
                            tokio::time::sleep(Duration::from_millis(20)).await;
                            &counts.unreached
                        }
                        Some(answer) if answer.status == 200 => &counts.passed,
                        Some(answer) => match (answer.code().as_str(), answer.reason().as_str()) {
                            ("FENCED_OUT", "stale") => &counts.fenced_out,
                            ("IN_DOUBT", "older_request_open") => &counts.in_doubt,
                            ("IN_DOUBT", "no_answer") => &counts.no_answer,
                            other => panic!("{other:?}: {answer:?}"),
                        },
                    };
                    count.fetch_add(1, Ordering::SeqCst);
                }
            }
        }));
    }
    for holder in running {
        holder.await.unwrap();
    }
}

/// An operator who does what the documentation says: looks what is open, makes sure at the service that nothing of it can
/// happen any more, and clears just that.
async fn operate(proxy: &Mutex<Process>, service: &Service, counts: &Counts) {
    let admin = proxy.lock().await.admin.clone();
    let open = send(&admin, &wire("GET", "/v1/fence/open?limit=1000", &[], None)).await;
    let Some(open) = open.filter(|open| open.status == 200) else {
        return;
    };
    let doubts: Vec<_> = open.json()["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["in_flight"] == false)
        .cloned()
        .collect();
    if doubts.is_empty() || !service.settled().await {
        return;
    }
    for doubt in doubts {
        let body = json!({ "key": doubt["key"], "ids": [doubt["id"]], "reason": "the service is done with it" });
        let headers = [("x-operator", "ada"), ("content-type", "application/json")];
        let request = wire("POST", "/v1/fence/clear", &headers, Some(body.to_string().as_bytes()));
        if let Some(answer) = send(&admin, &request).await.filter(|answer| answer.status == 200) {
            let cleared = answer.json()["cleared"].as_array().unwrap().len();
            counts
                .cleared
                .fetch_add(u64::try_from(cleared).unwrap(), Ordering::SeqCst);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stale_reaches_the_service_and_without_the_proxy_something_does() {
    let seed = Random::from_os().u64();
    println!("seed {seed}");
    let (directory, service) = (tempfile::tempdir().unwrap(), Service::start().await);
    // At the same addresses again after each kill.
    let (listen, admin) = (test_servers::reserved(), test_servers::reserved());
    let options = json!({
        "timeout_ms": 300, "listen": listen.address().to_string(), "admin": admin.address().to_string(),
    });
    let first = Process::start(directory.path(), &service.url(), options.clone()).await;
    let address = first.listen.clone();
    let proxy = Arc::new(Mutex::new(first));
    let (counts, ended) = (Arc::new(Counts::default()), Arc::new(AtomicBool::new(false)));

    let killing = {
        let (proxy, ended, random) = (Arc::clone(&proxy), Arc::clone(&ended), Random::seeded(seed ^ 1));
        let (path, url) = (directory.path().to_owned(), service.url());
        tokio::spawn(async move {
            let mut kills = 0;
            while !ended.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(700) + random.up_to(Duration::from_millis(900))).await;
                let mut running = proxy.lock().await;
                running.kill();
                *running = Process::start(&path, &url, options.clone()).await;
                kills += 1;
            }
            kills
        })
    };
    let operating = {
        let (proxy, ended, service, counts) = (
            Arc::clone(&proxy),
            Arc::clone(&ended),
            service.clone(),
            Arc::clone(&counts),
        );
        tokio::spawn(async move {
            while !ended.load(Ordering::SeqCst) {
                operate(&proxy, &service, &counts).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
    };
    holders(&address, seed, Instant::now() + Duration::from_secs(10), &counts).await;
    ended.store(true, Ordering::SeqCst);
    let kills: u32 = killing.await.unwrap();
    operating.await.unwrap();
    assert!(service.settled().await);
    let (effects, stale) = (service.effects().len(), service.stale());
    println!(
        "behind the proxy: {}, kills {kills}; effects {effects}, stale {stale}",
        counts.shown()
    );

    let bare = Service::start().await;
    let without = Arc::new(Counts::default());
    holders(&bare.address, seed, Instant::now() + Duration::from_secs(2), &without).await;
    assert!(bare.settled().await);
    println!(
        "without it: {}; effects {}, stale {}",
        without.shown(),
        bare.effects().len(),
        bare.stale()
    );

    assert_eq!(stale, 0, "seed {seed}");
    let load = |count: &AtomicU64| count.load(Ordering::SeqCst);
    for (what, count) in [
        ("passed", load(&counts.passed)),
        ("fenced out", load(&counts.fenced_out)),
        ("in doubt", load(&counts.in_doubt)),
        ("without an answer", load(&counts.no_answer)),
        ("gone", load(&counts.gave_up)),
        ("cleared", load(&counts.cleared)),
        ("killed", u64::from(kills)),
    ] {
        assert!(count > 0, "seed {seed}: it was no stress, nothing was {what}");
    }
    assert!(bare.stale() > 0, "seed {seed}: the control shows nothing");
}
