//! Results on standard output: a table for people, JSON for scripts.

use crate::exit::Failure;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde::Serialize;
use serde_json::Value;
use std::io::Write;

/// How a result is written.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Columns, for people.
    #[default]
    Table,
    /// JSON, for scripts; a stream is one object a line.
    Json,
}

/// Whether a verb was told to answer in JSON: then its errors are JSON too.
pub fn is_json(matches: &clap::ArgMatches) -> bool {
    let here = matches.try_get_one::<Format>("output");
    here.ok().flatten() == Some(&Format::Json) || matches.subcommand().is_some_and(|(_, matches)| is_json(matches))
}

/// The same of a command line that cannot be understood otherwise. What follows `--` belongs to another command.
pub fn asks_for_json(args: impl Iterator<Item = std::ffi::OsString>) -> bool {
    let args: Vec<_> = args.take_while(|arg| arg != "--").collect();
    args.iter()
        .any(|arg| arg == "-ojson" || arg == "--output=json" || arg == "-o=json")
        || args
            .windows(2)
            .any(|pair| (pair[0] == "-o" || pair[0] == "--output") && pair[1] == "json")
}

/// `-o table|json`.
#[derive(clap::Args, Debug, Clone, Copy)]
pub struct OutputArgs {
    /// How to write the result.
    #[arg(short = 'o', long = "output", value_enum, default_value_t, global = true)]
    pub output: Format,
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => gateway_kit::shown(text).into_owned(),
        // What a session holds: each key with its token.
        Value::Array(items) if items.iter().all(|item| item.get("key").is_some()) => items
            .iter()
            .map(|item| format!("{}#{}", plain(at(item, "key")), plain(at(item, "token"))))
            .collect::<Vec<_>>()
            .join(" "),
        other => gateway_kit::shown(&other.to_string()).into_owned(),
    }
}

/// Writes what has been made safe to show.
fn write(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    // Columns are padded; the last one's padding is of no use to anybody.
    let text: String = text.lines().flat_map(|line| [line.trim_end(), "\n"]).collect();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::new(crate::exit::INTERNAL, format!("standard output: {error}")))
}

fn json(value: &impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(value).map_err(|error| Failure::new(crate::exit::INTERNAL, error.to_string()))
}

/// An amount in minor units for people: a number `…_minor` beside a `currency` is written in major units, `12.50 EUR`.
fn money(of: &Value, name: &str) -> Option<String> {
    let minor = name.ends_with("_minor").then(|| of.get(name)?.as_i64())??;
    Some(money_kit::amount(minor, of.get("currency")?.as_str()?))
}

/// A column: its head, and the path of its value (`holder.owner`).
pub type Column = (&'static str, &'static str);

fn at<'v>(value: &'v Value, path: &str) -> &'v Value {
    path.split('.')
        .fold(value, |value, step| value.get(step).unwrap_or(&Value::Null))
}

/// One object: its fields as rows.
pub fn object(format: Format, value: &impl Serialize) -> Result<(), Failure> {
    let value = json(value)?;
    if format == Format::Json {
        return write(&gateway_kit::shown_json(&format!("{value:#}\n")));
    }
    let mut table = Table::new();
    table.load_style(NOTHING);
    flatten("", &value, &mut table);
    write(&format!("{table}\n"))
}

fn flatten(prefix: &str, value: &Value, table: &mut Table) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let amount = money(value, name).map(Value::String);
                // Its currency is said with it.
                let name = if amount.is_some() {
                    name.trim_end_matches("_minor").to_owned()
                } else {
                    name.clone()
                };
                let field = amount.as_ref().unwrap_or(field);
                let name = if prefix.is_empty() {
                    name
                } else {
                    format!("{prefix}.{name}")
                };
                flatten(&name, field, table);
            }
        }
        other => drop(table.add_row([prefix.to_owned(), plain(other)])),
    }
}

/// A list: one row an item.
pub fn list(format: Format, page: &impl Serialize, columns: &[Column]) -> Result<(), Failure> {
    let page = json(page)?;
    if format == Format::Json {
        return write(&gateway_kit::shown_json(&format!("{page:#}\n")));
    }
    let items = page.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_header(columns.iter().map(|(head, _)| *head));
    for item in &items {
        table.add_row(
            columns
                .iter()
                .map(|(_, path)| money(item, path).unwrap_or_else(|| plain(at(item, path)))),
        );
    }
    let more = match page.get("next_cursor").and_then(Value::as_str) {
        Some(cursor) => format!("more: --cursor {cursor}\n"),
        None => String::new(),
    };
    write(&format!("{table}\n{more}"))
}

/// One line of a stream.
pub fn line(format: Format, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
    match format {
        Format::Json => write(&gateway_kit::shown_json(&format!("{}\n", json(value)?))),
        Format::Table => write(&gateway_kit::shown_lines(&format!("{}\n", text()))),
    }
}
