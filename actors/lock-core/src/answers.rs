//! What the core answers: outcomes of the store as the caller needs them, and refusals.

use actor_kit::{AskError, Handle, TraceContext};
use lock_api::{FencingToken, Grant, HeldByOther, ReleaseRequest, StoreError};
use std::time::Duration;

use crate::lease_clock::{LeaseClock, Unwanted};

/// Why a request was not served. Never a statement about who holds what.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The store did not do it, or may have done it; see [`StoreError::is_ambiguous`].
    #[error("{0}")]
    Store(StoreError),
    /// A bound of this replica is reached; nothing was done.
    #[error("too many {0}; nothing was done")]
    Overloaded(&'static str),
    /// This replica is stopping; nothing was done.
    #[error("this replica is stopping; nothing was done")]
    Draining,
    /// An actor did not answer.
    #[error("{0}")]
    Ask(AskError),
}

impl Refusal {
    /// Whether what was asked for may have been done, or may still be done.
    #[must_use]
    pub const fn is_ambiguous(&self) -> bool {
        match self {
            Self::Store(error) => error.is_ambiguous(),
            Self::Ask(error) => error.is_ambiguous(),
            Self::Overloaded(_) | Self::Draining => false,
        }
    }
}

/// What became of an acquire (L4).
#[derive(Debug)]
pub enum Acquired {
    /// The key is the caller's.
    Granted(Box<Granted>),
    /// Somebody else's.
    Held {
        /// Who holds it.
        held: Box<HeldByOther>,
        /// How many wait for it at this replica.
        waiters: u32,
    },
    /// Nobody's, and closed for a while after the unclean loss of its last grant.
    Delayed {
        /// The last token minted for the key.
        last_token: FencingToken,
        /// What is left of the delay.
        ends_in: Duration,
        /// How many wait for it at this replica.
        waiters: u32,
    },
    /// The session is unknown or has ended.
    SessionNotFound,
    /// The store may have been rewound.
    TokenRegression {
        /// For the operator.
        detail: String,
    },
    /// The witness is not believed.
    WitnessRefused {
        /// The highest witness that would have been believed.
        highest_believed: u64,
    },
}

impl Acquired {
    pub(crate) fn granted(grant: Grant, replayed: bool, waited: Duration) -> Self {
        Self::Granted(Box::new(Granted {
            grant,
            replayed,
            waited,
            unclaimed: None,
        }))
    }

    /// The outcome as a label of `lock_acquire_total`.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Granted(_) => "granted",
            Self::Held { .. } => "held_by_other",
            Self::Delayed { .. } => "delayed",
            Self::SessionNotFound => "session_not_found",
            Self::TokenRegression { .. } => "token_regression",
            Self::WitnessRefused { .. } => "witness_refused",
        }
    }
}

/// A grant on its way to its caller.
#[derive(Debug)]
#[must_use = "a grant that nobody claims is given back"]
pub struct Granted {
    grant: Grant,
    replayed: bool,
    waited: Duration,
    unclaimed: Option<Unclaimed>,
}

impl Granted {
    /// Takes the grant over: from here on it is the caller's to release.
    #[must_use]
    pub fn claim(mut self) -> Grant {
        if let Some(guard) = &mut self.unclaimed {
            guard.claimed = true;
        }
        self.grant.clone()
    }

    /// Its token.
    #[must_use]
    pub const fn token(&self) -> FencingToken {
        self.grant.token
    }

    /// Whether the request had been granted before.
    #[must_use]
    pub const fn replayed(&self) -> bool {
        self.replayed
    }

    /// From the receipt of the request to the start of the granting store call.
    #[must_use]
    pub const fn waited(&self) -> Duration {
        self.waited
    }

    pub(crate) fn guard(&mut self, clock: Handle<LeaseClock>, trace: TraceContext) {
        self.unclaimed = Some(Unclaimed {
            clock,
            request: ReleaseRequest {
                key: self.grant.key.clone(),
                session_id: self.grant.session_id.clone(),
                token: self.grant.token,
            },
            trace,
            claimed: false,
        });
    }
}

/// Tells the lease clock about a grant whose caller went away between the answer and its taking (case L18). Dropping it
/// hands the grant to the actor and does nothing by itself.
#[derive(Debug)]
struct Unclaimed {
    clock: Handle<LeaseClock>,
    request: ReleaseRequest,
    trace: TraceContext,
    claimed: bool,
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if !self.claimed {
            self.clock.tell_surely(
                Unwanted {
                    request: self.request.clone(),
                },
                &self.trace,
            );
        }
    }
}
