//! The executor's ports over HTTP. Each verb that writes carries the token it was given, and who presents it.

use actor_kit::TraceContext;
use executor_core::{Payments, PortError, PortFuture, Rail};
use http_client::{CallError, PaymentApi, PayoutFilter, RailProxyApi};
use http_contract::Page;
use http_contract::payment::{ClaimBody, PayoutAnswer, PayoutState, PostBody, ReasonBody, ResolveBody};
use http_contract::rail::{
    LookupAnswer, SubmissionFenceAnswer, SubmissionFenceBody, SubmissionRow, SubmitAnswer, SubmitBody,
};
use lock_api::FencingToken;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

fn failed(error: CallError) -> PortError {
    match error {
        CallError::Problem(problem) => PortError::Problem(problem),
        CallError::NotSent(detail) => PortError::NotSent(detail),
        CallError::Ambiguous(detail) => PortError::Ambiguous(detail),
        // Something answered, and nobody knows what it did.
        CallError::Garbled { status, detail } => {
            PortError::Ambiguous(format!("unreadable answer (status {status}): {detail}"))
        }
    }
}

fn port<T: 'static>(call: impl Future<Output = Result<T, CallError>> + 'static) -> PortFuture<T> {
    Box::pin(async move { call.await.map_err(failed) })
}

/// The payment resource over HTTP.
#[derive(Clone, Debug)]
pub struct HttpPayments {
    api: PaymentApi,
    actor: Rc<str>,
}

impl HttpPayments {
    /// Calls through this client, as this actor (`X-Actor`).
    #[must_use]
    pub fn new(api: PaymentApi, actor: &str) -> Self {
        Self {
            api,
            actor: actor.into(),
        }
    }
}

impl Payments for HttpPayments {
    fn list(
        &self,
        state: PayoutState,
        limit: u32,
        cursor: Option<String>,
        trace: TraceContext,
    ) -> PortFuture<Page<PayoutAnswer>> {
        let api = self.api.clone();
        let filter = PayoutFilter {
            state: Some(state),
            account_id: None,
        };
        port(async move { api.payouts(&filter, limit, cursor.as_deref(), &trace).await })
    }

    fn payout(&self, payout_id: String, trace: TraceContext) -> PortFuture<PayoutAnswer> {
        let api = self.api.clone();
        port(async move { api.payout(&payout_id, &trace).await })
    }

    fn claim(
        &self,
        payout_id: String,
        token: FencingToken,
        expected_version: u64,
        trace: TraceContext,
    ) -> PortFuture<PayoutAnswer> {
        let (api, actor) = (self.api.clone(), self.actor.clone());
        let body = ClaimBody {
            expected_version: Some(expected_version),
        };
        port(async move { Ok(api.claim(&payout_id, token, Some(&actor), &body, &trace).await?.body) })
    }

    fn post(
        &self,
        payout_id: String,
        token: FencingToken,
        rail_reference: String,
        trace: TraceContext,
    ) -> PortFuture<PayoutAnswer> {
        let (api, actor) = (self.api.clone(), self.actor.clone());
        let body = PostBody { rail_reference };
        port(async move { Ok(api.post(&payout_id, token, Some(&actor), &body, &trace).await?.body) })
    }

    fn fail(
        &self,
        payout_id: String,
        token: FencingToken,
        reason: String,
        trace: TraceContext,
    ) -> PortFuture<PayoutAnswer> {
        let (api, actor) = (self.api.clone(), self.actor.clone());
        let body = ReasonBody { reason };
        port(async move { Ok(api.fail(&payout_id, token, Some(&actor), &body, &trace).await?.body) })
    }

    fn ambiguous(
        &self,
        payout_id: String,
        token: FencingToken,
        reason: String,
        trace: TraceContext,
    ) -> PortFuture<PayoutAnswer> {
        let (api, actor) = (self.api.clone(), self.actor.clone());
        let body = ReasonBody { reason };
        port(async move {
            Ok(api
                .ambiguous(&payout_id, token, Some(&actor), &body, &trace)
                .await?
                .body)
        })
    }

    fn resolve(
        &self,
        payout_id: String,
        token: FencingToken,
        body: ResolveBody,
        trace: TraceContext,
    ) -> PortFuture<PayoutAnswer> {
        let (api, actor) = (self.api.clone(), self.actor.clone());
        port(async move { Ok(api.resolve(&payout_id, token, Some(&actor), &body, &trace).await?.body) })
    }
}

/// The rail proxy over HTTP.
#[derive(Clone, Debug)]
pub struct HttpRail {
    api: RailProxyApi,
    actor: Rc<str>,
}

impl HttpRail {
    /// Calls through this client, as this actor (`X-Actor`).
    #[must_use]
    pub fn new(api: RailProxyApi, actor: &str) -> Self {
        Self {
            api,
            actor: actor.into(),
        }
    }
}

impl Rail for HttpRail {
    fn submit(
        &self,
        token: FencingToken,
        body: SubmitBody,
        within: Duration,
        trace: TraceContext,
    ) -> PortFuture<SubmitAnswer> {
        let (api, actor) = (self.api.clone(), self.actor.clone());
        port(async move { Ok(api.submit(token, Some(&actor), &body, within, &trace).await?.body) })
    }

    fn submission(&self, payout_id: String, trace: TraceContext) -> PortFuture<SubmissionRow> {
        let api = self.api.clone();
        port(async move { api.submission(&payout_id, &trace).await })
    }

    fn lookup(&self, payout_id: String, within: Duration, trace: TraceContext) -> PortFuture<LookupAnswer> {
        let api = self.api.clone();
        port(async move { api.lookup(&payout_id, within, &trace).await })
    }

    fn fence(
        &self,
        payout_id: String,
        token: FencingToken,
        forbid: bool,
        trace: TraceContext,
    ) -> PortFuture<SubmissionFenceAnswer> {
        let api = self.api.clone();
        let body = SubmissionFenceBody {
            forbid: forbid.then_some(true),
        };
        port(async move { api.fence_submission(&payout_id, token, &body, &trace).await })
    }
}
