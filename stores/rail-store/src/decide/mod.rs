//! What each fenced statement decides, as pure functions of what was read under its locks: one table for every backend.
//!
//! A backend reads the facts in the contract's order, asks here, and writes what is answered. Nothing here knows a
//! database.

pub(crate) mod ack;
pub(crate) mod close;
pub(crate) mod evidence;
pub(crate) mod fence;
pub(crate) mod forward;
pub(crate) mod found;
pub(crate) mod lookup;
pub(crate) mod mark;
pub(crate) mod submit;

pub(crate) use close::decide as close;
pub(crate) use evidence::{Raise, late_ack, late_decline, most_telling, take};
