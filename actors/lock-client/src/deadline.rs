//! Whether a lock is still held: the one place that decides it.
//!
//! Owns: the local deadline of a grant and of its session on boot time (FR-11), the passage of a lease from held to lost
//! or given back, and who is told of a loss: each callback exactly once, with one reason (FR-12).
//! Does not own: safety. Between the check and the side effect the lease can lapse; the fencing token is what refuses a
//! stale write.
//! On failure: none of this needs the client's actor or its thread. When they stand still, renewals stop, the deadline
//! lapses, and every check says so.

use crate::yields::Yields;
use host_kit::Clock;
use lock_api::{FencingToken, LockKey, LockLost, LostReason, YieldAsked};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Told of a loss.
pub(crate) type OnLost = Box<dyn FnOnce(LockLost) + Send>;

/// Counts losses by reason.
pub(crate) type CountLoss = Arc<dyn Fn(LostReason) + Send + Sync>;

/// When the server can end a lease at the earliest, seen from here: it began to count when it applied the request, which
/// is not before the request was sent and, where the server made it wait, not before it had waited. The margin is taken
/// off on top (FR-11). A sum past the range of a duration is the far future; a margin above it is at once.
pub(crate) fn deadline(sent: Duration, waited: Duration, expires_in: Duration, margin: Duration) -> Duration {
    sent.saturating_add(waited)
        .saturating_add(expires_in)
        .saturating_sub(margin)
}

/// The life of a session as this process knows it. Heartbeats move it; its grants are bounded by it.
#[derive(Debug)]
pub(crate) struct SessionLife {
    deadline_ns: AtomicU64,
    lost: AtomicBool,
}

impl SessionLife {
    pub fn until(deadline: Duration) -> Self {
        Self {
            deadline_ns: AtomicU64::new(nanos(deadline)),
            lost: AtomicBool::new(false),
        }
    }

    pub fn deadline(&self) -> Duration {
        Duration::from_nanos(self.deadline_ns.load(Ordering::SeqCst))
    }

    /// A heartbeat was answered. Answers may overtake each other: the deadline never moves back.
    pub fn extend(&self, deadline: Duration) {
        self.deadline_ns.fetch_max(nanos(deadline), Ordering::SeqCst);
    }

    /// The server does not know the session any more, or it was closed.
    pub fn lose(&self) {
        self.lost.store(true, Ordering::SeqCst);
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }
}

fn nanos(duration: Duration) -> u64 {
    // 584 years of boot time.
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    /// The holder gave it back: no loss from here on.
    GivenBack,
    Lost(LostReason),
}

struct State {
    phase: Phase,
    deadline: Duration,
    /// The server says that this token holds nothing any more; only the reason is still being looked up. Every check
    /// says lost, and nobody is told before the reason is known or the deadline has come.
    condemned: bool,
    callbacks: Vec<OnLost>,
}

/// A grant as this process knows it. Shared between the guard, its views and the client's actor.
pub(crate) struct Lease {
    pub key: LockKey,
    pub token: FencingToken,
    /// The lease's own TTL, a third of which is the rhythm of renewal.
    pub ttl: Duration,
    pub session: Arc<SessionLife>,
    /// When the grant was known here, in boot time: a heartbeat sent before need not know it.
    pub since: Duration,
    clock: Clock,
    count: CountLoss,
    state: Mutex<State>,
    /// Not held any more, whether or not the reason is known.
    over: watch::Sender<bool>,
    lost: watch::Sender<Option<LockLost>>,
    /// Whether its holder is asked to give it up.
    pub yields: Yields,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Lease")
            .field("key", &self.key)
            .field("token", &self.token)
            .field("phase", &state.phase)
            .finish_non_exhaustive()
    }
}

impl Lease {
    pub fn new(
        key: LockKey,
        token: FencingToken,
        ttl: Duration,
        session: Arc<SessionLife>,
        deadline: Duration,
        clock: Clock,
        count: CountLoss,
    ) -> Self {
        Self {
            key,
            token,
            ttl,
            session,
            since: clock.boot(),
            clock,
            count,
            state: Mutex::new(State {
                phase: Phase::Held,
                deadline,
                condemned: false,
                callbacks: Vec::new(),
            }),
            over: watch::Sender::new(false),
            lost: watch::Sender::new(None),
            yields: Yields::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Callbacks run outside the lock, so a poisoned state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is left before the lock has to be given up; the reason when it is over already.
    fn left(&self, state: &State) -> Result<Duration, LostReason> {
        match state.phase {
            Phase::Lost(reason) => return Err(reason),
            // Nobody is told: a view asked after its own release.
            Phase::GivenBack => return Err(LostReason::Superseded),
            Phase::Held => {}
        }
        if self.session.is_lost() {
            return Err(LostReason::SessionLost);
        }
        if state.condemned {
            return Err(LostReason::Superseded);
        }
        self.time_left(state).ok_or(LostReason::DeadlineLapsed)
    }

    /// What is left by the local deadline alone; none at the deadline and past it.
    fn time_left(&self, state: &State) -> Option<Duration> {
        let end = state.deadline.min(self.session.deadline());
        end.checked_sub(self.clock.boot()).filter(|left| !left.is_zero())
    }

    /// Still held, now; what is left. A loss found here is told to everybody before this returns, except that a
    /// condemned lease waits for its reason: until that is known, or the deadline comes, a check says
    /// [`LostReason::Superseded`], which is true of a revoked token as well, and settles nothing.
    pub fn check(&self) -> Result<Duration, LockLost> {
        let state = self.state();
        match self.left(&state) {
            Ok(left) => Ok(left),
            Err(reason) if self.waits_for_reason(&state) => Err(LockLost {
                token: self.token,
                reason,
            }),
            Err(reason) => Err(self.lose_locked(state, reason)),
        }
    }

    /// Whoever looks the reason up has until the deadline: a loss is never told later than it would be without a word
    /// from the server, not even where the client's actor stands still.
    fn waits_for_reason(&self, state: &State) -> bool {
        state.phase == Phase::Held && state.condemned && !self.session.is_lost() && self.time_left(state).is_some()
    }

    /// The server has said that this token holds nothing, and nobody knows why yet.
    pub fn is_condemned(&self) -> bool {
        let state = self.state();
        state.phase == Phase::Held && state.condemned
    }

    /// The lock is lost for this reason, unless it was lost or given back before.
    pub fn lose(&self, reason: LostReason) {
        let state = self.state();
        self.lose_locked(state, reason);
    }

    fn lose_locked(&self, mut state: MutexGuard<'_, State>, reason: LostReason) -> LockLost {
        let mut loss = LockLost {
            token: self.token,
            reason,
        };
        match state.phase {
            Phase::Held => state.phase = Phase::Lost(reason),
            Phase::Lost(first) => {
                loss.reason = first;
                return loss;
            }
            Phase::GivenBack => return loss,
        }
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        (self.count)(reason);
        tracing::warn!(event = "lock_lost", key = %self.key, token = self.token.get(), reason = reason.as_str());
        self.over.send_replace(true);
        self.lost.send_replace(Some(loss));
        for callback in callbacks {
            tell(callback, loss);
        }
        loss
    }

    /// Tells of a loss: later, or at once when it has happened.
    pub fn on_lost(&self, callback: OnLost) {
        let loss = {
            let mut state = self.state();
            match state.phase {
                Phase::Held => {
                    state.callbacks.push(callback);
                    return;
                }
                Phase::GivenBack => return,
                Phase::Lost(reason) => LockLost {
                    token: self.token,
                    reason,
                },
            }
        };
        tell(callback, loss);
    }

    /// A server has shown that the holder is asked to give this grant up, or that it is not. It is told once, and only
    /// while there is something to give up.
    pub fn asked_to_yield(&self, asked: Option<&YieldAsked>) {
        let Some(asked) = asked.filter(|_| self.is_held()) else {
            return;
        };
        if self.yields.ask(asked) {
            tracing::info!(event = "asked_to_yield", key = %self.key, token = self.token.get(), operator = %asked.by);
        }
    }

    /// Ready with the loss; never ready when the lock is given back.
    pub async fn lost(self: Arc<Self>) -> LockLost {
        let mut seen = self.lost.subscribe();
        loop {
            if let Some(loss) = *seen.borrow_and_update() {
                return loss;
            }
            if seen.changed().await.is_err() {
                // Cannot be: `self` holds the sender.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Ready as soon as the lock is known not to be held any more, be the reason known or not; never ready when it is
    /// given back.
    pub async fn over(self: Arc<Self>) {
        let mut seen = self.over.subscribe();
        if seen.wait_for(|over| *over).await.is_err() {
            // Cannot be: `self` holds the sender.
            std::future::pending::<()>().await;
        }
    }

    /// The server's answer to a renewal moved the grant's own deadline.
    pub fn extend(&self, deadline: Duration) {
        let mut state = self.state();
        state.deadline = state.deadline.max(deadline);
    }

    /// The server does not know this grant any more. From now on every check says lost; whoever knows the reason calls
    /// [`Lease::lose`], and only the deadline or the end of the guard settles for less. False when there was nothing to
    /// condemn, or it was condemned before.
    pub fn condemn(&self) -> bool {
        let mut state = self.state();
        let fresh = state.phase == Phase::Held && !state.condemned;
        state.condemned |= fresh;
        drop(state);
        if fresh {
            self.over.send_replace(true);
        }
        fresh
    }

    /// The holder gives the lock back. From here on nothing is a loss. The loss when it came first; one whose reason is
    /// not known yet is settled now, for nobody looks after the lease from here on.
    pub fn give_back(&self) -> Result<(), LockLost> {
        let mut state = self.state();
        match self.left(&state) {
            Ok(_) => {
                state.phase = Phase::GivenBack;
                state.callbacks.clear();
                Ok(())
            }
            Err(reason) => Err(self.lose_locked(state, reason)),
        }
    }

    /// Whether it is neither lost nor given back, as far as anybody noticed.
    pub fn is_held(&self) -> bool {
        self.state().phase == Phase::Held
    }

    /// The earlier of the grant's and the session's deadline.
    pub fn deadline(&self) -> Duration {
        self.state().deadline.min(self.session.deadline())
    }
}

/// The application's code runs on the thread that found the loss, which may be the client's own: its panic ends here.
fn tell(callback: OnLost, loss: LockLost) {
    if catch_unwind(AssertUnwindSafe(|| callback(loss))).is_err() {
        tracing::error!(event = "lock_lost_callback_panicked", token = loss.token.get());
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests make tokens")]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use host_kit::ManualClock;
    use proptest::prelude::*;

    const fn s(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    struct Bench {
        hand: ManualClock,
        session: Arc<SessionLife>,
        lease: Arc<Lease>,
        told: Arc<Mutex<Vec<LostReason>>>,
        counted: Arc<Mutex<Vec<LostReason>>>,
    }

    /// A lease whose own deadline is at 14 s and whose session's is at 20 s.
    fn bench() -> Bench {
        let hand = ManualClock::new();
        let session = Arc::new(SessionLife::until(s(20)));
        let counted = Arc::new(Mutex::new(Vec::new()));
        let count: CountLoss = {
            let counted = counted.clone();
            Arc::new(move |reason| counted.lock().unwrap().push(reason))
        };
        let lease = Arc::new(Lease::new(
            LockKey::new("k").unwrap(),
            FencingToken::from_store(7).unwrap(),
            s(15),
            session.clone(),
            deadline(s(0), s(0), s(15), s(1)),
            hand.clock(),
            count,
        ));
        let told = Arc::new(Mutex::new(Vec::new()));
        let bench = Bench {
            hand,
            session,
            lease,
            told,
            counted,
        };
        bench.listen();
        bench
    }

    impl Bench {
        fn listen(&self) {
            let told = self.told.clone();
            self.lease
                .on_lost(Box::new(move |loss| told.lock().unwrap().push(loss.reason)));
        }

        fn told(&self) -> Vec<LostReason> {
            assert_eq!(*self.told.lock().unwrap(), *self.counted.lock().unwrap());
            self.told.lock().unwrap().clone()
        }
    }

    #[test]
    fn the_deadline_counts_from_the_send_and_what_the_server_waited() {
        assert_eq!(deadline(s(100), s(20), s(15), s(1)), s(134));
        assert_eq!(deadline(s(0), s(0), s(1), s(2)), Duration::ZERO);
        assert_eq!(deadline(s(1), s(0), Duration::MAX, s(1)), Duration::MAX - s(1));
    }

    #[test]
    fn held_until_the_deadline_and_not_a_moment_longer() {
        let b = bench();
        b.hand.advance(s(14) - Duration::from_nanos(1));
        assert_eq!(b.lease.check(), Ok(Duration::from_nanos(1)));
        assert!(b.told().is_empty());
        b.hand.advance(Duration::from_nanos(1));
        assert_eq!(b.lease.check().unwrap_err().reason, LostReason::DeadlineLapsed);
        assert_eq!(b.told(), [LostReason::DeadlineLapsed]);
    }

    #[test]
    fn case_l04_a_suspended_host_has_lost_its_lock_on_wake() {
        let b = bench();
        b.hand.suspend(s(60));
        assert_eq!(b.hand.clock().mono(), Duration::ZERO, "the monotonic clock stood still");
        assert_eq!(b.lease.check().unwrap_err().reason, LostReason::DeadlineLapsed);
        assert_eq!(b.told(), [LostReason::DeadlineLapsed]);
    }

    #[test]
    fn a_grant_never_outlives_its_session() {
        let b = bench();
        b.lease.extend(s(100));
        b.hand.advance(s(19));
        assert!(b.lease.check().is_ok());
        b.session.extend(s(25));
        b.session.extend(s(22));
        b.hand.advance(s(5));
        assert_eq!(
            b.lease.check(),
            Ok(s(1)),
            "a late answer of an earlier heartbeat does not move it back"
        );
        b.hand.advance(s(1));
        assert_eq!(b.lease.check().unwrap_err().reason, LostReason::DeadlineLapsed);
    }

    #[test]
    fn case_d05_heartbeats_alone_do_not_keep_a_grant() {
        let b = bench();
        for beat in 1..=3 {
            b.hand.advance(s(5));
            b.session.extend(s(5 * beat + 14));
        }
        assert_eq!(b.lease.check().unwrap_err().reason, LostReason::DeadlineLapsed);
    }

    #[test]
    fn a_lost_lease_is_never_revived() {
        let b = bench();
        b.hand.advance(s(14));
        assert!(b.lease.check().is_err());
        b.lease.extend(s(100));
        b.session.extend(s(100));
        assert!(b.lease.check().is_err());
        assert_eq!(b.told(), [LostReason::DeadlineLapsed]);
    }

    #[test]
    fn a_condemned_lease_is_lost_at_once_and_its_reason_settles_once() {
        let b = bench();
        assert!(b.lease.condemn());
        assert!(!b.lease.condemn());
        b.lease.lose(LostReason::Revoked);
        assert_eq!(b.lease.check().unwrap_err().reason, LostReason::Revoked);
        assert_eq!(b.told(), [LostReason::Revoked]);

        let b = bench();
        let mut over = Box::pin(b.lease.clone().over());
        assert!((&mut over).now_or_never().is_none());
        assert!(b.lease.condemn());
        assert!(over.now_or_never().is_some(), "known before the reason is");
        assert_eq!(b.lease.check().unwrap_err().reason, LostReason::Superseded);
        assert!(
            b.told().is_empty(),
            "a check that comes before the reason does not decide it"
        );
        assert!(b.lease.clone().lost().now_or_never().is_none());
        b.lease.lose(LostReason::Revoked);
        assert_eq!(b.lease.check().unwrap_err().reason, LostReason::Revoked);
        assert_eq!(b.told(), [LostReason::Revoked]);
    }

    #[test]
    fn a_condemned_lease_is_told_of_at_its_deadline_at_the_latest() {
        let b = bench();
        assert!(b.lease.condemn());
        b.hand.advance(s(14) - Duration::from_nanos(1));
        assert!(b.lease.check().is_err());
        assert!(b.told().is_empty());
        b.hand.advance(Duration::from_nanos(1));
        assert_eq!(b.lease.check().unwrap_err().reason, LostReason::Superseded);
        b.lease.lose(LostReason::Revoked);
        assert_eq!(b.told(), [LostReason::Superseded]);
    }

    #[test]
    fn giving_back_what_is_condemned_tells_of_the_loss() {
        let b = bench();
        assert!(b.lease.condemn());
        assert_eq!(b.lease.give_back().unwrap_err().reason, LostReason::Superseded);
        b.lease.lose(LostReason::Revoked);
        assert_eq!(b.told(), [LostReason::Superseded]);
    }

    #[test]
    fn a_callback_registered_late_is_called_at_once() {
        let b = bench();
        b.session.lose();
        assert_eq!(b.lease.check().unwrap_err().reason, LostReason::SessionLost);
        let (tx, rx) = std::sync::mpsc::channel();
        b.lease.on_lost(Box::new(move |loss| tx.send(loss.reason).unwrap()));
        assert_eq!(rx.try_recv(), Ok(LostReason::SessionLost));
        assert_eq!(
            b.lease.clone().lost().now_or_never().unwrap().reason,
            LostReason::SessionLost
        );
    }

    #[test]
    fn giving_back_is_no_loss() {
        let b = bench();
        assert_eq!(b.lease.give_back(), Ok(()));
        b.hand.advance(s(100));
        b.session.lose();
        b.lease.lose(LostReason::SessionLost);
        assert!(b.lease.check().is_err());
        assert!(b.told().is_empty());
        assert!(b.lease.clone().lost().now_or_never().is_none());
    }

    #[test]
    fn giving_back_what_is_lost_says_so() {
        let b = bench();
        b.hand.advance(s(14));
        assert_eq!(b.lease.give_back().unwrap_err().reason, LostReason::DeadlineLapsed);
        assert_eq!(b.told(), [LostReason::DeadlineLapsed]);
    }

    #[test]
    fn a_panicking_callback_does_not_keep_the_others_from_being_called() {
        let b = bench();
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        b.lease.on_lost(Box::new(|_| panic!("the application's")));
        b.listen();
        b.lease.lose(LostReason::Revoked);
        std::panic::set_hook(hook);
        assert_eq!(*b.told.lock().unwrap(), [LostReason::Revoked, LostReason::Revoked]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Advance(u64),
        Suspend(u64),
        Extend(u64),
        Heartbeat(u64),
        Check,
        Lose(usize),
        SessionLost,
        Condemn,
        GiveBack,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..10_000).prop_map(Step::Advance),
            (0u64..10_000).prop_map(Step::Suspend),
            (0u64..60_000).prop_map(Step::Extend),
            (0u64..60_000).prop_map(Step::Heartbeat),
            Just(Step::Check),
            (0usize..4).prop_map(Step::Lose),
            Just(Step::SessionLost),
            Just(Step::Condemn),
            Just(Step::GiveBack),
        ]
    }

    proptest! {
        /// Whatever happens in whatever order: one callback with one reason for a loss, none for a lock given back, and
        /// never an Ok at or past the deadline.
        #[test]
        fn case_l02_exactly_one_lost_callback_with_its_reason(steps in proptest::collection::vec(step(), 1..40)) {
            let reasons = [LostReason::DeadlineLapsed, LostReason::Revoked, LostReason::SessionLost, LostReason::Superseded];
            let b = bench();
            let (mut given_back, mut condemned) = (false, false);
            for step in steps {
                let was_lost = !b.told().is_empty();
                match step {
                    Step::Advance(ms) => b.hand.advance(Duration::from_millis(ms)),
                    Step::Suspend(ms) => b.hand.suspend(Duration::from_millis(ms)),
                    Step::Extend(ms) => b.lease.extend(Duration::from_millis(ms)),
                    Step::Heartbeat(ms) => b.session.extend(Duration::from_millis(ms)),
                    Step::Check => {
                        let late = b.hand.clock().boot() >= b.lease.deadline();
                        let checked = b.lease.check();
                        prop_assert!(!(late && checked.is_ok()));
                        prop_assert!(!(was_lost && checked.is_ok()));
                        prop_assert!(!(condemned && checked.is_ok()));
                    }
                    Step::Lose(n) => b.lease.lose(reasons[n]),
                    Step::SessionLost => b.session.lose(),
                    Step::Condemn => condemned |= b.lease.condemn(),
                    Step::GiveBack => {
                        let gave = b.lease.give_back();
                        if gave.is_ok() { given_back = true; }
                    }
                }
                let told = b.told();
                prop_assert!(told.len() <= 1);
                prop_assert!(!given_back || told.is_empty());
            }
            if !given_back {
                b.session.lose();
                let reason = b.lease.check().unwrap_err().reason;
                prop_assert_eq!(b.told(), vec![reason]);
            }
        }
    }
}
