//! What the rail's store records and answers.

use lock_api::{FencingToken, UnixMillis};

/// What became of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The rail executed it. Final.
    Acked,
    /// The rail refused it. Final.
    Declined,
    /// Not known: the forwarder gave up after it had closed its socket.
    Timeout,
    /// The rail never received it, by lookup.
    NotReceived,
    /// Never sent and never to be sent. Final.
    NotSent,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 5] = [
        Self::Acked,
        Self::Declined,
        Self::Timeout,
        Self::NotReceived,
        Self::NotSent,
    ];

    /// The outcome as it stands in the table (C1.2).
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acked => "ACKED",
            Self::Declined => "DECLINED",
            Self::Timeout => "TIMEOUT",
            Self::NotReceived => "NOT_RECEIVED",
            Self::NotSent => "NOT_SENT",
        }
    }

    /// Reads what [`Outcome::as_str`] wrote.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == text)
    }
}

/// A row of `rail_submission`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// Its place in the order of intents; a cursor.
    pub seq: u64,
    /// Its id.
    pub submission_id: String,
    /// Which payout.
    pub payout_id: String,
    /// From which account.
    pub account_id: String,
    /// Under which token.
    pub token: FencingToken,
    /// What makes a repeated request recognisable.
    pub idempotency_key: String,
    /// What the rail knows it by.
    pub client_reference: String,
    /// How much, in minor units.
    pub amount_minor: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// A digest of the request's body; none where no request was made.
    pub body_hash: Option<String>,
    /// When the intent was committed.
    pub intent_at: UnixMillis,
    /// When it was about to leave for the rail; none: it never left.
    pub forwarded_at: Option<UnixMillis>,
    /// What became of it; none: an intent without outcome, ambiguous to everyone who reads it.
    pub outcome: Option<Outcome>,
    /// By whom it was submitted.
    pub actor: Option<String>,
    /// Why the outcome is not known, or how it came about.
    pub cause: Option<String>,
    /// The rail's reference, where it executed.
    pub rail_reference: Option<String>,
    /// The rail's reason, where it refused.
    pub decline_reason: Option<String>,
    /// When the outcome was recorded.
    pub outcome_at: Option<UnixMillis>,
    /// Whether the fence stood when it was made.
    pub fencing_enforced: bool,
}

/// R1: what a holder wants submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmitRequest {
    /// The id of the submission it becomes, made by the caller.
    pub submission_id: String,
    /// The holder's token.
    pub token: FencingToken,
    /// `X-Idempotency-Key`.
    pub idempotency_key: String,
    /// Which payout.
    pub payout_id: String,
    /// From which account.
    pub account_id: String,
    /// How much, in minor units.
    pub amount_minor: i64,
    /// ISO 4217 code.
    pub currency: String,
    /// To whom.
    pub creditor_name: String,
    /// Where.
    pub creditor_account: String,
    /// On whose behalf.
    pub actor: Option<String>,
}

/// Why the fence refused (C1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceReason {
    /// A later token was here, or a barrier stands at this one.
    Stale,
    /// This token has already had its one side effect.
    TokenSpent,
}

impl FenceReason {
    /// The reason as it stands on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::TokenSpent => "token_spent",
        }
    }
}

/// The fence refused: zero rows changed (INV-05).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FencedOut {
    /// Why.
    pub reason: FenceReason,
    /// The token presented.
    pub presented: FencingToken,
    /// The account's mark.
    pub highest_token: u64,
}

/// What became of a submit. Anything but [`SubmitOutcome::Intent`] changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmitOutcome {
    /// The intent is committed: forward it, once.
    Intent(Box<Submission>),
    /// This very token's submission of this payout: what is recorded now.
    Replay(Box<Submission>),
    /// The key was used with another body, or is not this payout's id, and so belongs to another payout (C1.2).
    KeyReused,
    /// The token is stale or spent.
    FencedOut(FencedOut),
    /// Another token's submission of the payout exists.
    AlreadySubmitted(Box<Submission>),
    /// There is no such payout.
    PayoutNotFound,
    /// The body does not agree with the payout in this field.
    Mismatch {
        /// The field's name on the wire.
        field: &'static str,
    },
    /// The payout is not CLAIMED under this token.
    NotClaimed {
        /// Its state.
        state: String,
        /// The token of its latest claim.
        claim_token: Option<u64>,
    },
    /// The payouts cannot be read (`payment.db` is not there yet): nothing is guessed.
    PayoutsUnknown,
    /// paydb was restored, and the rail has not been asked about this payout since: it may have been paid (case D13). A
    /// lookup decides.
    RailUnasked,
}

/// What became of the last step before the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardClaim {
    /// `forwarded_at` is committed: open the connection, now and only now.
    Forward {
        /// A submission of this payout had been forwarded before (C4.4). Only with the fence off.
        duplicate: bool,
    },
    /// No row, no send: it was forwarded before, or has an outcome.
    Refused {
        /// It was refused because a submission of this payout had been forwarded before, with the fence on (C4.4).
        duplicate: bool,
    },
}

/// What is learned about a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The rail executed it.
    Acked {
        /// The rail's reference.
        rail_reference: String,
    },
    /// The rail refused it.
    Declined {
        /// The rail's reason.
        reason: Option<String>,
    },
    /// Nothing is known and the forwarder's socket is closed. The forwarder alone says so.
    Timeout {
        /// Why.
        cause: String,
    },
}

/// How it was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The answer to the submission itself.
    Answer,
    /// An asynchronous ack (R4).
    Ack,
    /// A lookup (R3).
    Lookup,
}

impl Source {
    /// The source as it stands in the column `cause` of an outcome that came that way; an answer needs no cause.
    #[must_use]
    pub const fn cause(self) -> Option<&'static str> {
        match self {
            Self::Answer => None,
            Self::Ack => Some("ack"),
            Self::Lookup => Some("lookup"),
        }
    }
}

/// R4: an asynchronous ack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// What the rail knows the submission by.
    pub client_reference: String,
    /// What it says; never [`Evidence::Timeout`].
    pub evidence: Evidence,
    /// How much, in minor units.
    pub amount_minor: i64,
    /// ISO 4217 code.
    pub currency: String,
}

/// R4: what the ack did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckOutcome {
    /// It became the outcome.
    Recorded,
    /// It says again what is recorded.
    Duplicate,
    /// It contradicts what is recorded: an exception for a human, no outcome changed.
    Anomaly,
    /// No submission has this reference.
    Unknown,
}

/// One execution in the rail's own book.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// The rail's reference.
    pub rail_reference: String,
    /// How much, in minor units.
    pub amount_minor: i64,
    /// ISO 4217 code.
    pub currency: String,
}

/// What the rail said when asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sighting {
    /// No answer, or none that could be read: inconclusive, for ever.
    Failed,
    /// The rail's book for the reference.
    Book {
        /// Its executions.
        executions: Vec<Execution>,
        /// Its refusals' reasons.
        declined: Vec<String>,
        /// The rail promises that nothing more will execute.
        is_final: bool,
    },
}

/// R3: a lookup to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupRecord {
    /// Its id.
    pub lookup_id: String,
    /// The id of the submission that it becomes, where the rail knows of one that is lost here.
    pub submission_id: String,
    /// Which payout.
    pub payout_id: String,
    /// When the rail was asked.
    pub asked_at: UnixMillis,
    /// Whether `asked_at` may be compared with recorded instants: the wall clock has not jumped lately.
    pub clock_trusted: bool,
    /// `rail.visibility-horizon`: after its submitter's socket is closed the rail executes within it, or never.
    pub visibility_horizon_ms: u64,
    /// What the rail said.
    pub sighting: Sighting,
}

/// What can be concluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was executed.
    Executed,
    /// It was declined.
    Declined,
    /// It was never received, and nothing will come.
    NotReceived,
    /// Nothing can be concluded.
    Inconclusive,
}

impl Verdict {
    /// The verdict as it stands in the table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Executed => "EXECUTED",
            Self::Declined => "DECLINED",
            Self::NotReceived => "NOT_RECEIVED",
            Self::Inconclusive => "INCONCLUSIVE",
        }
    }

    /// What a recorded outcome says.
    #[must_use]
    pub const fn of(outcome: Option<Outcome>) -> Self {
        match outcome {
            Some(Outcome::Acked) => Self::Executed,
            Some(Outcome::Declined) => Self::Declined,
            Some(Outcome::NotReceived | Outcome::NotSent) => Self::NotReceived,
            Some(Outcome::Timeout) | None => Self::Inconclusive,
        }
    }
}

/// R3: what a lookup led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupOutcome {
    /// What can be concluded from what is now recorded.
    pub verdict: Verdict,
    /// How many executions the rail reports; for a failed lookup what is known.
    pub executions: u64,
    /// The submission as it is now recorded; none after a restore, as long as the rail knows of none.
    pub submission: Option<Submission>,
    /// More than one execution was reported for the first time (C4.4).
    pub double_found: bool,
}

/// R6: raises the mark to one below the token and reads the payout's submission in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceRequest {
    /// The id of a NOT_SENT row, should one be made.
    pub submission_id: String,
    /// Which payout.
    pub payout_id: String,
    /// The new holder's token.
    pub token: FencingToken,
    /// Insert a final NOT_SENT where there is no submission.
    pub forbid: bool,
    /// On whose behalf.
    pub actor: Option<String>,
}

/// R6: what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FenceOutcome {
    /// From now on no older token can submit from this account.
    Fenced {
        /// The payout's submission; none where there is none.
        submission: Option<Box<Submission>>,
        /// The account's mark afterwards.
        highest_token: u64,
    },
    /// The mark is at or above the token.
    FencedOut(FencedOut),
    /// There is no such payout.
    PayoutNotFound,
    /// The payouts cannot be read: nothing is guessed.
    PayoutsUnknown,
}

/// A row of `rail_high_water`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HighWater {
    /// The highest token that has submitted, or one below a fence; 0 before the first.
    pub highest_token: u64,
    /// When it last rose.
    pub updated_at: Option<UnixMillis>,
}

/// R7: what an account fence did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountFence {
    /// The mark is at least one below the token.
    Fenced(HighWater),
    /// The mark is at or above the token.
    FencedOut(FencedOut),
}

/// What kind of thing a human has to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExceptionKind {
    /// The rail acknowledged a payout that had been settled as FAILED.
    LateAckAfterFailed,
    /// The rail refused a payout that had been settled as POSTED.
    LateDeclineAfterPosted,
    /// The rail knows of no execution of what counts as paid: the submission is ACKED, or the payout POSTED.
    NotFoundAtRail,
    /// The rail gave two references, or reports more than one execution.
    DoublePaymentSuspected,
    /// The rail said both that it executed and that it refused.
    ConflictingOutcome,
    /// The rail speaks of another amount or currency than was submitted.
    AmountMismatch,
    /// The rail acknowledged what was never sent.
    AckWithoutSubmission,
}

impl ExceptionKind {
    /// The kind as it stands in the table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LateAckAfterFailed => "LATE_ACK_AFTER_FAILED",
            Self::LateDeclineAfterPosted => "LATE_DECLINE_AFTER_POSTED",
            Self::NotFoundAtRail => "NOT_FOUND_AT_RAIL",
            Self::DoublePaymentSuspected => "DOUBLE_PAYMENT_SUSPECTED",
            Self::ConflictingOutcome => "CONFLICTING_OUTCOME",
            Self::AmountMismatch => "AMOUNT_MISMATCH",
            Self::AckWithoutSubmission => "ACK_WITHOUT_SUBMISSION",
        }
    }
}

/// A row of `rail_lookup`: what the rail said of a payout when it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// When it was asked.
    pub at: UnixMillis,
    /// What could be concluded, as it stands in the table.
    pub verdict: String,
    /// How many executions the rail reported.
    pub executions: u64,
    /// The rail's reference.
    pub rail_reference: Option<String>,
}

/// A row of `rail_exception`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    /// Its place in the order; a cursor.
    pub seq: u64,
    /// Which payout.
    pub payout_id: String,
    /// When it was seen first.
    pub at: UnixMillis,
    /// What kind.
    pub kind: String,
    /// What was seen.
    pub detail: String,
    /// Who closed it.
    pub closed_by: Option<String>,
    /// When it was closed. None where a program before schema version 2 closed it.
    pub closed_at: Option<UnixMillis>,
    /// Why it was closed.
    pub closed_reason: Option<String>,
}

/// Closes an exception, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseException {
    /// Which one, by its `seq`.
    pub seq: u64,
    /// Who closes it.
    pub operator: String,
    /// Why.
    pub reason: String,
}

/// What closing an exception came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseOutcome {
    /// It is closed now.
    Closed(Box<Exception>),
    /// This operator closed it before, for this reason.
    Replay(Box<Exception>),
    /// It was closed before, by somebody else or for another reason.
    ClosedBefore(Box<Exception>),
    /// There is no such exception.
    NotFound,
}

/// What the metrics show of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Since when the oldest submission without a known outcome, of a payout that is not settled, has been so.
    pub ambiguous_since: Option<UnixMillis>,
    /// Exceptions that nobody has closed.
    pub exceptions_open: u64,
}
