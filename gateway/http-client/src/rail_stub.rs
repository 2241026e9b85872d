//! The rail's own surface, for the harness (C3.6). The proxy's forwarder makes its calls itself, because what it does
//! with a connection is its safety.

use crate::CallError;
use crate::call::{Caller, Head, path_segment};
use actor_kit::TraceContext;
use awc::http::Method;
use http_contract::rail::{FaultPlan, RailBook, RailStats};

/// The rail stub.
#[derive(Clone, Debug)]
pub struct RailStubApi(Caller);

#[allow(clippy::missing_errors_doc, reason = "every call fails as CallError says")]
impl RailStubApi {
    /// Calls through this caller.
    #[must_use]
    pub const fn new(caller: Caller) -> Self {
        Self(caller)
    }

    /// The caller underneath, for probes.
    #[must_use]
    pub const fn caller(&self) -> &Caller {
        &self.0
    }

    /// What the rail has in its book for a reference.
    pub async fn book(&self, client_reference: &str, trace: &TraceContext) -> Result<RailBook, CallError> {
        self.0
            .plain(Head::get(
                "book",
                format!("/submissions?client_reference={}", path_segment(client_reference)),
                trace,
            ))
            .await
    }

    /// What it counted.
    pub async fn stats(&self, trace: &TraceContext) -> Result<RailStats, CallError> {
        self.0.plain(Head::get("stats", "/stats", trace)).await
    }

    /// The faults it injects now.
    pub async fn faults(&self, trace: &TraceContext) -> Result<FaultPlan, CallError> {
        self.0.plain(Head::get("faults", "/faults", trace)).await
    }

    /// Replaces the faults it injects.
    pub async fn set_faults(&self, plan: &FaultPlan, trace: &TraceContext) -> Result<(), CallError> {
        self.0
            .raw(Head::new("set_faults", Method::PUT, "/faults", trace), Some(plan))
            .await
            .map(drop)
    }

    /// Ends all faults.
    pub async fn clear_faults(&self, trace: &TraceContext) -> Result<(), CallError> {
        self.0
            .raw::<()>(Head::new("clear_faults", Method::DELETE, "/faults", trace), None)
            .await
            .map(drop)
    }
}
