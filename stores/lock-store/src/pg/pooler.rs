//! Whether a pooler in transaction mode stands before the database.
//!
//! Behind one, LISTEN seems to succeed and nothing is ever heard: the server's connection that listens goes back to the
//! pool. So whoever did not say that there is one is told, instead of finding waiters asleep.

use lock_api::StoreError;
use pg_kit::{Connector, describe, unavailable};
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::{Client, SimpleQueryMessage};

/// One of the server's processes: the number alone may be given anew.
const WHO: &str = "SELECT pid || '/' || backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()";

/// Two connections of ours that live at once are served by two processes, each by the same one all the time, unless a
/// pooler hands them out by the transaction.
pub(super) async fn refuse_a_pooler(connector: &Connector, within: Duration) -> Result<(), StoreError> {
    let met = timeout(within, async {
        let ((one, one_io), (two, two_io)) = tokio::try_join!(connector.connect_alone(), connector.connect_alone())?;
        // The second asks inside a transaction, while the first's is over: a pooler gives it the one that is free.
        let first = who(&one, WHO).await?;
        let other = who(&two, &format!("BEGIN; {WHO}")).await?;
        who(&two, "COMMIT").await?;
        let again = who(&one, WHO).await?;
        drop((one, two));
        drop(tokio::join!(one_io, two_io));
        Ok::<_, StoreError>(first == other || first != again)
    })
    .await
    .unwrap_or_else(|_| Err(unavailable("the database did not say in time who serves us")))?;
    if met {
        return Err(unavailable(
            "a pooler in transaction mode stands before the database, through which nothing can be listened for: \
             set lock.store.pooler, or name the database itself",
        ));
    }
    Ok(())
}

async fn who(client: &Client, sql: &str) -> Result<Option<String>, StoreError> {
    let said = client
        .simple_query(sql)
        .await
        .map_err(|error| unavailable(format!("who serves us: {}", describe(&error))))?;
    Ok(said.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}
