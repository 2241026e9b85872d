//! Whether the other end of a connection still listens.
//!
//! actix drops a handler when its peer resets the connection, but lets it run on after a plain close. A handler that
//! waits on purpose (a queued acquire) must see both: nobody would take what it is waiting for.
//! On failure: where the socket cannot be looked at (no socket, as in a simulation), the peer counts as there.

use crate::ApiError;
use crate::gateway::{Link, Waiting};
use actix_web::HttpRequest;
use http_contract::Code;
use std::sync::Arc;
use std::time::Duration;

/// The other end of a request's connection. One that has closed its sending side counts as gone: it said goodbye.
#[derive(Clone)]
pub struct Peer(Option<Arc<Link>>);

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("is_gone", &self.is_gone()).finish()
    }
}

impl Peer {
    /// Who sent this request.
    #[must_use]
    pub fn of(request: &HttpRequest) -> Self {
        Self(request.conn_data::<Arc<Link>>().cloned())
    }

    /// Whether it has closed or reset the connection by now.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.as_ref().is_some_and(|link| link.is_gone())
    }

    /// Waits until it closes or resets the connection; for ever where there is no socket.
    pub async fn gone(&self) {
        match &self.0 {
            Some(link) => link.gone().await,
            None => std::future::pending().await,
        }
    }

    /// A place for its request, which waits on purpose: a queued acquire, an event stream. To be held as long as it waits.
    ///
    /// # Errors
    /// `OVERLOADED`: so many wait that calls which are answered at once would find no connection.
    pub fn wait(&self) -> Result<Option<Waiting>, ApiError> {
        match &self.0 {
            None => Ok(None),
            Some(link) => link.wait().map(Some).ok_or_else(|| {
                ApiError::new(Code::Overloaded, "too many callers wait here").retry_after(Duration::from_secs(1))
            }),
        }
    }
}
