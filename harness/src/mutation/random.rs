//! Random lawful runs: payouts of some accounts, each settled by workers one after the other, of which some die and are
//! written off before the next one takes over.

use crate::history::{Call, Outcome};
use crate::invariant::{Invariant, check_all};
use crate::model::{
    Account, Collected, Evidence, Execution, HighWater, LedgerEntry, LockEvent, Payout, RailEntry, Submission,
    Transition, lock_key,
};
use crate::mutation::{all, broken};
use host_kit::{Host, Random};

/// One lease.
const TTL_US: u64 = 1_500_000;

/// The run as it grows.
struct World<'a> {
    random: &'a Random,
    now_us: u64,
    token: u64,
    workers: u64,
    evidence: Evidence,
}

/// Where a worker dies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dies {
    Never,
    Holding,
    Claimed,
    Submitted,
}

impl World<'_> {
    fn tick(&mut self) -> u64 {
        self.now_us += 1_000 + self.random.below(9_000);
        self.now_us
    }

    fn event(&mut self, kind: &str, key: Option<&str>, worker: &str, token: Option<u64>) {
        let ms = self.now_us / 1_000;
        let (minute, second, ms) = (ms / 60_000, ms / 1_000 % 60, ms % 1_000);
        self.evidence.lock_events.push(LockEvent {
            seq: self.evidence.lock_events.len() as u64 + 1,
            at: format!("2026-01-01T00:{minute:02}:{second:02}.{ms:03}Z"),
            kind: kind.to_owned(),
            lock_key: key.map(str::to_owned),
            session_id: Some(format!("session of {worker}")),
            token,
            actor: Some(worker.to_owned()),
            reason: None,
        });
    }

    fn call(
        &mut self,
        worker: &str,
        verb: &str,
        key: Option<&str>,
        token: Option<u64>,
        payout: Option<&str>,
    ) -> &mut Call {
        let asked_us = self.tick();
        let answered_us = asked_us + 2_000 + self.random.below(2_000);
        self.now_us = answered_us;
        self.evidence.calls.push(Call {
            client: worker.to_owned(),
            verb: verb.to_owned(),
            key: key.map(str::to_owned),
            token,
            payout: payout.map(str::to_owned),
            invoked_us: asked_us,
            answered_us: Some(answered_us),
            outcome: Outcome::Ok,
            code: None,
            reason: None,
            until_us: None,
            delay_us: None,
        });
        self.evidence.calls.last_mut().unwrap()
    }

    fn step(&mut self, n: usize, to: &str, token: Option<u64>, worker: &str) {
        let payout = &mut self.evidence.payouts[n];
        let from = std::mem::replace(&mut payout.state, to.to_owned());
        let (payout_id, account_id) = (payout.payout_id.clone(), payout.account_id.clone());
        self.evidence.transitions.push(Transition {
            seq: self.evidence.transitions.len() as u64 + 1,
            payout_id,
            from_state: (!from.is_empty()).then_some(from),
            to_state: to.to_owned(),
            token,
            actor: Some(worker.to_owned()),
            at: String::new(),
        });
        let account = self
            .evidence
            .accounts
            .iter_mut()
            .find(|a| a.account_id == account_id)
            .unwrap();
        account.fence = account.fence.max(token.unwrap_or(0));
    }

    fn payout(&mut self, account_id: &str) {
        let n = self.evidence.payouts.len();
        let id = format!("P{n}");
        self.evidence.payouts.push(Payout {
            payout_id: id.clone(),
            account_id: account_id.to_owned(),
            amount_minor: 100 + i64::try_from(self.random.below(900)).unwrap(),
            ..Payout::default()
        });
        self.evidence.rail_book.push(RailEntry {
            client_reference: id,
            ..RailEntry::default()
        });
        self.step(n, "PENDING", None, "creator");
        loop {
            let dies = match self.random.below(6) {
                0 => Dies::Holding,
                1 => Dies::Claimed,
                2 => Dies::Submitted,
                _ => Dies::Never,
            };
            if self.worker(n, dies) {
                return;
            }
        }
    }

    /// One worker takes the payout up; whether it settled it.
    fn worker(&mut self, n: usize, dies: Dies) -> bool {
        self.workers += 1;
        let worker = format!("W{}", self.workers);
        let Payout {
            payout_id: id,
            account_id: account,
            ..
        } = self.evidence.payouts[n].clone();
        let key = lock_key(&account);
        self.event("SESSION_OPENED", None, &worker, None);
        self.token += 1 + self.random.below(3);
        let token = self.token;
        let asked_us = self.call(&worker, "acquire", Some(&key), Some(token), None).invoked_us;
        self.event("GRANTED", Some(&key), &worker, Some(token));
        // Every other one asks for a lock delay.
        let delay_us = Some(self.random.below(2) * (1 + self.random.below(4_000_000))).filter(|delay| *delay > 0);
        self.evidence.calls.push(Call {
            verb: "lease".to_owned(),
            until_us: Some(asked_us + TTL_US),
            delay_us,
            ..self.evidence.calls.last().unwrap().clone()
        });
        let mut promised_us = asked_us + TTL_US;
        if self.random.below(2) == 0 {
            let other = format!("W{}", self.workers + 1_000);
            let refused = self.call(&other, "acquire", Some(&key), None, None);
            refused.outcome = Outcome::Refused;
            refused.code = Some("HELD_BY_OTHER".to_owned());
        }
        if self.random.below(2) == 0 {
            let renewed = self.call(&worker, "lease", Some(&key), Some(token), None);
            promised_us = renewed.invoked_us + TTL_US;
            renewed.until_us = Some(promised_us);
            renewed.delay_us = delay_us;
        }
        if self.random.below(4) == 0 {
            self.event("YIELD_REQUESTED", Some(&key), &worker, Some(token));
        }
        let settled = dies != Dies::Holding && self.settle(n, &worker, &account, &id, token, dies);
        if settled {
            self.call(&worker, "release", Some(&key), Some(token), None);
            self.event("RELEASED", Some(&key), &worker, Some(token));
            self.event("SESSION_CLOSED", None, &worker, None);
        } else {
            self.now_us = self.now_us.max(promised_us) + self.random.below(50_000);
            self.event("EXPIRED", Some(&key), &worker, Some(token));
            self.event("SESSION_EXPIRED", None, &worker, None);
            // Neither a release nor the close of a session closes the key.
            self.now_us += delay_us.unwrap_or(0);
        }
        settled
    }

    fn settle(&mut self, n: usize, worker: &str, account: &str, id: &str, token: u64, dies: Dies) -> bool {
        self.call(worker, "claim", None, Some(token), Some(id));
        self.step(n, "CLAIMED", Some(token), worker);
        if dies == Dies::Claimed {
            return false;
        }
        let submitted = self.evidence.submissions.iter().find(|row| row.payout_id == id);
        let acked = match submitted {
            Some(row) => row.outcome.as_deref() == Some("ACKED"),
            None => self.submit(n, worker, account, id, token),
        };
        if dies == Dies::Submitted {
            return false;
        }
        self.call(worker, if acked { "post" } else { "fail" }, None, Some(token), Some(id));
        self.step(n, if acked { "POSTED" } else { "FAILED" }, Some(token), worker);
        if acked {
            let amount_minor = self.evidence.payouts[n].amount_minor;
            for (account_id, amount_minor) in [(account, -amount_minor), ("house:payouts:EUR", amount_minor)] {
                self.evidence.ledger.push(LedgerEntry {
                    entry_id: self.evidence.ledger.len() as u64 + 1,
                    payout_id: Some(id.to_owned()),
                    account_id: account_id.to_owned(),
                    amount_minor,
                    token: Some(token),
                });
            }
            let row = self
                .evidence
                .accounts
                .iter_mut()
                .find(|a| a.account_id == account)
                .unwrap();
            row.balance_minor -= amount_minor;
        }
        true
    }

    fn submit(&mut self, n: usize, worker: &str, account: &str, id: &str, token: u64) -> bool {
        let acked = self.random.below(4) > 0;
        self.call(worker, "submit", None, Some(token), Some(id));
        self.evidence.submissions.push(Submission {
            submission_id: format!("S{n}"),
            payout_id: id.to_owned(),
            account_id: account.to_owned(),
            token: Some(token),
            outcome: Some(if acked { "ACKED" } else { "DECLINED" }.to_owned()),
            actor: Some(worker.to_owned()),
            fencing_enforced: Some(true),
            ..Submission::default()
        });
        let waters = &mut self.evidence.high_water;
        waters.retain(|water| water.account_id != account);
        waters.push(HighWater {
            account_id: account.to_owned(),
            highest_token: token,
        });
        if acked {
            self.evidence.rail_stats.executed += 1;
            self.evidence.rail_book[n].executions.push(Execution {
                rail_reference: format!("R{n}"),
                amount_minor: self.evidence.payouts[n].amount_minor,
                currency: "EUR".to_owned(),
            });
        }
        acked
    }
}

fn lawful(random: &Random) -> Evidence {
    let mut world = World {
        random,
        now_us: 1_000_000,
        token: 0,
        workers: 0,
        evidence: Evidence::default(),
    };
    let accounts = 1 + random.below(3);
    for n in 0..accounts {
        world.evidence.accounts.push(Account {
            account_id: format!("A{n}"),
            opening_balance_minor: 1_000_000,
            balance_minor: 1_000_000,
            ..Account::default()
        });
    }
    for _ in 0..1 + random.below(12) {
        world.payout(&format!("A{}", random.below(accounts)));
    }
    // Ten seconds later, on both clocks; the machine was started with the year.
    let boot_us = world.now_us + 10_000_000;
    world.evidence.collected = Some(Collected {
        boot_us,
        wall_ms: 1_767_225_600_000 + i64::try_from(boot_us / 1_000).unwrap(),
    });
    world.evidence
}

#[test]
fn random_lawful_runs_are_accepted_and_single_mutations_of_them_are_caught() {
    let named = std::env::var("DLOCK_FUZZ_SEED").ok().and_then(|text| text.parse().ok());
    let seed = named.unwrap_or_else(|| Host::system().random.below(u64::MAX));
    println!("DLOCK_FUZZ_SEED={seed}");
    let random = Random::seeded(seed);
    let mutations = all();
    let mut planted = vec![0_u32; mutations.len()];
    let mut delays = 0;
    for run in 0..200 {
        let good = lawful(&random);
        for verdict in check_all(&good) {
            // Not in every run is one lost that had asked for a delay.
            let is_moot = verdict.invariant == Invariant::LockDelay && verdict.facts == 0;
            assert!(
                verdict.held() || is_moot && !verdict.broken(),
                "run {run}: {verdict:#?}"
            );
            delays += verdict.facts * u64::from(verdict.invariant == Invariant::LockDelay);
        }
        for (n, mutation) in mutations.iter().enumerate() {
            let mut bad = good.clone();
            let mut pick = |len: usize| usize::try_from(random.below(len as u64)).unwrap();
            if !(mutation.plant)(&mut bad, &mut pick) {
                continue;
            }
            planted[n] += 1;
            let caught: Vec<Invariant> = broken(&bad).into_iter().map(|(by, _)| by).collect();
            assert!(
                caught.contains(&mutation.caught_by),
                "run {run}: {} was noticed by {caught:?} alone",
                mutation.name
            );
        }
    }
    assert!(delays > 0, "no run had a delay to be judged");
    for (mutation, times) in mutations.iter().zip(planted) {
        println!("{times:>4} × {}", mutation.name);
        assert!(times > 0, "{} found no place in any run", mutation.name);
    }
}
