//! The page of each problem code, out of the binary: what a problem's `type` points to (C3.1).

use http_contract::Code;

macro_rules! pages {
    ($($code:ident => $file:literal,)*) => {
        /// The page of a code.
        fn text(code: Code) -> &'static str {
            match code {
                $(Code::$code => include_str!(concat!("../../../docs/errors/", $file, ".md")),)*
            }
        }
    };
}

pages! {
    InvalidRequest => "INVALID_REQUEST",
    FencingTokenRequired => "FENCING_TOKEN_REQUIRED",
    FencingTokenInvalid => "FENCING_TOKEN_INVALID",
    NotFound => "NOT_FOUND",
    SessionNotFound => "SESSION_NOT_FOUND",
    LockNotFound => "LOCK_NOT_FOUND",
    AccountNotFound => "ACCOUNT_NOT_FOUND",
    PayoutNotFound => "PAYOUT_NOT_FOUND",
    SubmissionNotFound => "SUBMISSION_NOT_FOUND",
    ExceptionNotFound => "EXCEPTION_NOT_FOUND",
    MethodNotAllowed => "METHOD_NOT_ALLOWED",
    HeldByOther => "HELD_BY_OTHER",
    LockDelayed => "LOCK_DELAYED",
    NotHolder => "NOT_HOLDER",
    NotHeld => "NOT_HELD",
    FencedOut => "FENCED_OUT",
    IllegalTransition => "ILLEGAL_TRANSITION",
    VersionConflict => "VERSION_CONFLICT",
    OutcomeEvidenceMissing => "OUTCOME_EVIDENCE_MISSING",
    Conflict => "CONFLICT",
    RailAmbiguous => "RAIL_AMBIGUOUS",
    SubmissionInFlight => "SUBMISSION_IN_FLIGHT",
    AlreadySubmitted => "ALREADY_SUBMITTED",
    NotClaimed => "NOT_CLAIMED",
    InDoubt => "IN_DOUBT",
    ForeignOrigin => "FOREIGN_ORIGIN",
    MisdirectedRequest => "MISDIRECTED_REQUEST",
    PayloadTooLarge => "PAYLOAD_TOO_LARGE",
    UnsupportedMediaType => "UNSUPPORTED_MEDIA_TYPE",
    InsufficientFunds => "INSUFFICIENT_FUNDS",
    IdempotencyKeyReused => "IDEMPOTENCY_KEY_REUSED",
    SubmissionMismatch => "SUBMISSION_MISMATCH",
    Internal => "INTERNAL",
    Overloaded => "OVERLOADED",
    BackendUnavailable => "BACKEND_UNAVAILABLE",
    TokenRegression => "TOKEN_REGRESSION",
    SubmissionsInDoubt => "SUBMISSIONS_IN_DOUBT",
}

/// The page of the code with this name.
pub(crate) fn page(code: &str) -> Option<&'static str> {
    Code::ALL
        .iter()
        .find(|known| known.as_str() == code)
        .map(|known| text(*known))
}

/// A list of all pages.
pub(crate) fn index() -> String {
    let mut list = String::from("# Problem codes\n\n");
    for code in Code::ALL {
        list.push_str(&format!(
            "- [{code}](/docs/errors/{code}) ({}): {}\n",
            code.status(),
            code.title()
        ));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_page_that_says_what_it_must() {
        for code in Code::ALL {
            let page = page(code.as_str()).unwrap();
            assert!(
                page.starts_with(&format!("# {code}\n")),
                "{code}: the page begins with its name"
            );
            assert!(page.contains(code.title()), "{code}: the page has the title");
            assert!(
                page.contains(&format!("**Status** {}", code.status())),
                "{code}: the page has the status"
            );
            let retryable = if code.retryable() { "yes" } else { "no" };
            assert!(
                page.contains(&format!("**Retryable** {retryable}")),
                "{code}: the page says whether to retry"
            );
            for part in ["**Answered by** ", "## Meaning\n", "## What to do\n"] {
                assert!(page.contains(part), "{code}: the page lacks {part:?}");
            }
            assert!(index().contains(code.as_str()));
        }
        assert_eq!(page("NO_SUCH_CODE"), None);
    }

    #[test]
    fn every_page_belongs_to_a_code() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let code = name.strip_suffix(".md").unwrap();
            assert!(code == "README" || page(code).is_some(), "{name} belongs to no code");
        }
    }
}
