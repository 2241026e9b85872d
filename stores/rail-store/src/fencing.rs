//! The kill switch of fence point (c).

/// Whether fence point (c) judges its callers. A build without the feature `lab` has one variant only: the switch is
/// not compiled in (FR-29).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fencing {
    /// Every predicate of C1.6 holds.
    #[default]
    Enforced,
    /// The point trusts its caller as a naive service would: no mark, no uniqueness of the payout, no look at the
    /// payout, and a fence only reads. A repeated step still replays. For the negative control.
    #[cfg(feature = "lab")]
    Off,
}

impl Fencing {
    /// Whether the predicates hold.
    #[must_use]
    pub const fn is_enforced(self) -> bool {
        matches!(self, Self::Enforced)
    }

    /// The switch as configured. Only a lab build can be told to switch off.
    #[cfg(feature = "lab")]
    #[must_use]
    pub const fn from_switch(enabled: bool) -> Self {
        if enabled { Self::Enforced } else { Self::Off }
    }
}
