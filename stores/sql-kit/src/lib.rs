//! SQLite with one writer, group commit, deadlines and migrations.
