//! What a client can be told.

use lock_api::{FencingToken, LockDelay, LockError, LockKey, Owner, Ttl};
use serde_json::Value;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What one answer of a server promised of a lease. Instants are boot time, which all processes of a machine share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseSeen {
    /// What is locked.
    pub key: LockKey,
    /// Under which token.
    pub token: FencingToken,
    /// When the request was sent that was answered now: an acquire, a renewal or a heartbeat.
    pub sent: Duration,
    /// The server may not end the lease before this moment, unless it is released, revoked or its session closed. The
    /// client's safety margin is not taken off.
    pub until: Duration,
}

/// Told of every answer that began or extended a lease. Runs on the client's own thread: it must be quick and must not
/// block.
#[derive(Clone)]
pub struct LeaseWatch(Arc<dyn Fn(&LeaseSeen) + Send + Sync>);

impl LeaseWatch {
    /// Calls this.
    #[must_use]
    pub fn new(told: impl Fn(&LeaseSeen) + Send + Sync + 'static) -> Self {
        Self(Arc::new(told))
    }

    pub(crate) fn tell(&self, seen: &LeaseSeen) {
        (self.0)(seen);
    }
}

impl fmt::Debug for LeaseWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseWatch")
    }
}

/// The settings of a [`crate::LockClient`]. Each field says which name of the configuration (C5.2) it carries and begins
/// with that name's default.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// The name this session gives for itself, shown to whoever is refused.
    pub owner: Owner,
    /// Free metadata of the session, at most 4,096 bytes as compact JSON.
    pub metadata: Option<Value>,
    /// `lock.session.ttl`: how long the session lives without a heartbeat.
    pub session_ttl: Duration,
    /// `lock.grant.ttl`: the lease of a grant; none leaves it to the server.
    pub grant_ttl: Option<Duration>,
    /// `lock.client.safety-margin`: how long before the server can expire a lease the client gives it up (FR-11).
    /// Must be below half of each TTL.
    pub safety_margin: Duration,
    /// `lock.acquire.max-attempts` (FR-28).
    pub attempts_max: u32,
    /// `lock.acquire.backoff-min`: the bound of the first wait (FR-28).
    pub backoff_min: Duration,
    /// `lock.acquire.backoff-max`: the bound to which it doubles (FR-28).
    pub backoff_max: Duration,
    /// `lock.client.call-timeout`: how long one call may take, the server-side wait not counted.
    pub call_timeout: Duration,
    /// How long a key stays closed to everybody when a lock on it is lost uncleanly: not renewed in time, or revoked. At
    /// most 60 s; none at first. It is for resources that check no token. No setting.
    pub lock_delay: Duration,
    /// Who is told of every answer that began or extended a lease: histories are written from it. No setting.
    pub lease_watch: Option<LeaseWatch>,
}

impl ClientOptions {
    /// The defaults of C5.2 under this name.
    #[must_use]
    pub fn new(owner: Owner) -> Self {
        Self {
            owner,
            metadata: None,
            session_ttl: Duration::from_secs(15),
            grant_ttl: None,
            safety_margin: Duration::from_secs(1),
            attempts_max: 5,
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(1),
            call_timeout: Duration::from_secs(2),
            lock_delay: Duration::ZERO,
            lease_watch: None,
        }
    }

    /// The settings of a configuration (C5.2): `duration` answers a name's value, or none where the default is to stay.
    #[must_use]
    pub fn configured(owner: Owner, duration: impl Fn(&str) -> Option<Duration>, attempts_max: u32) -> Self {
        let mut options = Self::new(owner);
        for (name, field) in [
            ("lock.session.ttl", &mut options.session_ttl),
            ("lock.client.safety-margin", &mut options.safety_margin),
            ("lock.client.call-timeout", &mut options.call_timeout),
            ("lock.acquire.backoff-min", &mut options.backoff_min),
            ("lock.acquire.backoff-max", &mut options.backoff_max),
        ] {
            *field = duration(name).unwrap_or(*field);
        }
        options.grant_ttl = duration("lock.grant.ttl");
        options.attempts_max = attempts_max;
        options
    }

    /// With another `lock.session.ttl`.
    #[must_use]
    pub const fn session_ttl(mut self, ttl: Duration) -> Self {
        self.session_ttl = ttl;
        self
    }

    /// With another `lock.grant.ttl`.
    #[must_use]
    pub const fn grant_ttl(mut self, ttl: Duration) -> Self {
        self.grant_ttl = Some(ttl);
        self
    }

    /// With another `lock.client.safety-margin`.
    #[must_use]
    pub const fn safety_margin(mut self, margin: Duration) -> Self {
        self.safety_margin = margin;
        self
    }

    /// With another `lock.acquire.max-attempts`.
    #[must_use]
    pub const fn attempts_max(mut self, attempts: u32) -> Self {
        self.attempts_max = attempts;
        self
    }

    /// With another `lock.client.call-timeout`.
    #[must_use]
    pub const fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// With a delay after unclean losses.
    #[must_use]
    pub const fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock_delay = delay;
        self
    }

    /// With somebody who is told of every answer that began or extended a lease.
    #[must_use]
    pub fn lease_watch(mut self, watch: LeaseWatch) -> Self {
        self.lease_watch = Some(watch);
        self
    }

    /// With metadata of the session.
    #[must_use]
    pub fn metadata(mut self, metadata: Value) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// Refuses what cannot work (case L13).
    pub(crate) fn check(&self) -> Result<(), LockError> {
        check_ttl("lock.session.ttl", self.session_ttl, self.safety_margin)?;
        if let Some(ttl) = self.grant_ttl {
            check_ttl("lock.grant.ttl", ttl, self.safety_margin)?;
        }
        if self.attempts_max == 0 {
            return Err(invalid("lock.acquire.max-attempts must be at least 1"));
        }
        if self.call_timeout.is_zero() {
            return Err(invalid("lock.client.call-timeout must be above 0"));
        }
        check_lock_delay(self.lock_delay)?;
        Ok(())
    }
}

pub(crate) fn invalid(detail: impl Into<String>) -> LockError {
    LockError::Invalid { detail: detail.into() }
}

/// A TTL is usable when it is one at all and the safety margin is below half of it: otherwise the client would give the
/// lease up before, or just when, it could first renew it.
pub(crate) fn check_ttl(name: &str, ttl: Duration, margin: Duration) -> Result<(), LockError> {
    Ttl::new(ttl).map_err(|error| invalid(format!("{name}: {error}")))?;
    if margin >= ttl / 2 {
        return Err(invalid(format!(
            "{name} of {ttl:?} is too short for lock.client.safety-margin of {margin:?}, which must be below half of it"
        )));
    }
    Ok(())
}

/// A delay that the servers take.
pub(crate) fn check_lock_delay(delay: Duration) -> Result<LockDelay, LockError> {
    LockDelay::new(delay).map_err(|error| invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> ClientOptions {
        ClientOptions::new(Owner::new("test").unwrap())
    }

    #[test]
    fn case_l13_a_ttl_that_cannot_work_is_an_error_and_no_panic() {
        assert_eq!(options().check(), Ok(()));
        let day_and_more = Duration::from_secs(24 * 3600 + 1);
        for ms in [0, 1, 999, 1_000, 2_000] {
            let ttl = Duration::from_millis(ms);
            assert!(
                matches!(options().session_ttl(ttl).check(), Err(LockError::Invalid { .. })),
                "session {ms} ms"
            );
            assert!(
                matches!(options().grant_ttl(ttl).check(), Err(LockError::Invalid { .. })),
                "grant {ms} ms"
            );
        }
        for ttl in [day_and_more, Duration::MAX] {
            assert!(matches!(
                options().session_ttl(ttl).check(),
                Err(LockError::Invalid { .. })
            ));
        }
        assert!(options().grant_ttl(Duration::from_millis(2_001)).check().is_ok());
        assert!(options().safety_margin(Duration::MAX).check().is_err());
        assert!(options().attempts_max(0).check().is_err());
        assert!(options().lock_delay(Duration::from_millis(60_001)).check().is_err());
        assert!(options().lock_delay(Duration::from_secs(60)).check().is_ok());
    }
}
