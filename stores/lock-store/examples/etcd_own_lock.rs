//! What etcd's own lock API does, for comparison: clients that lock and unlock a key each, under a session (lease) of
//! their own, as fast as they can.
//!
//! ```text
//! cargo run --release --package lock-store --features etcd --example etcd_own_lock -- http://127.0.0.1:2379 64 6
//! ```
//!
//! Prints one JSON object: clients, seconds, pairs of lock and unlock, pairs per second.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures on the system's clock")]

use etcd_client::{Client, Error, LockOptions};
use std::time::{Duration, Instant};

async fn lock_and_unlock(mut client: Client, n: usize, until: Instant) -> Result<u64, Error> {
    let lease = client.lease_grant(30, None).await?.id();
    let mut pairs = 0;
    let mut kept = Instant::now();
    while Instant::now() < until {
        if kept.elapsed() > Duration::from_secs(10) {
            kept = Instant::now();
            client.lease_keep_alive(lease).await?;
        }
        let options = LockOptions::new().with_lease(lease);
        let held = client.lock(format!("own-lock/{n}"), Some(options)).await?;
        client.unlock(held.key()).await?;
        pairs += 1;
    }
    client.lease_revoke(lease).await?;
    Ok(pairs)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: etcd_own_lock ENDPOINT CLIENTS SECONDS";
    let endpoint = args.next().ok_or(usage)?;
    let clients: usize = args.next().ok_or(usage)?.parse()?;
    let seconds: u64 = args.next().ok_or(usage)?.parse()?;
    let client = Client::connect([endpoint], None).await?;
    let began = Instant::now();
    let until = began + Duration::from_secs(seconds);
    let runs = (0..clients).map(|n| lock_and_unlock(client.clone(), n, until));
    let pairs: u64 = futures_util::future::try_join_all(runs).await?.into_iter().sum();
    let took = began.elapsed().as_secs_f64();
    println!(
        "{}",
        serde_json::json!({"clients": clients, "seconds": took, "pairs": pairs, "pairs_per_second": pairs as f64 / took})
    );
    Ok(())
}
