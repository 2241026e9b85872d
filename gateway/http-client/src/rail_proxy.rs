//! R1–R8.

use crate::CallError;
use crate::call::{Answer, Caller, Head, path_segment, query};
use actor_kit::TraceContext;
use http_contract::rail::{
    CloseExceptionBody, ExceptionRow, HighWaterAnswer, LookupAnswer, LookupRow, Outcome, SubmissionFenceAnswer,
    SubmissionFenceBody, SubmissionRow, SubmitAnswer, SubmitBody,
};
use http_contract::{Page, header};
use lock_api::FencingToken;
use std::time::Duration;

/// The rail proxy. Each method is one route; refusals are [`CallError::Problem`].
#[derive(Clone, Debug)]
pub struct RailProxyApi(Caller);

#[allow(clippy::missing_errors_doc, reason = "every call fails as CallError says")]
impl RailProxyApi {
    /// Calls through this caller.
    #[must_use]
    pub const fn new(caller: Caller) -> Self {
        Self(caller)
    }

    /// The caller underneath, for probes and metrics.
    #[must_use]
    pub const fn caller(&self) -> &Caller {
        &self.0
    }

    fn path(payout_id: &str, rest: &str) -> String {
        format!("/v1/rail/submissions/{}{rest}", path_segment(payout_id))
    }

    /// R1: submits, once per claim, waiting up to `executor.rail-timeout` for the outcome (C3.7, C3.8).
    pub async fn submit(
        &self,
        token: FencingToken,
        actor: Option<&str>,
        body: &SubmitBody,
        timeout: Duration,
        trace: &TraceContext,
    ) -> Result<Answer<SubmitAnswer>, CallError> {
        let head = Head::post("submit", "/v1/rail/submissions", trace)
            .about_payout(&body.payout_id)
            .token(token)
            .header(header::IDEMPOTENCY_KEY, &body.payout_id)
            .optional(header::ACTOR, actor)
            .timeout(timeout);
        self.0.json(head, Some(body)).await
    }

    /// R2: one submission.
    pub async fn submission(&self, payout_id: &str, trace: &TraceContext) -> Result<SubmissionRow, CallError> {
        self.0
            .plain(Head::get("submission", Self::path(payout_id, ""), trace).about_payout(payout_id))
            .await
    }

    /// R2: submissions.
    pub async fn submissions(
        &self,
        outcome: Option<Outcome>,
        limit: u32,
        cursor: Option<&str>,
        trace: &TraceContext,
    ) -> Result<Page<SubmissionRow>, CallError> {
        let parts = [
            ("outcome", outcome.map(Outcome::as_str)),
            ("limit", Some(&*limit.to_string())),
            ("cursor", cursor),
        ]
        .map(|(n, v)| (n, v.map(str::to_owned)));
        let parts: Vec<_> = parts.iter().map(|(n, v)| (*n, v.as_deref())).collect();
        self.0
            .plain(Head::get(
                "submissions",
                format!("/v1/rail/submissions{}", query(&parts)),
                trace,
            ))
            .await
    }

    /// R3: asks the rail, read-only.
    pub async fn lookup(
        &self,
        payout_id: &str,
        timeout: Duration,
        trace: &TraceContext,
    ) -> Result<LookupAnswer, CallError> {
        self.0
            .plain(
                Head::post("lookup", Self::path(payout_id, "/lookup"), trace)
                    .about_payout(payout_id)
                    .timeout(timeout),
            )
            .await
    }

    /// R3: what the rail said whenever it was asked, the newest `limit`, oldest first.
    pub async fn lookups(
        &self,
        payout_id: &str,
        limit: u32,
        trace: &TraceContext,
    ) -> Result<Page<LookupRow>, CallError> {
        let path = Self::path(payout_id, &format!("/lookups?limit={limit}"));
        self.0
            .plain(Head::get("lookups", path, trace).about_payout(payout_id))
            .await
    }

    /// R5: an account's mark.
    pub async fn high_water(&self, account_id: &str, trace: &TraceContext) -> Result<HighWaterAnswer, CallError> {
        self.0
            .plain(Head::get(
                "high_water",
                format!("/v1/rail/high-water/{}", path_segment(account_id)),
                trace,
            ))
            .await
    }

    /// R6: raises the mark just below the token and reads the payout's submission.
    pub async fn fence_submission(
        &self,
        payout_id: &str,
        token: FencingToken,
        body: &SubmissionFenceBody,
        trace: &TraceContext,
    ) -> Result<SubmissionFenceAnswer, CallError> {
        self.0
            .body(
                Head::post("fence_submission", Self::path(payout_id, "/fence"), trace)
                    .about_payout(payout_id)
                    .token(token),
                Some(body),
            )
            .await
    }

    /// R7: raises the account's mark to just below the token.
    pub async fn fence_account(
        &self,
        account_id: &str,
        token: FencingToken,
        trace: &TraceContext,
    ) -> Result<HighWaterAnswer, CallError> {
        self.0
            .plain(
                Head::post(
                    "fence_account",
                    format!("/v1/rail/accounts/{}/fence", path_segment(account_id)),
                    trace,
                )
                .token(token),
            )
            .await
    }

    /// R7: what waits or waited for a human; `open`: only what nobody has closed, or only what was closed.
    pub async fn exceptions(
        &self,
        open: Option<bool>,
        limit: u32,
        cursor: Option<&str>,
        trace: &TraceContext,
    ) -> Result<Page<ExceptionRow>, CallError> {
        let (open, limit) = (open.map(|open| open.to_string()), limit.to_string());
        let parts = query(&[("open", open.as_deref()), ("limit", Some(&limit)), ("cursor", cursor)]);
        self.0
            .plain(Head::get("exceptions", format!("/v1/rail/exceptions{parts}"), trace))
            .await
    }

    /// R8: one exception.
    pub async fn exception(&self, exception_id: u64, trace: &TraceContext) -> Result<ExceptionRow, CallError> {
        let path = format!("/v1/rail/exceptions/{exception_id}");
        self.0.plain(Head::get("exception", path, trace)).await
    }

    /// R8: closes an exception, once.
    pub async fn close_exception(
        &self,
        exception_id: u64,
        operator: &str,
        body: &CloseExceptionBody,
        trace: &TraceContext,
    ) -> Result<Answer<ExceptionRow>, CallError> {
        let path = format!("/v1/rail/exceptions/{exception_id}/close");
        let head = Head::post("close_exception", path, trace).header(header::OPERATOR, operator);
        self.0.json(head, Some(body)).await
    }
}
