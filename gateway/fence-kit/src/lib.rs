//! The fence for anybody's side effect: what refuses a stale token where the effect happens.
//!
//! ```text
//! inside the database   sql::INSTALL: a trigger and a function, in the transaction that writes
//! inside the service    Fenced: a middleware of actix-web, over a Keeper and its Marks
//! before the service    serve: a reverse proxy, over the same
//! ```
//!
//! Owns: the predicate ([`judge`]), the decision of a guard that stands before its effect ([`admit`]), where marks and
//! unanswered requests are kept ([`Marks`], [`Keeper`]), and the three guards. Does not own: locks, tokens, the effect.
//! On failure: closed. What is not known to be over keeps newer tokens out.

pub mod admission;
mod keeper;
pub mod marks;
mod middleware;
mod predicate;
pub mod proxy;
mod request;
pub mod sql;

pub use admission::{Decision, StaleReason, Standing, admit};
pub use keeper::{Keeper, KeeperOptions, NotCleared, Pass, Refused, no_answer};
pub use marks::{Marks, SqliteMarks};
pub use middleware::{Fenced, FencedBy, FencedService};
pub use predicate::{OncePerToken, Rule, RuleKind, SameOrNewer, Verdict, judge, judge_by};
pub use proxy::{KeySource, ProxyOptions, RunError, check_upstream, serve};
pub use request::{only_reads, token_of};
