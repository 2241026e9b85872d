//! The rail's own book: what it read, executed and declined. The harness's verdicts rest on it.
//!
//! Owns: the book, in memory, and its way into a file and back. Does not own: when something is entered. On failure: a
//! line that cannot be written ends the process, as money that moved without an entry would be a lie.

use crate::fault::{Fault, Faults, draw};
use crate::journal::{Entry, Journal};
use rand::Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use tokio::time::Instant;

/// One execution: money has moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    pub rail_reference: String,
    pub amount_minor: i64,
    pub currency: String,
    pub at: String,
}

/// One refusal by the rail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Declined {
    pub reason: String,
    pub at: String,
}

/// What a lookup sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lookup {
    pub client_reference: String,
    pub executions: Vec<Execution>,
    pub declined: Vec<Declined>,
    pub bodies_read: u64,
    /// The rail promises that nothing more will execute of what it was sent: it has read a call of this reference, and
    /// none is still being handled, still to execute, or still hidden.
    pub r#final: bool,
}

/// What `GET /stats` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    pub bodies_read: u64,
    pub executed: u64,
    pub declined: u64,
    pub by_fault: BTreeMap<Fault, u64>,
}

#[derive(Debug, Default)]
struct Page {
    bodies_read: u64,
    lookups: u64,
    /// Calls that were read and may still execute.
    open: u64,
    /// Executions, each with the instant from which lookups see it.
    executions: Vec<(Execution, Instant)>,
    declined: Vec<Declined>,
}

/// The book with the faults in force.
#[derive(Debug)]
pub struct Book {
    seed: u64,
    pub faults: Faults,
    stats: Stats,
    pages: BTreeMap<String, Page>,
    /// Where each entry goes before anybody can see it.
    journal: Option<Journal>,
}

impl Book {
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            faults: Faults::default(),
            stats: Stats::default(),
            pages: BTreeMap::new(),
            journal: None,
        }
    }

    /// Reads what a file has of an earlier run, and keeps every further entry there. Calls that were open when that run
    /// ended will not execute any more.
    pub fn keep_in(&mut self, file: &Path) -> io::Result<()> {
        let (journal, entries) = Journal::open(file)?;
        for entry in entries {
            match entry {
                Entry::Body => self.stats.bodies_read += 1,
                Entry::Call { reference } => self.pages.entry(reference).or_default().bodies_read += 1,
                Entry::Executed { reference, execution } => {
                    self.stats.executed += 1;
                    let page = self.pages.entry(reference).or_default();
                    page.executions.push((execution, Instant::now()));
                }
                Entry::Declined { reference, declined } => {
                    self.stats.declined += 1;
                    self.pages.entry(reference).or_default().declined.push(declined);
                }
            }
        }
        self.journal = Some(journal);
        Ok(())
    }

    fn enter(&mut self, entry: &Entry) {
        if let Some(journal) = &mut self.journal {
            journal.append(entry);
        }
    }

    pub const fn seed(&self) -> u64 {
        self.seed
    }

    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// A body was read to its last byte, whatever it says.
    pub fn body_read(&mut self) {
        self.enter(&Entry::Body);
        self.stats.bodies_read += 1;
    }

    /// It is a call of this reference: opens it. Answers which one, from 0.
    pub fn open(&mut self, reference: &str) -> u64 {
        self.enter(&Entry::Call {
            reference: reference.to_owned(),
        });
        let page = self.pages.entry(reference.to_owned()).or_default();
        page.bodies_read += 1;
        page.open += 1;
        page.bodies_read - 1
    }

    /// The call will not execute any more.
    pub fn close(&mut self, reference: &str) {
        if let Some(page) = self.pages.get_mut(reference) {
            page.open = page.open.saturating_sub(1);
        }
    }

    /// A fault was met.
    pub fn count(&mut self, fault: Fault) {
        *self.stats.by_fault.entry(fault).or_insert(0) += 1;
    }

    /// Money moves, and lookups see it after `hidden_for`. Answers the rail's reference.
    pub fn execute(
        &mut self,
        reference: &str,
        amount_minor: i64,
        currency: &str,
        hidden_for: Duration,
        at: OffsetDateTime,
    ) -> String {
        self.stats.executed += 1;
        let rail_reference = self.reference(reference, self.stats.executed);
        let execution = Execution {
            rail_reference: rail_reference.clone(),
            amount_minor,
            currency: currency.to_owned(),
            at: rfc3339(at),
        };
        self.enter(&Entry::Executed {
            reference: reference.to_owned(),
            execution: execution.clone(),
        });
        let page = self.pages.entry(reference.to_owned()).or_default();
        page.executions.push((execution, Instant::now() + hidden_for));
        rail_reference
    }

    /// A reference of the rail's own, never given twice by one stub.
    pub fn reference(&self, reference: &str, nth: u64) -> String {
        let noise: u32 = draw(self.seed, reference, nth, "rail_reference").random();
        format!("RAIL-{nth:06}-{noise:08x}")
    }

    /// The rail refuses.
    pub fn decline(&mut self, reference: &str, reason: &str, at: OffsetDateTime) {
        self.stats.declined += 1;
        let declined = Declined {
            reason: reason.to_owned(),
            at: rfc3339(at),
        };
        self.enter(&Entry::Declined {
            reference: reference.to_owned(),
            declined: declined.clone(),
        });
        let page = self.pages.entry(reference.to_owned()).or_default();
        page.declined.push(declined);
    }

    /// Which lookup of this reference this is, from 0. A reference the rail never heard of keeps no page.
    pub fn next_lookup(&mut self, reference: &str) -> u64 {
        self.pages.get_mut(reference).map_or(0, |page| {
            page.lookups += 1;
            page.lookups - 1
        })
    }

    /// What a lookup sees now.
    pub fn look_up(&self, reference: &str) -> Lookup {
        let now = Instant::now();
        let (executions, hidden): (Vec<_>, Vec<_>) = self
            .pages
            .get(reference)
            .into_iter()
            .flat_map(|page| &page.executions)
            .partition(|(_, visible_from)| *visible_from <= now);
        let page = self.pages.get(reference);
        Lookup {
            client_reference: reference.to_owned(),
            executions: executions.into_iter().map(|(execution, _)| execution.clone()).collect(),
            declined: page.map(|page| page.declined.clone()).unwrap_or_default(),
            bodies_read: page.map_or(0, |page| page.bodies_read),
            r#final: page.is_some_and(|page| page.bodies_read > 0 && page.open == 0) && hidden.is_empty(),
        }
    }
}

fn rfc3339(at: OffsetDateTime) -> String {
    /// Of one width, so that who compares the texts compares the instants.
    const MILLISECONDS: &[BorrowedFormatItem<'_>] =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
    at.to_offset(time::UtcOffset::UTC)
        .format(MILLISECONDS)
        .unwrap_or_default()
}
