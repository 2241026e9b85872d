//! Panics that are caught: whoever looks at a panic from the process's hook can tell them from those that end a thread.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Runs `work`, and catches its panic. While it runs, [`is_guarded`] is true on this thread.
///
/// # Errors
/// The panic's payload.
pub fn guarded<T>(work: impl FnOnce() -> T) -> std::thread::Result<T> {
    DEPTH.set(DEPTH.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(DEPTH.get() - 1);
    result
}

/// Whether a panic on this thread, now, is caught by [`guarded`], whose caller deals with it.
#[must_use]
pub fn is_guarded() -> bool {
    DEPTH.get() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guard_ends_with_the_work_however_it_ends() {
        assert!(!is_guarded());
        let result = guarded(|| {
            assert!(guarded(|| panic!("inner")).is_err());
            is_guarded()
        });
        assert!(result.is_ok_and(|inside| inside));
        assert!(guarded(|| panic!("outer")).is_err());
        assert!(!is_guarded());
    }
}
