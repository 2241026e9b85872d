//! Whether this paydb is the one that was written here, or one that was restored or moved (case D13).
//!
//! A restored database has lost submissions that the rail has executed. From the first transaction that notices it, a
//! payout without a submission is sent only after the rail was asked about it in this epoch.

use super::At;
use super::rows::{OF_PAYOUT, PAYOUT, get, known, natural, nth, one};
use super::writes::Writes;
use crate::payout::Known;
use lock_api::{StoreError, UnixMillis};
use pg_kit::{Param, Stopped, Transaction};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// The history, and whether the rail was asked in this epoch and knew nothing of the payout `$1`. Whether it stands is judged
/// by the very row that the epoch is read from: `pay_lineage_stands()` looks anew, and beside the epoch of the row as it was
/// before would say of a restored database that it stands and was never restored, when another proxy records the new epoch
/// in between.
pub(super) const EPOCH: &str =
    "SELECT coalesce(l.origin = pay_origin() AND l.xmin = l.written_by::xid, false), l.epoch, l.restored_at,
        EXISTS (SELECT 1 FROM rail_lookup AS k
                 WHERE k.payout_id = $1 AND k.epoch = l.epoch AND k.verdict = 'NOT_RECEIVED')
   FROM pay_lineage AS l WHERE l.id = 1";

/// What [`EPOCH`] answers.
pub(super) struct Epoch {
    /// False: the database was restored or moved, and nobody has recorded it yet.
    pub stands: bool,
    /// When the latest restore was noticed; none: never.
    pub since: Option<UnixMillis>,
    /// The rail must be asked before a payout without a submission is sent.
    pub rail_unasked: bool,
}

impl Epoch {
    /// Reads what the `n`th statement of a flight answered.
    pub fn of(answers: &[Vec<Row>], n: usize) -> Result<Self, StoreError> {
        let row = one(answers, n)?;
        let (number, asked): (u64, bool) = (natural(row, 1)?, get(row, 3)?);
        Ok(Self {
            stands: get(row, 0)?,
            since: get::<Option<i64>>(row, 2)?.map(UnixMillis),
            rail_unasked: number > 0 && !asked,
        })
    }
}

/// Records a new epoch, once, whoever else notices the same. The row is judged again after its lock was waited for.
pub(super) async fn begin(tx: Transaction, at: At) -> Result<(), Stopped> {
    let now = at.now.0;
    let params: [Param<'_>; 1] = [(&now, Type::INT8)];
    let sql = "UPDATE pay_lineage SET epoch = epoch + 1, restored_at = $1, changed_at = $1, changed_by = 'rail-proxy',
                      detail = 'restored or moved: written on ' || origin || ', found on ' || pay_origin(),
                      origin = pay_origin(), written_by = pg_current_xact_id()
                WHERE id = 1 AND NOT (origin = pay_origin() AND xmin = written_by::xid)
            RETURNING epoch, detail";
    let answers = tx.commit(&[(sql, &params)]).await?;
    if let Some(row) = nth(&answers, 0)?.first() {
        let (epoch, detail): (i64, String) = (get(row, 0)?, get(row, 1)?);
        tracing::error!(
            event = "paydb_restored",
            epoch,
            detail,
            "the rail is asked about each payout before it is sent"
        );
    }
    Ok(())
}

/// Whether the rail must be asked about a payout that has no submission. None: to be asked again in a new epoch.
pub(super) async fn rail_unasked(tx: Transaction, payout_id: &str) -> Result<Option<bool>, Stopped> {
    let params: [Param<'_>; 1] = [(&payout_id, Type::TEXT)];
    let (tx, answers) = tx
        .flight(&[(OF_PAYOUT, &params), (PAYOUT, &params), (EPOCH, &params)])
        .await?;
    let epoch = Epoch::of(&answers, 2)?;
    let is_payout = matches!(known(&answers, 1)?, Known::Payout(_));
    let submitted = !nth(&answers, 0)?.is_empty();
    Writes::default().end(tx).await?;
    Ok(epoch.stands.then_some(epoch.rail_unasked && is_payout && !submitted))
}
