//! What each caller has at this replica, so that nobody takes all of it.
//!
//! Owns: how many sessions and keys each address has. Does not own: the bounds; any grant.
//! On failure: a restart forgets who opened which session. Those count against the whole then, and against no caller.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// What one caller has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Has {
    pub(crate) sessions: usize,
    pub(crate) keys: usize,
}

/// All callers that have anything.
#[derive(Debug, Default)]
pub(crate) struct Callers(BTreeMap<IpAddr, Has>);

impl Callers {
    /// What this one has.
    pub(crate) fn of(&self, caller: IpAddr) -> Has {
        self.0.get(&caller).copied().unwrap_or_default()
    }

    /// Changes what this one has; who has nothing is forgotten.
    pub(crate) fn change(&mut self, caller: IpAddr, change: impl FnOnce(&mut Has)) {
        let has = self.0.entry(caller).or_default();
        change(has);
        if *has == Has::default() {
            self.0.remove(&caller);
        }
    }
}
