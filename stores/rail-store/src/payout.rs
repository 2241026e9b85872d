//! A payout, as far as the rail may know it: read only, out of the payment row's own tables.

use crate::Settled;
use serde::Deserialize;

/// A payout.
#[derive(Clone, Debug)]
pub(crate) struct Payout {
    pub account_id: String,
    pub amount_minor: i64,
    pub currency: String,
    /// JSON text, as it is stored.
    pub creditor: String,
    pub state: String,
    /// The token of its latest claim. One that no lock store can have minted is nobody's.
    pub claim_token: Option<u64>,
    /// The reference that it was posted with.
    pub rail_reference: Option<String>,
}

/// To whom.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Creditor {
    pub name: String,
    pub account: String,
}

impl Payout {
    /// To whom.
    ///
    /// # Errors
    /// What is stored is no creditor.
    pub fn creditor(&self) -> Result<Creditor, Malformed> {
        serde_json::from_str(&self.creditor).map_err(|error| Malformed(format!("a payout's creditor: {error}")))
    }

    /// Whether it is settled, and as what.
    pub fn settled(&self) -> Settled {
        Settled::of(&self.state, self.rail_reference.clone())
    }
}

/// What is known about a payout.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    /// The payouts cannot be read.
    Nothing,
    /// There is no such payout.
    Missing,
    /// It is this.
    Payout(Payout),
}

/// A stored value that could never have been written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub String);
