//! The submission ledger and the rail high-water mark; fence point (c).
