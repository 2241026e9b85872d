//! Where a run leaves its files.
//!
//! Owns: a directory that is kept, or a temporary one that goes away unless the run went wrong: the data of a failed run
//! is what explains it.
//! On failure: [`RunError`] when it cannot be made.

use crate::stack::RunError;
use std::path::{Path, PathBuf};

/// A run's directory.
#[derive(Debug)]
pub enum Workdir {
    /// Stays.
    Kept(PathBuf),
    /// Goes with the value, unless it is kept after all.
    Temporary(tempfile::TempDir),
}

impl Workdir {
    /// The directory that the user named; a new temporary one where none was named.
    ///
    /// # Errors
    /// When it cannot be made, or what is there already would be mixed with this run.
    pub fn new(keep: Option<PathBuf>) -> Result<Self, RunError> {
        let Some(path) = keep else {
            return tempfile::Builder::new()
                .prefix("dlock-")
                .tempdir()
                .map(Self::Temporary)
                .map_err(RunError::io("making a temporary directory"));
        };
        std::fs::create_dir_all(&path).map_err(RunError::io(format!("making {}", path.display())))?;
        let mut entries = std::fs::read_dir(&path).map_err(RunError::io(format!("reading {}", path.display())))?;
        if entries.next().is_some() {
            return Err(RunError::Other(format!(
                "{} is not empty; a run wants a directory of its own",
                path.display()
            )));
        }
        Ok(Self::Kept(path))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Temporary(dir) => dir.path(),
        }
    }

    /// Ends it: answers the path where the files stay, if they do.
    #[must_use]
    pub fn end(self, keep_anyway: bool) -> Option<PathBuf> {
        match self {
            Self::Kept(path) => Some(path),
            Self::Temporary(dir) if keep_anyway => Some(dir.keep()),
            Self::Temporary(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_directory_goes_unless_it_is_kept() {
        let dir = Workdir::new(None).unwrap();
        let path = dir.path().to_owned();
        assert_eq!(dir.end(false), None);
        assert!(!path.exists());
        let kept = Workdir::new(None).unwrap().end(true).unwrap();
        assert!(kept.exists());
        std::fs::remove_dir_all(kept).unwrap();
    }

    #[test]
    fn runs_are_not_mixed() {
        let dir = tempfile::tempdir().unwrap();
        let mine = dir.path().join("mine");
        drop(Workdir::new(Some(mine.clone())).unwrap());
        std::fs::write(mine.join("x"), "x").unwrap();
        assert!(Workdir::new(Some(mine)).is_err());
    }
}
