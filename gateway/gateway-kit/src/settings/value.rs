//! Values: read from text and TOML, checked against their kind, shown again.

use super::{ConfigError, Kind, Setting};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Duration(Duration),
    Integer(u64),
    Boolean(bool),
    Text(String),
}

fn invalid(setting: &Setting, source: &str, reason: impl Into<String>) -> ConfigError {
    ConfigError::Invalid {
        name: setting.name,
        source_name: source.to_owned(),
        reason: reason.into(),
    }
}

pub(super) fn parse_toml(setting: &Setting, value: &toml::Value, source: &str) -> Result<Value, ConfigError> {
    match (setting.kind, value) {
        (Kind::Integer { .. }, toml::Value::Integer(number)) => parse_text(setting, &number.to_string(), source),
        (Kind::Boolean, toml::Value::Boolean(value)) => Ok(Value::Boolean(*value)),
        (Kind::Integer { .. } | Kind::Boolean, other) => Err(invalid(
            setting,
            source,
            format!("must be {}, not a {}", expected(setting.kind), other.type_str()),
        )),
        (_, toml::Value::String(text)) => parse_text(setting, text, source),
        (_, other) => {
            let reason = format!(
                "must be {} in quotes, not a {}",
                expected(setting.kind),
                other.type_str()
            );
            Err(invalid(setting, source, reason))
        }
    }
}

fn expected(kind: Kind) -> String {
    match kind {
        Kind::Duration { min, max } => {
            format!(
                "a duration such as 15s, 500ms or 4h between {} and {}",
                show_ms(min),
                show_ms(max)
            )
        }
        Kind::Integer { min, max } => format!("a whole number between {min} and {max}"),
        Kind::Boolean => "true or false".to_owned(),
        Kind::Choice(words) => format!("one of {}", words.join(", ")),
        Kind::Text { chars_max } => format!("1 to {chars_max} characters without control characters"),
        Kind::Url(schemes) => format!("a URL of scheme {}", schemes.join(", ")),
        Kind::Urls(schemes) => format!("URLs of scheme {}, separated by commas", schemes.join(", ")),
    }
}

/// Why an address of scheme https is refused where none is spoken.
pub(super) const NO_TLS: &str = "must begin with http://: https is spoken to the rail alone";

pub(super) fn parse_text(setting: &Setting, text: &str, source: &str) -> Result<Value, ConfigError> {
    let refused = || {
        let wants_tls = match setting.kind {
            Kind::Url(schemes) => schemes == ["http"] && text.starts_with("https:"),
            Kind::Urls(schemes) => schemes == ["http"] && parts(text).any(|part| part.starts_with("https:")),
            _ => false,
        };
        let reason = match setting.kind {
            _ if wants_tls => NO_TLS.to_owned(),
            kind => format!("must be {}", expected(kind)),
        };
        invalid(setting, source, reason)
    };
    match setting.kind {
        Kind::Duration { min, max } => {
            let value = humantime::parse_duration(text).map_err(|_| refused())?;
            let whole = value.subsec_nanos() % 1_000_000 == 0;
            let inside = u64::try_from(value.as_millis()).is_ok_and(|ms| (min..=max).contains(&ms));
            if whole && inside {
                Ok(Value::Duration(value))
            } else {
                Err(refused())
            }
        }
        Kind::Integer { min, max } => match text.parse::<u64>() {
            Ok(value) if (min..=max).contains(&value) => Ok(Value::Integer(value)),
            _ => Err(refused()),
        },
        Kind::Boolean => text.parse().map(Value::Boolean).map_err(|_| refused()),
        Kind::Choice(words) if words.contains(&text) => Ok(Value::Text(text.to_owned())),
        Kind::Text { chars_max } if is_text(text, chars_max) => Ok(Value::Text(text.to_owned())),
        Kind::Url(schemes) if is_text(text, 4_096) && is_url(text, schemes) => Ok(Value::Text(text.to_owned())),
        Kind::Urls(schemes)
            if is_text(text, 4_096)
                && parts(text).next().is_some()
                && parts(text).all(|part| is_url(part, schemes)) =>
        {
            Ok(Value::Text(text.to_owned()))
        }
        Kind::Choice(_) | Kind::Text { .. } | Kind::Url(_) | Kind::Urls(_) => Err(refused()),
    }
}

/// The parts of a list, without the empty ones.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn is_text(text: &str, chars_max: usize) -> bool {
    !text.is_empty() && text.chars().count() <= chars_max && !text.chars().any(char::is_control)
}

fn is_url(text: &str, schemes: &[&str]) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    let rest = if scheme == "sqlite" {
        rest
    } else {
        rest.strip_prefix("//").unwrap_or_default()
    };
    schemes.contains(&scheme) && !rest.is_empty()
}

pub(super) fn show(value: &Value) -> String {
    match value {
        Value::Duration(value) => show_duration(*value),
        Value::Integer(value) => value.to_string(),
        Value::Boolean(value) => value.to_string(),
        Value::Text(text) => mask(text),
    }
}

pub(super) fn show_ms(ms: u64) -> String {
    show_duration(Duration::from_millis(ms))
}

/// The largest unit that leaves a whole number: `90s`, `4h`, `1500ms`.
fn show_duration(value: Duration) -> String {
    let ms = value.as_millis();
    for (unit, size) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
        if ms != 0 && ms.is_multiple_of(size) {
            return format!("{}{unit}", ms / size);
        }
    }
    format!("{ms}ms")
}

/// Whether a parameter of this name holds what nobody may see.
fn is_secret(name: &str) -> bool {
    const PARTS: &[&str] = &[
        "password",
        "passwd",
        "pwd",
        "secret",
        "token",
        "apikey",
        "api_key",
        "api-key",
        "credential",
    ];
    let name = name.to_ascii_lowercase();
    PARTS.iter().any(|part| name.contains(part))
}

/// The text with every password of a URL in it replaced (NFR-12). A list of URLs separated by commas is masked one by one.
#[must_use]
pub fn mask(text: &str) -> String {
    let parts: Vec<&str> = text.split(',').collect();
    if parts.len() > 1 && parts.iter().all(|part| part.contains("://")) {
        return parts.iter().map(|part| mask(part)).collect::<Vec<_>>().join(",");
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(authority_end);
    let authority = match authority.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((name, _)) => format!("{name}:***@{host}"),
            // Over HTTP a lone name is mostly a key that somebody put there.
            None if scheme.starts_with("http") => format!("***@{host}"),
            None => format!("{user}@{host}"),
        },
        None => authority.to_owned(),
    };
    let tail = match tail.split_once('?') {
        Some((path, query)) => {
            let query: Vec<String> = query
                .split('&')
                .map(|pair| match pair.split_once('=') {
                    Some((name, _)) if is_secret(name) => format!("{name}=***"),
                    _ => pair.to_owned(),
                })
                .collect();
            format!("{path}?{}", query.join("&"))
        }
        None => tail.to_owned(),
    };
    format!("{scheme}://{authority}{tail}")
}
