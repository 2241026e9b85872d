//! The queue of one key: who is next, when to ask the store, what each caller is told. Pure: time comes in as an
//! argument, effects go out as [`Action`]s.
//!
//! Owns: the order of arrival at this replica, and the rules
//! - one attempt at the store at a time, always for the head: a newcomer never overtakes, and is told who holds the key
//!   by an attempt that began after it came;
//! - an ended grant starts one attempt, not one per waiter;
//! - who has gone, or whose session has ended, leaves at once and delays nobody (cases L05, L24);
//! - an unknown answer is looked up and given back before anybody is answered (FR-27).
//!
//! Does not own: the grant. What is remembered of a holder here is a hint when to ask again; the store judges.
//! On failure: an attempt that the store could not serve is answered so to all who relied on it.

use crate::answers::{Acquired, Refusal};
use lock_api::{
    AcquireOutcome, AcquireRequest, FencingToken, Grant, HeldByOther, KeyState, ReleaseRequest, StoreError,
};
use lock_api::{RequestId, SessionId};
use std::collections::VecDeque;
use std::time::Duration;

/// Who waits for an answer.
pub(crate) trait Caller {
    /// Whether nobody listens any more.
    fn has_gone(&self) -> bool;
}

/// One acquire at this key.
#[derive(Debug)]
pub(crate) struct Entry<C> {
    pub(crate) request: AcquireRequest,
    /// Whether the request id is the client's own, so that the client can find its grant again.
    pub(crate) names_itself: bool,
    /// When the request reached this process, for `waited_ms`.
    pub(crate) received_at: Duration,
    /// Until when it waits; the moment of its coming when it does not.
    pub(crate) deadline: Duration,
    pub(crate) caller: Option<C>,
    seq: u64,
    waits: bool,
    counted: bool,
}

impl<C: Caller> Entry<C> {
    pub(crate) fn new(
        request: AcquireRequest,
        names_itself: bool,
        received_at: Duration,
        now: Duration,
        wait: Duration,
        caller: C,
    ) -> Self {
        Self {
            request,
            names_itself,
            received_at,
            deadline: now + wait,
            caller: Some(caller),
            seq: 0,
            waits: wait > Duration::ZERO,
            counted: false,
        }
    }

    fn has_gone(&self) -> bool {
        self.caller.as_ref().is_none_or(Caller::has_gone)
    }

    fn is_of(&self, grant: &Grant) -> bool {
        grant.session_id == self.request.session_id && grant.request_id.as_ref() == Some(&self.request.request_id)
    }
}

/// What the actor has to do.
#[derive(Debug)]
pub(crate) enum Action<C> {
    /// Ask the store for the key; its outcome comes back to [`Queue::outcome`].
    Attempt(AcquireRequest),
    /// Tell a caller. `guarded` where a grant that nobody takes must be given back.
    Answer {
        caller: C,
        answer: Result<Acquired, Refusal>,
        guarded: bool,
    },
    /// Give a grant back that nobody wants.
    Undo(ReleaseRequest),
    /// Give a grant back and come again with [`Queue::undone`]: an answer waits for it.
    UndoThenTell(ReleaseRequest),
    /// Look the key up and come again with [`Queue::looked_up`]; later when `again`.
    LookUp { again: bool },
    /// A session began or ceased to wait here.
    Waiting { session: SessionId, begins: bool },
}

#[derive(Debug)]
struct Attempt<C> {
    entry: Entry<C>,
    /// Entries below it came before the attempt began, so its outcome may be told to them.
    boundary: u64,
    began: Duration,
    session_ended: bool,
}

#[derive(Debug)]
enum Slot<C> {
    Empty,
    Asking(Attempt<C>),
    /// The answer is unknown; looked up so many times.
    Doubtful(Attempt<C>, u32),
    /// Found after an unknown answer and being given back.
    GivingBack(Attempt<C>),
}

/// A grant that may exist although its caller was refused and nobody can find it again.
#[derive(Debug)]
struct Ghost {
    session_id: SessionId,
    request_id: RequestId,
    until: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    token: FencingToken,
    until: Duration,
}

/// After how long at least a held key is asked for again.
const OVERDUE_PAUSE: Duration = Duration::from_millis(10);

/// How often an unknown answer is looked up before its caller is told.
const LOOK_UPS_MAX: u32 = 5;

/// The queue of one key.
#[derive(Debug)]
pub(crate) struct Queue<C> {
    waiting: VecDeque<Entry<C>>,
    slot: Slot<C>,
    next_seq: u64,
    /// The store is to be asked as soon as the slot is empty.
    wanted: bool,
    holder: Option<Holder>,
    /// The highest token known to have ended, until an attempt has used the knowledge.
    freed: Option<FencingToken>,
    ghosts: Vec<Ghost>,
    last_asked: Duration,
    bound: usize,
    safety: Duration,
}

impl<C: Caller> Queue<C> {
    /// `bound` callers at most; asked again after `safety` at the latest while somebody waits.
    pub(crate) const fn new(bound: usize, safety: Duration) -> Self {
        Self {
            waiting: VecDeque::new(),
            slot: Slot::Empty,
            next_seq: 0,
            wanted: false,
            holder: None,
            freed: None,
            ghosts: Vec::new(),
            last_asked: Duration::ZERO,
            bound,
            safety,
        }
    }

    /// A caller comes.
    pub(crate) fn join(&mut self, mut entry: Entry<C>, now: Duration, out: &mut Vec<Action<C>>) {
        if self.waiting.len() >= self.bound {
            self.drop_gone(out);
        }
        if self.waiting.len() >= self.bound {
            return tell(entry, Err(Refusal::Overloaded("waiters of this key")), out);
        }
        entry.seq = self.next_seq;
        self.next_seq += 1;
        self.waiting.push_back(entry);
        // Even behind a queue: the attempt is the head's, but it tells the newcomer who holds the key.
        self.wanted = true;
        self.settle(now, out);
        if let Some(entry) = self.waiting.back_mut()
            && entry.waits
            && !entry.counted
        {
            entry.counted = true;
            out.push(waiting(entry, true));
        }
    }

    /// The grant under `token` has ended.
    pub(crate) fn freed(&mut self, token: FencingToken, now: Duration, out: &mut Vec<Action<C>>) {
        if self.holder.is_some_and(|holder| holder.token > token) {
            return; // news of an older grant
        }
        self.holder = None;
        self.freed = self.freed.max(Some(token));
        self.wanted = true;
        self.settle(now, out);
    }

    /// The grant under `token` was extended.
    pub(crate) fn renewed(&mut self, token: FencingToken, until: Duration) {
        if let Some(holder) = &mut self.holder
            && holder.token == token
        {
            holder.until = until;
        }
    }

    /// A session has ended: whoever waits for it is told at once.
    pub(crate) fn session_ended(&mut self, session: &SessionId, now: Duration, out: &mut Vec<Action<C>>) {
        if let Slot::Asking(attempt) | Slot::Doubtful(attempt, _) | Slot::GivingBack(attempt) = &mut self.slot
            && attempt.entry.request.session_id == *session
        {
            attempt.session_ended = true;
            uncount(&mut attempt.entry, out);
            if let Some(caller) = attempt.entry.caller.take() {
                out.push(Action::Answer {
                    caller,
                    answer: Ok(Acquired::SessionNotFound),
                    guarded: false,
                });
            }
        }
        self.tell_all(
            |entry| entry.request.session_id == *session,
            |_| Ok(Acquired::SessionNotFound),
            out,
        );
        self.settle(now, out);
    }

    /// The store has answered the attempt; the call began at `started`.
    pub(crate) fn outcome(
        &mut self,
        of: (&SessionId, &RequestId),
        outcome: Result<AcquireOutcome, StoreError>,
        started: Duration,
        now: Duration,
        out: &mut Vec<Action<C>>,
    ) {
        let attempt = match std::mem::replace(&mut self.slot, Slot::Empty) {
            Slot::Asking(attempt) if of == (&attempt.entry.request.session_id, &attempt.entry.request.request_id) => {
                attempt
            }
            other => {
                self.slot = other; // the outcome of an attempt that a restart of this actor has forgotten
                return;
            }
        };
        self.last_asked = now;
        match outcome {
            Ok(AcquireOutcome::Granted { grant, replayed }) => {
                self.granted(attempt, grant, replayed, started, now, out);
            }
            Ok(AcquireOutcome::HeldByOther(held)) => self.held(attempt, held, now, out),
            Ok(AcquireOutcome::SessionNotFound) => {
                let session = attempt.entry.request.session_id.clone();
                tell(attempt.entry, Ok(Acquired::SessionNotFound), out);
                self.wanted = true;
                self.session_ended(&session, now, out);
            }
            Ok(AcquireOutcome::WitnessRefused { highest_believed }) => {
                tell(attempt.entry, Ok(Acquired::WitnessRefused { highest_believed }), out);
                self.wanted = true;
            }
            Ok(AcquireOutcome::TokenRegression { detail }) => {
                let answer = || Ok(Acquired::TokenRegression { detail: detail.clone() });
                tell(attempt.entry, answer(), out);
                // Nobody can be granted anything: waiting would only hide it.
                self.tell_all(|entry| entry.seq < attempt.boundary, |_| answer(), out);
            }
            Err(StoreError::Unknown { detail }) => {
                tracing::warn!(event = "acquire_unknown", key = %attempt.entry.request.key, detail);
                self.slot = Slot::Doubtful(attempt, 1);
                out.push(Action::LookUp { again: false });
            }
            Err(error) => self.failed(attempt, &error, out),
        }
        self.settle(now, out);
    }

    fn granted(
        &mut self,
        attempt: Attempt<C>,
        grant: Grant,
        replayed: bool,
        started: Duration,
        now: Duration,
        out: &mut Vec<Action<C>>,
    ) {
        let ended_already = self.freed.take().is_some_and(|freed| grant.token <= freed);
        self.holder = (!ended_already).then(|| Holder {
            token: grant.token,
            until: now + grant.expires_in,
        });
        // Whoever came meanwhile is refused below or waits for the end of this grant: nothing to ask the store.
        self.wanted = ended_already;
        let entry = attempt.entry;
        if attempt.session_ended || (entry.has_gone() && !entry.names_itself) {
            // Nobody can find this grant again: its key would be held for a whole TTL for nobody (case L18). A grant
            // whose request id is the client's own is kept: its retry, perhaps through another replica, may have
            // found it already, and giving it back would take the key from under a live holder.
            out.push(Action::Undo(release_of(&grant)));
            tell(entry, Ok(Acquired::SessionNotFound), out);
            return;
        }
        let guarded = !entry.names_itself;
        let waited = started.saturating_sub(entry.received_at);
        let answer = Ok(Acquired::granted(grant.clone(), replayed, waited));
        tell_guarded(entry, answer, guarded, out);
        let held = HeldByOther {
            holder: grant,
            is_self: false,
        };
        self.refuse(&held, u64::MAX, now, out);
    }

    fn held(&mut self, attempt: Attempt<C>, held: HeldByOther, now: Duration, out: &mut Vec<Action<C>>) {
        let holder = &held.holder;
        // Nothing is left when the holder's session is over but not yet ended: the sweep frees the key any moment, and
        // asking in a tight loop would not make it sooner.
        let left = holder.expires_in.max(OVERDUE_PAUSE);
        self.holder = Some(Holder {
            token: holder.token,
            until: now + left,
        });
        let is_ghost = |ghost: &Ghost| {
            ghost.session_id == holder.session_id && holder.request_id.as_ref() == Some(&ghost.request_id)
        };
        let ghost = self.ghosts.iter().position(is_ghost);
        if let Some(ghost) = ghost {
            self.ghosts.swap_remove(ghost);
            self.waiting.push_front(attempt.entry);
            out.push(Action::Undo(release_of(holder)));
            return;
        }
        if self.freed.take().is_some_and(|freed| holder.token <= freed) {
            // The attempt overtook the end of that grant on its way to the store.
            self.wanted = true;
        }
        let mut entry = attempt.entry;
        if entry.caller.is_some() {
            let counts = entry.waits && !entry.counted;
            if counts {
                entry.counted = true;
                out.push(waiting(&entry, true));
            }
            self.waiting.push_front(entry);
        }
        self.refuse(&held, attempt.boundary, attempt.began, out);
    }

    /// Tells those who came before `boundary` and whose wait was over at `over` that the key is held, and those whose
    /// own request made the grant that it is theirs.
    fn refuse(&mut self, held: &HeldByOther, boundary: u64, over: Duration, out: &mut Vec<Action<C>>) {
        self.tell_all(
            |entry| entry.seq < boundary && entry.is_of(&held.holder),
            |_| Ok(Acquired::granted(held.holder.clone(), true, Duration::ZERO)),
            out,
        );
        let ends = |entry: &Entry<C>| entry.seq < boundary && entry.deadline <= over;
        let waiters = u32::try_from(self.waiting.iter().filter(|e| !ends(e) && !e.has_gone()).count());
        let waiters = waiters.unwrap_or(u32::MAX);
        self.tell_all(
            ends,
            |entry| {
                Ok(Acquired::Held {
                    held: Box::new(HeldByOther {
                        holder: held.holder.clone(),
                        is_self: entry.request.session_id == held.holder.session_id,
                    }),
                    waiters,
                })
            },
            out,
        );
    }

    fn failed(&mut self, attempt: Attempt<C>, error: &StoreError, out: &mut Vec<Action<C>>) {
        tell(attempt.entry, Err(Refusal::Store(error.clone())), out);
        self.tell_all(
            |entry| entry.seq < attempt.boundary,
            |_| Err(Refusal::Store(error.clone())),
            out,
        );
    }

    /// What the store says of the key after an unknown answer.
    pub(crate) fn looked_up(&mut self, state: Result<KeyState, StoreError>, now: Duration, out: &mut Vec<Action<C>>) {
        let (attempt, tries) = match std::mem::replace(&mut self.slot, Slot::Empty) {
            Slot::Doubtful(attempt, tries) => (attempt, tries),
            other => {
                self.slot = other;
                return;
            }
        };
        match state {
            Ok(KeyState { grant: Some(grant), .. }) if attempt.entry.is_of(&grant) => {
                if attempt.entry.names_itself && attempt.entry.has_gone() {
                    // As above: its client may have found it by now.
                    self.failed(attempt, &unknown(), out);
                } else {
                    out.push(Action::UndoThenTell(release_of(&grant)));
                    self.slot = Slot::GivingBack(attempt);
                }
            }
            Ok(_) => {
                self.remember_ghost(&attempt, now);
                self.failed(attempt, &unknown(), out);
            }
            Err(_) if tries < LOOK_UPS_MAX && !attempt.entry.has_gone() => {
                self.slot = Slot::Doubtful(attempt, tries + 1);
                out.push(Action::LookUp { again: true });
            }
            Err(_) => {
                self.remember_ghost(&attempt, now);
                self.failed(attempt, &unknown(), out);
            }
        }
        self.settle(now, out);
    }

    /// The grant of an unknown answer was given back, or could not be.
    pub(crate) fn undone(&mut self, certainly: bool, now: Duration, out: &mut Vec<Action<C>>) {
        match std::mem::replace(&mut self.slot, Slot::Empty) {
            Slot::GivingBack(attempt) => {
                if !certainly {
                    self.remember_ghost(&attempt, now);
                }
                self.failed(attempt, &unknown(), out);
            }
            other => self.slot = other,
        }
        self.settle(now, out);
    }

    fn remember_ghost(&mut self, attempt: &Attempt<C>, now: Duration) {
        if !attempt.entry.names_itself {
            self.ghosts.push(Ghost {
                session_id: attempt.entry.request.session_id.clone(),
                request_id: attempt.entry.request.request_id.clone(),
                until: now + attempt.entry.request.ttl.get(),
            });
        }
    }

    /// Time has passed, or somebody may have gone.
    pub(crate) fn tick(&mut self, now: Duration, out: &mut Vec<Action<C>>) {
        self.ghosts.retain(|ghost| ghost.until > now);
        if self.holder.is_some_and(|holder| holder.until <= now) || now >= self.last_asked + self.safety {
            self.wanted = true;
        }
        self.settle(now, out);
    }

    /// Nobody is granted anything any more: everybody who waits is told so.
    pub(crate) fn drain(&mut self, out: &mut Vec<Action<C>>) {
        self.tell_all(|_| true, |_| Err(Refusal::Draining), out);
    }

    /// Drops who has gone, and asks the store for the head where that is due.
    fn settle(&mut self, now: Duration, out: &mut Vec<Action<C>>) {
        self.drop_gone(out);
        if self.waiting.is_empty() {
            self.wanted = false;
            return;
        }
        if !matches!(self.slot, Slot::Empty) {
            return;
        }
        // A wait that is over ends with one last look, so that the refusal says who holds the key now.
        let due = self.wanted || self.waiting.iter().any(|entry| entry.deadline <= now);
        if due && let Some(entry) = self.waiting.pop_front() {
            self.wanted = false;
            out.push(Action::Attempt(entry.request.clone()));
            self.slot = Slot::Asking(Attempt {
                entry,
                boundary: self.next_seq,
                began: now,
                session_ended: false,
            });
        }
    }

    fn drop_gone(&mut self, out: &mut Vec<Action<C>>) {
        self.waiting.retain_mut(|entry| {
            let stays = !entry.has_gone();
            if !stays {
                uncount(entry, out);
            }
            stays
        });
    }

    fn tell_all(
        &mut self,
        whom: impl Fn(&Entry<C>) -> bool,
        what: impl Fn(&Entry<C>) -> Result<Acquired, Refusal>,
        out: &mut Vec<Action<C>>,
    ) {
        if !self.waiting.iter().any(&whom) {
            return;
        }
        for entry in std::mem::take(&mut self.waiting) {
            if whom(&entry) {
                let answer = what(&entry);
                tell(entry, answer, out);
            } else {
                self.waiting.push_back(entry);
            }
        }
    }

    /// When [`Queue::tick`] is due; none while the store's answer is awaited or nobody waits.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        if !matches!(self.slot, Slot::Empty) {
            return None;
        }
        let deadline = self.waiting.iter().map(|entry| entry.deadline).min()?;
        let again = self.last_asked + self.safety;
        let holder = self.holder.map_or(again, |holder| holder.until);
        Some(deadline.min(again).min(holder))
    }

    /// Whether nothing is under way and nobody waits.
    pub(crate) fn is_idle(&self, now: Duration) -> bool {
        matches!(self.slot, Slot::Empty)
            && self.waiting.is_empty()
            && !self.ghosts.iter().any(|ghost| ghost.until > now)
    }

    /// Until when the key is held, as far as is known here.
    pub(crate) fn held_until(&self) -> Option<Duration> {
        self.holder.map(|holder| holder.until)
    }

    /// How many wait.
    pub(crate) fn waiters(&self) -> u32 {
        let asking = match &self.slot {
            Slot::Empty => 0,
            Slot::Asking(attempt) | Slot::Doubtful(attempt, _) | Slot::GivingBack(attempt) => {
                u32::from(attempt.entry.counted)
            }
        };
        let waiting = self.waiting.iter().filter(|entry| entry.counted).count();
        asking + u32::try_from(waiting).unwrap_or(u32::MAX - 1)
    }

    /// For [`crate::lease`]'s observable state.
    pub(crate) fn observe(&self) -> serde_json::Value {
        let slot = match self.slot {
            Slot::Empty => "empty",
            Slot::Asking(_) => "asking",
            Slot::Doubtful(..) => "doubtful",
            Slot::GivingBack(_) => "giving_back",
        };
        serde_json::json!({
            "waiting": self.waiting.len(),
            "slot": slot,
            "token": self.holder.map(|holder| holder.token.get()),
            "ghosts": self.ghosts.len(),
        })
    }
}

fn unknown() -> StoreError {
    StoreError::Unknown {
        detail: "the store's answer did not arrive; nothing is granted".into(),
    }
}

fn release_of(grant: &Grant) -> ReleaseRequest {
    ReleaseRequest {
        key: grant.key.clone(),
        session_id: grant.session_id.clone(),
        token: grant.token,
    }
}

fn waiting<C>(entry: &Entry<C>, begins: bool) -> Action<C> {
    Action::Waiting {
        session: entry.request.session_id.clone(),
        begins,
    }
}

fn uncount<C>(entry: &mut Entry<C>, out: &mut Vec<Action<C>>) {
    if std::mem::take(&mut entry.counted) {
        out.push(waiting(entry, false));
    }
}

fn tell<C>(entry: Entry<C>, answer: Result<Acquired, Refusal>, out: &mut Vec<Action<C>>) {
    tell_guarded(entry, answer, false, out);
}

fn tell_guarded<C>(mut entry: Entry<C>, answer: Result<Acquired, Refusal>, guarded: bool, out: &mut Vec<Action<C>>) {
    uncount(&mut entry, out);
    if let Some(caller) = entry.caller {
        out.push(Action::Answer {
            caller,
            answer,
            guarded,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_api::{LockKey, Owner, Ttl, UnixMillis};
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    const SAFETY: Duration = Duration::from_secs(1);
    const TTL: Duration = Duration::from_secs(15);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[derive(Clone, Debug)]
    struct Fake(u32, Rc<Cell<bool>>);

    impl Caller for Fake {
        fn has_gone(&self) -> bool {
            self.1.get()
        }
    }

    fn session(name: &str) -> SessionId {
        SessionId::new(name).unwrap()
    }

    fn entry(n: u32, of: &str, wait: u64, now: Duration) -> (Entry<Fake>, Rc<Cell<bool>>) {
        let gone = Rc::new(Cell::new(false));
        let request = AcquireRequest {
            key: LockKey::new("k").unwrap(),
            session_id: session(of),
            request_id: RequestId::new(format!("r{n}")).unwrap(),
            ttl: Ttl::new(TTL).unwrap(),
            metadata: None,
            witness: None,
        };
        let caller = Fake(n, gone.clone());
        (Entry::new(request, false, now, now, ms(wait), caller), gone)
    }

    #[allow(clippy::disallowed_methods, reason = "a token of a test's own")]
    fn token(n: u64) -> FencingToken {
        FencingToken::from_store(n).unwrap()
    }

    fn grant(of: &AcquireRequest, n: u64) -> Grant {
        Grant {
            key: of.key.clone(),
            token: token(n),
            session_id: of.session_id.clone(),
            owner: Owner::new("w").unwrap(),
            ttl: of.ttl,
            expires_in: TTL,
            granted_at: UnixMillis(0),
            request_id: Some(of.request_id.clone()),
            metadata: None,
        }
    }

    /// What a queue asked for, taken apart.
    #[derive(Default)]
    struct Seen {
        attempts: Vec<AcquireRequest>,
        answers: Vec<(u32, Result<Acquired, Refusal>)>,
        undone: Vec<ReleaseRequest>,
        undo_then_tell: usize,
        look_ups: usize,
        waiting: BTreeMap<SessionId, i64>,
    }

    impl Seen {
        fn take(&mut self, out: Vec<Action<Fake>>) {
            for action in out {
                match action {
                    Action::Attempt(request) => self.attempts.push(request),
                    Action::Answer { caller, answer, .. } => self.answers.push((caller.0, answer)),
                    Action::Undo(request) => self.undone.push(request),
                    Action::UndoThenTell(_) => self.undo_then_tell += 1,
                    Action::LookUp { .. } => self.look_ups += 1,
                    Action::Waiting { session, begins } => {
                        *self.waiting.entry(session).or_default() += if begins { 1 } else { -1 };
                    }
                }
            }
        }
    }

    struct Bench {
        queue: Queue<Fake>,
        seen: Seen,
        now: Duration,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                queue: Queue::new(4, SAFETY),
                seen: Seen::default(),
                now: Duration::ZERO,
            }
        }

        fn act(&mut self, act: impl FnOnce(&mut Queue<Fake>, Duration, &mut Vec<Action<Fake>>)) {
            let mut out = Vec::new();
            act(&mut self.queue, self.now, &mut out);
            self.seen.take(out);
        }

        fn join(&mut self, n: u32, of: &str, wait: u64) -> Rc<Cell<bool>> {
            let (entry, gone) = entry(n, of, wait, self.now);
            self.act(|queue, now, out| queue.join(entry, now, out));
            gone
        }

        fn answer(&mut self, outcome: impl FnOnce(&AcquireRequest) -> Result<AcquireOutcome, StoreError>) {
            let request = self.seen.attempts.pop().expect("an attempt is under way");
            let outcome = outcome(&request);
            self.act(|queue, now, out| {
                queue.outcome((&request.session_id, &request.request_id), outcome, now, now, out);
            });
        }

        fn grant(&mut self, n: u64) {
            self.answer(|request| {
                Ok(AcquireOutcome::Granted {
                    grant: grant(request, n),
                    replayed: false,
                })
            });
        }

        fn told(&mut self) -> Vec<(u32, &'static str)> {
            let label = |(n, answer): (u32, Result<Acquired, Refusal>)| {
                let label = match answer {
                    Ok(acquired) => acquired.label(),
                    Err(Refusal::Overloaded(_)) => "overloaded",
                    Err(Refusal::Draining) => "draining",
                    Err(refusal) if refusal.is_ambiguous() => "unknown",
                    Err(_) => "unavailable",
                };
                (n, label)
            };
            std::mem::take(&mut self.seen.answers).into_iter().map(label).collect()
        }
    }

    fn held_by(n: u64) -> impl FnOnce(&AcquireRequest) -> Result<AcquireOutcome, StoreError> {
        move |request| {
            let mut holder = grant(request, n);
            holder.session_id = session("holder");
            holder.request_id = RequestId::new("other").ok();
            Ok(AcquireOutcome::HeldByOther(HeldByOther { holder, is_self: false }))
        }
    }

    fn unknown_answer(_: &AcquireRequest) -> Result<AcquireOutcome, StoreError> {
        Err(unknown())
    }

    #[test]
    fn one_attempt_at_a_time_and_a_newcomer_is_told_by_one_that_began_after_it() {
        let mut bench = Bench::new();
        bench.join(1, "a", 0);
        bench.join(2, "b", 0);
        assert_eq!(bench.seen.attempts.len(), 1);
        bench.answer(held_by(7));
        // The second came while the first was on its way: the key may have been freed in between.
        assert_eq!(bench.told(), [(1, "held_by_other")]);
        assert_eq!(bench.seen.attempts.len(), 1);
        bench.answer(held_by(7));
        assert_eq!(bench.told(), [(2, "held_by_other")]);
        assert!(bench.queue.is_idle(bench.now));
    }

    #[test]
    fn an_ended_grant_wakes_the_head_alone() {
        let mut bench = Bench::new();
        for n in 1..=3 {
            bench.join(n, "a", 10_000);
            bench.answer(held_by(7));
        }
        assert_eq!((bench.queue.waiters(), bench.told()), (3, vec![]));
        bench.act(|queue, now, out| queue.freed(token(6), now, out));
        assert!(bench.seen.attempts.is_empty(), "news of an older grant wakes nobody");
        bench.act(|queue, now, out| queue.freed(token(7), now, out));
        bench.act(|queue, now, out| queue.freed(token(7), now, out));
        assert_eq!(bench.seen.attempts.len(), 1, "one wake per release");
        bench.grant(8);
        assert_eq!(bench.told(), [(1, "granted")]);
        assert!(
            bench.seen.attempts.is_empty(),
            "the others wait for the end of that grant"
        );
        assert_eq!(bench.seen.waiting[&session("a")], 2);
    }

    #[test]
    fn an_end_that_is_heard_before_the_attempts_answer_is_not_lost() {
        let mut bench = Bench::new();
        bench.join(1, "a", 10_000);
        bench.act(|queue, now, out| queue.freed(token(7), now, out));
        bench.answer(held_by(7));
        assert_eq!(
            bench.seen.attempts.len(),
            1,
            "it was refused for a grant that had ended"
        );
        bench.join(2, "b", 10_000);
        bench.act(|queue, now, out| queue.freed(token(8), now, out));
        bench.grant(8);
        assert_eq!(
            bench.seen.attempts.len(),
            1,
            "granted and ended at once: the next one's turn"
        );
    }

    #[test]
    fn the_end_of_a_wait_asks_once_more() {
        let mut bench = Bench::new();
        bench.join(1, "a", 500);
        bench.answer(held_by(7));
        assert_eq!(bench.queue.next_tick(), Some(ms(500)));
        bench.now = ms(499);
        bench.act(Queue::tick);
        assert!(bench.seen.attempts.is_empty());
        bench.now = ms(500);
        bench.act(Queue::tick);
        bench.grant(8);
        assert_eq!(bench.told(), [(1, "granted")], "it was free at the last moment");
    }

    #[test]
    fn who_has_gone_or_died_leaves_at_once() {
        let mut bench = Bench::new();
        let gone = bench.join(1, "a", 10_000);
        bench.answer(held_by(7));
        bench.join(2, "b", 10_000);
        bench.answer(held_by(7));
        bench.join(3, "c", 10_000);
        bench.answer(held_by(7));
        gone.set(true);
        bench.act(|queue, now, out| queue.session_ended(&session("b"), now, out));
        assert_eq!(bench.told(), [(2, "session_not_found")]);
        assert_eq!(bench.queue.waiters(), 1);
        bench.act(|queue, now, out| queue.freed(token(7), now, out));
        bench.grant(8);
        assert_eq!(bench.told(), [(3, "granted")]);
        assert!(bench.seen.waiting.values().all(|count| *count == 0));
    }

    #[test]
    fn a_session_that_dies_during_its_attempt_gets_no_grant() {
        let mut bench = Bench::new();
        bench.join(1, "a", 10_000);
        bench.act(|queue, now, out| queue.session_ended(&session("a"), now, out));
        assert_eq!(bench.told(), [(1, "session_not_found")]);
        bench.grant(8);
        assert_eq!((bench.told(), bench.seen.undone.len()), (vec![], 1));
    }

    #[test]
    fn case_l18_a_grant_for_nobody_is_given_back_unless_its_name_is_the_clients() {
        for names_itself in [false, true] {
            let mut bench = Bench::new();
            let (mut entry, gone) = entry(1, "a", 0, bench.now);
            entry.names_itself = names_itself;
            bench.act(|queue, now, out| queue.join(entry, now, out));
            gone.set(true);
            bench.grant(8);
            assert_eq!(bench.seen.undone.len(), usize::from(!names_itself));
        }
    }

    #[test]
    fn an_unknown_answer_is_looked_up_and_given_back_before_anybody_is_told() {
        let mut bench = Bench::new();
        bench.join(1, "a", 0);
        let request = bench.seen.attempts[0].clone();
        bench.answer(unknown_answer);
        assert_eq!((bench.seen.look_ups, bench.told()), (1, vec![]));
        let state = KeyState {
            key: request.key.clone(),
            last_token: Some(token(8)),
            grant: Some(grant(&request, 8)),
        };
        bench.act(|queue, now, out| queue.looked_up(Ok(state), now, out));
        assert_eq!((bench.seen.undo_then_tell, bench.told()), (1, vec![]));
        bench.act(|queue, now, out| queue.undone(true, now, out));
        assert_eq!(bench.told(), [(1, "unknown")]);
        assert!(bench.queue.is_idle(bench.now));
    }

    #[test]
    fn a_grant_that_was_not_found_at_first_is_given_back_when_it_turns_up() {
        let mut bench = Bench::new();
        bench.join(1, "a", 0);
        let request = bench.seen.attempts[0].clone();
        bench.answer(unknown_answer);
        for _ in 0..LOOK_UPS_MAX {
            bench.act(|queue, now, out| queue.looked_up(Err(unknown()), now, out));
        }
        assert_eq!(bench.told(), [(1, "unknown")]);
        assert!(
            !bench.queue.is_idle(bench.now),
            "it is remembered until its TTL is over"
        );
        bench.join(2, "b", 0);
        bench.answer(|_| {
            Ok(AcquireOutcome::HeldByOther(HeldByOther {
                holder: grant(&request, 8),
                is_self: false,
            }))
        });
        assert_eq!(bench.seen.undone.len(), 1);
        assert_eq!(
            bench.told(),
            [],
            "who asks next is not refused for a grant that nobody has"
        );
        bench.act(|queue, now, out| queue.freed(token(8), now, out));
        bench.grant(9);
        assert_eq!(bench.told(), [(2, "granted")]);
    }

    #[test]
    fn a_store_that_does_not_answer_is_told_to_all_who_relied_on_it() {
        let mut bench = Bench::new();
        bench.join(1, "a", 10_000);
        bench.answer(held_by(7));
        bench.join(2, "b", 0);
        bench.answer(|_| {
            Err(StoreError::Unavailable {
                detail: "busy".to_owned(),
            })
        });
        assert_eq!(bench.told(), [(1, "unavailable"), (2, "unavailable")]);
    }

    #[test]
    fn a_full_queue_refuses_and_makes_room_for_those_who_left() {
        let mut bench = Bench::new();
        let gone: Vec<_> = (1..=4)
            .map(|n| {
                let gone = bench.join(n, "a", 10_000);
                bench.answer(held_by(7));
                gone
            })
            .collect();
        bench.join(5, "a", 10_000);
        assert_eq!(bench.told(), [(5, "overloaded")]);
        gone[2].set(true);
        bench.join(6, "a", 10_000);
        assert_eq!((bench.told(), bench.queue.waiters()), (vec![], 4));
    }

    proptest! {
        /// Whatever happens in whatever order: everybody is answered exactly once or has gone, the sessions' counts
        /// come out even, and a key that is free has no waiters for longer than the safety interval.
        #[test]
        fn everybody_is_answered_once(steps in proptest::collection::vec((0u8..9, 0u32..4, 0u64..3), 1..120)) {
            let mut bench = Bench::new();
            bench.queue = Queue::new(1_000, SAFETY);
            let (mut joined, mut answered) = (0u32, Vec::new());
            let mut gone: Vec<(u32, Rc<Cell<bool>>)> = Vec::new();
            let mut live: Option<Grant> = None;
            let mut next = 1u64;
            for (step, who, wait) in steps {
                match step {
                    0..=2 => {
                        joined += 1;
                        gone.push((joined, bench.join(joined, &format!("s{who}"), wait * 700)));
                    }
                    3 | 4 => if let Some(request) = bench.seen.attempts.pop() {
                        let outcome = match &live {
                            Some(holder) => Ok(AcquireOutcome::HeldByOther(HeldByOther {
                                holder: holder.clone(),
                                is_self: false,
                            })),
                            None => {
                                next += 1;
                                let grant = grant(&request, next);
                                live = Some(grant.clone());
                                Ok(AcquireOutcome::Granted { grant, replayed: false })
                            }
                        };
                        bench.act(|queue, now, out| {
                            queue.outcome((&request.session_id, &request.request_id), outcome, now, now, out);
                        });
                    },
                    5 => if let Some(grant) = live.take() {
                        bench.act(|queue, now, out| queue.freed(grant.token, now, out));
                    },
                    6 => {
                        bench.now += ms(200);
                        bench.act(Queue::tick);
                    }
                    7 => bench.act(|queue, now, out| queue.session_ended(&session(&format!("s{who}")), now, out)),
                    _ => if let Some((_, gone)) = gone.get(who as usize) {
                        gone.set(true);
                    },
                }
                for request in std::mem::take(&mut bench.seen.undone) {
                    if live.as_ref().is_some_and(|grant| grant.token == request.token) {
                        live = None;
                        bench.act(|queue, now, out| queue.freed(request.token, now, out));
                    }
                }
                prop_assert!(bench.seen.attempts.len() <= 1);
                answered.extend(bench.told().into_iter().map(|(n, _)| n));
            }
            // The end: whoever holds lets go at once, until nobody is left.
            for _ in 0..2_000 {
                if let Some(request) = bench.seen.attempts.pop() {
                    next += 1;
                    let outcome = match &live {
                        Some(holder) => Ok(AcquireOutcome::HeldByOther(HeldByOther { holder: holder.clone(), is_self: false })),
                        None => Ok(AcquireOutcome::Granted { grant: grant(&request, next), replayed: false }),
                    };
                    let freed = match &outcome {
                        Ok(AcquireOutcome::Granted { grant, .. }) => grant.token,
                        _ => live.take().map(|grant| grant.token).unwrap(),
                    };
                    bench.act(|queue, now, out| {
                        queue.outcome((&request.session_id, &request.request_id), outcome, now, now, out);
                    });
                    bench.act(|queue, now, out| queue.freed(freed, now, out));
                } else if bench.queue.is_idle(bench.now) {
                    break;
                } else {
                    let due = bench.queue.next_tick().expect("who waits is looked at again");
                    prop_assert!(due <= bench.now + SAFETY);
                    bench.now = bench.now.max(due);
                    bench.act(Queue::tick);
                }
                bench.seen.undone.clear();
                answered.extend(bench.told().into_iter().map(|(n, _)| n));
            }
            prop_assert!(bench.queue.is_idle(bench.now));
            prop_assert!(bench.seen.waiting.values().all(|count| *count == 0), "{:?}", bench.seen.waiting);
            answered.sort_unstable();
            let once: std::collections::BTreeSet<_> = answered.iter().copied().collect();
            prop_assert_eq!(once.len(), answered.len(), "somebody was told twice");
            for (n, gone) in &gone {
                prop_assert!(gone.get() || once.contains(n), "{} was never told", n);
            }
        }
    }
}
