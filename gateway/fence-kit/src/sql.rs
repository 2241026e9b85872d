//! The fence inside PostgreSQL: a migration to be run by whoever owns the table, and its refusals as everybody else says
//! them.
//!
//! Owns: the text of the migration; what its SQLSTATEs mean. Does not own: a connection. Any driver will do.
//! On failure: what is none of these SQLSTATEs is none of ours, and left to the caller.

use gateway_kit::ApiError;
use http_contract::Code;
use serde_json::{Map, Value};

/// Makes the marks, the functions and the trigger, in the schema that stands first in `search_path`. Plain statements: a
/// file for any tool that runs migrations, also inside its transaction. `dlock fence sql` prints it.
pub const INSTALL: &str = include_str!("../sql/install.sql");

/// Takes it away again.
pub const UNINSTALL: &str = include_str!("../sql/uninstall.sql");

/// A higher token has written under the key.
pub const STALE: &str = "LK001";
/// The token has had its one transaction.
pub const SPENT: &str = "LK002";
/// The transaction has no token for the key.
pub const REQUIRED: &str = "LK003";
/// The token is not canonical, or the key is none.
pub const INVALID: &str = "LK004";
/// A fenced row would change its key, or a mark would be lowered.
pub const KEY_CHANGED: &str = "LK005";
/// TRUNCATE of a fenced table.
pub const TRUNCATED: &str = "LK006";

/// A refusal by the fence, from what the database's driver tells of an error: its SQLSTATE, its message and its DETAIL.
/// None where the error is none of the fence's.
#[must_use]
pub fn refusal(sqlstate: &str, message: &str, detail: Option<&str>) -> Option<ApiError> {
    let code = match sqlstate {
        STALE | SPENT => Code::FencedOut,
        REQUIRED | TRUNCATED => Code::FencingTokenRequired,
        INVALID => Code::FencingTokenInvalid,
        KEY_CHANGED => Code::Conflict,
        _ => return None,
    };
    let fields: Map<String, Value> = detail
        .and_then(|detail| serde_json::from_str(detail).ok())
        .unwrap_or_default();
    let refusal = ApiError::new(code, message);
    Some(
        fields
            .into_iter()
            .fold(refusal, |refusal, (name, value)| refusal.field(&name, value)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_database_has_the_shape_of_every_other_one() {
        let detail = r#"{"code":"FENCED_OUT","reason":"stale","key":"a","presented_token":3,"highest_token":5}"#;
        let problem = refusal(
            STALE,
            "fenced out of a: presented token 3, highest token 5",
            Some(detail),
        )
        .unwrap()
        .problem("00");
        assert_eq!(
            (problem.code, problem.status, problem.retryable),
            (Code::FencedOut, 409, false)
        );
        assert_eq!(
            (problem.number("presented_token"), problem.number("highest_token")),
            (Some(3), Some(5))
        );
        assert_eq!(problem.text("reason"), Some("stale"));
        assert!(refusal("40001", "could not serialize", None).is_none());
        let code = |state| refusal(state, "", None).unwrap().code();
        assert_eq!(code(REQUIRED), Code::FencingTokenRequired);
        assert_eq!(code(INVALID), Code::FencingTokenInvalid);
        assert_eq!(code(SPENT), Code::FencedOut);
    }
}
