//! Scenarios, chaos, invariants, benchmarks: the proof.
