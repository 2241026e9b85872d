//! Tests: what becomes of a transaction of which a copy was not answered. On a real server.

use super::*;
use crate::{EtcdLockStore, EtcdLockStoreOptions};
use host_kit::Host;
use lock_api::EventKind;

const WITHIN: Duration = Duration::from_secs(30);

async fn store() -> EtcdLockStore {
    let at = test_servers::etcd_or_skip().await;
    let mut options = EtcdLockStoreOptions::at(&format!("etcd://{at}")).unwrap();
    options.prefix = test_servers::fresh_schema();
    EtcdLockStore::open(options, &Host::system()).await.unwrap()
}

impl Shared {
    async fn fact_in_the_making(&self) -> Finished {
        let snapshot = self.read(Wants::new(&self.layout), Instant::now() + WITHIN).await;
        let snapshot = snapshot.unwrap();
        let mut plan = Plan::new(&self.layout, &snapshot, 1);
        plan.fact(EventKind::RegressionDismissed, &crate::etcd::plan::Fact::default());
        // Something beside the head that may change without it.
        plan.unchanged(self.layout.seal(4711), 0);
        plan.finish(self.ids.ulid()).unwrap()
    }

    async fn put_again(&self, made: &Finished) -> TxnResponse {
        let answered = self.etcd.commit(&made.txn, Instant::now() + WITHIN).await;
        answered.unwrap().answer
    }

    /// As if this had been answered to a copy of it, and another one had not been answered.
    async fn resolved(&self, made: &Finished, answer: TxnResponse) -> Option<i64> {
        let mark = made.mark.as_ref().unwrap();
        self.resolve(mark, answer, Instant::now() + WITHIN).await.unwrap()
    }
}

#[tokio::test]
async fn one_that_was_made_is_found_also_when_others_followed() {
    let store = store().await;
    let shared = store.shared();
    let made = shared.fact_in_the_making().await;
    let revision = revision_of(&shared.put_again(&made).await).unwrap();
    let again = shared.put_again(&made).await;
    assert!(!again.succeeded());
    assert_eq!(shared.resolved(&made, again).await, Some(revision));
    let next = shared.fact_in_the_making().await;
    assert!(shared.put_again(&next).await.succeeded());
    let again = shared.put_again(&made).await;
    assert_eq!(shared.resolved(&made, again).await, Some(revision));
}

#[tokio::test]
async fn one_whose_number_went_to_another_was_not_made() {
    let store = store().await;
    let shared = store.shared();
    let (mine, other) = (shared.fact_in_the_making().await, shared.fact_in_the_making().await);
    assert!(shared.put_again(&other).await.succeeded());
    let answer = shared.put_again(&mine).await;
    assert_eq!(shared.resolved(&mine, answer).await, None);
}

/// The head stands where it stood, so a copy that still lies with a frozen member would be made later.
#[tokio::test]
async fn one_that_could_still_be_made_is_prevented() {
    let store = store().await;
    let shared = store.shared();
    let mine = shared.fact_in_the_making().await;
    let (before, between) = (
        shared.read(Wants::new(&shared.layout), Instant::now() + WITHIN),
        shared.layout.seal(4711),
    );
    let before = before.await.unwrap();
    let put = etcd_client::Txn::new().and_then([etcd_client::TxnOp::put(between.clone(), "{}", None)]);
    shared.etcd.commit(&put, Instant::now() + WITHIN).await.unwrap();
    let answer = shared.put_again(&mine).await;
    assert!(!answer.succeeded());
    let delete = etcd_client::Txn::new().and_then([etcd_client::TxnOp::delete(between, None)]);
    shared.etcd.commit(&delete, Instant::now() + WITHIN).await.unwrap();
    assert_eq!(shared.resolved(&mine, answer).await, None);
    assert!(!shared.put_again(&mine).await.succeeded(), "made late");
    // What the head says is the same, the last token included.
    let after = shared
        .read(Wants::new(&shared.layout), Instant::now() + WITHIN)
        .await
        .unwrap();
    assert_eq!(after.last_token(), before.last_token());
    let (before, after) = (before.head.unwrap(), after.head.unwrap());
    assert_eq!(after.value.next, before.value.next);
    assert!(after.rev > before.rev);
}
