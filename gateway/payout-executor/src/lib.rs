//! The payout worker as a process, with its operations endpoints.
