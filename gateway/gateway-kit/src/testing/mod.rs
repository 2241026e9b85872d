//! What contract tests share: every operation of an OpenAPI document must have a test that names it, and every operation
//! is fed what nobody should send. For dev-dependencies (feature `testing`).
//!
//! ```ignore
//! #[test]
//! fn every_operation_has_a_contract_test() {
//!     gateway_kit::testing::assert_every_operation_is_tested(&lock_server::openapi(), env!("CARGO_MANIFEST_DIR"));
//! }
//!
//! // operation: acquire_lock
//! #[actix_web::test]
//! async fn a_free_key_is_granted() { … }
//!
//! #[actix_web::test]
//! async fn no_request_is_answered_with_a_server_error() {
//!     Fuzz::new(&lock_server::openapi()).path("id", &session_id).run(&Socket(address)).await;
//! }
//! ```

mod coverage;
mod fuzz;
mod sample;
mod target;

pub use coverage::assert_every_operation_is_tested;
pub use fuzz::{Fuzz, Report};
pub use target::{Answer, InProcess, Sent, Socket, Target};
