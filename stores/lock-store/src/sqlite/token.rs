//! Minting, doubt and the floor (C1.7).

#![allow(clippy::disallowed_methods, reason = "the store mints here")]

use super::error::exactly_one;
use super::job::{Fact, Job};
use super::rows::{find_lineage, int};
use lock_api::{EventKind, FencingToken, FloorOutcome, Lineage, Operator, TOKEN_MAX, WITNESS_REACH};
use rusqlite::params;

/// What a witness leads to.
pub(super) enum Witnessed {
    /// Nothing against it.
    Plausible,
    /// Further above the last token than is believed.
    Refused { highest_believed: u64 },
}

impl Job<'_> {
    /// The next token, above everything minted before and above `above`, the key's own last one. An error text where
    /// nothing can be minted; the store is in doubt then.
    pub(super) fn mint(&mut self, above: Option<FencingToken>) -> rusqlite::Result<Result<FencingToken, String>> {
        let tokens = self.tokens()?;
        if let Some(doubt) = &tokens.doubt {
            return Ok(Err(doubt.clone()));
        }
        let next = tokens.last.max(tokens.floor) + 1;
        if let Some(above) = above.filter(|above| next <= above.get()) {
            let detail = format!("the next token is {next}, a key's own last one is {above}");
            return self.doubt(detail, None, None).map(Err);
        }
        match FencingToken::from_store(next) {
            Ok(token) => {
                tokens.last = next;
                Ok(Ok(token))
            }
            Err(_) => Ok(Err("there are no tokens left below 2^53".to_owned())),
        }
    }

    /// Weighs the highest token that a client has seen against the last one minted: a store that minted less than its
    /// clients have seen was rewound.
    pub(super) fn weigh_witness(
        &mut self,
        session: &str,
        witness: Option<FencingToken>,
    ) -> rusqlite::Result<Witnessed> {
        let Some(witness) = witness else {
            return Ok(Witnessed::Plausible);
        };
        let tokens = self.tokens()?;
        let last = tokens.last.max(tokens.floor);
        if witness.get() <= last {
            return Ok(Witnessed::Plausible);
        }
        let highest_believed = (last + WITNESS_REACH).min(TOKEN_MAX);
        let owner = self.owner_of(session);
        if witness.get() > highest_believed {
            self.record(
                EventKind::WitnessRefused,
                &Fact {
                    session: Some(session),
                    token: Some(witness.get()),
                    actor: owner.as_deref(),
                    ..Fact::default()
                },
            )?;
            return Ok(Witnessed::Refused { highest_believed });
        }
        let detail = format!("the last token minted is {last}, a client has seen {witness}");
        self.doubt(detail, Some((session, owner.as_deref())), Some(witness.get()))?;
        Ok(Witnessed::Plausible)
    }

    /// From now on nothing is granted. Answers what the doubt is; the first one found stands.
    pub(super) fn doubt(
        &mut self,
        detail: String,
        session: Option<(&str, Option<&str>)>,
        token: Option<u64>,
    ) -> rusqlite::Result<String> {
        if let Some(doubt) = &self.tokens()?.doubt {
            return Ok(doubt.clone());
        }
        let changed = self
            .connection
            .prepare_cached(
                "UPDATE lock_lineage SET state = 'REGRESSED', changed_at = ?1, changed_by = 'store', detail = ?2
                 WHERE id = 1 AND state = 'OK'",
            )?
            .execute(params![self.wall_ms, detail])?;
        exactly_one(changed)?;
        self.record(
            EventKind::RegressionDetected,
            &Fact {
                session: session.map(|(id, _)| id),
                actor: Some(session.and_then(|(_, owner)| owner).unwrap_or("store")),
                token,
                reason: Some(&detail),
                ..Fact::default()
            },
        )?;
        tracing::error!(
            event = "token_regression",
            detail,
            "nothing is granted until the floor is raised"
        );
        self.tokens()?.doubt = Some(detail.clone());
        Ok(detail)
    }

    /// Raises the floor and clears the doubt.
    pub(super) fn advance_floor(
        &mut self,
        floor: u64,
        operator: &Operator,
        reason: &str,
        accepted: Option<&str>,
    ) -> rusqlite::Result<FloorOutcome> {
        let tokens = self.tokens()?;
        let (lowest, highest) = (tokens.last, (tokens.last + WITNESS_REACH).min(TOKEN_MAX));
        if floor < lowest || floor > highest {
            return Ok(FloorOutcome::OutOfBounds { lowest, highest });
        }
        // The source itself moves, so that the floor holds even for a program that knows no floor.
        tokens.last = floor;
        tokens.floor = floor;
        tokens.doubt = None;
        self.clear_doubt(EventKind::FloorAdvanced, operator, reason, accepted, Some(floor))
            .map(FloorOutcome::Changed)
    }

    /// Clears the doubt alone.
    pub(super) fn dismiss_regression(
        &mut self,
        operator: &Operator,
        reason: &str,
        accepted: Option<&str>,
    ) -> rusqlite::Result<FloorOutcome> {
        let tokens = self.tokens()?;
        if tokens.doubt.take().is_none() {
            return Ok(FloorOutcome::NothingToDismiss);
        }
        self.clear_doubt(EventKind::RegressionDismissed, operator, reason, accepted, None)
            .map(FloorOutcome::Changed)
    }

    fn clear_doubt(
        &mut self,
        kind: EventKind,
        operator: &Operator,
        reason: &str,
        accepted: Option<&str>,
        floor: Option<u64>,
    ) -> rusqlite::Result<Lineage> {
        self.store_tokens()?;
        let changed = self
            .connection
            .prepare_cached(
                "UPDATE lock_lineage SET state = 'OK', token_floor = max(token_floor, coalesce(?1, 0)),
                 changed_at = ?2, changed_by = ?3, detail = NULL, accepted = coalesce(?4, accepted) WHERE id = 1",
            )?
            .execute(params![floor.map(int), self.wall_ms, operator.as_str(), accepted])?;
        exactly_one(changed)?;
        self.record(
            kind,
            &Fact {
                // There is no token 0 to record.
                token: floor.filter(|floor| *floor > 0),
                actor: Some(operator.as_str()),
                reason: Some(reason),
                ..Fact::default()
            },
        )?;
        tracing::warn!(
            event = "token_doubt_cleared",
            kind = kind.as_str(),
            operator = operator.as_str(),
            reason
        );
        self.lineage()
    }

    pub(super) fn lineage(&self) -> rusqlite::Result<Lineage> {
        find_lineage(self.connection)
    }

    /// An older copy of the file in its place has forgotten tokens that were granted: a doubt, once for each restore.
    pub(super) fn check_restore(&mut self) -> rusqlite::Result<()> {
        if sql_kit::restored(self.connection)?.is_some_and(|restored| restored.is_untold) {
            self.doubt(
                "the file is not the one that was written last: it was restored or moved".to_owned(),
                None,
                None,
            )?;
            sql_kit::restore_was_told(self.connection)?;
        }
        Ok(())
    }

    /// Compares the store's id with the configured one (`lock.store.lineage`): another id is a doubt, unless an operator
    /// has cleared that very doubt before. Answers the id.
    pub(super) fn check_lineage(&mut self, expected: Option<&str>) -> rusqlite::Result<String> {
        let (lineage, accepted): (String, Option<String>) =
            self.connection
                .query_row("SELECT lineage, accepted FROM lock_lineage WHERE id = 1", [], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?;
        if let Some(expected) = expected
            && expected != lineage
            && accepted.as_deref() != Some(expected)
        {
            self.doubt(
                format!("the store's lineage is {lineage}, the configured one is {expected}"),
                None,
                None,
            )?;
        }
        Ok(lineage)
    }

    /// Initialises an empty store under a new id. Answers whether it was.
    pub(super) fn initialise_lineage(&mut self, id: &str) -> rusqlite::Result<bool> {
        let exists: bool = self
            .connection
            .query_row("SELECT EXISTS (SELECT 1 FROM lock_lineage)", [], |row| row.get(0))?;
        if !exists {
            self.connection.execute(
                "INSERT INTO lock_lineage (id, lineage, token_floor, state, changed_at, changed_by)
                 VALUES (1, ?1, 0, 'OK', ?2, 'store')",
                params![id, self.wall_ms],
            )?;
        }
        Ok(!exists)
    }
}
