//! Several lock servers as processes on one store (NFR-06), on PostgreSQL and on etcd.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use common::Process;
use futures_util::future::join_all;
use host_kit::Reserved;
use lock_client::lock_api::{LockKey, Owner};
use lock_client::{ClientOptions, LockClient};
use nix::sys::signal::Signal;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

/// A store of the test's own on a server that is shared.
struct Store {
    url: String,
    setting: String,
}

impl Store {
    async fn pg() -> Self {
        Self {
            url: test_servers::postgres_or_skip().await,
            setting: format!("lock.store.schema={}", test_servers::fresh_schema()),
        }
    }

    #[cfg(feature = "etcd")]
    async fn etcd() -> Self {
        Self {
            url: format!("etcd://{}", test_servers::etcd_or_skip().await),
            setting: format!("lock.store.prefix={}", test_servers::fresh_schema()),
        }
    }

    fn server(&self, kept: &Reserved) -> Process {
        Process::start(&[
            "lock-server",
            "--listen",
            &kept.address().to_string(),
            "--store",
            &self.url,
            "--set",
            &self.setting,
        ])
    }
}

/// Lock servers on one store, each at an address that stays its own.
struct Replicas {
    store: Store,
    processes: RefCell<Vec<Process>>,
    addresses: Vec<Reserved>,
}

impl Replicas {
    fn start(store: Store, count: usize) -> Self {
        let addresses: Vec<_> = (0..count).map(|_| test_servers::reserved()).collect();
        let processes = addresses.iter().map(|kept| store.server(kept)).collect();
        Self {
            store,
            processes: RefCell::new(processes),
            addresses,
        }
    }

    fn urls(&self) -> Vec<String> {
        self.addresses
            .iter()
            .map(|kept| format!("http://{}", kept.address()))
            .collect()
    }

    fn kill(&self, n: usize) {
        self.processes.borrow()[n].signal(Signal::SIGKILL);
    }

    fn start_again(&self, n: usize) {
        let process = self.store.server(&self.addresses[n]);
        self.processes.borrow_mut()[n] = process;
    }
}

/// NFR-06: clients that know all replicas use any of them; one is killed under load. What is held stays held, nobody is
/// granted what another holds, tokens rise, and no caller sees an error.
async fn one_of_several_is_killed(store: Store, count: usize) {
    let replicas = Replicas::start(store, count);
    let urls = replicas.urls();
    let client = async |name: &str| {
        let options = ClientOptions::new(Owner::new(name).unwrap()).grant_ttl(Duration::from_secs(30));
        LockClient::connect(&urls, options).await.unwrap()
    };
    let keeper = client("keeper").await;
    let kept = keeper.acquire(&LockKey::new("kept").unwrap()).await.unwrap();
    let (holders, grants, over) = (RefCell::new(BTreeMap::new()), Cell::new(0_u32), Cell::new(false));
    let highest = RefCell::new(BTreeMap::new());
    let work = join_all((0..4_usize).map(|n| {
        let (holders, highest, grants, over) = (&holders, &highest, &grants, &over);
        async move {
            let me = client(&format!("worker {n}")).await;
            let name = format!("hot/{}", n % 2);
            let key = LockKey::new(name.clone()).unwrap();
            while !over.get() {
                let held = me.acquire_within(&key, LONG).await.unwrap();
                let token = held.check_still_held().unwrap();
                assert_eq!(holders.borrow_mut().insert(name.clone(), n), None, "{name} twice");
                let last = highest.borrow_mut().insert(name.clone(), token);
                assert!(last < Some(token), "{token:?} after {last:?}");
                tokio::time::sleep(Duration::from_millis(2)).await;
                held.check_still_held().unwrap();
                holders.borrow_mut().remove(&name);
                held.release().await.unwrap();
                grants.set(grants.get() + 1);
            }
            me.close().await.unwrap();
        }
    }));
    let progress = async |more: u32| {
        let wanted = grants.get() + more;
        while grants.get() < wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let faults = async {
        for victim in 0..count.min(2) {
            progress(20).await;
            replicas.kill(victim);
            progress(20).await;
            replicas.start_again(victim);
        }
        progress(20).await;
        over.set(true);
    };
    tokio::time::timeout(LONG * 2, async { tokio::join!(work, faults) })
        .await
        .expect("the workers go on");
    let token = kept.check_still_held().unwrap();
    assert_eq!(token, kept.token());
    kept.release().await.unwrap();
    keeper.close().await.unwrap();
}

#[test]
fn one_of_two_replicas_on_postgresql_is_killed_under_load() {
    block_on(async { one_of_several_is_killed(Store::pg().await, 2).await });
}

#[test]
fn one_of_three_replicas_on_postgresql_is_killed_under_load() {
    block_on(async { one_of_several_is_killed(Store::pg().await, 3).await });
}

#[test]
#[cfg(feature = "etcd")]
fn one_of_three_replicas_on_etcd_is_killed_under_load() {
    block_on(async { one_of_several_is_killed(Store::etcd().await, 3).await });
}
