//! That the holder of a lock is asked to give it up (L11), as its process knows it.
//!
//! Owns: what was asked, and who is told: each callback at most once.
//! Does not own: the answer. The lock stays held until its holder releases it, or loses it.
//! On failure: a request that no answer of a server showed is not known here; whoever asked waits, and may revoke.

use http_contract::lock::YieldRequested;
use lock_api::{Operator, UnixMillis, YieldAsked};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use tokio::sync::watch;

/// Told of a request to yield.
type OnYield = Box<dyn FnOnce(YieldAsked) + Send>;

/// Of one grant.
pub(crate) struct Yields {
    asked: watch::Sender<Option<YieldAsked>>,
    /// Who is told when it comes; empty once it has come.
    callbacks: Mutex<Vec<OnYield>>,
}

impl Default for Yields {
    fn default() -> Self {
        Self {
            asked: watch::Sender::new(None),
            callbacks: Mutex::default(),
        }
    }
}

impl fmt::Debug for Yields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Yields").field(&*self.asked.borrow()).finish()
    }
}

impl Yields {
    /// What was asked, if anything was.
    pub fn asked(&self) -> Option<YieldAsked> {
        self.asked.borrow().clone()
    }

    /// The holder is asked. False when it was before: the first request is the one that is kept.
    pub fn ask(&self, asked: &YieldAsked) -> bool {
        let told = {
            // Callbacks run outside the lock, so a poisoned list is still whole.
            let mut callbacks = self.callbacks.lock().unwrap_or_else(PoisonError::into_inner);
            let fresh = self.asked.send_if_modified(|was| {
                let fresh = was.is_none();
                if fresh {
                    *was = Some(asked.clone());
                }
                fresh
            });
            if !fresh {
                return false;
            }
            std::mem::take(&mut *callbacks)
        };
        for callback in told {
            tell(callback, asked.clone());
        }
        true
    }

    /// Tells of a request: later, or at once when it has come.
    pub fn on_asked(&self, callback: OnYield) {
        let asked = {
            let mut callbacks = self.callbacks.lock().unwrap_or_else(PoisonError::into_inner);
            match self.asked() {
                Some(asked) => asked,
                None => return callbacks.push(callback),
            }
        };
        tell(callback, asked);
    }

    /// What to wait on.
    pub fn watch(&self) -> watch::Receiver<Option<YieldAsked>> {
        self.asked.subscribe()
    }
}

/// The application's code may run on the client's own thread: its panic ends here.
fn tell(callback: OnYield, asked: YieldAsked) {
    if catch_unwind(AssertUnwindSafe(|| callback(asked))).is_err() {
        tracing::error!(event = "yield_callback_panicked");
    }
}

/// Reads what an answer shows. What cannot be read is as if it were not there: a request that nobody understands ends no
/// lock, and the answer's own news must not be lost with it.
pub(crate) fn read(shown: Option<&YieldRequested>) -> Option<YieldAsked> {
    let shown = shown?;
    let at = time::OffsetDateTime::parse(&shown.at, &time::format_description::well_known::Rfc3339).ok()?;
    Some(YieldAsked {
        by: Operator::new(shown.by.as_str()).ok()?,
        reason: shown.reason.clone(),
        at: UnixMillis(i64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn asked(by: &str) -> YieldAsked {
        YieldAsked {
            by: Operator::new(by).unwrap(),
            reason: "the node is drained".to_owned(),
            at: UnixMillis(1_000),
        }
    }

    #[test]
    fn each_callback_is_told_once_of_the_first_request_be_it_early_or_late() {
        let (yields, told) = (Yields::default(), Arc::new(Mutex::new(Vec::new())));
        let listen = |name: &'static str| {
            let told = told.clone();
            yields.on_asked(Box::new(move |asked| {
                told.lock().unwrap().push((name, asked.by.as_str().to_owned()));
            }));
        };
        listen("early");
        assert_eq!(yields.asked(), None);
        assert!(yields.ask(&asked("ann")));
        assert!(!yields.ask(&asked("bob")), "the first one is kept");
        listen("late");
        let told = told.lock().unwrap().clone();
        assert_eq!(told, [("early", "ann".to_owned()), ("late", "ann".to_owned())]);
        assert_eq!(yields.asked(), Some(asked("ann")));
    }

    #[test]
    fn a_callback_that_panics_keeps_nobody_from_being_told() {
        let (yields, told) = (Yields::default(), Arc::new(AtomicU32::new(0)));
        yields.on_asked(Box::new(|_| panic!("as an application may")));
        let count = told.clone();
        yields.on_asked(Box::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        assert!(yields.ask(&asked("ann")));
        assert_eq!(told.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn what_a_server_shows_is_read_and_what_cannot_be_read_is_not_there() {
        let shown = |by: &str, at: &str| YieldRequested {
            by: by.to_owned(),
            reason: "the node is drained".to_owned(),
            at: at.to_owned(),
        };
        assert_eq!(
            read(Some(&shown("ann", "1970-01-01T00:00:01.000Z"))),
            Some(asked("ann"))
        );
        assert_eq!(read(Some(&shown("", "1970-01-01T00:00:01.000Z"))), None);
        assert_eq!(read(Some(&shown("ann", "yesterday"))), None);
        assert_eq!(read(None), None);
    }
}
