//! The payout actor and its state machine.
