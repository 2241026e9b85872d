//! The TCP fault proxy: a wire lies on each link of a stack and misbehaves on demand.
//!
//! ```text
//! caller ──▶ listener on 127.0.0.1 ── Mode: line · requests · answers · messages ──▶ target
//!               (a Wire)                     │ Counters: what was done to whom
//!                                            └ a second connection to the target: copies, late deliveries
//! ```
//!
//! Owns: listening in a target's place, forwarding bytes unchanged, and each way of not doing so: at the level of the
//! line (refused, cut, reset, half-open), of each direction (swallowed, ended, late, slow) and, on links that speak
//! HTTP/1.1, of messages (a request sent twice or delivered after its caller has gone, an answer thrown away).
//! Does not own: which wire is hurt when (`chaos::link`), nor what the components make of it.
//! On failure: a target that refuses is refused to the caller too; what cannot be read as HTTP is forwarded as bytes.
//!
//! It runs on the harness's own thread, inside a `LocalSet` (an actix system is one). Nothing blocks, and what is held
//! is bounded: per connection and direction [`pump::QUEUE_CHUNKS`] reads of [`pump::READ_BYTES`] and one message of
//! [`intercept::MESSAGE_BYTES_MAX`]; per wire [`link::CONNECTIONS_MAX`] connections and [`link::SECOND_MAX`] messages
//! that are to be delivered on a connection of their own.
//!
//! Bytes are never left out of the middle of a stream, as no TCP does that: a connection that has lost some is reset
//! as soon as its link is whole again.

mod connection;
mod counters;
mod deliver;
pub mod framer;
pub mod intercept;
pub mod link;
pub mod mode;
pub mod probe;
pub mod pump;
mod url;
pub mod wires;

#[cfg(test)]
mod tests;

pub use counters::Counts;
pub use link::{Protocol, Wire};
pub use mode::{End, Flow, Line, Messages, Mode};
pub use probe::{Probed, probe};
pub use wires::Wires;
