//! The benchmark: how many lock operations one lock server does, and how long each takes.
//!
//! Owns: the loads (open loop, closed loop, many live keys), latencies counted from the *intended* start, so that a
//! slow answer is not hidden by the requests it kept from being sent (no coordinated omission), the results as data.
//! Does not own: the server that is measured. The driver shares its cores, which the results say.
//! On failure: errors of single calls are counted and shown; [`RunError`] when nothing could be measured.

mod live;
mod load;
mod server;
mod trace_cost;

pub use trace_cost::{Round, TraceCost};

use crate::stack::RunError;
use crate::stack::processes::Lab;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// An existing lock server; a child on the embedded store where there is none.
    pub lock_server: Option<String>,
    /// The child's store, where it is not the embedded one.
    pub store: Option<String>,
    /// Where the child's store is.
    pub dir: PathBuf,
    /// Acquire+release pairs a second in the open loop.
    pub rate: u32,
    /// Heartbeats a second in the open loop.
    pub heartbeat_rate: u32,
    /// Numbers of clients of the closed loop.
    pub clients: Vec<usize>,
    /// How long each load runs.
    pub for_: Duration,
    /// How long each load runs before it is measured.
    pub warm_up: Duration,
    /// Many live keys instead of the loads above.
    pub live: Option<LivePlan>,
    /// What the trace costs, in this many rounds, instead of the loads above.
    pub trace_cost: Option<usize>,
    /// Settings of the child.
    pub settings: BTreeMap<String, String>,
}

/// The capacity of a trace that is measured: the default of `debug.trace-capacity`.
const TRACE_CAPACITY: &str = "4096";

/// Many live keys and sessions at once.
#[derive(Clone, Copy, Debug)]
pub struct LivePlan {
    /// Keys held at once.
    pub keys: usize,
    /// Sessions that hold them and heartbeat.
    pub sessions: usize,
    /// Each session's interval.
    pub heartbeat: Duration,
}

/// What was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchReport {
    /// The store behind the server.
    pub store: String,
    /// The machine's cores, shared by server and driver.
    pub cores: usize,
    /// How long each load ran.
    pub for_ms: u64,
    /// The open loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_loop: Option<OpenLoop>,
    /// The closed loop, by number of clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub closed_loop: Vec<ClosedLoop>,
    /// How much faster the most clients are than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_commit_gain: Option<f64>,
    /// Many live keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_keys: Option<LiveKeys>,
    /// What the trace costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_cost: Option<TraceCost>,
}

/// Latencies in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many were measured.
    pub count: u64,
    /// Half are below.
    pub p50_us: u64,
    /// Nine of ten are below.
    pub p90_us: u64,
    /// 99 of a hundred are below.
    pub p99_us: u64,
    /// 999 of a thousand are below.
    pub p999_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// The open loop: calls begin when they are due, whatever became of those before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpenLoop {
    /// Acquire+release pairs that were due each second.
    pub rate_per_s: u32,
    /// Heartbeats that were due each second.
    pub heartbeat_rate_per_s: u32,
    /// Acquire, from its intended start.
    pub acquire: Latency,
    /// Release, from the moment the grant was there.
    pub release: Latency,
    /// Acquire and release together, from the intended start.
    pub pair: Latency,
    /// Heartbeat, from its intended start.
    pub heartbeat: Latency,
    /// Calls that failed, by how.
    pub errors: BTreeMap<String, u64>,
    /// Jobs per durable commit.
    pub batches: Vec<BatchSizes>,
}

/// The closed loop: each client begins the next pair when the last one is done. It finds the most there is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClosedLoop {
    /// Clients at once.
    pub clients: usize,
    /// Pairs done each second.
    pub pairs_per_s: f64,
    /// One pair. (Closed loop: this hides queueing by its nature; read the open loop for latency.)
    pub pair: Latency,
    /// Calls that failed, by how.
    pub errors: BTreeMap<String, u64>,
    /// Jobs per durable commit.
    pub batches: Vec<BatchSizes>,
}

/// How many jobs one durable commit carried, from the server's metric `lock_store_batch_size`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchSizes {
    /// Which operation.
    pub op: String,
    /// Commits.
    pub batches: u64,
    /// Jobs per commit on average.
    pub mean: f64,
}

/// Many live keys.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LiveKeys {
    /// Keys held at once.
    pub keys: usize,
    /// Sessions that held them.
    pub sessions: usize,
    /// Each session's interval.
    pub heartbeat_ms: u64,
    /// Heartbeats that were answered.
    pub heartbeats: u64,
    /// Heartbeats, from their intended start.
    pub heartbeat: Latency,
    /// Calls that failed, by how.
    pub errors: BTreeMap<String, u64>,
    /// Grants still held at the end, by the servers' own answers.
    pub held_at_end: usize,
    /// The server's resident memory before, in KiB; nothing for a server that is no child.
    pub rss_before_kib: Option<u64>,
    /// The server's resident memory with all keys live, in KiB.
    pub rss_live_kib: Option<u64>,
    /// Bytes of the server's memory per live key (and its session).
    pub bytes_per_live_key: Option<u64>,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            count: histogram.len(),
            p50_us: histogram.value_at_quantile(0.5),
            p90_us: histogram.value_at_quantile(0.9),
            p99_us: histogram.value_at_quantile(0.99),
            p999_us: histogram.value_at_quantile(0.999),
            max_us: histogram.max(),
        }
    }
}

/// Runs the plan.
///
/// # Errors
/// When there is no server to be measured.
pub async fn run(lab: &Lab, plan: &BenchPlan, say: &dyn Fn(&str)) -> Result<BenchReport, RunError> {
    let new = |store: String| BenchReport {
        store,
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        for_ms: u64::try_from(plan.for_.as_millis()).unwrap_or(u64::MAX),
        open_loop: None,
        closed_loop: Vec::new(),
        group_commit_gain: None,
        live_keys: None,
        trace_cost: None,
    };
    if let Some(rounds) = plan.trace_cost {
        let mut report = new(plan.store.clone().unwrap_or_else(|| "sqlite".to_owned()));
        report.trace_cost = Some(trace_cost::run(lab, plan, rounds, say).await?);
        return Ok(report);
    }
    let server = server::Server::start(lab, plan).await?;
    let mut report = new(server.store());
    if let Some(live) = plan.live {
        report.live_keys = Some(live::run(&server, lab.host(), live, plan.for_, say).await?);
    } else {
        say(&format!(
            "open loop: {} acquire+release and {} heartbeats a second",
            plan.rate, plan.heartbeat_rate
        ));
        report.open_loop = Some(load::open_loop(&server, lab.host(), plan).await?);
        for clients in &plan.clients {
            say(&format!("closed loop: {clients} clients"));
            report
                .closed_loop
                .push(load::closed_loop(&server, lab.host(), *clients, plan).await?);
        }
        report.group_commit_gain = gain(&report.closed_loop);
    }
    server.stop().await?;
    Ok(report)
}

/// How much more the most clients get done than a single one.
fn gain(loops: &[ClosedLoop]) -> Option<f64> {
    let one = loops.iter().find(|run| run.clients == 1)?;
    let most = loops.iter().max_by_key(|run| run.clients)?;
    (one.pairs_per_s > 0.0 && most.clients > 1).then(|| most.pairs_per_s / one.pairs_per_s)
}

/// A histogram for microseconds up to two minutes.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 120_000_000, 3).expect("the bounds are in order and three digits are allowed")
}

impl BenchReport {
    /// The results for a human.
    #[must_use]
    pub fn text(&self) -> String {
        use std::fmt::Write as _;
        let mut text = format!(
            "lock-server on {}, driver and server share {} cores, {} ms per load\n",
            self.store, self.cores, self.for_ms
        );
        // Writing into a String cannot fail.
        let line = |text: &mut String, what: &str, l: &Latency| {
            let _ = writeln!(
                text,
                "  {what:<18} n {:>8}  p50 {:>8} us  p90 {:>8} us  p99 {:>8} us  p99.9 {:>8} us  max {:>8} us",
                l.count, l.p50_us, l.p90_us, l.p99_us, l.p999_us, l.max_us
            );
        };
        if let Some(open) = &self.open_loop {
            let _ = writeln!(
                text,
                "\nopen loop, {} acquire+release/s and {} heartbeats/s, from the intended start",
                open.rate_per_s, open.heartbeat_rate_per_s
            );
            line(&mut text, "acquire", &open.acquire);
            line(&mut text, "release", &open.release);
            line(&mut text, "acquire+release", &open.pair);
            line(&mut text, "heartbeat", &open.heartbeat);
            let _ = writeln!(text, "  errors {:?}", open.errors);
            batches(&mut text, &open.batches);
        }
        for run in &self.closed_loop {
            let _ = writeln!(
                text,
                "\nclosed loop, {} clients: {:.0} acquire+release/s",
                run.clients, run.pairs_per_s
            );
            line(&mut text, "acquire+release", &run.pair);
            let _ = writeln!(text, "  errors {:?}", run.errors);
            batches(&mut text, &run.batches);
        }
        if let Some(gain) = self.group_commit_gain {
            let _ = writeln!(text, "\nmost clients against one: {gain:.1} x");
        }
        if let Some(cost) = &self.trace_cost {
            cost.text(&mut text);
        }
        if let Some(live) = &self.live_keys {
            let _ = writeln!(
                text,
                "\n{} live keys, {} sessions heartbeating every {} ms: {} heartbeats, {} still held at the end",
                live.keys, live.sessions, live.heartbeat_ms, live.heartbeats, live.held_at_end
            );
            line(&mut text, "heartbeat", &live.heartbeat);
            let _ = writeln!(text, "  errors {:?}", live.errors);
            if let (Some(before), Some(with), Some(each)) =
                (live.rss_before_kib, live.rss_live_kib, live.bytes_per_live_key)
            {
                let _ = writeln!(
                    text,
                    "  memory {before} KiB before, {with} KiB with all keys live: {each} bytes per live key"
                );
            }
        }
        text
    }

    /// Whether every call was answered as it must.
    #[must_use]
    pub fn without_errors(&self) -> bool {
        let open = self.open_loop.as_ref().is_none_or(|run| run.errors.is_empty());
        let closed = self.closed_loop.iter().all(|run| run.errors.is_empty());
        let live = self
            .live_keys
            .as_ref()
            .is_none_or(|run| run.errors.is_empty() && run.held_at_end == run.keys);
        let cost = self.trace_cost.as_ref().is_none_or(|run| run.errors == 0);
        open && closed && live && cost
    }
}

fn batches(text: &mut String, batches: &[BatchSizes]) {
    use std::fmt::Write as _;
    for batch in batches {
        let _ = writeln!(
            text,
            "  commits of {:<10} {:>8}, {:.1} jobs each",
            batch.op, batch.batches, batch.mean
        );
    }
}
