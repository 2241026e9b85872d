//! Who looks at the database's clock while nobody calls.
//!
//! Owns: that the clock is compared with this process's own at least every [`super::PgLockStoreOptions::watch_every`], and
//! that the store knows how lately (`lock_clock`), so that whoever starts next needs not doubt it.
//! On failure: nothing is said; then a lock server that starts takes the time since for unwatched.

use super::call::Database;
use pg_kit::{Effect, Param};
use std::sync::Weak;
use std::time::Duration;
use tokio_postgres::types::Type;

/// The deadline of one look.
const WITHIN: Duration = Duration::from_secs(2);

/// Until nobody holds the database any more.
pub(super) async fn watch_clock(database: Weak<Database>, every: Duration) {
    let every_ms = i64::try_from(every.as_millis()).unwrap_or(i64::MAX);
    loop {
        // Whoever opened the store has just looked.
        tokio::time::sleep(every).await;
        let Some(database) = database.upgrade().filter(|database| !database.is_closed()) else {
            return;
        };
        let params: [Param<'_>; 1] = [(&every_ms, Type::INT8)];
        if let Err(error) = database.verb("lock_watch", Effect::Writes, WITHIN, &params).await {
            tracing::debug!(event = "database_clock_not_watched", %error);
        }
    }
}
