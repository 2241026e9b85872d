//! The lock server's HTTP gateway: L1–L11 (C3.3).
//!
//! ```text
//! socket → gateway-kit's frame → routes (read, check bounds) → LockService (lock-core) → LockStore
//! ```
//!
//! Owns: the routes, their bounds and status codes; the process's wiring (store, core, readiness, drain).
//! Does not own: who holds what (`lock-store`), queues and batches (`lock-core`), money or what a key protects.
//! On failure: fails closed (FR-27). A request whose outcome is not known is answered 503, never a grant; a store that
//! cannot be opened ends the process at its start.

mod bounds;
mod document;
mod render;
mod routes;
mod run;
pub mod seal;

pub use bounds::Bounds;
pub use document::{openapi, openapi_within};
pub use routes::{LockServer, configure};
pub use run::{RunError, core_config, migrate, run, run_and_tell};
