//! The lock store: sessions, grants, tokens, events and lineage on SQLite.
