//! What an operator's hand does to a running system: a live holder revoked, a session ended, the barrier raised.
//!
//! Owns: finding a live holder (the fault brings one), the operator's verb, seeing it in the audit trail and at the marks.
//! Does not own: what the holder does next; both fence points decide that. On failure: a verb that is never answered, or
//! leaves no trace, fails the fault. None of them can be taken back: each is overtaken by the next grant.

use super::catalogue::Entry;
use super::fault::{Fault, Ground, Kind, Level, SHOWS_WITHIN, StoreKind};
use super::own::{Does, KEPT_WAITING_MS, Own, answered};
use crate::model::lock_key;
use crate::stack::{RunError, Step, eventually};
use http_contract::Code;
use http_contract::lock::{AuditRow, Holder, RevokeBody};
use lock_api::{FencingToken, LockKey};
use std::cell::{Cell, RefCell};

const OPERATOR: &str = "operator.chaos";
const REASON: &str = "a fault of the chaos catalogue";
/// How many rows of the audit trail are read at once.
const PAGE: u32 = 1_000;

const fn kind(name: &'static str, what: &'static str) -> Kind {
    Kind {
        name,
        level: Level::Operator,
        what,
        undo: "nothing to take back: the next grant overtakes it",
        on: &StoreKind::ALL,
    }
}

/// The entries of this level.
pub const ENTRIES: &[Entry] = &[
    Entry {
        kind: kind(
            "operator.revoke_holder",
            "an operator breaks the grant of a live holder who has its payout at the rail",
        ),
        make: |ground| made("operator.revoke_holder", Verb::Revoke, ground),
    },
    Entry {
        kind: kind(
            "operator.session_ended",
            "an operator ends the session of a worker that is alive and has a payout at the rail",
        ),
        make: |ground| made("operator.session_ended", Verb::EndSession, ground),
    },
    Entry {
        kind: kind(
            "operator.payments_fenced_off",
            "an operator breaks a live holder's grant and raises the barrier at both fence points at once",
        ),
        make: |ground| made("operator.payments_fenced_off", Verb::FenceOff, ground),
    },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Revoke,
    EndSession,
    FenceOff,
}

fn made(name: &'static str, verb: Verb, ground: &Ground<'_>) -> Result<Box<dyn Fault>, RunError> {
    Ok(Box::new(OperatorFault {
        verb,
        own: Own::new(ground, name),
        struck: RefCell::default(),
        token: Cell::default(),
    }))
}

struct OperatorFault {
    verb: Verb,
    own: Own,
    /// The holder, or the session that was ended.
    struck: RefCell<Option<String>>,
    /// The token of the revoke, or of the grant that ended with its session.
    token: Cell<u64>,
}

impl OperatorFault {
    fn key(&self) -> Result<LockKey, RunError> {
        LockKey::new(lock_key(&self.own.account)).map_err(|error| RunError::Other(error.to_string()))
    }

    /// Who holds the key of the fault's own account now.
    async fn holder(&self, ground: &Ground<'_>) -> Result<Option<Holder>, RunError> {
        let seen = ground.apis.locks.lock(&self.key()?, &ground.apis.trace()).await;
        Ok(seen.ok().and_then(|view| view.holder))
    }

    /// Breaks the live grant. None where there is none now.
    async fn revoke(&self, ground: &Ground<'_>) -> Result<Option<(String, u64)>, RunError> {
        let Some(holder) = self.holder(ground).await? else {
            return Ok(None);
        };
        let body = RevokeBody {
            revoke_token: holder.token,
            reason: REASON.to_owned(),
        };
        let (locks, trace) = (&ground.apis.locks, ground.apis.trace());
        match locks.revoke(&self.key()?, OPERATOR, &body, &trace).await {
            Ok(revoked) => Ok(Some((
                format!("{} under token {}", holder.owner, revoked.revoked_token),
                revoked.token,
            ))),
            // It was released or went on to another a moment ago, or its answer was lost: the next look shows which.
            Err(error)
                if matches!(error.code(), Some(Code::NotHeld | Code::NotHolder))
                    || error.problem().is_none_or(|problem| problem.retryable) =>
            {
                Ok(None)
            }
            Err(error) => Err(RunError::call("revoking")(error)),
        }
    }

    /// Ends the session that holds the key. None where nobody holds it now.
    async fn end_session(&self, ground: &Ground<'_>) -> Result<Option<(String, u64)>, RunError> {
        let (locks, key) = (&ground.apis.locks, self.key()?);
        let Ok(page) = locks.sessions(PAGE, None, &ground.apis.trace()).await else {
            return Ok(None);
        };
        let holds = page.items.into_iter().find_map(|session| {
            let held = session.held.iter().find(|held| held.key == key.as_str())?.token;
            Some((session, held))
        });
        let Some((session, token)) = holds else {
            return Ok(None);
        };
        answered(ground, "ending a session", async || {
            locks.close_session(&session.session_id, &ground.apis.trace()).await
        })
        .await?;
        Ok(Some((session.session_id, token)))
    }

    /// The row that the audit trail has of it.
    async fn audited(&self, ground: &Ground<'_>) -> Option<AuditRow> {
        let struck = self.struck.borrow().clone()?;
        let mut after = 0;
        loop {
            let page = ground.apis.locks.audit(after, PAGE, &ground.apis.trace()).await.ok()?;
            after = page.items.last()?.seq;
            let found = page.items.into_iter().find(|row| match self.verb {
                Verb::EndSession => row.kind == "SESSION_CLOSED" && row.session_id.as_deref() == Some(&*struck),
                Verb::Revoke | Verb::FenceOff => {
                    row.kind == "REVOKED"
                        && row.actor.as_deref() == Some(OPERATOR)
                        && row.lock_key.as_deref() == Some(&*lock_key(&self.own.account))
                }
            });
            if found.is_some() {
                return found;
            }
        }
    }

    fn revoke_token(&self) -> Result<FencingToken, RunError> {
        http_contract::token(self.token.get()).map_err(|error| RunError::Other(error.to_string()))
    }

    /// The marks of the account at both fence points.
    async fn marks(&self, ground: &Ground<'_>) -> Option<(u64, u64)> {
        let (apis, account) = (ground.apis, self.own.account.as_str());
        let payments = apis.payments.account(account, &apis.trace()).await.ok()?;
        let rail = apis.rail.high_water(account, &apis.trace()).await.ok()?;
        Some((payments.fence, rail.highest_token))
    }
}

impl Fault for OperatorFault {
    fn target(&self) -> String {
        let struck = self.struck.borrow();
        let whom = struck.as_deref().unwrap_or("nobody yet");
        format!("{} held by {whom}", lock_key(&self.own.account))
    }

    fn inject<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async {
            self.own.ask(ground, &[Does::after("latency", KEPT_WAITING_MS)]).await?;
            let host = ground.stack.host();
            let (struck, token) = eventually(host, "a live holder", SHOWS_WITHIN, async || match self.verb {
                Verb::EndSession => self.end_session(ground).await,
                Verb::Revoke | Verb::FenceOff => self.revoke(ground).await,
            })
            .await?;
            *self.struck.borrow_mut() = Some(struck);
            self.token.set(token);
            if self.verb == Verb::FenceOff {
                let (apis, account, token) = (ground.apis, self.own.account.as_str(), self.revoke_token()?);
                // The next holder may already have written above it: then the older token is shut out as well.
                let shut_out = |result: Result<(), http_client::CallError>| match result {
                    Err(error) if error.code() == Some(Code::FencedOut) => Ok(()),
                    other => other,
                };
                answered(ground, "fencing the payment resource", async || {
                    shut_out(apis.payments.fence(account, token, &apis.trace()).await.map(drop))
                })
                .await?;
                answered(ground, "fencing the rail proxy", async || {
                    shut_out(apis.rail.fence_account(account, token, &apis.trace()).await.map(drop))
                })
                .await?;
            }
            Ok(())
        })
    }

    fn observe<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, String> {
        Box::pin(async {
            let host = ground.stack.host();
            let row = eventually(
                host,
                "the operator's row in the audit trail",
                SHOWS_WITHIN,
                async || Ok(self.audited(ground).await),
            )
            .await?;
            let audited = format!("the audit trail has {} as event {}", row.kind, row.seq);
            if self.verb != Verb::FenceOff {
                return Ok(audited);
            }
            let least = self.token.get().saturating_sub(1);
            let (payments, rail) = eventually(host, "both marks above the revoked token", SHOWS_WITHIN, async || {
                Ok(self
                    .marks(ground)
                    .await
                    .filter(|(payments, rail)| *payments >= least && *rail >= least))
            })
            .await?;
            Ok(format!(
                "{audited}; the marks stand at {payments} and {rail}, the revoke was token {}",
                self.token.get()
            ))
        })
    }

    fn undo<'a>(&'a self, ground: &'a Ground<'_>) -> Step<'a, ()> {
        Box::pin(async { self.own.withdraw(ground).await })
    }
}
