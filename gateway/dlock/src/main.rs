//! The dlock binary.
fn main() {}
