//! Traffic of a fault's own: a payout that keeps the rail waiting, so that what lives only while a payout is under way is
//! there to be struck, and what the rail is told to do wrong is done to something.
//!
//! Owns: the payout, its account, its rules at the rail, and taking those back.
//! Does not own: paying it; the run's workers do, and the run waits for it as for any other.
//! On failure: [`RunError`] when the payment resource or the rail does not answer for long.

use super::fault::{Ground, SHOWS_WITHIN};
use crate::stack::{RunError, eventually};
use http_client::CallError;
use http_contract::payment::{CreatePayoutBody, Creditor, OpenAccountBody, PayoutAnswer};
use http_contract::rail::{FaultPlan, FaultRule};

/// How long the rail keeps a payout of a fault's own waiting: long enough to be found under way on a busy machine.
pub(super) const KEPT_WAITING_MS: u64 = 2_000;
/// How much of the fault's name stands in its payout's id, which may have 35 characters.
const NAME_MAX: usize = 26;
/// What its account has.
const OPENING_MINOR: i64 = 1_000_000;
/// How much it is about.
const AMOUNT_MINOR: i64 = 1_234;

/// A payout of a fault's own.
pub(super) struct Own {
    pub account: String,
    pub payout: String,
}

/// What the rail does with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Does {
    pub fault: &'static str,
    pub latency_ms: Option<u64>,
    pub times: Option<u64>,
}

impl Does {
    pub const fn always(fault: &'static str) -> Self {
        Self {
            fault,
            latency_ms: None,
            times: None,
        }
    }

    pub const fn after(fault: &'static str, latency_ms: u64) -> Self {
        Self {
            fault,
            latency_ms: Some(latency_ms),
            times: None,
        }
    }
}

/// Asks until it is answered or refused for good.
pub(super) async fn answered<T>(
    ground: &Ground<'_>,
    what: &str,
    mut call: impl AsyncFnMut() -> Result<T, CallError>,
) -> Result<T, RunError> {
    eventually(ground.stack.host(), what, SHOWS_WITHIN, async || match call().await {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.problem().is_none_or(|problem| problem.retryable) => Ok(None),
        Err(error) => Err(RunError::call(what)(error)),
    })
    .await
}

/// Changes what the rail is told to do wrong, and leaves the rest of it as others have asked for it.
pub(super) async fn change_plan(ground: &Ground<'_>, change: impl Fn(&mut FaultPlan)) -> Result<(), RunError> {
    let (stub, apis) = (&ground.apis.stub, ground.apis);
    answered(ground, "changing the rail's faults", async || {
        let mut plan = stub.faults(&apis.trace()).await?;
        change(&mut plan);
        stub.set_faults(&plan, &apis.trace()).await
    })
    .await
}

impl Own {
    /// One with a name of its own.
    pub fn new(ground: &Ground<'_>, fault: &str) -> Self {
        let what = fault.split_once('.').map_or(fault, |(_, what)| what).replace('_', "-");
        let chance = ground.random.below(1 << 32);
        let name = format!("{what:.NAME_MAX$}-{chance:08x}");
        Self {
            account: format!("account-{name}"),
            payout: name,
        }
    }

    /// Tells the rail what to do with it, and asks for it.
    pub async fn ask(&self, ground: &Ground<'_>, does: &[Does]) -> Result<(), RunError> {
        change_plan(ground, |plan| {
            plan.rules.extend(does.iter().map(|does| FaultRule {
                client_reference: self.payout.clone(),
                fault: does.fault.to_owned(),
                times: does.times,
                latency_ms: does.latency_ms,
                reason: None,
            }));
        })
        .await?;
        let (payments, apis) = (&ground.apis.payments, ground.apis);
        let account = OpenAccountBody {
            account_id: self.account.clone(),
            currency: crate::scenario::CURRENCY.to_owned(),
            opening_balance_minor: OPENING_MINOR,
        };
        answered(ground, "opening an account of a fault's own", async || {
            payments.open_account(&account, &apis.trace()).await
        })
        .await?;
        let payout = CreatePayoutBody {
            payout_id: Some(self.payout.clone()),
            account_id: self.account.clone(),
            amount_minor: AMOUNT_MINOR,
            currency: crate::scenario::CURRENCY.to_owned(),
            creditor: Creditor {
                name: "Creditor of a fault".to_owned(),
                account: "XX00TEST000000000000".to_owned(),
            },
            reference: Some("Synthetic payout of a fault".to_owned()),
        };
        answered(ground, "asking for a payout of a fault's own", async || {
            payments.create_payout(&self.payout, &payout, &apis.trace()).await
        })
        .await
        .map(drop)
    }

    /// As it is now; none while the payment resource does not answer.
    pub async fn look(&self, ground: &Ground<'_>) -> Option<PayoutAnswer> {
        let apis = ground.apis;
        apis.payments.payout(&self.payout, &apis.trace()).await.ok()
    }

    /// Its rules at the rail end.
    pub async fn withdraw(&self, ground: &Ground<'_>) -> Result<(), RunError> {
        change_plan(ground, |plan| {
            plan.rules.retain(|rule| rule.client_reference != self.payout);
        })
        .await
    }
}
