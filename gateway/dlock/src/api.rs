//! The operator's way to the components: typed calls, one server after the other where several are given.

use crate::exit::Failure;
use actor_kit::TraceContext;
use host_kit::Host;
use http_client::{CallError, Caller, ClientOptions, LockServerApi, PaymentApi, RailProxyApi};
use std::time::Duration;

/// How long one call of the operator's verbs may take.
const CALL_WITHIN: Duration = Duration::from_secs(10);

/// Where the lock servers are.
#[derive(clap::Args, Debug, Clone)]
pub struct LockServerArgs {
    /// The lock servers, in order of preference, separated by commas.
    #[arg(
        long = "lock-server",
        value_name = "URL[,URL…]",
        env = "DLOCK_LOCK_SERVER",
        default_value = "http://127.0.0.1:7400",
        value_delimiter = ',',
        value_parser = url
    )]
    pub urls: Vec<String>,
}

/// Where the payment side is.
#[derive(clap::Args, Debug, Clone)]
pub struct PaymentArgs {
    /// The payment resource.
    #[arg(
        long,
        value_name = "URL",
        env = "DLOCK_EXECUTOR_PAYMENTS",
        default_value = "http://127.0.0.1:7401",
        value_parser = url
    )]
    pub payments: String,
    /// The rail proxy.
    #[arg(
        long,
        value_name = "URL",
        env = "DLOCK_EXECUTOR_RAIL_PROXY",
        default_value = "http://127.0.0.1:7402",
        value_parser = url
    )]
    pub rail_proxy: String,
}

/// Reads an address.
pub fn url(text: &str) -> Result<String, String> {
    let text = text.trim().trim_end_matches('/');
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    match host {
        Some(host) if !host.is_empty() && !host.contains(char::is_whitespace) => Ok(text.to_owned()),
        _ => Err("must be an address such as http://127.0.0.1:8080".to_owned()),
    }
}

/// The connections of one invocation.
pub struct Api {
    client: awc::Client,
    /// The trace of this invocation: every call of it is found under one id.
    pub trace: TraceContext,
}

impl Api {
    /// Must be called inside an actix system.
    pub fn new() -> Self {
        Self {
            client: http_client::client(&ClientOptions::default()),
            trace: TraceContext::root(&Host::system().random),
        }
    }

    /// The client underneath, for answers of which more matters than the body.
    pub const fn client(&self) -> &awc::Client {
        &self.client
    }

    fn caller(&self, url: &str) -> Caller {
        Caller::new(self.client.clone(), url, CALL_WITHIN)
    }

    /// Asks the lock servers: the next one only when the one before certainly was not reached.
    pub async fn lock_server<T>(
        &self,
        servers: &LockServerArgs,
        call: impl AsyncFn(LockServerApi) -> Result<T, CallError>,
    ) -> Result<T, Failure> {
        let mut unreached = Vec::new();
        for url in &servers.urls {
            match call(LockServerApi::new(self.caller(url))).await {
                Err(CallError::NotSent(detail)) => unreached.push(format!("{}: {detail}", gateway_kit::mask(url))),
                other => return other.map_err(Failure::from),
            }
        }
        Err(Failure::new(
            crate::exit::UNAVAILABLE,
            format!("no lock server could be reached ({})", unreached.join("; ")),
        ))
    }

    /// The payment resource.
    pub fn payments(&self, url: &str) -> PaymentApi {
        PaymentApi::new(self.caller(url))
    }

    /// The rail proxy.
    pub fn rail_proxy(&self, url: &str) -> RailProxyApi {
        RailProxyApi::new(self.caller(url))
    }

    /// Anything at this address.
    pub fn plain(&self, url: &str) -> Caller {
        self.caller(url)
    }
}

/// Who acts by hand, as the audit trail will say (FR-08, FR-30).
#[derive(clap::Args, Debug, Clone)]
pub struct OperatorArgs {
    /// Who you are, for the audit trail.
    #[arg(long, value_name = "NAME", env = "USER")]
    pub operator: String,
    /// Why, 8 to 500 characters, for the audit trail.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}
