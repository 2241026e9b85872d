//! The life of a fault: healthy before, injected, its effect seen, held, undone, healthy after.

use super::catalogue::Entry;
use super::fault::{FaultRecord, Ground};
use crate::stack::RunError;
use std::time::Duration;

/// A fault that has ended, and whether the stack got over it.
#[derive(Debug)]
pub struct Lived {
    /// What became of it.
    pub record: FaultRecord,
    /// What was not healthy again in time; nothing when all is well.
    pub ill: Option<String>,
}

/// Runs one fault through its life and holds it for `hold` once its effect was seen. `began` is the run's start.
///
/// # Errors
/// When the stack is not healthy before, when the fault cannot be injected or undone, or when its effect never shows.
pub async fn live(ground: &Ground<'_>, entry: &Entry, hold: Duration, began: Duration) -> Result<Lived, RunError> {
    let clock = &ground.stack.host().clock;
    let since = |from: Duration| u64::try_from(clock.mono().saturating_sub(from).as_millis()).unwrap_or(u64::MAX);
    let named = |error: RunError| RunError::Other(format!("{}: {error}", entry.kind.name));
    ground.healthy().await.map_err(named)?;
    let fault = (entry.make)(ground).map_err(named)?;
    let injected_ms = since(began);
    fault.inject(ground).await.map_err(named)?;
    let observed = fault.observe(ground).await;
    if observed.is_ok() {
        clock.sleep(hold).await;
    }
    // What was injected is taken back whatever was seen of it.
    let (undone_ms, undoing) = (since(began), clock.mono());
    fault.undo(ground).await.map_err(named)?;
    let observed = observed.map_err(named)?;
    let ill = match ground.healthy().await {
        Ok(()) => None,
        Err(error @ RunError::NeverCame { .. }) => Some(named(error).to_string()),
        Err(error) => return Err(named(error)),
    };
    let record = FaultRecord {
        kind: entry.kind.name.to_owned(),
        target: fault.target(),
        injected_ms,
        observed,
        undone_ms,
        recovered_ms: since(undoing),
    };
    Ok(Lived { record, ill })
}
