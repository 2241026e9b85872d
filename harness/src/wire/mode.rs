//! What a wire does, in four parts that do not depend on each other.
//!
//! Owns: the words. Does not own: how they are carried out. On failure: there is no code path that fails.

use std::time::Duration;

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Who connects.
    Caller,
    /// Who listens.
    Target,
}

/// The line as a whole. A reset ends both directions of a socket, so these are not matters of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Connections are made and live.
    Up,
    /// Nobody listens: new connections are refused by the kernel. Live ones are reset.
    Refused,
    /// New connections are accepted and closed at once, live ones are closed: FIN to both ends.
    Cut,
    /// As [`Line::Cut`] with RST.
    Reset,
    /// The connection of this end stays open and silent, the other end's is closed. The end that stays sees no FIN; what
    /// it sends is taken and thrown away. It is reset when the line changes.
    HalfOpen(End),
}

/// One direction of every connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Forwarded.
    Pass,
    /// Taken and thrown away, the end of the stream too: nothing reaches the other side, nobody is told.
    Swallow,
    /// Ended with a FIN; what still comes is thrown away.
    Fin,
    /// Forwarded this much later, in order.
    Delay(Duration),
    /// Forwarded later by a random time up to this, in order.
    Jitter(Duration),
    /// Forwarded at this many bytes per second; 0 counts as 1.
    Trickle(u32),
}

impl Flow {
    /// Whether what is read is thrown away.
    #[must_use]
    pub const fn loses(self) -> bool {
        matches!(self, Self::Swallow | Self::Fin)
    }
}

/// Whole messages, on wires that speak HTTP. Each applies to messages that begin while it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Messages {
    /// As they were sent.
    AsSent,
    /// Each request reaches the target twice: on its own connection, and on a second one after a random time up to
    /// this. The caller gets the answer of the first; that of the second is thrown away.
    Duplicate {
        /// How long after the first the second is sent, at most.
        within: Duration,
    },
    /// Each request is kept back. Its caller hears nothing until it leaves, or is reset after `silent`; then the request
    /// is delivered on a new connection, after a random time up to `late`. Its answer is thrown away.
    Hold {
        /// How long the caller is left waiting.
        silent: Duration,
        /// How long after the caller's leaving the request is delivered, at most.
        late: Duration,
    },
    /// Each request is forwarded, its answer is read to the end and thrown away, and the caller is reset.
    DropAnswer,
}

/// What a wire does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// With connections.
    pub line: Line,
    /// With bytes from the caller to the target.
    pub requests: Flow,
    /// With bytes from the target to the caller.
    pub answers: Flow,
    /// With messages.
    pub messages: Messages,
}

impl Mode {
    /// Nothing amiss.
    pub const PASS: Self = Self {
        line: Line::Up,
        requests: Flow::Pass,
        answers: Flow::Pass,
        messages: Messages::AsSent,
    };

    /// All well but the line.
    #[must_use]
    pub const fn line(line: Line) -> Self {
        Self { line, ..Self::PASS }
    }

    /// All well but the way to the target.
    #[must_use]
    pub const fn requests(flow: Flow) -> Self {
        Self {
            requests: flow,
            ..Self::PASS
        }
    }

    /// All well but the way back.
    #[must_use]
    pub const fn answers(flow: Flow) -> Self {
        Self {
            answers: flow,
            ..Self::PASS
        }
    }

    /// The same amiss in both directions.
    #[must_use]
    pub const fn both(flow: Flow) -> Self {
        Self {
            requests: flow,
            answers: flow,
            ..Self::PASS
        }
    }

    /// All well but messages.
    #[must_use]
    pub const fn messages(messages: Messages) -> Self {
        Self { messages, ..Self::PASS }
    }
}
