//! Where blocking work runs.

use std::fmt;
use std::io;
use std::sync::Arc;

type Spawn = dyn Fn(&str, Box<dyn FnOnce() + Send>) -> io::Result<()> + Send + Sync;

/// The place for work that blocks (SQLite's writer): threads that the binary allows, or the caller's own thread in a
/// simulation. Libraries make no thread by themselves; they ask here.
#[derive(Clone)]
pub enum Blocking {
    /// Work is handed to a thread made by this function, named by its first argument.
    Threads(Arc<Spawn>),
    /// Work runs on the caller, one call after the other: deterministic, for paused clocks.
    Inline,
}

impl fmt::Debug for Blocking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Self::Inline) {
            "Inline"
        } else {
            "Threads"
        })
    }
}

impl Blocking {
    /// Threads of the operating system. For binaries only.
    #[must_use]
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place that makes threads for blocking work"
    )]
    pub fn threads() -> Self {
        Self::Threads(Arc::new(|name, work| {
            std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
        }))
    }
}
