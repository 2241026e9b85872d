//! Payouts, ledger and balances; fence point (a).
