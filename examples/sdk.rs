//! A side effect that must not happen twice, guarded with the SDK.
//!
//! `cargo run -p lock-client --example sdk` against `dlock lock-server --listen 127.0.0.1:7400`.

use lock_client::lock_api::{FencingToken, LockError, LockKey, Owner};
use lock_client::{ClientOptions, LockClient};
use std::error::Error;
use std::time::Duration;

/// What is protected: a mailbox that sends each invoice. It keeps the highest token it has seen and refuses lower ones;
/// the token is a parameter, so there is no way to send without one. In a database this is one predicate,
/// `UPDATE … SET fence = :token WHERE fence < :token`, in the transaction of the write.
#[derive(Default)]
struct Mailbox {
    fence: u64,
}

impl Mailbox {
    fn send(&mut self, invoice: &str, token: FencingToken) -> Result<(), String> {
        if token.get() < self.fence {
            return Err(format!("token {token} is stale, {} was seen", self.fence));
        }
        self.fence = token.get();
        println!("sent {invoice} under token {token}");
        Ok(())
    }
}

#[actix_rt::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let servers = std::env::var("DLOCK_LOCK_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7400".to_owned());
    let servers: Vec<&str> = servers.split(',').collect();
    let owner = Owner::new(format!("invoices-{}", std::process::id()))?;
    // Heartbeats, renewals and failover between the servers happen on the client's own thread from here on.
    let client = LockClient::connect(&servers, ClientOptions::new(owner)).await?;

    let key = LockKey::new("invoices/2026-11")?;
    let held = match client.acquire_within(&key, Duration::from_secs(20)).await {
        Ok(held) => held,
        // Somebody else is at it, and will do it: nothing was executed here.
        Err(LockError::ContentionExceeded { .. }) => return Ok(()),
        // No lock, no side effect: there is no way to go on without one.
        Err(other) => return Err(other.into()),
    };
    held.on_lock_lost(|lost| eprintln!("{lost}: whatever is under way will be refused"));

    let mut mailbox = Mailbox::default();
    for invoice in ["INV-1", "INV-2", "INV-3"] {
        // The check stops wasted work early; the token is what makes a stale write harmless.
        mailbox.send(invoice, held.check_still_held()?)?;
    }
    held.release().await?;

    // The same with the ends tied together: acquired before, given back after.
    let sent = client
        .with_lock(&key, |token, _lock| async move {
            mailbox.send("INV-4", token)?;
            Ok::<_, Box<dyn Error>>(1)
        })
        .await??;
    println!("and {sent} more");
    client.close().await?;
    Ok(())
}
