//! Why a human acts, as the audit trail will say (FR-08): one rule wherever somebody gives it.

use lock_api::InvalidValue;
use std::ops::RangeInclusive;

/// How many characters a reason has, blanks around it not counted.
pub const REASON_CHARS: RangeInclusive<usize> = 8..=500;

/// The reason without the blanks around it.
///
/// # Errors
/// [`InvalidValue`] naming `reason`, where `text` is none: too short, too long, blank, or with a control character.
pub fn reason(text: &str) -> Result<&str, InvalidValue> {
    let text = text.trim();
    if REASON_CHARS.contains(&text.chars().count()) && !text.chars().any(char::is_control) {
        Ok(text)
    } else {
        let rule = "must be 8 to 500 characters without control characters";
        Err(InvalidValue::new("reason", rule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight blanks were a reason to the lock server and the payment resource, and none to the fence proxy.
    #[test]
    fn blanks_are_no_reason() {
        for none in [
            "",
            "        ",
            "   short   ",
            "\u{3000}\u{a0}      ",
            "seven 7",
            "with\ta tab",
            "two\nlines of it",
        ] {
            assert!(reason(none).is_err(), "{none:?}");
        }
        assert!(reason(&"x".repeat(501)).is_err());
        assert_eq!(reason("  it hangs since noon \n"), Ok("it hangs since noon"));
        assert_eq!(reason("ünläßlich"), Ok("ünläßlich"));
        assert!(reason(&format!(" {} ", "x".repeat(500))).is_ok());
    }
}
