//! Leader election: a thin use of the lock. Whoever holds the key leads; the token says which term it is.

use crate::client::LockClient;
use crate::held_lock::{HeldLock, LockView};
use lock_api::{FencingToken, LockError, LockKey, LockLost, YieldAsked};
use std::future::Future;
use std::time::Duration;

/// How long one stand is one acquire with one place in the line, before it stands again.
const STAND: Duration = Duration::from_secs(24 * 60 * 60);

/// An election for one key. Cheap to clone.
///
/// A leader leads by its own belief, and can be wrong for as long as it was stopped: two may believe it at once. What
/// makes that harmless is the term, which is the token: everybody who obeys a leader keeps the highest one it has seen
/// and refuses lower ones.
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

/// How a term ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term<T> {
    /// The work came to its end.
    Done(T),
    /// The leadership was lost; the work was dropped where it stood.
    Lost(LockLost),
    /// The leader was asked to yield and has stepped down; the work was dropped where it stood.
    SteppedDown(YieldAsked),
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
                    | LockError::Delayed { .. }
                    | LockError::HeldByOther(_)
                    | LockError::Unavailable { .. }
                    | LockError::SessionLost,
                ) if self.client.is_running() => {}
                other => return other,
            }
        }
    }

    /// Stands until elected and leads with `work`, until that ends, the leadership is lost, or somebody asks the leader to
    /// yield (L11): then it steps down at once, and whoever stands longest is elected. `work` is given the token of its
    /// term, which has to go along with everything the leader does, and a view to check it by.
    ///
    /// When its term ends before it, `work` is dropped where it waits: what it had begun may still happen, and is refused
    /// by whoever checks the token. Work that must not be dropped uses [`LeaderElection::campaign`] and
    /// [`HeldLock::on_yield_requested`]. A leader that is to lead again calls this again.
    ///
    /// ```
    /// # mod served { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/served/mod.rs")); }
    /// use lock_client::lock_api::{LockKey, LockLost, Owner};
    /// use lock_client::{ClientOptions, LeaderElection, LockClient, Term};
    ///
    /// # #[actix_rt::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = served::Server::start().await; let url = server.url();
    /// let client = LockClient::connect(&[url], ClientOptions::new(Owner::new("node-1")?)).await?;
    /// let election = LeaderElection::new(client, LockKey::new("cluster/leader")?);
    /// let led = election
    ///     .lead(|term, lock| async move {
    ///         let mut decisions = Vec::new();
    ///         while decisions.len() < 3 {
    ///             lock.check_still_held()?;
    ///             decisions.push((term, decisions.len())); // … made known under its term …
    ///         }
    ///         Ok::<_, LockLost>(decisions)
    ///     })
    ///     .await?;
    /// match led {
    ///     Term::Done(decisions) => assert_eq!(decisions?.len(), 3),
    ///     Term::SteppedDown(asked) => println!("{} asked for it: {}", asked.by, asked.reason),
    ///     Term::Lost(lost) => println!("{lost}: deposed, standing again"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`LeaderElection::campaign`], and then `work` was not called.
    pub async fn lead<T, F>(&self, work: impl FnOnce(FencingToken, LockView) -> F) -> Result<Term<T>, LockError>
    where
        F: Future<Output = T>,
    {
        let held = self.campaign().await?;
        let term = tokio::select! {
            biased;
            () = held.must_stop() => None,
            asked = held.asked_to_yield() => Some(Term::SteppedDown(asked)),
            done = work(held.token(), held.view()) => Some(Term::Done(done)),
        };
        let Some(term) = term else {
            return Ok(Term::Lost(held.lost().await));
        };
        let token = held.token().get();
        if let Err(error) = held.release().await {
            tracing::info!(event = "release_failed", key = %self.key, token, %error);
        }
        Ok(term)
    }

    /// Who leads now, as a server has it; none when nobody does. For showing only: it was so when the server read it.
    ///
    /// # Errors
    /// [`LockError::Unavailable`] when no server answered.
    pub async fn leader(&self) -> Result<Option<Leader>, LockError> {
        let view = self.client.inspect(&self.key).await?;
        let Some(holder) = view.holder else { return Ok(None) };
        let token = http_contract::token(holder.token).map_err(|error| LockError::Unavailable {
            detail: format!("an unreadable holder: {error}"),
            perhaps_done: false,
        })?;
        Ok(Some(Leader {
            owner: holder.owner,
            token,
        }))
    }
}
