//! Locks: granted, renewed, given back, broken, seen and ended.

use super::rows::{Answer, SEAL_COLUMNS, int, seal, text, ttl_ms};
use super::store::{PgLockStore, detail_of, odd, texts, unknown_outcome};
use lock_api::{
    AcquireOutcome, AcquireRequest, EventQuery, ExpiredGrant, ExpiredSession, ExpiryReport, FloorOutcome, HeldByOther,
    KeyState, Lineage, LineageState, LockEvent, LockKey, LockStore, Operator, ReleaseOutcome, ReleaseRequest,
    RenewOutcome, RenewRequest, RevokeOutcome, RevokeRequest, Seal, SessionId, StoreError, StoreFuture, StoreHealth,
    YieldOutcome, YieldRequest,
};
use pg_kit::{Effect, Param};
use std::time::Duration;
use tokio_postgres::types::Type;

/// Above every key: a key has at most 256 bytes.
fn above_every_key() -> String {
    "\u{10ffff}".repeat(65)
}

/// The lowest text above all texts with this prefix.
fn above_prefix(prefix: &str) -> String {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        // The gap of the surrogates is stepped over.
        let next = match u32::from(last) {
            0xd7ff => Some('\u{e000}'),
            code => char::from_u32(code + 1),
        };
        if let Some(next) = next {
            chars.push(next);
            return chars.into_iter().collect();
        }
    }
    above_every_key()
}

pub(super) fn ended(answer: &Answer) -> Result<ExpiredGrant, StoreError> {
    Ok(ExpiredGrant {
        key: answer.key()?,
        token: answer.token()?,
        session_id: answer.session()?,
    })
}

impl LockStore for PgLockStore {
    fn acquire(&self, batch: Vec<AcquireRequest>, within: Duration) -> StoreFuture<'_, Vec<AcquireOutcome>> {
        Box::pin(async move {
            if batch.is_empty() {
                return Ok(Vec::new());
            }
            let keys = texts(batch.iter().map(|r| r.key.as_str()));
            let sessions = texts(batch.iter().map(|r| r.session_id.as_str()));
            let requests = texts(batch.iter().map(|r| r.request_id.as_str()));
            let ttls: Vec<i64> = batch.iter().map(|r| ttl_ms(r.ttl)).collect();
            let metadata: Vec<Option<&str>> = batch
                .iter()
                .map(|r| r.metadata.as_ref().map(lock_api::Metadata::as_str))
                .collect();
            let witnesses: Vec<Option<i64>> = batch.iter().map(|r| r.witness.map(|w| int(w.get()))).collect();
            let delays: Vec<i64> = batch.iter().map(|r| int(r.lock_delay.as_millis())).collect();
            self.answers(
                "lock_acquire",
                Effect::Writes,
                within,
                batch.len(),
                &[
                    (&keys, Type::TEXT_ARRAY),
                    (&sessions, Type::TEXT_ARRAY),
                    (&requests, Type::TEXT_ARRAY),
                    (&ttls, Type::INT8_ARRAY),
                    (&metadata, Type::TEXT_ARRAY),
                    (&witnesses, Type::INT8_ARRAY),
                    (&delays, Type::INT8_ARRAY),
                ],
                |answer| {
                    Ok(match answer.outcome.as_str() {
                        outcome @ ("GRANTED" | "REPLAYED") => AcquireOutcome::Granted {
                            grant: answer.grant()?,
                            replayed: outcome == "REPLAYED",
                        },
                        outcome @ ("HELD_BY_OTHER" | "HELD_BY_SELF") => AcquireOutcome::HeldByOther(HeldByOther {
                            holder: answer.grant()?,
                            is_self: outcome == "HELD_BY_SELF",
                        }),
                        "DELAYED" => AcquireOutcome::Delayed {
                            last_token: answer.token()?,
                            ends_in: answer.left().unwrap_or_default(),
                        },
                        "SESSION_NOT_FOUND" => AcquireOutcome::SessionNotFound,
                        "WITNESS_REFUSED" => AcquireOutcome::WitnessRefused {
                            highest_believed: answer.number()?,
                        },
                        "TOKEN_REGRESSION" => AcquireOutcome::TokenRegression {
                            detail: detail_of(answer),
                        },
                        _ => return unknown_outcome(),
                    })
                },
            )
            .await
        })
    }

    fn renew(&self, batch: Vec<RenewRequest>, within: Duration) -> StoreFuture<'_, Vec<RenewOutcome>> {
        Box::pin(async move {
            let keys = texts(batch.iter().map(|r| r.key.as_str()));
            let sessions = texts(batch.iter().map(|r| r.session_id.as_str()));
            let tokens: Vec<i64> = batch.iter().map(|r| int(r.token.get())).collect();
            let ttls: Vec<Option<i64>> = batch.iter().map(|r| r.ttl.map(ttl_ms)).collect();
            self.answers(
                "lock_renew",
                Effect::Writes,
                within,
                batch.len(),
                &[
                    (&keys, Type::TEXT_ARRAY),
                    (&sessions, Type::TEXT_ARRAY),
                    (&tokens, Type::INT8_ARRAY),
                    (&ttls, Type::INT8_ARRAY),
                ],
                |answer| {
                    Ok(match answer.outcome.as_str() {
                        "RENEWED" => RenewOutcome::Renewed(answer.grant()?),
                        "NOT_HOLDER" => RenewOutcome::NotHolder,
                        "NOT_FOUND" => RenewOutcome::NotFound,
                        _ => return unknown_outcome(),
                    })
                },
            )
            .await
        })
    }

    fn release(&self, batch: Vec<ReleaseRequest>, within: Duration) -> StoreFuture<'_, Vec<ReleaseOutcome>> {
        Box::pin(async move {
            if batch.is_empty() {
                return Ok(Vec::new());
            }
            let keys = texts(batch.iter().map(|r| r.key.as_str()));
            let sessions = texts(batch.iter().map(|r| r.session_id.as_str()));
            let tokens: Vec<i64> = batch.iter().map(|r| int(r.token.get())).collect();
            self.answers(
                "lock_release",
                Effect::Writes,
                within,
                batch.len(),
                &[
                    (&keys, Type::TEXT_ARRAY),
                    (&sessions, Type::TEXT_ARRAY),
                    (&tokens, Type::INT8_ARRAY),
                ],
                |answer| {
                    Ok(match answer.outcome.as_str() {
                        "RELEASED" => ReleaseOutcome::Released,
                        "ALREADY_FREE" => ReleaseOutcome::AlreadyFree,
                        "NOT_HOLDER" => ReleaseOutcome::NotHolder,
                        "NOT_FOUND" => ReleaseOutcome::NotFound,
                        _ => return unknown_outcome(),
                    })
                },
            )
            .await
        })
    }

    fn revoke(&self, request: RevokeRequest, within: Duration) -> StoreFuture<'_, RevokeOutcome> {
        Box::pin(async move {
            let reason = text(&request.reason);
            let mut answers = self
                .answers(
                    "lock_revoke",
                    Effect::Writes,
                    within,
                    1,
                    &[
                        (&request.key.as_str(), Type::TEXT),
                        (&int(request.revoke_token.get()), Type::INT8),
                        (&request.operator.as_str(), Type::TEXT),
                        (&reason, Type::TEXT),
                    ],
                    |answer| {
                        Ok(match answer.outcome.as_str() {
                            "REVOKED" => RevokeOutcome::Revoked {
                                revoked: answer.grant()?,
                                token: answer.minted()?,
                            },
                            "NOT_HOLDER" => RevokeOutcome::NotHolder {
                                holder: Box::new(answer.grant()?),
                            },
                            "NOT_HELD" => RevokeOutcome::NotHeld,
                            "NOT_FOUND" => RevokeOutcome::NotFound,
                            "TOKEN_REGRESSION" => RevokeOutcome::TokenRegression {
                                detail: detail_of(answer),
                            },
                            _ => return unknown_outcome(),
                        })
                    },
                )
                .await?;
            answers.pop().ok_or_else(odd)
        })
    }

    fn ask_to_yield(&self, request: YieldRequest, within: Duration) -> StoreFuture<'_, YieldOutcome> {
        Box::pin(async move {
            let reason = text(&request.reason);
            let mut answers = self
                .answers(
                    "lock_ask_to_yield",
                    Effect::Writes,
                    within,
                    1,
                    &[
                        (&request.key.as_str(), Type::TEXT),
                        (&int(request.token.get()), Type::INT8),
                        (&request.operator.as_str(), Type::TEXT),
                        (&reason, Type::TEXT),
                    ],
                    |answer| {
                        Ok(match answer.outcome.as_str() {
                            "ASKED" => YieldOutcome::Asked(answer.grant()?),
                            "NOT_HOLDER" => YieldOutcome::NotHolder {
                                holder: Box::new(answer.grant()?),
                            },
                            "NOT_HELD" => YieldOutcome::NotHeld,
                            "NOT_FOUND" => YieldOutcome::NotFound,
                            _ => return unknown_outcome(),
                        })
                    },
                )
                .await?;
            answers.pop().ok_or_else(odd)
        })
    }

    fn inspect(&self, keys: Vec<LockKey>, within: Duration) -> StoreFuture<'_, Vec<KeyState>> {
        Box::pin(async move {
            let names = texts(keys.iter().map(LockKey::as_str));
            self.answers(
                "lock_inspect",
                Effect::Reads,
                within,
                keys.len(),
                &[(&names, Type::TEXT_ARRAY)],
                Answer::state,
            )
            .await
        })
    }

    fn list(
        &self,
        prefix: String,
        after: Option<LockKey>,
        limit: u32,
        within: Duration,
    ) -> StoreFuture<'_, Vec<KeyState>> {
        Box::pin(async move {
            let (prefix, below) = (text(&prefix), above_prefix(&text(&prefix)));
            let rows = self
                .database
                .verb(
                    "lock_list",
                    Effect::Reads,
                    within,
                    &[
                        (&prefix, Type::TEXT),
                        (&after.as_ref().map_or("", LockKey::as_str), Type::TEXT),
                        (&below, Type::TEXT),
                        (&i64::from(limit), Type::INT8),
                    ],
                )
                .await?;
            let mut answers: Vec<_> = rows.iter().map(Answer::of).collect();
            answers.sort_by_key(|answer| answer.item().unwrap_or(usize::MAX));
            answers
                .iter()
                // One that was purged between the page and its rows.
                .filter(|answer| answer.outcome != "UNKNOWN")
                .map(Answer::state)
                .collect()
        })
    }

    fn expire_due(&self, limit: u32, within: Duration) -> StoreFuture<'_, ExpiryReport> {
        Box::pin(async move {
            let params: [Param<'_>; 1] = [(&i64::from(limit), Type::INT8)];
            let rows = self
                .database
                .verb("lock_expire", Effect::Writes, within, &params)
                .await?;
            let mut report = ExpiryReport::default();
            let mut released = Vec::new();
            for answer in rows.iter().map(Answer::of) {
                match answer.outcome.as_str() {
                    "EXPIRED" => report.grants.push(ended(&answer)?),
                    "RELEASED" => released.push(ended(&answer)?),
                    "SESSION_EXPIRED" => report.sessions.push(ExpiredSession {
                        session_id: answer.session()?,
                        released: Vec::new(),
                    }),
                    "MORE" | "END" => {
                        report.more = answer.outcome == "MORE";
                        report.next_due_in = answer.left();
                    }
                    _ => return unknown_outcome(),
                }
            }
            let place: std::collections::HashMap<SessionId, usize> = report
                .sessions
                .iter()
                .enumerate()
                .map(|(at, session)| (session.session_id.clone(), at))
                .collect();
            for grant in released {
                match place.get(&grant.session_id).and_then(|at| report.sessions.get_mut(*at)) {
                    Some(session) => session.released.push(grant),
                    None => report.grants.push(grant),
                }
            }
            Ok(report)
        })
    }

    fn purge_tombstones(&self, retention: Duration, limit: u32, within: Duration) -> StoreFuture<'_, u32> {
        Box::pin(self.dropped("lock_purge", retention, limit, within))
    }

    fn events(&self, query: EventQuery, within: Duration) -> StoreFuture<'_, Vec<LockEvent>> {
        Box::pin(self.read_events(query, within))
    }

    fn changed_since(&self, after: u64, within: Duration) -> StoreFuture<'_, u64> {
        Box::pin(self.wait_for_change(after, within))
    }

    fn seal(&self, limit: u32, within: Duration) -> StoreFuture<'_, Option<Seal>> {
        Box::pin(self.seal_next(limit, within))
    }

    fn seals(&self, after: u64, limit: u32, within: Duration) -> StoreFuture<'_, Vec<Seal>> {
        Box::pin(async move {
            let sql = format!(
                "SELECT {SEAL_COLUMNS} FROM {}.lock_event_seal WHERE first_seq > $1 ORDER BY first_seq LIMIT $2",
                self.database.schema
            );
            let params: [Param<'_>; 2] = [(&int(after), Type::INT8), (&i64::from(limit), Type::INT8)];
            let rows = self.database.statement(&sql, Effect::Reads, within, &params).await?;
            rows.iter().map(seal).collect()
        })
    }

    fn drop_sealed(&self, retention: Duration, limit: u32, within: Duration) -> StoreFuture<'_, u32> {
        Box::pin(self.dropped("lock_drop_sealed", retention, limit, within))
    }

    fn lineage(&self, within: Duration) -> StoreFuture<'_, Lineage> {
        Box::pin(async move {
            let sql = format!("SELECT * FROM {}.lock_lineage_row()", self.database.schema);
            let rows = self.database.statement(&sql, Effect::Reads, within, &[]).await?;
            rows.first()
                .map(Answer::of)
                .ok_or_else(super::call::no_lineage)?
                .lineage()
        })
    }

    fn advance_floor(
        &self,
        floor: u64,
        operator: Operator,
        reason: String,
        within: Duration,
    ) -> StoreFuture<'_, FloorOutcome> {
        Box::pin(async move { self.clear_doubt(Some(floor), &operator, &reason, within).await })
    }

    fn dismiss_regression(
        &self,
        operator: Operator,
        reason: String,
        within: Duration,
    ) -> StoreFuture<'_, FloorOutcome> {
        Box::pin(async move { self.clear_doubt(None, &operator, &reason, within).await })
    }

    fn health(&self, within: Duration) -> StoreFuture<'_, StoreHealth> {
        Box::pin(async move {
            let writable = self
                .database
                .statement(
                    "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on'",
                    Effect::Reads,
                    within,
                    &[],
                )
                .await;
            let writable = match writable {
                Err(error) => Err(pg_kit::problem(&error)),
                Ok(rows) if rows.first().is_none_or(|row| row.get(0)) => {
                    Err("read_only: the database is a standby, or read-only".to_owned())
                }
                Ok(_) => {
                    let writable = self.database.writable(within).await;
                    writable.map_err(|error| pg_kit::problem(&error))
                }
            };
            let problem = match writable {
                Err(problem) => Some(problem),
                Ok(()) => match self.lineage(within).await {
                    Err(error) => Some(pg_kit::problem(&error)),
                    Ok(lineage) => (lineage.state == LineageState::Regressed)
                        .then(|| format!("doubt: nothing is granted: {}", lineage.detail.unwrap_or_default())),
                },
            };
            Ok(StoreHealth { backend: "pg", problem })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::above_prefix;

    #[test]
    fn what_is_above_a_prefix_is_above_its_texts_alone() {
        for prefix in ["a", "a/", "\u{d7ff}", "a\u{10ffff}", "\u{10ffff}", ""] {
            let above = above_prefix(prefix);
            for end in ["", "a", "\u{10ffff}\u{10ffff}"] {
                assert!(format!("{prefix}{end}") < above, "{prefix:?} {end:?}");
            }
        }
        assert_eq!(
            (above_prefix("a/").as_str(), above_prefix("a\u{10ffff}").as_str()),
            ("a0", "b")
        );
        assert_eq!(above_prefix("\u{d7ff}"), "\u{e000}");
    }
}
