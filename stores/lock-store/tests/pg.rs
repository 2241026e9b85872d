//! The store on PostgreSQL against the suite that defines the SPI, and what only a shared server can show. A real server
//! in every test; see the package `test-servers`.
#![cfg(feature = "pg")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "tests make up tokens and threads")]

mod pg_support;

use lock_store::conformance::{Backend, LocalFuture};
use pg_support::OnPg;

async fn on_pg() -> OnPg {
    OnPg::fresh().await
}

mod suite {
    lock_store::lock_store_conformance! { #[tokio::test] super::on_pg }
}

/// The suite once more with what a pooler in transaction mode forbids left out: nobody listens, facts are found by
/// looking.
mod without_listening {
    use super::{Backend, LocalFuture, OnPg};

    async fn on_pg() -> OnPg {
        OnPg::fresh_with(|options| {
            options.through_pooler = true;
            options.poll_every = std::time::Duration::from_millis(20);
        })
        .await
    }

    #[tokio::test]
    async fn a_change_wakes_who_waits() {
        let mut backend = on_pg().await;
        let done: LocalFuture<'_, ()> = Box::pin(lock_store::conformance::events::a_change_wakes_who_waits(
            &mut backend as &mut dyn Backend,
        ));
        done.await;
    }

    #[tokio::test]
    async fn case_l23_no_waiter_sleeps_past_a_release() {
        let mut backend = on_pg().await;
        lock_store::conformance::races::case_l23_no_waiter_sleeps_past_a_release(&mut backend).await;
    }
}
