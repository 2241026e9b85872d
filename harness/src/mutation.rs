//! The mutations of the checkers: one planted violation of each kind, and the verdict that must catch it.
//!
//! Owns: the table. Each mutation plants one fault into evidence that is in order, wherever it fits; the same mutations
//! are planted into a fixed run and into random lawful ones.
//! Does not own: the checks.
//! On failure: a mutation that nobody caught is a row without a catcher; whoever prints the table fails on it.

mod locks;
mod money;
#[cfg(test)]
mod random;

use crate::invariant::{Invariant, check_all, sample};
use crate::model::Evidence;

/// Chooses one of so many.
pub type Pick<'a> = &'a mut dyn FnMut(usize) -> usize;

/// A fault to plant.
#[derive(Clone, Copy, Debug)]
pub struct Mutation {
    /// What is wrong afterwards.
    pub name: &'static str,
    /// Who must notice.
    pub caught_by: Invariant,
    /// Plants it; false where the evidence has no place for it.
    pub plant: fn(&mut Evidence, Pick<'_>) -> bool,
}

/// What became of a mutation.
#[derive(Clone, Debug)]
pub struct Row {
    /// The mutation.
    pub mutation: Mutation,
    /// Every verdict that it broke, with the first thing it said.
    pub broken: Vec<(Invariant, String)>,
}

impl Row {
    /// Whether the verdict that must notice did.
    #[must_use]
    pub fn caught(&self) -> bool {
        self.broken.iter().any(|(by, _)| *by == self.mutation.caught_by)
    }
}

/// All mutations.
#[must_use]
pub fn all() -> Vec<Mutation> {
    [locks::MUTATIONS, money::MUTATIONS].concat()
}

/// Plants each into the fixed run and judges it.
#[must_use]
pub fn table() -> Vec<Row> {
    all()
        .into_iter()
        .map(|mutation| {
            let mut evidence = sample::good();
            let planted = (mutation.plant)(&mut evidence, &mut |_| 0);
            Row {
                mutation,
                broken: if planted { broken(&evidence) } else { Vec::new() },
            }
        })
        .collect()
}

/// Which verdicts this evidence breaks.
#[must_use]
pub fn broken(evidence: &Evidence) -> Vec<(Invariant, String)> {
    check_all(evidence)
        .into_iter()
        .filter_map(|verdict| {
            let first = verdict.violations.into_iter().next()?;
            Some((verdict.invariant, first))
        })
        .collect()
}

/// The table as Markdown.
#[must_use]
pub fn markdown(rows: &[Row]) -> String {
    let mut text =
        "| planted violation | caught by | what it said | others that noticed |\n|---|---|---|---|\n".to_owned();
    for row in rows {
        let must = row.mutation.caught_by;
        let said = row.broken.iter().find(|(by, _)| *by == must);
        let others: Vec<_> = row
            .broken
            .iter()
            .filter(|(by, _)| *by != must)
            .map(|(by, _)| by.id())
            .collect();
        let caught = if said.is_some() { must.id() } else { "**nobody**" };
        let said = said.map_or("", |(_, text)| text);
        text += &format!(
            "| {} | {caught} | {said} | {} |\n",
            row.mutation.name,
            others.join(", ")
        );
    }
    text
}

/// The indices of the elements that fit.
fn places<T>(items: &[T], fits: impl Fn(&T) -> bool) -> Vec<usize> {
    (0..items.len()).filter(|n| fits(&items[*n])).collect()
}

/// One of the elements that fit, if any does.
fn one<'a, T>(items: &'a mut [T], pick: Pick<'_>, fits: impl Fn(&T) -> bool) -> Option<&'a mut T> {
    let places = places(items, fits);
    if places.is_empty() {
        return None;
    }
    let place = places[pick(places.len())];
    items.get_mut(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_planted_violation_is_caught_by_the_verdict_it_belongs_to() {
        let rows = table();
        println!("{}", markdown(&rows));
        let missed: Vec<_> = rows.iter().filter(|row| !row.caught()).collect();
        assert!(missed.is_empty(), "{missed:#?}");
        for invariant in Invariant::EVERY.into_iter().chain([Invariant::LockDelay]) {
            assert!(
                rows.iter().any(|row| row.mutation.caught_by == invariant),
                "{invariant}"
            );
        }
    }
}
