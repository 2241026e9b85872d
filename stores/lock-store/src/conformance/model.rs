//! Random histories against a model of the whole SPI: what a store answers is what a page of plain maps would.

use super::Backend;
use super::helpers::{Dice, Store, WITHIN, acquire_request, lock_delay, made_up_token, store};
use lock_api::{
    AcquireOutcome, HeartbeatOutcome, ReleaseOutcome, RenewOutcome, RevokeOutcome, YieldAsked, YieldOutcome,
};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug)]
struct Held {
    session: String,
    request: String,
    ttl: Duration,
    deadline: Duration,
    delay: Duration,
    /// Who asked for it first.
    asked: Option<String>,
}

/// A key that was granted once.
#[derive(Clone, Debug)]
struct Key {
    last: u64,
    held: Option<Held>,
    /// The delay of an unclean loss and its end, until a sweep finds it over.
    closed: Option<(Duration, Duration)>,
}

impl Key {
    fn end(&mut self, now: Duration, cleanly: bool) {
        if let Some(held) = self.held.take() {
            self.closed = (!cleanly && !held.delay.is_zero()).then(|| (held.delay, now + held.delay));
        }
    }
}

/// What the SPI says, on a clock that stands still between steps.
#[derive(Debug, Default)]
struct Model {
    now: Duration,
    /// TTL and deadline.
    sessions: BTreeMap<String, (Duration, Duration)>,
    keys: BTreeMap<String, Key>,
    last: u64,
}

impl Model {
    fn alive(&self, session: &str) -> bool {
        self.sessions
            .get(session)
            .is_some_and(|(_, deadline)| self.now < *deadline)
    }

    /// The holder whose own lease runs.
    fn holder(&self, key: &str) -> Option<(u64, &Held)> {
        let key = self.keys.get(key)?;
        key.held
            .as_ref()
            .filter(|held| self.now < held.deadline)
            .map(|held| (key.last, held))
    }

    /// For how long nobody is granted a key that nobody holds.
    fn closed_for(&self, key: &str) -> Option<Duration> {
        let key = self.keys.get(key)?;
        let left = match &key.held {
            Some(held) if self.now < held.deadline => Duration::ZERO,
            // Over and not recorded: the delay counts from when it is.
            Some(held) => held.delay,
            None => key.closed?.1.saturating_sub(self.now),
        };
        (!left.is_zero()).then_some(left)
    }

    fn left(&self, held: &Held) -> Duration {
        let session = self
            .sessions
            .get(&held.session)
            .map_or(Duration::ZERO, |(_, deadline)| *deadline);
        held.deadline.min(session).saturating_sub(self.now)
    }

    fn free_all_of(&mut self, session: &str, cleanly: bool) {
        for key in self.keys.values_mut() {
            if key.held.as_ref().is_some_and(|held| held.session == session) {
                key.end(self.now, cleanly);
            }
        }
    }

    fn sweep(&mut self) {
        let now = self.now;
        let dead: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, (_, at))| *at <= now)
            .map(|(id, _)| id.clone())
            .collect();
        for id in dead {
            self.sessions.remove(&id);
            self.free_all_of(&id, false);
        }
        for key in self.keys.values_mut() {
            key.closed.take_if(|(_, until)| *until <= now);
            if key.held.as_ref().is_some_and(|held| held.deadline <= now) {
                key.end(now, false);
            }
        }
    }

    fn restart(&mut self) {
        for (ttl, deadline) in self.sessions.values_mut() {
            *deadline = self.now + *ttl;
        }
        for key in self.keys.values_mut() {
            if let Some(held) = &mut key.held {
                held.deadline = self.now + held.ttl;
            }
            if let Some((delay, until)) = &mut key.closed {
                *until = self.now + *delay;
            }
        }
    }
}

/// Thousands of random steps by four sessions on three keys, with time passing, sweeps, purges and restarts: each answer
/// and each state is the model's.
pub async fn random_histories_agree_with_the_model(backend: &mut dyn Backend) {
    if !backend.exact_time() {
        return;
    }
    let mut dice = Dice(20_260_101);
    let mut model = Model::default();
    let mut made = 0;
    for step in 0..backend.rounds(6000) {
        let store = store(backend);
        let (n, k) = (dice.roll(4), dice.roll(3));
        let (session, key) = (
            format!("s{n}-{}", made / 8),
            ["a", "a/b", "b"][usize::try_from(k).unwrap()],
        );
        let context = format!("step {step}: {session} {key} at {:?}", model.now);
        match dice.roll(22) {
            0..=2 => {
                if !model.sessions.contains_key(&session) {
                    let ttl = Duration::from_millis(500 + dice.roll(3000));
                    made += 1;
                    store.open(&session, ttl).await;
                    model.sessions.insert(session, (ttl, model.now + ttl));
                }
            }
            3..=7 => acquire(&store, &mut model, &mut dice, &session, key, &context).await,
            8..=9 => {
                let token = some_token(&mut dice, &model, key);
                let answer = store.renew(key, &session, made_up_token(token)).await;
                let (now, alive) = (model.now, model.alive(&session));
                let holds = model
                    .holder(key)
                    .is_some_and(|(held, by)| held == token && by.session == session)
                    && alive;
                match (model.keys.get_mut(key), holds) {
                    (None, _) => assert_eq!(answer, RenewOutcome::NotFound, "{context}"),
                    (Some(Key { held: Some(held), .. }), true) => {
                        held.deadline = now + held.ttl;
                        let held = held.clone();
                        let RenewOutcome::Renewed(grant) = answer else {
                            panic!("{context}: {answer:?}")
                        };
                        assert_eq!(
                            (grant.token.get(), grant.expires_in, grant.lock_delay.get()),
                            (token, model.left(&held), held.delay),
                            "{context}"
                        );
                        assert_eq!(by(&grant.yield_asked), held.asked.as_deref(), "{context}");
                    }
                    _ => assert_eq!(answer, RenewOutcome::NotHolder, "{context}"),
                }
            }
            10..=12 => {
                let token = some_token(&mut dice, &model, key);
                let answer = store.release(key, &session, made_up_token(token)).await;
                let expected = match model.keys.get(key) {
                    None => ReleaseOutcome::NotFound,
                    Some(at) if at.last != token => ReleaseOutcome::NotHolder,
                    Some(Key { held: None, .. }) => ReleaseOutcome::AlreadyFree,
                    Some(Key { held: Some(held), .. }) if held.session != session => ReleaseOutcome::NotHolder,
                    Some(Key { held: Some(held), .. }) if model.left(held).is_zero() => ReleaseOutcome::AlreadyFree,
                    Some(_) => ReleaseOutcome::Released,
                };
                assert_eq!(answer, expected, "{context}");
                let now = model.now;
                if let Some(at) = model.keys.get_mut(key)
                    && at.last == token
                    && at.held.as_ref().is_some_and(|held| held.session == session)
                {
                    at.end(now, expected == ReleaseOutcome::Released);
                }
            }
            13 => {
                let token = some_token(&mut dice, &model, key);
                let answer = store.revoke(key, made_up_token(token)).await;
                match (model.keys.contains_key(key), model.holder(key)) {
                    (false, _) => assert_eq!(answer, RevokeOutcome::NotFound, "{context}"),
                    (true, None) => assert_eq!(answer, RevokeOutcome::NotHeld, "{context}"),
                    (true, Some((held, _))) if held != token => {
                        assert!(
                            matches!(answer, RevokeOutcome::NotHolder { .. }),
                            "{context}: {answer:?}"
                        );
                    }
                    (true, Some(_)) => {
                        let RevokeOutcome::Revoked { token, .. } = answer else {
                            panic!("{context}: {answer:?}")
                        };
                        assert!(token.get() > model.last, "{context}");
                        model.last = token.get();
                        let now = model.now;
                        if let Some(at) = model.keys.get_mut(key) {
                            at.last = token.get();
                            at.end(now, false);
                        }
                    }
                }
            }
            14..=15 => {
                let answer = store.heartbeat(&session).await;
                if model.alive(&session) {
                    let now = model.now;
                    let life = model.sessions.get_mut(&session).map(|(ttl, deadline)| {
                        *deadline = now + *ttl;
                        *ttl
                    });
                    let HeartbeatOutcome::Alive { expires_in, held } = answer else {
                        panic!("{context}: {answer:?}")
                    };
                    assert_eq!(Some(expires_in), life, "{context}");
                    let held: Vec<_> = held
                        .into_iter()
                        .map(|h| {
                            let asked = by(&h.yield_asked).map(str::to_owned);
                            (h.key.to_string(), h.token.get(), h.expires_in, asked)
                        })
                        .collect();
                    let expected: Vec<_> = model
                        .keys
                        .keys()
                        .filter_map(|key| model.holder(key).map(|(token, held)| (key, token, held)))
                        .filter(|(_, _, held)| held.session == session)
                        .map(|(key, token, held)| (key.clone(), token, model.left(held), held.asked.clone()))
                        .collect();
                    assert_eq!(held, expected, "{context}");
                } else {
                    assert_eq!(answer, HeartbeatOutcome::SessionNotFound, "{context}");
                }
            }
            16 => {
                let freed = store.close(&session).await;
                let expected = model
                    .keys
                    .values()
                    .filter(|key| key.held.as_ref().is_some_and(|held| held.session == session))
                    .count();
                assert_eq!(freed.len(), expected, "{context}");
                model.sessions.remove(&session);
                model.free_all_of(&session, true);
            }
            17 => {
                let by = Duration::from_millis(dice.roll(1500));
                backend.pass(by).await;
                model.now += by;
            }
            18 => {
                store.sweep().await;
                model.sweep();
            }
            19..=20 => ask_to_yield(&store, &mut model, &mut dice, key, &context).await,
            _ => match dice.roll(8) {
                0 => {
                    drop(store);
                    if backend.restart().await {
                        model.restart();
                    }
                }
                1 => {
                    store.0.purge_tombstones(Duration::ZERO, 100, WITHIN).await.unwrap();
                    let now = model.now;
                    model
                        .keys
                        .retain(|_, key| key.held.is_some() || key.closed.is_some_and(|(_, until)| now < until));
                }
                _ => {}
            },
        }
        for key in ["a", "a/b", "b"] {
            let shown = self::store(backend).inspect(key).await;
            let expected = model
                .holder(key)
                .map(|(token, held)| (held.session.clone(), token, model.left(held)));
            let seen = shown
                .grant
                .map(|g| (g.session_id.to_string(), g.token.get(), g.expires_in));
            assert_eq!(seen, expected, "{key} after {context}");
            assert_eq!(shown.closed_for, model.closed_for(key), "{key} after {context}");
            let last = model.keys.get(key).map(|key| key.last);
            assert_eq!(
                shown.last_token.map(lock_api::FencingToken::get),
                last,
                "{key} after {context}"
            );
        }
    }
}

async fn acquire(store: &Store, model: &mut Model, dice: &mut Dice, session: &str, key: &str, context: &str) {
    let request = format!("r{}", dice.roll(3));
    let ttl = Duration::from_millis(500 + dice.roll(3000));
    // Half of them without.
    let delay = Duration::from_millis(dice.roll(2) * dice.roll(2000));
    let mut asked = acquire_request(key, session, &request, ttl);
    asked.lock_delay = lock_delay(delay);
    let answer = store.ask(asked).await;
    if !model.alive(session) {
        assert_eq!(answer, AcquireOutcome::SessionNotFound, "{context}");
        return;
    }
    let closed_for = model.closed_for(key);
    match (model.holder(key), answer) {
        (None, AcquireOutcome::Delayed { last_token, ends_in }) => {
            assert_eq!(Some(ends_in), closed_for, "{context}");
            let now = model.now;
            let at = model.keys.get_mut(key).unwrap();
            assert_eq!(last_token.get(), at.last, "{context}");
            at.end(now, false);
        }
        (Some((token, held)), AcquireOutcome::Granted { grant, replayed: true }) => {
            assert_eq!(
                (held.session.as_str(), held.request.as_str()),
                (session, request.as_str()),
                "{context}"
            );
            assert_eq!(
                (grant.token.get(), grant.expires_in, grant.lock_delay.get()),
                (token, model.left(held), held.delay),
                "{context}"
            );
            assert_eq!(by(&grant.yield_asked), held.asked.as_deref(), "{context}");
        }
        (Some((token, held)), AcquireOutcome::HeldByOther(refusal)) => {
            assert!(held.session != session || held.request != request, "{context}");
            assert_eq!(refusal.is_self, held.session == session, "{context}");
            assert_eq!(
                (refusal.holder.token.get(), refusal.holder.expires_in),
                (token, model.left(held)),
                "{context}"
            );
        }
        (None, AcquireOutcome::Granted { grant, replayed: false }) => {
            assert_eq!(closed_for, None, "{context}: granted around a delay");
            assert!(grant.token.get() > model.last, "{context}");
            assert_eq!(
                (grant.lock_delay.get(), &grant.yield_asked),
                (delay, &None),
                "{context}"
            );
            model.last = grant.token.get();
            let held = Held {
                session: session.to_owned(),
                request,
                ttl,
                deadline: model.now + ttl,
                delay,
                asked: None,
            };
            assert_eq!(grant.expires_in, model.left(&held), "{context}");
            let granted = Key {
                last: model.last,
                held: Some(held),
                closed: None,
            };
            model.keys.insert(key.to_owned(), granted);
        }
        (expected, answer) => panic!("{context}: expected {expected:?}, got {answer:?}"),
    }
}

async fn ask_to_yield(store: &Store, model: &mut Model, dice: &mut Dice, key: &str, context: &str) {
    let token = some_token(dice, model, key);
    let who = ["alice", "bob"][usize::try_from(dice.roll(2)).unwrap()];
    let answer = store.ask_to_yield(key, made_up_token(token), who).await;
    match (model.keys.contains_key(key), model.holder(key)) {
        (false, _) => assert_eq!(answer, YieldOutcome::NotFound, "{context}"),
        (true, None) => assert_eq!(answer, YieldOutcome::NotHeld, "{context}"),
        (true, Some((held, by))) if held != token => {
            let YieldOutcome::NotHolder { holder } = answer else {
                panic!("{context}: {answer:?}")
            };
            assert_eq!(
                (holder.token.get(), holder.expires_in),
                (held, model.left(by)),
                "{context}"
            );
        }
        (true, Some((_, held))) => {
            let YieldOutcome::Asked(grant) = answer else {
                panic!("{context}: {answer:?}")
            };
            assert_eq!(
                (grant.token.get(), grant.expires_in),
                (token, model.left(held)),
                "{context}"
            );
            let first = held.asked.clone().unwrap_or_else(|| who.to_owned());
            assert_eq!(by(&grant.yield_asked), Some(first.as_str()), "{context}");
            if let Some(held) = model.keys.get_mut(key).and_then(|key| key.held.as_mut()) {
                held.asked = Some(first);
            }
        }
    }
}

fn by(asked: &Option<YieldAsked>) -> Option<&str> {
    asked.as_ref().map(|asked| asked.by.as_str())
}

/// Mostly the key's own last token, sometimes an older one or one that never was.
fn some_token(dice: &mut Dice, model: &Model, key: &str) -> u64 {
    match dice.roll(6) {
        0 => 1 + dice.roll(model.last.max(1)),
        1 => model.last + 1,
        _ => model.keys.get(key).map_or(1, |key| key.last),
    }
}
