//! What the kit relies on in actix 0.13.5, kept as tests: when a new version changes one of these, it is here that it
//! shows.
#![allow(missing_docs, clippy::unwrap_used, reason = "messages of tests")]

use actix::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

fn paused<F: Future>(test: F) -> F::Output {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
    };
    System::with_tokio_rt(runtime).block_on(test)
}

type Log = Rc<RefCell<Vec<&'static str>>>;

struct Probe {
    log: Log,
}

impl Actor for Probe {
    type Context = Context<Self>;
}

impl Supervised for Probe {
    fn restarting(&mut self, _: &mut Context<Self>) {
        self.log.borrow_mut().push("restarting");
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct Note(&'static str);

#[derive(Message)]
#[rtype(result = "()")]
enum Do {
    Wait(Duration),
    Later(Duration, &'static str),
    Stop,
    Panic,
}

impl Handler<Note> for Probe {
    type Result = ();
    fn handle(&mut self, note: Note, _: &mut Context<Self>) {
        self.log.borrow_mut().push(note.0);
    }
}

impl Handler<Do> for Probe {
    type Result = ();
    fn handle(&mut self, order: Do, ctx: &mut Context<Self>) {
        match order {
            Do::Wait(duration) => ctx.wait(tokio::time::sleep(duration).into_actor(self)),
            Do::Later(after, what) => drop(ctx.run_later(after, move |probe, _| probe.log.borrow_mut().push(what))),
            Do::Stop => ctx.stop(),
            Do::Panic => panic!("on purpose"),
        }
    }
}

#[test]
fn a_paused_clock_drives_an_hour_of_ticks_without_real_time() {
    paused(async {
        let log = Log::default();
        let probe = Probe { log: log.clone() }.start();
        for minute in 1..=60 {
            probe.do_send(Do::Later(Duration::from_secs(60 * minute), "tick"));
        }
        #[allow(clippy::disallowed_methods, reason = "the real time is what is measured")]
        let (virtually, really) = (tokio::time::Instant::now(), std::time::Instant::now());
        tokio::time::sleep(Duration::from_secs(3601)).await;
        assert_eq!(log.borrow().len(), 60);
        assert_eq!(virtually.elapsed(), Duration::from_secs(3601));
        assert!(really.elapsed() < Duration::from_secs(60));
    });
}

#[test]
fn wait_freezes_mailbox_and_timers_and_afterwards_the_mailbox_comes_first() {
    paused(async {
        let log = Log::default();
        let probe = Probe { log: log.clone() }.start();
        probe.do_send(Do::Later(Duration::from_secs(1), "timer"));
        probe.do_send(Do::Wait(Duration::from_secs(10)));
        probe.do_send(Note("queued"));
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert!(log.borrow().is_empty());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(*log.borrow(), ["queued", "timer"]);
    });
}

#[test]
fn a_supervisor_restarts_after_stop() {
    paused(async {
        let log = Log::default();
        let probe = Supervisor::start({
            let log = log.clone();
            |_| Probe { log }
        });
        probe.send(Do::Stop).await.unwrap();
        probe.send(Note("alive")).await.unwrap();
        assert_eq!(*log.borrow(), ["restarting", "alive"]);
    });
}

#[test]
fn a_supervisor_does_not_restart_after_a_panic() {
    paused(async {
        let log = Log::default();
        let probe = Supervisor::start({
            let log = log.clone();
            |_| Probe { log }
        });
        assert_eq!(probe.send(Do::Panic).await, Err(MailboxError::Closed));
        assert_eq!(probe.send(Note("dead")).await, Err(MailboxError::Closed));
        assert!(!probe.connected() && log.borrow().is_empty());
    });
}

#[test]
fn a_message_whose_asker_has_gone_is_skipped_silently() {
    paused(async {
        let log = Log::default();
        let probe = Probe { log: log.clone() }.start();
        // `send` alone queues the message; the request is dropped before the actor's turn.
        drop(probe.send(Note("of one who left")));
        probe.do_send(Note("of one who never waited"));
        tokio::task::yield_now().await;
        probe.send(Do::Wait(Duration::ZERO)).await.unwrap();
        assert_eq!(*log.borrow(), ["of one who never waited"]);
    });
}

#[test]
fn the_mailbox_holds_16_by_default_and_do_send_ignores_the_bound() {
    paused(async {
        let log = Log::default();
        let probe = Probe { log: log.clone() }.start();
        let taken = (0..100).take_while(|_| probe.try_send(Note("tried")).is_ok()).count();
        assert_eq!(taken, 16);
        (0..100).for_each(|_| probe.do_send(Note("done")));
        // A send that finds the mailbox full waits for room, then for its turn.
        probe.send(Note("waited")).await.unwrap();
        assert_eq!(log.borrow().len(), 117);
    });
}

#[test]
fn capacity_zero_means_no_bound_and_try_send_still_says_closed() {
    paused(async {
        let log = Log::default();
        let probe = Probe::create({
            let log = log.clone();
            |ctx| {
                ctx.set_mailbox_capacity(0);
                Probe { log }
            }
        });
        assert!((0..10_000).all(|_| probe.try_send(Note("x")).is_ok()));
        probe.send(Do::Stop).await.unwrap();
        assert_eq!(log.borrow().len(), 10_000);
        while probe.connected() {
            tokio::task::yield_now().await;
        }
        assert!(matches!(probe.try_send(Note("y")), Err(SendError::Closed(Note("y")))));
    });
}

#[test]
fn actors_run_on_a_bare_local_set_too() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let log = Log::default();
        let probe = Probe { log: log.clone() }.start();
        probe.send(Note("here")).await.unwrap();
        assert_eq!(*log.borrow(), ["here"]);
    });
}
