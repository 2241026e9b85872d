//! The identity of the history, doubt and the floor (C1.1, C1.7).
//!
//! A cluster that was restored or wiped may have the same id as before, so what tells is a random id of our own, the
//! revision, and the highest token that anybody has seen: a client (its witness) or this process.

use super::error::{CallError, problem};
use super::layout::after_prefix;
use super::plan::{Fact, Plan};
use super::records::{HeadRecord, LineageRecord, text};
use super::shared::Shared;
use super::snapshot::{At, Snapshot, Wants};
use etcd_client::{GetOptions, SortOrder, SortTarget};
use lock_api::{
    EventKind, FencingToken, FloorOutcome, Lineage, LineageState, Operator, StoreError, TOKEN_MAX, UnixMillis,
    WITNESS_REACH,
};
use tokio::time::Instant;

/// Ids that are remembered as accepted.
const ACCEPTED_MAX: usize = 8;

/// A doubt that was not recorded yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewDoubt {
    pub(super) detail: String,
    /// The session whose witness it was, and its owner.
    pub(super) session: Option<(String, String)>,
    pub(super) token: Option<u64>,
}

impl NewDoubt {
    fn of(detail: String) -> Self {
        Self {
            detail,
            session: None,
            token: None,
        }
    }
}

/// Whether tokens may be minted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    Full,
    /// Recorded before.
    Doubt(String),
    New(NewDoubt),
}

/// What a witness leads to.
pub(super) enum Witnessed {
    /// Nothing against it.
    Plausible,
    /// Further above the last token than is believed.
    Refused { highest_believed: u64 },
    /// The store has minted less than a client has seen.
    Doubt(NewDoubt),
}

/// Weighs the highest token that a client has seen against the last one minted.
pub(super) fn weigh(snapshot: &Snapshot, witness: Option<FencingToken>, session: &str, owner: &str) -> Witnessed {
    let last = snapshot.last_token();
    let Some(witness) = witness.map(FencingToken::get).filter(|witness| *witness > last) else {
        return Witnessed::Plausible;
    };
    let highest_believed = last.saturating_add(WITNESS_REACH).min(TOKEN_MAX);
    if witness > highest_believed {
        return Witnessed::Refused { highest_believed };
    }
    if snapshot.lineage.as_ref().is_some_and(|lineage| lineage.value.regressed) {
        return Witnessed::Plausible; // one doubt is one fact
    }
    Witnessed::Doubt(NewDoubt {
        detail: format!("the last token minted is {last}, a client has seen {witness}"),
        session: Some((session.to_owned(), owner.to_owned())),
        token: Some(witness),
    })
}

/// Whether the next token can be above the key's own last one. None when it can.
pub(super) fn too_low(snapshot: &Snapshot, key: &str, last: Option<u64>) -> Option<NewDoubt> {
    let (next, last) = (snapshot.next_token(), last?);
    (next <= last).then(|| NewDoubt::of(format!("the next token is {next}, the last one of {key:?} is {last}")))
}

impl Shared {
    /// Whether tokens may be minted on what is in the snapshot.
    pub(super) fn trust(&self, snapshot: &Snapshot) -> Trust {
        let new = |detail: String| Trust::New(NewDoubt::of(detail));
        let Some(lineage) = snapshot.lineage.as_ref().map(|lineage| &lineage.value) else {
            return new("the store has lost its lineage".to_owned());
        };
        if lineage.regressed {
            let detail = lineage.detail.clone();
            return Trust::Doubt(detail.unwrap_or_else(|| "the store is in doubt".to_owned()));
        }
        let (known, expected) = (self.known_lineage(), self.options.expected_lineage.clone());
        for (other, word) in [(expected, "configured"), (known, "one of before")] {
            if let Some(other) = other
                && other != lineage.lineage
                && !lineage.accepted.contains(&other)
            {
                return new(format!(
                    "the store's lineage is {}, the {word} is {other}",
                    lineage.lineage
                ));
            }
        }
        if lineage.cluster != snapshot.cluster {
            return new(format!(
                "the cluster's id is {:x}, the store was made under {:x}",
                snapshot.cluster, lineage.cluster
            ));
        }
        let (last, next) = (snapshot.last_token(), snapshot.next_token());
        let seen = snapshot.seen_before;
        if last < seen {
            return new(format!("the last token minted is {last}, this server has seen {seen}"));
        }
        if snapshot.head.is_none() {
            return new("the store has lost its head".to_owned());
        }
        if next <= last {
            return new(format!("the next token is {next}, the last one is {last}"));
        }
        if next > TOKEN_MAX {
            // No floor helps: this is answered and not recorded.
            return Trust::Doubt("there are no tokens left below 2^53".to_owned());
        }
        Trust::Full
    }

    /// From now on nothing is granted. The first doubt found stands.
    pub(super) async fn record_doubt(
        &self,
        snapshot: &Snapshot,
        doubt: &NewDoubt,
        deadline: Instant,
    ) -> Result<(), CallError> {
        let wall = self.clock.wall_ms();
        let snapshot = self.with_head(snapshot.clone(), deadline).await?;
        let mut plan = Plan::new(&self.layout, &snapshot, wall);
        let mut lineage = snapshot
            .lineage
            .as_ref()
            .map_or_else(|| self.fresh_lineage(&snapshot), |lineage| lineage.value.clone());
        lineage.regressed = true;
        lineage.detail = Some(doubt.detail.clone());
        (lineage.changed_at, lineage.changed_by) = (wall, "store".to_owned());
        plan.lineage(&lineage)?;
        plan.fact(
            EventKind::RegressionDetected,
            &Fact {
                session: doubt.session.as_ref().map(|(session, _)| session.as_str()),
                actor: Some(doubt.session.as_ref().map_or("store", |(_, owner)| owner.as_str())),
                token: doubt.token,
                reason: Some(&doubt.detail),
                ..Fact::default()
            },
        );
        if self.commit(plan, deadline).await?.is_some() {
            tracing::error!(
                event = "token_regression",
                detail = doubt.detail,
                "nothing is granted until the floor is raised"
            );
        }
        Ok(())
    }

    fn fresh_lineage(&self, snapshot: &Snapshot) -> LineageRecord {
        LineageRecord {
            lineage: self.ids.ulid(),
            cluster: snapshot.cluster,
            offset: 0,
            floor: 0,
            regressed: false,
            detail: None,
            changed_at: self.clock.wall_ms(),
            changed_by: "store".to_owned(),
            accepted: Vec::new(),
        }
    }

    /// Where the head is lost, the order of facts goes on behind the last one there is.
    async fn with_head(&self, mut snapshot: Snapshot, deadline: Instant) -> Result<Snapshot, CallError> {
        if snapshot.head.is_none() {
            let options = GetOptions::new()
                .with_range(self.layout.end_of_events())
                .with_sort(SortTarget::Key, SortOrder::Descend)
                .with_keys_only()
                .with_limit(1);
            let answer = self.etcd.get(&self.layout.event(0), &options, deadline).await?;
            let last = answer
                .kvs()
                .first()
                .map_or(0, |row| match self.layout.place(row.key()) {
                    super::layout::Place::Event(seq) => seq,
                    _ => 0,
                });
            snapshot.head = Some(At {
                rev: 0,
                value: HeadRecord {
                    next: last + 1,
                    last: Some(0),
                    offset: 0,
                },
            });
        }
        Ok(snapshot)
    }

    /// Initialises an empty store, doubts one that has lost its lineage, compares the one there is with what is expected.
    /// Answers its id, and whether it is new.
    pub(super) async fn initialise(&self, deadline: Instant) -> Result<(String, bool), CallError> {
        let mut fresh = false;
        loop {
            let snapshot = self.read(Wants::new(&self.layout), deadline).await?;
            if let Some(lineage) = &snapshot.lineage {
                let id = lineage.value.lineage.clone();
                if let Trust::New(doubt) = self.trust(&snapshot) {
                    self.record_doubt(&snapshot, &doubt, deadline).await?;
                    continue;
                }
                self.set_known_lineage(id.clone());
                self.observed(|observed| observed.last_token = snapshot.last_token());
                return Ok((id, fresh));
            }
            let options = GetOptions::new()
                .with_range(after_prefix(self.layout.all()))
                .with_keys_only()
                .with_limit(1);
            let any = self.etcd.get(&self.layout.all(), &options, deadline).await?;
            if !any.kvs().is_empty() {
                // Another server may have initialised it in between.
                let again = self.read(Wants::new(&self.layout), deadline).await?;
                if again.lineage.is_none()
                    && let Trust::New(doubt) = self.trust(&again)
                {
                    self.record_doubt(&again, &doubt, deadline).await?;
                }
                continue;
            }
            let mut plan = Plan::new(&self.layout, &snapshot, self.clock.wall_ms());
            plan.lineage(&self.fresh_lineage(&snapshot))?;
            let head = HeadRecord {
                next: 1,
                last: Some(0),
                offset: 0,
            };
            plan.put(self.layout.head(), text(&head)?);
            plan.unchanged(self.layout.head(), 0);
            fresh = self.commit(plan, deadline).await?.is_some();
        }
    }

    pub(super) async fn show_lineage(&self, deadline: Instant) -> Result<Lineage, StoreError> {
        let snapshot = self.read(Wants::new(&self.layout), deadline).await?;
        shown(&snapshot)
    }

    /// Raises the floor, or dismisses a doubt alone.
    pub(super) async fn clear_doubt(
        &self,
        floor: Option<u64>,
        operator: &Operator,
        reason: &str,
        deadline: Instant,
    ) -> Result<FloorOutcome, StoreError> {
        let _turn = self.turn(deadline).await?;
        loop {
            let snapshot = self.read(Wants::new(&self.layout), deadline).await?;
            let snapshot = self.with_head(snapshot, deadline).await?;
            let trusted = self.trust(&snapshot) == Trust::Full;
            let (last, revision) = (snapshot.last_token(), snapshot.revision);
            let highest = last.saturating_add(WITNESS_REACH).min(TOKEN_MAX);
            match floor {
                Some(floor) if floor < last || floor > highest => {
                    return Ok(FloorOutcome::OutOfBounds { lowest: last, highest });
                }
                None if trusted => return Ok(FloorOutcome::NothingToDismiss),
                _ => {}
            }
            let wall = self.clock.wall_ms();
            let mut plan = Plan::new(&self.layout, &snapshot, wall);
            let mut lineage = snapshot
                .lineage
                .as_ref()
                .map_or_else(|| self.fresh_lineage(&snapshot), |lineage| lineage.value.clone());
            if let Some(floor) = floor {
                lineage.floor = lineage.floor.max(floor);
                // Every later transaction has a higher revision than this snapshot, so a token above the floor.
                let revision = u64::try_from(revision).unwrap_or(0);
                lineage.offset = lineage.offset.max(floor.saturating_sub(revision));
            }
            (lineage.regressed, lineage.detail) = (false, None);
            lineage.cluster = snapshot.cluster;
            for other in [self.options.expected_lineage.clone(), self.known_lineage()]
                .into_iter()
                .flatten()
            {
                if other != lineage.lineage && !lineage.accepted.contains(&other) {
                    lineage.accepted.push(other);
                }
            }
            let surplus = lineage.accepted.len().saturating_sub(ACCEPTED_MAX);
            lineage.accepted.drain(..surplus);
            (lineage.changed_at, lineage.changed_by) = (wall, operator.as_str().to_owned());
            let kind = if floor.is_some() {
                EventKind::FloorAdvanced
            } else {
                EventKind::RegressionDismissed
            };
            plan.lineage(&lineage)?;
            plan.fact(
                kind,
                &Fact {
                    // There is no token 0 to record.
                    token: floor.filter(|floor| *floor > 0),
                    actor: Some(operator.as_str()),
                    reason: Some(reason),
                    ..Fact::default()
                },
            );
            if self.commit(plan, deadline).await.map_err(StoreError::from)?.is_none() {
                continue;
            }
            tracing::warn!(
                event = "token_doubt_cleared",
                kind = kind.as_str(),
                operator = operator.as_str(),
                reason
            );
            let id = lineage.lineage.clone();
            let mut after = snapshot;
            after.lineage = Some(At { rev: 0, value: lineage });
            let shown = shown(&after)?;
            self.set_known_lineage(id);
            self.observed(|observed| observed.last_token = shown.last_token);
            return Ok(FloorOutcome::Changed(shown));
        }
    }

    /// What keeps the store from granting, if anything.
    pub(super) async fn problem(&self, deadline: Instant) -> Option<String> {
        match self.read(Wants::new(&self.layout), deadline).await {
            Err(error) => Some(problem(&error.into())),
            Ok(snapshot) => match self.trust(&snapshot) {
                Trust::Full => self.etcd.writable(deadline).await.err().map(|error| problem(&error)),
                Trust::Doubt(detail) | Trust::New(NewDoubt { detail, .. }) => {
                    Some(format!("doubt: nothing is granted: {detail}"))
                }
            },
        }
    }
}

fn shown(snapshot: &Snapshot) -> Result<Lineage, StoreError> {
    let lineage = snapshot.lineage.as_ref().ok_or_else(|| StoreError::Corrupt {
        detail: "the store has lost its lineage".to_owned(),
    })?;
    let row = &lineage.value;
    Ok(Lineage {
        lineage: row.lineage.clone(),
        token_floor: row.floor,
        last_token: snapshot.last_token(),
        state: if row.regressed {
            LineageState::Regressed
        } else {
            LineageState::Ok
        },
        changed_at: UnixMillis(row.changed_at),
        changed_by: row.changed_by.clone(),
        detail: row.detail.clone(),
    })
}
