//! Typed calls to each component over awc.
