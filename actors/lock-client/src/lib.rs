//! The SDK: one session, its heartbeats, and locks that know when they are lost.
