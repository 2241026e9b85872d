//! How others reach an actor.

use crate::ask::{Ask, AskError, Reply};
use crate::behaviour::{Behaviour, Receive};
use crate::context::TraceContext;
use crate::hosted::{Control, Counted, Envelope, Hosted};
use crate::kit::{Kit, Shared};
use actix::Addr;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The address of an actor: it outlives its restarts, and does not keep it alive. Cheap to clone, usable from any thread.
pub struct Handle<B: Behaviour> {
    addr: Addr<Hosted<B>>,
    shared: Arc<Shared>,
    kit: Kit,
}

impl<B: Behaviour> Clone for Handle<B> {
    fn clone(&self) -> Self {
        Self::new(self.addr.clone(), self.shared.clone(), self.kit.clone())
    }
}

impl<B: Behaviour> fmt::Debug for Handle<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&self.shared.path).finish()
    }
}

/// A message that an actor did not take, given back: certainly not done.
#[derive(Debug)]
pub struct Unsent<M: Ask> {
    /// [`AskError::Overloaded`] or [`AskError::Stopped`].
    pub why: AskError,
    /// The message.
    pub message: M,
    /// The right to answer it.
    pub reply: Reply<M::Answer>,
}

impl<B: Behaviour> Handle<B> {
    pub(crate) const fn new(addr: Addr<Hosted<B>>, shared: Arc<Shared>, kit: Kit) -> Self {
        Self { addr, shared, kit }
    }

    /// The actor's path.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.shared.path
    }

    /// How many messages wait in its mailbox.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.shared.depth()
    }

    /// Whether it still takes messages. A paused or restarting actor is alive.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.shared.is_stopped() && self.addr.connected()
    }

    /// Asks and waits for the answer, at most `within`. A message that has waited in the mailbox past that, or whose
    /// asker has gone, is skipped (unless [`Ask::ALWAYS_HANDLED`]).
    ///
    /// # Errors
    /// [`AskError`], which says whether it may have been done.
    pub async fn ask<M: Ask>(&self, message: M, within: Duration, trace: &TraceContext) -> Result<M::Answer, AskError>
    where
        B: Receive<M>,
    {
        let deadline = self.kit.clock().mono().checked_add(within);
        let (reply, answer) = Reply::with_id(deadline, self.kit.next_span());
        self.send_with(message, reply, trace).map_err(|unsent| unsent.why)?;
        tokio::time::timeout(within, answer)
            .await
            .unwrap_or(Err(AskError::Deadline))
    }

    /// Sends a message that expects no answer.
    ///
    /// # Errors
    /// [`AskError::Overloaded`] or [`AskError::Stopped`]: certainly not done.
    pub fn tell<M: Ask<Answer = ()>>(&self, message: M, trace: &TraceContext) -> Result<(), AskError>
    where
        B: Receive<M>,
    {
        self.send_with(message, Reply::nobody(), trace)
            .map_err(|unsent| unsent.why)
    }

    /// Sends a message that expects no answer and does not heed the mailbox's bound: for releases and what must be
    /// recorded. To an actor that has stopped it is lost.
    pub fn tell_surely<M: Ask<Answer = ()>>(&self, message: M, trace: &TraceContext)
    where
        B: Receive<M>,
    {
        let _ = self.enqueue(message, Reply::nobody(), trace, false, None);
    }

    /// Forwards a question with its asker's right to an answer to another actor, from parent to child.
    ///
    /// # Errors
    /// [`Unsent`] gives both back when the mailbox is full or the actor has stopped.
    pub fn send_with<M: Ask>(
        &self,
        message: M,
        reply: Reply<M::Answer>,
        trace: &TraceContext,
    ) -> Result<(), Box<Unsent<M>>>
    where
        B: Receive<M>,
    {
        self.enqueue(message, reply, trace, true, None)
    }

    pub(crate) fn enqueue<M: Ask>(
        &self,
        message: M,
        reply: Reply<M::Answer>,
        trace: &TraceContext,
        bounded: bool,
        generation: Option<u64>,
    ) -> Result<(), Box<Unsent<M>>>
    where
        B: Receive<M>,
    {
        if self.shared.is_stopped() {
            let why = AskError::Stopped;
            return Err(Box::new(Unsent { why, message, reply }));
        }
        let now = self.kit.clock().mono();
        let Some(ticket) = self.shared.enter(M::NAME, now, bounded) else {
            let why = AskError::Overloaded;
            return Err(Box::new(Unsent { why, message, reply }));
        };
        let counted = Counted::new(self.shared.clone(), ticket);
        let envelope = Envelope::new(message, reply, *trace, now, counted, generation);
        // The mailbox itself has no bound, so the only refusal left is that it is closed.
        match self.addr.try_send(envelope) {
            Ok(()) => Ok(()),
            Err(refused) => match refused.into_inner().take() {
                Some((message, reply)) => {
                    let why = AskError::Stopped;
                    Err(Box::new(Unsent { why, message, reply }))
                }
                None => Ok(()),
            },
        }
    }

    /// Stops the actor after the messages that wait now, and with it its children.
    pub fn stop(&self) {
        self.addr.do_send(Control::Stop);
    }
}
