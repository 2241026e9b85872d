//! The hash of a sealed segment, taken from rows as they are shown (C3.3 L9): for whoever checks an exported audit trail
//! without the store.

use crate::render;
use http_contract::lock::AuditRow;
use lock_api::{EventKind, LockEvent, LockKey, SessionId, UnixMillis};
pub use lock_store::canonical::FIRST_PREV_HASH;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The hash over `prev_hash` and these rows, by the code that the stores seal with.
///
/// # Errors
/// The row that is none a store could have shown, and why: its text would not be the one that was sealed.
pub fn seal_hash(prev_hash: &str, rows: &[AuditRow]) -> Result<String, String> {
    let events = rows.iter().map(event).collect::<Result<Vec<_>, _>>()?;
    Ok(lock_store::canonical::seal_hash(prev_hash, &events))
}

fn event(row: &AuditRow) -> Result<LockEvent, String> {
    let of = |what: &str, why: String| format!("row {}: {what}: {why}", row.seq);
    let at = OffsetDateTime::parse(&row.at, &Rfc3339).map_err(|error| of("at", error.to_string()))?;
    let ms =
        i64::try_from(at.unix_timestamp_nanos().div_euclid(1_000_000)).map_err(|error| of("at", error.to_string()))?;
    let event = LockEvent {
        seq: row.seq,
        at: UnixMillis(ms),
        kind: EventKind::parse(&row.kind).ok_or_else(|| of("kind", format!("{:?} is none", row.kind)))?,
        lock_key: row
            .lock_key
            .as_deref()
            .map(LockKey::new)
            .transpose()
            .map_err(|error| of("lock_key", error.to_string()))?,
        session_id: row
            .session_id
            .as_deref()
            .map(SessionId::new)
            .transpose()
            .map_err(|error| of("session_id", error.to_string()))?,
        token: row
            .token
            .map(http_contract::token)
            .transpose()
            .map_err(|error| of("token", error.to_string()))?,
        actor: row.actor.clone(),
        reason: row.reason.clone(),
    };
    // An instant can be written in many ways; one of them was sealed.
    if render::event(&event) == *row {
        Ok(event)
    } else {
        Err(of("at", format!("{:?} is not the form it was sealed in", row.at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_hashes_as_its_event_and_in_its_one_form_only() {
        let row = AuditRow {
            seq: 7,
            at: "2026-01-01T00:00:00.007Z".into(),
            kind: "GRANTED".into(),
            lock_key: Some("a/\"b".into()),
            session_id: Some("s".into()),
            token: Some(5),
            actor: None,
            reason: None,
        };
        let hash = seal_hash(FIRST_PREV_HASH, std::slice::from_ref(&row)).unwrap();
        let of_the_store = lock_store::canonical::seal_hash(FIRST_PREV_HASH, [&event(&row).unwrap()]);
        assert_eq!(hash, of_the_store);
        for (at, kind) in [
            ("2026-01-01T00:00:00.0070Z", "GRANTED"),
            ("2026-01-01T01:00:00.007+01:00", "GRANTED"),
            ("2026-01-01T00:00:00.007Z", "GRANTEE"),
        ] {
            let other = AuditRow {
                at: at.into(),
                kind: kind.into(),
                ..row.clone()
            };
            assert!(seal_hash(FIRST_PREV_HASH, &[other]).is_err(), "{at} {kind}");
        }
    }
}
