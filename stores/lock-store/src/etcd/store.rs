//! The handle.

use super::call::Etcd;
use super::layout::Layout;
use super::options::EtcdLockStoreOptions;
use super::shared::{Shared, deadline_in};
use super::watching::follow;
use host_kit::Host;
use lock_api::{
    AcquireOutcome, AcquireRequest, EventQuery, ExpiredGrant, ExpiryReport, FloorOutcome, Heartbeat, HeartbeatOutcome,
    KeyState, Lineage, LockEvent, LockKey, LockStore, OpenSession, Operator, ReleaseOutcome, ReleaseRequest,
    RenewOutcome, RenewRequest, RevokeOutcome, RevokeRequest, Seal, SessionId, SessionRegistry, SessionView,
    StoreError, StoreFuture, StoreHealth, YieldOutcome, YieldRequest,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How long opening may take.
const OPEN_WITHIN: Duration = Duration::from_secs(60);

/// Ends the watch with the last handle.
struct Watching(JoinHandle<()>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The lock store on etcd. Cheap to clone.
#[derive(Clone)]
pub struct EtcdLockStore {
    shared: Arc<Shared>,
    watching: Arc<Watching>,
}

impl fmt::Debug for EtcdLockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdLockStore")
            .field("endpoints", &self.shared.options.access.endpoints)
            .field("prefix", &self.shared.options.prefix)
            .finish_non_exhaustive()
    }
}

impl EtcdLockStore {
    /// Opens a store, initialises it where there is none, and gives every live session and grant in it its full TTL from
    /// now, since this process has seen none of them before. It is watched on the current runtime until the last handle
    /// is dropped.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when no member can be reached or the options cannot be; [`StoreError::Corrupt`] when
    /// something stands under the prefix that this program does not know.
    pub async fn open(options: EtcdLockStoreOptions, host: &Host) -> Result<Self, StoreError> {
        options.check()?;
        let deadline = Instant::now() + OPEN_WITHIN;
        let layout = Layout::new(&format!("{}/", options.prefix));
        let etcd = Etcd::new(&options.access, layout.lineage(), host.random.clone())?;
        let shared = Arc::new(Shared::new(etcd, layout, options, host.clock.clone(), host.ids.clone()));
        let (lineage, fresh) = shared.initialise(deadline).await?;
        let revision = shared.list_everything(deadline).await?;
        shared.full_ttl_again(deadline).await;
        tracing::info!(event = "lock_store_opened", lineage, fresh, revision);
        let watching = tokio::spawn(follow(shared.clone(), revision + 1));
        Ok(Self {
            shared,
            watching: Arc::new(Watching(watching)),
        })
    }

    /// Stops watching. Other handles work on and find out by looking.
    pub fn close(self) {
        self.watching.0.abort();
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Live sessions and held keys that this process knows of.
    #[must_use]
    pub fn observed(&self) -> (usize, usize) {
        self.shared.observed(|observed| observed.counts())
    }
}

impl SessionRegistry for EtcdLockStore {
    fn open(&self, batch: Vec<OpenSession>, within: Duration) -> StoreFuture<'_, Vec<SessionView>> {
        Box::pin(async move { self.shared.open(&batch, deadline_in(within)?).await })
    }

    fn heartbeat(&self, batch: Vec<Heartbeat>, within: Duration) -> StoreFuture<'_, Vec<HeartbeatOutcome>> {
        Box::pin(async move { self.shared.heartbeat(&batch, deadline_in(within)?).await })
    }

    fn close(&self, batch: Vec<SessionId>, within: Duration) -> StoreFuture<'_, Vec<Vec<ExpiredGrant>>> {
        Box::pin(async move { self.shared.close(&batch, deadline_in(within)?).await })
    }

    fn session(&self, id: SessionId, within: Duration) -> StoreFuture<'_, Option<SessionView>> {
        Box::pin(async move { self.shared.session(id, deadline_in(within)?).await })
    }

    fn sessions(&self, after: Option<SessionId>, limit: u32, within: Duration) -> StoreFuture<'_, Vec<SessionView>> {
        Box::pin(async move { self.shared.sessions(after.as_ref(), limit, deadline_in(within)?).await })
    }
}

impl LockStore for EtcdLockStore {
    fn acquire(&self, batch: Vec<AcquireRequest>, within: Duration) -> StoreFuture<'_, Vec<AcquireOutcome>> {
        Box::pin(async move { self.shared.acquire(&batch, deadline_in(within)?).await })
    }

    fn renew(&self, batch: Vec<RenewRequest>, within: Duration) -> StoreFuture<'_, Vec<RenewOutcome>> {
        Box::pin(async move { self.shared.renew(&batch, deadline_in(within)?).await })
    }

    fn release(&self, batch: Vec<ReleaseRequest>, within: Duration) -> StoreFuture<'_, Vec<ReleaseOutcome>> {
        Box::pin(async move { self.shared.release(&batch, deadline_in(within)?).await })
    }

    fn revoke(&self, request: RevokeRequest, within: Duration) -> StoreFuture<'_, RevokeOutcome> {
        Box::pin(async move { Ok(self.shared.revoke(&request, deadline_in(within)?).await?) })
    }

    fn ask_to_yield(&self, request: YieldRequest, within: Duration) -> StoreFuture<'_, YieldOutcome> {
        Box::pin(async move { Ok(self.shared.ask_to_yield(&request, deadline_in(within)?).await?) })
    }

    fn inspect(&self, keys: Vec<LockKey>, within: Duration) -> StoreFuture<'_, Vec<KeyState>> {
        Box::pin(async move { Ok(self.shared.inspect(&keys, deadline_in(within)?).await?) })
    }

    fn list(
        &self,
        prefix: String,
        after: Option<LockKey>,
        limit: u32,
        within: Duration,
    ) -> StoreFuture<'_, Vec<KeyState>> {
        Box::pin(async move {
            let deadline = deadline_in(within)?;
            Ok(self.shared.list(&prefix, after.as_ref(), limit, deadline).await?)
        })
    }

    fn expire_due(&self, limit: u32, within: Duration) -> StoreFuture<'_, ExpiryReport> {
        Box::pin(async move { self.shared.expire_due(limit, deadline_in(within)?).await })
    }

    fn purge_tombstones(&self, retention: Duration, limit: u32, within: Duration) -> StoreFuture<'_, u32> {
        Box::pin(async move { self.shared.purge(retention, limit, deadline_in(within)?).await })
    }

    fn events(&self, query: EventQuery, within: Duration) -> StoreFuture<'_, Vec<LockEvent>> {
        Box::pin(async move { Ok(self.shared.events(&query, deadline_in(within)?).await?) })
    }

    fn changed_since(&self, after: u64, within: Duration) -> StoreFuture<'_, u64> {
        Box::pin(self.shared.changed_since(after, within))
    }

    fn seal(&self, limit: u32, within: Duration) -> StoreFuture<'_, Option<Seal>> {
        Box::pin(async move { Ok(self.shared.seal(limit, deadline_in(within)?).await?) })
    }

    fn seals(&self, after: u64, limit: u32, within: Duration) -> StoreFuture<'_, Vec<Seal>> {
        Box::pin(async move { Ok(self.shared.seals(after, limit, deadline_in(within)?).await?) })
    }

    fn drop_sealed(&self, retention: Duration, limit: u32, within: Duration) -> StoreFuture<'_, u32> {
        Box::pin(async move { Ok(self.shared.drop_sealed(retention, limit, deadline_in(within)?).await?) })
    }

    fn lineage(&self, within: Duration) -> StoreFuture<'_, Lineage> {
        Box::pin(async move { self.shared.show_lineage(deadline_in(within)?).await })
    }

    fn advance_floor(
        &self,
        floor: u64,
        operator: Operator,
        reason: String,
        within: Duration,
    ) -> StoreFuture<'_, FloorOutcome> {
        Box::pin(async move {
            let deadline = deadline_in(within)?;
            self.shared.clear_doubt(Some(floor), &operator, &reason, deadline).await
        })
    }

    fn dismiss_regression(
        &self,
        operator: Operator,
        reason: String,
        within: Duration,
    ) -> StoreFuture<'_, FloorOutcome> {
        Box::pin(async move {
            let deadline = deadline_in(within)?;
            self.shared.clear_doubt(None, &operator, &reason, deadline).await
        })
    }

    fn health(&self, within: Duration) -> StoreFuture<'_, StoreHealth> {
        Box::pin(async move {
            let problem = match deadline_in(within) {
                Ok(deadline) => self.shared.problem(deadline).await,
                Err(error) => Some(super::error::problem(&error)),
            };
            Ok(StoreHealth {
                backend: "etcd",
                problem,
            })
        })
    }
}
