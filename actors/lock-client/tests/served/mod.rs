// The real lock server in this process, on a socket and a store in a file: for tests and for the examples in the
// documentation, which include this file. So it has no inner attributes.

use gateway_kit::{Drain, Settings};
use host_kit::Host;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::oneshot;

/// A server that ends with its runtime.
pub struct Server {
    /// Where it listens.
    pub addr: SocketAddr,
    drain: Drain,
    task: actix_rt::task::JoinHandle<Result<(), lock_server::RunError>>,
    _dir: tempfile::TempDir,
}

#[allow(dead_code, clippy::unwrap_used, reason = "for tests, each of which uses its part")]
impl Server {
    /// Starts one at a free port, and waits until it listens.
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("lock.db").display());
        // A disk that stands still for a while fails nothing.
        let flags = [
            ("lock.store.url", url.as_str()),
            ("lock.store.timeout", "20s"),
            ("http.request-timeout", "25s"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let settings = Settings::load(None, Vec::new(), &flags).unwrap();
        let (to, from) = oneshot::channel();
        let task = actix_rt::spawn(lock_server::run_and_tell(
            settings,
            "127.0.0.1:0".to_owned(),
            Host::system(),
            move |addr, drain| drop(to.send((addr, drain))),
        ));
        let (addr, drain) = from.await.expect("the server starts");
        Self {
            addr,
            drain,
            task,
            _dir: dir,
        }
    }

    /// Its address, as a client takes it.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Drains it and waits for its end.
    pub async fn stop(self) {
        self.drain.begin();
        tokio::time::timeout(Duration::from_secs(30), self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}
