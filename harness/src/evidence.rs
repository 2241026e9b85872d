//! Collecting a run's evidence over HTTP, the way anybody could.
//!
//! Owns: asking every component for its exported tables, page by page, and the rail for its own book.
//! Does not own: judging it.
//! On failure: [`RunError`]; evidence that cannot be had is no verdict.

use crate::history::Call;
use crate::model::{Account, Collected, Evidence, HighWater, LockEvent, RailEntry, RailStats};
use crate::stack::{Links, RunError, Stack, histories};
use actor_kit::TraceContext;
use host_kit::Host;
use http_client::{
    CallError, Caller, ClientOptions, ExportFormat, LockServerApi, PaymentApi, PayoutFilter, RailProxyApi, RailStubApi,
};
use http_contract::Page;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// How long the harness waits for one answer.
const CALL_WITHIN: Duration = Duration::from_secs(10);
/// The largest page of a list.
const PAGE: u32 = 1000;

/// The harness's own clients of a stack.
#[derive(Clone, Debug)]
pub struct Apis {
    /// The lock server.
    pub locks: LockServerApi,
    /// The payment resource.
    pub payments: PaymentApi,
    /// The rail proxy.
    pub rail: RailProxyApi,
    /// The rail itself.
    pub stub: RailStubApi,
    host: Host,
}

impl Apis {
    /// Clients of these components.
    #[must_use]
    pub fn new(links: &Links, host: &Host) -> Self {
        let client = http_client::client(&ClientOptions::default());
        let caller = |url: &str| Caller::new(client.clone(), url, CALL_WITHIN);
        Self {
            locks: LockServerApi::new(caller(&links.lock_server)),
            payments: PaymentApi::new(caller(&links.payments)),
            rail: RailProxyApi::new(caller(&links.rail_proxy)),
            stub: RailStubApi::new(caller(&links.rail_stub)),
            host: host.clone(),
        }
    }

    /// A new trace.
    #[must_use]
    pub fn trace(&self) -> TraceContext {
        TraceContext::root(&self.host.random)
    }
}

/// Turns what came over the wire into the judge's own type.
fn judged<T: DeserializeOwned>(what: &str, value: impl Serialize) -> Result<T, RunError> {
    serde_json::to_value(value)
        .and_then(serde_json::from_value)
        .map_err(|error| RunError::Other(format!("{what} cannot be judged: {error}")))
}

/// Reads a list to its end.
async fn all<T>(
    what: &str,
    mut page: impl AsyncFnMut(Option<String>) -> Result<Page<T>, CallError>,
) -> Result<Vec<T>, RunError> {
    let (mut items, mut cursor) = (Vec::new(), None);
    loop {
        let next = page(cursor).await.map_err(RunError::call(what))?;
        items.extend(next.items);
        match next.next_cursor {
            Some(more) => cursor = Some(more),
            None => return Ok(items),
        }
    }
}

/// Collects everything from a stack.
///
/// # Errors
/// When a component does not answer or a history cannot be read.
pub async fn collect(stack: &dyn Stack, apis: &Apis) -> Result<Evidence, RunError> {
    let trace = apis.trace();
    let payouts = all("listing payouts", async |cursor| {
        apis.payments
            .payouts(&PayoutFilter::default(), PAGE, cursor.as_deref(), &trace)
            .await
    })
    .await?;
    let accounts = all("listing accounts", async |cursor| {
        apis.payments.accounts(PAGE, cursor.as_deref(), &trace).await
    })
    .await?;
    let submissions = all("listing submissions", async |cursor| {
        apis.rail.submissions(None, PAGE, cursor.as_deref(), &trace).await
    })
    .await?;
    let mut evidence = Evidence {
        lock_events: judged("the audit trail", audit(apis).await?)?,
        lost_events: lost(stack.dir())?,
        submissions: judged("submissions", &submissions)?,
        calls: histories(stack)?,
        collected: Some(now(&apis.host)),
        nodes: stack.node_events(),
        ..Evidence::default()
    };
    for payout in &payouts {
        let id = payout.payout_id.as_str();
        let history = apis
            .payments
            .payout_history(id, &trace)
            .await
            .map_err(RunError::call(format!("history of {id}")))?;
        evidence
            .transitions
            .extend(judged::<Vec<_>>("a payout's history", history.items)?);
        let book = apis
            .stub
            .book(id, &trace)
            .await
            .map_err(RunError::call(format!("the rail's book on {id}")))?;
        evidence.rail_book.push(judged::<RailEntry>("the rail's book", book)?);
    }
    for account in &accounts {
        let id = account.account_id.as_str();
        match apis.rail.high_water(id, &trace).await {
            Ok(mark) => evidence.high_water.push(HighWater {
                account_id: mark.account_id,
                highest_token: mark.highest_token,
            }),
            // An account that never submitted has no mark.
            Err(CallError::Problem(problem)) if problem.status == 404 => {}
            Err(error) => return Err(RunError::call(format!("the rail's mark of {id}"))(error)),
        }
    }
    evidence.payouts = judged("payouts", payouts)?;
    evidence.accounts = judged("accounts", accounts)?;
    evidence.ledger = ledger(apis).await?;
    evidence.rail_stats = judged::<RailStats>(
        "the rail's totals",
        apis.stub
            .stats(&trace)
            .await
            .map_err(RunError::call("the rail's totals"))?,
    )?;
    Ok(evidence)
}

/// Where a run keeps the facts that a restore of its lock store took back, one JSON object a line.
const LOST: &str = "lost-facts.jsonl";

/// Keeps facts that a restore is about to take back, so that what was done under them can still be judged.
///
/// # Errors
/// When they cannot be written.
pub fn keep_lost(dir: &Path, facts: &[LockEvent]) -> Result<(), RunError> {
    let path = dir.join(LOST);
    let io = || RunError::io(format!("writing {}", path.display()));
    let mut file = OpenOptions::new().create(true).append(true).open(&path).map_err(io())?;
    for fact in facts {
        let line = serde_json::to_string(fact).map_err(|error| RunError::Other(error.to_string()))?;
        writeln!(file, "{line}").map_err(io())?;
    }
    Ok(())
}

/// The facts that were kept by [`keep_lost`].
pub(crate) fn lost(dir: &Path) -> Result<Vec<LockEvent>, RunError> {
    let path = dir.join(LOST);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = std::fs::read_to_string(&path).map_err(RunError::io(format!("reading {}", path.display())))?;
    text.lines()
        .map(|line| serde_json::from_str(line).map_err(|error| RunError::Other(format!("lost fact {line:?}: {error}"))))
        .collect()
}

/// Collects what a lock server alone can show, beside what its clients saw.
///
/// # Errors
/// When it does not answer.
pub async fn collect_locks(apis: &Apis, calls: Vec<Call>) -> Result<Evidence, RunError> {
    Ok(Evidence {
        lock_events: judged("the audit trail", audit(apis).await?)?,
        calls,
        collected: Some(now(&apis.host)),
        ..Evidence::default()
    })
}

fn now(host: &Host) -> Collected {
    Collected {
        boot_us: u64::try_from(host.clock.boot().as_micros()).unwrap_or(u64::MAX),
        wall_ms: host.clock.wall_ms(),
    }
}

async fn audit(apis: &Apis) -> Result<Vec<http_contract::lock::AuditRow>, RunError> {
    let mut rows: Vec<http_contract::lock::AuditRow> = Vec::new();
    loop {
        let after = rows.last().map_or(0, |row| row.seq);
        let page = apis
            .locks
            .audit(after, PAGE, &apis.trace())
            .await
            .map_err(RunError::call("the audit trail"))?;
        if page.items.is_empty() {
            return Ok(rows);
        }
        rows.extend(page.items);
    }
}

/// The ledger as plain-text accounting, for a judge that is not ours; every account's stored balance is demanded of it.
///
/// # Errors
/// When the payment resource does not answer.
pub async fn beancount(apis: &Apis, accounts: &[Account]) -> Result<String, RunError> {
    let text = apis
        .payments
        .export(ExportFormat::Beancount, &apis.trace())
        .await
        .map_err(RunError::call("exporting the ledger for beancount"))?;
    Ok(format!("{text}\n{}", crate::report::balances(accounts)))
}

async fn ledger(apis: &Apis) -> Result<Vec<crate::model::LedgerEntry>, RunError> {
    let text = apis
        .payments
        .export(ExportFormat::Jsonl, &apis.trace())
        .await
        .map_err(RunError::call("exporting the ledger"))?;
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            serde_json::from_str(line).map_err(|error| RunError::Other(format!("ledger line {line:?}: {error}")))
        })
        .collect()
}
