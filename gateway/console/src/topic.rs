//! Which page: the address that leads to it, and the way back from the address.

use actix_web::web::Query;
use http_client::path_segment;
use http_contract::payment::PayoutState;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

/// The longest value in an address, in characters: a cursor is the longest there is.
const CHARS_MAX: usize = 1_024;

/// One page with its filters. Two browsers that look at the same share what is read for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    Home,
    Locks {
        prefix: String,
        held: Option<bool>,
        cursor: Option<String>,
    },
    Lock {
        key: String,
    },
    Sessions {
        cursor: Option<String>,
    },
    Session {
        id: String,
    },
    Payouts {
        state: Option<PayoutState>,
        account: Option<String>,
        cursor: Option<String>,
    },
    Payout {
        id: String,
    },
    Accounts {
        cursor: Option<String>,
    },
    Queue,
    Refusals {
        account: Option<String>,
    },
    Actors {
        component: Option<String>,
        prefix: String,
    },
    Scenario,
}

/// Why an address leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BadAddress {
    /// There is no such page.
    NoSuchPage,
    /// A part of it cannot be read.
    Invalid { field: &'static str, reason: &'static str },
}

#[derive(Debug, Default, Deserialize)]
struct Params {
    prefix: Option<String>,
    state: Option<String>,
    account: Option<String>,
    component: Option<String>,
    cursor: Option<String>,
    key: Option<String>,
}

/// The address of a lock's page, or of one below it (`/revoke`). A browser takes a path step `..` out, encoded or not: such
/// a key stands in the query, and `-` in its place.
pub(crate) fn lock_href(key: &str, below: &str) -> String {
    match key {
        "." | ".." => format!("/locks/-{below}?key={}", path_segment(key)),
        key => format!("/locks/{}{below}", path_segment(key)),
    }
}

/// The key in a lock's address: the one of the query where there is one.
pub(crate) fn lock_key_at(part: &str, query: &str) -> Result<String, BadAddress> {
    let params = Params::of(query)?;
    match checked("key", params.key)? {
        Some(key) => Ok(key),
        None => decoded("key", part),
    }
}

impl Params {
    fn of(query: &str) -> Result<Self, BadAddress> {
        let params = Query::<Self>::from_query(query).map_err(|_| BadAddress::Invalid {
            field: "query",
            reason: "cannot be read",
        })?;
        Ok(params.into_inner())
    }
}

impl Topic {
    /// The page at a raw path and query. Parameters that it does not know are ignored.
    pub(crate) fn parse(path: &str, query: &str) -> Result<Self, BadAddress> {
        let params = Params::of(query)?;
        let prefix = checked("prefix", params.prefix)?.unwrap_or_default();
        let account = checked("account", params.account)?;
        let cursor = checked("cursor", params.cursor)?;
        let component = checked("component", params.component)?;
        let state = checked("state", params.state)?;
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        Ok(match parts.as_slice() {
            [""] => Self::Home,
            ["locks"] => Self::Locks {
                prefix,
                held: match state.as_deref() {
                    None => None,
                    Some("held") => Some(true),
                    Some("free") => Some(false),
                    Some(_) => return Err(invalid("state", "must be held or free")),
                },
                cursor,
            },
            ["locks", key] => Self::Lock {
                key: lock_key_at(key, query)?,
            },
            ["sessions"] => Self::Sessions { cursor },
            ["sessions", id] => Self::Session { id: decoded("id", id)? },
            ["payouts"] => Self::Payouts {
                state: state
                    .map(|state| PayoutState::parse(&state).ok_or_else(|| invalid("state", "must be a payout's state")))
                    .transpose()?,
                account,
                cursor,
            },
            ["payouts", id] => Self::Payout { id: decoded("id", id)? },
            ["accounts"] => Self::Accounts { cursor },
            ["queue"] => Self::Queue,
            ["refusals"] => Self::Refusals { account },
            ["actors"] => Self::Actors { component, prefix },
            ["scenario"] => Self::Scenario,
            _ => return Err(BadAddress::NoSuchPage),
        })
    }

    /// Its address.
    pub(crate) fn href(&self) -> String {
        let with = |path: &str, parts: &[(&str, Option<&str>)]| {
            let mut text = path.to_owned();
            for (name, value) in parts {
                if let Some(value) = value.filter(|value| !value.is_empty()) {
                    text.push(if text.contains('?') { '&' } else { '?' });
                    text.push_str(name);
                    text.push('=');
                    text.push_str(&path_segment(value));
                }
            }
            text
        };
        match self {
            Self::Home => "/".to_owned(),
            Self::Locks { prefix, held, cursor } => {
                let state = held.map(|held| if held { "held" } else { "free" });
                with(
                    "/locks",
                    &[
                        ("prefix", Some(prefix)),
                        ("state", state),
                        ("cursor", cursor.as_deref()),
                    ],
                )
            }
            Self::Lock { key } => lock_href(key, ""),
            Self::Sessions { cursor } => with("/sessions", &[("cursor", cursor.as_deref())]),
            Self::Session { id } => format!("/sessions/{}", path_segment(id)),
            Self::Payouts { state, account, cursor } => with(
                "/payouts",
                &[
                    ("state", state.map(PayoutState::as_str)),
                    ("account", account.as_deref()),
                    ("cursor", cursor.as_deref()),
                ],
            ),
            Self::Payout { id } => format!("/payouts/{}", path_segment(id)),
            Self::Accounts { cursor } => with("/accounts", &[("cursor", cursor.as_deref())]),
            Self::Queue => "/queue".to_owned(),
            Self::Refusals { account } => with("/refusals", &[("account", account.as_deref())]),
            Self::Actors { component, prefix } => with(
                "/actors",
                &[("component", component.as_deref()), ("prefix", Some(prefix))],
            ),
            Self::Scenario => "/scenario".to_owned(),
        }
    }

    /// Which entry of the navigation it belongs to.
    pub(crate) const fn section(&self) -> &'static str {
        match self {
            Self::Home => "/",
            Self::Locks { .. } | Self::Lock { .. } => "/locks",
            Self::Sessions { .. } | Self::Session { .. } => "/sessions",
            Self::Payouts { .. } | Self::Payout { .. } => "/payouts",
            Self::Accounts { .. } => "/accounts",
            Self::Queue => "/queue",
            Self::Refusals { .. } => "/refusals",
            Self::Actors { .. } => "/actors",
            Self::Scenario => "/scenario",
        }
    }
}

const fn invalid(field: &'static str, reason: &'static str) -> BadAddress {
    BadAddress::Invalid { field, reason }
}

/// A parameter that was given and is not empty: a form sends what was left empty, too.
fn checked(field: &'static str, value: Option<String>) -> Result<Option<String>, BadAddress> {
    match value {
        Some(value) if value.chars().count() > CHARS_MAX => Err(invalid(field, "is too long")),
        Some(value) if value.chars().any(char::is_control) => Err(invalid(field, "must hold no control characters")),
        value => Ok(value.filter(|value| !value.is_empty())),
    }
}

/// A part of a path, decoded once.
pub(crate) fn decoded(field: &'static str, raw: &str) -> Result<String, BadAddress> {
    let text = percent_decode_str(raw)
        .decode_utf8()
        .map_err(|_| invalid(field, "is not UTF-8 once percent-decoded"))?;
    checked(field, Some(text.into_owned()))?.ok_or(BadAddress::NoSuchPage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_found_again_by_its_address() {
        let some = |text: &str| Some(text.to_owned());
        for topic in [
            Topic::Home,
            Topic::Locks {
                prefix: "a/ü&b=".to_owned(),
                held: Some(true),
                cursor: some("x+/="),
            },
            Topic::Lock {
                key: "payout:a/b%2F..".to_owned(),
            },
            Topic::Sessions { cursor: None },
            Topic::Session { id: "s1".to_owned() },
            Topic::Payouts {
                state: Some(PayoutState::RailAmbiguous),
                account: some("alpha"),
                cursor: None,
            },
            Topic::Payout { id: "p.1".to_owned() },
            Topic::Accounts { cursor: some("c1") },
            Topic::Queue,
            Topic::Refusals { account: some("alpha") },
            Topic::Actors {
                component: some("lock-server"),
                prefix: "lease".to_owned(),
            },
            Topic::Scenario,
        ] {
            let href = topic.href();
            let (path, query) = href.split_once('?').unwrap_or((&href, ""));
            assert_eq!(Topic::parse(path, query), Ok(topic.clone()), "{href}");
        }
    }

    /// The path that a browser asks for: it takes dot segments out, encoded or not (WHATWG URL).
    fn as_a_browser(href: &str) -> String {
        let (path, query) = href.split_once('?').unwrap_or((href, ""));
        let mut steps: Vec<&str> = Vec::new();
        for step in path.split('/').skip(1) {
            match step.to_ascii_lowercase().replace("%2e", ".").as_str() {
                "." => {}
                ".." => drop(steps.pop()),
                _ => steps.push(step),
            }
        }
        format!("/{}?{query}", steps.join("/"))
    }

    #[test]
    fn case_p27_a_browser_finds_the_page_of_every_id_and_key() {
        for id in [
            "...", "....", "-", "--", "-x", ".a", "a.", "a..b", ":", "a:b", "_", "house", "p.1",
        ] {
            let payout = Topic::Payout { id: id.to_owned() };
            let session = Topic::Session { id: id.to_owned() };
            let account = Some(id.to_owned());
            let payouts = Topic::Payouts {
                state: None,
                account: account.clone(),
                cursor: None,
            };
            for topic in [payout, session, payouts, Topic::Refusals { account }] {
                let asked = as_a_browser(&topic.href());
                let (path, query) = asked.split_once('?').unwrap();
                assert_eq!(Topic::parse(path, query), Ok(topic), "{asked}");
            }
        }
        for key in [
            ".", "..", "...", "-", "a/..", "../b", "%2e", "?key=x", "#", "revoke", "a//b", "é+ ",
        ] {
            let topic = Topic::Lock { key: key.to_owned() };
            let asked = as_a_browser(&topic.href());
            let (path, query) = asked.split_once('?').unwrap();
            assert_eq!(Topic::parse(path, query), Ok(topic), "{asked}");
            let asked = as_a_browser(&lock_href(key, "/revoke"));
            let (path, query) = asked.split_once('?').unwrap();
            let parts: Vec<&str> = path.split('/').collect();
            assert!(parts.len() == 4 && parts[3] == "revoke", "{asked}");
            assert_eq!(lock_key_at(parts[2], query), Ok(key.to_owned()), "{asked}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named_and_what_a_form_leaves_empty_is_nothing() {
        let field = |path: &str, query: &str| match Topic::parse(path, query) {
            Err(BadAddress::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field("/locks", "state=HELD"), "state");
        assert_eq!(field("/payouts", "state=paid"), "state");
        assert_eq!(field("/locks/%ff", ""), "key");
        assert_eq!(field("/locks", "prefix=%00"), "prefix");
        assert_eq!(Topic::parse("/nowhere", ""), Err(BadAddress::NoSuchPage));
        let all = Topic::Payouts {
            state: None,
            account: None,
            cursor: None,
        };
        assert_eq!(Topic::parse("/payouts", "state=&account="), Ok(all));
    }
}
