//! The watch of L7: a key's changes as server-sent events.
//!
//! ```text
//! subscribe (before anything is read) → snapshot → what the log has after the start → what is heard → …
//!                                                        ↑ fell behind: subscribe again, read on from the last event
//! ```
//!
//! No event is lost or told twice; a reader that is slow costs a bounded channel, because what it misses stands in the
//! event log. After a snapshot events may follow that it already reflects: they are facts with a `seq`, not changes.

use super::LockServer;
use crate::render;
use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use actor_kit::TraceContext;
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use gateway_kit::{ApiError, Caller, Key, Peer, Seat, Trace, Waiting};
use http_contract::Problem;
use lock_api::{EventQuery, LockEvent, LockKey};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc;

/// Silence after which a comment keeps the connection open and finds out whether anybody still reads.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// How many events are read from the log at once.
const PAGE: u32 = 100;

/// L7: watches a key.
#[utoipa::path(
    get, path = "/v1/locks/{key}/watch", operation_id = "watch_lock", tag = "locks",
    params(
        ("key" = String, Path, description = "The key, percent-encoded"),
        ("Last-Event-ID" = Option<u64>, Header, description = "The last event seen: what came after it follows"),
    ),
    responses(
        (status = 200, description = "`event: snapshot` with the body of L7, then one event per audit row, named by its kind, `id: <seq>`", body = String, content_type = "text/event-stream"),
        (status = 400, description = "INVALID_REQUEST", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "BACKEND_UNAVAILABLE, OVERLOADED", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn watch_lock(
    server: Data<LockServer>,
    request: HttpRequest,
    trace: Trace,
    caller: Caller,
    Key(key): Key,
) -> Result<HttpResponse, ApiError> {
    let resumed = last_event_id(&request)?;
    let seat = server.bounds.watch(caller)?;
    let place = Peer::of(&request).wait()?;
    let live = server
        .service
        .subscribe(key.clone(), &trace.0)
        .await
        .map_err(render::refusal)?;
    let last = server.service.last_event().await.map_err(render::refusal)?;
    // An id from before the store was restored can be above all that is there: such a watch would be deaf for ever.
    let from = resumed.map_or(last, |seq| seq.min(last));
    let (state, waiters) = server
        .service
        .inspect(key.clone(), &trace.0)
        .await
        .map_err(render::refusal)?;
    let view = serde_json::to_string(&render::lock(&state, waiters)).expect("a view is plain data");
    let watch = Watch {
        _place: place,
        server: server.as_ref().clone(),
        trace: trace.0,
        key,
        live,
        last: from,
        // Where the client goes on when it loses the connection before the next event.
        ready: VecDeque::from([frame("snapshot", from, &view)]),
        behind: true,
        _seat: seat,
    };
    Ok(HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, "text/event-stream"))
        .insert_header((CACHE_CONTROL, "no-store"))
        .insert_header(("X-Accel-Buffering", "no"))
        .streaming(watch.stream()))
}

fn last_event_id(request: &HttpRequest) -> Result<Option<u64>, ApiError> {
    let Some(value) = request.headers().get("Last-Event-ID") else {
        return Ok(None);
    };
    let seq = value.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok());
    match seq.filter(|seq| i64::try_from(*seq).is_ok()) {
        Some(seq) => Ok(Some(seq)),
        None => Err(ApiError::invalid("Last-Event-ID", "must be an id that a watch gave")),
    }
}

fn frame(event: &str, id: u64, data: &str) -> Bytes {
    // Compact JSON has no line breaks, so one `data:` line holds it.
    Bytes::from(format!("event: {event}\nid: {id}\ndata: {data}\n\n"))
}

struct Watch {
    _place: Option<Waiting>,
    server: LockServer,
    trace: TraceContext,
    key: LockKey,
    live: mpsc::Receiver<LockEvent>,
    /// The last event told.
    last: u64,
    /// What is to be sent next.
    ready: VecDeque<Bytes>,
    /// Whether the log may have events after `last` that the channel does not bring.
    behind: bool,
    /// One of its caller's watches.
    _seat: Seat,
}

impl Watch {
    fn stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        stream::unfold(self, |mut watch| async move {
            let next = watch.next().await?;
            Some((Ok(next), watch))
        })
    }

    /// The next piece; none ends the stream, after which a client resumes where it was.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame);
            }
            if self.behind {
                self.read_on().await?;
                continue;
            }
            let drain = self.server.drain.clone();
            tokio::select! {
                biased;
                () = drain.begun() => return None,
                event = self.live.recv() => match event {
                    Some(event) => self.tell(&event),
                    None => {
                        // Fell behind, or the core restarted: the log has what the channel lost.
                        self.live = self.server.service.subscribe(self.key.clone(), &self.trace).await.ok()?;
                        self.behind = true;
                    }
                },
                () = self.server.host.clock.sleep(KEEP_ALIVE) => return Some(Bytes::from_static(b": still here\n\n")),
            }
        }
    }

    async fn read_on(&mut self) -> Option<()> {
        let query = EventQuery {
            key: Some(self.key.clone()),
            after: self.last,
            limit: PAGE,
        };
        let events = self.server.service.events(query).await.ok()?;
        self.behind = events.len() >= PAGE as usize;
        for event in &events {
            self.tell(event);
        }
        Some(())
    }

    fn tell(&mut self, event: &LockEvent) {
        // What was read from the log comes through the channel once more.
        if event.seq > self.last {
            self.last = event.seq;
            let row = serde_json::to_string(&render::event(event)).expect("a row is plain data");
            self.ready.push_back(frame(event.kind.as_str(), event.seq, &row));
        }
    }
}
