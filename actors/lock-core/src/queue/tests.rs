use super::*;
use lock_api::{LockDelay, LockKey, Owner, Ttl, UnixMillis};
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
        lock_delay: LockDelay::NONE,
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
        lock_delay: of.lock_delay,
        yield_asked: None,
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
                    *self.waiting.entry(session).or_default() += begins.map_or(0, |begins| if begins { 1 } else { -1 });
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

    /// A waiter with a request id of its own.
    fn join_named(&mut self, n: u32, of: &str, wait: u64) -> Rc<Cell<bool>> {
        let (mut entry, gone) = entry(n, of, wait, self.now);
        entry.names_itself = true;
        self.act(|queue, now, out| queue.join(entry, now, out));
        gone
    }

    /// Time passes: the queue is asked whenever it wants to be.
    fn pass(&mut self, until: Duration) {
        while let Some(due) = self.queue.next_tick().filter(|due| *due <= until) {
            assert!(due > self.now, "asked again at {due:?} without a reason");
            self.now = due;
            self.act(Queue::tick);
            if !self.seen.attempts.is_empty() {
                return;
            }
        }
        self.now = until;
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

fn delayed(last: u64, ends_in: u64) -> impl FnOnce(&AcquireRequest) -> Result<AcquireOutcome, StoreError> {
    move |_| {
        Ok(AcquireOutcome::Delayed {
            last_token: token(last),
            ends_in: ms(ends_in),
        })
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
fn a_closed_key_is_asked_for_when_its_delay_has_passed_and_not_before() {
    let mut bench = Bench::new();
    bench.join(1, "a", 10_000);
    bench.answer(held_by(7));
    bench.act(|queue, now, out| queue.freed(token(7), now, out));
    bench.answer(delayed(7, 3_000));
    assert_eq!((bench.told(), bench.queue.waiters()), (vec![], 1), "it goes on waiting");
    // The same loss is heard of again, by the sweep and by the event log, and the safety interval passes: no reason to ask.
    bench.act(|queue, now, out| queue.freed(token(7), now, out));
    bench.now = SAFETY * 2;
    bench.act(Queue::tick);
    assert!(bench.seen.attempts.is_empty());
    assert_eq!(bench.queue.next_tick(), Some(ms(3_000)));
    bench.now = ms(3_000);
    bench.act(Queue::tick);
    bench.grant(8);
    assert_eq!(bench.told(), [(1, "granted")]);
}

#[test]
fn who_does_not_wait_is_told_of_the_delay_and_does_not_overtake() {
    let mut bench = Bench::new();
    bench.join(1, "a", 10_000);
    bench.answer(delayed(7, 3_000));
    bench.join(2, "b", 0);
    assert_eq!(
        bench.seen.attempts[0].session_id,
        session("a"),
        "the attempt is the head's"
    );
    bench.answer(delayed(7, 2_500));
    let (who, answer) = bench.seen.answers.pop().unwrap();
    match answer {
        Ok(Acquired::Delayed {
            last_token,
            ends_in,
            waiters,
        }) => assert_eq!((who, last_token.get(), ends_in, waiters), (2, 7, ms(2_500), 1)),
        other => panic!("not told of the delay: {other:?}"),
    }
    // The delay has passed when somebody new comes, a moment before the tick: the head is granted.
    bench.now = ms(2_500);
    bench.join(3, "c", 0);
    bench.grant(8);
    assert_eq!(bench.told(), [(1, "granted"), (3, "held_by_other")]);
}

#[test]
fn a_wait_that_ends_within_a_delay_says_so() {
    let mut bench = Bench::new();
    bench.join(1, "a", 500);
    bench.answer(delayed(7, 3_000));
    assert_eq!(bench.queue.next_tick(), Some(ms(500)));
    bench.now = ms(500);
    bench.act(Queue::tick);
    bench.answer(delayed(7, 2_500));
    assert_eq!(bench.told(), [(1, "delayed")]);
    assert!(bench.queue.is_idle(bench.now));
}

#[test]
fn a_later_grant_that_ended_meanwhile_opens_a_closed_key() {
    let mut bench = Bench::new();
    bench.join(1, "a", 10_000);
    // Another replica granted and freed the key while the answer was on its way, or since.
    bench.act(|queue, now, out| queue.freed(token(8), now, out));
    bench.answer(delayed(7, 3_000));
    assert_eq!(bench.seen.attempts.len(), 1);
    bench.answer(delayed(7, 3_000));
    bench.act(|queue, now, out| queue.freed(token(9), now, out));
    assert_eq!(bench.seen.attempts.len(), 1);
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
fn case_l38_a_waiter_whose_connection_is_cut_finds_its_place_again() {
    let mut bench = Bench::new();
    let mut connection = bench.join_named(1, "b", 60_000);
    bench.answer(held_by(7));
    bench.join_named(2, "c", 60_000);
    bench.answer(held_by(7));
    for cut in 1..=6 {
        bench.now = ms(cut * 5_000);
        connection.set(true);
        bench.act(Queue::tick);
        while !bench.seen.attempts.is_empty() {
            bench.answer(held_by(7));
        }
        assert_eq!((bench.queue.waiters(), bench.told()), (1, vec![]), "cut {cut}");
        bench.now += ms(80);
        connection = bench.join_named(1, "b", 30_000);
        while !bench.seen.attempts.is_empty() {
            bench.answer(held_by(7));
        }
        assert_eq!((bench.queue.waiters(), bench.told()), (2, vec![]), "cut {cut}");
    }
    assert_eq!(
        bench.seen.waiting[&session("b")],
        1,
        "it has waited at this key all the time"
    );
    bench.act(|queue, now, out| queue.freed(token(7), now, out));
    bench.grant(8);
    assert_eq!(bench.told(), [(1, "granted")]);
    // The line goes on as it was: the second is next.
    bench.act(|queue, now, out| queue.freed(token(8), now, out));
    bench.grant(9);
    assert_eq!(bench.told(), [(2, "granted")]);
    assert!(bench.seen.waiting.values().all(|count| *count == 0));
    assert!(bench.queue.is_idle(bench.now));
}

#[test]
fn case_l38_a_free_key_is_held_open_for_a_waiter_that_was_cut_and_granted_to_nobody_absent() {
    let mut bench = Bench::new();
    let first = bench.join_named(1, "b", 60_000);
    bench.answer(held_by(7));
    bench.join_named(2, "c", 60_000);
    bench.answer(held_by(7));
    bench.now = ms(10_000);
    first.set(true);
    bench.act(Queue::tick);
    while !bench.seen.attempts.is_empty() {
        bench.answer(held_by(7));
    }
    bench.act(|queue, now, out| queue.freed(token(7), now, out));
    assert!(bench.seen.attempts.is_empty(), "the key is held open");
    bench.pass(ms(10_500));
    assert!(bench.seen.attempts.is_empty());
    bench.join_named(1, "b", 30_000);
    assert_eq!(bench.seen.attempts[0].session_id, session("b"));
    bench.grant(8);
    assert_eq!(bench.told(), [(1, "granted")]);
}

#[test]
fn case_l38_one_who_does_not_come_back_delays_the_next_by_a_second_at_most_and_keeps_its_place_for_five() {
    let mut bench = Bench::new();
    let gone: Vec<_> = (1..=2)
        .map(|n| {
            let gone = bench.join_named(n, &format!("b{n}"), 60_000);
            bench.answer(held_by(7));
            gone
        })
        .collect();
    bench.join_named(3, "c", 60_000);
    bench.answer(held_by(7));
    bench.now = ms(20_000);
    for gone in gone {
        gone.set(true);
    }
    bench.act(|queue, now, out| queue.freed(token(7), now, out));
    bench.pass(ms(30_000));
    assert_eq!(bench.now, ms(20_000) + HELD_OPEN_MAX, "their delays add up");
    bench.grant(8);
    assert_eq!(bench.told(), [(3, "granted")]);
    // Within the grace one of them is before whoever came later.
    bench.now = ms(24_900);
    bench.join_named(4, "d", 60_000);
    bench.answer(held_by(8));
    bench.join_named(2, "b2", 60_000);
    bench.answer(held_by(8));
    bench.act(|queue, now, out| queue.freed(token(8), now, out));
    assert_eq!(bench.seen.attempts[0].session_id, session("b2"));
    bench.answer(held_by(9));
    // After it the place is lost: nothing is left of it.
    bench.now = ms(25_000);
    bench.act(Queue::tick);
    assert_eq!(bench.seen.waiting[&session("b1")], 0);
}

#[test]
fn case_l38_who_waited_for_a_moment_is_waited_for_less_than_that() {
    let mut bench = Bench::new();
    let gone = bench.join_named(1, "b", 60_000);
    bench.answer(held_by(7));
    bench.join_named(2, "c", 60_000);
    bench.answer(held_by(7));
    bench.now = ms(100);
    gone.set(true);
    bench.act(|queue, now, out| queue.freed(token(7), now, out));
    bench.pass(ms(1_000));
    assert_eq!(bench.now, ms(125));
    assert_eq!(bench.seen.attempts[0].session_id, session("c"));
}

#[test]
fn case_l38_a_wait_that_is_over_keeps_its_place_for_the_next_one_of_the_same_request() {
    let mut bench = Bench::new();
    bench.join_named(1, "b", 3_000);
    bench.answer(held_by(7));
    bench.join_named(2, "c", 30_000);
    bench.answer(held_by(7));
    bench.now = ms(3_000);
    bench.act(Queue::tick);
    bench.answer(held_by(7));
    assert_eq!(bench.told(), [(1, "held_by_other")]);
    bench.now = ms(3_040);
    bench.join_named(1, "b", 3_000);
    while !bench.seen.attempts.is_empty() {
        bench.answer(held_by(7));
    }
    bench.act(|queue, now, out| queue.freed(token(7), now, out));
    bench.grant(8);
    assert_eq!(bench.told(), [(1, "granted")]);
}

#[test]
fn case_l38_a_place_ends_with_its_session_and_gives_way_to_who_is_here() {
    let mut bench = Bench::new(); // four places
    let mut gone = Vec::new();
    for n in 1..=4 {
        gone.push(bench.join_named(n, &format!("s{n}"), 60_000));
        bench.answer(held_by(7));
    }
    bench.now = ms(8_000);
    for gone in &gone[..2] {
        gone.set(true);
    }
    bench.act(Queue::tick);
    while !bench.seen.attempts.is_empty() {
        bench.answer(held_by(7));
    }
    bench.act(|queue, now, out| queue.session_ended(&session("s1"), now, out));
    assert_eq!(bench.seen.waiting[&session("s1")], 0);
    for n in 5..=6 {
        bench.join_named(n, &format!("s{n}"), 60_000);
        while !bench.seen.attempts.is_empty() {
            bench.answer(held_by(7));
        }
    }
    assert_eq!(bench.told(), [], "nobody is refused for the sake of one who is away");
    assert_eq!(bench.seen.waiting[&session("s2")], 0);
    bench.act(|queue, now, out| queue.freed(token(7), now, out));
    bench.grant(8);
    assert_eq!(
        bench.told(),
        [(3, "granted")],
        "nobody waits for a place that has ended"
    );
}

/// The same request comes through another connection before the end of the first was noticed.
#[test]
fn case_l38_a_second_connection_of_one_request_has_its_place_too() {
    let mut bench = Bench::new();
    let first = bench.join_named(1, "b", 60_000);
    bench.answer(held_by(7));
    bench.join_named(2, "c", 60_000);
    bench.answer(held_by(7));
    bench.now = ms(5_000);
    bench.join_named(1, "b", 60_000);
    while !bench.seen.attempts.is_empty() {
        bench.answer(held_by(7));
    }
    first.set(true);
    bench.act(Queue::tick);
    while !bench.seen.attempts.is_empty() {
        bench.answer(held_by(7));
    }
    bench.act(|queue, now, out| queue.freed(token(7), now, out));
    bench.grant(8);
    assert_eq!(bench.told(), [(1, "granted")]);
    bench.act(|queue, now, out| queue.freed(token(8), now, out));
    bench.grant(9);
    assert_eq!(bench.told(), [(2, "granted")]);
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
        closed_for: None,
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
    /// come out even, and a key that is free and open has no waiters for longer than the safety interval.
    #[test]
    fn everybody_is_answered_once(steps in proptest::collection::vec((0u8..10, 0u32..4, 0u64..3), 1..120)) {
        let mut bench = Bench::new();
        bench.queue = Queue::new(1_000, SAFETY);
        let (mut joined, mut answered) = (0u32, Vec::new());
        let mut gone: Vec<(u32, Rc<Cell<bool>>)> = Vec::new();
        let mut live: Option<Grant> = None;
        let mut next = 1u64;
        let mut closed = None;
        for (step, who, wait) in steps {
            match step {
                0..=2 => {
                    joined += 1;
                    gone.push((joined, bench.join(joined, &format!("s{who}"), wait * 700)));
                }
                3 | 4 => if let Some(request) = bench.seen.attempts.pop() {
                    let delay = closed.filter(|(_, until)| *until > bench.now);
                    let outcome = match &live {
                        None if delay.is_some() => {
                            let (last_token, until) = delay.unwrap();
                            Ok(AcquireOutcome::Delayed { last_token, ends_in: until - bench.now })
                        }
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
                9 => if let Some(grant) = live.take() {
                    closed = Some((grant.token, bench.now + ms(500)));
                    bench.act(|queue, now, out| queue.freed(grant.token, now, out));
                },
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

/// What another replica freed between the refusal of a waiter and the moment from which news are heard is seen by nobody:
/// it asks once more.
#[test]
fn who_waits_asks_again_when_news_begin_to_be_heard() {
    let mut bench = Bench::new();
    bench.join(1, "a", 10_000);
    bench.answer(held_by(7));
    assert!(bench.seen.attempts.is_empty());
    bench.act(|queue, now, out| queue.hears(now, out));
    assert_eq!(bench.seen.attempts.len(), 1);
    // An attempt that is under way at that moment may be older than the news.
    bench.act(|queue, now, out| queue.hears(now, out));
    bench.answer(held_by(7));
    assert_eq!(bench.seen.attempts.len(), 1);
    bench.answer(held_by(7));
    assert!(bench.seen.attempts.is_empty(), "once is enough");
    assert_eq!((bench.queue.waiters(), bench.told()), (1, vec![]));
}

/// The process began to end while a waiter asked once more; it then waited on, for as long as the process would let it.
#[test]
fn who_asks_again_while_the_queue_drains_is_told_so() {
    let mut bench = Bench::new();
    for n in 1..=2 {
        bench.join(n, "a", 10_000);
        if n == 1 {
            bench.answer(held_by(7));
        }
    }
    assert_eq!(bench.seen.attempts.len(), 1, "the first asks once more");
    bench.act(Queue::drain);
    assert_eq!(bench.told(), [(2, "draining")]);
    bench.answer(held_by(7));
    assert_eq!((bench.told(), bench.queue.waiters()), (vec![(1, "draining")], 0));
    // Who comes now and does not wait gets the store's answer.
    bench.join(3, "b", 0);
    bench.answer(held_by(7));
    assert_eq!(bench.told(), [(3, "held_by_other")]);
    assert!(
        bench.seen.waiting.values().all(|count| *count == 0),
        "{:?}",
        bench.seen.waiting
    );
}

/// While a waiter asked once more, a newcomer took its place, and the queue then held one more than it may.
#[test]
fn who_asks_again_keeps_its_place_in_a_full_queue() {
    let mut bench = Bench::new();
    bench.queue = Queue::new(1, SAFETY);
    bench.join(1, "a", 10_000);
    bench.answer(held_by(7));
    bench.act(|queue, now, out| queue.hears(now, out));
    assert_eq!(bench.seen.attempts.len(), 1, "it asks once more");
    bench.join(2, "b", 10_000);
    assert_eq!(bench.told(), [(2, "overloaded")]);
    bench.answer(held_by(7));
    assert_eq!((bench.queue.waiters(), bench.told()), (1, vec![]));
}
