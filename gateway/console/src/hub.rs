//! One reader for all browsers.
//!
//! ```text
//! browser ─┐                                   ┌─ topic task: read the components → page → frame ─┐
//! browser ─┼─ handler ─ask─▶ hub (one thread) ─┤                                                  ├─ latest frame ─▶ each stream
//! browser ─┘                                   └─ topic task …  at most twice a second            ┘
//! ```
//!
//! Owns: which pages are read now, each once however many look at it, and no longer than somebody does; who looks.
//! Does not own: what is read and how it is shown; the streams.
//! On failure: a component that does not answer is shown on the page. Too many pages or viewers at once are refused; one caller
//! gets half of each. Who loads a page is no viewer: only a stream takes a seat. A
//! viewer that takes nothing for [`STALLED`] is dropped: it holds the latest frame at most, never a queue.

use crate::page;
use crate::topic::Topic;
use crate::upstream::Upstreams;
use crate::views;
use gateway_kit::{Caller, Full, Seat, Shares};
use http_client::CallError;
use http_contract::lock::{LockView, RevokeAnswer, RevokeBody};
use http_contract::rail::{CloseExceptionBody, ExceptionRow};
use lock_api::LockKey;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// How often a page is read anew at most: twice a second.
pub(crate) const PACE: Duration = Duration::from_millis(500);
/// How long a viewer may take nothing before it is dropped. A stream has something to say every few seconds.
const STALLED: Duration = Duration::from_secs(30);
/// How many different pages are read at the same time.
const TOPICS_MAX: usize = 64;
/// How many pages are being loaded at the same time.
const LOADS_MAX: usize = 64;
/// How many rounds a page that nobody looks at is still read: the way from a page to its stream.
const LINGER: u32 = 6;
/// How many questions may wait for the hub.
const ASKS_MAX: usize = 256;

/// What a page showed at a moment.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Rises with every frame of this process.
    pub(crate) seq: u64,
    pub(crate) at_ms: i64,
    pub(crate) title: String,
    pub(crate) html: String,
}

/// The latest frame of a page; none before the first.
pub(crate) type Frames = watch::Receiver<Option<Arc<Frame>>>;

/// Somebody who looks at a page.
#[derive(Debug)]
pub(crate) struct Viewer {
    progress_ms: AtomicI64,
    dropped: AtomicBool,
    /// Of a stream.
    seat: Mutex<Option<Seat>>,
}

impl Viewer {
    /// It has taken something.
    pub(crate) fn progress(&self, now_ms: i64) {
        self.progress_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Whether it took nothing for too long.
    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Drops it when it has stalled. Answers whether it still looks.
    fn still_looks(&self, now_ms: i64) -> bool {
        let stalled = now_ms.saturating_sub(self.progress_ms.load(Ordering::Relaxed));
        if stalled > i64::try_from(STALLED.as_millis()).unwrap_or(i64::MAX)
            && !self.dropped.swap(true, Ordering::Relaxed)
        {
            self.seat.lock().unwrap_or_else(PoisonError::into_inner).take();
            tracing::info!(event = "viewer_dropped", stalled_ms = stalled);
        }
        !self.is_dropped()
    }
}

/// What a handler may ask of the hub.
pub(crate) enum Ask {
    /// A page's frames.
    View(Topic, Caller, Arc<Viewer>, oneshot::Sender<Option<Frames>>),
    /// One lock, now.
    Lock(LockKey, oneshot::Sender<Result<LockView, CallError>>),
    /// L8.
    Revoke {
        key: LockKey,
        operator: String,
        body: RevokeBody,
        answer: oneshot::Sender<Result<RevokeAnswer, CallError>>,
    },
    /// One exception of the rail, now.
    Exception(u64, oneshot::Sender<Result<ExceptionRow, CallError>>),
    /// R8.
    Close {
        exception_id: u64,
        operator: String,
        body: CloseExceptionBody,
        answer: oneshot::Sender<Result<ExceptionRow, CallError>>,
    },
}

/// Too much at once, or the console is ending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Busy(pub(crate) String);

impl Busy {
    /// Too many questions at once.
    fn asked_too_much() -> Self {
        Self("too many pages are read at once".to_owned())
    }
}

impl From<Full> for Busy {
    fn from(full: Full) -> Self {
        Self(full.to_string())
    }
}

/// The handlers' side of the hub. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Hub {
    asks: mpsc::Sender<Ask>,
    viewers: Shares,
    loads: Shares,
}

impl Hub {
    /// Starts the hub on this thread's `LocalSet`.
    pub(crate) fn start(upstreams: Upstreams, viewers_max: usize) -> Self {
        let (asks, taken) = mpsc::channel(ASKS_MAX);
        let upstreams = Rc::new(upstreams);
        let watched = Rc::clone(&upstreams);
        actix_rt::spawn(async move { watched.watch().await });
        let desk = Rc::new(Desk {
            upstreams,
            topics: RefCell::default(),
            seq: Cell::new(0),
        });
        actix_rt::spawn(desk.serve(taken));
        Self {
            asks,
            viewers: Shares::halves("viewers", "console.viewers-max", viewers_max),
            loads: Shares::halves("pages", "the bound of a console", LOADS_MAX),
        }
    }

    /// How many look now.
    pub(crate) fn viewers(&self) -> usize {
        self.viewers.taken()
    }

    /// The frames of a page for a stream, and the seat from which they are seen.
    pub(crate) async fn view(&self, topic: Topic, caller: Caller, now_ms: i64) -> Result<(Frames, Arc<Viewer>), Busy> {
        let seat = self.viewers.take(caller, 1)?;
        self.look(topic, seat, now_ms).await
    }

    /// The frames of a page that is loaded once: no viewer, but of pages that are being loaded there is a bound too.
    pub(crate) async fn load(&self, topic: Topic, caller: Caller, now_ms: i64) -> Result<(Frames, Arc<Viewer>), Busy> {
        let seat = self.loads.take(caller, 1)?;
        self.look(topic, seat, now_ms).await
    }

    async fn look(&self, topic: Topic, seat: Seat, now_ms: i64) -> Result<(Frames, Arc<Viewer>), Busy> {
        let caller = seat.caller();
        let viewer = Arc::new(Viewer {
            progress_ms: AtomicI64::new(now_ms),
            dropped: AtomicBool::new(false),
            seat: Mutex::new(Some(seat)),
        });
        let (answer, answered) = oneshot::channel();
        self.asks
            .try_send(Ask::View(topic, caller, Arc::clone(&viewer), answer))
            .map_err(|_| Busy::asked_too_much())?;
        let frames = answered.await.ok().flatten().ok_or_else(Busy::asked_too_much)?;
        Ok((frames, viewer))
    }

    pub(crate) async fn lock(&self, key: LockKey) -> Result<Result<LockView, CallError>, Busy> {
        let (answer, answered) = oneshot::channel();
        self.asks
            .try_send(Ask::Lock(key, answer))
            .map_err(|_| Busy::asked_too_much())?;
        answered.await.map_err(|_| Busy::asked_too_much())
    }

    pub(crate) async fn revoke(
        &self,
        key: LockKey,
        operator: String,
        body: RevokeBody,
    ) -> Result<Result<RevokeAnswer, CallError>, Busy> {
        let (answer, answered) = oneshot::channel();
        let ask = Ask::Revoke {
            key,
            operator,
            body,
            answer,
        };
        self.asks.try_send(ask).map_err(|_| Busy::asked_too_much())?;
        answered.await.map_err(|_| Busy::asked_too_much())
    }

    pub(crate) async fn exception(&self, exception_id: u64) -> Result<Result<ExceptionRow, CallError>, Busy> {
        let (answer, answered) = oneshot::channel();
        self.asks
            .try_send(Ask::Exception(exception_id, answer))
            .map_err(|_| Busy::asked_too_much())?;
        answered.await.map_err(|_| Busy::asked_too_much())
    }

    pub(crate) async fn close_exception(
        &self,
        exception_id: u64,
        operator: String,
        body: CloseExceptionBody,
    ) -> Result<Result<ExceptionRow, CallError>, Busy> {
        let (answer, answered) = oneshot::channel();
        let ask = Ask::Close {
            exception_id,
            operator,
            body,
            answer,
        };
        self.asks.try_send(ask).map_err(|_| Busy::asked_too_much())?;
        answered.await.map_err(|_| Busy::asked_too_much())
    }
}

/// A page that is read now.
struct Read {
    frames: watch::Sender<Option<Arc<Frame>>>,
    /// Who was the first to look.
    by: Caller,
    viewers: RefCell<Vec<Weak<Viewer>>>,
    /// What reads it.
    task: Cell<Option<actix_rt::task::JoinHandle<()>>>,
}

impl Read {
    /// Whether somebody looks at it.
    fn is_looked_at(&self, now_ms: i64) -> bool {
        let mut viewers = self.viewers.borrow_mut();
        viewers.retain(|viewer| viewer.upgrade().is_some_and(|viewer| viewer.still_looks(now_ms)));
        !viewers.is_empty()
    }
}

struct Desk {
    upstreams: Rc<Upstreams>,
    topics: RefCell<HashMap<Topic, Rc<Read>>>,
    seq: Cell<u64>,
}

impl Desk {
    async fn serve(self: Rc<Self>, mut asks: mpsc::Receiver<Ask>) {
        while let Some(ask) = asks.recv().await {
            match ask {
                Ask::View(topic, caller, viewer, answer) => {
                    // Who asked may have gone.
                    let _ = answer.send(self.frames(topic, caller, &viewer));
                }
                Ask::Lock(key, answer) => {
                    let desk = Rc::clone(&self);
                    actix_rt::spawn(async move {
                        let up = &desk.upstreams;
                        let read = up.read_locks(async |api| api.lock(&key, &up.trace()).await).await;
                        let _ = answer.send(read);
                    });
                }
                Ask::Revoke {
                    key,
                    operator,
                    body,
                    answer,
                } => {
                    let desk = Rc::clone(&self);
                    actix_rt::spawn(async move {
                        let up = &desk.upstreams;
                        let revoked = up
                            .write_locks(async |api| api.revoke(&key, &operator, &body, &up.trace()).await)
                            .await;
                        let _ = answer.send(revoked);
                    });
                }
                Ask::Exception(exception_id, answer) => {
                    let desk = Rc::clone(&self);
                    actix_rt::spawn(async move {
                        let up = &desk.upstreams;
                        let _ = answer.send(up.rail().exception(exception_id, &up.trace()).await);
                    });
                }
                Ask::Close {
                    exception_id,
                    operator,
                    body,
                    answer,
                } => {
                    let desk = Rc::clone(&self);
                    actix_rt::spawn(async move {
                        let (up, trace) = (&desk.upstreams, desk.upstreams.trace());
                        let closed = up.rail().close_exception(exception_id, &operator, &body, &trace).await;
                        let _ = answer.send(closed.map(|answer| answer.body));
                    });
                }
            }
        }
    }

    fn frames(self: &Rc<Self>, topic: Topic, by: Caller, viewer: &Arc<Viewer>) -> Option<Frames> {
        let mut topics = self.topics.borrow_mut();
        if let Some(read) = topics.get(&topic) {
            read.viewers.borrow_mut().push(Arc::downgrade(viewer));
            return Some(read.frames.subscribe());
        }
        let own = topics.values().filter(|read| read.by == by).count() >= TOPICS_MAX / 2;
        if own || topics.len() >= TOPICS_MAX {
            // Somebody who goes through many pages leaves each of them to be read a while longer: the one that nobody looks
            // at makes room.
            let now_ms = self.upstreams.now();
            let unseen = topics
                .iter()
                .find(|(_, read)| (!own || read.by == by) && !read.is_looked_at(now_ms));
            let unseen = unseen.map(|(topic, _)| topic.clone())?;
            if let Some(task) = topics.remove(&unseen).and_then(|read| read.task.take()) {
                task.abort();
            }
        }
        let (frames, seen) = watch::channel(None);
        let read = Rc::new(Read {
            frames,
            by,
            viewers: RefCell::new(vec![Arc::downgrade(viewer)]),
            task: Cell::new(None),
        });
        topics.insert(topic.clone(), Rc::clone(&read));
        let task = actix_rt::spawn(Rc::clone(self).follow(topic, Rc::clone(&read)));
        read.task.set(Some(task));
        Some(seen)
    }

    /// Reads a page again and again while somebody looks at it.
    async fn follow(self: Rc<Self>, topic: Topic, read: Rc<Read>) {
        let up = &*self.upstreams;
        let mut view = views::of(&topic);
        let mut unseen = 0;
        let mut last = String::new();
        loop {
            let began = up.host.clock.mono();
            view.refresh(up).await;
            let now_ms = up.now();
            let shown = view.show(now_ms);
            let html = gateway_kit::shown_html(&page::live(&shown, up).into_string()).into_owned();
            if html != last {
                last.clone_from(&html);
                self.seq.set(self.seq.get() + 1);
                read.frames.send_replace(Some(Arc::new(Frame {
                    seq: self.seq.get(),
                    at_ms: now_ms,
                    title: gateway_kit::shown(&shown.title).into_owned(),
                    html,
                })));
            }
            unseen = if read.is_looked_at(now_ms) { 0 } else { unseen + 1 };
            if unseen > LINGER {
                self.topics.borrow_mut().remove(&topic);
                return;
            }
            let took = up.host.clock.mono().saturating_sub(began);
            up.host
                .clock
                .sleep(view.pace().saturating_sub(took).max(PACE / 2))
                .await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn viewer(seats: &Shares) -> Viewer {
        let caller = Caller::at(std::net::IpAddr::from([10, 0, 0, 1]));
        Viewer {
            progress_ms: AtomicI64::new(0),
            dropped: AtomicBool::new(false),
            seat: Mutex::new(Some(seats.take(caller, 1).unwrap())),
        }
    }

    #[test]
    fn who_takes_nothing_for_too_long_is_dropped_and_counted_once() {
        let seats = Shares::halves("viewers", "x", 4);
        let (slow, quick) = (viewer(&seats), viewer(&seats));
        quick.progress(30_000);
        assert!(!slow.still_looks(30_001) && quick.still_looks(30_001));
        assert!(slow.is_dropped() && !slow.still_looks(30_002));
        assert_eq!(seats.taken(), 1);
        drop((slow, quick));
        assert_eq!(seats.taken(), 0);
    }
}
