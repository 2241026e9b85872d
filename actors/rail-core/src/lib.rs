//! The rail submission actor: intent, forward once, outcome.
