//! The payout worker and the reconciler.
