//! The ledger as text, in five forms, of all accounts or of one, of all time or of a period. Streamed page by page, so
//! that its size does not matter: up to the entry that was the last one when the export began. Every day and instant in
//! it is UTC.
//!
//! On failure: before the first byte a problem; after it the connection is closed without the last chunk, so that a half
//! export cannot be taken for a whole one. A task that died without a word counts as a failure.

mod beancount;
mod camt053;
mod csv;
mod hledger;
mod jsonl;
mod pairs;
mod period;

pub(crate) use period::Period;

use crate::routes::{Format, PaymentResource};
use crate::{bounds, render};
use actix_web::HttpResponse;
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use gateway_kit::{ApiError, Caller};
use lock_api::StoreError;
use payment_core::Payments;
use payment_store::{Account, LedgerRow};
use std::collections::BTreeMap;
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
    /// A sum is beyond what can be counted or written.
    #[error("the sum of account {0} is beyond what an export can say")]
    Sum(String),
    /// The task ended without an end.
    #[error("the export's task died")]
    Died,
}

/// What is exported.
pub(crate) struct Wanted {
    pub format: Format,
    /// Of this account alone.
    pub account_id: Option<String>,
    /// Of this time alone.
    pub period: Period,
}

/// A piece of the answer. Without [`Piece::End`] it is not whole.
enum Piece {
    Text(Bytes),
    End,
}

/// Where an export reads and writes.
pub(crate) struct Out {
    payments: Payments,
    within: Duration,
    /// The last entry of the export; what is written later is not in it.
    last_entry: u64,
    /// The one client account, where one was asked for.
    account: Option<Account>,
    /// The account whose legs, or whose facts, are written; a house account has no row.
    account_id: Option<String>,
    period: Period,
    to: mpsc::Sender<Result<Piece, Cut>>,
}

impl Out {
    async fn write(&self, text: impl Into<Bytes>) -> Result<(), Cut> {
        let text = text.into();
        if text.is_empty() {
            return Ok(());
        }
        self.to.send(Ok(Piece::Text(text))).await.map_err(|_| Cut::Gone)
    }

    /// Entries of the whole time, in order: of one account or of all.
    fn all_entries(&self, account_id: Option<&str>) -> Entries<'_> {
        Entries {
            out: self,
            account_id: account_id.map(str::to_owned),
            period: Period::default(),
            after: 0,
            ended: false,
        }
    }

    /// Entries of the period, in order: of one account or of all.
    fn entries(&self, account_id: Option<&str>) -> Entries<'_> {
        Entries {
            period: self.period,
            ..self.all_entries(account_id)
        }
    }

    /// A page of the accounts that are exported, after `after`; none when it is the end.
    async fn accounts(&self, after: Option<String>) -> Result<Option<Vec<Account>>, Cut> {
        if let Some(account) = &self.account {
            return Ok(after.is_none().then(|| vec![account.clone()]));
        }
        let rows = self.payments.store().accounts(after, PAGE_ROWS, self.within).await?;
        Ok(Some(rows).filter(|rows| !rows.is_empty()))
    }

    /// What the entries of each account come to, before the period and in it.
    async fn sums(&self) -> Result<BTreeMap<String, Sums>, Cut> {
        let mut found: BTreeMap<String, Sums> = BTreeMap::new();
        let mut entries = self.all_entries(self.account_id.as_deref());
        while let Some(rows) = entries.next().await? {
            for row in rows {
                let place = self.period.place(row.at_ms);
                if place.is_gt() {
                    continue;
                }
                let sums = found.entry(row.account_id.clone()).or_default();
                let sum = if place.is_lt() {
                    &mut sums.before
                } else {
                    &mut sums.within
                };
                *sum = sum
                    .checked_add(i128::from(row.amount_minor))
                    .ok_or_else(|| Cut::Sum(row.account_id.clone()))?;
                if place.is_eq() {
                    sums.last_entry = row.entry_id;
                    let first = sums.first_at_ms.get_or_insert(row.at_ms);
                    *first = row.at_ms.min(*first);
                    sums.last_at_ms = Some(sums.last_at_ms.map_or(row.at_ms, |last| row.at_ms.max(last)));
                }
            }
        }
        Ok(found)
    }

    /// The first lines of a form of plain-text accounting: what is in it, and by which clock.
    fn about(&self) -> String {
        let mut text = format!("; days and times are UTC; {}\n", self.period);
        if let Some(account_id) = &self.account_id {
            text.push_str(&format!("; of account {account_id}\n"));
        }
        text
    }
}

/// What an account's entries come to.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Of the entries before the period.
    before: i128,
    /// Of those in it.
    within: i128,
    /// The instants of the first and the last entry in the period.
    first_at_ms: Option<i64>,
    last_at_ms: Option<i64>,
    /// The last entry in the period; 0 where there is none.
    last_entry: u64,
}

impl Sums {
    /// The balance at the beginning of the period, and at its end.
    fn balances(&self, account: &Account) -> Result<(i128, i128), Cut> {
        let beyond = || Cut::Sum(account.account_id.clone());
        let opening = i128::from(account.opening_balance_minor).checked_add(self.before);
        let opening = opening.ok_or_else(beyond)?;
        Ok((opening, opening.checked_add(self.within).ok_or_else(beyond)?))
    }
}

/// Entries in order, page by page.
struct Entries<'o> {
    out: &'o Out,
    account_id: Option<String>,
    period: Period,
    after: u64,
    ended: bool,
}

impl Entries<'_> {
    /// The next page that has any entry of the export; none when it is the end.
    async fn next(&mut self) -> Result<Option<Vec<LedgerRow>>, Cut> {
        while !self.ended {
            let store = self.out.payments.store();
            let mut rows = store
                .ledger(self.account_id.clone(), self.after, PAGE_ROWS, self.out.within)
                .await?;
            let Some(last) = rows.last() else { break };
            self.after = last.entry_id;
            self.ended = self.after >= self.out.last_entry;
            rows.retain(|row| row.entry_id <= self.out.last_entry && self.period.place(row.at_ms).is_eq());
            if !rows.is_empty() {
                return Ok(Some(rows));
            }
        }
        self.ended = true;
        Ok(None)
    }
}

/// The answer of an export.
pub(crate) async fn answer(wanted: Wanted, server: &PaymentResource, caller: Caller) -> Result<HttpResponse, ApiError> {
    let Wanted {
        format,
        account_id,
        period,
    } = wanted;
    let seat = server.exports.take(caller, 1)?;
    let store = server.payments.store();
    let account = match &account_id {
        Some(id) if bounds::is_house(id) => {
            if format == Format::Camt053 {
                let reason = "must be a client's account: a house account has no statement";
                return Err(ApiError::invalid("account_id", reason));
            }
            None
        }
        Some(id) => match store.account(id.clone(), server.within).await? {
            Some(account) => Some(account),
            None => return Err(render::account_not_found()),
        },
        None => None,
    };
    let last_entry = store.last_entry(server.within).await?;
    let (to, from) = mpsc::channel(PAGES_WAITING_MAX);
    let out = Out {
        payments: server.payments.clone(),
        within: server.within,
        last_entry,
        account,
        account_id,
        period,
        to: to.clone(),
    };
    actix_web::rt::spawn(async move {
        let _seat = seat;
        let written = match format {
            Format::Csv => csv::write(&out).await,
            Format::Jsonl => jsonl::write(&out).await,
            Format::Beancount => beancount::write(&out).await,
            Format::Hledger => hledger::write(&out).await,
            Format::Camt053 => camt053::write(&out).await,
        };
        // Nobody may be left to be told.
        let _ = to.send(written.map(|()| Piece::End)).await;
    });
    let (content_type, name) = match format {
        Format::Csv => ("text/csv; charset=utf-8", "ledger.csv"),
        Format::Jsonl => ("application/x-ndjson", "ledger.jsonl"),
        Format::Beancount => ("text/plain; charset=utf-8", "ledger.beancount"),
        Format::Hledger => ("text/plain; charset=utf-8", "ledger.journal"),
        Format::Camt053 => ("application/xml", "ledger.xml"),
    };
    Ok(HttpResponse::Ok()
        .content_type(content_type)
        .insert_header(("Content-Disposition", format!("attachment; filename=\"{name}\"")))
        .streaming(texts(from)))
}

/// The pieces as they are sent. Only [`Piece::End`] ends them well; any other end is an error, which closes the connection
/// without the last chunk.
fn texts(from: mpsc::Receiver<Result<Piece, Cut>>) -> impl Stream<Item = Result<Bytes, Cut>> {
    stream::unfold(Some(from), |from| async move {
        let mut from = from?;
        let cut = match from.recv().await {
            Some(Ok(Piece::Text(text))) => return Some((Ok(text), Some(from))),
            Some(Ok(Piece::End)) => return None,
            Some(Err(cut)) => cut,
            None => Cut::Died,
        };
        tracing::warn!(event = "export_cut", error = %cut);
        Some((Err(cut), None))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;

    async fn sent(pieces: Vec<Result<Piece, Cut>>) -> Vec<Result<Bytes, String>> {
        let (to, from) = mpsc::channel(8);
        for piece in pieces {
            to.send(piece).await.map_err(|_| ()).unwrap();
        }
        drop(to);
        texts(from)
            .map(|text| text.map_err(|cut| cut.to_string()))
            .collect()
            .await
    }

    #[tokio::test]
    async fn case_p26_only_an_export_that_says_its_end_ends_well() {
        let text = || Ok(Piece::Text(Bytes::from_static(b"a")));
        let whole = sent(vec![text(), text(), Ok(Piece::End)]).await;
        assert!(whole.len() == 2 && whole.iter().all(Result::is_ok));
        // A task that panics drops its end of the channel.
        let died = sent(vec![text()]).await;
        assert_eq!(died.last(), Some(&Err(Cut::Died.to_string())));
        let cut = sent(vec![text(), Err(Cut::Sum("a".into()))]).await;
        assert_eq!(cut.last(), Some(&Err(Cut::Sum("a".into()).to_string())));
    }

    #[test]
    fn case_p26_a_sum_that_overflows_is_an_error() {
        let account = Account {
            account_id: "a".into(),
            currency: "EUR".into(),
            opening_balance_minor: 1,
            balance_minor: 1,
            held_minor: 0,
            fence: 0,
        };
        let sums = |before, within| Sums {
            before,
            within,
            ..Sums::default()
        };
        assert_eq!(sums(1, 2).balances(&account).unwrap(), (2, 4));
        // Beyond 64 bits it is still exact.
        let far = i128::from(i64::MAX);
        assert_eq!(sums(far, far).balances(&account).unwrap(), (far + 1, 2 * far + 1));
        assert!(matches!(sums(i128::MAX, 0).balances(&account), Err(Cut::Sum(_))));
        assert!(matches!(sums(1, i128::MAX).balances(&account), Err(Cut::Sum(_))));
    }
}
