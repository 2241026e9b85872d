//! Reads: each list in an order that a cursor can go on from, each along an index.

use super::rows::{
    ACCOUNT_COLUMNS, PAYOUT_COLUMNS, account as account_row, odd, payout as payout_row, signed, state, unsigned,
};
use crate::{Account, AuditRow, Payout, PayoutQuery, PayoutState, Tally, TransitionRow};
use lock_api::StoreError;
use pg_kit::{Param, Transactions};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// The rows of one statement.
async fn rows(
    database: &Transactions,
    within: Duration,
    sql: &str,
    params: &[Param<'_>],
) -> Result<Vec<Row>, StoreError> {
    let mut answers = database.read(within, &[(sql, params)]).await?;
    answers.pop().ok_or_else(|| odd("a list"))
}

pub(super) async fn account(
    database: &Transactions,
    account_id: &str,
    within: Duration,
) -> Result<Option<Account>, StoreError> {
    let sql = format!("SELECT {ACCOUNT_COLUMNS} FROM account a WHERE a.account_id = $1");
    let found = rows(database, within, &sql, &[(&account_id, Type::TEXT)]).await?;
    Ok(found.first().map(account_row))
}

pub(super) async fn accounts(
    database: &Transactions,
    after: Option<&str>,
    limit: u32,
    within: Duration,
) -> Result<Vec<Account>, StoreError> {
    let sql = format!("SELECT {ACCOUNT_COLUMNS} FROM account a WHERE a.account_id > $1 ORDER BY a.account_id LIMIT $2");
    let after = after.unwrap_or("");
    let params: [Param<'_>; 2] = [(&after, Type::TEXT), (&i64::from(limit), Type::INT8)];
    Ok(rows(database, within, &sql, &params)
        .await?
        .iter()
        .map(account_row)
        .collect())
}

pub(super) async fn payout(
    database: &Transactions,
    payout_id: &str,
    within: Duration,
) -> Result<Option<Payout>, StoreError> {
    let sql = format!("SELECT {PAYOUT_COLUMNS} FROM payout WHERE payout_id = $1");
    let found = rows(database, within, &sql, &[(&payout_id, Type::TEXT)]).await?;
    found.first().map(payout_row).transpose()
}

pub(super) async fn payouts(
    database: &Transactions,
    query: &PayoutQuery,
    within: Duration,
) -> Result<Vec<Payout>, StoreError> {
    let state = query.state.map(PayoutState::as_str);
    // Only what is asked for stands in the statement, so that each combination has its index.
    let filter = match (&query.account_id, state) {
        (None, None) => "$3::text IS NULL AND $4::text IS NULL",
        (Some(_), None) => "account_id = $3 AND $4::text IS NULL",
        (None, Some(_)) => "$3::text IS NULL AND state = $4",
        (Some(_), Some(_)) => "account_id = $3 AND state = $4",
    };
    let sql = format!("SELECT {PAYOUT_COLUMNS} FROM payout WHERE seq > $1 AND {filter} ORDER BY seq LIMIT $2");
    let params: [Param<'_>; 4] = [
        (&signed(query.after), Type::INT8),
        (&i64::from(query.limit), Type::INT8),
        (&query.account_id, Type::TEXT),
        (&state, Type::TEXT),
    ];
    rows(database, within, &sql, &params)
        .await?
        .iter()
        .map(payout_row)
        .collect()
}

pub(super) async fn history(
    database: &Transactions,
    payout_id: &str,
    after: u64,
    limit: u32,
    within: Duration,
) -> Result<Option<Vec<TransitionRow>>, StoreError> {
    let answers = database
        .read(
            within,
            &[
                ("SELECT 1 FROM payout WHERE payout_id = $1", &[(&payout_id, Type::TEXT)]),
                (
                    "SELECT seq, payout_id, from_state, to_state, token, actor, at, detail FROM payout_transition
                      WHERE payout_id = $1 AND seq > $2 ORDER BY seq LIMIT $3",
                    &[
                        (&payout_id, Type::TEXT),
                        (&signed(after), Type::INT8),
                        (&i64::from(limit), Type::INT8),
                    ],
                ),
            ],
        )
        .await?;
    let [known, steps] = answers.as_slice() else {
        return Err(odd("a history"));
    };
    if known.is_empty() {
        return Ok(None);
    }
    let step = |row: &Row| -> Result<TransitionRow, StoreError> {
        Ok(TransitionRow {
            seq: unsigned(row.get(0)),
            payout_id: row.get(1),
            from_state: row.get::<_, Option<&str>>(2).map(state).transpose()?,
            to_state: state(row.get(3))?,
            token: row.get::<_, Option<i64>>(4).map(unsigned),
            actor: row.get(5),
            at_ms: row.get(6),
            detail: row.get(7),
        })
    };
    steps.iter().map(step).collect::<Result<_, _>>().map(Some)
}

pub(super) async fn audit(
    database: &Transactions,
    after: u64,
    limit: u32,
    within: Duration,
) -> Result<Vec<AuditRow>, StoreError> {
    let params: [Param<'_>; 2] = [(&signed(after), Type::INT8), (&i64::from(limit), Type::INT8)];
    let facts = rows(
        database,
        within,
        "SELECT seq, at, kind, account_id, payout_id, token, actor, reason FROM payment_event
          WHERE seq > $1 ORDER BY seq LIMIT $2",
        &params,
    )
    .await?;
    Ok(facts
        .iter()
        .map(|row| AuditRow {
            seq: unsigned(row.get(0)),
            at_ms: row.get(1),
            kind: row.get(2),
            account_id: row.get(3),
            payout_id: row.get(4),
            token: row.get::<_, Option<i64>>(5).map(unsigned),
            actor: row.get(6),
            reason: row.get(7),
        })
        .collect())
}

pub(super) async fn tally(database: &Transactions, within: Duration) -> Result<Tally, StoreError> {
    let answers = database
        .read(
            within,
            &[
                ("SELECT state, n FROM payout_tally", &[]),
                (
                    // The oldest is found by the index; only what is unfunded and older is looked at before it.
                    "SELECT (SELECT p.created_at FROM payout p JOIN account a ON a.account_id = p.account_id
                             WHERE p.state IN ('PENDING', 'CLAIMED') AND (p.state = 'CLAIMED'
                                OR p.amount_minor <= a.balance_minor - (SELECT coalesce(sum(h.amount_minor), 0)
                                    FROM payout h WHERE h.account_id = p.account_id
                                    AND h.state IN ('CLAIMED', 'RAIL_AMBIGUOUS')))
                             ORDER BY p.created_at LIMIT 1),
                            (SELECT min(ambiguous_since) FROM payout WHERE state = 'RAIL_AMBIGUOUS'),
                            (SELECT count(*) FROM payout WHERE state = 'RAIL_AMBIGUOUS' AND escalated_at IS NOT NULL),
                            pay_now_ms()",
                    &[],
                ),
            ],
        )
        .await?;
    let [counts, oldest] = answers.as_slice() else {
        return Err(odd("the tally"));
    };
    let oldest = oldest.first().ok_or_else(|| odd("the tally"))?;
    let mut by_state: Vec<(PayoutState, u64)> = PayoutState::ALL.into_iter().map(|state| (state, 0)).collect();
    for row in counts {
        let known = state(row.get(0))?;
        for entry in by_state.iter_mut().filter(|entry| entry.0 == known) {
            entry.1 = unsigned(row.get(1));
        }
    }
    Ok(Tally {
        by_state,
        oldest_open_ms: oldest.get(0),
        oldest_ambiguous_ms: oldest.get(1),
        escalated: unsigned(oldest.get(2)),
        now_ms: oldest.get(3),
    })
}
