//! The guard of a held lock, and what may look at it.

use crate::client::Shared;
use crate::core::unavailable;
use crate::deadline::Lease;
use crate::keep::{Release, Renew};
use actor_kit::TraceContext;
use lock_api::{FencingToken, LockError, LockKey, LockLost, LostReason};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A lock that is held until it is released, dropped or lost. It renews itself every third of its TTL while it lives.
///
/// Call [`HeldLock::check_still_held`] before every side effect and pass the token it answers along with that side
/// effect: the check is a courtesy to the holder, the token is what makes a stale write harmless. Between a check and
/// the side effect the lease can lapse.
///
/// Dropping it gives the lock back in the background, wherever it is dropped; [`HeldLock::release`] waits until the
/// server has said so.
#[must_use = "a lock that is not kept is given back at once"]
#[derive(Debug)]
pub struct HeldLock {
    id: u64,
    view: LockView,
    shared: Arc<Shared>,
    trace: TraceContext,
}

/// What can be known about a held lock, without owning it: clones may go to other tasks and threads.
#[derive(Clone, Debug)]
pub struct LockView(Arc<Lease>);

impl LockView {
    /// What is locked.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.0.key
    }

    /// The fencing token of this grant, held or not.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.0.token
    }

    /// The token, if the lock is still held at this moment by the local deadline (FR-13).
    ///
    /// # Errors
    /// [`LockLost`] with the reason as it is known now: stop before the next side effect. Between the server's word that
    /// the token holds nothing and its answer why, this is [`LostReason::Superseded`]; [`LockView::lost`] and
    /// [`LockView::on_lock_lost`] wait for that answer, for two seconds at most.
    pub fn check_still_held(&self) -> Result<FencingToken, LockLost> {
        self.0.check().map(|_| self.0.token)
    }

    /// The token, if the lock is held for at least `min_remaining` more, as far as can be known now: for a step that
    /// takes a while. Too little left is answered as a lapsed deadline, but is no loss yet: nobody is told, and a
    /// renewal may still make it enough.
    ///
    /// # Errors
    /// [`LockLost`] when it is lost, or would be before `min_remaining` has passed.
    pub fn check_still_held_for(&self, min_remaining: Duration) -> Result<FencingToken, LockLost> {
        if self.0.check()? < min_remaining {
            return Err(LockLost {
                token: self.0.token,
                reason: LostReason::DeadlineLapsed,
            });
        }
        Ok(self.0.token)
    }

    /// What is left until the local deadline; zero when the lock is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.check().unwrap_or(Duration::ZERO)
    }

    /// Ready when the lock is lost, at once if it is; never when it is released. Needs no particular runtime.
    pub fn lost(&self) -> impl Future<Output = LockLost> + Send + 'static {
        self.0.clone().lost()
    }

    /// Ready as soon as the lock is known not to be held any more, be the reason known or not: the moment to stop.
    /// [`LockView::lost`] follows, with the reason. Never ready when the lock is released.
    pub fn must_stop(&self) -> impl Future<Output = ()> + Send + 'static {
        self.0.clone().over()
    }

    /// Calls back exactly once when the lock is lost, at once if it is; never when it is released (FR-12). The callback
    /// runs on the thread that finds the loss, which may be the client's own: it should be quick and must not block.
    pub fn on_lock_lost(&self, callback: impl FnOnce(LockLost) + Send + 'static) {
        self.0.on_lost(Box::new(callback));
    }
}

impl HeldLock {
    pub(crate) fn new(id: u64, lease: Arc<Lease>, shared: Arc<Shared>, trace: TraceContext) -> Self {
        Self {
            id,
            view: LockView(lease),
            shared,
            trace,
        }
    }

    /// A view of this lock that can be cloned and outlives the guard.
    #[must_use]
    pub fn view(&self) -> LockView {
        self.view.clone()
    }

    /// What is locked.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        self.view.key()
    }

    /// The fencing token of this grant, held or not.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.view.token()
    }

    /// See [`LockView::check_still_held`].
    ///
    /// # Errors
    /// [`LockLost`] with the reason: stop before the next side effect.
    pub fn check_still_held(&self) -> Result<FencingToken, LockLost> {
        self.view.check_still_held()
    }

    /// See [`LockView::check_still_held_for`].
    ///
    /// # Errors
    /// [`LockLost`] when it is lost, or would be before `min_remaining` has passed.
    pub fn check_still_held_for(&self, min_remaining: Duration) -> Result<FencingToken, LockLost> {
        self.view.check_still_held_for(min_remaining)
    }

    /// See [`LockView::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.view.remaining()
    }

    /// See [`LockView::lost`].
    pub fn lost(&self) -> impl Future<Output = LockLost> + Send + 'static {
        self.view.lost()
    }

    /// See [`LockView::must_stop`].
    pub fn must_stop(&self) -> impl Future<Output = ()> + Send + 'static {
        self.view.must_stop()
    }

    /// See [`LockView::on_lock_lost`].
    pub fn on_lock_lost(&self, callback: impl FnOnce(LockLost) + Send + 'static) {
        self.view.on_lock_lost(callback);
    }

    /// Renews now, beside the renewals that happen by themselves.
    ///
    /// # Errors
    /// [`LockError::Lost`] when it is lost; [`LockError::Unavailable`] when no server answered, and then the lock is
    /// still held until its deadline.
    pub async fn renew(&self) -> Result<(), LockError> {
        let (tell, told) = oneshot::channel();
        let renew = Renew { lease: self.id, tell };
        self.shared.handle.tell_surely(renew, &self.trace);
        told.await
            .unwrap_or_else(|_| Err(unavailable("the client has stopped")))
    }

    /// Gives the lock back and waits until the server has said so.
    ///
    /// # Errors
    /// [`LockError::Lost`] when it was lost before; [`LockError::Unavailable`] when no server answered: the client goes
    /// on trying, and the lease is not renewed any more.
    pub async fn release(mut self) -> Result<(), LockError> {
        let (tell, told) = oneshot::channel();
        match self.give_back(Some(tell)) {
            Err(lost) => Err(LockError::Lost(lost)),
            Ok(()) => told
                .await
                .unwrap_or_else(|_| Err(unavailable("the client has stopped"))),
        }
    }

    /// Ends the guard: from here on nothing is a loss, and the rest is left to the client's actor. A lease that was lost
    /// is handed over too, because the server may still keep it, and its holder has ended only now.
    fn give_back(&mut self, tell: Option<oneshot::Sender<Result<(), LockError>>>) -> Result<(), LockLost> {
        let lease = std::mem::replace(&mut self.id, GIVEN_BACK);
        if lease == GIVEN_BACK {
            return Ok(());
        }
        let held = self.view.0.give_back();
        self.shared.handle.tell_surely(Release { lease, tell }, &self.trace);
        held
    }
}

/// Ids begin at 1.
const GIVEN_BACK: u64 = 0;

impl Drop for HeldLock {
    fn drop(&mut self) {
        // A loss that comes to light only here was told to whoever listened.
        let _ = self.give_back(None);
    }
}
