//! The operator's console: pages that show who holds what under which token, and who was refused.
//!
//! ```text
//! components ◀─ask─ hub: one reader per page, however many look ─▶ frame ─▶ page (GET) and stream (server-sent events)
//! ```
//!
//! Owns: the pages, their streams, the one form that breaks a grant, and what keeps other sites' pages out.
//! Does not own: any fact. Everything is read from the components' own routes; the console keeps nothing but the latest
//! answer and has no store.
//! On failure: a component that does not answer is shown as such, with since when, while the rest goes on. A browser that
//! takes nothing is dropped. Without JavaScript every page works; it just does not follow.

mod assets;
mod close;
mod config;
mod filters;
mod guard;
mod http;
mod hub;
mod kept;
mod page;
mod revoke;
mod topic;
mod upstream;
mod views;
mod when;

pub use config::{Config, RunError};
pub use http::openapi;

use actix_web::web::ServiceConfig;
use actor_kit::{Kit, RestartPolicy};
use gateway_kit::{Gateway, Settings};
use host_kit::Host;
use prometheus::Registry;

/// The component's name in logs and metrics.
pub const COMPONENT: &str = "console";

/// A console that reads already, and whose pages are not served yet.
#[derive(Debug)]
pub struct Assembled {
    /// The frame around the pages.
    pub gateway: Gateway,
    /// What its routes need.
    pub state: ConsoleState,
}

/// What the routes need. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ConsoleState(http::State);

impl ConsoleState {
    /// How many browsers look now.
    #[must_use]
    pub fn viewers(&self) -> usize {
        self.0.hub.viewers()
    }
}

/// Adds the console's routes to an application of its gateway.
pub fn configure(config: &mut ServiceConfig, state: ConsoleState) {
    http::configure(config, state.0);
}

/// Starts the reader on the current `LocalSet` (an actix system is one).
///
/// # Errors
/// [`RunError`]: a configuration that cannot work.
pub fn assemble(settings: &Settings, host: &Host) -> Result<Assembled, RunError> {
    let config = Config::from_settings(settings)?;
    let registry = Registry::new();
    // No actor of its own; the frame of every gateway wants a kit.
    let kit = Kit::with(COMPONENT, host, &registry, 16, RestartPolicy::default());
    let gateway = Gateway::new(COMPONENT, host, settings.clone(), registry, kit)
        .openapi(openapi())
        .hosts(config.hosts.clone());
    let state = ConsoleState(http::State {
        hub: hub::Hub::start(upstream::Upstreams::new(&config, host), config.viewers_max),
        host: host.clone(),
        drain: gateway.drain(),
        forms: guard::Forms::new(&host.random),
        read_only: config.read_only,
    });
    Ok(Assembled { gateway, state })
}

/// The process: serves on `listen` until SIGTERM; streams end with a drain.
///
/// # Errors
/// [`RunError`].
pub async fn run(settings: Settings, listen: String, host: Host) -> Result<(), RunError> {
    let Assembled { gateway, state } = assemble(&settings, &host)?;
    gateway
        .serve(&listen, move |config| configure(config, state.clone()))
        .await
        .map_err(RunError::Serve)
}
