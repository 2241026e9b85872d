//! P9: the ledger.

use super::{PageParams, PaymentResource};
use crate::run::VERIFY_WITHIN;
use crate::{bounds, export, render};
use actix_web::HttpResponse;
use actix_web::web::Data;
use gateway_kit::{ApiError, Caller, Id, Query};
use http_contract::payment::{LedgerRow, VerifyAnswer};
use http_contract::{Page, Problem};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

/// P9: an account's ledger entries.
#[utoipa::path(
    get, path = "/v1/accounts/{account_id}/ledger", operation_id = "account_ledger", tag = "ledger",
    params(("account_id" = String, Path, description = "The account, or a house account"), PageParams),
    responses(
        (status = 200, description = "A page of entries in their order", body = Page<LedgerRow>),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "ACCOUNT_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn account_ledger(
    server: Data<PaymentResource>,
    Id(account_id): Id,
    Query(query): Query<PageParams>,
) -> Result<HttpResponse, ApiError> {
    let limit = bounds::limit(query.limit)?;
    let after = bounds::place(query.cursor.as_deref())?;
    let store = server.payments.store();
    if !bounds::is_house(&account_id) && store.account(account_id.clone(), server.within).await?.is_none() {
        return Err(render::account_not_found());
    }
    let entries = store.ledger(Some(account_id), after, limit + 1, server.within).await?;
    let page = render::page(entries, limit, |entry| entry.entry_id.to_string(), render::ledger);
    Ok(HttpResponse::Ok().json(page))
}

/// How the ledger is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// Comma separated values.
    Csv,
    /// One JSON object a line.
    Jsonl,
    /// Plain-text accounting, for beancount.
    Beancount,
    /// Plain-text accounting, for hledger.
    Hledger,
    /// ISO 20022 bank-to-customer statement.
    Camt053,
}

/// Which export.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportParams {
    /// How it is written.
    #[param(inline)]
    format: Format,
    /// Only this account: its legs as csv and jsonl, its facts with both legs as beancount and hledger, its statement as
    /// camt053 (a client's account only).
    #[param(
        pattern = "^([A-Za-z0-9_:-][A-Za-z0-9._:-]{0,63}|[.][A-Za-z0-9_:-][A-Za-z0-9._:-]{0,62}|[.][.][A-Za-z0-9._:-]{1,62})$"
    )]
    account_id: Option<String>,
    /// Only entries from this instant on: a day (00:00 UTC) or an instant with its zone.
    #[param(example = "2026-01-01")]
    from: Option<String>,
    /// Only entries before this instant: a day (00:00 UTC) or an instant with its zone.
    #[param(example = "2026-02-01")]
    to: Option<String>,
}

/// P9: the ledger as text: all of it, or a period, or one account. Every day and instant in it is UTC. An answer that
/// ends without its last chunk is not whole.
#[utoipa::path(
    get, path = "/v1/ledger/export", operation_id = "export_ledger", tag = "ledger",
    params(ExportParams),
    responses(
        (status = 200, description = "The ledger up to the entry that was the last when it began", content(
            (String = "text/csv"), (String = "application/x-ndjson"), (String = "text/plain"), (String = "application/xml"),
        )),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "ACCOUNT_NOT_FOUND", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn export_ledger(
    server: Data<PaymentResource>,
    caller: Caller,
    Query(query): Query<ExportParams>,
) -> Result<HttpResponse, ApiError> {
    if let Some(account_id) = &query.account_id {
        bounds::account_id(account_id)?;
    }
    let wanted = export::Wanted {
        format: query.format,
        period: export::Period::parse(query.from.as_deref(), query.to.as_deref())?,
        account_id: query.account_id,
    };
    export::answer(wanted, &server, caller).await
}

/// P9: nothing is asked but the route.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoParams {}

/// P9: whether the ledger holds together.
#[utoipa::path(
    get, path = "/v1/ledger/verify", operation_id = "verify_ledger", tag = "ledger",
    responses(
        (status = 200, description = "ok is true when nothing is wrong; else one sentence for each violation", body = VerifyAnswer),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn verify_ledger(
    server: Data<PaymentResource>,
    Query(NoParams {}): Query<NoParams>,
) -> Result<HttpResponse, ApiError> {
    let report = server.payments.store().verify(VERIFY_WITHIN).await?;
    if !report.violations.is_empty() {
        tracing::error!(
            event = "ledger_violated",
            count = report.violations.len(),
            first = report.violations[0]
        );
    }
    Ok(HttpResponse::Ok().json(VerifyAnswer {
        ok: report.violations.is_empty(),
        violations: report.violations,
    }))
}
