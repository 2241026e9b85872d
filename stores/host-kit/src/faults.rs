//! Fault points: places before and after each durable step and each send where a lab build can be told to die, stop,
//! stall or panic (`debug.fault-points`).

/// Marks a fault point: `fault_point!(host.faults, "rail_proxy.after_intent")`. The name is `<component>.<where>`.
/// Nothing at all happens in a build without the feature `lab`.
#[macro_export]
macro_rules! fault_point {
    ($faults:expr, $name:literal) => {
        $faults.hit($name)
    };
}

/// The armed fault points of a process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    #[cfg(feature = "lab")]
    armed: Option<std::sync::Arc<lab::Armed>>,
}

impl Faults {
    /// Nothing armed.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Reaches a point. What is armed there happens here: the process is killed or stopped as if from outside, the
    /// thread stalls, or the caller panics. Use [`crate::fault_point!`].
    #[inline]
    pub fn hit(&self, name: &'static str) {
        #[cfg(feature = "lab")]
        if let Some(armed) = &self.armed {
            armed.hit(name);
        }
        let _ = name;
    }
}

#[cfg(feature = "lab")]
pub use lab::FaultSyntax;

#[cfg(feature = "lab")]
mod lab {
    use super::Faults;
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::Duration;

    /// Why a list of fault points could not be read.
    #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
    #[error(
        "fault point {entry:?} is not NAME=kill|stop|panic|stall:MILLISECONDS, optionally followed by @N (the N-th time) or @* (every time)"
    )]
    pub struct FaultSyntax {
        /// The entry that could not be read.
        pub entry: String,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Action {
        Kill,
        Stop,
        Panic,
        Stall(Duration),
    }

    #[derive(Debug)]
    struct Arm {
        action: Action,
        /// Which reaching fires, from 1; none for every one.
        nth: Option<u64>,
    }

    #[derive(Debug, Default)]
    pub(super) struct Armed {
        arms: BTreeMap<String, Arm>,
        reached: Mutex<BTreeMap<&'static str, u64>>,
    }

    impl Faults {
        /// Arms points from text: `NAME=ACTION[@N]`, separated by commas. Actions: `kill` (SIGKILL to the own process),
        /// `stop` (SIGSTOP, until somebody sends SIGCONT), `panic`, `stall:MILLISECONDS`. `@N` fires at the N-th
        /// reaching (default 1), `@*` at each.
        ///
        /// # Errors
        /// [`FaultSyntax`] with the entry that could not be read.
        pub fn parse(text: &str) -> Result<Self, FaultSyntax> {
            let mut armed = Armed::default();
            for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
                let (name, arm) = arm(entry).ok_or_else(|| FaultSyntax {
                    entry: entry.to_owned(),
                })?;
                armed.arms.insert(name, arm);
            }
            Ok(Self {
                armed: Some(Arc::new(armed)),
            })
        }

        /// How often each point was reached, where arming began at the start of the process.
        #[must_use]
        pub fn reached(&self) -> BTreeMap<&'static str, u64> {
            self.armed
                .as_ref()
                .map(|a| a.reached.lock().unwrap_or_else(PoisonError::into_inner).clone())
                .unwrap_or_default()
        }
    }

    fn arm(entry: &str) -> Option<(String, Arm)> {
        let (name, rest) = entry.split_once('=')?;
        let (action, nth) = match rest.split_once('@') {
            None => (rest, Some(1)),
            Some((action, "*")) => (action, None),
            Some((action, n)) => (action, Some(n.parse().ok().filter(|n| *n > 0)?)),
        };
        let action = match action.split_once(':') {
            None if action == "kill" => Action::Kill,
            None if action == "stop" => Action::Stop,
            None if action == "panic" => Action::Panic,
            Some(("stall", ms)) => Action::Stall(Duration::from_millis(ms.parse().ok()?)),
            _ => return None,
        };
        (!name.is_empty()).then(|| (name.to_owned(), Arm { action, nth }))
    }

    impl Armed {
        pub(super) fn hit(&self, name: &'static str) {
            let count = {
                let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
                let count = reached.entry(name).or_insert(0);
                *count += 1;
                *count
            };
            let Some(arm) = self.arms.get(name) else { return };
            if arm.nth.is_some_and(|n| n != count) {
                return;
            }
            tracing::warn!(event = "fault_point_reached", point = name, action = ?arm.action, count);
            match arm.action {
                Action::Kill => signal_self(nix::sys::signal::Signal::SIGKILL),
                Action::Stop => signal_self(nix::sys::signal::Signal::SIGSTOP),
                #[allow(clippy::panic, reason = "the lab asked for it")]
                Action::Panic => panic!("fault point {name}"),
                #[allow(clippy::disallowed_methods, reason = "the lab asked for a stalled thread")]
                Action::Stall(duration) => std::thread::sleep(duration),
            }
        }
    }

    /// The signal goes to this very thread: one to the process may be taken by another, while this one runs on past the
    /// point (seen: stopped in the middle of the next commit, with the file locked for everybody else).
    fn signal_self(signal: nix::sys::signal::Signal) {
        if let Err(error) = nix::sys::signal::raise(signal) {
            tracing::error!(event = "fault_point_failed", %error);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn what_is_armed_fires_at_its_turn() {
            let faults = Faults::parse("a.b=panic@2, c.d=stall:1@*").unwrap();
            faults.hit("a.b");
            assert!(std::panic::catch_unwind(|| faults.hit("a.b")).is_err());
            faults.hit("a.b");
            faults.hit("c.d");
            assert_eq!(faults.reached(), BTreeMap::from([("a.b", 3), ("c.d", 1)]));
        }

        #[test]
        fn what_cannot_be_read_is_named() {
            for bad in [
                "x",
                "x=",
                "=kill",
                "x=boom",
                "x=stall",
                "x=stall:y",
                "x=kill@0",
                "x=kill@z",
            ] {
                assert_eq!(Faults::parse(bad).unwrap_err().entry, bad);
            }
        }
    }
}
