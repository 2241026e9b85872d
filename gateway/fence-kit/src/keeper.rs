//! The keeper of a guard: what one process knows of the requests it let through.
//!
//! ```text
//! begin ─→ written as open ─→ Pass ─→ sending ─→ answered ─→ gone
//!                               │        └─→ unanswered, dropped, killed ─→ stays open ─→ cleared: by an operator, or by the bound
//!                               └─→ never sent ─→ gone, the token unspent
//! ```
//!
//! Owns: which requests are on their way in this process, since when an unanswered one has been seen, ends that could not
//! be written yet. Does not own: marks ([`Marks`]), sockets, handlers.
//! On failure: closed. A request whose end is not known stays open, and with it every higher token of its key stays out.

use crate::admission::StaleReason;
use crate::marks::{Admission, Begin, ClearedBy, End, Ended, MarkRow, Marks, OpenRequest, RequestId};
use crate::predicate::RuleKind;
use gateway_kit::ApiError;
use host_kit::Host;
use http_contract::Code;
use lock_api::{FencingToken, LockKey, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How a keeper decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeeperOptions {
    /// What the mark's own token may do.
    pub rule: RuleKind,
    /// How long a call of the store may take.
    pub store_within: Duration,
    /// The service's own word that a request has no effect later than this after its connection was closed. None: it gave
    /// none, and an unanswered request stays open until an operator clears it. Counted by the monotonic clock from when
    /// this process saw the request unanswered; after a restart from the start, so that a clock that is set ends nothing.
    pub settled_after: Option<Duration>,
}

impl Default for KeeperOptions {
    fn default() -> Self {
        Self {
            rule: RuleKind::SameOrNewer,
            store_within: Duration::from_secs(5),
            settled_after: None,
        }
    }
}

/// The most open requests that are looked at, at once.
const OPEN_MAX: u32 = 1_000_000;

#[derive(Default)]
struct Known {
    /// On their way in this process: whatever they do is still to come.
    live: BTreeSet<RequestId>,
    /// Unanswered, and since when this process knows.
    unanswered: BTreeMap<RequestId, Duration>,
    /// Ended, not written yet.
    ended: Vec<Ended>,
}

struct Inner {
    marks: Arc<dyn Marks>,
    host: Host,
    options: KeeperOptions,
    known: Mutex<Known>,
}

/// Lets requests through, one store's worth of them. Cheap to clone.
#[derive(Clone)]
pub struct Keeper(Arc<Inner>);

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper")
            .field("options", &self.0.options)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// Why a request was not let through. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its token is out.
    FencedOut {
        /// The key.
        key: LockKey,
        /// Why.
        reason: StaleReason,
        /// What it presented.
        presented: FencingToken,
        /// The highest token that is known.
        highest: FencingToken,
    },
    /// A request of an older token has no answer.
    InDoubt {
        /// The key.
        key: LockKey,
        /// What it presented.
        presented: FencingToken,
        /// The oldest of those that are in its way.
        oldest: Option<Box<OpenRequest>>,
        /// How many are in its way, of those that were looked at.
        open: usize,
        /// Whether one of them is on its way in this process, so that its answer may still come.
        in_flight: bool,
    },
    /// The store did not say.
    Store(StoreError),
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::FencedOut {
                key,
                reason,
                presented,
                highest,
            } => {
                let detail = match reason {
                    StaleReason::Stale => format!("token {presented} is stale: the highest is {highest}"),
                    StaleReason::TokenSpent => format!("token {presented} has had its one effect"),
                };
                Self::new(Code::FencedOut, detail)
                    .field("reason", reason.as_str())
                    .field("presented_token", presented.get())
                    .field("highest_token", highest.get())
                    .about("key", key.as_str())
            }
            Refused::InDoubt {
                key,
                presented,
                oldest,
                open,
                in_flight,
            } => {
                let error = Self::new(
                    Code::InDoubt,
                    "a request of an older token was passed on and has no answer yet; nothing was done",
                )
                .field("reason", "older_request_open")
                .field("presented_token", presented.get())
                .field("open_requests", open)
                .field("in_flight", in_flight)
                .about("key", key.as_str());
                match oldest {
                    Some(oldest) => error
                        .field("open_token", oldest.token.get())
                        .field("open_since", gateway_kit::rfc3339(oldest.begun_at.0)),
                    None => error,
                }
            }
            Refused::Store(error) => {
                tracing::warn!(event = "store_failed", %error);
                let detail = "the marks could not be read and written; nothing was passed on";
                Self::new(Code::BackendUnavailable, detail).retry_after(Duration::from_secs(1))
            }
        }
    }
}

/// A request of this very caller that was passed on and not answered.
#[must_use]
pub fn no_answer(token: FencingToken, cause: &str) -> ApiError {
    ApiError::new(
        Code::InDoubt,
        format!("the request was passed on and not answered ({cause}): it may have been done, and may still be"),
    )
    .field("reason", "no_answer")
    .field("presented_token", token.get())
}

/// Why nothing was cleared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotCleared {
    /// One of them is on its way in this process: whatever it does is still to come.
    InFlight(RequestId),
    /// The store did not say.
    Store(StoreError),
}

impl Keeper {
    /// A keeper over a store that nobody else keeps. What is open there was left by an earlier process, and is in doubt.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub async fn new(marks: Arc<dyn Marks>, host: &Host, options: KeeperOptions) -> Result<Self, StoreError> {
        let left = marks.open_requests(None, OPEN_MAX, options.store_within).await?;
        let now = host.clock.mono();
        if !left.is_empty() {
            tracing::warn!(event = "fence_requests_in_doubt", open = left.len());
        }
        let known = Known {
            unanswered: left.into_iter().map(|open| (open.id, now)).collect(),
            ..Known::default()
        };
        Ok(Self(Arc::new(Inner {
            marks,
            host: host.clone(),
            options,
            known: Mutex::new(known),
        })))
    }

    /// The store.
    #[must_use]
    pub fn marks(&self) -> &Arc<dyn Marks> {
        &self.0.marks
    }

    /// The handles of the process.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.0.host
    }

    /// How many requests are on their way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.known().live.len()
    }

    /// How many requests were begun and have neither an answer nor a way to get one.
    #[must_use]
    pub fn in_doubt(&self) -> usize {
        self.known().unanswered.len()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Each change is one insertion or removal, so a poisoned lock guards nothing half done.
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks to begin a request; `what` says what it is, for whoever may have to clear it. With the pass in hand it may be
    /// sent.
    ///
    /// # Errors
    /// [`Refused`]: nothing may be sent.
    pub async fn begin(&self, key: &LockKey, token: FencingToken, what: &str) -> Result<Pass, Refused> {
        loop {
            let mut pass = Pass {
                keeper: self.clone(),
                id: self.0.host.ids.ulid(),
                key: key.clone(),
                token,
                stage: Stage::Asked,
            };
            let ended = {
                let mut known = self.known();
                known.live.insert(pass.id.clone());
                std::mem::take(&mut known.ended)
            };
            let request = Begin {
                id: pass.id.clone(),
                key: key.clone(),
                token,
                rule: self.0.options.rule,
                what: what.to_owned(),
                ended: ended.clone(),
            };
            let admission = match self.0.marks.begin(request, self.0.options.store_within).await {
                Ok(admission) => admission,
                Err(error) => {
                    // Ending twice is ending once, should they have been ended all the same.
                    self.known().ended.extend(ended);
                    return Err(Refused::Store(error));
                }
            };
            match admission {
                Admission::Begun => return Ok(pass),
                Admission::FencedOut { reason, highest } => {
                    pass.stage = Stage::Ended;
                    return Err(Refused::FencedOut {
                        key: key.clone(),
                        reason,
                        presented: token,
                        highest,
                    });
                }
                Admission::InDoubt { blocking } => {
                    pass.stage = Stage::Ended;
                    if !self.clear_by_bound(&blocking).await? {
                        let in_flight = {
                            let known = self.known();
                            blocking.iter().any(|open| known.live.contains(&open.id))
                        };
                        return Err(Refused::InDoubt {
                            key: key.clone(),
                            presented: token,
                            open: blocking.len(),
                            oldest: blocking.into_iter().next().map(Box::new),
                            in_flight,
                        });
                    }
                }
            }
        }
    }

    /// Clears what has been seen unanswered for as long as the service declares. True where any was.
    async fn clear_by_bound(&self, blocking: &[OpenRequest]) -> Result<bool, Refused> {
        let Some(bound) = self.0.options.settled_after else {
            return Ok(false);
        };
        let now = self.0.host.clock.mono();
        let due: Vec<RequestId> = {
            let mut known = self.known();
            let known = &mut *known;
            blocking
                .iter()
                .filter(|open| !known.live.contains(&open.id))
                .filter(|open| {
                    let since = *known.unanswered.entry(open.id.clone()).or_insert(now);
                    now.saturating_sub(since) >= bound
                })
                .map(|open| open.id.clone())
                .collect()
        };
        if due.is_empty() {
            return Ok(false);
        }
        let within = self.0.options.store_within;
        let cleared = self.0.marks.clear(due, ClearedBy::Bound, within).await;
        self.forget(cleared.map_err(Refused::Store)?.as_slice());
        Ok(true)
    }

    fn forget(&self, cleared: &[OpenRequest]) {
        let mut known = self.known();
        for open in cleared {
            known.unanswered.remove(&open.id);
            tracing::warn!(
                event = "fence_request_cleared",
                key = open.key,
                token = open.token.get(),
                what = open.what
            );
        }
    }

    /// Declares open requests of a key to be without effect from now on, because somebody looked: those that were looked
    /// at, or all of them.
    ///
    /// # Errors
    /// [`NotCleared`]: nothing was cleared.
    pub async fn clear(
        &self,
        key: &LockKey,
        looked_at: Option<&[RequestId]>,
        name: &str,
        reason: &str,
    ) -> Result<Vec<OpenRequest>, NotCleared> {
        let within = self.0.options.store_within;
        let open = self.0.marks.open_requests(Some(key.clone()), OPEN_MAX, within).await;
        let ids: Vec<RequestId> = open
            .map_err(NotCleared::Store)?
            .into_iter()
            .map(|open| open.id)
            .filter(|id| looked_at.is_none_or(|looked_at| looked_at.contains(id)))
            .collect();
        {
            let known = self.known();
            if let Some(id) = ids.iter().find(|id| known.live.contains(*id)) {
                return Err(NotCleared::InFlight(id.clone()));
            }
        }
        let by = ClearedBy::Operator {
            name: name.to_owned(),
            reason: reason.to_owned(),
        };
        let cleared = self.0.marks.clear(ids, by, within).await.map_err(NotCleared::Store)?;
        self.forget(&cleared);
        Ok(cleared)
    }

    /// Open requests, oldest first; with each whether it is on its way in this process.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn open_requests(
        &self,
        key: Option<LockKey>,
        limit: u32,
    ) -> Result<Vec<(OpenRequest, bool)>, StoreError> {
        let within = self.0.options.store_within;
        let rows = self.0.marks.open_requests(key, limit, within).await?;
        let known = self.known();
        Ok(rows
            .into_iter()
            .map(|open| {
                let live = known.live.contains(&open.id);
                (open, live)
            })
            .collect())
    }

    /// A key's mark.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn mark(&self, key: LockKey) -> Result<MarkRow, StoreError> {
        self.0.marks.mark(key, self.0.options.store_within).await
    }

    /// Writes the ends that could not be written when they were known.
    pub async fn flush(&self) {
        let ended = std::mem::take(&mut self.known().ended);
        if !ended.is_empty()
            && let Err(error) = self.0.marks.end(ended.clone(), self.0.options.store_within).await
        {
            tracing::warn!(event = "fence_end_not_written", %error);
            self.known().ended.extend(ended);
        }
    }

    async fn end(&self, id: &RequestId, end: End) {
        let ended = Ended { id: id.clone(), end };
        let written = self.0.marks.end(vec![ended.clone()], self.0.options.store_within).await;
        let mut known = self.known();
        if let Err(error) = written {
            tracing::warn!(event = "fence_end_not_written", %error);
            known.ended.push(ended);
        }
        known.live.remove(id);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Not sent: it had no effect.
    Asked,
    /// It may be on its way.
    Sending,
    /// Nothing more to be said.
    Ended,
}

/// The right to send one request, and the duty to say what came of it. Dropped without a word after [`Pass::sending`], the
/// request stays open; before, it counts as never sent.
#[derive(Debug)]
pub struct Pass {
    keeper: Keeper,
    id: RequestId,
    key: LockKey,
    token: FencingToken,
    stage: Stage,
}

impl Pass {
    /// What it acts on.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// The token, to be passed on to whoever does the work.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// To be called before the first byte leaves, or the handler is called.
    pub fn sending(&mut self) {
        self.stage = Stage::Sending;
    }

    /// The whole answer is here.
    pub async fn answered(mut self) {
        self.stage = Stage::Ended;
        self.keeper.end(&self.id, End::Answered).await;
    }

    /// It certainly never left: no connection was made.
    pub async fn never_sent(mut self) {
        self.stage = Stage::Ended;
        self.keeper.end(&self.id, End::NeverSent).await;
    }

    /// There will be no answer. To be called after the connection was closed.
    pub async fn unanswered(self, cause: &str) {
        let inner = &self.keeper.0;
        let written = inner
            .marks
            .unanswered(self.id.clone(), cause.to_owned(), inner.options.store_within)
            .await;
        if let Err(error) = written {
            tracing::warn!(event = "fence_cause_not_written", %error);
        }
        // Dropped here, still `Sending`: no longer on its way, and open.
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let now = self.keeper.0.host.clock.mono();
        let mut known = self.keeper.known();
        match self.stage {
            Stage::Ended => {}
            Stage::Asked => known.ended.push(Ended {
                id: self.id.clone(),
                end: End::NeverSent,
            }),
            Stage::Sending => {
                known.unanswered.insert(self.id.clone(), now);
            }
        }
        known.live.remove(&self.id);
    }
}
