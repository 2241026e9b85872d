//! The request to yield: noted with the grant, under the session's lease, so that it goes with them.

use super::error::CallError;
use super::plan::Plan;
use super::records::YieldRecord;
use super::shared::{Holding, Shared};
use super::snapshot::Wants;
use lock_api::{YieldOutcome, YieldRequest};
use tokio::time::Instant;

impl Shared {
    pub(super) async fn ask_to_yield(
        &self,
        request: &YieldRequest,
        deadline: Instant,
    ) -> Result<YieldOutcome, CallError> {
        let _turn = self.turn(deadline).await?;
        let key = request.key.as_str();
        loop {
            let mut wants = Wants::new(&self.layout);
            wants.key(key);
            let snapshot = self.read(wants, deadline).await?;
            let (now, wall) = (self.clock.mono(), self.clock.wall_ms());
            let rows = snapshot.key(key);
            if rows.record.is_none() {
                return Ok(YieldOutcome::NotFound);
            }
            let Holding::Held(live) = self.holding(key, &rows, now) else {
                return Ok(YieldOutcome::NotHeld);
            };
            let mut grant = self.show(request.key.clone(), &live, now)?;
            if grant.token != request.token {
                let holder = Box::new(grant);
                return Ok(YieldOutcome::NotHolder { holder });
            }
            if grant.yield_asked.is_some() {
                return Ok(YieldOutcome::Asked(grant));
            }
            let asked = YieldRecord {
                token: live.token,
                session: live.holder.session.clone(),
                by: request.operator.as_str().to_owned(),
                reason: request.reason.clone(),
                at: wall,
            };
            let mut plan = Plan::new(&self.layout, &snapshot, wall);
            plan.ask_to_yield(key, &rows, live.holder.lease, &asked)?;
            match self.commit(plan, deadline).await {
                Ok(Some(_)) => {
                    grant.yield_asked = YieldRecord::of(Some(&asked), live.token)?;
                    return Ok(YieldOutcome::Asked(grant));
                }
                // A lease that ended meanwhile is seen by the next reading.
                Ok(None) | Err(CallError::LeaseGone) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
