//! The routes, one file per subject of C3.4.

mod accounts;
mod audit;
mod ledger;
mod payouts;
mod steps;

use actix_web::HttpRequest;
use actix_web::web::{self, Data, ServiceConfig};
use gateway_kit::{ApiError, OperatorName, Shares};
use host_kit::Host;
use payment_core::Payments;
use std::time::Duration;

pub(crate) use accounts::*;
pub(crate) use audit::*;
pub(crate) use ledger::*;
pub(crate) use payouts::*;
pub(crate) use steps::*;

/// What every route needs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PaymentResource {
    /// The running row.
    pub payments: Payments,
    /// The deadline of one call to the store.
    pub within: Duration,
    /// Ids and clock of the process.
    pub host: Host,
    /// Exports under way: each holds a few pages for its reader.
    pub exports: Shares,
}

/// How many exports may be under way; of one caller half.
const EXPORTS_MAX: usize = 16;

impl PaymentResource {
    /// The bound on exports of a process.
    #[must_use]
    pub fn exports() -> Shares {
        Shares::halves("exports under way", "the bound of a payment resource", EXPORTS_MAX)
    }
}

/// Adds the routes P1–P10.
pub fn configure(config: &mut ServiceConfig, server: PaymentResource) {
    config
        .app_data(Data::new(server))
        .service(
            web::resource("/v1/accounts")
                .route(web::post().to(open_account))
                .route(web::get().to(list_accounts)),
        )
        .route("/v1/accounts/{account_id}", web::get().to(get_account))
        .route("/v1/accounts/{account_id}/credit", web::post().to(credit_account))
        .route("/v1/accounts/{account_id}/fence", web::post().to(fence_account))
        .route("/v1/accounts/{account_id}/ledger", web::get().to(account_ledger))
        .service(
            web::resource("/v1/payouts")
                .route(web::post().to(create_payout))
                .route(web::get().to(list_payouts)),
        )
        .route("/v1/payouts/{payout_id}", web::get().to(get_payout))
        .route("/v1/payouts/{payout_id}/history", web::get().to(payout_history))
        .route("/v1/payouts/{payout_id}/claim", web::post().to(claim_payout))
        .route("/v1/payouts/{payout_id}/post", web::post().to(post_payout))
        .route("/v1/payouts/{payout_id}/fail", web::post().to(fail_payout))
        .route("/v1/payouts/{payout_id}/ambiguous", web::post().to(mark_ambiguous))
        .route("/v1/payouts/{payout_id}/resolve", web::post().to(resolve_payout))
        .route("/v1/payouts/{payout_id}/cancel", web::post().to(cancel_payout))
        .route("/v1/ledger/export", web::get().to(export_ledger))
        .route("/v1/ledger/verify", web::get().to(verify_ledger))
        .route("/v1/audit", web::get().to(audit));
}

/// The operator, where a route works with and without one.
fn operator(request: &HttpRequest) -> Result<Option<String>, ApiError> {
    Ok(OperatorName::of(request)?.map(|name| name.0.as_str().to_owned()))
}
