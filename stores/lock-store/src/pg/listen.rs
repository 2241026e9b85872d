//! Who listens for facts that others recorded.
//!
//! On failure: the connection is made again, at once where it had served for a while and else after a pause. Whoever
//! listens again looks once for what it has missed; before that, whoever waits finds out by looking
//! ([`super::PgLockStoreOptions::poll_every`]).

use futures_util::StreamExt;
use pg_kit::Connector;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_postgres::AsyncMessage;

const PAUSE: Duration = Duration::from_millis(500);

/// Announces the highest seq heard of, until nobody holds a receiver any more.
pub(super) async fn listen(connector: Connector, schema: String, heard: watch::Sender<u64>) {
    loop {
        let began = Instant::now();
        tokio::select! {
            biased;
            () = heard.closed() => return,
            ended = listen_once(&connector, &schema, &heard) => {
                tracing::debug!(event = "database_listener_ended", detail = ended);
            }
        }
        tokio::select! {
            biased;
            () = heard.closed() => return,
            () = tokio::time::sleep_until(began + PAUSE) => {}
        }
    }
}

/// Answers why it ended.
async fn listen_once(connector: &Connector, schema: &str, heard: &watch::Sender<u64>) -> String {
    let (client, mut connection) = match timeout(connector.within(), connector.connect_raw()).await {
        Ok(Ok(connected)) => connected,
        Ok(Err(error)) => return error.to_string(),
        Err(_) => return "no connection in time".to_owned(),
    };
    let mut messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
    let sql = format!("LISTEN \"dlock_event_{schema}\"");
    let mut listening = std::pin::pin!(client.batch_execute(&sql));
    let mut asked = false;
    loop {
        let message = if asked {
            messages.next().await
        } else {
            // The connection moves only while its messages are asked for.
            tokio::select! {
                answer = &mut listening => {
                    if let Err(error) = answer {
                        return error.to_string();
                    }
                    asked = true;
                    // What was recorded before this was not announced: whoever waits looks once.
                    heard.send_modify(|_| {});
                    continue;
                }
                message = messages.next() => message,
            }
        };
        match message {
            Some(Ok(AsyncMessage::Notification(said))) => {
                if let Ok(seq) = said.payload().parse::<u64>() {
                    heard.send_if_modified(|known| {
                        let more = seq > *known;
                        *known = seq.max(*known);
                        more
                    });
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => return error.to_string(),
            None => return "closed".to_owned(),
        }
    }
}
