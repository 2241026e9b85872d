//! Random interleavings of everything that can be done to three payouts of one account, under random tokens, while the
//! rail says whatever it may say. INV-03, INV-05 and the holds are looked at after every step.
//!
//! One violation belongs to the walk: an operator declares a payout failed while the rail does not know yet, and the rail
//! then says that it executed. No store can prevent that, so the judge has to find it: there and nowhere else.

use crate::support::{Bench, WITHIN, ambiguous, by_hand, claim, command, done, fail, post, resolve};
use host_kit::Random;
use payment_store::{PaymentStore, PayoutState, Resolution, Step, StepOutcome, Verb};

const RUNS: u64 = 24;
/// A walk that has not met everything by then goes on: what is rare may be late, but not absent.
const RUNS_MAX: u64 = 20 * RUNS;
const STEPS: u32 = 70;

/// What a walk has to have met.
const WANTED: [&str; 9] = [
    "claim: done",
    "post: done",
    "fail: done",
    "ambiguous: done",
    "resolve_posted: done",
    "resolve_failed: done",
    "post: replayed",
    "claim: refused",
    "post: refused",
];

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

/// What the judge has to say: of each payout that was failed by an operator's hand and that the rail has executed since.
fn executed_since(
    payouts: [&str; 3],
    failed_by_hand: [bool; 3],
    rail: [Option<Option<&'static str>>; 3],
) -> Vec<String> {
    payouts
        .into_iter()
        .enumerate()
        .filter(|(at, _)| failed_by_hand[*at] && rail[*at] == Some(Some("ACKED")))
        .map(|(_, payout)| format!("payout {payout} is FAILED, the rail executed its submission s-{payout}-1"))
        .collect()
}

/// What the random walk met in one of four runs, step by step: it once took the judge's finding for a fault.
#[tokio::test]
async fn what_an_operator_declared_failed_and_the_rail_then_executed_is_found() {
    let b = Bench::new().await;
    b.account("A", 1_000).await;
    let payouts = ["P", "Q", "R"];
    for payout in payouts {
        b.payout(payout, "A", 300).await;
    }
    let mut failed_by_hand = [false; 3];
    for (at, payout) in payouts.into_iter().enumerate() {
        let token = b.mark("A").await + 1;
        done(b.claim(payout, token).await);
        b.rail.says(payout, Some("TIMEOUT"), None);
        done(b.ambiguous(payout, token).await);
        if payout == "R" {
            // Executed before the operator speaks: the evidence stands against the word, and the word is refused.
            b.rail.says(payout, Some("ACKED"), Some("r"));
            let refused = b.apply(payout, by_hand(token + 1, Resolution::Failed, None)).await;
            assert!(matches!(refused, StepOutcome::Refused(_)), "{refused:?}");
        } else {
            done(b.apply(payout, by_hand(token + 1, Resolution::Failed, None)).await);
            failed_by_hand[at] = true;
        }
    }
    assert_eq!(b.violations().await, Vec::<String>::new());
    b.rail.says("Q", Some("ACKED"), Some("r"));
    let rail = [Some(Some("TIMEOUT")), Some(Some("ACKED")), Some(Some("ACKED"))];
    let found = b.violations().await;
    assert_eq!(found, ["payout Q is FAILED, the rail executed its submission s-Q-1"]);
    assert_eq!(found, executed_since(payouts, failed_by_hand, rail));
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
        let b = Bench::new().await;
        b.account("A", 1_000).await;
        let payouts = ["P", "Q", "R"];
        let mut rail: [Option<Option<&'static str>>; 3] = [None; 3];
        let mut failed_by_hand = [false; 3];
        for payout in payouts {
            b.payout(payout, "A", 400).await;
        }
        for step in 0..STEPS {
            let at = usize::try_from(below(&random, 3)).unwrap();
            let payout = payouts[at];
            if random.chance(0.25) {
                rail[at] = Some(rail[at].and_then(|now| rail_moves(&random, now)));
                b.rail.says(payout, rail[at].unwrap(), Some("r"));
                continue;
            }
            let (mark_before, before, rows) = (b.mark("A").await, b.now(payout).await, b.all_rows());
            // Mostly a token that could succeed, else one a little below or above the mark.
            let kind = below(&random, 10);
            let fitting = mark_before + u64::from(!(3..=7).contains(&kind));
            let near = (mark_before + below(&random, 5)).saturating_sub(2);
            let token = if random.chance(0.7) { fitting } else { near }.max(1);
            let verb = match kind {
                0..=2 => claim(token),
                3..=5 => post(token, "r"),
                6 => fail(token),
                7 => ambiguous(token),
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
                    if after.state == PayoutState::Failed {
                        // Nobody's word, and no evidence, fails what the rail has executed.
                        assert_ne!(rail[at], Some(Some("ACKED")), "{context}");
                        failed_by_hand[at] = matches!(wanted.verb, Verb::Resolve { by_hand: Some(_), .. });
                    }
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
                    assert_eq!(b.all_rows(), rows, "{context}");
                    assert_eq!(**after, before, "{context}");
                }
                StepOutcome::Refused(_) => assert_eq!(b.all_rows(), rows, "{context}"),
            }
            let account = b.account_now("A").await;
            assert!(account.held_minor <= account.balance_minor, "{context}");
            assert_eq!(
                b.violations().await,
                executed_since(payouts, failed_by_hand, rail),
                "{context}"
            );
            let kind = match &outcome {
                StepOutcome::Done(_) => "done",
                StepOutcome::Replayed(_) => "replayed",
                StepOutcome::Refused(_) => "refused",
            };
            *seen.entry(format!("{}: {kind}", wanted.step().as_str())).or_default() += 1;
        }
        // Whatever is left can be brought to its end: nothing is stuck.
        for (at, payout) in payouts.into_iter().enumerate() {
            let token = b.mark("A").await + 1;
            if b.now(payout).await.state == PayoutState::Claimed {
                done(b.claim(payout, token).await);
                let settled = match rail[at].unwrap_or_else(|| {
                    b.rail.says(payout, Some("NOT_SENT"), None);
                    Some("NOT_SENT")
                }) {
                    Some("ACKED") => b.post(payout, token, "r").await,
                    Some("TIMEOUT") | None => b.ambiguous(payout, token).await,
                    Some(_) => b.fail(payout, token).await,
                };
                done(settled);
            }
            if b.now(payout).await.state == PayoutState::RailAmbiguous {
                let token = b.mark("A").await + 1;
                b.rail.says(
                    payout,
                    rail[at].flatten().filter(|o| *o != "TIMEOUT").or(Some("NOT_RECEIVED")),
                    Some("r"),
                );
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
            executed_since(payouts, failed_by_hand, rail),
            "seed {seed} run {run}"
        );
    }
    println!("{seen:?}");
    // The walk must have been worth something.
    for wanted in WANTED {
        assert!(seen.contains_key(wanted), "{wanted} never happened: {seen:?}");
    }
}
