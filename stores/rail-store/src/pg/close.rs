//! R8: an exception is closed, once (case P23).

use super::At;
use super::rows::{EXCEPTION_LOCKED, exceptions_of, signed};
use super::writes::Writes;
use crate::{CloseException, CloseOutcome, decide};
use pg_kit::{Param, Stopped, Transaction};
use tokio_postgres::types::Type;

pub(super) async fn close(tx: Transaction, at: At, close: &CloseException) -> Result<CloseOutcome, Stopped> {
    let seq = signed(close.seq);
    let params: [Param<'_>; 1] = [(&seq, Type::INT8)];
    let (tx, answers) = tx.flight(&[(EXCEPTION_LOCKED, &params)]).await?;
    let outcome = decide::close(close, exceptions_of(&answers, 0)?.pop(), at.now);
    let mut writes = Writes::default();
    if let CloseOutcome::Closed(_) = outcome {
        writes.close(close, at.now);
    }
    writes.end(tx).await?;
    Ok(outcome)
}
