//! The SDK: one session, its heartbeats, and locks that know when they are lost (C2.6).
//!
//! ```text
//! application ─acquire→ LockClient ─message→ client actor ─L1..L7→ lock server     HeldLock: check before each side effect
//!     any thread                              own thread, or here                  lost() / on_lock_lost: told once
//! ```
//!
//! Owns: the local deadline of every lock, the heartbeat loop, renewal, `check_still_held`, `on_lock_lost`, retries of
//! acquire, failover between servers.
//! Does not own: safety. It is a liveness device: it stops wasted work early. The fencing token it hands out is what
//! makes a stale holder harmless, at the resource.
//! On failure: heartbeats and renewals that are not answered let the deadline lapse; the loss is told locally before the
//! server can expire the lease. On doubt there is no grant (FR-27).
//!
//! Deliberately absent: local exclusion between tasks (the server refuses the second one), a token kept anywhere but in
//! the guard (C2.7), a way to go on without a grant.

mod acquire;
mod backoff;
mod client;
mod core;
mod deadline;
mod election;
mod heartbeat;
mod held_lock;
#[cfg(feature = "http")]
mod http;
mod keep;
mod options;
mod transport;

pub use lock_api;

pub use client::{LockClient, LockMetrics, LockRequest, Placement};
pub use election::{Leader, LeaderElection};
pub use held_lock::{HeldLock, LockView};
#[cfg(feature = "http")]
pub use http::{over, over_http, over_http_in_spans};
pub use options::{ClientOptions, LeaseSeen, LeaseWatch};
pub use transport::{Call, CallFailure, CallFuture, Connect, Servers, Transport};
