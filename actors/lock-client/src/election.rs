//! Leader election: a thin use of the lock. Whoever holds the key leads; the token says which term it is.

use crate::client::LockClient;
use crate::held_lock::HeldLock;
use lock_api::{FencingToken, LockError, LockKey};
use std::time::Duration;

/// How long one stand waits in the server's queue before it stands again.
const STAND: Duration = Duration::from_secs(20);

/// An election for one key. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LeaderElection {
    client: LockClient,
    key: LockKey,
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The owner name of the leader's session.
    pub owner: String,
    /// Its term: later leaders have higher tokens.
    pub token: FencingToken,
}

impl LeaderElection {
    /// An election for this key among all clients that stand for it.
    #[must_use]
    pub const fn new(client: LockClient, key: LockKey) -> Self {
        Self { client, key }
    }

    /// Stands until elected. The guard is the leadership: it ends when the guard is released, dropped or lost, and every
    /// act of the leader carries its token. Dropping this future stands down.
    ///
    /// # Errors
    /// Whatever keeps this client from standing at all; contention and outages only make it wait.
    pub async fn campaign(&self) -> Result<HeldLock, LockError> {
        loop {
            match self.client.acquire_within(&self.key, STAND).await {
                Err(
                    LockError::ContentionExceeded { .. }
                    | LockError::HeldByOther(_)
                    | LockError::Unavailable { .. }
                    | LockError::SessionLost,
                ) if self.client.is_running() => {}
                other => return other,
            }
        }
    }

    /// Who leads now, as a server has it; none when nobody does.
    ///
    /// # Errors
    /// [`LockError::Unavailable`] when no server answered.
    pub async fn leader(&self) -> Result<Option<Leader>, LockError> {
        let view = self.client.inspect(&self.key).await?;
        let Some(holder) = view.holder else { return Ok(None) };
        let token = http_contract::token(holder.token).map_err(|error| LockError::Unavailable {
            detail: format!("an unreadable holder: {error}"),
        })?;
        Ok(Some(Leader {
            owner: holder.owner,
            token,
        }))
    }
}
