//! The backend on etcd.
//!
//! Owns: what a grant is under one prefix of an etcd cluster, one etcd lease per session, tokens from
//! the revision of the granting transaction, expiry by observation of revisions, the facts and their order.
//! Does not own: the cluster, its quota and compaction, its backups.
//! On failure: no grant. A call that one member does not answer in time is put to another as well. A write that none of
//! them answered is unknown.
//!
//! Every verb that writes reads what it needs at one revision, decides, and commits one transaction that compares what the
//! decision rests on; where somebody else was quicker it reads again. The head, a counter that every fact moves, is the
//! one thing that all facts compare: so facts have an order without gaps whichever server writes them.

mod call;
mod error;
mod events;
mod expiry;
mod grants;
mod layout;
mod lineage;
mod listing;
mod members;
mod observed;
mod options;
mod plan;
mod records;
mod sessions;
mod shared;
mod showing;
mod snapshot;
mod store;

mod watching;
mod yielding;

pub use options::{EtcdAccess, EtcdLockStoreOptions, EtcdPassword};
pub use store::EtcdLockStore;
