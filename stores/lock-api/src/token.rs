//! The fencing token.

use crate::InvalidValue;
use core::fmt;
use core::str::FromStr;

/// The highest value a token can have: 2^53 − 1, so that it survives a JSON number in any language (C1.7).
pub const TOKEN_MAX: u64 = (1 << 53) - 1;

/// How far the token floor jumps when the lineage of a store changed (C1.7): 2^40.
pub const TOKEN_FLOOR_JUMP: u64 = 1 << 40;

/// How far above the last minted token a witness, or a floor set by an operator, is believed (C1.7): 2^41.
/// A larger value could exhaust the token space and stop the service for good.
pub const WITNESS_REACH: u64 = 1 << 41;

/// A fencing token: minted by the lock store with a grant, presented to a protected resource with every write.
///
/// Tokens of one key strictly increase in grant order over the life of the system (FR-09). A token cannot be made up:
/// there is no `From<u64>`, no `Default` and no arithmetic. It comes out of a store ([`FencingToken::from_store`]) or
/// off the wire ([`FromStr`]), and clippy allows those two entrances in the store and wire packages alone.
///
/// ```compile_fail
/// let token: lock_api::FencingToken = 7u64.into(); // a number is not a token
/// ```
/// ```compile_fail
/// let token = lock_api::FencingToken::default(); // there is no token without a grant
/// ```
/// ```compile_fail
/// let token = lock_api::FencingToken(7); // the field is private
/// ```
/// ```compile_fail
/// fn next(token: lock_api::FencingToken) -> lock_api::FencingToken { token + 1 } // no arithmetic
/// ```
/// ```compile_fail
/// // A side effect without a token does not compile: the parameter cannot be left out (INV-07).
/// fn post(payout: &str, token: lock_api::FencingToken) {}
/// post("p1");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// A token that a store minted or recorded.
    ///
    /// # Errors
    /// [`InvalidValue`] when `value` is outside 1 ..= [`TOKEN_MAX`].
    pub const fn from_store(value: u64) -> Result<Self, InvalidValue> {
        if value == 0 || value > TOKEN_MAX {
            Err(InvalidValue::new("token", "must be between 1 and 2^53 - 1"))
        } else {
            Ok(Self(value))
        }
    }

    /// The number, to be stored, compared or shown.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

#[allow(clippy::disallowed_methods, reason = "the text entrance is built on the number's")]
impl FromStr for FencingToken {
    type Err = InvalidValue;

    /// Reads the canonical decimal form: digits only, no sign, no leading zero (C3.1).
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let digits = !text.is_empty() && text.len() <= 16 && text.bytes().all(|b| b.is_ascii_digit());
        if !digits || text.starts_with('0') {
            return Err(InvalidValue::new(
                "token",
                "must be a decimal integer between 1 and 2^53 - 1, without sign or leading zero",
            ));
        }
        match text.parse::<u64>() {
            Ok(value) => Self::from_store(value),
            Err(_) => Err(InvalidValue::new("token", "must be between 1 and 2^53 - 1")),
        }
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_decimal_form_is_a_token() {
        for text in ["1", "42", "9007199254740991"] {
            assert_eq!(text.parse::<FencingToken>().map(|t| t.to_string()), Ok(text.to_owned()));
        }
        for text in [
            "",
            "0",
            "01",
            "+1",
            "-1",
            " 1",
            "1 ",
            "1.0",
            "1e3",
            "0x1",
            "٣",
            "9007199254740992",
            "99999999999999999999",
        ] {
            assert!(text.parse::<FencingToken>().is_err(), "{text:?} was taken for a token");
        }
    }
}
