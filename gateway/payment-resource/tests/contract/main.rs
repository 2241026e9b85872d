//! The payment resource over a real socket: a test for each operation, the cases, and what nobody should send.

#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

mod accounts;
mod client;
mod exports;
mod hostile;
mod ledger;
mod payouts;
mod process;
mod steps;
mod support;

#[test]
fn every_operation_has_a_contract_test() {
    gateway_kit::testing::assert_every_operation_is_tested(&payment_resource::openapi(), env!("CARGO_MANIFEST_DIR"));
}
