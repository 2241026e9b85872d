//! The kit's promises, on the paused clock.
#![allow(missing_docs, clippy::unwrap_used, reason = "messages of tests")]

use actor_kit::{
    Ask, AskError, Behaviour, Cx, Handle, Kit, Outcome, Receive, Reply, RestartPolicy, TraceContext, TraceQuery,
};
use host_kit::Host;
use prometheus::Registry;
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

struct Bench {
    kit: Kit,
    registry: Registry,
    trace: TraceContext,
}

/// Runs a test on the paused clock in an actix system.
fn paused<F: Future>(test: impl FnOnce(Bench) -> F) -> F::Output {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
    };
    actix_rt::System::with_tokio_rt(runtime).block_on(async {
        let (host, registry) = (Host::simulated(7), Registry::new());
        let kit = Kit::new("test", &host, &registry);
        let trace = TraceContext::root(&host.random);
        test(Bench { kit, registry, trace }).await
    })
}

impl Bench {
    fn spawn(&self) -> (Handle<Counter>, Rc<Seen>) {
        let seen = Rc::new(Seen::default());
        let handle = self.kit.spawn("counter", {
            let seen = seen.clone();
            move || Counter {
                count: 0,
                kept: Vec::new(),
                seen: seen.clone(),
            }
        });
        (handle, seen)
    }

    async fn add(&self, to: &Handle<Counter>, n: u64) -> Result<u64, AskError> {
        to.ask(Add(n), SECOND, &self.trace).await
    }

    fn metric(&self, name: &str) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name).unwrap();
        family
            .get_metric()
            .iter()
            .map(|m| {
                m.get_counter().get_value() + m.get_gauge().get_value() + m.get_histogram().get_sample_count() as f64
            })
            .sum()
    }
}

/// What outlives a restart, so that a test can look at it.
#[derive(Default)]
struct Seen {
    started: Cell<u32>,
    log: RefCell<Vec<String>>,
    panic_in_started: Cell<u32>,
}

struct Counter {
    count: u64,
    kept: Vec<Reply<u64>>,
    seen: Rc<Seen>,
}

impl Behaviour for Counter {
    const KIND: &'static str = "counter";
    const MAILBOX_CAPACITY: usize = 4;

    fn started(&mut self, _: &mut Cx<'_, Self>) {
        self.seen.started.set(self.seen.started.get() + 1);
        if self.seen.panic_in_started.get() > 0 {
            self.seen.panic_in_started.set(self.seen.panic_in_started.get() - 1);
            panic!("started on purpose");
        }
    }

    fn observe(&self) -> serde_json::Value {
        json!({ "count": self.count })
    }
}

struct Add(u64);
impl Ask for Add {
    type Answer = u64;
    const NAME: &'static str = "Add";
    fn token(&self) -> Option<u64> {
        Some(self.0)
    }
}
impl Receive<Add> for Counter {
    fn receive(&mut self, message: Add, reply: Reply<u64>, _: &mut Cx<'_, Self>) {
        self.count += message.0;
        reply.send(self.count);
    }
}

/// Answers after a time, through a future.
struct AddLater(u64, Duration);
impl Ask for AddLater {
    type Answer = u64;
    const NAME: &'static str = "AddLater";
}
struct Due(u64, Reply<u64>);
impl Ask for Due {
    type Answer = ();
    const NAME: &'static str = "Due";
}
impl Receive<AddLater> for Counter {
    fn receive(&mut self, message: AddLater, reply: Reply<u64>, cx: &mut Cx<'_, Self>) {
        let clock = cx.clock().clone();
        cx.pipe(async move { clock.sleep(message.1).await }, move |()| {
            Due(message.0, reply)
        });
    }
}
impl Receive<Due> for Counter {
    fn receive(&mut self, Due(n, reply): Due, _: Reply<()>, _: &mut Cx<'_, Self>) {
        self.count += n;
        reply.send(self.count);
    }
}

/// Keeps the right to answer, and never does.
struct Keep;
impl Ask for Keep {
    type Answer = u64;
    const NAME: &'static str = "Keep";
}
impl Receive<Keep> for Counter {
    fn receive(&mut self, _: Keep, reply: Reply<u64>, _: &mut Cx<'_, Self>) {
        self.kept.push(reply);
    }
}

struct Note(&'static str);
impl Ask for Note {
    type Answer = ();
    const NAME: &'static str = "Note";
}
impl Receive<Note> for Counter {
    fn receive(&mut self, note: Note, _: Reply<()>, _: &mut Cx<'_, Self>) {
        self.seen.log.borrow_mut().push(note.0.to_owned());
    }
}

/// Must be recorded whoever listens.
struct Record(&'static str);
impl Ask for Record {
    type Answer = ();
    const NAME: &'static str = "Record";
    const ALWAYS_HANDLED: bool = true;
}
impl Receive<Record> for Counter {
    fn receive(&mut self, record: Record, reply: Reply<()>, _: &mut Cx<'_, Self>) {
        self.seen.log.borrow_mut().push(record.0.to_owned());
        reply.send(());
    }
}

enum Do {
    Panic,
    PanicInFuture,
    NotifyAfterNote,
    Later(Duration, &'static str),
    LaterCancelled(Duration),
    Child,
    FragileChild(Arc<AtomicU32>),
    Stop,
}
impl Ask for Do {
    type Answer = ();
    const NAME: &'static str = "Do";
}
impl Receive<Do> for Counter {
    fn receive(&mut self, order: Do, reply: Reply<()>, cx: &mut Cx<'_, Self>) {
        match order {
            Do::Panic => panic!("on purpose"),
            Do::PanicInFuture => cx.pipe(async { panic!("in a future, on purpose") }, |()| Note("never")),
            Do::NotifyAfterNote => cx.notify(Note("notified")),
            Do::Later(after, what) => drop(cx.notify_later(Note(what), after)),
            Do::LaterCancelled(after) => cx.notify_later(Note("cancelled"), after).cancel(),
            Do::Child => {
                let seen = self.seen.clone();
                cx.spawn_child("child", move || Child(seen.clone()));
            }
            Do::FragileChild(made) => drop(cx.spawn_child("fragile", move || -> Child {
                made.fetch_add(1, Ordering::Relaxed);
                panic!("this factory never makes one")
            })),
            Do::Stop => cx.stop(),
        }
        reply.send(());
    }
}

struct Child(Rc<Seen>);
impl Behaviour for Child {
    const KIND: &'static str = "child";
    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        self.0.log.borrow_mut().push(format!("child at {}", cx.path()));
    }
    fn observe(&self) -> serde_json::Value {
        json!(null)
    }
}
impl Receive<Add> for Child {
    fn receive(&mut self, message: Add, reply: Reply<u64>, _: &mut Cx<'_, Self>) {
        reply.send(message.0);
    }
}

/// Forwards the question to another actor, with the right to answer it.
struct Front(Handle<Counter>);
impl Behaviour for Front {
    const KIND: &'static str = "front";
    fn observe(&self) -> serde_json::Value {
        json!(null)
    }
}
impl Receive<Add> for Front {
    fn receive(&mut self, message: Add, reply: Reply<u64>, cx: &mut Cx<'_, Self>) {
        if let Err(unsent) = self.0.send_with(message, reply, cx.trace()) {
            unsent.reply.send(u64::MAX);
        }
    }
}

#[test]
fn a_question_is_answered_in_the_handler_later_from_a_future_or_by_another_actor() {
    paused(|bench| async move {
        let (counter, _) = bench.spawn();
        assert_eq!(bench.add(&counter, 2).await, Ok(2));
        let began = bench.kit.clock().mono();
        let later = counter.ask(AddLater(3, SECOND / 2), SECOND, &bench.trace).await;
        assert_eq!((later, bench.kit.clock().mono() - began), (Ok(5), SECOND / 2));
        let front = bench.kit.spawn("front", {
            let counter = counter.clone();
            move || Front(counter.clone())
        });
        assert_eq!(front.ask(Add(1), SECOND, &bench.trace).await, Ok(6));
        counter.stop();
        tokio::task::yield_now().await;
        assert_eq!(front.ask(Add(1), SECOND, &bench.trace).await, Ok(u64::MAX));
    });
}

#[test]
fn a_full_mailbox_says_overloaded_at_once_and_what_must_be_recorded_still_enters() {
    paused(|bench| async move {
        let (counter, seen) = bench.spawn();
        for _ in 0..4 {
            counter.tell(Note("bounded"), &bench.trace).unwrap();
        }
        assert_eq!(counter.tell(Note("bounded"), &bench.trace), Err(AskError::Overloaded));
        assert_eq!(bench.add(&counter, 1).await, Err(AskError::Overloaded));
        counter.tell_surely(Note("sure"), &bench.trace);
        assert_eq!(counter.depth(), 5);
        assert_eq!(bench.metric("actor_mailbox_depth"), 5.0);
        // Once it has had its turn there is room again, to the full bound.
        tokio::task::yield_now().await;
        assert_eq!(bench.add(&counter, 1).await, Ok(1));
        assert_eq!(seen.log.borrow().len(), 5);
        assert_eq!((counter.depth(), bench.metric("actor_mailbox_depth")), (0, 0.0));
    });
}

#[test]
fn a_question_past_its_deadline_is_told_so_and_skipped_at_its_turn() {
    paused(|bench| async move {
        let (counter, seen) = bench.spawn();
        bench.kit.pause(counter.path(), 10 * SECOND).unwrap();
        let began = bench.kit.clock().mono();
        assert_eq!(bench.add(&counter, 1).await, Err(AskError::Deadline));
        assert_eq!(bench.kit.clock().mono() - began, SECOND);
        let (late, record) = (
            counter.ask(Keep, SECOND, &bench.trace),
            counter.ask(Record("recorded"), SECOND, &bench.trace),
        );
        let (late, record) = tokio::join!(late, record);
        assert_eq!((late, record), (Err(AskError::Deadline), Err(AskError::Deadline)));
        assert!(AskError::Deadline.is_ambiguous());
        tokio::time::sleep(10 * SECOND).await;
        assert_eq!(bench.add(&counter, 1).await, Ok(1), "the skipped message was not added");
        assert_eq!(*seen.log.borrow(), ["recorded"]);
        let outcomes = |bench: &Bench| -> Vec<_> {
            bench
                .kit
                .trace()
                .read(&TraceQuery::default())
                .iter()
                .map(|record| (record.message, record.outcome))
                .collect()
        };
        // The askers left at their deadlines: gone or late, they are seen as late.
        assert_eq!(
            outcomes(&bench),
            [
                ("Add", Outcome::Expired),
                ("Keep", Outcome::Expired),
                ("Record", Outcome::Answered),
                ("Add", Outcome::Answered),
            ]
        );
    });
}

#[test]
fn a_question_whose_asker_has_gone_is_skipped() {
    paused(|bench| async move {
        let (counter, _) = bench.spawn();
        bench.kit.pause(counter.path(), SECOND).unwrap();
        let left = tokio::time::timeout(SECOND / 2, counter.ask(Add(1), 10 * SECOND, &bench.trace)).await;
        assert!(left.is_err());
        assert_eq!(counter.ask(Add(2), 10 * SECOND, &bench.trace).await, Ok(2));
        let records = bench.kit.trace().read(&TraceQuery::default());
        assert_eq!(records[0].outcome, Outcome::Abandoned);
    });
}

#[test]
fn a_panic_is_told_after_it_is_in_the_trace() {
    paused(|bench| async move {
        let (counter, _) = bench.spawn();
        let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let (kit, tell) = (bench.kit.clone(), told.clone());
        bench.kit.after_panic(move |actor| {
            let last = kit
                .trace()
                .read(&TraceQuery::default())
                .pop()
                .map(|record| record.outcome);
            tell.lock().unwrap().push((actor.to_owned(), last));
        });
        let asked = counter.ask(Do::Panic, SECOND, &bench.trace).await;
        assert_eq!(asked, Err(AskError::Restarting));
        assert_eq!(
            *told.lock().unwrap(),
            [(counter.path().to_owned(), Some(Outcome::Panicked))]
        );
    });
}

#[test]
fn the_tree_shows_parents_what_waits_and_who_is_paused() {
    paused(|bench| async move {
        let (counter, _) = bench.spawn();
        bench.kit.pause(counter.path(), 10 * SECOND).unwrap();
        // Two wait; the first of them is the oldest.
        let waiting = tokio::task::spawn_local({
            let (counter, trace) = (counter.clone(), bench.trace);
            async move {
                tokio::join!(
                    counter.ask(Add(1), 60 * SECOND, &trace),
                    counter.ask(Keep, 60 * SECOND, &trace),
                )
            }
        });
        tokio::time::sleep(3 * SECOND).await;
        let shown = bench.kit.actors().await;
        let info = &shown[0];
        let oldest = info.oldest_waiting.clone().unwrap();
        assert_eq!((oldest.message, oldest.age_ms / 1_000), ("Add", 3));
        assert_eq!((info.mailbox_depth, info.paused, &info.parent), (2, true, &None));
        let left = info.paused_for_ms.unwrap();
        assert!((6_000..=7_000).contains(&left), "{left}");
        let until = info.paused_until_ms.unwrap() - bench.kit.clock().wall_ms();
        assert!((6_000..=7_300).contains(&until), "{until}");
        waiting.abort();
    });
}

#[test]
fn a_panic_restarts_the_behaviour_and_keeps_the_mailbox() {
    paused(|bench| async move {
        let (counter, seen) = bench.spawn();
        bench.add(&counter, 5).await.unwrap();
        // What waits for an answer when it happens is told that it may have been done.
        let kept = counter.ask(Keep, SECOND, &bench.trace);
        let in_future = counter.ask(AddLater(1, SECOND / 2), SECOND, &bench.trace);
        let panic = counter.ask(Do::Panic, SECOND, &bench.trace);
        let behind = counter.ask(Add(2), SECOND, &bench.trace);
        let (kept, in_future, panic, behind) = tokio::join!(kept, in_future, panic, behind);
        assert_eq!(
            (kept, in_future, panic),
            (
                Err(AskError::Restarting),
                Err(AskError::Restarting),
                Err(AskError::Restarting)
            )
        );
        assert_eq!(behind, Ok(2), "a new behaviour, the same mailbox");
        assert_eq!(seen.started.get(), 2);
        assert_eq!(bench.metric("actor_restarts_total"), 1.0);
        assert!(counter.is_alive());
        let info = &bench.kit.actors().await[0];
        assert_eq!((info.restarts, &info.state), (1, &json!({ "count": 2 })));
    });
}

#[test]
fn a_panic_in_a_future_in_started_or_in_the_factory_restarts_as_well() {
    paused(|bench| async move {
        let (counter, seen) = bench.spawn();
        counter.ask(Do::PanicInFuture, SECOND, &bench.trace).await.unwrap();
        tokio::task::yield_now().await;
        assert_eq!(bench.add(&counter, 1).await, Ok(1));
        assert_eq!(bench.metric("actor_restarts_total"), 1.0);
        seen.panic_in_started.set(2);
        let _ = counter.ask(Do::Panic, SECOND, &bench.trace).await;
        assert_eq!(bench.add(&counter, 1).await, Ok(1));
        assert_eq!(bench.metric("actor_restarts_total"), 4.0);

        let made = Rc::new(Cell::new(0));
        let front = bench.kit.spawn("fragile", move || {
            made.set(made.get() + 1);
            assert!(made.get() > 5, "not yet");
            Front(counter.clone())
        });
        assert_eq!(front.ask(Add(1), 10 * SECOND, &bench.trace).await, Ok(2));
    });
}

#[test]
fn restarts_are_bounded_in_rate_and_never_given_up() {
    paused(|bench| async move {
        let (counter, seen) = bench.spawn();
        let began = bench.kit.clock().mono();
        while bench.kit.clock().mono() - began < 120 * SECOND {
            // While it waits for its restart the mailbox fills: an overloaded one answers without waiting.
            if counter.ask(Do::Panic, SECOND, &bench.trace).await == Err(AskError::Overloaded) {
                tokio::time::sleep(SECOND / 4).await;
            }
        }
        // 3 at once, then 50 ms doubling to 5 s: about 11 until the longest delay, then one in 5 s.
        let started = seen.started.get();
        assert!((25..45).contains(&started), "{started} starts in two minutes");
        tokio::time::sleep(RestartPolicy::default().quiet).await;
        assert_eq!(bench.add(&counter, 1).await, Ok(1));
        let began = bench.kit.clock().mono();
        let _ = counter.ask(Do::Panic, SECOND, &bench.trace).await;
        assert_eq!(bench.add(&counter, 1).await, Ok(1));
        assert_eq!(
            bench.kit.clock().mono(),
            began,
            "after a quiet time it comes back at once"
        );
    });
}

#[test]
fn a_pause_freezes_mailbox_timers_and_futures_and_a_resume_ends_it_early() {
    paused(|bench| async move {
        let (counter, seen) = bench.spawn();
        let path = counter.path().to_owned();
        counter
            .ask(Do::Later(SECOND, "timer"), SECOND, &bench.trace)
            .await
            .unwrap();
        let piped = counter.ask(AddLater(1, SECOND), 60 * SECOND, &bench.trace);
        tokio::pin!(piped);
        assert!(futures_util::poll!(&mut piped).is_pending());
        bench.kit.pause(&path, 3600 * SECOND).unwrap();
        counter.tell(Note("queued"), &bench.trace).unwrap();
        tokio::time::sleep(10 * SECOND).await;
        assert!(seen.log.borrow().is_empty() && futures_util::poll!(&mut piped).is_pending());
        let info = &bench.kit.actors().await[0];
        assert_eq!((info.mailbox_depth, &info.state), (1, &json!(null)));
        assert!(
            info.paused_for_ms
                .is_some_and(|ms| (3_500_000..3_600_000).contains(&ms))
        );
        bench.kit.resume(&path).unwrap();
        assert_eq!(piped.await, Ok(1));
        // A timer is a hint: what was queued came before the one that was overdue.
        assert_eq!(*seen.log.borrow(), ["queued", "timer"]);
        assert_eq!(bench.kit.actors().await[0].paused_for_ms, None);
    });
}

#[test]
fn a_pause_ends_by_itself_and_one_that_was_resumed_before_it_began_does_not_begin() {
    paused(|bench| async move {
        let (counter, _) = bench.spawn();
        bench.kit.pause(counter.path(), SECOND / 2).unwrap();
        assert_eq!(bench.add(&counter, 1).await, Ok(1));
        let began = bench.kit.clock().mono();
        bench.kit.pause(counter.path(), 3600 * SECOND).unwrap();
        bench.kit.resume(counter.path()).unwrap();
        assert_eq!(bench.add(&counter, 1).await, Ok(2));
        assert_eq!(bench.kit.clock().mono(), began);
        // Two pauses follow each other; one resume ends both.
        bench.kit.pause(counter.path(), 3600 * SECOND).unwrap();
        bench.kit.pause(counter.path(), 3600 * SECOND).unwrap();
        tokio::time::sleep(SECOND).await;
        bench.kit.resume(counter.path()).unwrap();
        assert_eq!(bench.add(&counter, 1).await, Ok(3));
        assert_eq!(bench.kit.pause("test/nobody", SECOND).unwrap_err().path, "test/nobody");
        assert!(bench.kit.resume("test/nobody").is_err());
    });
}

#[cfg(feature = "lab")]
#[test]
fn the_lab_can_crash_an_actor_by_its_path() {
    paused(|bench| async move {
        let (counter, seen) = bench.spawn();
        bench.add(&counter, 3).await.unwrap();
        bench.kit.crash(counter.path()).unwrap();
        assert_eq!(bench.add(&counter, 1).await, Ok(1));
        assert_eq!(seen.started.get(), 2);
        assert!(bench.kit.crash("test/nobody").is_err());
    });
}

#[test]
fn a_message_to_oneself_comes_behind_all_that_wait_and_is_void_after_a_restart() {
    paused(|bench| async move {
        let (counter, seen) = bench.spawn();
        counter.tell(Do::NotifyAfterNote, &bench.trace).unwrap();
        counter.tell(Note("first"), &bench.trace).unwrap();
        counter.tell(Note("second"), &bench.trace).unwrap();
        bench.add(&counter, 0).await.unwrap();
        tokio::task::yield_now().await;
        assert_eq!(*seen.log.borrow(), ["first", "second", "notified"]);
        seen.log.borrow_mut().clear();
        counter.tell(Do::NotifyAfterNote, &bench.trace).unwrap();
        counter.tell(Do::Panic, &bench.trace).unwrap();
        bench.add(&counter, 0).await.unwrap();
        tokio::task::yield_now().await;
        assert!(seen.log.borrow().is_empty());
        assert_eq!(counter.depth(), 0);
    });
}

#[test]
fn a_cancelled_timer_does_not_come() {
    paused(|bench| async move {
        let (counter, seen) = bench.spawn();
        counter
            .ask(Do::LaterCancelled(SECOND), SECOND, &bench.trace)
            .await
            .unwrap();
        counter
            .ask(Do::Later(2 * SECOND, "kept"), SECOND, &bench.trace)
            .await
            .unwrap();
        tokio::time::sleep(3 * SECOND).await;
        assert_eq!(*seen.log.borrow(), ["kept"]);
    });
}

#[test]
fn children_live_below_their_parent_and_go_with_it() {
    paused(|bench| async move {
        let (counter, seen) = bench.spawn();
        let paths = async || {
            bench
                .kit
                .actors()
                .await
                .into_iter()
                .map(|info| info.path)
                .collect::<Vec<_>>()
        };
        counter.ask(Do::Child, SECOND, &bench.trace).await.unwrap();
        assert_eq!(paths().await, ["test/counter", "test/counter/child"]);
        // A restart takes the children of the old behaviour with it, and their paths are free at once.
        counter.tell(Do::Panic, &bench.trace).unwrap();
        counter.ask(Do::Child, SECOND, &bench.trace).await.unwrap();
        assert_eq!(paths().await, ["test/counter", "test/counter/child"]);
        assert_eq!(*seen.log.borrow(), ["child at test/counter/child"; 2]);
        // A paused child goes too.
        bench.kit.pause("test/counter/child", 3600 * SECOND).unwrap();
        tokio::task::yield_now().await;
        counter.ask(Do::Stop, SECOND, &bench.trace).await.unwrap();
        tokio::task::yield_now().await;
        assert_eq!(paths().await, Vec::<String>::new());
        assert_eq!(bench.kit.actor_count(), 0);
        // Nobody but the test holds what they shared.
        tokio::task::yield_now().await;
        assert_eq!(Rc::strong_count(&seen), 1);
    });
}

#[test]
fn a_child_that_waits_for_its_restart_goes_with_its_parent() {
    paused(|bench| async move {
        let (counter, _) = bench.spawn();
        let made = Arc::new(AtomicU32::new(0));
        counter
            .ask(Do::FragileChild(made.clone()), SECOND, &bench.trace)
            .await
            .unwrap();
        tokio::time::sleep(SECOND).await;
        let so_far = made.load(Ordering::Relaxed);
        assert!(so_far > 4, "it is rebuilt again and again");
        counter.ask(Do::Stop, SECOND, &bench.trace).await.unwrap();
        tokio::time::sleep(100 * SECOND).await;
        assert_eq!(made.load(Ordering::Relaxed), so_far);
        assert_eq!(Arc::strong_count(&made), 1, "nothing of it is left");
    });
}

#[test]
fn what_waits_when_an_actor_stops_is_told_that_nothing_was_done() {
    paused(|bench| async move {
        let (counter, _) = bench.spawn();
        let (stop, behind) = tokio::join!(
            counter.ask(Do::Stop, SECOND, &bench.trace),
            counter.ask(Add(1), SECOND, &bench.trace)
        );
        assert_eq!((stop, behind), (Ok(()), Err(AskError::Stopped)));
        assert!(!counter.is_alive());
        assert_eq!(bench.add(&counter, 1).await, Err(AskError::Stopped));
        assert_eq!(counter.tell(Note("x"), &bench.trace), Err(AskError::Stopped));
        counter.tell_surely(Note("x"), &bench.trace);
        assert_eq!(bench.metric("actor_mailbox_depth"), 0.0);
        let (again, _) = bench.spawn();
        let (second, _) = bench.spawn();
        assert_eq!((again.path(), second.path()), ("test/counter", "test/counter#2"));
    });
}

#[test]
fn the_trace_shows_queue_time_outcome_token_and_what_caused_what() {
    paused(|bench| async move {
        let (counter, _) = bench.spawn();
        bench.kit.pause(counter.path(), SECOND / 2).unwrap();
        bench.add(&counter, 9).await.unwrap();
        counter
            .ask(AddLater(1, SECOND / 4), SECOND, &bench.trace)
            .await
            .unwrap();
        counter.tell(Do::Panic, &bench.trace).unwrap();
        counter
            .ask(Note("asked, and not answered"), SECOND, &bench.trace)
            .await
            .unwrap_err();
        let records = bench.kit.trace().read(&TraceQuery::default());
        let shown: Vec<_> = records
            .iter()
            .map(|r| (r.message, r.outcome, r.queued, r.token))
            .collect();
        let no_wait = Duration::ZERO;
        assert_eq!(
            shown,
            [
                ("Add", Outcome::Answered, SECOND / 2, Some(9)),
                ("AddLater", Outcome::Deferred, no_wait, None),
                ("Due", Outcome::Done, no_wait, None),
                ("Do", Outcome::Panicked, no_wait, None),
                ("Note", Outcome::Deferred, no_wait, None),
            ]
        );
        assert!(
            records
                .iter()
                .all(|r| r.trace.trace_id() == bench.trace.trace_id() && &*r.actor == "test/counter")
        );
        assert_eq!(records[1].parent_span, bench.trace.span_id());
        assert_eq!(
            records[2].parent_span,
            records[1].trace.span_id(),
            "the future's output was caused by the question"
        );
        let mut spans: Vec<_> = records.iter().map(|r| r.trace.span_id()).collect();
        spans.sort_unstable();
        spans.dedup();
        assert_eq!(spans.len(), records.len());
        assert_eq!(bench.metric("actor_handle_duration_seconds"), 5.0);
        let last = bench.kit.actors().await[0].last_message.clone().unwrap();
        assert_eq!(last.message, "Note");
    });
}

#[test]
fn a_handle_works_from_another_thread() {
    fn send_and_sync<T: Send + Sync>(_: &T) {}
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    actix_rt::System::with_tokio_rt(runtime).block_on(async {
        let host = Host::simulated(7);
        let kit = Kit::new("test", &host, &Registry::new());
        let trace = TraceContext::root(&host.random);
        let seen = Rc::new(Seen::default());
        let counter = kit.spawn("counter", move || Counter {
            count: 0,
            kept: Vec::new(),
            seen: seen.clone(),
        });
        send_and_sync(&(kit, counter.clone()));
        let (to, from) = tokio::sync::oneshot::channel();
        #[allow(clippy::disallowed_methods, reason = "a test of threads")]
        let thread = std::thread::spawn(move || {
            let answer = runtime().block_on(counter.ask(Add(4), 10 * SECOND, &trace));
            to.send(answer).unwrap();
        });
        assert_eq!(from.await.unwrap(), Ok(4));
        thread.join().unwrap();
    });
}

#[test]
fn the_trace_keeps_its_bound_under_load_and_an_ask_costs_microseconds() {
    paused(|bench| async move {
        let (counter, _) = bench.spawn();
        #[allow(clippy::disallowed_methods, reason = "the real cost is measured")]
        let began = std::time::Instant::now();
        let n = 50_000_u32;
        for _ in 0..n {
            bench.add(&counter, 1).await.unwrap();
        }
        println!("one ask, traced and measured: {:?}", began.elapsed() / n);
        let records = bench.kit.trace().read(&TraceQuery::default());
        assert_eq!(records.len(), actor_kit::TraceRing::CAPACITY);
        assert_eq!(records.last().unwrap().seq, u64::from(n));
    });
}
