//! P1–P10.

use crate::CallError;
use crate::call::{Answer, Caller, Head, path_segment, query};
use actor_kit::TraceContext;
use http_contract::payment::{
    AccountAnswer, CancelBody, ClaimBody, CreatePayoutBody, CreditBody, FenceAnswer, LedgerRow, OpenAccountBody,
    PaymentAuditRow, PayoutAnswer, PayoutState, PostBody, ReasonBody, ResolveBody, TransitionRow, VerifyAnswer,
};
use http_contract::{Page, header};
use lock_api::FencingToken;

/// The payment resource. Each method is one route; refusals are [`CallError::Problem`].
#[derive(Clone, Debug)]
pub struct PaymentApi(Caller);

/// Which payouts to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PayoutFilter {
    /// Only those in this state.
    pub state: Option<PayoutState>,
    /// Only those of this account.
    pub account_id: Option<String>,
}

/// How the ledger is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// Comma separated values.
    Csv,
    /// One JSON object a line.
    Jsonl,
    /// Plain-text accounting, for beancount.
    Beancount,
    /// Plain-text accounting, for hledger.
    Hledger,
    /// ISO 20022 bank-to-customer statement.
    Camt053,
}

impl ExportFormat {
    /// The format by its name in the query.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Jsonl => "jsonl",
            Self::Beancount => "beancount",
            Self::Hledger => "hledger",
            Self::Camt053 => "camt053",
        }
    }
}

#[allow(clippy::missing_errors_doc, reason = "every call fails as CallError says")]
impl PaymentApi {
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

    fn payout_path(payout_id: &str, rest: &str) -> String {
        format!("/v1/payouts/{}{rest}", path_segment(payout_id))
    }

    fn account_path(account_id: &str, rest: &str) -> String {
        format!("/v1/accounts/{}{rest}", path_segment(account_id))
    }

    /// P1: opens an account.
    pub async fn open_account(&self, body: &OpenAccountBody, trace: &TraceContext) -> Result<AccountAnswer, CallError> {
        self.0
            .body(Head::post("open_account", "/v1/accounts", trace), Some(body))
            .await
    }

    /// P1: one account.
    pub async fn account(&self, account_id: &str, trace: &TraceContext) -> Result<AccountAnswer, CallError> {
        self.0
            .plain(Head::get("account", Self::account_path(account_id, ""), trace))
            .await
    }

    /// P1: accounts.
    pub async fn accounts(
        &self,
        limit: u32,
        cursor: Option<&str>,
        trace: &TraceContext,
    ) -> Result<Page<AccountAnswer>, CallError> {
        let path = format!(
            "/v1/accounts{}",
            query(&[("limit", Some(&limit.to_string())), ("cursor", cursor)])
        );
        self.0.plain(Head::get("accounts", path, trace)).await
    }

    /// P1: adds money from outside.
    pub async fn credit(
        &self,
        account_id: &str,
        idempotency_key: &str,
        body: &CreditBody,
        trace: &TraceContext,
    ) -> Result<Answer<AccountAnswer>, CallError> {
        let head = Head::post("credit", Self::account_path(account_id, "/credit"), trace)
            .header(header::IDEMPOTENCY_KEY, idempotency_key);
        self.0.json(head, Some(body)).await
    }

    /// P2: asks for a payout.
    pub async fn create_payout(
        &self,
        idempotency_key: &str,
        body: &CreatePayoutBody,
        trace: &TraceContext,
    ) -> Result<Answer<PayoutAnswer>, CallError> {
        self.0
            .json(
                Head::post("create_payout", "/v1/payouts", trace).header(header::IDEMPOTENCY_KEY, idempotency_key),
                Some(body),
            )
            .await
    }

    /// P3: payouts.
    pub async fn payouts(
        &self,
        filter: &PayoutFilter,
        limit: u32,
        cursor: Option<&str>,
        trace: &TraceContext,
    ) -> Result<Page<PayoutAnswer>, CallError> {
        let limit = limit.to_string();
        let parts = [
            ("state", filter.state.map(PayoutState::as_str)),
            ("account_id", filter.account_id.as_deref()),
            ("limit", Some(limit.as_str())),
            ("cursor", cursor),
        ];
        self.0
            .plain(Head::get("payouts", format!("/v1/payouts{}", query(&parts)), trace))
            .await
    }

    /// P3: one payout.
    pub async fn payout(&self, payout_id: &str, trace: &TraceContext) -> Result<PayoutAnswer, CallError> {
        self.0
            .plain(Head::get("payout", Self::payout_path(payout_id, ""), trace).about_payout(payout_id))
            .await
    }

    /// P3: a payout's history.
    pub async fn payout_history(
        &self,
        payout_id: &str,
        trace: &TraceContext,
    ) -> Result<Page<TransitionRow>, CallError> {
        self.0
            .plain(
                Head::get(
                    "payout_history",
                    Self::payout_path(payout_id, "/history?limit=1000"),
                    trace,
                )
                .about_payout(payout_id),
            )
            .await
    }

    /// P4: claims.
    pub async fn claim(
        &self,
        payout_id: &str,
        token: FencingToken,
        actor: Option<&str>,
        body: &ClaimBody,
        trace: &TraceContext,
    ) -> Result<Answer<PayoutAnswer>, CallError> {
        self.fenced("claim", payout_id, token, actor, body, trace).await
    }

    /// P5: posts.
    pub async fn post(
        &self,
        payout_id: &str,
        token: FencingToken,
        actor: Option<&str>,
        body: &PostBody,
        trace: &TraceContext,
    ) -> Result<Answer<PayoutAnswer>, CallError> {
        self.fenced("post", payout_id, token, actor, body, trace).await
    }

    /// P6: fails.
    pub async fn fail(
        &self,
        payout_id: &str,
        token: FencingToken,
        actor: Option<&str>,
        body: &ReasonBody,
        trace: &TraceContext,
    ) -> Result<Answer<PayoutAnswer>, CallError> {
        self.fenced("fail", payout_id, token, actor, body, trace).await
    }

    /// P7: marks ambiguous.
    pub async fn ambiguous(
        &self,
        payout_id: &str,
        token: FencingToken,
        actor: Option<&str>,
        body: &ReasonBody,
        trace: &TraceContext,
    ) -> Result<Answer<PayoutAnswer>, CallError> {
        self.fenced("ambiguous", payout_id, token, actor, body, trace).await
    }

    /// P8: resolves, under the reconciler's own grant.
    pub async fn resolve(
        &self,
        payout_id: &str,
        token: FencingToken,
        actor: Option<&str>,
        body: &ResolveBody,
        trace: &TraceContext,
    ) -> Result<Answer<PayoutAnswer>, CallError> {
        self.fenced("resolve", payout_id, token, actor, body, trace).await
    }

    /// P8: resolves by hand.
    pub async fn resolve_by_hand(
        &self,
        payout_id: &str,
        token: FencingToken,
        operator: &str,
        body: &ResolveBody,
        trace: &TraceContext,
    ) -> Result<Answer<PayoutAnswer>, CallError> {
        let head = Head::post("resolve_by_hand", Self::payout_path(payout_id, "/resolve"), trace)
            .about_payout(payout_id)
            .token(token)
            .header(header::OPERATOR, operator);
        self.0.json(head, Some(body)).await
    }

    async fn fenced<B: serde::Serialize>(
        &self,
        verb: &'static str,
        payout_id: &str,
        token: FencingToken,
        actor: Option<&str>,
        body: &B,
        trace: &TraceContext,
    ) -> Result<Answer<PayoutAnswer>, CallError> {
        let head = Head::post(verb, Self::payout_path(payout_id, &format!("/{verb}")), trace)
            .about_payout(payout_id)
            .token(token)
            .optional(header::ACTOR, actor);
        self.0.json(head, Some(body)).await
    }

    /// P9: cancels a pending payout.
    pub async fn cancel(
        &self,
        payout_id: &str,
        operator: &str,
        body: &CancelBody,
        trace: &TraceContext,
    ) -> Result<PayoutAnswer, CallError> {
        self.0
            .body(
                Head::post("cancel", Self::payout_path(payout_id, "/cancel"), trace)
                    .about_payout(payout_id)
                    .header(header::OPERATOR, operator),
                Some(body),
            )
            .await
    }

    /// P9: an account's ledger.
    pub async fn ledger(
        &self,
        account_id: &str,
        limit: u32,
        cursor: Option<&str>,
        trace: &TraceContext,
    ) -> Result<Page<LedgerRow>, CallError> {
        let path = Self::account_path(
            account_id,
            &format!(
                "/ledger{}",
                query(&[("limit", Some(&limit.to_string())), ("cursor", cursor)])
            ),
        );
        self.0.plain(Head::get("ledger", path, trace)).await
    }

    /// P9: the whole ledger as text.
    pub async fn export(&self, format: ExportFormat, trace: &TraceContext) -> Result<String, CallError> {
        self.0
            .text(&format!("/v1/ledger/export?format={}", format.as_str()), trace)
            .await
    }

    /// P9: whether the ledger holds together.
    pub async fn verify(&self, trace: &TraceContext) -> Result<VerifyAnswer, CallError> {
        self.0.plain(Head::get("verify", "/v1/ledger/verify", trace)).await
    }

    /// P9: the facts after fact `after`.
    pub async fn audit(
        &self,
        after: u64,
        limit: u32,
        trace: &TraceContext,
    ) -> Result<Page<PaymentAuditRow>, CallError> {
        self.0
            .plain(Head::get(
                "read_audit",
                format!("/v1/audit?after={after}&limit={limit}"),
                trace,
            ))
            .await
    }

    /// P10: raises the account's mark to just below the token.
    pub async fn fence(
        &self,
        account_id: &str,
        token: FencingToken,
        trace: &TraceContext,
    ) -> Result<FenceAnswer, CallError> {
        self.0
            .plain(Head::post("fence", Self::account_path(account_id, "/fence"), trace).token(token))
            .await
    }
}
