//! Start, supervise, pause, observe and trace actors; ask with a deadline.
//!
//! ```text
//! asker ─ask(message, within, trace)→ Handle ─bounded mailbox→ Hosted: trace · deadline · catch panic → Behaviour::receive
//!       ←──────────── Reply, in the handler or later from a piped future ────────────────────────────────────┘
//! ```
//!
//! Owns: the life of an actor (start, restart after a panic at a bounded rate, pause, stop), the bound of its mailbox,
//! the deadline of a question, the record of every message in the trace (a ring, and whoever observes it), the `actor_*` metrics of C4.2.
//! Does not own: what an actor decides; where it runs (the caller's `LocalSet`, chosen by the binary); any durable state.
//! On failure: a full mailbox answers [`AskError::Overloaded`] at once; a behaviour that panics is rebuilt by its
//! factory while its mailbox is kept, and whoever waited for it is told [`AskError::Restarting`], because what it asked
//! for may have happened.
//!
//! Deliberately absent: addresses that keep an actor alive (an actor stops when it, its parent or a [`Handle`] says
//! so), safety steps on stopping (a killed process would skip them), any way to carry a token but in a message.

mod ask;
mod behaviour;
mod context;
mod guard;
mod handle;
mod hosted;
mod kit;
mod metrics;
mod process;
mod restart;
mod span;
mod trace;

pub use ask::{Answer, Ask, AskError, Reply};
pub use behaviour::{Behaviour, Receive};
pub use context::TraceContext;
pub use guard::{guarded, is_guarded};
pub use handle::{Handle, Unsent};
pub use hosted::{Cx, TimerHandle};
pub use kit::{ActorInfo, Kit, LastMessage, NoSuchActor, WaitingMessage};
pub use process::{Anchor, Process};
pub use restart::RestartPolicy;
pub use span::{OpenRecord, TraceObserver};
pub use trace::{About, CALL, Outcome, REQUEST, Snapshot, TraceQuery, TraceRecord, TraceRing, WORK};
