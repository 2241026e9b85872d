//! The registers: a number that is read and written over a socket, with a fence or without.
//!
//! Owns: the value, and with a fence the highest token that was ever presented, by a read as well as by a write: once the
//! holder of a later token has read, an older holder's write would be lost under the later one's. Both are on disk
//! before a write is answered.
//! Does not own: who may write; it trusts the token that it is shown, as a resource behind a lock does.
//! On failure: a line that is no request ends its connection; a disk that refuses ends the process's run.
//!
//! One request a line, one answer a line, as JSON: `{"op":"read","worker":"W1","token":5}` → `{"value":7}`;
//! `{"op":"write","worker":"W1","token":5,"value":8}` → `{"written":true}` or `{"written":false}`.

use crate::stack::RunError;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::rc::Rc;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Whether the register checks tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fence {
    /// It takes every write.
    Off,
    /// It refuses a write under a token below the highest it has seen.
    On,
}

impl Fence {
    pub(super) const fn id(self) -> &'static str {
        match self {
            Self::Off => "unfenced",
            Self::On => "fenced",
        }
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

/// What a worker asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Ask {
    Read { worker: String, token: u64 },
    Write { worker: String, token: u64, value: u64 },
}

/// What happened at the register.
pub(super) enum Told {
    /// The value is read; its answer is sent once somebody says so.
    Reading {
        worker: String,
        token: u64,
        go_on: oneshot::Sender<()>,
    },
    /// A write was taken.
    Wrote { worker: String, token: u64 },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Content {
    value: u64,
    highest_token: u64,
}

struct Held {
    content: Content,
    fence: Fence,
    file: File,
}

impl Held {
    fn keep(&mut self, content: Content) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(&content)?;
        line.push(b'\n');
        self.file.write_all(&line)?;
        self.file.sync_data()?;
        self.content = content;
        Ok(())
    }

    fn read(&mut self, token: u64) -> std::io::Result<u64> {
        let seen = Content {
            highest_token: self.content.highest_token.max(token),
            ..self.content
        };
        if self.fence == Fence::On && seen != self.content {
            self.keep(seen)?;
        }
        Ok(self.content.value)
    }

    fn write(&mut self, token: u64, value: u64) -> std::io::Result<bool> {
        if self.fence == Fence::On && token < self.content.highest_token {
            return Ok(false);
        }
        self.keep(Content {
            value,
            highest_token: self.content.highest_token.max(token),
        })?;
        Ok(true)
    }
}

/// A register that is being served. Dropped, it is served no more.
pub(super) struct Register {
    held: Rc<RefCell<Held>>,
    address: String,
    serving: JoinHandle<()>,
}

impl Register {
    /// Serves a new register that is kept in this file, and tells what happens at it.
    pub(super) async fn serve(path: &Path, fence: Fence) -> Result<(Self, mpsc::Receiver<Told>), RunError> {
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .open(path)
            .map_err(RunError::io(format!("making {}", path.display())))?;
        let held = Rc::new(RefCell::new(Held {
            content: Content::default(),
            fence,
            file,
        }));
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .map_err(RunError::io("listening for the register"))?;
        let address = listener
            .local_addr()
            .map_err(RunError::io("listening for the register"))?
            .to_string();
        let (tell, told) = mpsc::channel(64);
        let serving = tokio::task::spawn_local({
            let held = held.clone();
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let (held, tell) = (held.clone(), tell.clone());
                    tokio::task::spawn_local(async move {
                        if let Err(error) = converse(stream, &held, &tell).await {
                            tracing::debug!(event = "register_connection", %error);
                        }
                    });
                }
            }
        });
        Ok((Self { held, address, serving }, told))
    }

    /// Where it is.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// What it says now.
    pub(super) fn value(&self) -> u64 {
        self.held.borrow().content.value
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn converse(stream: TcpStream, held: &RefCell<Held>, tell: &mpsc::Sender<Told>) -> std::io::Result<()> {
    let (from, mut to) = stream.into_split();
    let mut lines = BufReader::new(from).lines();
    while let Some(line) = lines.next_line().await? {
        let answer = match serde_json::from_str(&line)? {
            Ask::Read { worker, token } => {
                let value = held.borrow_mut().read(token)?;
                let (go_on, gone_on) = oneshot::channel();
                let reading = Told::Reading { worker, token, go_on };
                // With nobody left to listen there is nobody to wait for.
                if tell.send(reading).await.is_ok() {
                    drop(gone_on.await);
                }
                serde_json::json!({ "value": value })
            }
            Ask::Write { worker, token, value } => {
                let written = held.borrow_mut().write(token, value)?;
                if written {
                    drop(tell.send(Told::Wrote { worker, token }).await);
                }
                serde_json::json!({ "written": written })
            }
        };
        to.write_all(format!("{answer}\n").as_bytes()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(fence: Fence) -> (tempfile::TempDir, Held) {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("r")).unwrap();
        let content = Content::default();
        (dir, Held { content, fence, file })
    }

    #[test]
    fn without_a_fence_a_late_write_overwrites() {
        let (_dir, mut register) = held(Fence::Off);
        let old = register.read(1).unwrap();
        let new = register.read(2).unwrap();
        assert!(register.write(2, new + 1).unwrap());
        assert!(register.write(1, old + 1).unwrap());
        assert_eq!(register.content.value, 1, "two increments were acknowledged");
    }

    #[test]
    fn behind_the_fence_a_read_under_a_later_token_is_enough_to_refuse_an_older_one() {
        let (_dir, mut register) = held(Fence::On);
        let old = register.read(1).unwrap();
        let new = register.read(2).unwrap();
        assert!(!register.write(1, old + 1).unwrap());
        assert!(register.write(2, new + 1).unwrap());
        assert_eq!(
            register.content,
            Content {
                value: 1,
                highest_token: 2
            }
        );
    }
}
