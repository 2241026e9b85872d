//! Instants as they travel.

use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

/// Of one width, so that who compares the texts compares the instants.
const MILLISECONDS: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");

/// Milliseconds since 1970 as RFC 3339 in UTC with exactly three decimals. An instant that no calendar holds is shown as
/// its number.
#[must_use]
pub fn rfc3339(at_ms: i64) -> String {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(at_ms) * 1_000_000)
        .ok()
        .and_then(|at| at.format(MILLISECONDS).ok())
        .unwrap_or_else(|| at_ms.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without its zeros `…:49Z` stood behind `…:49.472Z`.
    #[test]
    fn the_order_of_the_texts_is_the_order_of_the_instants() {
        let texts: Vec<String> = [
            1_764_447_889_000,
            1_764_447_889_472,
            1_764_447_889_620,
            1_764_447_889_625,
        ]
        .into_iter()
        .map(rfc3339)
        .collect();
        assert_eq!(texts[0], "2025-11-29T20:24:49.000Z");
        assert!(texts.is_sorted(), "{texts:?}");
        assert_eq!(rfc3339(i64::MAX), i64::MAX.to_string());
    }
}
