//! What travels over HTTP: bodies, problems, headers. Used by both sides.
