//! Docker for callers that cannot wait: a thread of its own that does one thing after the other.
//!
//! Owns: signals to containers, their state and their logs, asked by a caller that is not asynchronous. An answer takes a
//! few milliseconds, in which the caller stands still.
//! Does not own: starting and removing containers (`docker.rs`).
//! On failure: [`RunError`] with what the engine said.

use super::container::Container;
use crate::stack::RunError;
use bollard::container::LogOutput;
use bollard::query_parameters::{
    InspectContainerOptions, KillContainerOptionsBuilder, LogsOptionsBuilder, RemoveContainerOptionsBuilder,
};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use std::sync::mpsc;

type Job = Box<dyn FnOnce(bollard::Docker) -> BoxFuture<'static, ()> + Send>;

/// The thread.
#[derive(Debug)]
pub struct Inspector {
    jobs: mpsc::Sender<Job>,
}

/// What the engine says of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// It runs, paused or not.
    pub running: bool,
    /// It is paused.
    pub paused: bool,
    /// The exit code of its last end.
    pub exit_code: i64,
    /// Its first process, as this machine numbers it; 0 when it has ended.
    pub pid: i64,
}

/// What can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Every process frozen.
    Pause,
    /// Every process thawed.
    Unpause,
    /// A signal to the first process, by its name.
    Named(&'static str),
}

fn engine(what: String) -> impl FnOnce(bollard::errors::Error) -> RunError {
    move |error| RunError::Other(format!("{what}: {error}"))
}

impl Inspector {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the engine cannot be found or the thread cannot be made.
    pub fn start() -> Result<Self, RunError> {
        let api = bollard::Docker::connect_with_local_defaults().map_err(engine("finding Docker".to_owned()))?;
        let (jobs, wanted) = mpsc::channel::<Job>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(RunError::io("making a runtime"))?;
        #[allow(
            clippy::disallowed_methods,
            reason = "its callers stand still until it answers, so it cannot be theirs"
        )]
        std::thread::Builder::new()
            .name("docker".to_owned())
            .spawn(move || {
                while let Ok(job) = wanted.recv() {
                    runtime.block_on(job(api.clone()));
                }
            })
            .map_err(RunError::io("starting a thread"))?;
        Ok(Self { jobs })
    }

    fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(bollard::Docker) -> BoxFuture<'static, Result<T, RunError>> + Send + 'static,
    ) -> Result<T, RunError> {
        let gone = || RunError::Other("the thread that speaks to Docker has ended".to_owned());
        let (answer, answered) = mpsc::sync_channel(1);
        let job: Job = Box::new(move |api| {
            let doing = job(api);
            Box::pin(async move {
                // A caller that has gone needs no answer.
                let _ = answer.send(doing.await);
            })
        });
        self.jobs.send(job).map_err(|_| gone())?;
        answered.recv().map_err(|_| gone())?
    }

    /// Sends a signal, or freezes or thaws.
    ///
    /// # Errors
    /// What the engine said.
    pub fn signal(&self, container: &Container, signal: Signal) -> Result<(), RunError> {
        let name = container.full_name();
        self.ask(move |api| {
            Box::pin(async move {
                let done = match signal {
                    Signal::Pause => api.pause_container(&name).await,
                    Signal::Unpause => api.unpause_container(&name).await,
                    Signal::Named(signal) => {
                        let options = KillContainerOptionsBuilder::default().signal(signal).build();
                        api.kill_container(&name, Some(options)).await
                    }
                };
                done.map_err(engine(format!("{signal:?} to {name}")))
            })
        })
    }

    /// What the engine says of it.
    ///
    /// # Errors
    /// What the engine said.
    pub fn inspect(&self, container: &Container) -> Result<Inspected, RunError> {
        let name = container.full_name();
        self.ask(move |api| {
            Box::pin(async move {
                let answer = api.inspect_container(&name, None::<InspectContainerOptions>).await;
                let state = answer
                    .map_err(engine(format!("asking for {name}")))?
                    .state
                    .unwrap_or_default();
                Ok(Inspected {
                    running: state.running.unwrap_or(false),
                    paused: state.paused.unwrap_or(false),
                    exit_code: state.exit_code.unwrap_or(-1),
                    pid: state.pid.unwrap_or(0),
                })
            })
        })
    }

    /// Everything it has printed.
    ///
    /// # Errors
    /// What the engine said.
    pub fn log(&self, container: &Container) -> Result<String, RunError> {
        let name = container.full_name();
        self.ask(move |api| {
            Box::pin(async move {
                let options = LogsOptionsBuilder::default().stdout(true).stderr(true).build();
                let mut chunks = api.logs(&name, Some(options));
                let mut text = String::new();
                while let Some(chunk) = chunks.next().await {
                    let chunk: LogOutput = chunk.map_err(engine(format!("the log of {name}")))?;
                    text.push_str(&chunk.to_string());
                }
                Ok(text)
            })
        })
    }

    /// Takes it away with its data.
    ///
    /// # Errors
    /// What the engine said.
    pub fn remove(&self, container: &Container) -> Result<(), RunError> {
        let name = container.full_name();
        self.ask(move |api| {
            Box::pin(async move {
                let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
                let removed = api.remove_container(&name, Some(options)).await;
                removed.map_err(engine(format!("removing {name}")))
            })
        })
    }
}
