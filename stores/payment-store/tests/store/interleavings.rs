//! Random interleavings of everything that can be done to three payouts of one account, under random tokens, while the
//! rail says whatever it may say. INV-03, INV-05 and the holds are looked at after every step.

use super::{RUNS, RUNS_MAX, WANTED, bench};
use crate::support::{Bench, WITHIN, by_hand, claim, command, done, fail, post, resolve};
use host_kit::Random;
use payment_store::{PayoutState, Resolution, Step, StepOutcome};

const STEPS: u32 = 70;

const PAYOUTS: [&str; 3] = ["P", "Q", "R"];

/// What the check of the ledger has to say: a human may fail a payout whose outcome is not known, and the rail may ack it
/// afterwards. Nobody else may.
async fn failed_too_soon(b: &Bench, rail: &[Option<Option<&'static str>>; 3]) -> Vec<String> {
    let mut said = Vec::new();
    for (payout, rail) in PAYOUTS.into_iter().zip(rail) {
        let now = b.now(payout).await;
        if now.state == PayoutState::Failed && *rail == Some(Some("ACKED")) {
            assert_eq!(now.failure_reason.as_deref(), Some("seen on the statement"), "{now:?}");
            said.push(format!(
                "payout {payout} is FAILED, the rail executed its submission s-{payout}-1"
            ));
        }
    }
    said
}

fn below(random: &Random, bound: u64) -> u64 {
    random.below(bound)
}

/// What the rail may say next of a payout: outcomes only move towards knowledge, ACKED and DECLINED are final.
fn rail_moves(random: &Random, now: Option<&'static str>) -> Option<&'static str> {
    let next: &[Option<&'static str>] = match now {
        None => &[None, Some("TIMEOUT"), Some("TIMEOUT"), Some("ACKED"), Some("DECLINED")],
        Some("TIMEOUT") => &[Some("TIMEOUT"), Some("ACKED"), Some("DECLINED"), Some("NOT_RECEIVED")],
        Some(_) => return now,
    };
    next[usize::try_from(below(random, next.len() as u64)).unwrap()]
}

#[tokio::test]
async fn no_interleaving_breaks_the_ledger_or_lets_a_stale_token_write() {
    let seed = std::env::var("DLOCK_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| Random::from_os().u64());
    println!("seed {seed} (DLOCK_SEED={seed} repeats this)");
    let random = Random::seeded(seed);
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    for run in 0..RUNS_MAX {
        if run >= RUNS && WANTED.iter().all(|wanted| seen.contains_key(*wanted)) {
            break;
        }
        let b = bench().await;
        b.account("A", 1_000).await;
        let mut rail: [Option<Option<&'static str>>; 3] = [None; 3];
        for payout in PAYOUTS {
            b.payout(payout, "A", 400).await;
        }
        for step in 0..STEPS {
            let at = usize::try_from(below(&random, 3)).unwrap();
            let payout = PAYOUTS[at];
            if random.chance(0.25) {
                rail[at] = Some(rail[at].and_then(|now| rail_moves(&random, now)));
                b.rail.says(payout, rail[at].unwrap(), Some("r")).await;
                continue;
            }
            let (mark_before, before, rows) = (b.mark("A").await, b.now(payout).await, b.all_rows().await);
            // Mostly a token that could succeed, else one a little below or above the mark.
            let kind = below(&random, 10);
            let fitting = mark_before + u64::from(!(3..=7).contains(&kind));
            let near = (mark_before + below(&random, 5)).saturating_sub(2);
            let token = if random.chance(0.7) { fitting } else { near }.max(1);
            let verb = match kind {
                0..=2 => claim(token),
                3..=5 => post(token, "r"),
                6 => fail(token),
                7 => crate::support::ambiguous(token),
                8 => resolve(
                    token,
                    if random.chance(0.5) {
                        Resolution::Posted
                    } else {
                        Resolution::Failed
                    },
                ),
                _ => by_hand(
                    token,
                    if random.chance(0.5) {
                        Resolution::Posted
                    } else {
                        Resolution::Failed
                    },
                    None,
                ),
            };
            let wanted = command(payout, verb);
            let outcome = b.store.apply(wanted.clone(), WITHIN).await.unwrap();
            let context = format!(
                "seed {seed} run {run} step {step}: {wanted:?} on {before:?} at mark {mark_before}: {outcome:?}"
            );
            let mark = b.mark("A").await;
            match &outcome {
                StepOutcome::Done(after) => {
                    match wanted.step() {
                        Step::Claim | Step::ResolvePosted | Step::ResolveFailed => {
                            assert!(token > mark_before && mark == token, "{context}");
                        }
                        _ => assert!(
                            token == mark_before && mark == token && before.claim_token == Some(token),
                            "{context}"
                        ),
                    }
                    assert!(
                        payment_store::transition(wanted.step(), Some(before.state)).is_some(),
                        "{context}"
                    );
                    assert_eq!(after.version, before.version + 1, "{context}");
                }
                StepOutcome::Replayed(after) => {
                    assert_eq!(b.all_rows().await, rows, "{context}");
                    assert_eq!(**after, before, "{context}");
                }
                StepOutcome::Refused(_) => assert_eq!(b.all_rows().await, rows, "{context}"),
            }
            let account = b.account_now("A").await;
            assert!(account.held_minor <= account.balance_minor, "{context}");
            assert_eq!(b.violations().await, failed_too_soon(&b, &rail).await, "{context}");
            let kind = match &outcome {
                StepOutcome::Done(_) => "done",
                StepOutcome::Replayed(_) => "replayed",
                StepOutcome::Refused(_) => "refused",
            };
            *seen.entry(format!("{}: {kind}", wanted.step().as_str())).or_default() += 1;
        }
        // Whatever is left can be brought to its end: nothing is stuck.
        for (at, payout) in PAYOUTS.into_iter().enumerate() {
            let token = b.mark("A").await + 1;
            if b.now(payout).await.state == PayoutState::Claimed {
                done(b.claim(payout, token).await);
                if rail[at].is_none() {
                    b.rail.says(payout, Some("NOT_SENT"), None).await;
                }
                let settled = match rail[at].unwrap_or(Some("NOT_SENT")) {
                    Some("ACKED") => b.post(payout, token, "r").await,
                    Some("TIMEOUT") | None => b.ambiguous(payout, token).await,
                    Some(_) => b.fail(payout, token).await,
                };
                done(settled);
            }
            if b.now(payout).await.state == PayoutState::RailAmbiguous {
                let token = b.mark("A").await + 1;
                let known = rail[at].flatten().filter(|outcome| *outcome != "TIMEOUT");
                b.rail.says(payout, known.or(Some("NOT_RECEIVED")), Some("r")).await;
                let outcome = if rail[at] == Some(Some("ACKED")) {
                    Resolution::Posted
                } else {
                    Resolution::Failed
                };
                done(b.resolve(payout, token, outcome).await);
            }
        }
        assert_eq!(
            b.violations().await,
            failed_too_soon(&b, &rail).await,
            "seed {seed} run {run}"
        );
    }
    println!("{seen:?}");
    // The walk must have been worth something.
    for wanted in WANTED {
        assert!(seen.contains_key(*wanted), "{wanted} never happened: {seen:?}");
    }
}
