//! Which requests are let in: those that name this server, and of writes those that no page of another site has made.
//!
//! A foreign site can point its own name at an address that a browser reaches (DNS rebinding) and then asks as if it were
//! that server's page: the name in `Host` tells. A form or script of another site can send simple writes: `Origin`,
//! `Sec-Fetch-Site` and the content type tell.
//!
//! Owns: the names under which this server is asked for; the check of both. Does not own: who the caller is.
//! On failure: a request in doubt is refused before its handler.

use crate::openapi::Route;
use crate::{ApiError, Settings};
use actix_web::http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN, TRANSFER_ENCODING};
use actix_web::http::{Method, Uri};
use http_contract::Code;
use std::net::IpAddr;

/// The names under which a server is asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    /// Those of `http.hosts`, of `http.listen` where that is a name, and `further` ones.
    pub(super) fn of(settings: &Settings, further: &[String]) -> Self {
        let listed = settings.text("http.hosts").unwrap_or_default().split(',');
        let listen = settings.text("http.listen").map(name_of);
        let named = listed.chain(listen).chain(further.iter().map(String::as_str));
        Self(
            named
                .map(|name| name.trim().trim_end_matches('.').to_ascii_lowercase())
                .filter(|name| !name.is_empty())
                .collect(),
        )
    }

    /// Whether this name, with or without a port, is one of this server: an address; `localhost` and what is below it; a
    /// name without a dot, which no stranger can register; one that was set, `*.` standing for anything before the rest.
    fn know(&self, host: &str) -> bool {
        let name = name_of(host).trim_end_matches('.').to_ascii_lowercase();
        if name.is_empty() {
            return false;
        }
        name.parse::<IpAddr>().is_ok()
            || !name.contains('.')
            || name.ends_with(".localhost")
            || self.0.iter().any(|known| match known.strip_prefix("*.") {
                Some(rest) => name.strip_suffix(rest).is_some_and(|before| before.ends_with('.')),
                None => *known == name,
            })
    }
}

/// A host without its port, an address without its brackets.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    }
}

/// The value of a header that stands once and is text.
fn one(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name);
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    value.to_str().ok()
}

/// What keeps a request out; none where it may go on.
pub(super) fn kept_out(
    hosts: &Hosts,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    route: Option<&Route>,
) -> Option<ApiError> {
    let named = headers.contains_key(HOST);
    let host = one(headers, HOST);
    let authority = uri.authority().map(|authority| authority.as_str());
    // No browser leaves it out; a program of HTTP/1.0 may.
    let known = (!named || host.is_some_and(|host| hosts.know(host))) && authority.is_none_or(|host| hosts.know(host));
    if !known {
        return Some(
            ApiError::new(
                Code::MisdirectedRequest,
                "Host names another server; names beside addresses, localhost and names without a dot are set with http.hosts",
            )
            .field("field", "Host"),
        );
    }
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return None;
    }
    foreign(headers, host.or(authority)).or_else(|| wrong_type(headers, route))
}

/// A write that a page of another site makes. A browser says which page with `Origin`, `Sec-Fetch-Site` or both; a program
/// says neither.
fn foreign(headers: &HeaderMap, host: Option<&str>) -> Option<ApiError> {
    let refused = |field: &str| {
        let detail = format!("a page of another site may not write here ({field})");
        Some(ApiError::new(Code::ForeignOrigin, detail).field("field", field))
    };
    if let Some(site) = headers.get("Sec-Fetch-Site")
        && site != "same-origin"
        && site != "none"
    {
        return refused("Sec-Fetch-Site");
    }
    if headers.contains_key(ORIGIN) {
        let origin = one(headers, ORIGIN);
        let from = origin.and_then(|origin| {
            origin
                .strip_prefix("http://")
                .or_else(|| origin.strip_prefix("https://"))
        });
        let own = from
            .zip(host)
            .is_some_and(|(from, host)| from.eq_ignore_ascii_case(host));
        if !own {
            return refused("Origin");
        }
    }
    None
}

/// A body, or the claim of one, that is no JSON: what a form of another site can send.
fn wrong_type(headers: &HeaderMap, route: Option<&Route>) -> Option<ApiError> {
    let forms = route.is_some_and(|route| route.forms);
    let has_body = headers.contains_key(TRANSFER_ENCODING) || headers.get(CONTENT_LENGTH).is_some_and(|n| n != "0");
    let says = headers
        .get(CONTENT_TYPE)
        .map(|kind| kind.to_str().unwrap_or_default().to_ascii_lowercase());
    let media = says
        .as_deref()
        .map(|kind| kind.split(';').next().unwrap_or(kind).trim());
    let right = match media {
        None => !has_body,
        Some("application/json") => true,
        Some("application/x-www-form-urlencoded") => forms,
        Some(_) => false,
    };
    (!right).then(|| {
        let reason = "must be application/json";
        ApiError::new(Code::UnsupportedMediaType, format!("Content-Type {reason}"))
            .field("field", "Content-Type")
            .field("reason", reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::http::header::HeaderValue;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn code(hosts: &Hosts, method: &Method, uri: &str, pairs: &[(&'static str, &str)]) -> Option<Code> {
        kept_out(hosts, method, &uri.parse().unwrap(), &headers(pairs), None).map(|refusal| refusal.code())
    }

    #[test]
    fn case_s7_a_foreign_name_is_refused_and_every_own_one_is_not() {
        let hosts = Hosts(vec!["dlock.example".into(), "*.dlock.svc".into()]);
        for own in [
            "127.0.0.1:7400",
            "[::1]:7400",
            "10.1.2.3",
            "localhost",
            "LOCALHOST:1",
            "a.localhost",
            "lock-server-1:7400",
            "dlock.example:443",
            "Dlock.Example.",
            "lock.dlock.svc",
        ] {
            assert_eq!(code(&hosts, &Method::GET, "/livez", &[("host", own)]), None, "{own}");
        }
        assert_eq!(code(&hosts, &Method::GET, "/livez", &[]), None, "a program of HTTP/1.0");
        for foreign in [
            "evil.example",
            "evil.example:7400",
            "127.0.0.1.evil.example",
            "xdlock.svc",
            "dlock.svc",
            "",
            ".",
        ] {
            let refused = code(&hosts, &Method::GET, "/livez", &[("host", foreign)]);
            assert_eq!(refused, Some(Code::MisdirectedRequest), "{foreign}");
        }
        let twice = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(
            code(&hosts, &Method::GET, "/livez", &twice),
            Some(Code::MisdirectedRequest)
        );
        let absolute = code(
            &hosts,
            &Method::GET,
            "http://evil.example/livez",
            &[("host", "localhost")],
        );
        assert_eq!(
            absolute,
            Some(Code::MisdirectedRequest),
            "an absolute target counts too"
        );
    }

    #[test]
    fn case_s7_a_write_of_another_sites_page_is_refused_and_one_of_a_program_is_not() {
        let hosts = Hosts::default();
        let write = |pairs: &[(&'static str, &str)]| {
            let pairs = [
                &[("host", "localhost:7400"), ("content-type", "application/json")][..],
                pairs,
            ]
            .concat();
            code(&hosts, &Method::POST, "/v1/sessions", &pairs)
        };
        assert_eq!(write(&[]), None);
        assert_eq!(
            write(&[("origin", "http://localhost:7400"), ("sec-fetch-site", "same-origin")]),
            None
        );
        for foreign in [
            "http://evil.example",
            "http://localhost:7401",
            "http://localhost",
            "null",
            "",
        ] {
            assert_eq!(write(&[("origin", foreign)]), Some(Code::ForeignOrigin), "{foreign}");
        }
        for site in ["cross-site", "same-site"] {
            assert_eq!(write(&[("sec-fetch-site", site)]), Some(Code::ForeignOrigin));
        }
    }

    #[test]
    fn case_s7_a_body_that_is_not_json_is_refused_on_every_write() {
        let hosts = Hosts::default();
        let write = |pairs: &[(&'static str, &str)]| code(&hosts, &Method::DELETE, "/v1/x", pairs);
        assert_eq!(write(&[]), None);
        assert_eq!(write(&[("content-length", "0")]), None);
        assert_eq!(
            write(&[
                ("content-length", "2"),
                ("content-type", "Application/JSON; charset=utf-8")
            ]),
            None
        );
        for wrong in [
            &[("content-length", "2")][..],
            &[("transfer-encoding", "chunked")],
            &[("content-type", "text/plain")],
            &[
                ("content-type", "application/x-www-form-urlencoded"),
                ("content-length", "2"),
            ],
        ] {
            assert_eq!(write(wrong), Some(Code::UnsupportedMediaType), "{wrong:?}");
        }
    }
}
