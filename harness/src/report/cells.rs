//! UC-03's cells: what each must come to, and what it came to.
//!
//! Owns: the result of a cell, and the money that a fence switched off let go.
//! Does not own: running it.
//! On failure: plain data cannot fail.

use super::{Check, ScenarioReport};
use crate::invariant::{Invariant, Verdict};
use serde::{Deserialize, Serialize};

/// What a cell of the matrix must come to, or came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellOutcome {
    /// Executions at the rail.
    pub executions: usize,
    /// Legs in the ledger.
    pub legs: usize,
    /// Which of INV-02 and INV-03 were broken.
    pub broken: Vec<Invariant>,
}

impl std::fmt::Display for CellOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} execution{}, {} legs",
            self.executions,
            if self.executions == 1 { "" } else { "s" },
            self.legs
        )?;
        for (n, invariant) in self.broken.iter().enumerate() {
            write!(f, "{}{invariant}", if n == 0 { "; broken: " } else { ", " })?;
        }
        Ok(())
    }
}

/// One cell of UC-03's matrix.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellReport {
    /// Fence point (a) stood.
    pub payment_fencing: bool,
    /// Fence point (c) stood.
    pub rail_fencing: bool,
    /// Where W1 was paused: `claim`, `submit`, `post`.
    pub paused_before: String,
    /// What it must come to.
    pub expected: CellOutcome,
    /// What it came to.
    pub measured: CellOutcome,
    /// The payout's amount.
    pub amount_minor: i64,
    /// Everything else about the cell.
    pub report: ScenarioReport,
}

impl CellReport {
    /// Whether it came out as it must. With both fences on every invariant must hold as well.
    #[must_use]
    pub fn ok(&self) -> bool {
        let all_held = self.report.verdicts.iter().all(Verdict::held);
        self.measured == self.expected
            && self.report.checks.iter().all(Check::ok)
            && (all_held || !(self.payment_fencing && self.rail_fencing))
    }

    /// Money that left although it must not have, in minor units.
    #[must_use]
    pub fn lost_minor(&self) -> i64 {
        let again = i64::try_from(self.measured.executions.saturating_sub(1)).unwrap_or(i64::MAX);
        again.saturating_mul(self.amount_minor)
    }

    /// Money that the ledger states wrongly, in minor units.
    #[must_use]
    pub fn misstated_minor(&self) -> i64 {
        if !self.measured.broken.contains(&Invariant::Inv03) {
            return 0;
        }
        let pairs = i64::try_from(self.measured.legs / 2).unwrap_or(i64::MAX);
        // One pair under a payout that is not POSTED is as wrong as one pair too many.
        (pairs - 1).max(1).saturating_mul(self.amount_minor)
    }
}
