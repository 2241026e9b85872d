//! How the client is set up for one command: its owner, and times that fit each other.

use super::Args;
use crate::exit::Failure;
use lock_api::Owner;
use lock_client::ClientOptions;
use std::time::Duration;

/// The margin used where none is configured: a quarter of the TTL up to this, because a command needs time to be ended.
const MARGIN_MAX: Duration = Duration::from_secs(3);

fn default_owner() -> String {
    let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.as_deref().map(str::trim).filter(|host| !host.is_empty());
    format!(
        "{}@{}:{}",
        user.as_deref().unwrap_or("dlock"),
        host.unwrap_or("localhost"),
        std::process::id()
    )
}

pub(super) fn options(args: &Args) -> Result<ClientOptions, Failure> {
    let ttl = args.ttl.map(|ttl| humantime::format_duration(ttl).to_string());
    let flags = [("lock.session.ttl", ttl.clone()), ("lock.grant.ttl", ttl)];
    let explicit_margin = args.config.names("lock.client.safety-margin");
    // A short TTL and the default margin do not go together; the margin follows the TTL unless somebody chose it.
    let margin = args
        .ttl
        .filter(|_| !explicit_margin)
        .map(|ttl| (ttl / 4).min(MARGIN_MAX));
    let margin_text = margin.map(|margin| format!("{}ms", margin.as_millis()));
    let mut flags = flags.to_vec();
    if let Some(ttl) = args.ttl.filter(|_| !args.config.names("lock.heartbeat.interval")) {
        let interval = (ttl / 3).max(Duration::from_millis(10));
        flags.push(("lock.heartbeat.interval", Some(format!("{}ms", interval.as_millis()))));
    }
    flags.push(("lock.client.safety-margin", margin_text));
    let settings = args.config.load(&flags)?;
    let owner = args.owner.clone().unwrap_or_else(default_owner);
    Ok(ClientOptions::configured(
        Owner::new(owner)?,
        |name| settings.optional_duration(name),
        u32::try_from(settings.integer("lock.acquire.max-attempts")).unwrap_or(u32::MAX),
    )
    .lock_delay(args.lock_delay.unwrap_or_default()))
}
