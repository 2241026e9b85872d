//! What the actors of a run did: the traces of its processes, on one time axis.
//!
//! Owns: reading the rings of a stack's processes before they end, and putting together what was read. Does not own: the
//! rings, the format (`trace-kit`), what the processes write by themselves when they panic (into `dumps/` of the stack).
//! On failure: a process that does not answer is left out and said in the log: it may have been killed on purpose, and then
//! its ring went with it. No verdict rests on a trace.

use crate::stack::{LOCK_SERVER, NodeState, PAYMENT_RESOURCE, RAIL_PROXY, RunError, Stack};
use actor_kit::TraceContext;
use http_client::{Caller, ClientOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;
use trace_kit::{Dump, draw, merge};

/// Where the dumps of a stack's processes are, in its directory.
const TRACES: &str = "traces";
/// Where its processes write their own, when something panics.
pub const DUMPS: &str = "dumps";
/// A merged trace, for `dlock trace` and everything that reads JSON lines.
pub const TRACE: &str = "trace.jsonl";
/// The same drawn, for Perfetto and Chrome.
pub const DRAWING: &str = "trace.perfetto.json";
/// How long a process may take to give its trace.
const WITHIN: Duration = Duration::from_secs(5);

/// Reads the rings of all processes that run, into files of this moment of the run.
pub async fn collect(stack: &dyn Stack, moment: &str) {
    let dir = stack.dir().join(TRACES);
    if let Err(error) = std::fs::create_dir_all(&dir) {
        tracing::warn!(event = "no_traces", dir = %dir.display(), %error);
        return;
    }
    let client = http_client::client(&ClientOptions::default());
    let components = [LOCK_SERVER, PAYMENT_RESOURCE, RAIL_PROXY].map(str::to_owned);
    let read = components.into_iter().chain(stack.workers()).map(|node| {
        let (client, dir) = (client.clone(), &dir);
        async move {
            if stack.state(&node).is_ok_and(|state| state != NodeState::Running) {
                return;
            }
            let Ok(url) = stack.url(&node) else { return };
            let caller = Caller::new(client, url, WITHIN);
            let trace = TraceContext::root(&stack.host().random);
            match caller.text("/debug/trace?header=true", &trace).await {
                Ok(text) => {
                    let path = dir.join(format!("{node}-{moment}.jsonl"));
                    if let Err(error) = std::fs::write(&path, text) {
                        tracing::warn!(event = "trace_not_kept", path = %path.display(), %error);
                    }
                }
                Err(error) => tracing::info!(event = "no_trace", node, %error),
            }
        }
    });
    futures_util::future::join_all(read).await;
}

/// Puts together everything that was read anywhere below `root`: the trace of each run beside its files, and that of all
/// runs into each of `into`. None when there is nothing.
///
/// # Errors
/// When a file cannot be read or written.
pub fn merge_below(root: &Path, into: &[&Path]) -> Result<Option<usize>, RunError> {
    let mut runs = Vec::new();
    find(root, &mut runs);
    let mut all = Vec::new();
    for run in &runs {
        let mut dumps = Vec::new();
        for dir in [run.join(TRACES), run.join(DUMPS)] {
            for path in files(&dir)? {
                let text =
                    std::fs::read_to_string(&path).map_err(RunError::io(format!("reading {}", path.display())))?;
                match Dump::parse(&text) {
                    Ok(dump) => dumps.push(dump),
                    Err(error) => tracing::warn!(event = "no_dump", path = %path.display(), %error),
                }
            }
        }
        // Processes of one machine have one wall clock: nothing is to be aligned.
        let (dump, _) = merge(dumps, false);
        write(&dump, run)?;
        all.push(dump);
    }
    if all.is_empty() {
        return Ok(None);
    }
    let (all, _) = merge(all, false);
    for dir in into {
        if !runs.iter().any(|run| run == dir) {
            write(&all, dir)?;
        }
    }
    Ok(Some(all.records.len()))
}

fn write(dump: &Dump, dir: &Path) -> Result<(), RunError> {
    std::fs::create_dir_all(dir).map_err(RunError::io(format!("making {}", dir.display())))?;
    for (name, text) in [(TRACE, dump.to_jsonl()), (DRAWING, draw(dump).json)] {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(RunError::io(format!("writing {}", path.display())))?;
    }
    Ok(())
}

/// The directories below `dir` (itself included) in which something was read.
fn find(dir: &Path, runs: &mut Vec<PathBuf>) {
    if dir.join(TRACES).is_dir() || dir.join(DUMPS).is_dir() {
        runs.push(dir.to_owned());
    }
    // A database's directory is its own user's, and holds no run.
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let mut below: Vec<_> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            // A link may lead anywhere.
            entry.file_type().ok()?.is_dir().then(|| entry.path())
        })
        .filter(|path| !path.ends_with(TRACES) && !path.ends_with(DUMPS))
        .collect();
    below.sort();
    below.iter().for_each(|path| find(path, runs));
}

/// The dumps in a directory that need not be there.
fn files(dir: &Path) -> Result<Vec<PathBuf>, RunError> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(dir).map_err(RunError::io(format!("reading {}", dir.display())))?;
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_below_is_put_together_once() {
        let dir = tempfile::tempdir().unwrap();
        let line = |boot: &str, seq: u64| {
            format!(
                "{{\"seq\":{seq},\"actor\":\"a\",\"kind\":\"k\",\"message\":\"M\",\"at_ns\":5,\"queued_ns\":1,\"handled_ns\":1,\
                 \"outcome\":\"done\",\"trace_id\":\"{:032x}\",\"span_id\":\"{seq:016x}\",\"parent_span_id\":\"{:016x}\",\
                 \"boot_id\":\"{boot}\"}}\n",
                1, 0
            )
        };
        let (one, two) = (dir.path().join("one"), dir.path().join("deep/two"));
        for (path, text) in [
            (one.join(TRACES).join("x-1.jsonl"), line("x", 1)),
            (one.join(TRACES).join("x-2.jsonl"), line("x", 1) + &line("x", 2)),
            (two.join(DUMPS).join("y.jsonl"), line("y", 1)),
            (two.join(DUMPS).join("broken.jsonl"), "no dump\n".to_owned()),
        ] {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let into = dir.path().join("report");
        assert_eq!(merge_below(dir.path(), &[&into]).unwrap(), Some(3));
        let records = |dir: &Path| {
            let text = std::fs::read_to_string(dir.join(TRACE)).unwrap();
            Dump::parse(&text).unwrap().records.len()
        };
        assert_eq!((records(&one), records(&two), records(&into)), (2, 1, 3));
        let drawing = std::fs::read_to_string(into.join(DRAWING)).unwrap();
        assert!(trace_kit::check(&drawing).unwrap().ok());
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(merge_below(empty.path(), &[&into]).unwrap(), None);
    }
}
