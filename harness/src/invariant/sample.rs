//! A small good run: P1 was claimed by W1, who had asked for a lock delay and was paused past its lease; W2 took over when
//! the delay was over and paid it once; W1's late post was refused. P2 was declined. The mutations plant one fault each in
//! it.

use crate::history::{Call, Outcome};
use crate::model::{
    Account, Collected, Evidence, Execution, HighWater, LedgerEntry, LockEvent, Payout, RailEntry, RailStats,
    Submission, Transition, lock_key,
};

fn event(seq: u64, kind: &str, account: Option<&str>, session: &str, token: Option<u64>) -> LockEvent {
    LockEvent {
        seq,
        at: "2026-01-01T00:00:00.000Z".to_owned(),
        kind: kind.to_owned(),
        lock_key: account.map(lock_key),
        session_id: Some(session.to_owned()),
        token,
        actor: Some(format!("W{}", session.trim_start_matches('s'))),
        ..LockEvent::default()
    }
}

fn step(seq: u64, payout: &str, from: Option<&str>, to: &str, token: Option<u64>) -> Transition {
    Transition {
        seq,
        payout_id: payout.to_owned(),
        from_state: from.map(str::to_owned),
        to_state: to.to_owned(),
        token,
        actor: Some(if token.is_some() { "W" } else { "creator" }.to_owned()),
        ..Transition::default()
    }
}

fn submission(id: &str, payout: &str, account: &str, token: u64, outcome: &str, at: &str) -> Submission {
    Submission {
        submission_id: id.to_owned(),
        payout_id: payout.to_owned(),
        account_id: account.to_owned(),
        token: Some(token),
        intent_at: at.to_owned(),
        forwarded_at: Some(at.to_owned()),
        outcome: Some(outcome.to_owned()),
        actor: Some("W2".to_owned()),
        fencing_enforced: Some(true),
        ..Submission::default()
    }
}

fn leg(entry_id: u64, account: &str, amount_minor: i64) -> LedgerEntry {
    LedgerEntry {
        entry_id,
        payout_id: Some("P1".to_owned()),
        account_id: account.to_owned(),
        amount_minor,
        token: Some(6),
    }
}

/// A call that succeeded.
pub(crate) fn call(client: &str, verb: &str, invoked_us: u64, answered_us: u64) -> Call {
    Call {
        client: client.to_owned(),
        verb: verb.to_owned(),
        key: None,
        token: None,
        payout: None,
        invoked_us,
        answered_us: Some(answered_us),
        outcome: Outcome::Ok,
        code: None,
        reason: None,
        until_us: None,
        delay_us: None,
    }
}

fn tokened(client: &str, verb: &str, at: u64, token: u64, payout: &str) -> Call {
    Call {
        token: Some(token),
        payout: Some(payout.to_owned()),
        ..call(client, verb, at, at + 5)
    }
}

fn on_key(client: &str, verb: &str, at: u64, account: &str, token: Option<u64>) -> Call {
    Call {
        key: Some(lock_key(account)),
        token,
        ..call(client, verb, at, at + 5)
    }
}

fn lease(client: &str, at: u64, account: &str, token: u64, until: u64) -> Call {
    Call {
        until_us: Some(until),
        delay_us: (client == "W1").then_some(100),
        ..on_key(client, "lease", at, account, Some(token))
    }
}

/// The run.
pub(crate) fn good() -> Evidence {
    let payout = |id: &str, account: &str, state: &str| Payout {
        payout_id: id.to_owned(),
        account_id: account.to_owned(),
        amount_minor: 1_000,
        state: state.to_owned(),
        ..Payout::default()
    };
    let account = |id: &str, balance_minor, fence| Account {
        account_id: id.to_owned(),
        opening_balance_minor: 10_000,
        balance_minor,
        fence,
        ..Account::default()
    };
    let refused = Call {
        outcome: Outcome::Refused,
        code: Some("FENCED_OUT".to_owned()),
        ..tokened("W1", "post", 900, 5, "P1")
    };
    let busy = Call {
        outcome: Outcome::Refused,
        code: Some("HELD_BY_OTHER".to_owned()),
        ..on_key("W2", "acquire", 100, "A1", None)
    };
    Evidence {
        lost_events: Vec::new(),
        lock_events: vec![
            event(1, "SESSION_OPENED", None, "s1", None),
            event(2, "GRANTED", Some("A1"), "s1", Some(5)),
            event(3, "EXPIRED", Some("A1"), "s1", Some(5)),
            event(4, "SESSION_EXPIRED", None, "s1", None),
            event(5, "GRANTED", Some("A1"), "s2", Some(6)),
            event(6, "RELEASED", Some("A1"), "s2", Some(6)),
            event(7, "GRANTED", Some("A2"), "s2", Some(7)),
            event(8, "RELEASED", Some("A2"), "s2", Some(7)),
        ],
        accounts: vec![account("A1", 9_000, 6), account("A2", 10_000, 7)],
        payouts: vec![payout("P1", "A1", "POSTED"), payout("P2", "A2", "FAILED")],
        transitions: vec![
            step(1, "P1", None, "PENDING", None),
            step(2, "P1", Some("PENDING"), "CLAIMED", Some(5)),
            step(3, "P1", Some("CLAIMED"), "CLAIMED", Some(6)),
            step(4, "P1", Some("CLAIMED"), "POSTED", Some(6)),
            step(5, "P2", None, "PENDING", None),
            step(6, "P2", Some("PENDING"), "CLAIMED", Some(7)),
            step(7, "P2", Some("CLAIMED"), "FAILED", Some(7)),
        ],
        ledger: vec![leg(1, "A1", -1_000), leg(2, "house:payouts:EUR", 1_000)],
        submissions: vec![
            submission("S1", "P1", "A1", 6, "ACKED", "2026-01-01T00:00:00Z"),
            submission("S2", "P2", "A2", 7, "DECLINED", "2026-01-01T00:00:01Z"),
        ],
        high_water: [("A1", 6), ("A2", 7)]
            .map(|(account_id, highest_token)| HighWater {
                account_id: account_id.to_owned(),
                highest_token,
            })
            .to_vec(),
        rail_book: vec![
            RailEntry {
                client_reference: "P1".to_owned(),
                executions: vec![Execution {
                    rail_reference: "R1".to_owned(),
                    amount_minor: 1_000,
                    currency: "EUR".to_owned(),
                }],
                bodies_read: 1,
            },
            RailEntry {
                client_reference: "P2".to_owned(),
                executions: vec![],
                bodies_read: 1,
            },
        ],
        rail_stats: RailStats {
            bodies_read: 2,
            executed: 1,
            declined: 1,
        },
        calls: vec![
            on_key("W1", "acquire", 10, "A1", Some(5)),
            lease("W1", 10, "A1", 5, 300),
            tokened("W1", "claim", 20, 5, "P1"),
            busy,
            lease("W1", 110, "A1", 5, 400),
            on_key("W2", "acquire", 500, "A1", Some(6)),
            lease("W2", 500, "A1", 6, 800),
            tokened("W2", "claim", 510, 6, "P1"),
            tokened("W2", "submit", 520, 6, "P1"),
            tokened("W2", "post", 530, 6, "P1"),
            on_key("W2", "release", 540, "A1", Some(6)),
            on_key("W2", "acquire", 550, "A2", Some(7)),
            lease("W2", 550, "A2", 7, 850),
            tokened("W2", "claim", 560, 7, "P2"),
            tokened("W2", "submit", 570, 7, "P2"),
            tokened("W2", "fail", 580, 7, "P2"),
            on_key("W2", "release", 590, "A2", Some(7)),
            refused,
        ],
        collected: Some(Collected {
            boot_us: 3_600_000_000,
            wall_ms: 1_767_229_200_000,
        }),
        ..Evidence::default()
    }
}
