//! Whether the clients' histories of a key are those of one lock, by two ways that share no code.
//!
//! ```text
//! calls ─┐                      ┌─ search ──────── is there an order of all calls that a lock would have answered so?
//!        ├─ timeline, per key ──┤                                                                          must agree
//! audit ─┘                      └─ token_order ─── sorted by token: do real time and the ends of leases fit?
//! ```
//!
//! The lock: free or held under one token. A grant needs it free and a token above every earlier one; a refusal as busy
//! needs it held; a release by its holder frees it; an answer about a lease needs it held under that token. It becomes
//! free by itself at the earliest when the last promised lease has run out, and only where the audit trail says that it
//! did; or at any time where the trail says that it was revoked or given back on behalf of a client that had lost it.
//!
//! Owns: the per-key histories and both checks.
//! Does not own: the verdict (`invariant/lock_history.rs`), when a lease may end (`invariant/lock_lease.rs` judges it
//! again, by the contract).
//! On failure: a search that would take too long says [`Found::NotChecked`], which is no proof of anything.

#[cfg(test)]
mod fuzz;
mod search;
mod timeline;
mod token_order;

pub use search::{Found, STEPS_MAX, search};
pub use timeline::{Grant, Kept, KeyHistory, Release, histories};
pub use token_order::token_order;
