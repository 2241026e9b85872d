//! Times as people read them: in UTC, and how long ago.

use maud::{Markup, html};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Milliseconds since 1970 of an RFC 3339 text; none where it is none.
pub(crate) fn parse(at: &str) -> Option<i64> {
    let at = OffsetDateTime::parse(at, &Rfc3339).ok()?;
    i64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok()
}

/// An instant as `2026-11-30 01:25:44.123 UTC`.
pub(crate) fn utc(at_ms: i64) -> String {
    let text = gateway_kit::rfc3339(at_ms);
    match text.strip_suffix('Z') {
        Some(text) => format!("{} UTC", text.replacen('T', " ", 1)),
        None => text,
    }
}

/// A length of time in its two largest units.
pub(crate) fn span(ms: i64) -> String {
    let seconds = ms.max(0) / 1_000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// `3 s ago`, or `in 3 s` for what is still to come.
pub(crate) fn relative(at_ms: i64, now_ms: i64) -> String {
    if at_ms > now_ms {
        format!("in {}", span(at_ms - now_ms))
    } else {
        format!("{} ago", span(now_ms - at_ms))
    }
}

/// An instant in UTC and relative to now; the script keeps the second up to date.
pub(crate) fn instant(at_ms: i64, now_ms: i64) -> Markup {
    html! {
        time datetime=(gateway_kit::rfc3339(at_ms)) { (utc(at_ms)) }
        " "
        span.relative data-at=(at_ms) { "(" (relative(at_ms, now_ms)) ")" }
    }
}

/// As [`instant`], of a text off the wire; what is no instant is shown as it came.
pub(crate) fn at(text: &str, now_ms: i64) -> Markup {
    parse(text).map_or_else(|| html! { (text) }, |at_ms| instant(at_ms, now_ms))
}

/// What is left of a lease; the script counts it down.
pub(crate) fn left(expires_in_ms: u64, now_ms: i64) -> Markup {
    let left = i64::try_from(expires_in_ms).unwrap_or(i64::MAX);
    html! { span.left data-ends=(now_ms.saturating_add(left)) { (span(left)) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_read_and_written() {
        let at = parse("2026-11-30T01:25:44.123Z").unwrap();
        assert_eq!(utc(at), "2026-11-30 01:25:44.123 UTC");
        assert_eq!(parse("yesterday"), None);
    }

    #[test]
    fn lengths_have_two_units() {
        for (ms, text) in [
            (-5, "0 s"),
            (59_999, "59 s"),
            (61_000, "1 min 1 s"),
            (3_600_000, "1 h 0 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(span(ms), text);
        }
        assert_eq!(relative(1_000, 4_000), "3 s ago");
        assert_eq!(relative(4_000, 1_000), "in 3 s");
    }
}
