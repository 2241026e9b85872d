//! Header names (C3.1).

/// The fencing token, in canonical decimal form. Required on every route that writes under a grant (INV-07).
pub const FENCING_TOKEN: &str = "X-Fencing-Token";
/// Makes a repeated request recognisable.
pub const IDEMPOTENCY_KEY: &str = "X-Idempotency-Key";
/// Who acts by hand.
pub const OPERATOR: &str = "X-Operator";
/// The owner of the session on whose behalf a step is done; recorded with it.
pub const ACTOR: &str = "X-Actor";
/// Echoed, or made where it is missing.
pub const REQUEST_ID: &str = "X-Request-Id";
/// Present and `true` on an answer that replays what was recorded before.
pub const IDEMPOTENT_REPLAYED: &str = "Idempotent-Replayed";
/// W3C trace context.
pub const TRACEPARENT: &str = "traceparent";
