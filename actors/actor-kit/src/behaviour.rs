//! What an actor is made of.

use crate::{Ask, Cx, Reply};

/// The decisions and the state of an actor. The kit hosts it: it never meets actix itself.
pub trait Behaviour: Sized + Unpin + 'static {
    /// What kind of actor this is, as a label of metrics: a closed set, never a key or an id (NFR-09).
    const KIND: &'static str;

    /// How many messages may wait before the next one is answered [`crate::AskError::Overloaded`] (NFR-11).
    const MAILBOX_CAPACITY: usize = 1024;

    /// Runs before the first message, and again each time the factory has built a new behaviour after a panic.
    fn started(&mut self, cx: &mut Cx<'_, Self>) {
        let _ = cx;
    }

    /// The observable state, as asserted in tests and dumped in production. Small, without secrets.
    fn observe(&self) -> serde_json::Value;
}

/// A message that a behaviour takes.
pub trait Receive<M: Ask>: Behaviour {
    /// Decides and acts. Synchronous: work that waits is handed to [`Cx::pipe`], and `reply` is answered when its output
    /// comes back. A reply dropped without an answer tells the asker [`crate::AskError::Restarting`].
    fn receive(&mut self, message: M, reply: Reply<M::Answer>, cx: &mut Cx<'_, Self>);
}
