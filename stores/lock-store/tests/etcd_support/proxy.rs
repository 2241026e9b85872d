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
    /// As a process that is stopped: connections are taken, nothing passes either way until later.
    Frozen,
    /// Every connection is closed, also new ones.
    Cut,
}

pub struct Proxy {
    pub at: String,
    target: Arc<Mutex<String>>,
    /// The mode, and how often all connections were killed.
    state: watch::Sender<(Mode, u64)>,
    /// What a client has to say for the mode to change, and to which; before that is passed on.
    upon: Upon,
}

type Upon = Arc<Mutex<Option<(&'static [u8], Mode)>>>;

impl Proxy {
    pub async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let target = Arc::new(Mutex::new(target.to_owned()));
        let (state, seen) = watch::channel((Mode::Forward, 0));
        let upon = Upon::default();
        let (to, heard, changes) = (target.clone(), upon.clone(), state.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if seen.borrow().0 == Mode::Cut {
                    continue;
                }
                let (to, seen) = (to.lock().unwrap().clone(), seen.clone());
                let listening = Some((heard.clone(), changes.clone()));
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(to).await else {
                        return;
                    };
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    tokio::join!(
                        pump(from_client, to_server, seen.clone(), listening),
                        pump(from_server, to_client, seen, None)
                    );
                });
            }
        });
        Self {
            at,
            target,
            state,
            upon,
        }
    }

    pub fn set(&self, mode: Mode) {
        self.state.send_modify(|state| state.0 = mode);
    }

    /// Takes this mode when a client says `words`, before they are passed on.
    pub fn set_upon(&self, words: &'static [u8], mode: Mode) {
        *self.upon.lock().unwrap() = Some((words, mode));
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
    listening: Option<(Upon, watch::Sender<(Mode, u64)>)>,
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
                if let Some((upon, changes)) = &listening {
                    let mut upon = upon.lock().unwrap();
                    if let Some((_, mode)) = upon.take_if(|(words, _)| some[..length].windows(words.len()).any(|part| part == *words)) {
                        changes.send_modify(|state| state.0 = mode);
                    }
                }
                while seen.borrow().0 == Mode::Frozen {
                    if seen.changed().await.is_err() {
                        return;
                    }
                }
                if seen.borrow().1 != kills {
                    return;
                }
                let swallowed = listening.is_none() && seen.borrow().0 == Mode::Deaf;
                if !swallowed && to.write_all(&some[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}
