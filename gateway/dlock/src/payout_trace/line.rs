//! One line of a payout's story.

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;

const MICROSECONDS: &[time::format_description::BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");

/// Something that happened, and who says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    /// Nanoseconds since 1970, by the clock of whoever recorded it.
    pub at_ns: i128,
    /// `transition`, `submission`, `lock`, `refusal`, `exception`, `lookup`, `span`, `log`.
    pub source: &'static str,
    /// Which component.
    pub component: String,
    /// Which worker, operator or actor.
    pub actor: Option<String>,
    /// Under which token.
    pub token: Option<u64>,
    /// What happened.
    pub what: String,
    /// In which trace, where that is known.
    pub trace_id: Option<String>,
}

impl Line {
    /// As it is shown, with its distance from the first one.
    pub(crate) fn told(&self, first_ns: i128) -> Value {
        let at = OffsetDateTime::from_unix_timestamp_nanos(self.at_ns)
            .ok()
            .and_then(|at| at.format(MICROSECONDS).ok());
        let after_us = (self.at_ns - first_ns) / 1_000;
        json!({
            "at": at,
            "after": format!("+{}.{:06} s", after_us / 1_000_000, after_us % 1_000_000),
            "after_us": i64::try_from(after_us).unwrap_or(i64::MAX),
            "source": self.source,
            "component": self.component,
            "actor": self.actor,
            "token": self.token,
            "what": self.what,
            "trace_id": self.trace_id,
        })
    }
}

/// Reads RFC 3339.
pub(crate) fn instant(text: &str) -> Option<i128> {
    OffsetDateTime::parse(text, &Rfc3339)
        .ok()
        .map(OffsetDateTime::unix_timestamp_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_its_time_and_its_distance_from_the_first() {
        let line = Line {
            at_ns: instant("2026-11-30T01:00:02.5Z").unwrap(),
            source: "log",
            ..Line::default()
        };
        let told = line.told(instant("2026-11-30T01:00:00Z").unwrap());
        assert_eq!(told["at"], "2026-11-30T01:00:02.500000Z");
        assert_eq!(
            (&told["after"], &told["after_us"]),
            (&json!("+2.500000 s"), &json!(2_500_000))
        );
        assert_eq!(instant("yesterday"), None);
    }
}
