//! Who may ask: the checks that keep other sites' pages out, and the headers that keep pages to themselves.
//!
//! Owns: the check that a form comes from a page of the console, the answer's security headers, the forms that were given out.
//! Does not own: the check of `Host`, which the gateway's frame makes; who the operator is. The console authenticates nobody; it is for a network of its own.
//! On failure: a request in doubt is refused with a page that says why.

use actix_web::http::StatusCode;
use actix_web::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use actix_web::{HttpResponse, HttpResponseBuilder};
use host_kit::Random;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Nothing is loaded but what this server gives, nothing runs inline, nothing frames it or takes its forms elsewhere.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                                 connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// How many forms are remembered; who opens more has to open the first ones again.
const FORMS_MAX: usize = 1_024;
/// How long a form may be filled in.
const FORM_MS: i64 = 15 * 60 * 1_000;

fn one(headers: &HeaderMap, name: impl actix_web::http::header::AsHeaderName) -> Option<&str> {
    let mut values = headers.get_all(name);
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    value.to_str().ok()
}

/// Whether what changes something comes from a page of this very console. A browser says so with `Origin` or
/// `Sec-Fetch-Site`; who says neither is no browser and has a command line.
pub(crate) fn same_origin(headers: &HeaderMap) -> Result<(), &'static str> {
    let fetched = headers.get("Sec-Fetch-Site");
    if fetched.is_some_and(|site| site != "same-origin") {
        return Err("it comes from a page of another site (Sec-Fetch-Site)");
    }
    match headers.get(ORIGIN) {
        None if fetched.is_some() => Ok(()),
        None => Err("it does not say which page it comes from (Origin, Sec-Fetch-Site)"),
        Some(_) => {
            let (Some(origin), Some(host)) = (one(headers, ORIGIN), one(headers, HOST)) else {
                return Err("its Origin or Host cannot be read");
            };
            let from = origin
                .strip_prefix("http://")
                .or_else(|| origin.strip_prefix("https://"));
            if from.is_some_and(|from| from.eq_ignore_ascii_case(host)) {
                Ok(())
            } else {
                Err("it comes from a page of another site (Origin)")
            }
        }
    }
}

/// An answer for people, with everything that keeps it to itself.
pub(crate) fn page(status: StatusCode, html: String) -> HttpResponse {
    secured(status)
        .insert_header((CONTENT_TYPE, "text/html; charset=utf-8"))
        .body(html)
}

/// The beginning of an answer with the security headers.
pub(crate) fn secured(status: StatusCode) -> HttpResponseBuilder {
    let mut answer = HttpResponseBuilder::new(status);
    answer
        .insert_header((CONTENT_SECURITY_POLICY, POLICY))
        .insert_header((X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((X_FRAME_OPTIONS, "DENY"))
        // Without any, a browser sends its own forms with `Origin: null`.
        .insert_header((REFERRER_POLICY, "same-origin"))
        .insert_header(("Cross-Origin-Opener-Policy", "same-origin"))
        .insert_header(("Cross-Origin-Resource-Policy", "same-origin"))
        .insert_header(("Permissions-Policy", "camera=(), geolocation=(), microphone=()"))
        .insert_header((CACHE_CONTROL, "no-store"));
    answer
}

/// The forms that were given out and not used yet: each is good once, for one lock and one token.
#[derive(Clone, Debug)]
pub(crate) struct Forms {
    random: Random,
    given: Arc<Mutex<VecDeque<Given>>>,
}

#[derive(Debug)]
struct Given {
    secret: String,
    key: String,
    token: u64,
    until_ms: i64,
}

impl Forms {
    pub(crate) fn new(random: &Random) -> Self {
        Self {
            random: random.clone(),
            given: Arc::default(),
        }
    }

    /// Gives out a form: the secret that it must bring back.
    pub(crate) fn give(&self, key: &str, token: u64, now_ms: i64) -> String {
        let secret = format!("{:032x}", self.random.u128());
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.retain(|form| form.until_ms > now_ms);
        if given.len() >= FORMS_MAX {
            given.pop_front();
        }
        given.push_back(Given {
            secret: secret.clone(),
            key: key.to_owned(),
            token,
            until_ms: now_ms.saturating_add(FORM_MS),
        });
        secret
    }

    /// Whether this form was given out for this lock and token, is not used and not too old. It is used with that.
    pub(crate) fn take(&self, secret: &str, key: &str, token: u64, now_ms: i64) -> bool {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let place = given
            .iter()
            .position(|form| form.secret == secret && form.key == key && form.token == token && form.until_ms > now_ms);
        place.and_then(|place| given.remove(place)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::http::header::{HeaderName, HeaderValue};

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn what_changes_something_comes_from_the_console_itself() {
        let host = ("host", "127.0.0.1:7406");
        for fine in [
            vec![host, ("origin", "http://127.0.0.1:7406")],
            vec![host, ("sec-fetch-site", "same-origin")],
            vec![
                host,
                ("origin", "http://127.0.0.1:7406"),
                ("sec-fetch-site", "same-origin"),
            ],
        ] {
            assert_eq!(same_origin(&headers(&fine)), Ok(()), "{fine:?}");
        }
        for foreign in [
            vec![host],
            vec![host, ("origin", "null")],
            vec![host, ("origin", "http://127.0.0.1:7407")],
            vec![host, ("origin", "http://evil.example")],
            vec![host, ("sec-fetch-site", "cross-site")],
            vec![
                host,
                ("origin", "http://127.0.0.1:7406"),
                ("sec-fetch-site", "same-site"),
            ],
            vec![host, ("sec-fetch-site", "none")],
        ] {
            assert!(same_origin(&headers(&foreign)).is_err(), "{foreign:?}");
        }
    }

    #[test]
    fn a_form_is_good_once_for_one_lock_and_token_and_a_while() {
        let forms = Forms::new(&Random::seeded(1));
        let secret = forms.give("a", 5, 0);
        assert!(!forms.take(&secret, "b", 5, 1) && !forms.take(&secret, "a", 6, 1) && !forms.take("", "a", 5, 1));
        assert!(forms.take(&secret, "a", 5, 1));
        assert!(!forms.take(&secret, "a", 5, 1), "used");
        let old = forms.give("a", 5, 0);
        assert!(!forms.take(&old, "a", 5, FORM_MS), "too old");
    }

    #[test]
    fn the_forms_that_are_remembered_are_bounded() {
        let forms = Forms::new(&Random::seeded(1));
        let first = forms.give("a", 1, 0);
        for _ in 0..FORMS_MAX {
            forms.give("a", 1, 0);
        }
        assert!(!forms.take(&first, "a", 1, 1));
        assert_eq!(forms.given.lock().unwrap().len(), FORMS_MAX);
    }
}
