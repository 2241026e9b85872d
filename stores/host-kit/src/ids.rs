//! New ids.

use crate::{Clock, Random};

/// Makes ids from the process's clock and random numbers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Ids {
    clock: Clock,
    random: Random,
}

impl Ids {
    /// A maker over these handles.
    #[must_use]
    pub const fn new(clock: Clock, random: Random) -> Self {
        Self { clock, random }
    }

    /// A ULID: 26 characters, sortable by the time it was made, 80 bits of randomness.
    #[must_use]
    pub fn ulid(&self) -> String {
        ulid::Ulid::from_parts(u64::try_from(self.clock.wall_ms()).unwrap_or(0), self.random.u128()).to_string()
    }

    /// A UUID of version 7: 36 characters, sortable by the time it was made.
    #[must_use]
    pub fn uuid(&self) -> String {
        let random = self.random.u128().to_be_bytes();
        let mut tail = [0u8; 10];
        tail.copy_from_slice(&random[..10]);
        uuid::Builder::from_unix_timestamp_millis(u64::try_from(self.clock.wall_ms()).unwrap_or(0), &tail)
            .into_uuid()
            .to_string()
    }

    /// A short id with a prefix that says what it names: `prefix-` and a ULID in lower case.
    #[must_use]
    pub fn prefixed(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.ulid().to_ascii_lowercase())
    }
}

#[cfg(test)]
mod tests {

    #[test]
    fn ids_are_distinct_and_of_the_contracts_characters() {
        let ids = crate::Host::system().ids;
        let made: std::collections::BTreeSet<_> = (0..1000)
            .flat_map(|_| [ids.ulid(), ids.uuid(), ids.prefixed("s")])
            .collect();
        assert_eq!(made.len(), 3000);
        assert!(
            made.iter()
                .all(|id| id.len() <= 36 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
        );
    }
}
