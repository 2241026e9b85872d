//! Typed calls to each component over awc.
//!
//! Owns: how a call leaves the process (headers, time-outs, trace context) and, above all, what its failure may mean:
//! [`CallError::NotSent`] did nothing, [`CallError::Ambiguous`] may have done anything.
//! Does not own: retries. Retry is a property of the request and is decided by whoever makes it; a submit has none
//! (FR-20). Redirects are never followed: a 307 would post the body again.
//! An answer that was cut off is none (`whole`), whoever answers.
//! On failure: every error is one of [`CallError`]'s four kinds; nothing is swallowed.
//!
//! An [`awc::Client`] belongs to one thread. Whoever runs on a thread makes its own with [`client`], or injects one
//! (over in-memory streams in a simulation).

mod call;
mod head;
mod lock_server;
mod payment_resource;
mod rail_proxy;
mod rail_stub;
mod recorded;
mod sse;
mod whole;

pub use call::{Answer, CallError, Caller, ClientOptions, RefusalFilter, base_url, client, path_segment};
pub use lock_server::LockServerApi;
pub use payment_resource::{ExportFormat, PaymentApi, PayoutFilter};
pub use rail_proxy::RailProxyApi;
pub use rail_stub::RailStubApi;
pub use sse::{SseEvent, SseReader};
pub use whole::{Whole, tcp, whole};
