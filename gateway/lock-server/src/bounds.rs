//! What a request may ask for (C3.1, C3.3), and how a refusal names it.

use gateway_kit::{ApiError, Caller, Seat, Settings, Shares};
use http_contract::{Code, PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX};
use lock_api::{FencingToken, LockDelay, LockKey, Metadata, RequestId, SessionId, Ttl};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The bounds and defaults of this process.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The shortest TTL of a session or grant (`lock.session.ttl-min`).
    pub ttl_min: Duration,
    /// The longest (`lock.session.ttl-max`).
    pub ttl_max: Duration,
    /// A session's TTL where it asks for none (`lock.session.ttl`).
    pub session_ttl: Duration,
    /// A grant's TTL where it asks for none (`lock.grant.ttl`); its session's where this is unset.
    pub grant_ttl: Option<Duration>,
    /// How often a session is asked for a heartbeat (`lock.heartbeat.interval`), at most a third of its TTL.
    pub heartbeat_interval: Duration,
    /// The longest wait in a queue (`lock.acquire.wait-max`).
    pub wait_max: Duration,
    /// Who waits: for one key `lock.acquire.waiters-max`, for all keys of this replica eight times as many.
    waiters: Waiters,
    /// Who watches.
    watches: Shares,
}

/// How many times `lock.acquire.waiters-max` may wait for all keys together.
const QUEUES: usize = 8;

/// Who waits, for all keys together and for each.
#[derive(Clone, Debug)]
struct Waiters {
    all: Shares,
    /// The most that one caller may have in one key's queue.
    of_key: usize,
    by_key: Arc<Mutex<HashMap<(LockKey, Caller), usize>>>,
}

/// A place among those who wait; given up when it goes.
#[derive(Debug)]
pub(crate) struct Waiting {
    of: Arc<Mutex<HashMap<(LockKey, Caller), usize>>>,
    at: (LockKey, Caller),
    _seat: Seat,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut by_key = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_key.get_mut(&self.at) {
            *count -= 1;
            if *count == 0 {
                by_key.remove(&self.at);
            }
        }
    }
}

impl Bounds {
    /// As configured.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let waiters = usize::try_from(settings.integer("lock.acquire.waiters-max")).unwrap_or(usize::MAX);
        Self {
            ttl_min: settings.duration("lock.session.ttl-min"),
            ttl_max: settings.duration("lock.session.ttl-max"),
            session_ttl: settings.duration("lock.session.ttl"),
            grant_ttl: settings.optional_duration("lock.grant.ttl"),
            heartbeat_interval: settings.duration("lock.heartbeat.interval"),
            wait_max: settings.duration("lock.acquire.wait-max"),
            waiters: Waiters {
                all: Shares::halves(
                    "waiting acquires at this replica",
                    "eight times lock.acquire.waiters-max",
                    waiters.saturating_mul(QUEUES),
                ),
                of_key: waiters.div_ceil(2),
                by_key: Arc::default(),
            },
            watches: Shares::halves(
                "watches at this replica",
                "the bound of a replica",
                lock_core::Config::default().watches_max,
            ),
        }
    }

    /// A place for this caller among those who wait for a key: of the key's queue, and of all, it gets half.
    pub(crate) fn wait_for(&self, caller: Caller, key: &LockKey) -> Result<Waiting, ApiError> {
        let seat = self.waiters.all.take(caller, 1)?;
        let (at, most) = ((key.clone(), caller), self.waiters.of_key);
        let mut by_key = self.waiters.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let count = by_key.entry(at.clone()).or_default();
        if *count >= most {
            let detail = format!(
                "too many waiters of one caller for this key: at most {most} (half of lock.acquire.waiters-max); nothing was done"
            );
            return Err(ApiError::new(Code::Overloaded, detail).retry_after(Duration::from_secs(1)));
        }
        *count += 1;
        drop(by_key);
        Ok(Waiting {
            of: Arc::clone(&self.waiters.by_key),
            at,
            _seat: seat,
        })
    }

    /// A watch of this caller.
    pub(crate) fn watch(&self, caller: Caller) -> Result<Seat, ApiError> {
        Ok(self.watches.take(caller, 1)?)
    }

    /// A TTL, or none where none was asked for.
    pub(crate) fn ttl(&self, ttl_ms: Option<u64>) -> Result<Option<Ttl>, ApiError> {
        let Some(ms) = ttl_ms else { return Ok(None) };
        let (low, high) = (millis(self.ttl_min), millis(self.ttl_max));
        if !(low..=high).contains(&ms) {
            return Err(out_of_bounds("ttl_ms", low, high));
        }
        Ok(Some(configured(Duration::from_millis(ms))))
    }

    pub(crate) fn wait(&self, wait_ms: Option<u64>) -> Result<Duration, ApiError> {
        let (ms, high) = (wait_ms.unwrap_or(0), millis(self.wait_max));
        if ms > high {
            return Err(out_of_bounds("wait_ms", 0, high));
        }
        Ok(Duration::from_millis(ms))
    }

    /// How long a key stays closed after an unclean loss; not at all where nothing was asked for.
    pub(crate) fn lock_delay(lock_delay_ms: Option<u64>) -> Result<LockDelay, ApiError> {
        LockDelay::new(Duration::from_millis(lock_delay_ms.unwrap_or(0)))
            .map_err(|_| out_of_bounds("lock_delay_ms", 0, millis(LockDelay::MAX)))
    }

    pub(crate) fn heartbeat_interval(&self, ttl: Ttl) -> Duration {
        self.heartbeat_interval.min(ttl.get() / 3).max(Duration::from_millis(1))
    }
}

/// Refuses a number, with its bounds as fields: a client learns them from here (case L37).
fn out_of_bounds(field: &str, low: u64, high: u64) -> ApiError {
    ApiError::invalid(field, format!("must be between {low} and {high}"))
        .field("minimum", low)
        .field("maximum", high)
}

/// A TTL within the configuration's bounds, which lie within [`Ttl`]'s.
pub(crate) fn configured(ttl: Duration) -> Ttl {
    Ttl::new(ttl).expect("the configuration admits 200 ms to 24 h")
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Free metadata as it is kept: compact JSON; `null` is none.
pub(crate) fn metadata(value: Option<Value>) -> Result<Option<Metadata>, ApiError> {
    Ok(value.map(|value| Metadata::new(value.to_string())).transpose()?)
}

pub(crate) fn session_id(id: String) -> Result<SessionId, ApiError> {
    Ok(SessionId::new(id)?)
}

pub(crate) fn request_id(id: Option<String>) -> Result<Option<RequestId>, ApiError> {
    Ok(id.map(RequestId::new).transpose()?)
}

/// A token in a body's field.
pub(crate) fn token(field: &str, value: u64) -> Result<FencingToken, ApiError> {
    http_contract::token(value).map_err(|error| ApiError::invalid(field, error.reason))
}

/// The size of a page (C3.1).
pub(crate) fn limit(limit: Option<u32>) -> Result<u32, ApiError> {
    let limit = limit.unwrap_or(PAGE_LIMIT_DEFAULT);
    if (1..=PAGE_LIMIT_MAX).contains(&limit) {
        Ok(limit)
    } else {
        Err(ApiError::invalid(
            "limit",
            format!("must be between 1 and {PAGE_LIMIT_MAX}"),
        ))
    }
}

/// An opaque cursor around text.
pub(crate) fn cursor_of(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// What [`cursor_of`] hid.
pub(crate) fn cursor(cursor: Option<&str>) -> Result<Option<String>, ApiError> {
    let refused = || ApiError::invalid("cursor", "must be one that this list answered");
    let Some(cursor) = cursor else { return Ok(None) };
    if cursor.is_empty()
        || cursor.len() > 1_024
        || !cursor.bytes().all(|byte| byte.is_ascii_hexdigit())
        || cursor.len() % 2 != 0
    {
        return Err(refused());
    }
    let bytes: Option<Vec<u8>> = (0..cursor.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&cursor[at..at + 2], 16).ok())
        .collect();
    let text = bytes
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(refused)?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds() -> Bounds {
        Bounds::of(&Settings::defaults())
    }

    #[test]
    fn case_l14_a_ttl_out_of_bounds_names_field_and_bounds() {
        for bad in [0, 1, 999, 300_001, 1 << 31, 1 << 53, i64::MAX as u64, u64::MAX] {
            let error = bounds().ttl(Some(bad)).unwrap_err();
            assert_eq!(error.problem("").text("field"), Some("ttl_ms"));
            assert!(error.detail().contains("between 1000 and 300000"), "{error}");
        }
        for good in [1_000, 15_000, 300_000] {
            assert_eq!(bounds().ttl(Some(good)).unwrap().unwrap().as_millis(), good);
        }
        assert!(bounds().ttl(None).unwrap().is_none());
        let error = bounds().wait(Some(30_001)).unwrap_err();
        assert_eq!(error.problem("").number("maximum"), Some(30_000));
        assert_eq!(bounds().wait(None).unwrap(), Duration::ZERO);
        for bad in [60_001, u64::MAX] {
            let error = Bounds::lock_delay(Some(bad)).unwrap_err();
            assert_eq!(error.problem("").text("field"), Some("lock_delay_ms"));
            assert!(error.detail().contains("between 0 and 60000"), "{error}");
        }
        assert_eq!(Bounds::lock_delay(Some(60_000)).unwrap().as_millis(), 60_000);
        assert!(Bounds::lock_delay(None).unwrap().is_none());
    }

    #[test]
    fn a_cursor_is_opaque_and_comes_back() {
        for text in ["a", "a/b é \u{1f512}", "01J"] {
            assert_eq!(cursor(Some(&cursor_of(text))).unwrap().as_deref(), Some(text));
        }
        for bad in ["", "a", "zz", "+1", "ff", "é1", " 1"] {
            assert!(cursor(Some(bad)).is_err(), "{bad:?} was taken for a cursor");
        }
    }

    #[test]
    fn a_heartbeat_is_asked_for_at_least_three_times_per_ttl() {
        let of = |ms| bounds().heartbeat_interval(configured(Duration::from_millis(ms)));
        assert_eq!(of(15_000), Duration::from_secs(5));
        assert_eq!(of(300_000), Duration::from_secs(5));
        assert_eq!(of(1_500), Duration::from_millis(500));
    }
}
