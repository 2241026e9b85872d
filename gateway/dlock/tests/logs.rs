//! `docs/logs.md` and the sources say the same: every call that logs names an event of the page, with its level and fields.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Names that the contract has another one for.
const WRONG_FIELDS: &[(&str, &str)] = &[
    ("payout", "payout_id"),
    ("account", "account_id"),
    ("session", "session_id"),
    ("lock_key", "key"),
    ("trace", "trace_id"),
    ("fencing_token", "token"),
    ("failure", "error"),
    ("refusal", "error"),
    ("panic", "detail"),
];

#[derive(Debug, Default, PartialEq, Eq)]
struct Event {
    levels: BTreeSet<String>,
    fields: BTreeSet<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The sources of what is shipped: no tests, no build output.
fn sources(below: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(below).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type().unwrap().is_dir() {
            if !matches!(&*name, "target" | "tests" | "testing" | "examples") && !name.starts_with('.') {
                sources(&path, found);
            }
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
}

/// Where the bracket that is open at the beginning is closed.
fn closed(text: &str) -> usize {
    let (mut depth, mut quoted, mut escaped) = (1, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '(' | '[' | '{' if !quoted => depth += 1,
            ')' | ']' | '}' if !quoted => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    panic!("a call that does not end: {}", &text[..text.len().min(80)]);
}

/// The arguments of a call.
fn arguments(body: &str) -> Vec<&str> {
    let (mut found, mut from, mut depth, mut quoted, mut escaped) = (Vec::new(), 0, 0, false, false);
    for (at, c) in body.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '(' | '[' | '{' if !quoted => depth += 1,
            ')' | ']' | '}' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                found.push(body[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    found.push(body[from..].trim());
    found.retain(|argument| !argument.is_empty());
    found
}

/// Every call that logs: its level and its arguments. In the frame the level is chosen by the answer (`$level`).
fn calls(text: &str) -> Vec<(Vec<&'static str>, Vec<&str>)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("tracing::") {
        let rest = &text[at + "tracing::".len()..];
        let Some((name, body)) = rest.split_once("!(") else {
            continue;
        };
        let levels = match name {
            "$level" => vec!["debug", "info", "warn"],
            "event" => panic!("tracing::event! hides its level"),
            name => LEVELS.into_iter().filter(|level| *level == name).collect(),
        };
        if !levels.is_empty() {
            found.push((levels, arguments(&body[..closed(body)])));
        }
    }
    found
}

/// The name of an argument's field; none for the message.
fn field(argument: &str) -> Option<(&str, Option<&str>)> {
    if argument.starts_with('"') {
        return None;
    }
    if let Some((name, value)) = argument.split_once(" = ") {
        return Some((name.trim(), Some(value)));
    }
    let bare = argument.trim_start_matches(['%', '?']);
    Some((bare.rsplit('.').next().unwrap_or(bare), None))
}

fn snake(name: &str) -> bool {
    !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn in_the_sources() -> BTreeMap<String, Event> {
    let (root, mut files) = (root(), Vec::new());
    for part in ["stores", "actors", "gateway", "harness"] {
        sources(&root.join(part), &mut files);
    }
    let mut events: BTreeMap<String, Event> = BTreeMap::new();
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let shown = file.strip_prefix(&root).unwrap().display().to_string();
        for (levels, arguments) in calls(&text) {
            let fields: Vec<_> = arguments.iter().filter_map(|argument| field(argument)).collect();
            let event = fields
                .iter()
                .find(|(name, _)| *name == "event")
                .and_then(|(_, value)| *value);
            let Some(name) = event.and_then(|value| value.strip_prefix('"')?.strip_suffix('"')) else {
                wrong.push(format!(
                    "{shown}: a call that logs without event = \"…\": {arguments:?}"
                ));
                continue;
            };
            if !snake(name) {
                wrong.push(format!("{shown}: {name} is not in snake case"));
            }
            for (bad, good) in WRONG_FIELDS {
                if fields.iter().any(|(name, _)| name == bad) {
                    wrong.push(format!("{shown}: {name} has a field {bad}; it is {good} everywhere"));
                }
            }
            let seen = events.entry(name.to_owned()).or_default();
            seen.levels.extend(levels.into_iter().map(str::to_owned));
            let own = fields.iter().map(|(name, _)| *name).filter(|name| *name != "event");
            seen.fields.extend(own.map(str::to_owned));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    events
}

fn on_the_page() -> BTreeMap<String, Event> {
    let page = std::fs::read_to_string(root().join("docs/logs.md")).unwrap();
    let table = page.split("<!-- events: begin -->").nth(1).unwrap();
    let table = table.split("<!-- events: end -->").next().unwrap();
    let mut events = BTreeMap::new();
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, levels, component, fields, meaning] = cells[..] else {
            panic!("a row of five cells: {row}")
        };
        assert!(
            !component.is_empty() && meaning.trim_end_matches('|').trim().ends_with(['.', ')']),
            "{row}"
        );
        let list = |cell: &str| {
            let words = cell.split(", ").map(|word| word.trim_matches('`').to_owned());
            words.filter(|word| word != "–").collect()
        };
        let event = Event {
            levels: list(levels),
            fields: list(fields),
        };
        let name = name.trim_matches('`').to_owned();
        assert!(
            events.insert(name.clone(), event).is_none(),
            "{name} stands there twice"
        );
    }
    events
}

#[test]
fn every_log_call_has_an_event_of_the_page_and_the_page_has_no_other() {
    let (sources, page) = (in_the_sources(), on_the_page());
    assert!(sources.len() > 100, "the sources were not found: {}", sources.len());
    let mut wrong = Vec::new();
    for (name, event) in &sources {
        match page.get(name) {
            None => wrong.push(format!("{name} is not on the page: {event:?}")),
            Some(told) if told != event => wrong.push(format!("{name}: the sources say {event:?}, the page {told:?}")),
            Some(_) => {}
        }
    }
    wrong.extend(
        page.keys()
            .filter(|name| !sources.contains_key(*name))
            .map(|name| format!("nobody logs {name}")),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_reader_of_the_sources_reads() {
    let text = r#"
        tracing::info!(event = "a_b", %key, token = token.get(), ?job.state, "said, (with) \"quotes\"");
        let x = tracing::Span::current();
        tracing::$level!(event = "c");
    "#;
    let found = calls(text);
    assert_eq!(found.len(), 2);
    let names: Vec<_> = found[0]
        .1
        .iter()
        .filter_map(|argument| field(argument))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["event", "key", "token", "state"]);
    assert_eq!(found[1].0, ["debug", "info", "warn"]);
}
