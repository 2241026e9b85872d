//! What a request acts on, for a proxy that knows nothing of the service behind it.
//!
//! Owns: where the key comes from, and that one thing has one key. On failure: a path that the service might read in
//! another way than this does is refused, because its key might be another one's.

use actix_web::HttpRequest;
use actix_web::http::header::HeaderName;
use gateway_kit::ApiError;
use lock_api::LockKey;
use percent_encoding::percent_decode_str;

/// Where a request's key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// In this header. The caller says what it acts on, and is believed.
    Header(HeaderName),
    /// The first segments of the path, this many: `accounts/A` for 2 and `/accounts/A/withdraw`.
    PrefixSegments(usize),
    /// One key for the whole service.
    Fixed(LockKey),
}

impl KeySource {
    /// The key of a request.
    ///
    /// # Errors
    /// `INVALID_REQUEST` where it has none, or more than one could be read.
    pub fn of(&self, request: &HttpRequest) -> Result<LockKey, ApiError> {
        match self {
            Self::Fixed(key) => Ok(key.clone()),
            Self::PrefixSegments(count) => prefix(request.uri().path(), *count),
            Self::Header(name) => {
                let mut values = request.headers().get_all(name);
                let Some(value) = values.next() else {
                    return Err(ApiError::invalid(
                        name.as_str(),
                        "is required: it names what the request acts on",
                    ));
                };
                if values.next().is_some() {
                    return Err(ApiError::invalid(name.as_str(), "must be given once"));
                }
                let text = std::str::from_utf8(value.as_bytes())
                    .map_err(|_| ApiError::invalid(name.as_str(), "must be UTF-8"))?;
                LockKey::new(text).map_err(|error| ApiError::invalid(name.as_str(), error.reason))
            }
        }
    }
}

fn prefix(path: &str, count: usize) -> Result<LockKey, ApiError> {
    let refused = |reason: &str| ApiError::invalid("path", reason);
    let Some(path) = path.strip_prefix('/') else {
        return Err(refused("must begin with a slash"));
    };
    let mut segments = path.split('/').peekable();
    let mut key = Vec::new();
    while let Some(raw) = segments.next() {
        let decoded = decode(raw).ok_or_else(|| refused("must be percent-encoded UTF-8, once"))?;
        let name = decoded.split(';').next().unwrap_or_default();
        let last = segments.peek().is_none();
        // Each of these is another path to one service or another: `a//b` and `a/./b` are `a/b`, `a/../b` and `a/..;/b`
        // are `b`, an encoded slash is one.
        if (name.is_empty() && !(last && decoded.is_empty())) || name == "." || name == ".." {
            return Err(refused("must not have empty or dot segments"));
        }
        if decoded.contains(['/', '\\']) {
            return Err(refused("must not have a slash inside a segment"));
        }
        if key.len() < count {
            if decoded.contains(';') {
                return Err(refused("must not have parameters in the segments that are its key"));
            }
            if !decoded.is_empty() {
                key.push(decoded);
            }
        }
    }
    if key.len() < count {
        return Err(refused(&format!(
            "must have {count} segments: they name what the request acts on"
        )));
    }
    LockKey::new(key.join("/")).map_err(|error| refused(error.reason))
}

/// A segment as the service will see it; none where that is not certain.
fn decode(raw: &str) -> Option<String> {
    let bytes = raw.as_bytes();
    let encoded = |at: usize| {
        bytes
            .get(at + 1..at + 3)
            .is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit))
    };
    let whole = (0..bytes.len()).all(|at| bytes[at] != b'%' || encoded(at));
    let decoded = percent_decode_str(raw)
        .decode_utf8()
        .ok()
        .filter(|_| whole)?
        .into_owned();
    // What would change when it is decoded again may be decoded again.
    let again = percent_decode_str(&decoded).decode_utf8().ok()?;
    (again == decoded).then(|| decoded.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::test::TestRequest;

    fn key(path: &str, count: usize) -> Result<String, String> {
        prefix(path, count)
            .map(|key| key.as_str().to_owned())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_path_is_cut_after_its_first_segments() {
        assert_eq!(key("/accounts/A/withdraw", 2).unwrap(), "accounts/A");
        assert_eq!(key("/accounts/A/", 2).unwrap(), "accounts/A");
        assert_eq!(key("/accounts/%41", 2).unwrap(), "accounts/A");
        assert_eq!(key("/caf%C3%A9", 1).unwrap(), "café");
        assert_eq!(key("/a/b;v=1", 1).unwrap(), "a");
    }

    #[test]
    fn a_path_with_two_readings_is_refused() {
        for path in [
            "/accounts",
            "/",
            "",
            "/accounts//A",
            "//accounts/A",
            "/accounts/./A",
            "/accounts/A/../B",
            "/accounts/A/%2e%2E/B",
            "/accounts/A/..;/B",
            "/accounts/A/..;x=1/B",
            "/accounts/A/;/B",
            "/accounts/A%2FB",
            "/accounts/A%5cB",
            "/accounts/A\\B",
            "/accounts/A;v=1",
            "/accounts/%2541",
            "/accounts/%zz",
            "/accounts/%4",
            "/accounts/%ff",
            "/accounts/%00",
            "/accounts/%0a",
            "/accounts/A/%252e%252e/B",
        ] {
            assert!(key(path, 2).is_err(), "{path:?} has the key {:?}", key(path, 2));
        }
    }

    #[test]
    fn a_header_names_the_key_once() {
        let source = KeySource::Header(HeaderName::from_static("x-fence-key"));
        let of = |values: &[&str]| {
            let request = values.iter().fold(TestRequest::post(), |request, value| {
                request.append_header(("X-Fence-Key", *value))
            });
            source
                .of(&request.to_http_request())
                .map(|key| key.as_str().to_owned())
                .ok()
        };
        assert_eq!(of(&["a/b"]), Some("a/b".to_owned()));
        assert_eq!(of(&["é"]), Some("é".to_owned()));
        for bad in [&[][..], &[""], &["a", "a"], &["a", "b"]] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
        let long = "k".repeat(257);
        assert_eq!(of(&[&long]), None);
    }
}
