//! The lock store: sessions, grants, tokens, events and lineage on SQLite and PostgreSQL, and the suite that defines the SPI.
//!
//! Owns: what a grant is on disk, the minting of tokens inside the granting transaction, expiry by monotonic
//! observation, the append-only events and their seals.
//! Does not own: queues and waiting (`lock-core`), deadlines of clients (`lock-client`), HTTP.
//! On failure: no grant. A call whose commit cannot be told answers [`lock_api::StoreError::Unknown`].

pub mod canonical;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "pg")]
pub mod pg;
pub mod sqlite;

#[cfg(feature = "etcd")]
pub use etcd::{EtcdAccess, EtcdLockStore, EtcdLockStoreOptions, EtcdPassword};
#[cfg(feature = "pg")]
pub use pg::{PgLockStore, PgLockStoreOptions};
pub use sqlite::{SqliteLockStore, SqliteLockStoreOptions};
