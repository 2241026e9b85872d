//! What a human sees while something runs: a bar or a status line on a terminal, plain lines elsewhere.
//!
//! Owns: standard error while a run goes on. Does not own: results, which go to standard output.
//! On failure: nothing here can fail; a terminal that is gone is written to in vain.

use host_kit::Clock;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::io::IsTerminal;
use std::rc::Rc;
use std::time::Duration;

/// How often a status is told where there is no terminal whose line could be rewritten.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// Progress on standard error. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Progress {
    bar: ProgressBar,
    terminal: bool,
    clock: Clock,
    told: Rc<Cell<Option<Duration>>>,
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Progress {
    /// So many of so many.
    #[must_use]
    pub fn bar(clock: &Clock) -> Self {
        Self::new(
            ProgressBar::no_length(),
            "{elapsed_precise} {wide_bar} {pos}/{len}",
            clock,
        )
    }

    /// A line that says how it stands.
    #[must_use]
    pub fn spinner(clock: &Clock) -> Self {
        Self::new(ProgressBar::new_spinner(), "{spinner} {msg}", clock)
    }

    fn new(bar: ProgressBar, template: &str, clock: &Clock) -> Self {
        bar.set_style(style(template));
        Self {
            bar,
            terminal: std::io::stderr().is_terminal(),
            clock: clock.clone(),
            told: Rc::default(),
        }
    }

    /// A line that stays.
    pub fn tell(&self, line: &str) {
        if self.terminal {
            self.bar.println(line);
        } else {
            eprintln!("{line}");
        }
    }

    /// So many of so many are done, and this one was it.
    pub fn done(&self, done: usize, total: usize, line: &str) {
        self.bar.set_length(u64::try_from(total).unwrap_or(u64::MAX));
        self.bar.set_position(u64::try_from(done).unwrap_or(u64::MAX));
        self.tell(&format!("[{done}/{total}] {line}"));
    }

    /// How it stands now.
    pub fn status(&self, line: &str) {
        if self.terminal {
            self.bar.set_message(line.to_owned());
            self.bar.tick();
        } else if self
            .told
            .get()
            .is_none_or(|last| self.clock.mono() >= last + PLAIN_EVERY)
        {
            self.told.set(Some(self.clock.mono()));
            eprintln!("{line}");
        }
    }

    /// A result on standard output, while the line goes on below it.
    pub fn print(&self, line: &str) {
        self.bar.suspend(|| println!("{line}"));
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
