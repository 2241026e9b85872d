//! What is asked of every component: that it is reached, is what it was named as, is ready, and what it was built as.

use super::http::{Ahead, CONNECT_WITHIN, get};
use super::metrics::Metrics;
use super::report::Report;
use crate::api::Api;
use http_client::CallError;
use serde::Deserialize;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// A component as it was named on the command line.
pub struct Component {
    /// `lock-server`, `payment-resource`, …: what its `/version` has to say.
    pub role: &'static str,
    /// Its address.
    pub url: String,
    /// The same without secrets, with the role: what the report calls it.
    pub subject: String,
}

/// What was seen of a component that answers.
pub struct Facts {
    /// Its version.
    pub version: Option<String>,
    /// What its clock is ahead of the local one.
    pub ahead: Option<Ahead>,
    /// Its metrics; empty where there are none.
    pub metrics: Metrics,
}

#[derive(Deserialize)]
struct Version {
    component: String,
    version: String,
    lab: bool,
}

impl Component {
    /// What was named as `role`.
    pub fn new(role: &'static str, url: &str) -> Self {
        Self {
            role,
            url: url.to_owned(),
            subject: format!("{role} {}", gateway_kit::mask(url)),
        }
    }

    /// Looks at it. None where nothing of the right kind answers: nothing else can be asked of it then.
    pub async fn look(&self, api: &Api, clock: &host_kit::Clock, report: &mut Report) -> Option<Facts> {
        let at = &self.subject;
        if !self.reach(report).await {
            return None;
        }
        let ask = async |path: &str| get(api.client(), clock, &format!("{}{path}", self.url), &api.trace).await;
        let version = match ask("/version").await {
            Ok(seen) => seen,
            Err(error) => {
                let next = "something listens there that does not answer HTTP in time: look at its log, and for a proxy in between";
                report.wrong(at, "http", format!("no answer: {error}"), next);
                return None;
            }
        };
        let Ok(said) = serde_json::from_str::<Version>(&version.body) else {
            report.wrong(
                at,
                "http",
                format!("/version answered {} and is none of dlock's", version.status),
                format!("name the address of the {} itself, without a path", self.role),
            );
            return None;
        };
        if said.component != self.role {
            report.wrong(
                at,
                "http",
                format!("this is a {}", said.component),
                format!("name the address of the {} here", self.role),
            );
            return None;
        }
        report.ok(at, "http", "answers");
        if said.lab {
            report.warning(
                at,
                "build",
                format!(
                    "version {}, a lab build: fences can be switched off in it",
                    said.version
                ),
                "in production run the build without the feature lab (the image does)",
            );
        } else {
            report.ok(at, "build", format!("version {}, without the lab", said.version));
        }
        self.ready(ask("/readyz").await, report);
        self.debug_control(api, report).await;
        let metrics = match ask("/metrics").await {
            Ok(seen) if seen.status == 200 => Metrics::parse(&seen.body),
            Ok(seen) => {
                report.not_checked(at, "metrics", format!("/metrics answers {}", seen.status));
                Metrics::default()
            }
            Err(error) => {
                report.not_checked(at, "metrics", error);
                Metrics::default()
            }
        };
        self.process(&metrics, report);
        Some(Facts {
            version: Some(said.version),
            ahead: version.ahead,
            metrics,
        })
    }

    /// The name, then the connection: the step that fails says where to look.
    async fn reach(&self, report: &mut Report) -> bool {
        let at = &self.subject;
        let uri: awc::http::Uri = match self.url.parse() {
            Ok(uri) => uri,
            Err(error) => {
                report.wrong(
                    at,
                    "name",
                    format!("no address: {error}"),
                    "write it as http://HOST:PORT",
                );
                return false;
            }
        };
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = uri
            .port_u16()
            .unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
        let addresses: Vec<_> = match timeout(CONNECT_WITHIN, lookup_host((host, port))).await {
            Ok(Ok(found)) => found.collect(),
            Ok(Err(error)) => {
                report.wrong(
                    at,
                    "name",
                    format!("{host} has no address: {error}"),
                    "mend the name, or the resolver of this machine (/etc/resolv.conf, the cluster's DNS)",
                );
                return false;
            }
            Err(_) => {
                report.wrong(
                    at,
                    "name",
                    format!("{host}: the resolver does not answer"),
                    "look at /etc/resolv.conf",
                );
                return false;
            }
        };
        let mut said = "it has no address".to_owned();
        for address in &addresses {
            match timeout(CONNECT_WITHIN, TcpStream::connect(address)).await {
                Ok(Ok(_)) => {
                    report.ok(at, "connect", address.to_string());
                    return true;
                }
                Ok(Err(error)) => said = format!("{address}: {error}"),
                Err(_) => said = format!("{address}: no answer in {}s", CONNECT_WITHIN.as_secs()),
            }
        }
        let next = if said.contains("refused") {
            "nothing listens there: start it, or look where it listens (its log, \"event\":\"listening\")"
        } else {
            "packets do not come back: look at the firewall or network policy between here and there"
        };
        report.wrong(at, "connect", said, next);
        false
    }

    fn ready(&self, answer: Result<super::http::Seen, String>, report: &mut Report) {
        let at = &self.subject;
        let body = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap_or_default();
        match answer {
            Ok(seen) if seen.status == 200 => {
                let checks = body(&seen.body)["checks"].to_string();
                report.ok(at, "ready", checks.replace(['[', ']', '"'], "").replace(',', ", "));
            }
            Ok(seen) => {
                let said = body(&seen.body);
                let failed = said["failed"].as_object().map_or_else(
                    || format!("/readyz answers {}", seen.status),
                    |failed| {
                        let each = failed
                            .iter()
                            .map(|(name, why)| format!("{name}: {}", why.as_str().unwrap_or("")));
                        each.collect::<Vec<_>>().join("; ")
                    },
                );
                let next = if failed.contains("lineage") {
                    "docs/restore.md says which floor to set; dlock lineage shows the doubt"
                } else if failed.contains("drain") {
                    "it is being stopped; wait for its successor"
                } else if failed.contains("lock-session") {
                    "it has no session at a lock server: see the checks of the lock servers"
                } else {
                    "look at the store of this component and at its log"
                };
                report.wrong(at, "ready", format!("not ready: {failed}"), next);
            }
            Err(error) => report.wrong(at, "ready", error, "look at its log"),
        }
    }

    /// Resuming an actor that there is none of does nothing, and tells whether the route is served.
    async fn debug_control(&self, api: &Api, report: &mut Report) {
        let at = &self.subject;
        let path = format!("/debug/actors/dlock-doctor-{}/resume", api.trace.trace_id_hex());
        let nothing = serde_json::json!({});
        let asked = api.plain(&self.url);
        match asked
            .post_json::<_, serde_json::Value>(&path, &nothing, &api.trace)
            .await
        {
            Err(CallError::Problem(problem)) if problem.status == 404 && problem.detail == "no such route" => {
                report.ok(at, "debug.control", "off");
            }
            Ok(_) | Err(CallError::Problem(_)) => report.wrong(
                at,
                "debug.control",
                "on: whoever reaches the port may pause actors",
                "set debug.control=false and restart it",
            ),
            Err(error) => report.not_checked(at, "debug.control", error.to_string()),
        }
    }

    fn process(&self, metrics: &Metrics, report: &mut Report) {
        let at = &self.subject;
        let (open, most) = (metrics.get("process_open_fds"), metrics.get("process_max_fds"));
        if let (Some(open), Some(most)) = (open, most)
            && open > 0.8 * most
        {
            report.warning(
                at,
                "file descriptors",
                format!("{open} of {most} in use"),
                "raise the limit (ulimit -n, LimitNOFILE), or find who keeps so many connections",
            );
        }
        if let Some(restarts) = metrics.sum("actor_restarts_total")
            && restarts > 0.0
        {
            report.warning(
                at,
                "actors",
                format!("{restarts} actors were restarted after a panic since the start"),
                "its log has each one (actor_panicked); report it as a defect",
            );
        }
    }
}
