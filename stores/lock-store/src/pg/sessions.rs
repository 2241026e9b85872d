//! Sessions: opened, kept alive, closed, seen.

use super::locks::ended;
use super::rows::{Answer, int, ttl_ms};
use super::store::{PgLockStore, odd, texts};
use lock_api::{
    ExpiredGrant, Heartbeat, HeartbeatOutcome, OpenSession, SessionId, SessionRegistry, SessionView, StoreError,
    StoreFuture,
};
use pg_kit::Effect;
use std::time::Duration;
use tokio_postgres::types::Type;

impl SessionRegistry for PgLockStore {
    fn open(&self, batch: Vec<OpenSession>, within: Duration) -> StoreFuture<'_, Vec<SessionView>> {
        Box::pin(async move {
            let ids = texts(batch.iter().map(|s| s.session_id.as_str()));
            let owners = texts(batch.iter().map(|s| s.owner.as_str()));
            let ttls: Vec<i64> = batch.iter().map(|s| ttl_ms(s.ttl)).collect();
            let metadata: Vec<Option<&str>> = batch
                .iter()
                .map(|s| s.metadata.as_ref().map(lock_api::Metadata::as_str))
                .collect();
            let rows = self
                .database
                .verb(
                    "lock_open",
                    Effect::Writes,
                    within,
                    &[
                        (&ids, Type::TEXT_ARRAY),
                        (&owners, Type::TEXT_ARRAY),
                        (&ttls, Type::INT8_ARRAY),
                        (&metadata, Type::TEXT_ARRAY),
                    ],
                )
                .await?;
            Self::with_held(&rows, Some(batch.len()))?
                .into_iter()
                .zip(&batch)
                .map(|((answer, held), asked)| {
                    if answer.outcome == "SESSION_NOT_FOUND" {
                        // It was opened before and has ended since; its row waits to be swept.
                        return Ok(SessionView {
                            session_id: asked.session_id.clone(),
                            owner: asked.owner.clone(),
                            ttl: asked.ttl,
                            expires_in: Duration::ZERO,
                            opened_at: lock_api::UnixMillis(0),
                            last_heartbeat_at: lock_api::UnixMillis(0),
                            metadata: asked.metadata.clone(),
                            held: Vec::new(),
                        });
                    }
                    view(&answer, &held)
                })
                .collect()
        })
    }

    fn heartbeat(&self, batch: Vec<Heartbeat>, within: Duration) -> StoreFuture<'_, Vec<HeartbeatOutcome>> {
        Box::pin(async move {
            let ids = texts(batch.iter().map(|h| h.session_id.as_str()));
            let witnesses: Vec<Option<i64>> = batch.iter().map(|h| h.witness.map(|w| int(w.get()))).collect();
            let rows = self
                .database
                .verb(
                    "lock_heartbeat",
                    Effect::Writes,
                    within,
                    &[(&ids, Type::TEXT_ARRAY), (&witnesses, Type::INT8_ARRAY)],
                )
                .await?;
            Self::with_held(&rows, Some(batch.len()))?
                .into_iter()
                .zip(&batch)
                .map(|((answer, held), asked)| {
                    if answer.outcome == "SESSION_NOT_FOUND" {
                        return Ok(HeartbeatOutcome::SessionNotFound);
                    }
                    let believed = answer.number()?;
                    if asked.witness.is_some_and(|witness| witness.get() > believed) {
                        return Ok(HeartbeatOutcome::WitnessRefused {
                            highest_believed: believed,
                        });
                    }
                    Ok(HeartbeatOutcome::Alive {
                        expires_in: answer.left().unwrap_or_default(),
                        held: held.iter().map(Answer::held).collect::<Result<_, _>>()?,
                    })
                })
                .collect()
        })
    }

    fn close(&self, batch: Vec<SessionId>, within: Duration) -> StoreFuture<'_, Vec<Vec<ExpiredGrant>>> {
        Box::pin(async move {
            let ids = texts(batch.iter().map(SessionId::as_str));
            let rows = self
                .database
                .verb("lock_close", Effect::Writes, within, &[(&ids, Type::TEXT_ARRAY)])
                .await?;
            let mut freed: Vec<Vec<ExpiredGrant>> = batch.iter().map(|_| Vec::new()).collect();
            for answer in rows.iter().map(Answer::of) {
                freed.get_mut(answer.item()?).ok_or_else(odd)?.push(ended(&answer)?);
            }
            Ok(freed)
        })
    }

    fn session(&self, id: SessionId, within: Duration) -> StoreFuture<'_, Option<SessionView>> {
        Box::pin(async move {
            let rows = self
                .database
                .verb(
                    "lock_sessions",
                    Effect::Reads,
                    within,
                    &[
                        (&vec![id.as_str()], Type::TEXT_ARRAY),
                        (&"", Type::TEXT),
                        (&1_i64, Type::INT8),
                    ],
                )
                .await?;
            Self::with_held(&rows, Some(1))?
                .iter()
                .find(|(answer, _)| answer.outcome == "SESSION")
                .map(|(answer, held)| view(answer, held))
                .transpose()
        })
    }

    fn sessions(&self, after: Option<SessionId>, limit: u32, within: Duration) -> StoreFuture<'_, Vec<SessionView>> {
        Box::pin(async move {
            let rows = self
                .database
                .verb(
                    "lock_sessions",
                    Effect::Reads,
                    within,
                    &[
                        (&None::<Vec<&str>>, Type::TEXT_ARRAY),
                        (&after.as_ref().map_or("", SessionId::as_str), Type::TEXT),
                        (&i64::from(limit), Type::INT8),
                    ],
                )
                .await?;
            Self::with_held(&rows, None)?
                .iter()
                // One that was closed between the page and its rows.
                .filter(|(answer, _)| answer.outcome == "SESSION")
                .map(|(answer, held)| view(answer, held))
                .collect()
        })
    }
}

fn view(answer: &Answer, held: &[Answer]) -> Result<SessionView, StoreError> {
    let mut view = answer.view()?;
    view.held = held.iter().map(Answer::held).collect::<Result<_, _>>()?;
    Ok(view)
}
