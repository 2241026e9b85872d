//! The operator's way to the components: typed calls, one server after the other where several are given.

use crate::exit::Failure;
use actor_kit::TraceContext;
use host_kit::Host;
use http_client::{CallError, Caller, ClientOptions, LockServerApi, PaymentApi, RailProxyApi};
use http_contract::Code;
use lock_api::LockKey;
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

/// A component that a verb needs, and how its address is given.
#[derive(Clone, Copy, Debug)]
pub struct Needed {
    /// As its `/version` names it.
    component: &'static str,
    flag: &'static str,
    variable: &'static str,
}

/// The lock servers.
pub const LOCK_SERVER: Needed = Needed {
    component: "lock-server",
    flag: "--lock-server",
    variable: "DLOCK_LOCK_SERVER",
};

const PAYMENTS: Needed = Needed {
    component: "payment-resource",
    flag: "--payments",
    variable: "DLOCK_EXECUTOR_PAYMENTS",
};

const RAIL_PROXY: Needed = Needed {
    component: "rail-proxy",
    flag: "--rail-proxy",
    variable: "DLOCK_EXECUTOR_RAIL_PROXY",
};

impl Needed {
    /// What to do where it was not reached and the error has named the address.
    pub fn next_step(&self) -> String {
        self.is_it_running("")
    }

    /// The same, where the error itself does not name the addresses.
    pub fn next_step_at(&self, urls: &[String]) -> String {
        self.is_it_running(&format!(" at {}", urls.join(" or ")))
    }

    fn is_it_running(&self, there: &str) -> String {
        format!(
            "is it running{there}? Its address is given with {} or {}",
            self.flag, self.variable
        )
    }
}

/// Reads an address.
pub fn url(text: &str) -> Result<String, String> {
    let instead = "give the address in its variable of the environment (--help names it)";
    if let Some(warning) = crate::config::password_in_arguments("an address", text, instead) {
        eprintln!("dlock: {warning}");
    }
    http_client::base_url(text).map(str::to_owned).map_err(str::to_owned)
}

/// The key that a verb is about, in two forms, so that each lawful key can be named (case L45).
#[derive(clap::Args, Debug, Clone)]
#[group(id = "which_key", required = true, multiple = false)]
pub struct KeyArgs {
    /// The key, 1 to 256 bytes. One that begins with a dash is given as --key=KEY.
    #[arg(value_name = "KEY", value_parser = lock_key)]
    key: Option<LockKey>,
    /// The key, whatever it begins with: `--key=-x`.
    #[arg(long = "key", id = "named_key", value_name = "KEY", value_parser = lock_key, allow_hyphen_values = true)]
    named: Option<LockKey>,
}

impl KeyArgs {
    /// The key.
    ///
    /// # Errors
    /// Never: the group demands one of the two.
    pub fn get(&self) -> Result<LockKey, Failure> {
        let key = self.key.as_ref().or(self.named.as_ref());
        key.cloned().ok_or_else(|| Failure::usage("KEY is required"))
    }
}

/// Reads a key.
pub fn lock_key(text: &str) -> Result<LockKey, String> {
    LockKey::new(text).map_err(|error| error.to_string())
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
                Ok(answer) => return Ok(answer),
                Err(CallError::NotSent(detail)) => unreached.push(format!("{}: {detail}", gateway_kit::mask(url))),
                Err(error) => return Err(self.failed(LOCK_SERVER, url, error).await),
            }
        }
        let failure = Failure::new(
            crate::exit::UNAVAILABLE,
            format!("no lock server could be reached ({})", unreached.join("; ")),
        );
        Err(failure.with_next_step(&LOCK_SERVER.next_step()))
    }

    /// Asks the lock servers for something that changes nothing: the next one whenever one does not answer, or cannot now. Which
    /// one answered, by its place.
    pub async fn first_that_answers<T>(
        &self,
        servers: &LockServerArgs,
        call: impl AsyncFn(LockServerApi) -> Result<T, CallError>,
    ) -> Result<(usize, T), Failure> {
        let mut failures = Vec::new();
        for (at, url) in servers.urls.iter().enumerate() {
            let error = match call(LockServerApi::new(self.caller(url))).await {
                Ok(answer) => return Ok((at, answer)),
                Err(error) => error,
            };
            let failure = self.failed(LOCK_SERVER, url, error).await;
            if !failure.is_passing() {
                return Err(failure);
            }
            failures.push(failure.to_string());
        }
        Err(Failure::new(crate::exit::UNAVAILABLE, failures.join("; ")))
    }

    /// Asks the payment resource.
    pub async fn ask_payments<T>(
        &self,
        at: &PaymentArgs,
        call: impl AsyncFnOnce(PaymentApi) -> Result<T, CallError>,
    ) -> Result<T, Failure> {
        match call(self.payments(&at.payments)).await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failed(PAYMENTS, &at.payments, error).await),
        }
    }

    /// Asks the rail proxy.
    pub async fn ask_rail_proxy<T>(
        &self,
        at: &PaymentArgs,
        call: impl AsyncFnOnce(RailProxyApi) -> Result<T, CallError>,
    ) -> Result<T, Failure> {
        match call(self.rail_proxy(&at.rail_proxy)).await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failed(RAIL_PROXY, &at.rail_proxy, error).await),
        }
    }

    /// Why a call failed, with the address that was tried. Where something answered that has no such route, it is asked what
    /// it is.
    async fn failed(&self, needed: Needed, url: &str, error: CallError) -> Failure {
        let is_foreign = match &error {
            CallError::Problem(problem) => matches!(problem.code, Code::NotFound | Code::MethodNotAllowed),
            CallError::Garbled { .. } => true,
            CallError::NotSent(_) | CallError::Ambiguous(_) => false,
        };
        let (shown, wanted) = (gateway_kit::mask(url), needed.component);
        if is_foreign {
            let version = self
                .caller(url)
                .get_json::<serde_json::Value>("/version", &self.trace)
                .await;
            let answered = version
                .ok()
                .and_then(|version| Some(version.get("component")?.as_str()?.to_owned()));
            match answered {
                Some(component) if component != wanted => {
                    return Failure::usage(format!(
                        "a {component} answers at {shown}, and this needs a {wanted}: its address is given with {} or {}",
                        needed.flag, needed.variable
                    ));
                }
                Some(_) => {}
                None => {
                    return Failure::new(
                        crate::exit::UNAVAILABLE,
                        format!("what answers at {shown} is no {wanted}: {error}"),
                    )
                    .with_next_step(&needed.next_step());
                }
            }
        }
        if matches!(error, CallError::Problem(_)) {
            return error.into();
        }
        let failure = Failure::new(crate::exit::UNAVAILABLE, format!("{wanted} at {shown}: {error}"));
        failure.with_next_step(&needed.next_step())
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
    #[arg(long, value_name = "NAME", env = "USER", value_parser = operator)]
    pub operator: String,
    /// Why, 8 to 500 characters, for the audit trail.
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub reason: String,
}

/// Looked at before anything is asked or done.
fn operator(text: &str) -> Result<String, String> {
    let text = text.trim();
    if !(1..=128).contains(&text.chars().count()) || text.chars().any(gateway_kit::is_hidden) {
        return Err("must be 1 to 128 characters that show: no control characters, none of no width".to_owned());
    }
    Ok(text.to_owned())
}

fn reason(text: &str) -> Result<String, &'static str> {
    gateway_kit::reason(text)
        .map(str::to_owned)
        .map_err(|invalid| invalid.reason)
}
