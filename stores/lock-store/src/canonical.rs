//! The text of an event that its seal is taken over: canonical JSON (RFC 8785) of the columns of `lock_event`.

use lock_api::{LockEvent, UnixMillis};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

/// The `prev_hash` of the first seal of a chain.
pub const FIRST_PREV_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// An instant as RFC 3339 in UTC with exactly three decimals: `2026-01-01T00:00:00.000Z`. Whoever shows events uses this
/// form, so that a seal can be recomputed from what was shown.
#[must_use]
pub fn rfc3339(at: UnixMillis) -> String {
    // Years outside 0..=9999 cannot be written; such a wall clock is shown at the nearest end.
    const FIRST: i64 = -62_167_219_200_000;
    const LAST: i64 = 253_402_300_799_999;
    let ms = at.0.clamp(FIRST, LAST);
    let t = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        t.year(),
        u8::from(t.month()),
        t.day(),
        t.hour(),
        t.minute(),
        t.second(),
        t.millisecond()
    )
}

/// An event as canonical JSON: members in order of name, nulls present, no space. The strings and integers in it are
/// those for which `serde_json`'s form is the canonical one.
#[must_use]
pub fn event(event: &LockEvent) -> String {
    let text = |value: Option<&str>| value.map_or_else(|| "null".to_owned(), quoted);
    format!(
        r#"{{"actor":{},"at":{},"kind":{},"lock_key":{},"reason":{},"seq":{},"session_id":{},"token":{}}}"#,
        text(event.actor.as_deref()),
        quoted(&rfc3339(event.at)),
        quoted(event.kind.as_str()),
        text(event.lock_key.as_ref().map(lock_api::LockKey::as_str)),
        text(event.reason.as_deref()),
        event.seq,
        text(event.session_id.as_ref().map(lock_api::SessionId::as_str)),
        event
            .token
            .map_or_else(|| "null".to_owned(), |token| token.get().to_string()),
    )
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The hash of a segment: sha256 in hex over `prev_hash` (hex) followed by each event in order as canonical JSON.
#[must_use]
pub fn seal_hash<'a>(prev_hash: &str, events: impl IntoIterator<Item = &'a LockEvent>) -> String {
    let mut hash = Sha256::new();
    hash.update(prev_hash.as_bytes());
    for one in events {
        hash.update(event(one).as_bytes());
    }
    hex::encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_api::{EventKind, LockKey};

    #[test]
    fn an_event_has_one_form() {
        let one = LockEvent {
            seq: 9_007_199_254_740_991,
            at: UnixMillis(1_767_225_600_007),
            kind: EventKind::Revoked,
            lock_key: Some(LockKey::new("a/\"\u{1f512}\\\u{2028}é").unwrap()),
            session_id: None,
            token: None,
            actor: Some("op".into()),
            reason: Some("line\nbreak\u{1f}\u{7f}".into()),
        };
        assert_eq!(
            event(&one),
            "{\"actor\":\"op\",\"at\":\"2026-01-01T00:00:00.007Z\",\"kind\":\"REVOKED\",\
             \"lock_key\":\"a/\\\"\u{1f512}\\\\\u{2028}é\",\"reason\":\"line\\nbreak\\u001f\u{7f}\",\
             \"seq\":9007199254740991,\"session_id\":null,\"token\":null}"
        );
    }

    #[test]
    fn instants_have_three_decimals_and_an_end() {
        assert_eq!(rfc3339(UnixMillis(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(UnixMillis(-1)), "1969-12-31T23:59:59.999Z");
        assert_eq!(rfc3339(UnixMillis(i64::MAX)), "9999-12-31T23:59:59.999Z");
        assert_eq!(rfc3339(UnixMillis(i64::MIN)), "0000-01-01T00:00:00.000Z");
    }

    #[test]
    fn a_hash_is_the_sha256_of_the_text() {
        // sha256 of 64 zeros as text.
        assert_eq!(
            seal_hash(FIRST_PREV_HASH, []),
            hex::encode(Sha256::digest(FIRST_PREV_HASH.as_bytes()))
        );
    }
}
