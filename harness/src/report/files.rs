//! The files of a run.
//!
//! Owns: their names, and writing them into one directory.
//! Does not own: what stands in them.
//! On failure: [`RunError`] with the path that could not be written.

use super::{LEDGER, Run, events, html, json, junit};
use crate::stack::RunError;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

impl Run {
    /// Writes `report.html`, `report.json`, `history.jsonl`, `junit.xml` and the ledgers of its stacks
    /// (`ledger.beancount`, or `ledger-<stack>.beancount` where there are several) into this directory, which is made
    /// where it is missing. Files of these names that are there already are replaced.
    ///
    /// # Errors
    /// When one cannot be written, with its path.
    pub fn write(&self, dir: &Path) -> Result<(), RunError> {
        std::fs::create_dir_all(dir).map_err(RunError::io(format!("making {}", dir.display())))?;
        write(&dir.join("report.html"), html::page(self).as_bytes())?;
        let other = |error: &dyn std::fmt::Display| RunError::Other(format!("a report cannot be written: {error}"));
        let text = serde_json::to_vec_pretty(&json::document(self)).map_err(|error| other(&error))?;
        write(&dir.join("report.json"), &text)?;
        write(
            &dir.join("junit.xml"),
            junit::xml(self).map_err(|error| other(&error))?.as_bytes(),
        )?;
        lines(&dir.join("history.jsonl"), &events::all(self))?;
        let stacks: Vec<_> = self.stories.iter().flat_map(|story| &story.stacks).collect();
        for stack in &stacks {
            let Some(ledger) = &stack.ledger else { continue };
            let name = if stacks.len() == 1 {
                LEDGER.to_owned()
            } else {
                format!("ledger-{}.beancount", stack.name)
            };
            write(&dir.join(name), ledger.as_bytes())?;
        }
        Ok(())
    }
}

/// Makes sure before a long run that its report can be written.
///
/// # Errors
/// When the directory cannot be made or nothing can be written there, with its path.
pub fn writable(dir: &Path) -> Result<(), RunError> {
    std::fs::create_dir_all(dir).map_err(RunError::io(format!("making {}", dir.display())))?;
    tempfile::tempfile_in(dir)
        .map(drop)
        .map_err(RunError::io(format!("writing into {}", dir.display())))
}

fn write(path: &Path, text: &[u8]) -> Result<(), RunError> {
    std::fs::write(path, text).map_err(writing(path))
}

fn lines(path: &Path, events: &[impl serde::Serialize]) -> Result<(), RunError> {
    let mut out = BufWriter::new(File::create(path).map_err(writing(path))?);
    for event in events {
        serde_json::to_writer(&mut out, event).map_err(|error| writing(path)(error.into()))?;
        out.write_all(b"\n").map_err(writing(path))?;
    }
    out.flush().map_err(writing(path))
}

fn writing(path: &Path) -> impl FnOnce(std::io::Error) -> RunError + use<> {
    let path: PathBuf = path.to_owned();
    RunError::io(format!("writing {}", path.display()))
}
