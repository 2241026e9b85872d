//! One look at a component over HTTP: status, body, and what its clock said.

use actor_kit::TraceContext;
use http_contract::header;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

/// How long making a connection may take.
pub const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// How long one answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The most of an answer that is read.
const BYTES_MAX: usize = 8 << 20;

/// `Date` has whole seconds, and a server may show the same one for half a second longer.
const DATE_GRAIN_MS: i64 = 1_500;

/// The one form of `Date` that a server may write (RFC 9110).
const DATE: &[BorrowedFormatItem<'_>] =
    format_description!("[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT");

/// An answer.
pub struct Seen {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: String,
    /// What the server's clock is ahead of this machine's, where it said its time.
    pub ahead: Option<Ahead>,
}

/// How far a clock is ahead of the local one: somewhere between two bounds, which the round trip and the grain of what was
/// said set apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// At least so many milliseconds.
    pub least_ms: i64,
    /// At most so many milliseconds.
    pub most_ms: i64,
}

impl Ahead {
    /// From an instant that was said, true for `grain_ms` from then on, in an answer between `sent_ms` and `received_ms`.
    pub const fn of(said_ms: i64, grain_ms: i64, sent_ms: i64, received_ms: i64) -> Self {
        Self {
            least_ms: said_ms - received_ms,
            most_ms: said_ms + grain_ms - sent_ms,
        }
    }

    /// What is certain of the difference to another clock: 0 where they may agree.
    pub fn apart_ms(self, other: Self) -> i64 {
        (self.least_ms - other.most_ms)
            .max(other.least_ms - self.most_ms)
            .max(0)
    }

    /// What is certain of the difference to the local clock: 0 where they may agree.
    pub fn apart_from_local_ms(self) -> i64 {
        self.apart_ms(Self {
            least_ms: 0,
            most_ms: 0,
        })
    }
}

/// Asks; answers whatever status there is. `Err` is what kept it from answering.
pub async fn get(
    client: &awc::Client,
    clock: &host_kit::Clock,
    url: &str,
    trace: &TraceContext,
) -> Result<Seen, String> {
    let sent_ms = clock.wall_ms();
    let mut answer = client
        .get(url)
        .timeout(ANSWER_WITHIN)
        .insert_header((header::TRACEPARENT, trace.to_traceparent()))
        .send()
        .await
        .map_err(|error| error.to_string())?
        .timeout(ANSWER_WITHIN);
    let received_ms = clock.wall_ms();
    let ahead = answer
        .headers()
        .get("date")
        .and_then(|value| value.to_str().ok())
        .and_then(date_ms)
        .map(|said_ms| Ahead::of(said_ms, DATE_GRAIN_MS, sent_ms, received_ms));
    let body = answer
        .body()
        .limit(BYTES_MAX)
        .await
        .map_err(|error| error.to_string())?;
    Ok(Seen {
        status: answer.status().as_u16(),
        body: String::from_utf8_lossy(&body).into_owned(),
        ahead,
    })
}

fn date_ms(text: &str) -> Option<i64> {
    let at = time::PrimitiveDateTime::parse(text, DATE).ok()?;
    let at: OffsetDateTime = at.assume_utc();
    Some(at.unix_timestamp() * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_read() {
        assert_eq!(date_ms("Thu, 01 Jan 1970 00:00:10 GMT"), Some(10_000));
        assert_eq!(date_ms("Mon, 30 Nov 2026 06:24:54 GMT"), Some(1_796_019_894_000));
        assert_eq!(date_ms("yesterday"), None);
    }

    #[test]
    fn a_difference_is_claimed_only_beyond_the_round_trip_and_the_grain() {
        // Asked at 10.2 s, answered at 10.4 s; the server said 10 s.
        let agrees = Ahead::of(10_000, DATE_GRAIN_MS, 10_200, 10_400);
        assert_eq!(agrees.apart_from_local_ms(), 0);
        // Five seconds behind: at least 5 s less what the grain hides.
        let behind = Ahead::of(5_000, DATE_GRAIN_MS, 10_200, 10_400);
        assert_eq!(behind.apart_from_local_ms(), 3_700);
        let before = Ahead::of(20_000, DATE_GRAIN_MS, 10_200, 10_400);
        assert_eq!(before.apart_from_local_ms(), 9_600);
        assert_eq!(before.apart_ms(behind), behind.apart_ms(before));
        assert_eq!(before.apart_ms(behind), 9_600 + 3_700);
    }
}
