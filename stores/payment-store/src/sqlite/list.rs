//! Lists: each in an order that a cursor can go on from, each along an index.

use super::rows::{ACCOUNT_COLUMNS, PAYOUT_COLUMNS, account_row, damaged, payout_row, signed, state, unsigned};
use crate::{Account, AuditRow, Payout, PayoutQuery, PayoutState, Tally, TransitionRow};
use rusqlite::{Connection, OptionalExtension, params};

pub(super) fn accounts(db: &Connection, after: Option<&str>, limit: u32) -> rusqlite::Result<Vec<Account>> {
    db.prepare_cached(&format!(
        "SELECT {ACCOUNT_COLUMNS} FROM account a WHERE a.account_id > ?1 ORDER BY a.account_id LIMIT ?2"
    ))?
    .query_map(params![after.unwrap_or(""), limit], account_row)?
    .collect()
}

pub(super) fn payouts(db: &Connection, query: &PayoutQuery) -> rusqlite::Result<Vec<Payout>> {
    let state = query.state.map(PayoutState::as_str);
    let filter = match (&query.account_id, state) {
        (None, None) => "?3 IS NULL AND ?4 IS NULL",
        (Some(_), None) => "account_id = ?3 AND ?4 IS NULL",
        (None, Some(_)) => "?3 IS NULL AND state = ?4",
        (Some(_), Some(_)) => "account_id = ?3 AND state = ?4",
    };
    db.prepare_cached(&format!(
        "SELECT {PAYOUT_COLUMNS} FROM payout WHERE seq > ?1 AND {filter} ORDER BY seq LIMIT ?2"
    ))?
    .query_map(
        params![signed(query.after), query.limit, query.account_id, state],
        payout_row,
    )?
    .collect()
}

pub(super) fn history(
    db: &Connection,
    payout_id: &str,
    after: u64,
    limit: u32,
) -> rusqlite::Result<Option<Vec<TransitionRow>>> {
    if !db
        .prepare_cached("SELECT 1 FROM payout WHERE payout_id = ?1")?
        .exists([payout_id])?
    {
        return Ok(None);
    }
    db.prepare_cached(
        "SELECT seq, payout_id, from_state, to_state, token, actor, at, detail FROM payout_transition
          WHERE payout_id = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
    )?
    .query_map(params![payout_id, signed(after), limit], |row| {
        Ok(TransitionRow {
            seq: unsigned(row.get(0)?),
            payout_id: row.get(1)?,
            from_state: match row.get::<_, Option<String>>(2)? {
                None => None,
                Some(_) => Some(state(row, 2)?),
            },
            to_state: state(row, 3)?,
            token: row.get::<_, Option<i64>>(4)?.map(unsigned),
            actor: row.get(5)?,
            at_ms: row.get(6)?,
            detail: row.get(7)?,
        })
    })?
    .collect::<Result<_, _>>()
    .map(Some)
}

pub(super) fn audit(db: &Connection, after: u64, limit: u32) -> rusqlite::Result<Vec<AuditRow>> {
    db.prepare_cached(
        "SELECT seq, at, kind, account_id, payout_id, token, actor, reason FROM payment_event
          WHERE seq > ?1 ORDER BY seq LIMIT ?2",
    )?
    .query_map(params![signed(after), limit], |row| {
        Ok(AuditRow {
            seq: unsigned(row.get(0)?),
            at_ms: row.get(1)?,
            kind: row.get(2)?,
            account_id: row.get(3)?,
            payout_id: row.get(4)?,
            token: row.get::<_, Option<i64>>(5)?.map(unsigned),
            actor: row.get(6)?,
            reason: row.get(7)?,
        })
    })?
    .collect()
}

pub(super) fn tally(db: &Connection, now_ms: i64) -> rusqlite::Result<Tally> {
    let mut by_state: Vec<(PayoutState, u64)> = PayoutState::ALL.into_iter().map(|state| (state, 0)).collect();
    let mut counts = db.prepare_cached("SELECT state, n FROM payout_tally")?;
    let mut rows = counts.query([])?;
    while let Some(row) = rows.next()? {
        let text: String = row.get(0)?;
        let known = PayoutState::parse(&text).ok_or_else(|| damaged(0, format!("{text:?} is no state")))?;
        for entry in by_state.iter_mut().filter(|entry| entry.0 == known) {
            entry.1 = unsigned(row.get(1)?);
        }
    }
    let one = |sql: &str| -> rusqlite::Result<Option<i64>> {
        db.prepare_cached(sql)?
            .query_row([], |row| row.get(0))
            .optional()
            .map(Option::flatten)
    };
    Ok(Tally {
        by_state,
        // The oldest is found by the index; only what is unfunded and older is looked at before it.
        oldest_open_ms: one(
            "SELECT p.created_at FROM payout p INDEXED BY payout_open JOIN account a ON a.account_id = p.account_id
             WHERE p.state IN ('PENDING', 'CLAIMED') AND (p.state = 'CLAIMED' OR p.amount_minor <= a.balance_minor -
                (SELECT coalesce(sum(h.amount_minor), 0) FROM payout h
                 WHERE h.account_id = p.account_id AND h.state IN ('CLAIMED', 'RAIL_AMBIGUOUS')))
             ORDER BY p.created_at LIMIT 1",
        )?,
        oldest_ambiguous_ms: one("SELECT min(ambiguous_since) FROM payout WHERE state = 'RAIL_AMBIGUOUS'")?,
        escalated: one("SELECT count(*) FROM payout WHERE state = 'RAIL_AMBIGUOUS' AND escalated_at IS NOT NULL")?
            .map_or(0, unsigned),
        now_ms,
    })
}
