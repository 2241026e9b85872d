//! Whether the ledger holds together: INV-03, FR-25, INV-08, and that holds never exceed the balance. The statements are
//! the same for every backend.

/// A check: a statement whose rows are what is wrong, one sentence each. An amount stands there in minor units with its
/// currency between two [`money_kit::MARK`]s; [`money_kit::spoken`] writes it in major units.
pub(crate) const CHECKS: &[&str] = &[
    // INV-03: every POSTED payout has exactly its two legs, which sum to zero.
    "SELECT 'payout ' || p.payout_id || ' is POSTED with ' || count(e.entry_id) || ' ledger legs that sum to \u{1f}'
            || coalesce(sum(e.amount_minor), 0) || ' ' || min(p.currency) || '\u{1f}, it must have 2 that sum to 0'
       FROM payout p LEFT JOIN ledger_entry e ON e.payout_id = p.payout_id
      WHERE p.state = 'POSTED'
      GROUP BY p.payout_id HAVING count(e.entry_id) <> 2 OR sum(e.amount_minor) <> 0",
    "SELECT 'payout ' || p.payout_id || ' is POSTED without a leg of \u{1f}' || -p.amount_minor || ' ' || p.currency
            || '\u{1f} on account ' || p.account_id
       FROM payout p
      WHERE p.state = 'POSTED'
        AND NOT EXISTS (SELECT 1 FROM ledger_entry e WHERE e.payout_id = p.payout_id AND e.account_id = p.account_id
                           AND e.amount_minor = -p.amount_minor AND e.currency = p.currency)",
    // INV-03: no other payout has any.
    "SELECT 'payout ' || p.payout_id || ' is ' || p.state || ' with ' || count(*) || ' ledger legs, it must have none'
       FROM ledger_entry e JOIN payout p ON p.payout_id = e.payout_id
      WHERE p.state <> 'POSTED' GROUP BY p.payout_id",
    // INV-03: the stored balance is the opening balance plus the legs.
    "SELECT 'account ' || a.account_id || ' has a stored balance of \u{1f}' || a.balance_minor || ' ' || a.currency
            || '\u{1f}, its ledger says \u{1f}' || (a.opening_balance_minor + coalesce(sum(e.amount_minor), 0))
            || ' ' || a.currency || '\u{1f}'
       FROM account a LEFT JOIN ledger_entry e ON e.account_id = a.account_id
      GROUP BY a.account_id
     HAVING a.balance_minor <> a.opening_balance_minor + coalesce(sum(e.amount_minor), 0)",
    "SELECT 'credit ' || e.credit_id || ' has ' || count(*) || ' ledger legs that sum to \u{1f}' || sum(e.amount_minor)
            || ' ' || min(e.currency) || '\u{1f}, it must have 2 that sum to 0'
       FROM ledger_entry e WHERE e.credit_id IS NOT NULL
      GROUP BY e.credit_id HAVING count(*) <> 2 OR sum(e.amount_minor) <> 0",
    // C1.6: a claim is a hold, and no claim is accepted beyond the balance.
    "SELECT 'account ' || a.account_id || ' has holds of \u{1f}' || sum(p.amount_minor) || ' ' || a.currency
            || '\u{1f} over a balance of \u{1f}' || a.balance_minor || ' ' || a.currency || '\u{1f}'
       FROM account a JOIN payout p ON p.account_id = a.account_id AND p.state IN ('CLAIMED', 'RAIL_AMBIGUOUS')
      GROUP BY a.account_id HAVING sum(p.amount_minor) > a.balance_minor",
    // INV-08: the history ends where the payout stands, and each step begins where the one before it ended.
    "SELECT 'payout ' || p.payout_id || ' is ' || p.state || ', its history ends in ' || coalesce(t.to_state, 'nothing')
       FROM payout p LEFT JOIN payout_transition t
         ON t.seq = (SELECT max(l.seq) FROM payout_transition l WHERE l.payout_id = p.payout_id)
      WHERE t.to_state IS DISTINCT FROM p.state",
    "SELECT 'payout ' || payout_id || ': step ' || seq || ' begins in ' || coalesce(from_state, 'nothing')
            || ', the one before it ended in ' || coalesce(before, 'nothing')
       FROM (SELECT payout_id, seq, from_state,
                    lag(to_state) OVER (PARTITION BY payout_id ORDER BY seq) AS before FROM payout_transition)
      WHERE from_state IS DISTINCT FROM before",
    "SELECT 'the tally counts ' || t.n || ' payouts in ' || t.state || ', there are ' || count(p.seq)
       FROM payout_tally t LEFT JOIN payout p ON p.state = t.state
      GROUP BY t.state HAVING t.n <> count(p.seq)",
];

/// A failed payout whose submission the rail executed: money left that no ledger shows. Only where the rail's rows can be
/// read, under the name that the backend knows them by.
pub(crate) fn failed_but_executed(rail_submission: &str) -> String {
    format!(
        "SELECT 'payout ' || p.payout_id || ' is FAILED, the rail executed its submission ' || s.submission_id
           FROM payout p JOIN {rail_submission} s ON s.payout_id = p.payout_id
          WHERE p.state = 'FAILED' AND s.outcome = 'ACKED'"
    )
}
