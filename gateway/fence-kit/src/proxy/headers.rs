//! Which headers travel on: all but those of one connection (RFC 9110 §7.6.1).

use crate::request::dashed;
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use std::net::IpAddr;

/// Those of one connection, whether `Connection` names them or not.
const OF_ONE_CONNECTION: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers by which a service, or what stands before it, takes another path than the request's own, or writes to a second one.
/// Where the key comes from the path, a request that carries one of them could act on another key's thing (case S11).
/// Sources: `X-Original-URL`, `X-Rewrite-URL`: IIS and the frameworks that follow it (CVE-2018-14773 of Symfony and Zend); the
/// `…-Uri` and `…-Path`: nginx, Traefik, Caddy and Envoy; `X-Forwarded-Prefix` and `Script-Name`: the prefix that Spring, Werkzeug
/// and WSGI servers put before or cut from the path; `Destination`: COPY and MOVE of WebDAV (RFC 4918 §10.3).
const OF_ANOTHER_PATH: [&str; 18] = [
    "destination",
    "script-name",
    "x-envoy-original-path",
    "x-forwarded-path",
    "x-forwarded-prefix",
    "x-forwarded-uri",
    "x-forwarded-url",
    "x-ms-original-url",
    "x-original-path",
    "x-original-uri",
    "x-original-url",
    "x-path-info",
    "x-replaced-path",
    "x-request-uri",
    "x-rewrite-uri",
    "x-rewrite-url",
    "x-script-name",
    "x-waws-unencoded-url",
];

/// The names that `Connection` lists.
fn listed(headers: &HeaderMap) -> Vec<String> {
    headers
        .get_all(header::CONNECTION)
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect()
}

/// The headers that are not of one connection, without those that say how long the body is: the body is framed anew.
fn end_to_end(headers: &HeaderMap) -> impl Iterator<Item = (HeaderName, HeaderValue)> + '_ {
    let listed = listed(headers);
    headers
        .iter()
        .filter(move |(name, _)| {
            let name = name.as_str();
            !OF_ONE_CONNECTION.contains(&name) && name != "content-length" && !listed.iter().any(|one| one == name)
        })
        .map(|(name, value)| (name.clone(), value.clone()))
}

/// What is asked of the service. `fenced` are the headers that the fence has read: they travel on as they were read,
/// whatever `Connection` says of them, and nothing travels beside them that a service might take for one of them; nor for the
/// path, where the fence has read its key there.
pub(crate) fn for_service(
    headers: &HeaderMap,
    fenced: Vec<(HeaderName, HeaderValue)>,
    path_is_key: bool,
    peer: Option<IpAddr>,
) -> Vec<(HeaderName, HeaderValue)> {
    let alike = |name: &HeaderName| {
        let dashed = dashed(name);
        fenced.iter().any(|(own, _)| own.as_str() == dashed)
            || path_is_key && OF_ANOTHER_PATH.contains(&dashed.as_str())
    };
    let own = ["host", "expect", "x-forwarded-for", "x-forwarded-host", "via"];
    let mut kept: Vec<_> = end_to_end(headers)
        .filter(|(name, _)| !own.contains(&name.as_str()) && !alike(name))
        .collect();
    kept.extend(fenced.iter().cloned());
    let joined = |name: &str, more: Option<String>| {
        let values = headers
            .get_all(name)
            .filter_map(|value| value.to_str().ok())
            .map(str::to_owned);
        let text = values.chain(more).collect::<Vec<_>>().join(", ");
        (!text.is_empty()).then_some(text)
    };
    let asked_host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .map(str::to_owned);
    for (name, value) in [
        (
            "x-forwarded-for",
            joined("x-forwarded-for", peer.map(|peer| peer.to_string())),
        ),
        ("x-forwarded-host", joined("x-forwarded-host", None).or(asked_host)),
        ("via", joined("via", Some("1.1 dlock-fence".to_owned()))),
    ] {
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(&value).ok()) {
            kept.push((HeaderName::from_static(name), value));
        }
    }
    kept
}

/// What the service answered.
pub(crate) fn for_caller(headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    end_to_end(headers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        map
    }

    fn shown(headers: &[(HeaderName, HeaderValue)]) -> Vec<String> {
        let mut lines: Vec<_> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort();
        lines
    }

    #[test]
    fn what_is_of_one_connection_stays_there() {
        let headers = map(&[
            ("connection", "close, X-Of-This-One"),
            ("x-of-this-one", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("proxy-authorization", "secret"),
            ("content-length", "3"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
        ]);
        assert_eq!(shown(&for_caller(&headers)), ["cookie: a=1", "cookie: b=2"]);
    }

    #[test]
    fn the_token_travels_on_once_whatever_the_caller_says_of_it() {
        let headers = map(&[
            ("connection", "x-fencing-token"),
            ("x-fencing-token", "7"),
            ("x_fencing_token", "9"),
            ("x-forwarded-for", "10.0.0.1"),
            ("host", "shop.example"),
            ("expect", "100-continue"),
            ("accept", "*/*"),
        ]);
        let fenced = vec![(
            HeaderName::from_static("x-fencing-token"),
            HeaderValue::from_static("7"),
        )];
        let sent = for_service(&headers, fenced, true, Some("10.0.0.2".parse().unwrap()));
        assert_eq!(
            shown(&sent),
            [
                "accept: */*",
                "via: 1.1 dlock-fence",
                "x-fencing-token: 7",
                "x-forwarded-for: 10.0.0.1, 10.0.0.2",
                "x-forwarded-host: shop.example"
            ]
        );
    }

    #[test]
    fn case_s11_a_header_of_another_path_is_dropped_where_the_path_is_the_key() {
        let mut headers = HeaderMap::new();
        for name in OF_ANOTHER_PATH {
            for form in [name.to_owned(), name.replace('-', "_")] {
                headers.insert(form.parse().unwrap(), HeaderValue::from_static("/accounts/B"));
            }
        }
        headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        let sent = |path_is_key| for_service(&headers, Vec::new(), path_is_key, None);
        assert_eq!(shown(&sent(true)), ["accept: */*", "via: 1.1 dlock-fence"]);
        assert_eq!(sent(false).len(), headers.len() + 1);
        assert!(OF_ANOTHER_PATH.is_sorted());
    }
}
