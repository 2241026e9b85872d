//! The time that an export is of: from an instant on, up to another one that is no longer in it.

use gateway_kit::{ApiError, rfc3339};
use std::cmp::Ordering;
use std::fmt;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{Date, OffsetDateTime};

const DAY_MS: i64 = 86_400_000;

/// From `from_ms`, included, to `to_ms`, not included, in milliseconds since 1970; an end that is missing is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Period {
    pub from_ms: Option<i64>,
    pub to_ms: Option<i64>,
}

impl Period {
    /// The period of the two parameters.
    pub(crate) fn parse(from: Option<&str>, to: Option<&str>) -> Result<Self, ApiError> {
        let period = Self {
            from_ms: from.map(|text| instant("from", text)).transpose()?,
            to_ms: to.map(|text| instant("to", text)).transpose()?,
        };
        match (period.from_ms, period.to_ms) {
            (Some(from), Some(to)) if from >= to => Err(ApiError::invalid("to", "must be after from")),
            _ => Ok(period),
        }
    }

    /// Whether an instant lies before it, in it or after it.
    pub(super) fn place(&self, at_ms: i64) -> Ordering {
        if self.from_ms.is_some_and(|from| at_ms < from) {
            Ordering::Less
        } else if self.to_ms.is_some_and(|to| at_ms >= to) {
            Ordering::Greater
        } else {
            Ordering::Equal
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.from_ms.map(rfc3339), self.to_ms.map(rfc3339)) {
            (None, None) => f.write_str("the whole ledger"),
            (Some(from), None) => write!(f, "from {from} on"),
            (None, Some(to)) => write!(f, "before {to}"),
            (Some(from), Some(to)) => write!(f, "from {from} on, before {to}"),
        }
    }
}

/// A day (its first instant in UTC) or an instant with its zone.
fn instant(field: &'static str, text: &str) -> Result<i64, ApiError> {
    let at = match Date::parse(text, format_description!("[year]-[month]-[day]")) {
        Ok(day) => Some(day.midnight().assume_utc()),
        Err(_) => OffsetDateTime::parse(text, &Rfc3339).ok(),
    };
    at.filter(|at| (1970..=9999).contains(&at.year()))
        .and_then(|at| i64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok())
        .ok_or_else(|| {
            let reason =
                "must be a day, 2026-01-31 (from 00:00 UTC), or an instant with its zone, 2026-01-31T12:00:00Z";
            ApiError::invalid(field, reason)
        })
}

/// The day of an instant, in UTC.
pub(super) fn day(at_ms: i64) -> String {
    let at = rfc3339(at_ms);
    at.split('T').next().unwrap_or(&at).to_owned()
}

/// The day before that of an instant, in UTC.
pub(super) fn day_before(at_ms: i64) -> String {
    day(at_ms.saturating_sub(DAY_MS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_p25_a_period_is_days_or_instants_and_its_end_is_not_in_it() {
        let january = Period::parse(Some("2026-01-01"), Some("2026-02-01")).unwrap();
        assert_eq!(january.from_ms, Some(1_767_225_600_000));
        assert_eq!(january.place(1_767_225_599_999), Ordering::Less);
        assert_eq!(january.place(1_767_225_600_000), Ordering::Equal);
        assert_eq!(january.place(1_769_903_999_999), Ordering::Equal);
        assert_eq!(january.place(1_769_904_000_000), Ordering::Greater);
        let same = Period::parse(Some("2026-01-01T01:00:00+01:00"), Some("2026-02-01T00:00:00Z")).unwrap();
        assert_eq!(january, same);
        assert_eq!(
            january.to_string(),
            "from 2026-01-01T00:00:00.000Z on, before 2026-02-01T00:00:00.000Z"
        );
        assert_eq!(Period::default().place(i64::MIN), Ordering::Equal);
        for (from, to, field) in [
            (Some("2026-02-30"), None, "from"),
            (Some("2026-01-01T00:00:00"), None, "from"),
            (Some(""), None, "from"),
            (None, Some("tomorrow"), "to"),
            (Some("2026-01-01"), Some("2026-01-01"), "to"),
            (Some("2026-01-02"), Some("2026-01-01"), "to"),
            (Some("-0001-01-02"), None, "from"),
        ] {
            let refused = Period::parse(from, to).unwrap_err().problem("");
            assert_eq!(refused.text("field"), Some(field), "{from:?} {to:?}");
        }
    }

    #[test]
    fn days_are_of_utc() {
        assert_eq!(day(1_767_225_600_000), "2026-01-01");
        assert_eq!(day_before(1_767_225_600_000), "2025-12-31");
        assert_eq!(day_before(1_767_225_599_999), "2025-12-30");
    }
}
