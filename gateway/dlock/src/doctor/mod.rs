//! `dlock doctor`: a deployment looked at from outside.
//!
//! ```text
//! each URL → name, connection, HTTP → version, readiness, debug control, metrics → what its role has to answer
//! all      → versions, clocks, one lineage → a probe: session, acquire, refusal, release
//! stores   → two servers, settings, schema, the roles' rights (PostgreSQL)
//! ```
//!
//! Owns: the checks and the next step that each one names.
//! Does not own: mending anything. It changes nothing but the probe's own key and session, and with `--no-probe` nothing at all.
//! On failure: what cannot be looked at is said as `not checked`, with the reason; it never counts as ok.

mod component;
mod http;
mod locks;
mod metrics;
mod money;
mod postgres;
pub mod report;
mod rights;

use crate::api::{Api, url};
use crate::exit::Failure;
use crate::output::OutputArgs;
use component::{Component, Facts};
use host_kit::Host;
use report::Report;

/// Clocks that are certainly further apart than this are said: instants in audit trails cannot be compared then.
const CLOCK_APART_MS_MAX: i64 = 1_000;

/// Check a deployment from outside, and say what is wrong and how to mend it.
///
/// A line a check: ok, warning, WRONG, or not checked with the reason. Exit code 0 where nothing is wrong, else 1. Only what is
/// named is looked at. It takes one lock of its own (`dlock/doctor/…`) at each lock server and gives it back; `--no-probe` leaves
/// that out.
#[derive(clap::Args)]
pub struct Args {
    /// The lock servers, separated by commas.
    #[arg(long, value_name = "URL[,URL…]", env = "DLOCK_LOCK_SERVER", value_delimiter = ',', value_parser = url)]
    lock_server: Vec<String>,
    /// The payment resources, separated by commas.
    #[arg(long, value_name = "URL[,URL…]", env = "DLOCK_EXECUTOR_PAYMENTS", value_delimiter = ',', value_parser = url)]
    payments: Vec<String>,
    /// The rail proxies, separated by commas.
    #[arg(long, value_name = "URL[,URL…]", env = "DLOCK_EXECUTOR_RAIL_PROXY", value_delimiter = ',', value_parser = url)]
    rail_proxy: Vec<String>,
    /// The executors, separated by commas.
    #[arg(long, value_name = "URL[,URL…]", value_delimiter = ',', value_parser = url)]
    executor: Vec<String>,
    /// Take no lock.
    #[arg(long)]
    no_probe: bool,
    #[command(flatten)]
    stores: postgres::StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub fn run(args: &Args) -> crate::Outcome {
    let named = [&args.lock_server, &args.payments, &args.rail_proxy, &args.executor];
    if named.iter().all(|urls| urls.is_empty()) && !args.stores.is_given() {
        return Err(Failure::usage(
            "nothing to look at: name --lock-server, --payments, --rail-proxy, --executor, --lock-store or --pay-store",
        ));
    }
    args.stores.warn();
    crate::block_on(async {
        let report = look(args).await;
        report.finish(args.output.output)
    })
}

async fn look(args: &Args) -> Report {
    let (api, host, mut report) = (Api::new(), Host::system(), Report::default());
    let of = |role: &'static str, urls: &[String]| urls.iter().map(|url| Component::new(role, url)).collect::<Vec<_>>();
    let mut components = of("lock-server", &args.lock_server);
    components.extend(of("payment-resource", &args.payments));
    components.extend(of("rail-proxy", &args.rail_proxy));
    components.extend(of("payout-executor", &args.executor));

    let mut seen: Vec<(&Component, Facts)> = Vec::new();
    for component in &components {
        let Some(facts) = component.look(&api, &host.clock, &mut report).await else {
            continue;
        };
        match component.role {
            "payment-resource" => money::payments(&api, component, &facts, &mut report).await,
            "rail-proxy" => money::rail(&api, component, &facts, &mut report).await,
            _ => {}
        }
        seen.push((component, facts));
    }
    let servers: Vec<&Component> = seen
        .iter()
        .map(|(component, _)| *component)
        .filter(|c| c.role == "lock-server")
        .collect();
    locks::lineages(&api, &servers, &mut report).await;
    if args.no_probe {
        report.not_checked("lock servers", "probe", "--no-probe");
    } else {
        locks::probe(&api, &host, &servers, &mut report).await;
    }
    together(&seen, &mut report);
    postgres::look(&args.stores, &host.clock, &mut report).await;
    report
}

/// What the components have to agree in.
fn together(seen: &[(&Component, Facts)], report: &mut Report) {
    const ALL: &str = "all components";
    let Some((first, rest)) = seen.split_first() else {
        return;
    };
    let version = |facts: &Facts| facts.version.clone().unwrap_or_default();
    let others: Vec<String> = rest
        .iter()
        .filter(|(_, facts)| version(facts) != version(&first.1))
        .map(|(component, facts)| format!("{} runs {}", component.subject, version(facts)))
        .collect();
    if others.is_empty() {
        report.ok(ALL, "versions", format!("{} everywhere", version(&first.1)));
    } else {
        report.wrong(
            ALL,
            "versions",
            format!("{} runs {}; {}", first.0.subject, version(&first.1), others.join("; ")),
            "finish the roll-out: what was run together was of one version",
        );
    }
    let mut apart = Vec::new();
    for (place, (one, facts)) in seen.iter().enumerate() {
        let Some(ahead) = facts.ahead else {
            report.not_checked(&one.subject, "clock", "it answers without a Date");
            continue;
        };
        let ms = ahead.apart_from_local_ms();
        if ms > CLOCK_APART_MS_MAX {
            apart.push(format!("{} and this machine at least {ms} ms", one.subject));
        }
        for (other, others) in &seen[place + 1..] {
            let ms = others.ahead.map_or(0, |others| others.apart_ms(ahead));
            if ms > CLOCK_APART_MS_MAX {
                apart.push(format!("{} and {} at least {ms} ms", one.subject, other.subject));
            }
        }
    }
    if apart.is_empty() {
        report.ok(ALL, "clocks", "agree, as far as answers of whole seconds can tell");
    } else {
        report.warning(
            ALL,
            "clocks",
            format!("apart: {}", apart.join("; ")),
            "mend time synchronisation there: no lease ends by these clocks, but instants of audit trails cannot be compared",
        );
    }
    report.not_checked(
        ALL,
        "time-outs",
        "no route shows them; rail.read-timeout must be below executor.rail-timeout: compare --print-config of both",
    );
}
