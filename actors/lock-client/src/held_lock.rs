//! The guard of a held lock, and what may look at it.

use crate::client::Shared;
use crate::core::{in_doubt, unavailable};
use crate::deadline::Lease;
use crate::keep::{Release, Renew};
use actor_kit::TraceContext;
use lock_api::{FencingToken, LockError, LockKey, LockLost, LostReason, YieldAsked};
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
/// Dropping it gives the lock back in the background, wherever it is dropped: in a runtime, outside one, in a panic.
/// [`HeldLock::release`] waits until the server has said so. `std::mem::forget` keeps it for as long as the process
/// lives.
///
/// ```
/// # mod served { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/served/mod.rs")); }
/// use lock_client::lock_api::{FencingToken, LockKey, Owner};
/// use lock_client::{ClientOptions, LockClient};
/// use std::time::Duration;
///
/// fn upload(part: u32, token: FencingToken) -> bool {
///     // … the token goes along, and the other side compares it …
/// #   part < 3 && token.get() > 0
/// }
///
/// # #[actix_rt::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = served::Server::start().await; let url = server.url();
/// let client = LockClient::connect(&[url], ClientOptions::new(Owner::new("uploader")?)).await?;
/// let held = client.acquire(&LockKey::new("reports/2026")?).await?;
/// for part in 0..3 {
///     // At least a second has to be left for each part.
///     let token = held.check_still_held_for(Duration::from_secs(1))?;
///     assert!(upload(part, token));
/// }
/// held.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "a lock that is not kept is given back at once"]
#[derive(Debug)]
pub struct HeldLock {
    id: u64,
    view: LockView,
    shared: Arc<Shared>,
    trace: TraceContext,
}

/// What can be known about a held lock, without owning it: clones may go to other tasks and threads, and outlive the
/// guard. After a release every check says lost, and nobody is told of a loss.
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

    /// What is left until the local deadline, which lies `lock.client.safety-margin` before the server's and never past
    /// the session's own; zero when the lock is lost. Each renewal makes it longer.
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

    /// That the holder is asked to give this lock up, as far as a heartbeat or a renewal has shown it. The lock stays held.
    #[must_use]
    pub fn yield_requested(&self) -> Option<YieldAsked> {
        self.0.yields.asked()
    }

    /// Ready when the holder is asked to give this lock up, at once if it is; never when the lock ends without that. Needs
    /// no particular runtime.
    pub fn asked_to_yield(&self) -> impl Future<Output = YieldAsked> + Send + 'static {
        let mut asked = self.0.yields.watch();
        async move {
            match asked.wait_for(Option::is_some).await.map(|asked| asked.clone()) {
                Ok(Some(asked)) => asked,
                // Nothing is left of the lock, and nobody can be asked any more.
                _ => std::future::pending().await,
            }
        }
    }

    /// Calls back at most once, when the holder is asked to give this lock up, at once if it is. Nothing ends by it: the
    /// holder comes to a good end and releases, or goes on and may be revoked. The request arrives with the next heartbeat
    /// or renewal, so after a third of a TTL. The callback runs on the thread that reads of it, which may be the client's
    /// own: it should be quick and must not block.
    ///
    /// ```no_run
    /// # async fn next_piece(_token: lock_client::lock_api::FencingToken) -> bool { false }
    /// # async fn work(client: lock_client::LockClient, key: lock_client::lock_api::LockKey)
    /// # -> Result<(), lock_client::lock_api::LockError> {
    /// use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
    ///
    /// let held = client.acquire(&key).await?;
    /// let asked = Arc::new(AtomicBool::new(false));
    /// let noticed = asked.clone();
    /// held.on_yield_requested(move |_| noticed.store(true, Ordering::Relaxed));
    /// while !asked.load(Ordering::Relaxed) {
    ///     let token = held.check_still_held().map_err(lock_client::lock_api::LockError::Lost)?;
    ///     if !next_piece(token).await {
    ///         break;
    ///     }
    /// }
    /// held.release().await // at a good end, so the next one waits for no delay
    /// # }
    /// ```
    pub fn on_yield_requested(&self, callback: impl FnOnce(YieldAsked) + Send + 'static) {
        self.0.yields.on_asked(Box::new(callback));
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

    /// See [`LockView::yield_requested`].
    #[must_use]
    pub fn yield_requested(&self) -> Option<YieldAsked> {
        self.view.yield_requested()
    }

    /// See [`LockView::asked_to_yield`].
    pub fn asked_to_yield(&self) -> impl Future<Output = YieldAsked> + Send + 'static {
        self.view.asked_to_yield()
    }

    /// See [`LockView::on_yield_requested`].
    pub fn on_yield_requested(&self, callback: impl FnOnce(YieldAsked) + Send + 'static) {
        self.view.on_yield_requested(callback);
    }

    /// Renews now, beside the renewals that happen by themselves: before a long step, to have the whole TTL for it.
    ///
    /// # Errors
    /// [`LockError::Lost`] when it is lost. With every other error the lock is still held until its deadline, and is
    /// renewed by itself: [`LockError::Unavailable`] when the server did not answer or could not be reached, and
    /// [`LockError::fate`] says whether it may have renewed; [`LockError::Invalid`] and [`LockError::TokenRegression`]
    /// when it refused.
    pub async fn renew(&self) -> Result<(), LockError> {
        let (tell, told) = oneshot::channel();
        let renew = Renew { lease: self.id, tell };
        self.shared.handle.tell_surely(renew, &self.trace);
        let renewed = told.await.unwrap_or_else(|_| Err(stopped()));
        renewed.map_err(|error| self.lost_with_session(error))
    }

    /// Gives the lock back and waits until the server has said so. Dropping this future does not take it back.
    ///
    /// # Errors
    /// [`LockError::Lost`] when it was lost before: what was done under its token may have been refused.
    /// [`LockError::Unavailable`] when no server answered: always indefinite ([`lock_api::Fate`]), because the client
    /// goes on trying for as long as the lease could live; it is not renewed any more and is free at the end of its TTL
    /// at the latest. [`LockError::Invalid`] when the server refused.
    pub async fn release(mut self) -> Result<(), LockError> {
        let (tell, told) = oneshot::channel();
        match self.give_back(Some(tell)) {
            Err(lost) => Err(LockError::Lost(lost)),
            Ok(()) => told
                .await
                .unwrap_or_else(|_| Err(stopped()))
                // What was not done yet is still being tried.
                .map_err(|error| in_doubt(self.lost_with_session(error), true)),
        }
    }

    /// The session ended, and this lock with it.
    fn lost_with_session(&self, error: LockError) -> LockError {
        match error {
            LockError::SessionLost => LockError::Lost(LockLost {
                token: self.token(),
                reason: LostReason::SessionLost,
            }),
            other => other,
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

/// The client's actor has gone; what it was told, it may have done.
fn stopped() -> LockError {
    in_doubt(unavailable("the client has stopped"), true)
}

/// Ids begin at 1.
const GIVEN_BACK: u64 = 0;

impl Drop for HeldLock {
    fn drop(&mut self) {
        // A loss that comes to light only here was told to whoever listened.
        let _ = self.give_back(None);
    }
}
