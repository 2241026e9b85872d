//! The store on etcd against the suite that defines the SPI. A real server in every test; see the package `test-servers`.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "a test makes a thread")]

mod etcd_support;

use etcd_support::OnEtcd;

async fn on_etcd() -> OnEtcd {
    OnEtcd::fresh().await
}

mod suite {
    lock_store::lock_store_conformance! { #[tokio::test] super::on_etcd }
}
