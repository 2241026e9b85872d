//! Every fault point of every component but the executor (that is UC-04's list), with what takes the component there.
//!
//! Owns: the list. Tests compare it with the sources, so that no step can be added without its crash.
//! Does not own: how a component is driven to a point (`drive.rs`). On failure: plain data cannot fail.

use super::drive::Drive;
use crate::stack::{LOCK_SERVER, PAYMENT_RESOURCE, RAIL_PROXY, RAIL_STUB};

/// What a component is told to do at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// SIGKILL.
    Kill,
    /// SIGSTOP, until somebody sends SIGCONT.
    Stop,
}

impl Action {
    /// As `debug.fault-points` names it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
        }
    }
}

/// A component that is killed or stopped at one of its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// The fault point.
    pub point: &'static str,
    /// At which reaching, from 1.
    pub nth: u32,
    /// What happens there.
    pub action: Action,
    /// What takes the component there.
    pub drive: Drive,
    /// Whether the payout lawfully comes to FAILED: the rail never executed it, or declined it.
    pub fails: bool,
    /// Settings of that start of the component.
    pub settings: &'static [(&'static str, &'static str)],
}

impl Crash {
    /// Its node in the stack.
    #[must_use]
    pub fn node(&self) -> &'static str {
        match self.point.split('.').next() {
            Some("lock_server") => LOCK_SERVER,
            Some("payment_resource") => PAYMENT_RESOURCE,
            Some("rail_proxy") => RAIL_PROXY,
            _ => RAIL_STUB,
        }
    }

    const fn failing(mut self) -> Self {
        self.fails = true;
        self
    }

    const fn nth(mut self, nth: u32) -> Self {
        self.nth = nth;
        self
    }

    const fn with(mut self, settings: &'static [(&'static str, &'static str)]) -> Self {
        self.settings = settings;
        self
    }
}

const fn kill(point: &'static str, drive: Drive) -> Crash {
    Crash {
        point,
        nth: 1,
        action: Action::Kill,
        drive,
        fails: false,
        settings: &[],
    }
}

const fn stop(point: &'static str, drive: Drive) -> Crash {
    Crash {
        action: Action::Stop,
        ..kill(point, drive)
    }
}

/// Chores are done often enough to be met.
const CHORES: &[(&str, &str)] = &[
    ("lock.audit.seal-interval", "100ms"),
    ("lock.tombstone.retention", "1s"),
];

/// Every fault point, killed there.
pub const KILLS: &[Crash] = &[
    kill("lock_server.before_open", Drive::Lock),
    kill("lock_server.after_open", Drive::Lock),
    kill("lock_server.before_heartbeat", Drive::Lock),
    kill("lock_server.after_heartbeat", Drive::Lock),
    kill("lock_server.before_grant", Drive::Lock),
    kill("lock_server.after_grant", Drive::Lock),
    kill("lock_server.before_renew", Drive::Lock),
    kill("lock_server.after_renew", Drive::Lock),
    kill("lock_server.before_inspect", Drive::Lock),
    kill("lock_server.after_inspect", Drive::Lock),
    kill("lock_server.before_release", Drive::Lock),
    kill("lock_server.after_release", Drive::Lock),
    kill("lock_server.before_close", Drive::Lock),
    kill("lock_server.after_close", Drive::Lock),
    kill("lock_server.before_revoke", Drive::Revoke),
    kill("lock_server.after_revoke", Drive::Revoke),
    kill("lock_server.before_yield", Drive::Yield),
    kill("lock_server.after_yield", Drive::Yield),
    // The first sweep is the start's own, the second comes before anything can be due; the third ends what the drive lets
    // expire.
    kill("lock_server.before_expire", Drive::Expire).nth(3),
    kill("lock_server.after_expire", Drive::Expire).nth(3),
    kill("lock_server.before_floor", Drive::Floor),
    kill("lock_server.after_floor", Drive::Floor),
    kill("lock_server.before_dismiss", Drive::Dismiss),
    kill("lock_server.after_dismiss", Drive::Dismiss),
    kill("lock_server.before_purge", Drive::Pay).with(CHORES),
    kill("lock_server.after_purge", Drive::Pay).with(CHORES),
    kill("lock_server.before_seal", Drive::Pay).with(CHORES),
    kill("lock_server.after_seal", Drive::Pay).with(CHORES),
    kill("lock_server.before_drop", Drive::Pay).with(CHORES),
    kill("lock_server.after_drop", Drive::Pay).with(CHORES),
    kill("payment_resource.before_account_commit", Drive::Pay),
    kill("payment_resource.after_account_commit", Drive::Pay),
    kill("payment_resource.before_credit_commit", Drive::Credit),
    kill("payment_resource.after_credit_commit", Drive::Credit),
    kill("payment_resource.before_payout_commit", Drive::Pay),
    kill("payment_resource.after_payout_commit", Drive::Pay),
    kill("payment_resource.before_claim_commit", Drive::Pay),
    kill("payment_resource.after_claim_commit", Drive::Pay),
    kill("payment_resource.before_post_commit", Drive::Pay),
    kill("payment_resource.after_post_commit", Drive::Pay),
    kill("payment_resource.before_fail_commit", Drive::Decline).failing(),
    kill("payment_resource.after_fail_commit", Drive::Decline).failing(),
    kill("payment_resource.before_ambiguous_commit", Drive::TimeOut),
    kill("payment_resource.after_ambiguous_commit", Drive::TimeOut),
    kill("payment_resource.before_resolve_commit", Drive::TimeOut),
    kill("payment_resource.after_resolve_commit", Drive::TimeOut),
    kill("payment_resource.before_escalate_commit", Drive::Escalate),
    kill("payment_resource.after_escalate_commit", Drive::Escalate),
    kill("payment_resource.before_cancel_commit", Drive::Cancel).failing(),
    kill("payment_resource.after_cancel_commit", Drive::Cancel).failing(),
    kill("payment_resource.before_fence_commit", Drive::Fence),
    kill("payment_resource.after_fence_commit", Drive::Fence),
    kill("rail_proxy.before_intent", Drive::Pay),
    // An intent that was never forwarded: the rail is asked, and its silence is conclusive.
    kill("rail_proxy.after_intent", Drive::Pay).failing(),
    kill("rail_proxy.before_forwarded_at", Drive::Pay).failing(),
    // Forwarded as far as anybody can know, and without an outcome: silence concludes nothing, a human asks the rail.
    kill("rail_proxy.after_forwarded_at", Drive::Human).failing(),
    kill("rail_proxy.before_send", Drive::Human).failing(),
    kill("rail_proxy.after_send", Drive::Pay),
    kill("rail_proxy.before_outcome", Drive::Pay),
    kill("rail_proxy.after_outcome", Drive::Pay),
    kill("rail_proxy.before_lookup", Drive::TimeOut),
    kill("rail_proxy.after_lookup", Drive::TimeOut),
    kill("rail_proxy.before_lookup_record", Drive::TimeOut),
    kill("rail_proxy.after_lookup_record", Drive::TimeOut),
    kill("rail_proxy.before_ack", Drive::Ack),
    kill("rail_proxy.after_ack", Drive::Ack),
    kill("rail_proxy.before_fence", Drive::Fence),
    kill("rail_proxy.after_fence", Drive::Fence),
    kill("rail_proxy.before_account_fence", Drive::Fence),
    kill("rail_proxy.after_account_fence", Drive::Fence),
    kill("rail_stub.before_read", Drive::Pay).failing(),
    kill("rail_stub.after_read", Drive::Pay).failing(),
    kill("rail_stub.before_execute", Drive::Pay).failing(),
    kill("rail_stub.after_execute", Drive::Pay),
    kill("rail_stub.before_decline", Drive::Decline).failing(),
    kill("rail_stub.after_decline", Drive::Decline).failing(),
    kill("rail_stub.before_answer", Drive::Pay),
    kill("rail_stub.after_answer", Drive::Pay),
    kill("rail_stub.before_ack", Drive::Ack),
    kill("rail_stub.after_ack", Drive::Ack),
];

/// A few points of each component at which it is stopped for longer than a lease and goes on: around the step that moves
/// something.
pub const STOPS: &[Crash] = &[
    stop("lock_server.after_grant", Drive::Pay),
    stop("lock_server.before_release", Drive::Pay),
    stop("payment_resource.before_claim_commit", Drive::Pay),
    stop("payment_resource.after_post_commit", Drive::Pay),
    stop("rail_proxy.before_send", Drive::Pay),
    stop("rail_proxy.before_outcome", Drive::Pay),
    stop("rail_stub.after_execute", Drive::Pay),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                into.push(path);
            }
        }
    }

    /// The points that the sources below these directories name.
    fn found(component: &str, dirs: &[&str]) -> BTreeSet<String> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut files = Vec::new();
        for dir in dirs {
            sources(&workspace.join(dir), &mut files);
        }
        let mut points = BTreeSet::new();
        for file in files {
            let text = std::fs::read_to_string(file).unwrap();
            let quoted = format!("\"{component}.");
            let names = text.split(quoted.as_str()).skip(1);
            points.extend(
                names
                    .filter_map(|rest| rest.split_once('"'))
                    .map(|(name, _)| format!("{component}.{name}"))
                    .filter(|name| name.contains(".before_") || name.contains(".after_")),
            );
        }
        points
    }

    fn killed(component: &str) -> BTreeSet<String> {
        let points = KILLS.iter().map(|crash| crash.point.to_owned());
        points
            .filter(|point| point.starts_with(&format!("{component}.")))
            .collect()
    }

    #[test]
    fn no_step_of_the_lock_server_is_without_its_crash() {
        let source = found(
            "lock_server",
            &[
                "actors/lock-core/src",
                "stores/lock-store/src",
                "gateway/lock-server/src",
            ],
        );
        assert_eq!(source, killed("lock_server"));
    }

    #[test]
    fn no_step_of_the_payment_resource_is_without_its_crash_on_either_store() {
        for store in ["sqlite", "pg"] {
            let source = found(
                "payment_resource",
                &[
                    &format!("stores/payment-store/src/{store}"),
                    "actors/payment-core/src",
                    "gateway/payment-resource/src",
                ],
            );
            assert_eq!(source, killed("payment_resource"), "{store}");
        }
    }

    #[test]
    fn no_step_of_the_rail_proxy_is_without_its_crash() {
        let source = found(
            "rail_proxy",
            &[
                "actors/rail-core/src",
                "stores/rail-store/src",
                "gateway/rail-proxy/src",
            ],
        );
        assert_eq!(source, killed("rail_proxy"));
    }

    #[test]
    fn no_step_of_the_rail_is_without_its_crash() {
        assert_eq!(found("rail_stub", &["gateway/rail-stub/src"]), killed("rail_stub"));
    }

    #[test]
    fn each_point_is_killed_once_and_has_the_other_side_of_its_step() {
        let points: BTreeSet<_> = KILLS.iter().map(|crash| crash.point).collect();
        assert_eq!(points.len(), KILLS.len());
        for crash in STOPS {
            assert!(points.contains(crash.point), "{}", crash.point);
        }
        // What is before a step has what is after it; a claim to forward and a send are the two sides of one another.
        for point in &points {
            let other = match point.split_once(".before_") {
                Some((component, step)) => format!("{component}.after_{step}"),
                None => point.replace(".after_", ".before_"),
            };
            assert!(points.contains(other.as_str()), "{point} without {other}");
        }
    }
}
