//! What every gateway shares: configuration, problems, extractors, probes, metrics, documentation, debug, drain.
//!
//! ```text
//! socket → frame (id · trace · time-out · problem · metrics · log) → extractors → the component's handler → its actors
//! ```
//!
//! Owns: the one table of settings (C5.2), the shape of a refusal (C3.1), the frame around every request, the routes that
//! every component has, the life of an HTTP server from listening to drained.
//! Does not own: any route of a component, any actor, any store; which components exist.
//! On failure: a request is answered with a problem that says what may have been done; a configuration in doubt, or an
//! address that cannot be listened on, ends the process at its start with a message that names the cause.
//!
//! Logs go to standard output, one JSON object a line, or pretty on a terminal ([`init_logging`]).

mod descriptors;
mod document;
mod error_pages;
mod extract;
mod gateway;
mod instant;
mod log_queue;
mod logging;
mod metrics;
mod openapi;
#[cfg(feature = "otel")]
mod otel;
mod page;
mod peer;
mod problem;
mod reason;
mod settings;
mod shares;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod text;

pub use descriptors::{DESCRIPTORS_MIN, Descriptors};
pub use extract::{
    ActorName, Id, IdempotencyKey, Json, JsonOrDefault, Key, Noted, OperatorName, Query, Token, Trace, id, path_value,
};
pub use gateway::{Apps, Connections, Drain, Gateway, Waiting, serve_apps};
pub use instant::rfc3339;
pub use log_queue::flush_logs;
pub use logging::{LogFormat, apply_log_filter, init_logging, init_logging_to_stderr};
pub use metrics::{DURATION_BUCKETS, Label, LabelledCounter, built_from};
pub use page::{PAGE_BYTES_MAX, page, page_in_parts};
pub use peer::Peer;
pub use problem::ApiError;
pub use reason::{REASON_CHARS, reason};
pub use settings::{ConfigError, Kind, SETTINGS, Setting, Settings, mask};
pub use shares::{Caller, Full, Seat, Shares};
pub use text::{is_formula, is_hidden, shown, shown_html, shown_json, shown_lines, visible};
