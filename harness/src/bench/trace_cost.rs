//! What the trace costs: two lock servers in one run, one with its trace and one without, measured in turns.

use super::server::Server;
use super::{BenchPlan, load};
use crate::stack::RunError;
use crate::stack::processes::Lab;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceCost {
    /// Clients of the closed loop.
    pub clients: usize,
    /// Acquire+release pairs each second with the trace and without, for each pair of rounds.
    pub rounds: Vec<Round>,
    /// The middle one of the rounds' ratios: pairs with the trace by pairs without.
    pub ratio: f64,
    /// The smallest and the largest ratio: how noisy it was.
    pub ratio_from: f64,
    /// See `ratio_from`.
    pub ratio_to: f64,
    /// The same between two rounds without the trace: what a ratio is worth where nothing differs.
    pub noise_from: f64,
    /// See `noise_from`.
    pub noise_to: f64,
    /// Calls that failed.
    pub errors: u64,
}

/// One round with the trace between two without.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Without the trace, before.
    pub off_before_per_s: f64,
    /// With the trace.
    pub on_per_s: f64,
    /// Without the trace, after.
    pub off_after_per_s: f64,
}

impl Round {
    /// With the trace, against the mean of its neighbours without: what drifts evenly falls out.
    fn ratio(self) -> f64 {
        self.on_per_s / f64::midpoint(self.off_before_per_s, self.off_after_per_s)
    }

    fn noise(self) -> f64 {
        self.off_after_per_s / self.off_before_per_s
    }
}

/// Measures `rounds` rounds, each between two of the server without a trace.
///
/// # Errors
/// When a server cannot be started.
pub(super) async fn run(lab: &Lab, plan: &BenchPlan, rounds: usize, say: &dyn Fn(&str)) -> Result<TraceCost, RunError> {
    let clients = plan.clients.iter().copied().max().unwrap_or(1);
    let with = |name: &str, capacity: &str| {
        let mut plan = plan.clone();
        plan.dir = plan.dir.join(name);
        plan.settings
            .insert("debug.trace-capacity".to_owned(), capacity.to_owned());
        plan
    };
    let off = Server::start(lab, &with("without-trace", "0")).await?;
    let on = Server::start(lab, &with("with-trace", super::TRACE_CAPACITY)).await?;
    let mut errors = 0;
    let mut measure = async |server: &Server| -> Result<f64, RunError> {
        let measured = load::closed_loop(server, lab.host(), clients, plan).await?;
        errors += measured.errors.values().sum::<u64>();
        Ok(measured.pairs_per_s)
    };
    let mut measured = Vec::new();
    let mut before = measure(&off).await?;
    for n in 1..=rounds {
        let on_per_s = measure(&on).await?;
        let after = measure(&off).await?;
        let round = Round {
            off_before_per_s: before,
            on_per_s,
            off_after_per_s: after,
        };
        say(&format!("round {n} of {rounds}: {:.3}", round.ratio()));
        measured.push(round);
        before = after;
    }
    off.stop().await?;
    on.stop().await?;
    Ok(TraceCost::of(clients, measured, errors))
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

impl TraceCost {
    fn of(clients: usize, rounds: Vec<Round>, errors: u64) -> Self {
        let ratios = sorted(rounds.iter().map(|round| round.ratio()));
        let noise = sorted(rounds.iter().map(|round| round.noise()));
        let ends = |values: &[f64]| {
            (
                values.first().copied().unwrap_or(f64::NAN),
                values.last().copied().unwrap_or(f64::NAN),
            )
        };
        let ratio = match ratios.len() {
            0 => f64::NAN,
            n if n % 2 == 0 => f64::midpoint(ratios[n / 2 - 1], ratios[n / 2]),
            n => ratios[n / 2],
        };
        let ((ratio_from, ratio_to), (noise_from, noise_to)) = (ends(&ratios), ends(&noise));
        Self {
            clients,
            rounds,
            ratio,
            ratio_from,
            ratio_to,
            noise_from,
            noise_to,
            errors,
        }
    }

    pub(super) fn text(&self, text: &mut String) {
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "\nthe trace on and off in turns, closed loop, {} clients (acquire+release/s)",
            self.clients
        );
        for round in &self.rounds {
            let _ = writeln!(
                text,
                "  off {:>7.0}   on {:>7.0}   off {:>7.0}   on/off {:.3}",
                round.off_before_per_s,
                round.on_per_s,
                round.off_after_per_s,
                round.ratio()
            );
        }
        let _ = writeln!(
            text,
            "  throughput with the trace: {:.3} of that without (rounds {:.3} to {:.3}; off against off {:.3} to {:.3}), {} errors",
            self.ratio, self.ratio_from, self.ratio_to, self.noise_from, self.noise_to, self.errors
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drift_falls_out_and_the_middle_counts() {
        let round = |off_before_per_s, on_per_s, off_after_per_s| Round {
            off_before_per_s,
            on_per_s,
            off_after_per_s,
        };
        let rounds = vec![
            round(100.0, 108.9, 120.0),
            round(120.0, 55.0, 100.0),
            round(100.0, 100.0, 100.0),
        ];
        let cost = TraceCost::of(4, rounds, 0);
        assert_eq!((cost.ratio * 1_000.0).round(), 990.0);
        assert_eq!((cost.ratio_from, cost.ratio_to, cost.noise_to), (0.5, 1.0, 1.2));
    }
}
