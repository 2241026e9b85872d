//! Configuration: one table of names, three sources in rising order, nothing unknown.
//!
//! Owns: the names, kinds, bounds and defaults of C5.2; reading a TOML file, `DLOCK_*` variables and flags; the checks
//! that relate two settings; `--print-config` and the table in `docs/configuration.md`.
//! Does not own: what a component does with a setting, nor the parsing of the command line.
//! On failure: [`ConfigError`] names the setting, where it came from and what it must be; a process with a doubtful
//! configuration does not start.

mod checks;
mod platform;
mod table;
mod value;

pub use table::SETTINGS;
pub use value::mask;

use value::{Value, parse_text, parse_toml, show, show_ms};

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// What kind of value a setting has, with its bounds. Durations are bounded in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `15s`, `500ms`, `4h`, `1m 30s`, `30d`; in whole milliseconds between the bounds.
    Duration {
        /// The shortest, in milliseconds.
        min: u64,
        /// The longest, in milliseconds.
        max: u64,
    },
    /// A whole number between the bounds.
    Integer {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// `true` or `false`.
    Boolean,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Text without control characters.
    Text {
        /// The most characters.
        chars_max: usize,
    },
    /// A URL of one of these schemes. A password in it is masked wherever it is shown.
    Url(&'static [&'static str]),
    /// URLs of these schemes, separated by commas; at least one.
    Urls(&'static [&'static str]),
}

/// One line of [`SETTINGS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The dotted name.
    pub name: &'static str,
    /// Kind and bounds.
    pub kind: Kind,
    /// The value where no source gives one; without it the setting may be unset.
    pub default: Option<&'static str>,
    /// The default of a build with the feature `lab`, where it differs.
    pub lab_default: Option<&'static str>,
    /// Exists in a build with the feature `lab` only; elsewhere the name is unknown (C5.2).
    pub lab: bool,
    /// Who reads it.
    pub reader: &'static str,
    /// What it is.
    pub doc: &'static str,
}

impl Setting {
    /// The name of the environment variable: `DLOCK_` and the name in capitals, dots and dashes as underscores.
    #[must_use]
    pub fn variable(&self) -> String {
        let name = self.name.replace(['.', '-'], "_").to_ascii_uppercase();
        format!("DLOCK_{name}")
    }

    /// Whether this build knows the name.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        !self.lab || cfg!(feature = "lab")
    }

    const fn effective_default(&self) -> Option<&'static str> {
        match self.lab_default {
            Some(default) if cfg!(feature = "lab") => Some(default),
            _ => self.default,
        }
    }
}

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read or is not TOML.
    #[error("configuration file {path}: {detail}")]
    File {
        /// The file.
        path: String,
        /// What was wrong.
        detail: String,
    },
    /// No setting of this build has this name.
    #[error("unknown setting {name} (from {source_name}){hint}")]
    Unknown {
        /// The name as given.
        name: String,
        /// Where it stood.
        source_name: String,
        /// A name that may have been meant, ready to be appended; empty without one.
        hint: String,
    },
    /// One source gives the same setting twice.
    #[error("setting {name} is given twice (in {source_name})")]
    Twice {
        /// The setting.
        name: &'static str,
        /// Where.
        source_name: String,
    },
    /// A value is not what the setting takes. The value itself is not repeated: it may be a secret in the wrong place.
    #[error("setting {name} (from {source_name}) {reason}")]
    Invalid {
        /// The setting.
        name: &'static str,
        /// Where the value came from.
        source_name: String,
        /// What it must be.
        reason: String,
    },
    /// Two settings do not go together.
    #[error("settings {first} ({first_value}) and {second} ({second_value}) do not go together: {reason}")]
    Conflict {
        /// One of them.
        first: &'static str,
        /// Its value.
        first_value: String,
        /// The other.
        second: &'static str,
        /// Its value.
        second_value: String,
        /// The rule they break.
        reason: &'static str,
    },
}

#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    source: String,
}

/// The effective configuration of a process. Every setting of the table has a checked value or none.
#[derive(Clone, Debug)]
pub struct Settings {
    entries: BTreeMap<&'static str, Entry>,
    of_a_service: Vec<String>,
}

/// Variables that begin with `DLOCK_` and are no configuration: what `dlock exec` hands to its child (C5.2), the
/// server list of the operator's verbs (C5.1), the log filter.
const NOT_CONFIGURATION: &[&str] = &["DLOCK_TOKEN", "DLOCK_KEY", "DLOCK_LOCK_SERVER", "DLOCK_LOG"];

/// The standard name of a collector's address; the one variable of another namespace that is read.
const OTEL_ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

impl Settings {
    /// Every default, nothing else.
    ///
    /// # Panics
    /// Never: a test proves that the table's defaults fit its bounds and each other.
    #[must_use]
    pub fn defaults() -> Self {
        Self::load(None, [], &[]).expect("a test proves that the defaults are valid")
    }

    /// Reads a TOML file, then the environment, then flags (dotted name and value), each overriding the one before.
    ///
    /// # Errors
    /// [`ConfigError`] for an unreadable file, an unknown name, a value out of bounds, or two settings that do not go
    /// together.
    pub fn load(
        file: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
        flags: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let mut entries = BTreeMap::new();
        for setting in SETTINGS.iter().filter(|setting| setting.is_known()) {
            if let Some(default) = setting.effective_default() {
                let value = parse_text(setting, default, "the default")?;
                entries.insert(
                    setting.name,
                    Entry {
                        value,
                        source: "the default".to_owned(),
                    },
                );
            }
        }
        let mut settings = Self {
            entries,
            of_a_service: Vec::new(),
        };
        if let Some(path) = file {
            settings.apply_file(path)?;
        }
        settings.apply_env(env)?;
        settings.of_a_service.sort();
        settings.apply_flags(flags)?;
        settings.store_follows_url();
        settings.check()?;
        Ok(settings)
    }

    fn apply_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let shown = path.display().to_string();
        let unreadable = |detail: String| ConfigError::File {
            path: shown.clone(),
            detail,
        };
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
        let table: toml::Table = toml::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
        let mut flat = Vec::new();
        flatten("", &table, &mut flat);
        let mut seen = BTreeMap::new();
        for (name, value) in flat {
            let setting = known(&name, &shown)?;
            let value = parse_toml(setting, &value, &shown)?;
            if seen.insert(setting.name, ()).is_some() {
                return Err(ConfigError::Twice {
                    name: setting.name,
                    source_name: shown,
                });
            }
            self.entries.insert(
                setting.name,
                Entry {
                    value,
                    source: shown.clone(),
                },
            );
        }
        Ok(())
    }

    fn apply_env(&mut self, env: impl IntoIterator<Item = (String, String)>) -> Result<(), ConfigError> {
        for (variable, text) in env {
            if variable == OTEL_ENDPOINT_VARIABLE {
                self.apply_standard_endpoint(&text)?;
                continue;
            }
            let ours = variable.starts_with("DLOCK_")
                && !NOT_CONFIGURATION.contains(&variable.as_str())
                && !variable.ends_with("_IMAGE");
            if !ours {
                continue;
            }
            let Some(setting) = SETTINGS.iter().find(|s| s.is_known() && s.variable() == variable) else {
                if platform::is_of_a_service(&variable, &text) {
                    self.of_a_service.push(variable);
                    continue;
                }
                return Err(ConfigError::Unknown {
                    hint: hint(&variable, |s| s.variable()),
                    name: variable,
                    source_name: "the environment".to_owned(),
                });
            };
            let source = format!("the environment variable {variable}");
            let value = parse_text(setting, &text, &source)?;
            self.entries.insert(setting.name, Entry { value, source });
        }
        Ok(())
    }

    /// `OTEL_EXPORTER_OTLP_ENDPOINT`, as every program with OpenTelemetry reads it; the setting's own variable comes first.
    /// Platforms set it for all containers alike, so a build that cannot export passes over it.
    fn apply_standard_endpoint(&mut self, text: &str) -> Result<(), ConfigError> {
        let stated = self
            .entries
            .get("otel.endpoint")
            .is_some_and(|entry| entry.source.starts_with("the environment variable DLOCK_"));
        if !cfg!(feature = "otel") || stated || text.is_empty() {
            return Ok(());
        }
        let setting = known("otel.endpoint", "the environment")?;
        let source = format!("the environment variable {OTEL_ENDPOINT_VARIABLE}");
        let value = parse_text(setting, text, &source)?;
        self.entries.insert(setting.name, Entry { value, source });
        Ok(())
    }

    fn apply_flags(&mut self, flags: &[(String, String)]) -> Result<(), ConfigError> {
        for (name, text) in flags {
            let setting = known(name, "the command line")?;
            let value = parse_text(setting, text, "the command line")?;
            self.entries.insert(
                setting.name,
                Entry {
                    value,
                    source: "the command line".to_owned(),
                },
            );
        }
        Ok(())
    }

    /// `lock.store` needs not be repeated where the URL says it already.
    fn store_follows_url(&mut self) {
        let Some(url) = self
            .entries
            .get("lock.store.url")
            .filter(|url| url.source != "the default")
            .cloned()
        else {
            return;
        };
        let stated = self
            .entries
            .get("lock.store")
            .is_some_and(|store| store.source != "the default");
        if let (false, Value::Text(text)) = (stated, &url.value) {
            let value = Value::Text(backend(text).to_owned());
            self.entries.insert(
                "lock.store",
                Entry {
                    value,
                    source: url.source,
                },
            );
        }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        assert!(
            SETTINGS.iter().any(|setting| setting.name == name),
            "{name} is not in the table of settings"
        );
        self.entries.get(name).map(|entry| &entry.value)
    }

    /// A duration that has a default.
    ///
    /// # Panics
    /// When `name` is no setting of this kind with a default: a mistake in the calling code, not in a configuration.
    #[must_use]
    pub fn duration(&self, name: &str) -> Duration {
        self.optional_duration(name)
            .unwrap_or_else(|| panic!("{name} has no default"))
    }

    /// A duration that may be unset.
    ///
    /// # Panics
    /// When `name` is no setting of this kind.
    #[must_use]
    pub fn optional_duration(&self, name: &str) -> Option<Duration> {
        match self.get(name)? {
            Value::Duration(value) => Some(*value),
            other => panic!("{name} is no duration but {other:?}"),
        }
    }

    /// A whole number.
    ///
    /// # Panics
    /// When `name` is no setting of this kind with a default.
    #[must_use]
    pub fn integer(&self, name: &str) -> u64 {
        match self.get(name) {
            Some(Value::Integer(value)) => *value,
            other => panic!("{name} is no integer but {other:?}"),
        }
    }

    /// A switch. One that exists in lab builds only has its default elsewhere, which is the safe position.
    ///
    /// # Panics
    /// When `name` is no setting of this kind.
    #[must_use]
    pub fn boolean(&self, name: &str) -> bool {
        match self.get(name) {
            Some(Value::Boolean(value)) => *value,
            None => SETTINGS.iter().any(|s| s.name == name && s.default == Some("true")),
            other => panic!("{name} is no switch but {other:?}"),
        }
    }

    /// A text, a choice or a URL, if set.
    ///
    /// # Panics
    /// When `name` is no setting of this kind.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            Value::Text(value) => Some(value),
            other => panic!("{name} is no text but {other:?}"),
        }
    }

    /// The variables that were passed over because a platform sets them for a Service called `dlock` or `dlock-…`, in order.
    #[must_use]
    pub fn of_a_service(&self) -> &[String] {
        &self.of_a_service
    }

    /// Where the value of `name` came from, for a message to a human.
    #[must_use]
    pub fn source(&self, name: &str) -> &str {
        self.entries.get(name).map_or("unset", |entry| entry.source.as_str())
    }

    /// The settings whose values differ between this configuration and `other`, in the order of the table.
    #[must_use]
    pub fn differing(&self, other: &Self) -> Vec<&'static str> {
        let value = |settings: &Self, name: &str| settings.entries.get(name).map(|entry| entry.value.clone());
        SETTINGS
            .iter()
            .map(|setting| setting.name)
            .filter(|name| value(self, name) != value(other, name))
            .collect()
    }

    /// Takes the values of these settings from `other`, unset ones too.
    pub fn take(&mut self, other: &Self, names: &[&'static str]) {
        for name in names {
            match other.entries.get(name) {
                Some(entry) => self.entries.insert(name, entry.clone()),
                None => self.entries.remove(name),
            };
        }
    }

    fn shown(&self, name: &str) -> String {
        self.entries
            .get(name)
            .map_or_else(|| "unset".to_owned(), |entry| show(&entry.value))
    }

    /// The effective configuration as TOML, secrets masked (`--print-config`). A file with this text loads to the same
    /// configuration, masked values apart.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let mut section = "";
        for setting in SETTINGS {
            let Some(entry) = self.entries.get(setting.name) else {
                continue;
            };
            if !self.fits_backend(setting.name) {
                continue;
            }
            let (head, rest) = setting.name.split_once('.').unwrap_or(("", setting.name));
            if head != section {
                let gap = if text.is_empty() { "" } else { "\n" };
                // Writing into a String cannot fail.
                let _ = writeln!(text, "{gap}[{head}]");
                section = head;
            }
            let key = if rest.contains('.') {
                format!("\"{rest}\"")
            } else {
                rest.to_owned()
            };
            let value = match &entry.value {
                Value::Integer(value) => value.to_string(),
                Value::Boolean(value) => value.to_string(),
                other => toml::Value::String(show(other)).to_string(),
            };
            let _ = writeln!(text, "{key} = {value}  # {}", entry.source);
        }
        text
    }

    /// The table of all settings as Markdown, as it stands in `docs/configuration.md`.
    #[must_use]
    pub fn to_markdown() -> String {
        let mut text =
            String::from("| name | default | unit | bounds | read by | meaning |\n|---|---|---|---|---|---|\n");
        for setting in SETTINGS {
            let (unit, bounds) = match setting.kind {
                Kind::Duration { min, max } => ("duration", format!("{} – {}", show_ms(min), show_ms(max))),
                Kind::Integer { min, max } => ("number", format!("{min} – {max}")),
                Kind::Boolean => ("switch", "`true`, `false`".to_owned()),
                Kind::Choice(words) => ("word", words.map_join(|word| format!("`{word}`"))),
                Kind::Text { chars_max } => ("text", format!("1 – {chars_max} characters")),
                Kind::Url(schemes) => ("URL", schemes.map_join(|scheme| format!("`{scheme}:`"))),
                Kind::Urls(schemes) => ("URLs", schemes.map_join(|scheme| format!("`{scheme}:`"))),
            };
            let default = setting
                .default
                .map_or_else(|| "unset".to_owned(), |value| format!("`{value}`"));
            let default = match setting.lab_default {
                Some(lab) => format!("{default} (lab: `{lab}`)"),
                None => default,
            };
            let doc = setting.doc.replace('|', "\\|");
            let lab = if setting.lab { " Lab builds only." } else { "" };
            let _ = writeln!(
                text,
                "| `{}` | {default} | {unit} | {bounds} | {} | {doc}{lab} |",
                setting.name, setting.reader
            );
        }
        text
    }
}

trait MapJoin {
    fn map_join(&self, show: impl Fn(&str) -> String) -> String;
}

impl MapJoin for [&str] {
    fn map_join(&self, show: impl Fn(&str) -> String) -> String {
        self.iter().map(|word| show(word)).collect::<Vec<_>>().join(", ")
    }
}

/// The backend a store URL belongs to.
fn backend(url: &str) -> &str {
    match url.split(':').next().unwrap_or_default() {
        "postgres" | "postgresql" => "pg",
        scheme => scheme,
    }
}

fn known(name: &str, source: &str) -> Result<&'static Setting, ConfigError> {
    SETTINGS
        .iter()
        .find(|s| s.is_known() && s.name == name)
        .ok_or_else(|| ConfigError::Unknown {
            name: name.to_owned(),
            source_name: source.to_owned(),
            hint: hint(name, |s| s.name.to_owned()),
        })
}

/// The nearest known name, where one is near.
fn hint(given: &str, name: impl Fn(&Setting) -> String) -> String {
    SETTINGS
        .iter()
        .filter(|setting| setting.is_known())
        .map(|setting| (distance(given, &name(setting)), name(setting)))
        .min()
        .filter(|(distance, _)| *distance <= 3)
        .map_or_else(String::new, |(_, near)| format!("; did you mean {near}?"))
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Nested tables become dotted names; a quoted dotted key is the same name.
fn flatten(prefix: &str, table: &toml::Table, into: &mut Vec<(String, toml::Value)>) {
    for (key, value) in table {
        let name = if prefix.is_empty() {
            key.clone()
        } else {
            format!("{prefix}.{key}")
        };
        match value {
            toml::Value::Table(inner) => flatten(&name, inner, into),
            other => into.push((name, other.clone())),
        }
    }
}

#[cfg(test)]
mod tests;
