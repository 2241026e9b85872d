//! The name of a lock.

use crate::InvalidValue;
use core::fmt;

/// The longest key, in bytes of UTF-8 (C2.1).
pub const LOCK_KEY_BYTES_MAX: usize = 256;

/// The name of a lock: 1–256 bytes of UTF-8 without control characters (C2.1).
///
/// Keys are compared byte by byte: nothing is normalised, trimmed or folded, so `a/b`, `a/`, `A` and `a%2Fb` are four
/// independent locks (case L28), and so are the NFC and the NFD form of one word.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockKey(String);

impl LockKey {
    /// Checks and takes a key.
    ///
    /// # Errors
    /// [`InvalidValue`] naming `key` when it is empty, longer than 256 bytes, or holds a control character.
    pub fn new(key: impl Into<String>) -> Result<Self, InvalidValue> {
        let key = key.into();
        if key.is_empty() || key.len() > LOCK_KEY_BYTES_MAX {
            return Err(InvalidValue::new("key", "must be 1 to 256 bytes of UTF-8"));
        }
        if key.chars().any(char::is_control) {
            return Err(InvalidValue::new("key", "must not contain control characters"));
        }
        Ok(Self(key))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_l29_bounds_and_control_characters() {
        assert!(LockKey::new("x").is_ok());
        assert!(LockKey::new("k".repeat(256)).is_ok());
        assert!(LockKey::new("\u{1f512} key/%25?#..").is_ok());
        for bad in [
            String::new(),
            "k".repeat(257),
            "é".repeat(129),
            "a\0b".into(),
            "a\nb".into(),
            "a\u{7f}".into(),
            "a\u{85}b".into(),
        ] {
            assert!(LockKey::new(bad.clone()).is_err(), "{bad:?} was taken for a key");
        }
    }

    #[test]
    fn nothing_is_normalised() {
        assert_ne!(LockKey::new("caf\u{e9}"), LockKey::new("cafe\u{301}"));
        assert_ne!(LockKey::new("a"), LockKey::new("A"));
    }
}
