//! Which requests the stub lets in: as the components do (S7), since a browser reaches it as well.
//!
//! Owns: the check of `Host`, of the page that a write comes from, and of its content type. Does not own: what is answered else.
//! On failure: a request in doubt is refused before anything is read from its body.

use crate::http::{Answer, Request};
use std::net::IpAddr;

/// Whether this name is the stub's: an address, `localhost` and what is below it, a name without a dot, or one that was set.
fn is_own(host: &str, hosts: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    if name.is_empty() {
        return false;
    }
    name.parse::<IpAddr>().is_ok() || !name.contains('.') || name.ends_with(".localhost") || hosts.contains(&name)
}

/// What is answered instead; none where the request may go on.
pub fn kept_out(request: &Request, hosts: &[String]) -> Option<Answer> {
    let shown = &request.shown;
    if shown.hosts.len() > 1 || shown.hosts.iter().any(|host| !is_own(host, hosts)) {
        return Some(Answer::error(
            421,
            "Host names another server; names with a dot are set with --host",
        ));
    }
    if matches!(request.method.as_str(), "GET" | "HEAD" | "OPTIONS") {
        return None;
    }
    let foreign_site = shown
        .fetch_site
        .as_deref()
        .is_some_and(|site| site != "same-origin" && site != "none");
    let own = |origin: &String| {
        let from = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        from.zip(shown.hosts.first())
            .is_some_and(|(from, host)| from.eq_ignore_ascii_case(host))
    };
    if foreign_site || shown.origins.len() > 1 || !shown.origins.iter().all(own) {
        return Some(Answer::error(403, "a page of another site may not write here"));
    }
    let media = shown
        .content_type
        .as_deref()
        .map(|kind| kind.split(';').next().unwrap_or(kind).trim());
    let json = match media {
        None => request.body.is_empty(),
        Some(media) => media == "application/json",
    };
    (!json).then(|| Answer::error(415, "Content-Type must be application/json"))
}
