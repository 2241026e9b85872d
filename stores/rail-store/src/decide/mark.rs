//! The account's mark at the rail (C1.5, C1.6).

use crate::{FenceReason, FencedOut, HighWater};
use lock_api::FencingToken;

/// What was found when a submission's token was to become the mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advance {
    /// Whether it rose to the token.
    pub rose: bool,
    /// The mark afterwards.
    pub highest_token: u64,
    /// Whether a submission from this account under this token is recorded.
    pub token_used: bool,
}

impl Advance {
    /// None: the mark stands at the token now. Some: it was there or higher before.
    pub fn refused(self, token: FencingToken) -> Option<FencedOut> {
        if self.rose {
            return None;
        }
        // At its own mark a token has either had its one side effect, or a barrier was raised to it.
        let reason = if self.highest_token == token.get() && self.token_used {
            FenceReason::TokenSpent
        } else {
            FenceReason::Stale
        };
        Some(FencedOut {
            reason,
            presented: token,
            highest_token: self.highest_token,
        })
    }
}

/// Judges a barrier by the mark after it was raised to one below the token.
pub(crate) fn barrier(mark: HighWater, token: FencingToken) -> Result<HighWater, FencedOut> {
    if mark.highest_token < token.get() {
        Ok(mark)
    } else {
        Err(FencedOut {
            reason: FenceReason::Stale,
            presented: token,
            highest_token: mark.highest_token,
        })
    }
}
