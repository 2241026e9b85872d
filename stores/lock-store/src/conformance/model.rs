//! Random histories against a model of the whole SPI: what a store answers is what a page of plain maps would.

use super::Backend;
use super::helpers::{Dice, Store, WITHIN, made_up_token, store};
use lock_api::{AcquireOutcome, HeartbeatOutcome, ReleaseOutcome, RenewOutcome, RevokeOutcome};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug)]
struct Held {
    session: String,
    request: String,
    ttl: Duration,
    deadline: Duration,
}

/// What the SPI says, on a clock that stands still between steps.
#[derive(Debug, Default)]
struct Model {
    now: Duration,
    /// TTL and deadline.
    sessions: BTreeMap<String, (Duration, Duration)>,
    /// Last token and holder.
    keys: BTreeMap<String, (u64, Option<Held>)>,
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
        let (token, held) = self.keys.get(key)?;
        held.as_ref()
            .filter(|held| self.now < held.deadline)
            .map(|held| (*token, held))
    }

    fn left(&self, held: &Held) -> Duration {
        let session = self
            .sessions
            .get(&held.session)
            .map_or(Duration::ZERO, |(_, deadline)| *deadline);
        held.deadline.min(session).saturating_sub(self.now)
    }

    fn free_all_of(&mut self, session: &str) {
        for (_, held) in self.keys.values_mut() {
            held.take_if(|held| held.session == session);
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
            self.free_all_of(&id);
        }
        for (_, held) in self.keys.values_mut() {
            held.take_if(|held| held.deadline <= now);
        }
    }

    fn restart(&mut self) {
        for (ttl, deadline) in self.sessions.values_mut() {
            *deadline = self.now + *ttl;
        }
        for (_, held) in self.keys.values_mut() {
            if let Some(held) = held {
                held.deadline = self.now + held.ttl;
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
        match dice.roll(20) {
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
                    (Some((_, Some(held))), true) => {
                        held.deadline = now + held.ttl;
                        let held = held.clone();
                        let RenewOutcome::Renewed(grant) = answer else {
                            panic!("{context}: {answer:?}")
                        };
                        assert_eq!(
                            (grant.token.get(), grant.expires_in),
                            (token, model.left(&held)),
                            "{context}"
                        );
                    }
                    _ => assert_eq!(answer, RenewOutcome::NotHolder, "{context}"),
                }
            }
            10..=12 => {
                let token = some_token(&mut dice, &model, key);
                let answer = store.release(key, &session, made_up_token(token)).await;
                let expected = match model.keys.get(key) {
                    None => ReleaseOutcome::NotFound,
                    Some((last, _)) if *last != token => ReleaseOutcome::NotHolder,
                    Some((_, None)) => ReleaseOutcome::AlreadyFree,
                    Some((_, Some(held))) if held.session != session => ReleaseOutcome::NotHolder,
                    Some((_, Some(held))) if model.left(held).is_zero() => ReleaseOutcome::AlreadyFree,
                    Some(_) => ReleaseOutcome::Released,
                };
                assert_eq!(answer, expected, "{context}");
                if let Some((last, held)) = model.keys.get_mut(key)
                    && *last == token
                {
                    held.take_if(|held| held.session == session);
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
                        model.keys.insert(key.to_owned(), (token.get(), None));
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
                        .map(|h| (h.key.to_string(), h.token.get(), h.expires_in))
                        .collect();
                    let expected: Vec<_> = model
                        .keys
                        .keys()
                        .filter_map(|key| model.holder(key).map(|(token, held)| (key, token, held)))
                        .filter(|(_, _, held)| held.session == session)
                        .map(|(key, token, held)| (key.clone(), token, model.left(held)))
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
                    .filter(|(_, held)| held.as_ref().is_some_and(|held| held.session == session))
                    .count();
                assert_eq!(freed.len(), expected, "{context}");
                model.sessions.remove(&session);
                model.free_all_of(&session);
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
            _ => match dice.roll(8) {
                0 => {
                    drop(store);
                    if backend.restart().await {
                        model.restart();
                    }
                }
                1 => {
                    store.0.purge_tombstones(Duration::ZERO, 100, WITHIN).await.unwrap();
                    model.keys.retain(|_, (_, held)| held.is_some());
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
            let last = model.keys.get(key).map(|(token, _)| *token);
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
    let answer = store.acquire(key, session, &request, ttl).await;
    if !model.alive(session) {
        assert_eq!(answer, AcquireOutcome::SessionNotFound, "{context}");
        return;
    }
    match (model.holder(key), answer) {
        (Some((token, held)), AcquireOutcome::Granted { grant, replayed: true }) => {
            assert_eq!(
                (held.session.as_str(), held.request.as_str()),
                (session, request.as_str()),
                "{context}"
            );
            assert_eq!(
                (grant.token.get(), grant.expires_in),
                (token, model.left(held)),
                "{context}"
            );
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
            assert!(grant.token.get() > model.last, "{context}");
            model.last = grant.token.get();
            let held = Held {
                session: session.to_owned(),
                request,
                ttl,
                deadline: model.now + ttl,
            };
            assert_eq!(grant.expires_in, model.left(&held), "{context}");
            model.keys.insert(key.to_owned(), (model.last, Some(held)));
        }
        (expected, answer) => panic!("{context}: expected {expected:?}, got {answer:?}"),
    }
}

/// Mostly the key's own last token, sometimes an older one or one that never was.
fn some_token(dice: &mut Dice, model: &Model, key: &str) -> u64 {
    match dice.roll(6) {
        0 => 1 + dice.roll(model.last.max(1)),
        1 => model.last + 1,
        _ => model.keys.get(key).map_or(1, |(token, _)| *token),
    }
}
