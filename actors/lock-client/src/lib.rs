//! The SDK: one session, its heartbeats, and locks that know when they are lost (C2.6).
//!
//! ```text
//! application ─acquire→ LockClient ─message→ client actor ─L1..L7→ lock server     HeldLock: check before each side effect
//!     any thread                              own thread, or here                  lost() / on_lock_lost: told once
//! ```
//!
//! # What a lock is, and what it is not
//!
//! A lock of dlock is a **lease** with a **fencing token**. It says that the server granted the key to this session until
//! some moment, and to nobody else meanwhile. It does not say that nobody else holds it *now*: a process that is stopped
//! (by a debugger, the scheduler, a hypervisor) does not notice that its lease has ended, and goes on with what it was
//! doing when it wakes up, between whatever check it made and the write that was to follow. No client can close that gap,
//! this one neither.
//!
//! **The resource has to check the token.** Tokens of a key strictly increase in grant order. Whoever is written to keeps
//! the highest token it has seen and refuses lower ones, in the same step as the write. The page "Who checks the token" of
//! the documentation says what counts as a check; the fence kit has one for PostgreSQL and for HTTP services. Where nothing
//! checks it, a lock saves work and protects nothing.
//!
//! # Quick start
//!
//! ```
//! # mod served { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/served/mod.rs")); }
//! use lock_client::lock_api::{FencingToken, LockKey, LockLost, Owner};
//! use lock_client::{ClientOptions, LockClient};
//!
//! /// The side effect takes the token as an argument: there is no way to have it without one.
//! async fn send_invoice(number: u32, token: FencingToken) -> String {
//!     // … UPDATE … SET fence = :token WHERE … AND fence <= :token …
//!     format!("invoice {number} under token {token}")
//! }
//!
//! # #[actix_rt::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = served::Server::start().await; let url = server.url();
//! // `url` is the address of a lock server: http://127.0.0.1:7400 in development. Several may be given.
//! let client = LockClient::connect(&[url], ClientOptions::new(Owner::new("invoices-1")?)).await?;
//! let sent = client
//!     .with_lock(&LockKey::new("invoices/2026-11")?, |token, lock| async move {
//!         let first = send_invoice(1, token).await;
//!         lock.check_still_held()?; // saves work; the token is what protects
//!         let second = send_invoice(2, token).await;
//!         Ok::<_, LockLost>([first, second])
//!     })
//!     .await??;
//! assert_eq!(sent, ["invoice 1 under token 1", "invoice 2 under token 1"]);
//! client.close().await?;
//! # Ok(()) }
//! ```
//!
//! | to | use |
//! |---|---|
//! | do something under a lock and give it back | [`LockClient::with_lock`] |
//! | hold a lock over several calls | [`LockClient::acquire`], [`LockClient::acquire_within`], [`LockClient::try_acquire`] → [`HeldLock`] |
//! | give one lock a TTL or metadata of its own | [`LockClient::lock`] |
//! | have one leader among many | [`LeaderElection::lead`], [`LeaderElection::campaign`] |
//! | know at once when a lock is lost | [`HeldLock::must_stop`], [`HeldLock::on_lock_lost`] |
//! | look at a lock from another task | [`HeldLock::view`] → [`LockView`] |
//!
//! # Errors
//!
//! Every method that asks a server answers [`lock_api::LockError`], and every one of those says by
//! [`fate`](lock_api::LockError::fate) whether it is **definite** (nothing was done), **indefinite** (it may have been
//! done; a lock may be kept for nobody until its TTL has ended) or **lost** (it was held, and is not any more). On doubt
//! there is no grant (FR-27): whatever the error of an acquire, the caller holds nothing.
//!
//! | error | from | fate | what to do |
//! |---|---|---|---|
//! | `Invalid` | all | definite | correct the value; the same is refused again |
//! | `HeldByOther` | `try_acquire` | definite | somebody else does it: leave it, or try later |
//! | `ContentionExceeded` | `acquire`, `acquire_within`, `with_lock` | definite | the same |
//! | `Unavailable { perhaps_done: false }` | all but `release` and `close` | definite | try again, with a pause |
//! | `Unavailable { perhaps_done: true }` | acquiring | indefinite | try again; the key may be busy until the client has found the grant and given it back, or its TTL has ended |
//! | | `renew` | indefinite | nothing: the lock is held until its deadline in any case, and renewed by itself |
//! | | `release`, `close` | indefinite | nothing: it is being tried on, and ends with its TTL at the latest |
//! | `TokenRegression` | acquiring, `renew` | definite | call an operator: the service may have forgotten grants, and gives none |
//! | `SessionLost` | acquiring | definite | try again, a session is opened by itself; not after a `close` |
//! | `Lost` | `renew`, `release`, `lead`, and as `LockLost` every check | lost | stop before the next side effect; another may hold it |
//!
//! A loss has a reason ([`lock_api::LostReason`]): the deadline lapsed, an operator revoked it, the session ended, or it was
//! superseded. What was under way when it was lost is refused by whoever checks the token, and may have happened before.
//!
//! # Time-outs and clocks
//!
//! - A lease lives for its TTL (`lock.grant.ttl`, 15 s by default) from each renewal, and is renewed every third of it. A
//!   session lives likewise (`lock.session.ttl`). A TTL is a lower bound: the server keeps a lease that long or longer.
//! - The **local deadline** is counted from the moment a request was *sent*, and lies `lock.client.safety-margin` (1 s)
//!   before the server's. So the holder knows before the server frees the key. It is counted on `CLOCK_BOOTTIME`, which goes
//!   on while the machine is suspended; no wall clock is ever compared with another.
//! - One call takes `lock.client.call-timeout` (2 s) at most, the wait in the server's queue not counted. `acquire` makes
//!   `lock.acquire.max-attempts` (5) attempts with growing, random pauses; `acquire_within` goes on for its budget.
//! - Renewals and heartbeats that are not answered go to the next server, and are repeated until the deadline.
//!
//! # Cancellation and drop
//!
//! - Dropping the future of an acquire gives up: the request leaves the server's queue. A grant that was made all the same
//!   is found by the next heartbeat and given back.
//! - Dropping a [`HeldLock`] gives the lock back in the background, wherever it is dropped, without panic.
//!   [`HeldLock::release`] waits for the server's word.
//! - Dropping the future of [`LockClient::with_lock`] or [`LeaderElection::lead`] drops the work, and gives the lock back.
//!   `with_lock` does *not* drop the work when the lock is lost: the work's own answer counts. `lead` does.
//! - When the last clone of a client and its last lock have gone, the session is closed. A process that dies keeps its locks
//!   until their TTL has ended.
//!
//! # Threads and runtimes
//!
//! A client started by [`LockClient::connect`] has one thread of its own, so that work never delays a heartbeat; blocking
//! the application's thread loses no lock. [`LockClient`], [`HeldLock`] and [`LockView`] are `Send + Sync`, and their futures
//! need no particular runtime. [`Placement::Here`] puts the client on the caller's actix system instead.
//! [`HeldLock::on_lock_lost`] calls back on the thread that finds the loss: be quick there, and do not block.
//!
//! Two tasks of one client exclude each other like two clients: the server refuses the second one.
//!
//! # What can be watched
//!
//! [`LockMetrics`] counts `lock_lost_total{reason}` and `lock_heartbeat_failures_total` in a registry of one's own
//! ([`LockClient::start`]). Events of `tracing`: `session_opened`, `session_lost`, `heartbeat_failed`, `orphan_released`,
//! `release_failed`, with `session_id`, `key`, `token` and `trace_id` where there are such.
//!
//! # Examples
//!
//! In the folder `examples/` of the repository; each is run by the tests, with a holder that is stopped while it holds:
//!
//! | example | what is protected, and what refuses a stale token |
//! |---|---|
//! | `cron_job` | a nightly report; a folder with a mark, under a lock of the file system |
//! | `leader_election` | a plan that the leader writes; the plan itself keeps the highest term |
//! | `sql_table` | a table of PostgreSQL; the fence kit's trigger |
//! | `http_resource` | a service that knows nothing of locks; `dlock fence-proxy` before it |
//! | `object_store` | an object of an S3-compatible store; a conditional put, the token in its content |
//! | `sdk` | the calls of this crate in one page |
//!
//! # What it owns
//!
//! The local deadline of every lock, the heartbeat loop, renewal, `check_still_held`, `on_lock_lost`, retries of acquire,
//! failover between servers. Not safety: it is a liveness device, which stops wasted work early. When it fails, heartbeats
//! and renewals that are not answered let the deadline lapse; the loss is told locally before the server can expire the
//! lease.
//!
//! Deliberately absent: local exclusion between tasks, a token kept anywhere but in the guard (C2.7), a way to go on without
//! a grant.

mod acquire;
mod backoff;
mod client;
mod core;
mod deadline;
mod election;
mod heartbeat;
mod held_lock;
#[cfg(feature = "http")]
mod http;
mod keep;
mod options;
mod transport;
mod yields;

pub use lock_api;

pub use acquire::wait_bound;
pub use client::{LockClient, LockMetrics, LockRequest, Placement};
pub use election::{Leader, LeaderElection, Term};
pub use held_lock::{HeldLock, LockView};
#[cfg(feature = "http")]
pub use http::{over, over_http};
pub use options::{ClientOptions, LeaseSeen, LeaseWatch};
pub use transport::{Call, CallFailure, CallFuture, Connect, Servers, Transport};
