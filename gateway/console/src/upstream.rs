//! The components as the console reaches them: their typed clients, and since when each answers or does not.
//!
//! Owns: one client per component, asked on the hub's thread alone; the health of each, looked at once a second.
//! Does not own: what is asked; pages do that.
//! On failure: a component that does not answer is shown as such, with since when; the rest goes on.

use crate::config::Config;
use actor_kit::TraceContext;
use futures_util::future::join_all;
use host_kit::Host;
use http_client::{CallError, Caller, ClientOptions, LockServerApi, PaymentApi, RailProxyApi};
use std::cell::RefCell;
use std::time::Duration;

/// How often each component is asked whether it is ready.
const LOOK: Duration = Duration::from_secs(1);
/// Connections to one component; more calls wait for one.
const CONNECTIONS_MAX: usize = 16;

/// How a component is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not asked yet.
    Unknown,
    /// It says that it is ready.
    Ready,
    /// It answers, and says that it is not.
    NotReady(String),
    /// It does not answer.
    Down(String),
}

impl State {
    /// What is wrong, where something is.
    pub(crate) fn trouble(&self) -> Option<&str> {
        match self {
            Self::Unknown | Self::Ready => None,
            Self::NotReady(how) | Self::Down(how) => Some(how),
        }
    }
}

/// How a component is, since when, and when it was last ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) state: State,
    pub(crate) since_ms: i64,
    pub(crate) last_ready_ms: Option<i64>,
}

/// One component.
pub(crate) struct Upstream {
    pub(crate) name: String,
    pub(crate) caller: Caller,
    health: RefCell<Health>,
}

impl Upstream {
    pub(crate) fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    fn note(&self, state: State, now_ms: i64) {
        let mut health = self.health.borrow_mut();
        // Another word for the same trouble is no news.
        if std::mem::discriminant(&health.state) != std::mem::discriminant(&state) {
            health.since_ms = now_ms;
        }
        if state == State::Ready {
            health.last_ready_ms = Some(now_ms);
        }
        health.state = state;
    }
}

/// All components.
pub(crate) struct Upstreams {
    pub(crate) host: Host,
    pub(crate) locks: Vec<Upstream>,
    pub(crate) payments: Upstream,
    pub(crate) rail: Upstream,
    pub(crate) executors: Vec<Upstream>,
    pub(crate) scenario: Option<String>,
    pub(crate) read_only: bool,
}

impl Upstreams {
    pub(crate) fn new(config: &Config, host: &Host) -> Self {
        let now_ms = host.clock.wall_ms();
        let options = ClientOptions {
            connections_max: CONNECTIONS_MAX,
            ..ClientOptions::default()
        };
        let upstream = |name: String, url: &str| Upstream {
            name,
            // A client of its own each, so that one that keeps silent takes no connection from another.
            caller: Caller::new(http_client::client(&options), url, config.call_timeout),
            health: RefCell::new(Health {
                state: State::Unknown,
                since_ms: now_ms,
                last_ready_ms: None,
            }),
        };
        let several = |name: &str, urls: &[String]| -> Vec<Upstream> {
            let one = urls.len() == 1;
            let named = |n: usize| {
                if one {
                    name.to_owned()
                } else {
                    format!("{name} {}", n + 1)
                }
            };
            urls.iter()
                .enumerate()
                .map(|(n, url)| upstream(named(n), url))
                .collect()
        };
        Self {
            host: host.clone(),
            locks: several("lock-server", &config.lock_servers),
            payments: upstream("payment-resource".to_owned(), &config.payments),
            rail: upstream("rail-proxy".to_owned(), &config.rail_proxy),
            executors: several("payout-executor", &config.executors),
            scenario: config.scenario.clone(),
            read_only: config.read_only,
        }
    }

    /// Every component, lock servers first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Upstream> {
        self.locks
            .iter()
            .chain([&self.payments, &self.rail])
            .chain(&self.executors)
    }

    pub(crate) fn now(&self) -> i64 {
        self.host.clock.wall_ms()
    }

    pub(crate) fn trace(&self) -> TraceContext {
        TraceContext::root(&self.host.random)
    }

    pub(crate) fn payments(&self) -> PaymentApi {
        PaymentApi::new(self.payments.caller.clone())
    }

    pub(crate) fn rail(&self) -> RailProxyApi {
        RailProxyApi::new(self.rail.caller.clone())
    }

    /// Asks the lock servers, the next one only when the one before did not answer or cannot.
    pub(crate) async fn read_locks<T>(
        &self,
        ask: impl AsyncFn(&LockServerApi) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let mut last = CallError::NotSent("there is no lock server".to_owned());
        for upstream in &self.locks {
            match ask(&LockServerApi::new(upstream.caller.clone())).await {
                Err(CallError::Problem(problem)) if problem.status == 503 => last = CallError::Problem(problem),
                Err(error @ (CallError::NotSent(_) | CallError::Ambiguous(_) | CallError::Garbled { .. })) => {
                    last = error;
                }
                answered => return answered,
            }
        }
        Err(last)
    }

    /// As [`Self::read_locks`] for what changes something: the next server is asked only when the one before was
    /// certainly not reached.
    pub(crate) async fn write_locks<T>(
        &self,
        ask: impl AsyncFn(&LockServerApi) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let mut last = CallError::NotSent("there is no lock server".to_owned());
        for upstream in &self.locks {
            match ask(&LockServerApi::new(upstream.caller.clone())).await {
                Err(error @ CallError::NotSent(_)) => last = error,
                answered => return answered,
            }
        }
        Err(last)
    }

    /// Looks at every component for ever.
    pub(crate) async fn watch(&self) {
        loop {
            join_all(self.all().map(|upstream| self.look_at(upstream))).await;
            self.host.clock.sleep(LOOK).await;
        }
    }

    async fn look_at(&self, upstream: &Upstream) {
        let state = match upstream.caller.probe("/readyz", &self.trace()).await {
            Ok(()) => State::Ready,
            Err(CallError::Problem(problem)) => State::NotReady(problem.detail),
            Err(error) => State::Down(words(&error)),
        };
        upstream.note(state, self.now());
    }
}

/// A failure for a reader, in a line.
pub(crate) fn words(error: &CallError) -> String {
    match error {
        CallError::Problem(problem) => format!("{}: {}", problem.code, problem.detail),
        CallError::NotSent(how) => format!("not reached: {how}"),
        CallError::Ambiguous(how) => format!("no answer: {how}"),
        CallError::Garbled { status, detail } => format!("an answer that cannot be read (status {status}): {detail}"),
    }
}
