//! L1–L11.

use crate::call::{Caller, Head, path_segment, query};
use crate::{CallError, SseReader};
use actor_kit::TraceContext;
use awc::http::Method;
use http_contract::lock::{
    AcquireBody, AuditRow, CheckAnswer, CloseSessionAnswer, FloorBody, GrantAnswer, HeartbeatAnswer, HeartbeatRequest,
    LineageAnswer, LockView, OpenSessionAnswer, OpenSessionRequest, ReleaseAnswer, RenewBody, RevokeAnswer, RevokeBody,
    SealRow, SessionAnswer, YieldAnswer, YieldBody,
};
use http_contract::{Page, header};
use lock_api::{FencingToken, LockKey};
use std::time::Duration;

/// What an acquire that waits in the server's queue is given beyond its wait.
const WAIT_SLACK: Duration = Duration::from_secs(2);

/// The lock server. Each method is one route and answers its body; refusals are [`CallError::Problem`].
#[derive(Clone, Debug)]
pub struct LockServerApi(Caller);

#[allow(clippy::missing_errors_doc, reason = "every call fails as CallError says")]
impl LockServerApi {
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

    fn lock_path(key: &LockKey, rest: &str) -> String {
        format!("/v1/locks/{}{rest}", path_segment(key.as_str()))
    }

    /// L1: opens a session.
    pub async fn open_session(
        &self,
        body: &OpenSessionRequest,
        trace: &TraceContext,
    ) -> Result<OpenSessionAnswer, CallError> {
        self.0
            .body(Head::post("open_session", "/v1/sessions", trace), Some(body))
            .await
    }

    /// L2: keeps a session alive.
    pub async fn heartbeat(
        &self,
        session_id: &str,
        body: &HeartbeatRequest,
        trace: &TraceContext,
    ) -> Result<HeartbeatAnswer, CallError> {
        self.0
            .body(
                Head::post(
                    "heartbeat",
                    format!("/v1/sessions/{}/heartbeat", path_segment(session_id)),
                    trace,
                ),
                Some(body),
            )
            .await
    }

    /// L3: closes a session.
    pub async fn close_session(&self, session_id: &str, trace: &TraceContext) -> Result<CloseSessionAnswer, CallError> {
        self.0
            .plain(Head::new(
                "close_session",
                Method::DELETE,
                format!("/v1/sessions/{}", path_segment(session_id)),
                trace,
            ))
            .await
    }

    /// L4: asks for a key; the call may take as long as `wait_ms` and some slack.
    pub async fn acquire(
        &self,
        key: &LockKey,
        body: &AcquireBody,
        trace: &TraceContext,
    ) -> Result<GrantAnswer, CallError> {
        let mut head = Head::post("acquire", Self::lock_path(key, "/acquire"), trace).about_key(key);
        if let Some(wait) = body.wait_ms {
            head = head.timeout(Duration::from_millis(wait) + WAIT_SLACK);
        }
        // The token that was granted belongs to the call, wherever its trace is read.
        let granted = self
            .0
            .json_seen(head, Some(body), |grant: &GrantAnswer| Some(grant.token));
        Ok(granted.await?.body)
    }

    /// L5: extends a grant.
    pub async fn renew(
        &self,
        key: &LockKey,
        token: FencingToken,
        body: &RenewBody,
        trace: &TraceContext,
    ) -> Result<GrantAnswer, CallError> {
        self.0
            .body(
                Head::post("renew", Self::lock_path(key, "/renew"), trace)
                    .about_key(key)
                    .token(token),
                Some(body),
            )
            .await
    }

    /// L6: gives a grant back.
    pub async fn release(
        &self,
        key: &LockKey,
        session_id: &str,
        token: FencingToken,
        trace: &TraceContext,
    ) -> Result<ReleaseAnswer, CallError> {
        let path = Self::lock_path(key, &query(&[("session_id", Some(session_id))]));
        self.0
            .plain(
                Head::new("release", Method::DELETE, path, trace)
                    .about_key(key)
                    .token(token),
            )
            .await
    }

    /// L7: one key.
    pub async fn lock(&self, key: &LockKey, trace: &TraceContext) -> Result<LockView, CallError> {
        self.0
            .plain(Head::get("lock", Self::lock_path(key, ""), trace).about_key(key))
            .await
    }

    /// L7: keys by prefix.
    pub async fn locks(
        &self,
        prefix: Option<&str>,
        limit: u32,
        cursor: Option<&str>,
        trace: &TraceContext,
    ) -> Result<Page<LockView>, CallError> {
        let path = format!(
            "/v1/locks{}",
            query(&[
                ("prefix", prefix),
                ("limit", Some(&limit.to_string())),
                ("cursor", cursor)
            ])
        );
        self.0.plain(Head::get("locks", path, trace)).await
    }

    /// L7: a key's history.
    pub async fn history(
        &self,
        key: &LockKey,
        limit: u32,
        cursor: Option<&str>,
        trace: &TraceContext,
    ) -> Result<Page<AuditRow>, CallError> {
        let path = Self::lock_path(
            key,
            &format!(
                "/history{}",
                query(&[("limit", Some(&limit.to_string())), ("cursor", cursor)])
            ),
        );
        self.0.plain(Head::get("history", path, trace).about_key(key)).await
    }

    /// L7: a key's changes as they happen, from event `after` where one was seen before.
    pub async fn watch(&self, key: &LockKey, after: Option<u64>, trace: &TraceContext) -> Result<SseReader, CallError> {
        let head = Head::get("watch", Self::lock_path(key, "/watch"), trace)
            .about_key(key)
            .optional("Last-Event-ID", after.map(|seq| seq.to_string()).as_deref());
        SseReader::open(self.0.request(&head)).await
    }

    /// L8: breaks a grant.
    pub async fn revoke(
        &self,
        key: &LockKey,
        operator: &str,
        body: &RevokeBody,
        trace: &TraceContext,
    ) -> Result<RevokeAnswer, CallError> {
        self.0
            .body(
                Head::post("revoke", Self::lock_path(key, "/revoke"), trace)
                    .about_key(key)
                    .header(header::OPERATOR, operator),
                Some(body),
            )
            .await
    }

    /// L11: asks the holder to give its grant up.
    pub async fn ask_to_yield(
        &self,
        key: &LockKey,
        operator: &str,
        body: &YieldBody,
        trace: &TraceContext,
    ) -> Result<YieldAnswer, CallError> {
        self.0
            .body(
                Head::post("ask_to_yield", Self::lock_path(key, "/yield"), trace)
                    .about_key(key)
                    .header(header::OPERATOR, operator),
                Some(body),
            )
            .await
    }

    /// L10: how a token stands. Advice: the answer is no fence.
    pub async fn check(
        &self,
        key: &LockKey,
        token: FencingToken,
        trace: &TraceContext,
    ) -> Result<CheckAnswer, CallError> {
        self.0
            .plain(
                Head::post("check", Self::lock_path(key, "/check"), trace)
                    .about_key(key)
                    .token(token),
            )
            .await
    }

    /// L9: live sessions.
    pub async fn sessions(
        &self,
        limit: u32,
        cursor: Option<&str>,
        trace: &TraceContext,
    ) -> Result<Page<SessionAnswer>, CallError> {
        let path = format!(
            "/v1/sessions{}",
            query(&[("limit", Some(&limit.to_string())), ("cursor", cursor)])
        );
        self.0.plain(Head::get("sessions", path, trace)).await
    }

    /// L9: one session.
    pub async fn session(&self, session_id: &str, trace: &TraceContext) -> Result<SessionAnswer, CallError> {
        self.0
            .plain(Head::get(
                "session",
                format!("/v1/sessions/{}", path_segment(session_id)),
                trace,
            ))
            .await
    }

    /// L9: the audit trail after event `after`.
    pub async fn audit(&self, after: u64, limit: u32, trace: &TraceContext) -> Result<Page<AuditRow>, CallError> {
        self.0
            .plain(Head::get(
                "audit",
                format!("/v1/audit?after={after}&limit={limit}"),
                trace,
            ))
            .await
    }

    /// L9: sealed segments after event `after`.
    pub async fn seals(&self, after: u64, limit: u32, trace: &TraceContext) -> Result<Page<SealRow>, CallError> {
        self.0
            .plain(Head::get(
                "seals",
                format!("/v1/audit/seals?after={after}&limit={limit}"),
                trace,
            ))
            .await
    }

    /// L9: the identity of the store's history.
    pub async fn lineage(&self, trace: &TraceContext) -> Result<LineageAnswer, CallError> {
        self.0.plain(Head::get("lineage", "/v1/lineage", trace)).await
    }

    /// L9: raises the floor or dismisses a doubt.
    pub async fn floor(
        &self,
        operator: &str,
        body: &FloorBody,
        trace: &TraceContext,
    ) -> Result<LineageAnswer, CallError> {
        self.0
            .body(
                Head::post("floor", "/v1/lineage/floor", trace).header(header::OPERATOR, operator),
                Some(body),
            )
            .await
    }
}
