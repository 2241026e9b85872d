//! A way to a server on which an answer can be lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Passes bytes on in both directions, until it loses the answer to a COMMIT and closes.
pub struct Cut {
    address: String,
    lose: Arc<AtomicBool>,
}

impl Cut {
    /// In front of the server of a URL.
    pub async fn before(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = server_of(url).to_owned();
        let lose = Arc::new(AtomicBool::new(false));
        let armed = lose.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server.clone(), armed.clone()));
            }
        });
        Self { address, lose }
    }

    /// The URL that leads over here, unencrypted.
    pub fn instead_of(&self, url: &str) -> String {
        format!("{}&sslmode=disable", url.replace(server_of(url), &self.address))
    }

    pub fn lose_the_next_commit(&self) {
        self.lose.store(true, Ordering::SeqCst);
    }
}

fn server_of(url: &str) -> &str {
    url.split_once('@').unwrap().1.split_once('/').unwrap().0
}

async fn pass(client: TcpStream, server: String, lose: Arc<AtomicBool>) {
    let server = TcpStream::connect(server).await.unwrap();
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let losing = AtomicBool::new(false);
    let up = async {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(n @ 1..) = from_client.read(&mut bytes).await {
            // From here on nothing comes back: what was sent before it is answered in the same breath.
            if bytes[..n].windows(7).any(|part| part == b"COMMIT\0") && lose.swap(false, Ordering::SeqCst) {
                losing.store(true, Ordering::SeqCst);
            }
            if to_server.write_all(&bytes[..n]).await.is_err() {
                break;
            }
        }
        // The server ends when it has done what it was sent.
        drop(to_server.shutdown().await);
    };
    let down = async {
        let mut bytes = vec![0; 64 * 1024];
        let mut committed = Vec::new();
        while let Ok(n @ 1..) = from_server.read(&mut bytes).await {
            if losing.load(Ordering::SeqCst) {
                committed.extend_from_slice(&bytes[..n]);
                // The server has said that it is done.
                if committed.windows(7).any(|part| part == b"COMMIT\0") {
                    break;
                }
            } else if to_client.write_all(&bytes[..n]).await.is_err() {
                break;
            }
        }
        drop(to_client.shutdown().await);
    };
    // Either end closes both.
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}
