//! Something between the store and the server that cuts and deafens.

use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Forward,
    /// What the server says is swallowed.
    Deaf,
    /// Every connection is closed, also new ones.
    Cut,
}

pub struct Proxy {
    pub at: String,
    target: Arc<Mutex<String>>,
    /// The mode, and how often all connections were killed.
    state: watch::Sender<(Mode, u64)>,
}

impl Proxy {
    pub async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let target = Arc::new(Mutex::new(target.to_owned()));
        let (state, seen) = watch::channel((Mode::Forward, 0));
        let to = target.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if seen.borrow().0 == Mode::Cut {
                    continue;
                }
                let (to, seen) = (to.lock().unwrap().clone(), seen.clone());
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(to).await else {
                        return;
                    };
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    tokio::join!(
                        pump(from_client, to_server, seen.clone(), false),
                        pump(from_server, to_client, seen, true)
                    );
                });
            }
        });
        Self { at, target, state }
    }

    pub fn set(&self, mode: Mode) {
        self.state.send_modify(|state| state.0 = mode);
    }

    pub fn kill_all(&self) {
        self.state.send_modify(|state| state.1 += 1);
    }

    /// New connections go elsewhere; those there are die.
    pub fn turn_to(&self, target: &str) {
        target.clone_into(&mut self.target.lock().unwrap());
        self.kill_all();
    }
}

async fn pump(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut seen: watch::Receiver<(Mode, u64)>,
    down: bool,
) {
    let kills = seen.borrow_and_update().1;
    let mut some = vec![0; 64 * 1024];
    loop {
        tokio::select! {
            changed = seen.changed() => {
                let (mode, killed) = *seen.borrow_and_update();
                if changed.is_err() || mode == Mode::Cut || killed != kills {
                    return;
                }
            }
            read = from.read(&mut some) => {
                let Ok(length @ 1..) = read else { return };
                let swallowed = down && seen.borrow().0 == Mode::Deaf;
                if !swallowed && to.write_all(&some[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}
