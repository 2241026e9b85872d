//! The second flight of a verb: what is written with every step, and how its writes hang together.

use super::rows::{odd, payout, signed};
use super::seen::SeenAt;
use crate::{Command, Payout, StepOutcome, decide};
use pg_kit::{Param, Statement, Stopped, Transaction};
use tokio_postgres::types::Type;

/// Whoever writes facts takes this row last and holds it until COMMIT, so that the order of their places is the order of
/// commit, and a cursor misses none.
pub(super) const TURNSTILE: Statement<'static> = ("SELECT 1 FROM pay_turnstile WHERE id = 1 FOR NO KEY UPDATE", &[]);

/// Advances the mark. The fenced write demands that it stands at the token.
const ADVANCE: &str = "UPDATE account SET fence = $2 WHERE account_id = $1 AND fence < $2";

/// The step. The payout is named through what the fenced write must have left: where that found nothing, the name is null,
/// the statement fails, and COMMIT becomes a rollback.
const TRANSITION: &str =
    "INSERT INTO payout_transition (payout_id, step, from_state, to_state, token, actor, at, detail)
  VALUES ((SELECT payout_id FROM payout WHERE payout_id = $1 AND state = $4 AND version = $9),
          $2, $3, $4, $5, $6, $7, $8)";

pub(super) const EVENT: &str = "INSERT INTO payment_event (at, kind, account_id, payout_id, token, actor, reason)
  VALUES ($1, $2, $3, $4, $5, $6, $7)";

/// What a step writes beside what every step does.
pub(super) struct Writes<'a> {
    /// Whether the mark goes to the token.
    pub(super) advances: bool,
    /// The fenced write: answers the payout as it is then, with its version raised by one.
    pub(super) payout: Statement<'a>,
    /// What follows it.
    pub(super) then: &'a [Statement<'a>],
}

/// Writes a step and commits.
pub(super) async fn step(
    transaction: Transaction,
    command: &Command,
    at: &SeenAt,
    writes: Writes<'_>,
) -> Result<StepOutcome, Stopped> {
    let before = &at.seen.payout;
    let step = command.step();
    let kind = step.as_str().to_ascii_uppercase();
    let (from, to, step) = (before.state.as_str(), step.to().as_str(), step.as_str());
    let token = command.token().map(|token| signed(token.get()));
    let (actor, detail) = (decide::actor(command), decide::detail(command, &at.seen.evidence));
    let version = signed(before.version + 1);
    let (payout_id, account_id, now) = (&before.payout_id, &before.account_id, &at.now_ms);

    let advance: [Param<'_>; 2] = [(account_id, Type::TEXT), (&token, Type::INT8)];
    let transition: [Param<'_>; 9] = [
        (payout_id, Type::TEXT),
        (&step, Type::TEXT),
        (&from, Type::TEXT),
        (&to, Type::TEXT),
        (&token, Type::INT8),
        (&actor, Type::TEXT),
        (now, Type::INT8),
        (&detail, Type::TEXT),
        (&version, Type::INT8),
    ];
    let event: [Param<'_>; 7] = [
        (now, Type::INT8),
        (&kind, Type::TEXT),
        (account_id, Type::TEXT),
        (payout_id, Type::TEXT),
        (&token, Type::INT8),
        (&actor, Type::TEXT),
        (&detail, Type::TEXT),
    ];
    let mut statements = vec![TURNSTILE];
    if writes.advances {
        statements.push((ADVANCE, &advance));
    }
    let place = statements.len();
    statements.push(writes.payout);
    statements.push((TRANSITION, &transition));
    statements.extend(writes.then);
    statements.push((EVENT, &event));
    let answers = transaction.commit(&statements).await?;
    let now: Payout = answers
        .get(place)
        .and_then(|rows| rows.first())
        .map(payout)
        .transpose()?
        .ok_or_else(|| odd("a step"))?;
    Ok(StepOutcome::Done(Box::new(now)))
}
