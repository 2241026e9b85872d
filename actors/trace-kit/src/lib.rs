//! Dumps of actor traces: read, lined up with each other, filtered, drawn as trace events, checked.
//!
//! ```text
//! GET /debug/trace, files ─▶ Dump ─merge─▶ Dump of all ─filter─▶ JSONL
//!                                                          └─▶ events ─▶ JSON for Perfetto and Chrome ─▶ check
//! ```
//!
//! Owns: the format of a dump as its reader sees it (`docs/trace-dump.md`), how several are brought onto one time axis and
//! how far that can be trusted, which arrows are drawn, what a well-formed drawing is.
//! Does not own: what is recorded (`actor-kit`), where dumps come from (`dlock trace`, the harness).
//! On failure: a line that is no record is an error that names it, unless it is the last one of a file that was cut off.

mod check;
mod dump;
mod events;
mod filter;
mod merge;

pub use check::{Checked, Crossing, check, check_dump};
pub use dump::{Anchor, Dump, DumpError, Process, Record};
pub use events::{Drawing, draw};
pub use filter::Filter;
pub use merge::{Skew, merge, skews};
