//! The ledger as text, in five forms. Streamed page by page, so that its size does not matter: up to the entry that was
//! the last one when the export began.
//!
//! On failure: before the first byte a problem; after it the answer is cut off, so that a half export cannot be taken
//! for a whole one.

mod beancount;
mod camt053;
mod csv;
mod hledger;
mod jsonl;
mod pairs;

use crate::routes::{Format, PaymentResource};
use actix_web::HttpResponse;
use bytes::Bytes;
use futures_util::stream;
use gateway_kit::ApiError;
use lock_api::StoreError;
use payment_core::Payments;
use payment_store::{Account, LedgerRow};
use std::time::Duration;
use tokio::sync::mpsc;

/// How many rows are read at once.
const PAGE_ROWS: u32 = 1_000;

/// How many pages may wait for a slow reader.
const PAGES_WAITING_MAX: usize = 4;

/// Why an export ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cut {
    /// The reader has gone.
    #[error("the reader has gone")]
    Gone,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A row could not be written.
    #[error("{0}")]
    Format(String),
}

/// Where an export reads and writes.
pub(crate) struct Out {
    payments: Payments,
    within: Duration,
    /// The last entry of the export; what is written later is not in it.
    last_entry: u64,
    to: mpsc::Sender<Result<Bytes, Cut>>,
}

impl Out {
    async fn write(&self, text: impl Into<Bytes>) -> Result<(), Cut> {
        let text = text.into();
        if text.is_empty() {
            return Ok(());
        }
        self.to.send(Ok(text)).await.map_err(|_| Cut::Gone)
    }

    /// A page of entries after `after`; none when it is the end.
    async fn entries(&self, account_id: Option<&str>, after: u64) -> Result<Option<Vec<LedgerRow>>, Cut> {
        let store = self.payments.store();
        let mut rows = store
            .ledger(account_id.map(str::to_owned), after, PAGE_ROWS, self.within)
            .await?;
        rows.retain(|row| row.entry_id <= self.last_entry);
        Ok(Some(rows).filter(|rows| !rows.is_empty()))
    }

    /// A page of accounts after `after`; none when it is the end.
    async fn accounts(&self, after: Option<String>) -> Result<Option<Vec<Account>>, Cut> {
        let rows = self.payments.store().accounts(after, PAGE_ROWS, self.within).await?;
        Ok(Some(rows).filter(|rows| !rows.is_empty()))
    }
}

/// The answer of an export.
pub(crate) async fn answer(format: Format, server: &PaymentResource) -> Result<HttpResponse, ApiError> {
    let last_entry = server.payments.store().last_entry(server.within).await?;
    let (to, from) = mpsc::channel(PAGES_WAITING_MAX);
    let out = Out {
        payments: server.payments.clone(),
        within: server.within,
        last_entry,
        to: to.clone(),
    };
    let now_ms = server.host.clock.wall_ms();
    actix_web::rt::spawn(async move {
        let written = match format {
            Format::Csv => csv::write(&out).await,
            Format::Jsonl => jsonl::write(&out).await,
            Format::Beancount => beancount::write(&out).await,
            Format::Hledger => hledger::write(&out).await,
            Format::Camt053 => camt053::write(&out, now_ms).await,
        };
        if let Err(cut) = written {
            tracing::warn!(event = "export_cut", error = %cut);
            // Nobody may be left to be told.
            let _ = to.send(Err(cut)).await;
        }
    });
    let (content_type, name) = match format {
        Format::Csv => ("text/csv; charset=utf-8", "ledger.csv"),
        Format::Jsonl => ("application/x-ndjson", "ledger.jsonl"),
        Format::Beancount => ("text/plain; charset=utf-8", "ledger.beancount"),
        Format::Hledger => ("text/plain; charset=utf-8", "ledger.journal"),
        Format::Camt053 => ("application/xml", "ledger.xml"),
    };
    let pages = stream::unfold(
        from,
        |mut from| async move { from.recv().await.map(|page| (page, from)) },
    );
    Ok(HttpResponse::Ok()
        .content_type(content_type)
        .insert_header(("Content-Disposition", format!("attachment; filename=\"{name}\"")))
        .streaming(pages))
}
