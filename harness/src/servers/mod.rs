//! The servers behind a run's stacks: which backends it uses, servers in containers, and each stack's own part of them.
//!
//! Owns: the meaning of `--store` and `--pay-store`; a schema, prefix and roles of its own for each stack, so that stacks
//! run side by side on one server and nothing is mixed with what was there; their removal at the end of the run.
//! Does not own: what the stores are made of. Schemas are made by the product's own `dlock migrate`.
//! On failure: [`crate::stack::RunError`].

pub mod backends;
pub mod container;
pub mod docker;
pub mod etcd;
pub mod inspector;
pub mod postgres;

pub use backends::{Backends, LockBackend, PayBackend, ServerOptions, Stores};
