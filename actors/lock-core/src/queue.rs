//! The queue of one key: who is next, when to ask the store, what each caller is told. Pure: time comes in as an
//! argument, effects go out as [`Action`]s.
//!
//! Owns: the order of arrival at this replica, and the rules
//! - one attempt at the store at a time, always for the head: a newcomer never overtakes, and is told who holds the key
//!   by an attempt that began after it came;
//! - an ended grant starts one attempt, not one per waiter;
//! - a key that is closed after an unclean loss is asked for again when its delay has passed, and not before;
//! - whose session has ended leaves at once; who has gone leaves at once too, or stays away (next rule) (cases L05, L24);
//! - a place belongs to the acquire, not to its connection (case L38): a waiter with a request id of its own that has gone,
//!   or was told that its wait is over, finds its place again for [`PLACE_GRACE`], while its session lives. Nothing is
//!   granted to who is away. The key is held open for it for a quarter of the time that it had waited,
//!   [`HELD_OPEN_MAX`] at most; from then on the next one who is here is granted;
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
    /// Where it stands in the line: that of its request id when it first came.
    place: u64,
    /// When its request id first came.
    came: Duration,
    /// Since when nobody asks for it.
    away: Option<Duration>,
    /// The same request asks again: the place is the other's.
    superseded: bool,
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
            place: 0,
            came: now,
            away: None,
            superseded: false,
            waits: wait > Duration::ZERO,
            counted: false,
        }
    }

    fn has_gone(&self) -> bool {
        self.caller.as_ref().is_none_or(Caller::has_gone)
    }

    fn is_here(&self) -> bool {
        self.away.is_none()
    }

    /// Whether its client could come back to its place.
    const fn keeps_place(&self) -> bool {
        self.names_itself && self.waits && !self.superseded
    }

    /// Until when nobody behind it is granted the key, where it is away.
    fn held_open_until(&self) -> Option<Duration> {
        let since = self.away?;
        Some(since + (since.saturating_sub(self.came) / 4).min(HELD_OPEN_MAX))
    }

    fn is_same_request(&self, request: &AcquireRequest) -> bool {
        self.request.request_id == request.request_id && self.request.session_id == request.session_id
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
    /// A session began or ceased to wait here; none where only the number of those who wait has changed.
    Waiting { session: SessionId, begins: Option<bool> },
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

/// The key is free, and granted to nobody until then.
#[derive(Clone, Copy, Debug)]
struct Closed {
    last_token: FencingToken,
    until: Duration,
}

/// Why a key that was asked for was not granted.
enum Busy<'a> {
    Held(&'a HeldByOther),
    Delayed {
        last_token: FencingToken,
        ends_in: Duration,
    },
}

impl Busy<'_> {
    fn answer<C>(&self, to: &Entry<C>, waiters: u32) -> Acquired {
        match *self {
            Busy::Held(held) => Acquired::Held {
                held: Box::new(HeldByOther {
                    holder: held.holder.clone(),
                    is_self: to.request.session_id == held.holder.session_id,
                }),
                waiters,
            },
            Busy::Delayed { last_token, ends_in } => Acquired::Delayed {
                last_token,
                ends_in,
                waiters,
            },
        }
    }
}

/// After how long at least a held or closed key is asked for again.
const OVERDUE_PAUSE: Duration = Duration::from_millis(10);

/// How long a place is kept for a waiter that is away.
pub(crate) const PLACE_GRACE: Duration = Duration::from_secs(5);

/// How long at most a free key is held open for a waiter that is away.
pub(crate) const HELD_OPEN_MAX: Duration = Duration::from_secs(1);

/// How often an unknown answer is looked up before its caller is told.
const LOOK_UPS_MAX: u32 = 5;

/// The queue of one key.
#[derive(Debug)]
pub(crate) struct Queue<C> {
    /// In order of their places.
    waiting: VecDeque<Entry<C>>,
    slot: Slot<C>,
    next_seq: u64,
    /// The store is to be asked as soon as the slot is empty.
    wanted: bool,
    holder: Option<Holder>,
    /// What the last answer said of a delay.
    closed: Option<Closed>,
    /// The highest token known to have ended, until an attempt has used the knowledge.
    freed: Option<FencingToken>,
    /// News are heard from a moment after the attempt under way began: what ended before that was not.
    unheard: bool,
    /// Nobody waits here any more; who comes gets the store's answer.
    draining: bool,
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
            closed: None,
            freed: None,
            unheard: false,
            draining: false,
            ghosts: Vec::new(),
            last_asked: Duration::ZERO,
            bound,
            safety,
        }
    }

    /// A caller comes.
    pub(crate) fn join(&mut self, mut entry: Entry<C>, now: Duration, out: &mut Vec<Action<C>>) {
        entry.seq = self.next_seq;
        entry.place = self.next_seq;
        let returned = entry.names_itself && self.takes_its_place(&mut entry, out);
        // A waiter that asks once more has left the line for a moment and keeps its place in it.
        if !returned && self.waiting.len() + self.asking_again() >= self.bound {
            // Who is here goes before who is away.
            self.drop_gone(now, out);
            self.drop_away(out);
            if self.waiting.len() + self.asking_again() >= self.bound {
                return tell(entry, Err(Refusal::Overloaded("waiters of this key")), out);
            }
        }
        self.next_seq += 1;
        let at = self.waiting.partition_point(|other| other.place <= entry.place);
        self.waiting.insert(at, entry);
        // Even behind a queue: the attempt is the head's, but it tells the newcomer who holds the key.
        self.wanted = true;
        let seq = self.next_seq - 1;
        self.settle(now, out);
        let newest = self.waiting.iter_mut().find(|entry| entry.seq == seq);
        if let Some(entry) = newest
            && entry.waits
            && !entry.counted
        {
            entry.counted = true;
            out.push(waiting(entry, true));
        }
    }

    /// The same request waited here before, or still does: its place is this one's. Answers whether it comes back for one
    /// that is away, which has gone then.
    fn takes_its_place(&mut self, entry: &mut Entry<C>, out: &mut Vec<Action<C>>) -> bool {
        let at = self
            .waiting
            .iter()
            .rposition(|other| other.is_same_request(&entry.request));
        if let Some(other) = at.and_then(|at| self.waiting.get_mut(at)) {
            (entry.place, entry.came) = (other.place, other.came);
            if other.is_here() {
                other.superseded = true;
                return false;
            }
            entry.counted = std::mem::take(&mut other.counted);
            at.and_then(|at| self.waiting.remove(at));
            out.push(number_changed(entry));
            return true;
        }
        if let Slot::Asking(attempt) | Slot::Doubtful(attempt, _) | Slot::GivingBack(attempt) = &mut self.slot
            && attempt.entry.is_same_request(&entry.request)
        {
            (entry.place, entry.came) = (attempt.entry.place, attempt.entry.came);
            attempt.entry.superseded = true;
        }
        false
    }

    /// The grant under `token` has ended.
    pub(crate) fn freed(&mut self, token: FencingToken, now: Duration, out: &mut Vec<Action<C>>) {
        if self.holder.is_some_and(|holder| holder.token > token) {
            return; // news of an older grant
        }
        if self.closed.is_some_and(|closed| closed.last_token >= token) {
            return; // news of the loss that closed the key: nobody is granted it sooner for that
        }
        self.holder = None;
        self.freed = self.freed.max(Some(token));
        self.wanted = true;
        self.settle(now, out);
    }

    /// From now on it is heard when a grant ends; one that ended after the last answer and before this was not.
    pub(crate) fn hears(&mut self, now: Duration, out: &mut Vec<Action<C>>) {
        if matches!(self.slot, Slot::Empty) {
            self.wanted = true;
            self.settle(now, out);
        } else {
            self.unheard = true;
        }
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
        self.closed = None;
        match outcome {
            Ok(AcquireOutcome::Granted { grant, replayed }) => {
                self.granted(attempt, grant, replayed, started, now, out);
            }
            Ok(AcquireOutcome::HeldByOther(held)) => self.held(attempt, held, now, out),
            Ok(AcquireOutcome::Delayed { last_token, ends_in }) => self.delayed(attempt, last_token, ends_in, now, out),
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
            Err(error) => self.failed(attempt, &error, now, out),
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
        self.refuse_held(&held, (u64::MAX, now), now, out);
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
            self.put_back(attempt.entry);
            out.push(Action::Undo(release_of(holder)));
            return;
        }
        if self.freed.take().is_some_and(|freed| holder.token <= freed) {
            // The attempt overtook the end of that grant on its way to the store.
            self.wanted = true;
        }
        if std::mem::take(&mut self.unheard) {
            self.wanted = true;
        }
        self.goes_on_waiting(attempt.entry, out);
        self.refuse_held(&held, (attempt.boundary, attempt.began), now, out);
    }

    fn delayed(
        &mut self,
        attempt: Attempt<C>,
        last_token: FencingToken,
        ends_in: Duration,
        now: Duration,
        out: &mut Vec<Action<C>>,
    ) {
        self.holder = None;
        self.closed = Some(Closed {
            last_token,
            until: now + ends_in.max(OVERDUE_PAUSE),
        });
        // A later grant that was made and ended on its way here has overtaken this answer, or may have, unheard.
        let overtaken = self.freed.take().is_some_and(|freed| freed > last_token);
        self.wanted |= std::mem::take(&mut self.unheard) | overtaken;
        self.goes_on_waiting(attempt.entry, out);
        let busy = Busy::Delayed { last_token, ends_in };
        self.refuse(&busy, (attempt.boundary, attempt.began), now, out);
    }

    /// Who was refused by the store keeps its place at the head of the line.
    fn goes_on_waiting(&mut self, mut entry: Entry<C>, out: &mut Vec<Action<C>>) {
        if entry.caller.is_some() {
            let counts = entry.waits && !entry.counted;
            if counts {
                entry.counted = true;
                out.push(waiting(&entry, true));
            }
            self.put_back(entry);
        }
    }

    fn put_back(&mut self, entry: Entry<C>) {
        let at = self.waiting.partition_point(|other| other.place < entry.place);
        self.waiting.insert(at, entry);
    }

    /// Tells a caller that it does not get the key now. Its place is kept, where it could come back to it.
    fn send_away(
        &mut self,
        mut entry: Entry<C>,
        answer: Result<Acquired, Refusal>,
        now: Duration,
        out: &mut Vec<Action<C>>,
    ) {
        if self.draining || !entry.keeps_place() {
            return tell(entry, answer, out);
        }
        if let Some(caller) = entry.caller.take() {
            out.push(Action::Answer {
                caller,
                answer,
                guarded: false,
            });
        }
        entry.away = Some(now);
        let news = if std::mem::replace(&mut entry.counted, true) {
            number_changed(&entry)
        } else {
            waiting(&entry, true)
        };
        self.put_back(entry);
        out.push(news);
    }

    /// Tells those who came before `boundary` that the grant which their own request made is theirs, and the rest as
    /// [`Queue::refuse`].
    fn refuse_held(
        &mut self,
        held: &HeldByOther,
        (boundary, over): (u64, Duration),
        now: Duration,
        out: &mut Vec<Action<C>>,
    ) {
        self.tell_all(
            |entry| entry.seq < boundary && entry.is_of(&held.holder),
            |_| Ok(Acquired::granted(held.holder.clone(), true, Duration::ZERO)),
            out,
        );
        self.refuse(&Busy::Held(held), (boundary, over), now, out);
    }

    /// Tells those who came before `boundary` and whose wait was over at `over` why they do not get the key.
    fn refuse(&mut self, busy: &Busy<'_>, (boundary, over): (u64, Duration), now: Duration, out: &mut Vec<Action<C>>) {
        let ends = |entry: &Entry<C>| entry.is_here() && entry.seq < boundary && entry.deadline <= over;
        let waiters = u32::try_from(self.waiting.iter().filter(|e| !ends(e) && !e.has_gone()).count());
        let waiters = waiters.unwrap_or(u32::MAX);
        self.send_away_all(ends, |entry| Ok(busy.answer(entry, waiters)), now, out);
    }

    fn failed(&mut self, attempt: Attempt<C>, error: &StoreError, now: Duration, out: &mut Vec<Action<C>>) {
        let answer = || Err(Refusal::Store(error.clone()));
        if attempt.session_ended {
            tell(attempt.entry, answer(), out);
        } else {
            self.send_away(attempt.entry, answer(), now, out);
        }
        let boundary = attempt.boundary;
        self.send_away_all(|entry| entry.is_here() && entry.seq < boundary, |_| answer(), now, out);
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
                    self.failed(attempt, &unknown(), now, out);
                } else {
                    out.push(Action::UndoThenTell(release_of(&grant)));
                    self.slot = Slot::GivingBack(attempt);
                }
            }
            Ok(_) => {
                self.remember_ghost(&attempt, now);
                self.failed(attempt, &unknown(), now, out);
            }
            Err(_) if tries < LOOK_UPS_MAX && !attempt.entry.has_gone() => {
                self.slot = Slot::Doubtful(attempt, tries + 1);
                out.push(Action::LookUp { again: true });
            }
            Err(_) => {
                self.remember_ghost(&attempt, now);
                self.failed(attempt, &unknown(), now, out);
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
                self.failed(attempt, &unknown(), now, out);
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
        if self.again_at() <= now {
            self.wanted = true;
        }
        self.settle(now, out);
    }

    /// Nobody waits here any more: everybody who does is told so; who is asking the store just now, when it has answered.
    pub(crate) fn drain(&mut self, now: Duration, out: &mut Vec<Action<C>>) {
        self.draining = true;
        self.settle(now, out);
    }

    /// Drops who has gone, and asks the store for the first one who is here, where that is due.
    fn settle(&mut self, now: Duration, out: &mut Vec<Action<C>>) {
        self.drop_gone(now, out);
        if self.draining {
            self.tell_all(|entry| entry.waits, |_| Err(Refusal::Draining), out);
        }
        let Some(head) = self.head() else {
            self.wanted = false;
            return;
        };
        if !matches!(self.slot, Slot::Empty) {
            return;
        }
        // A wait that is over ends with one last look, so that the refusal says who holds the key now.
        let is_over = |entry: &Entry<C>| entry.is_here() && entry.deadline <= now;
        let due = self.wanted || self.waiting.iter().any(is_over);
        // An attempt could be granted, so there is none while the key is held open for somebody before the head.
        let is_open = self.held_open_before(head).is_none_or(|until| until <= now);
        if due
            && is_open
            && let Some(entry) = self.waiting.remove(head)
        {
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

    /// The first one who is here.
    fn head(&self) -> Option<usize> {
        self.waiting.iter().position(Entry::is_here)
    }

    /// Until when the key is held open for somebody who is away, before this one.
    fn held_open_before(&self, head: usize) -> Option<Duration> {
        self.waiting.iter().take(head).filter_map(Entry::held_open_until).max()
    }

    fn drop_gone(&mut self, now: Duration, out: &mut Vec<Action<C>>) {
        let draining = self.draining;
        self.waiting.retain_mut(|entry| {
            let since = match entry.away {
                None if !entry.has_gone() => return true,
                None => now,
                Some(since) => since,
            };
            let stays = entry.keeps_place() && !draining && now < since + PLACE_GRACE;
            if !stays {
                uncount(entry, out);
            } else if entry.away.replace(since).is_none() {
                entry.caller = None;
                out.push(number_changed(entry));
            }
            stays
        });
    }

    fn drop_away(&mut self, out: &mut Vec<Action<C>>) {
        self.waiting.retain_mut(|entry| {
            if !entry.is_here() {
                uncount(entry, out);
            }
            entry.is_here()
        });
    }

    fn send_away_all(
        &mut self,
        whom: impl Fn(&Entry<C>) -> bool,
        what: impl Fn(&Entry<C>) -> Result<Acquired, Refusal>,
        now: Duration,
        out: &mut Vec<Action<C>>,
    ) {
        if !self.waiting.iter().any(&whom) {
            return;
        }
        for entry in std::mem::take(&mut self.waiting) {
            if whom(&entry) {
                let answer = what(&entry);
                self.send_away(entry, answer, now, out);
            } else {
                self.waiting.push_back(entry);
            }
        }
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

    /// When [`Queue::tick`] is due; none while the store's answer is awaited or nobody is in the line.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        if !matches!(self.slot, Slot::Empty) {
            return None;
        }
        let given_up = self.waiting.iter().filter_map(|entry| entry.away).min();
        let given_up = given_up.map(|since| since + PLACE_GRACE);
        let asks = self.head().map(|head| {
            let here = self.waiting.iter().filter(|entry| entry.is_here());
            let deadline = here.map(|entry| entry.deadline).min().unwrap_or_default();
            let due = if self.wanted {
                Duration::ZERO
            } else {
                deadline.min(self.again_at())
            };
            due.max(self.held_open_before(head).unwrap_or_default())
        });
        given_up.into_iter().chain(asks).min()
    }

    /// When the store is asked again although nothing was heard. Nothing opens a closed key before its time, so there is
    /// nothing to be missed.
    fn again_at(&self) -> Duration {
        if let Some(closed) = self.closed {
            return closed.until;
        }
        let again = self.last_asked + self.safety;
        self.holder.map_or(again, |holder| holder.until.min(again))
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

    /// Who the attempt is made for that is under way.
    pub(crate) fn asking_for(&self) -> Option<&C> {
        match &self.slot {
            Slot::Asking(attempt) => attempt.entry.caller.as_ref(),
            Slot::Empty | Slot::Doubtful(..) | Slot::GivingBack(_) => None,
        }
    }

    /// How many wait; who is away is not counted.
    pub(crate) fn waiters(&self) -> u32 {
        let waiting = self.waiting.iter().filter(|entry| entry.counted && entry.is_here());
        let waiting = waiting.count();
        u32::try_from(waiting + self.asking_again()).unwrap_or(u32::MAX)
    }

    /// One while the attempt that is made is that of a caller who waits already.
    fn asking_again(&self) -> usize {
        match &self.slot {
            Slot::Empty => 0,
            Slot::Asking(attempt) | Slot::Doubtful(attempt, _) | Slot::GivingBack(attempt) => {
                usize::from(attempt.entry.counted)
            }
        }
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
            "waiting": self.waiting.iter().filter(|entry| entry.is_here()).count(),
            "away": self.waiting.iter().filter(|entry| !entry.is_here()).count(),
            "slot": slot,
            "token": self.holder.map(|holder| holder.token.get()),
            "closed_after": self.closed.map(|closed| closed.last_token.get()),
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
        begins: Some(begins),
    }
}

fn number_changed<C>(entry: &Entry<C>) -> Action<C> {
    Action::Waiting {
        session: entry.request.session_id.clone(),
        begins: None,
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
mod tests;
