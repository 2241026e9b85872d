//! Who holds: sessions, owners, operators.

use crate::InvalidValue;
use core::fmt;

/// The longest session id, in bytes.
pub const SESSION_ID_BYTES_MAX: usize = 64;

/// The longest owner or operator name, in characters (C3.1).
pub const OWNER_CHARS_MAX: usize = 128;

macro_rules! text_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The value as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.0)
            }
        }
    };
}
pub(crate) use text_newtype;

text_newtype! {
    /// The id of a session: 1–64 characters of `[A-Za-z0-9._:-]`, made by the lock server, never chosen by a client.
    SessionId
}

impl SessionId {
    /// Checks and takes an id.
    ///
    /// # Errors
    /// [`InvalidValue`] naming `session_id` when it is empty, too long, or holds another character.
    pub fn new(id: impl Into<String>) -> Result<Self, InvalidValue> {
        let id = id.into();
        if crate::session::is_id(&id, SESSION_ID_BYTES_MAX) {
            Ok(Self(id))
        } else {
            Err(InvalidValue::new(
                "session_id",
                "must be 1 to 64 characters of [A-Za-z0-9._:-]",
            ))
        }
    }
}

/// Whether `text` is an id of 1 to `max` characters of `[A-Za-z0-9._:-]` (C1.2).
pub(crate) fn is_id(text: &str, max: usize) -> bool {
    !text.is_empty()
        && text.len() <= max
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-'))
}

fn is_name(text: &str) -> bool {
    let chars = text.chars().count();
    (1..=OWNER_CHARS_MAX).contains(&chars) && !text.chars().any(char::is_control)
}

text_newtype! {
    /// The name a session gives for itself, shown to whoever is refused: 1–128 characters, no control characters.
    Owner
}

impl Owner {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// [`InvalidValue`] naming `owner` when it is empty, too long, or holds a control character.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidValue> {
        let name = name.into();
        if is_name(&name) {
            Ok(Self(name))
        } else {
            Err(InvalidValue::new(
                "owner",
                "must be 1 to 128 characters without control characters",
            ))
        }
    }
}

text_newtype! {
    /// The human behind a break-glass action (FR-08): 1–128 characters, no control characters.
    Operator
}

impl Operator {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// [`InvalidValue`] naming `operator` when it is empty, too long, or holds a control character.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidValue> {
        let name = name.into();
        if is_name(&name) {
            Ok(Self(name))
        } else {
            Err(InvalidValue::new(
                "operator",
                "must be 1 to 128 characters without control characters",
            ))
        }
    }
}
