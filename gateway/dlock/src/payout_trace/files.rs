//! Log files: the lines that name the payout, and those of its traces.

use super::line::instant;
use super::{Gathered, Line};
use crate::exit::Failure;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// The fields that a line says elsewhere, or that say nothing here.
const NOT_REPEATED: &[&str] = &[
    "at",
    "level",
    "component",
    "event",
    "target",
    "token",
    "payout_id",
    "trace_id",
    "message",
];

/// Reads the files twice: for the payout's traces, then for all lines of it and of them.
///
/// # Errors
/// A file cannot be read.
pub(super) fn read(files: &[PathBuf], payout_id: &str, gathered: &mut Gathered) -> Result<Vec<Line>, Failure> {
    for file in files {
        each(file, |line| {
            if line["payout_id"] == payout_id
                && let Some(trace) = line["trace_id"].as_str()
            {
                gathered.traces.insert(trace.to_owned());
            }
        })?;
    }
    let mut lines = Vec::new();
    for file in files {
        let before = lines.len();
        each(file, |line| {
            let traced = line["trace_id"]
                .as_str()
                .is_some_and(|trace| gathered.traces.contains(trace));
            if traced || line["payout_id"] == payout_id {
                lines.extend(told(&line));
            }
        })?;
        let found = format!("{} lines of the payout", lines.len() - before);
        gathered.read(
            "log",
            &file.display().to_string(),
            (lines.len() == before).then_some(found),
        );
    }
    Ok(lines)
}

/// Gives every JSON object of a file. What stands before the object in its line (a container's name) is passed over, and
/// so is a line without one.
fn each(path: &Path, mut take: impl FnMut(Value)) -> Result<(), Failure> {
    let unreadable = |error: std::io::Error| Failure::usage(format!("--log {}: {error}", path.display()));
    let mut reader = BufReader::new(File::open(path).map_err(unreadable)?);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if reader.read_until(b'\n', &mut bytes).map_err(unreadable)? == 0 {
            return Ok(());
        }
        let Some(start) = bytes.iter().position(|byte| *byte == b'{') else {
            continue;
        };
        if let Ok(line @ Value::Object(_)) = serde_json::from_slice(&bytes[start..]) {
            take(line);
        }
    }
}

fn told(line: &Value) -> Option<Line> {
    let text = |name: &str| line[name].as_str().map(str::to_owned);
    let fields = line.as_object().map(rest).unwrap_or_default();
    let level = match line["level"].as_str() {
        Some(level @ ("warn" | "error")) => format!("{} ", level.to_uppercase()),
        _ => String::new(),
    };
    let said = text("message")
        .map(|message| format!(": {message}"))
        .unwrap_or_default();
    Some(Line {
        at_ns: instant(line["at"].as_str()?)?,
        source: "log",
        component: text("component").unwrap_or_default(),
        actor: text("actor"),
        token: line["token"].as_u64().or_else(|| line["presented_token"].as_u64()),
        what: format!("{level}{}{said}{fields}", text("event").unwrap_or_default()),
        trace_id: text("trace_id"),
    })
}

fn rest(line: &Map<String, Value>) -> String {
    line.iter()
        .filter(|(name, value)| !NOT_REPEATED.contains(&name.as_str()) && !value.is_null())
        .map(|(name, value)| match value {
            Value::String(text) => format!(" {name}={text}"),
            other => format!(" {name}={other}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_of_the_payout_and_of_its_traces_are_found_whatever_else_the_file_holds() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(
            b"lock-server-1  | {\"at\":\"2026-11-30T01:00:01Z\",\"level\":\"info\",\"component\":\"lock-server\",\"event\":\"request_answered\",\"trace_id\":\"aa\",\"status\":200}\n\
              not json \xff\n\
              {\"at\":\"2026-11-30T01:00:02Z\",\"level\":\"warn\",\"component\":\"payout-executor\",\"event\":\"payout_left\",\"payout_id\":\"P1\",\"trace_id\":\"aa\",\"token\":7}\n\
              {\"at\":\"2026-11-30T01:00:03Z\",\"event\":\"payout_left\",\"payout_id\":\"P2\",\"trace_id\":\"bb\"}\n",
        )
        .unwrap();
        let mut gathered = Gathered::default();
        let lines = read(&[file.path().to_owned()], "P1", &mut gathered).unwrap();
        let told: Vec<_> = lines
            .iter()
            .map(|line| (line.component.as_str(), line.what.as_str(), line.token))
            .collect();
        assert_eq!(
            told,
            [
                ("lock-server", "request_answered status=200", None),
                ("payout-executor", "WARN payout_left", Some(7))
            ]
        );
        let missing = read(&[PathBuf::from("/nowhere")], "P1", &mut gathered).unwrap_err();
        assert!(missing.to_string().contains("--log /nowhere"), "{missing}");
    }
}
