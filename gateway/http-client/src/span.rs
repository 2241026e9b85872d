//! The span of an outgoing call, where somebody wants it.

use crate::CallError;
use crate::call::Head;
use actor_kit::{OpenSpan, SpanSide, Spans};
use http_contract::header;

/// Begins it. Its name is of a closed set; ids stand in the path.
pub(crate) fn begin(spans: &Spans, head: &Head<'_>, base: &str) -> Option<OpenSpan> {
    let name = head.method.as_str().to_owned();
    let mut span = spans.below(head.trace, SpanSide::Client, name)?;
    span.with("http.request.method", head.method.as_str());
    span.with("server.address", authority(base));
    span.with("url.path", head.path.split('?').next().unwrap_or_default());
    let token = head.headers.iter().find(|(name, _)| *name == header::FENCING_TOKEN);
    if let Some(token) = token.and_then(|(_, token)| token.parse::<u64>().ok()) {
        span.with("dlock.token", token);
    }
    Some(span)
}

/// Ends it by what came back: the status, or why there is none.
pub(crate) fn end<T>(mut span: OpenSpan, answer: &Result<(u16, bool, T), CallError>) {
    let failed = match answer {
        Ok((status, _, _)) => {
            span.with("http.response.status_code", u64::from(*status));
            false
        }
        Err(CallError::Problem(problem)) => {
            span.with("http.response.status_code", u64::from(problem.code.status()));
            span.with("dlock.outcome", problem.code.as_str());
            problem.code.status() >= 500
        }
        Err(error) => {
            span.with("error.message", error.to_string());
            true
        }
    };
    span.end(failed);
}

/// Host and port of an address, without what may be a password.
fn authority(base: &str) -> &str {
    let rest = base.split_once("://").map_or(base, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_password() {
        for (base, shown) in [
            ("http://127.0.0.1:7400", "127.0.0.1:7400"),
            ("https://user:secret@host:1/path?token=x", "host:1"),
            ("host", "host"),
        ] {
            assert_eq!(authority(base), shown);
        }
    }
}
