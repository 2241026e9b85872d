//! The schema of paydb on PostgreSQL.
