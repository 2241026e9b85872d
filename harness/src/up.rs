//! `dlock up`: everything on the embedded stores, with payouts trickling in, to look at and play with.
//!
//! Owns: the components and two workers as children on fixed ports, synthetic accounts, the trickle, the status line, the
//! list of what a Prometheus is to scrape.
//! Does not own: the components; the data, which stays where it is and is used again.
//! On failure: a child that falls ends everything, with its log named.

use crate::evidence::Apis;
use crate::scenario::CURRENCY;
use crate::servers::Stores;
use crate::stack::processes::{CONSOLE, Lab, Ports, ProcessStack};
use crate::stack::{
    LOCK_SERVER, Links, NodeState, PAYMENT_RESOURCE, RAIL_PROXY, RAIL_STUB, Role, RunError, Stack, StackSpec,
    WorkerSpec,
};
use host_kit::Host;
use http_contract::payment::{CreatePayoutBody, CreditBody, Creditor, OpenAccountBody};
use http_contract::rail::FaultPlan;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// How many synthetic accounts there are.
const ACCOUNTS: u64 = 10;
/// What each opens with, and is topped up with when it runs low.
const OPENING_MINOR: i64 = 1_000_000;
/// Below this an account is topped up.
const LOW_MINOR: i64 = 100_000;
/// How often a payout arrives.
const TRICKLE: Duration = Duration::from_millis(500);
/// How often children and payouts are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// The share of payouts that the rail declines.
const DECLINE_RATE: f64 = 0.02;

/// The list of targets for Prometheus (`file_sd_configs`), below [`UpPlan::dir`].
pub const TARGETS_FILE: &str = "prometheus-targets.json";

/// The job and port label of a worker, as the project's Prometheus configuration names them.
const WORKER_JOB: &str = "payout-executor";
const ENDPOINT: &str = "http-metrics";

/// What is to be started.
#[derive(Clone, Debug)]
pub struct UpPlan {
    /// Where data and logs are.
    pub dir: PathBuf,
    /// The first of seven ports.
    pub base_port: u16,
}

/// Starts everything, lets payouts trickle in until `stop` is ready, and stops everything in order. `print` gets what
/// stays to be read, `status` the latest count.
///
/// # Errors
/// When a component does not start, falls, or does not answer.
pub async fn run(
    lab: &Lab,
    plan: &UpPlan,
    print: &dyn Fn(&str),
    status: &dyn Fn(&str),
    stop: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let port = |n: u16| {
        plan.base_port
            .checked_add(n)
            .ok_or_else(|| RunError::Other(format!("port {} + {n} does not exist", plan.base_port)))
    };
    let ports = Ports {
        lock_server: port(0)?,
        payments: port(1)?,
        rail_proxy: port(2)?,
        rail_stub: port(3)?,
    };
    let workers = [("worker-1", port(4)?), ("worker-2", port(5)?)];
    let console = port(6)?;
    let spec = StackSpec {
        stores: Stores::default(),
        payment_fencing: true,
        rail_fencing: true,
        wired: None,
        settings: BTreeMap::new(),
    };
    let named = [
        (LOCK_SERVER, ports.lock_server),
        (PAYMENT_RESOURCE, ports.payments),
        (RAIL_PROXY, ports.rail_proxy),
        (RAIL_STUB, ports.rail_stub),
        workers[0],
        workers[1],
        (CONSOLE, console),
    ];
    are_free(&named)?;
    let mut stop = std::pin::pin!(stop);
    let started = async {
        let stack = lab.stack(&plan.dir, spec, Some(ports)).await?;
        for (name, port) in workers {
            let mut worker = WorkerSpec::new(name, Role::Both).with("executor.concurrency", "4");
            // It would grow without a bound, and nobody judges this run.
            worker.history = false;
            worker.listen = Some(format!("127.0.0.1:{port}"));
            stack.worker(worker).await?;
        }
        let executors = workers.map(|(_, port)| format!("http://127.0.0.1:{port}"));
        stack.console(Some(console), &executors, None).await?;
        Ok::<_, RunError>(stack)
    };
    let stack = tokio::select! {
        biased;
        () = &mut stop => return Ok(()),
        stack = started => stack?,
    };
    announce(&stack, plan, &workers, console, print);
    let apis = Apis::new(&stack.links(), lab.host());
    let running = async {
        let scraped = targets(&stack.links(), &workers);
        std::fs::write(plan.dir.join(TARGETS_FILE), format!("{scraped:#}\n"))
            .map_err(RunError::io("writing the list of targets for Prometheus"))?;
        live(&stack, &apis, status).await
    };
    let ended = tokio::select! {
        biased;
        () = &mut stop => Ok(()),
        ended = running => ended,
    };
    print("stopping");
    stack.stop().await?;
    print("stopped");
    ended
}

/// Says which port is in use before anything is started: a child's log would tell of it among other things, or be the
/// log of the one that has the port.
fn are_free(ports: &[(&str, u16)]) -> Result<(), RunError> {
    let taken: Vec<String> = ports
        .iter()
        .filter_map(|(name, port)| {
            let error = std::net::TcpListener::bind(("127.0.0.1", *port)).err()?;
            Some(format!("port {port} for {name}: {error}"))
        })
        .collect();
    if taken.is_empty() {
        return Ok(());
    }
    Err(RunError::Other(format!(
        "{}; nothing was started; other ports are taken with --base-port",
        taken.join("; ")
    )))
}

fn announce(stack: &ProcessStack, plan: &UpPlan, workers: &[(&str, u16)], console: u16, print: &dyn Fn(&str)) {
    let links = stack.links();
    let mut urls = vec![
        (LOCK_SERVER, links.lock_server),
        (PAYMENT_RESOURCE, links.payments),
        (RAIL_PROXY, links.rail_proxy),
        (RAIL_STUB, links.rail_stub),
    ];
    urls.extend(
        workers
            .iter()
            .map(|(name, port)| (*name, format!("http://127.0.0.1:{port}"))),
    );
    urls.push((CONSOLE, format!("http://127.0.0.1:{console}")));
    let ready: BTreeMap<String, Option<Duration>> = stack.nodes().into_iter().collect();
    for (name, url) in urls {
        let ready = ready.get(name).copied().flatten().unwrap_or_default();
        print(&format!("{name:<17} {url}  (ready after {} ms)", ready.as_millis()));
    }
    print(&format!("data and logs     {}", plan.dir.display()));
    print(&format!("for Prometheus    {}", plan.dir.join(TARGETS_FILE).display()));
    print("The console shows it all; OpenAPI at /docs of the components; Ctrl-C ends everything.");
}

/// What is to be scraped, as `file_sd_configs` reads it. The rail stub is the environment and has no metrics.
fn targets(links: &Links, workers: &[(&str, u16)]) -> serde_json::Value {
    let address = |url: &str| url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mut groups = vec![
        (LOCK_SERVER, vec![address(&links.lock_server)]),
        (PAYMENT_RESOURCE, vec![address(&links.payments)]),
        (RAIL_PROXY, vec![address(&links.rail_proxy)]),
    ];
    let workers = workers.iter().map(|(_, port)| format!("127.0.0.1:{port}")).collect();
    groups.push((WORKER_JOB, workers));
    groups
        .into_iter()
        .map(|(job, targets)| json!({"targets": targets, "labels": {"job": job, "endpoint": ENDPOINT}}))
        .collect()
}

/// Seeds the accounts, then payouts arrive until a child falls.
async fn live(stack: &ProcessStack, apis: &Apis, status: &dyn Fn(&str)) -> Result<(), RunError> {
    let host = stack.host();
    for n in 1..=ACCOUNTS {
        let body = OpenAccountBody {
            account_id: account(n),
            currency: CURRENCY.to_owned(),
            opening_balance_minor: OPENING_MINOR,
        };
        apis.payments
            .open_account(&body, &apis.trace())
            .await
            .map_err(RunError::call("opening the accounts"))?;
    }
    let plan = FaultPlan {
        rates: BTreeMap::from([("decline".to_owned(), DECLINE_RATE)]),
        ..FaultPlan::default()
    };
    apis.stub
        .set_faults(&plan, &apis.trace())
        .await
        .map_err(RunError::call("setting the rail's rate of declines"))?;
    let mut asked = 0_u64;
    let mut look_at = host.clock.mono();
    loop {
        // A restarting component or a moment of overload is no reason to end: the payout is just not asked for.
        match trickle(host, apis).await {
            Ok(()) => asked += 1,
            Err(error) => status(&format!("no payout asked for: {error}")),
        }
        if host.clock.mono() >= look_at {
            look_at = host.clock.mono() + LOOK;
            if let Some((node, state)) = stack.fallen() {
                let log = stack.dir().join(format!("{node}.log"));
                return Err(RunError::Other(format!(
                    "{node} {}, and everything else was stopped; its log is {}",
                    ended(state),
                    log.display()
                )));
            }
            status(&format!("{asked} payouts asked for now; {}", states(apis).await));
        }
        host.clock.sleep(TRICKLE).await;
    }
}

fn ended(state: NodeState) -> String {
    match state {
        NodeState::Exited(code) => format!("ended with exit code {code}"),
        NodeState::Signalled(signal) => format!("was killed by signal {signal}"),
        NodeState::Running | NodeState::Stopped => "does not run".to_owned(),
    }
}

fn account(n: u64) -> String {
    format!("demo-{n:02}")
}

async fn trickle(host: &Host, apis: &Apis) -> Result<(), http_client::CallError> {
    let n = 1 + host.random.below(ACCOUNTS);
    let (account_id, trace) = (account(n), apis.trace());
    let account = apis.payments.account(&account_id, &trace).await?;
    if account.available_minor < LOW_MINOR {
        let body = CreditBody {
            amount_minor: OPENING_MINOR,
            reference: "Synthetic top-up".to_owned(),
        };
        apis.payments
            .credit(&account_id, &host.ids.prefixed("topup"), &body, &trace)
            .await?;
    }
    let body = CreatePayoutBody {
        payout_id: None,
        account_id,
        amount_minor: 1_000 + i64::try_from(host.random.below(50_000)).unwrap_or(0),
        currency: CURRENCY.to_owned(),
        creditor: Creditor {
            name: format!("Creditor {n}"),
            account: format!("XX00TEST{n:012}"),
        },
        reference: Some("Synthetic payout".to_owned()),
    };
    apis.payments
        .create_payout(&host.ids.prefixed("up"), &body, &trace)
        .await
        .map(drop)
}

/// How many payouts stand where, by the payment resource's own metric.
async fn states(apis: &Apis) -> String {
    match apis.payments.caller().text("/metrics", &apis.trace()).await {
        Ok(text) => {
            let counts: Vec<String> = text.lines().filter_map(count_of_state).collect();
            counts.join(", ")
        }
        Err(error) => format!("no metrics: {error}"),
    }
}

/// `payout_state{state="POSTED"} 12` as `12 POSTED`.
fn count_of_state(line: &str) -> Option<String> {
    let rest = line.strip_prefix("payout_state{")?;
    let state = rest.split_once("state=\"")?.1.split_once('"')?.0;
    let count = rest.rsplit_once(' ')?.1;
    Some(format!("{count} {state}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_is_told_of_every_component_by_its_job() {
        let links = Links {
            lock_server: "http://127.0.0.1:7400".to_owned(),
            payments: "http://127.0.0.1:7401".to_owned(),
            rail_proxy: "http://127.0.0.1:7402".to_owned(),
            rail_stub: "http://127.0.0.1:7403".to_owned(),
        };
        let list = targets(&links, &[("worker-1", 7404), ("worker-2", 7405)]);
        let seen: Vec<(&str, String)> = list
            .as_array()
            .unwrap()
            .iter()
            .map(|group| (group["labels"]["job"].as_str().unwrap(), group["targets"].to_string()))
            .collect();
        assert_eq!(
            seen,
            [
                ("lock-server", r#"["127.0.0.1:7400"]"#.to_owned()),
                ("payment-resource", r#"["127.0.0.1:7401"]"#.to_owned()),
                ("rail-proxy", r#"["127.0.0.1:7402"]"#.to_owned()),
                ("payout-executor", r#"["127.0.0.1:7404","127.0.0.1:7405"]"#.to_owned()),
            ]
        );
    }

    #[test]
    fn the_status_reads_the_metric() {
        assert_eq!(
            count_of_state("payout_state{state=\"POSTED\"} 12").as_deref(),
            Some("12 POSTED")
        );
        assert_eq!(count_of_state("payout_duration_seconds_sum 1"), None);
    }
}
