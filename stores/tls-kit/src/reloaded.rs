//! What is made of files, made anew when they change (case L35).

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

type Make<T> = Box<dyn Fn() -> Result<T, String> + Send + Sync>;

struct State<T> {
    /// The files as they were when the last attempt was made, none where one could not be read.
    seen: Vec<Option<Vec<u8>>>,
    current: T,
    /// Rises with each new value.
    generation: u64,
}

/// A value that is made of files. Cheap to clone.
///
/// The files are compared byte for byte whenever the value is asked for: ask where a connection is made, not for each call.
/// Files that cannot be used, also a certificate whose key has not been replaced yet, leave the value as it was; that is
/// logged once for each change (`tls_files_not_taken`), and a new value too (`tls_files_taken`).
pub struct Reloaded<T>(Arc<Inner<T>>);

struct Inner<T> {
    paths: Vec<PathBuf>,
    make: Make<T>,
    state: Mutex<State<T>>,
}

impl<T> Clone for Reloaded<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> std::fmt::Debug for Reloaded<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloaded")
            .field("paths", &self.0.paths)
            .finish_non_exhaustive()
    }
}

fn read(paths: &[PathBuf]) -> Vec<Option<Vec<u8>>> {
    paths.iter().map(|path| std::fs::read(path).ok()).collect()
}

impl<T: Clone> Reloaded<T> {
    /// Makes the value for the first time.
    ///
    /// # Errors
    /// What `make` says.
    pub fn new<E: std::fmt::Display>(
        paths: Vec<PathBuf>,
        make: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        // Read before they are used: what changes meanwhile is noticed the next time.
        let seen = read(&paths);
        let current = make()?;
        Ok(Self(Arc::new(Inner {
            paths,
            make: Box::new(move || make().map_err(|error| error.to_string())),
            state: Mutex::new(State {
                seen,
                current,
                generation: 0,
            }),
        })))
    }

    /// The value that the files say now, or the last one that they could be used for.
    #[must_use]
    pub fn current(&self) -> T {
        self.current_and_generation().0
    }

    /// As [`Reloaded::current`], with a number that rises with each new value.
    #[must_use]
    pub fn current_and_generation(&self) -> (T, u64) {
        let Inner { paths, make, state } = &*self.0;
        // Each change leaves it whole.
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let found = read(paths);
        if found != state.seen {
            state.seen = found;
            match make() {
                Ok(made) => {
                    state.current = made;
                    state.generation += 1;
                    tracing::info!(event = "tls_files_taken", files = ?paths);
                }
                Err(reason) => tracing::warn!(event = "tls_files_not_taken", files = ?paths, reason),
            }
        }
        (state.current.clone(), state.generation)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn case_l35_files_that_cannot_be_used_keep_the_last_value() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("number");
        std::fs::write(&path, "1").unwrap();
        let make = {
            let path = path.clone();
            move || {
                let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
                text.parse::<u32>().map_err(|error| error.to_string())
            }
        };
        let number = Reloaded::new(vec![path.clone()], make.clone()).unwrap();
        assert_eq!(number.current_and_generation(), (1, 0));
        assert_eq!(number.current_and_generation(), (1, 0), "nothing changed");
        std::fs::write(&path, "2").unwrap();
        assert_eq!(number.current_and_generation(), (2, 1));
        std::fs::write(&path, "no number").unwrap();
        assert_eq!(number.current_and_generation(), (2, 1));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(number.current_and_generation(), (2, 1));
        std::fs::write(&path, "3").unwrap();
        assert_eq!(number.current_and_generation(), (3, 2));
        std::fs::write(&path, "no number").unwrap();
        assert!(Reloaded::new(vec![path], make).is_err(), "there is nothing to keep");
    }
}
