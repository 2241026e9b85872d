//! What the executor needs of the other components. Implemented over HTTP by the gateway.

use actor_kit::TraceContext;
use http_contract::payment::{PayoutAnswer, PayoutState, ResolveBody};
use http_contract::rail::{LookupAnswer, SubmissionFenceAnswer, SubmissionRow, SubmitAnswer, SubmitBody};
use http_contract::{Code, Page, Problem};
use lock_api::FencingToken;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// Why a call has no answer, by what it may have done.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PortError {
    /// The other side refused it and said why.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// It never reached the other side: nothing was done.
    #[error("not sent: {0}")]
    NotSent(String),
    /// It may or may not have been done: no answer, or none that can be read.
    #[error("no answer, it may have been done: {0}")]
    Ambiguous(String),
}

impl PortError {
    /// The problem's code, where there is one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Problem(problem) => Some(problem.code),
            Self::NotSent(_) | Self::Ambiguous(_) => None,
        }
    }
}

/// What a port's call returns.
pub type PortFuture<T> = Pin<Box<dyn Future<Output = Result<T, PortError>>>>;

/// The payment resource (C3.4). Every verb that writes takes a token; `X-Actor` is the implementation's to send.
pub trait Payments {
    /// P3: a page of the payouts in this state, oldest first.
    fn list(
        &self,
        state: PayoutState,
        limit: u32,
        cursor: Option<String>,
        trace: TraceContext,
    ) -> PortFuture<Page<PayoutAnswer>>;
    /// P3: one payout.
    fn payout(&self, payout_id: String, trace: TraceContext) -> PortFuture<PayoutAnswer>;
    /// P4, with the version that was re-read (FR-14).
    fn claim(
        &self,
        payout_id: String,
        token: FencingToken,
        expected_version: u64,
        trace: TraceContext,
    ) -> PortFuture<PayoutAnswer>;
    /// P5.
    fn post(
        &self,
        payout_id: String,
        token: FencingToken,
        rail_reference: String,
        trace: TraceContext,
    ) -> PortFuture<PayoutAnswer>;
    /// P6.
    fn fail(
        &self,
        payout_id: String,
        token: FencingToken,
        reason: String,
        trace: TraceContext,
    ) -> PortFuture<PayoutAnswer>;
    /// P7.
    fn ambiguous(
        &self,
        payout_id: String,
        token: FencingToken,
        reason: String,
        trace: TraceContext,
    ) -> PortFuture<PayoutAnswer>;
    /// P8, under the reconciler's own grant.
    fn resolve(
        &self,
        payout_id: String,
        token: FencingToken,
        body: ResolveBody,
        trace: TraceContext,
    ) -> PortFuture<PayoutAnswer>;
}

/// The rail proxy (C3.5).
pub trait Rail {
    /// R1, once per claim. `within` is `executor.rail-timeout` (C3.7).
    fn submit(
        &self,
        token: FencingToken,
        body: SubmitBody,
        within: Duration,
        trace: TraceContext,
    ) -> PortFuture<SubmitAnswer>;
    /// R2.
    fn submission(&self, payout_id: String, trace: TraceContext) -> PortFuture<SubmissionRow>;
    /// R3.
    fn lookup(&self, payout_id: String, within: Duration, trace: TraceContext) -> PortFuture<LookupAnswer>;
    /// R6.
    fn fence(
        &self,
        payout_id: String,
        token: FencingToken,
        forbid: bool,
        trace: TraceContext,
    ) -> PortFuture<SubmissionFenceAnswer>;
}
