//! The trace of the last moments, in a file by itself: when something panicked, and on SIGQUIT.
//!
//! ```text
//! panic of an actor or a handler, caught ──▶ recorded ──▶ a thread writes the ring ┐
//! panic that ends its thread ──▶ the process's hook writes the ring, there and then├─▶ DIR/dlock-trace-….jsonl
//! SIGQUIT ──▶ the ring is written, the process goes on                             ┘
//! ```
//!
//! Owns: where the files are, how many there are, that each is whole (written aside and renamed). Does not own: what is in
//! them (`actor-kit`), who reads them (`dlock trace`).
//! On failure: a file that cannot be written is said in the log; nothing else changes. A loop of panics writes one file
//! in [`PANICS_APART`], and no more than `debug.dump-files` stay.

use crate::Settings;
use actix_web::rt::task::JoinHandle;
use actor_kit::{Kit, TraceQuery, is_guarded};
use host_kit::{Blocking, Host};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::time::Duration;

/// The least time between two files about panics.
const PANICS_APART: Duration = Duration::from_secs(10);

/// Writes the trace of one process into files.
pub(super) struct BlackBox {
    kit: Kit,
    host: Host,
    dir: PathBuf,
    files_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    written: u64,
    last_panic: Option<Duration>,
}

/// The black boxes of this process, for the hook of panics: one, but for tests.
static INSTALLED: Mutex<Vec<Weak<BlackBox>>> = Mutex::new(Vec::new());

impl BlackBox {
    /// Has panics of this process write its trace. None where there is no trace, or no file may be written.
    pub(super) fn install(settings: &Settings, kit: &Kit, host: &Host) -> Option<Arc<Self>> {
        let files_max = usize::try_from(settings.integer("debug.dump-files")).unwrap_or(usize::MAX);
        if files_max == 0 || !kit.trace().keeps() {
            return None;
        }
        let dir = settings
            .text("debug.dump-dir")
            .map_or_else(|| std::env::temp_dir().join("dlock-dumps"), PathBuf::from);
        tracing::info!(event = "trace_dumps", dir = %dir.display(), files_max);
        let black_box = Arc::new(Self {
            kit: kit.clone(),
            host: host.clone(),
            dir,
            files_max,
            state: Mutex::default(),
        });
        let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
        installed.retain(|other| other.strong_count() > 0);
        installed.push(Arc::downgrade(&black_box));
        drop(installed);
        hook();
        let weak = Arc::downgrade(&black_box);
        kit.after_panic(move |actor| {
            if let Some(black_box) = weak.upgrade() {
                black_box.panicked(actor);
            }
        });
        Some(black_box)
    }

    /// Something panicked, was caught, and is in the trace: written by a thread of its own, so that whoever serves others
    /// does not wait for a disk.
    pub(super) fn panicked(self: &Arc<Self>, what: &str) {
        if !self.is_due() {
            return;
        }
        let (black_box, what) = (Arc::clone(self), what.to_owned());
        let work = move || black_box.write_and_tell("panic", &what);
        match &self.host.blocking {
            Blocking::Threads(spawn) => {
                if let Err(error) = spawn("trace-dump", Box::new(work)) {
                    tracing::warn!(event = "trace_not_dumped", %error);
                }
            }
            Blocking::Inline => work(),
        }
    }

    fn is_due(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.host.clock.mono();
        if state
            .last_panic
            .is_some_and(|last| now.saturating_sub(last) < PANICS_APART)
        {
            return false;
        }
        state.last_panic = Some(now);
        true
    }

    /// Writes it, and says in the log where.
    pub(super) fn write_and_tell(&self, why: &str, what: &str) {
        match self.write(why) {
            Ok(path) => tracing::warn!(event = "trace_dumped", path = %path.display(), reason = why, detail = what),
            Err(error) => {
                tracing::warn!(event = "trace_not_dumped", dir = %self.dir.display(), reason = why, detail = what, %error);
            }
        }
    }

    /// Writes what the ring holds now.
    fn write(&self, why: &str) -> io::Result<PathBuf> {
        // One at a time, so that two do not count the same files.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.written += 1;
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        is_ours(&self.dir)?;
        let process = self.kit.trace().process();
        let prefix = format!("dlock-trace-{}-", process.component());
        let name = format!(
            "{prefix}{}-{}-{:04}-{why}",
            in_a_name(process.instance()),
            process.boot_id(),
            state.written
        );
        let (aside, path) = (
            self.dir.join(format!("{name}.writing")),
            self.dir.join(format!("{name}.jsonl")),
        );
        let text = self.kit.trace().to_jsonl(&TraceQuery::default(), true);
        // A file that is there already, or a link that somebody laid, is never written through.
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&aside)?;
        file.write_all(text.as_bytes())?;
        drop(file);
        fs::rename(&aside, &path)?;
        prune(&self.dir, &prefix, self.files_max)?;
        Ok(path)
    }
}

/// Refuses a directory that somebody else laid (case S12): a trace names accounts and keys, and whoever may write there may take a
/// file away or put another one in its place.
fn is_ours(dir: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(dir)?;
    let own = fs::metadata("/proc/self")?.uid();
    let (owner, mode) = (found.uid(), found.mode());
    let refuse = |why: String| {
        let advice = "take it away, or have debug.dump-dir name a directory of this user's own";
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{why}: {advice}"),
        ))
    };
    if !found.is_dir() {
        return refuse("it is a link, not a directory".to_owned());
    }
    if owner != own && owner != 0 {
        return refuse(format!("it belongs to user {owner}, not to {own} or root"));
    }
    // In a directory with the sticky bit a file is taken away by its owner alone.
    if mode & 0o002 != 0 && mode & 0o1000 == 0 {
        return refuse(format!("everybody may write there (mode {:o})", mode & 0o7777));
    }
    Ok(())
}

/// Takes the oldest files of this component away until at most `files_max` are left.
fn prune(dir: &Path, prefix: &str, files_max: usize) -> io::Result<()> {
    let mut files: Vec<_> = fs::read_dir(dir)?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let ours = entry.file_name().to_str()?.starts_with(prefix);
            ours.then_some((entry.metadata().ok()?.modified().ok()?, entry.path()))
        })
        .collect();
    files.sort();
    let too_many = files.len().saturating_sub(files_max);
    for (_, path) in files.into_iter().take(too_many) {
        // Another process of this component may have taken it away already.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// An instance's name as a part of a file's name.
fn in_a_name(instance: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    instance.chars().take(64).map(plain).collect()
}

/// Looks at panics that nobody catches: the thread is about to end, and mostly the process with it, so the file is
/// written there and then.
fn hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            if is_guarded() {
                // Whoever catches it records it first, and then asks for the file.
                return;
            }
            let installed: Vec<_> = match INSTALLED.try_lock() {
                Ok(installed) => installed.iter().filter_map(Weak::upgrade).collect(),
                Err(_) => return,
            };
            for black_box in installed.iter().filter(|black_box| black_box.is_due()) {
                let place = panic.location().map(ToString::to_string).unwrap_or_default();
                black_box.write_and_tell("panic", &place);
            }
        }));
    });
}

/// Writes the trace at each SIGQUIT, for as long as the task lives.
pub(super) fn on_quit(black_box: Option<Arc<BlackBox>>) -> JoinHandle<()> {
    use tokio::signal::unix::{SignalKind, signal};
    actix_web::rt::spawn(async move {
        let Ok(mut quits) = signal(SignalKind::quit()) else {
            tracing::error!(event = "signals_unavailable", signal = "SIGQUIT");
            return;
        };
        while quits.recv().await.is_some() {
            let Some(black_box) = black_box.clone() else {
                tracing::warn!(
                    event = "trace_not_dumped",
                    reason = "quit",
                    "debug.trace-capacity or debug.dump-files is 0"
                );
                continue;
            };
            let written = actix_web::web::block(move || black_box.write_and_tell("quit", "SIGQUIT")).await;
            if let Err(error) = written {
                tracing::warn!(event = "trace_not_dumped", reason = "quit", %error);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::Registry;

    fn black_box(dir: &Path, files_max: usize) -> Arc<BlackBox> {
        let host = Host::system();
        let kit = Kit::new("test", &host, &Registry::new());
        kit.name_instance("a/b 1");
        Arc::new(BlackBox {
            kit,
            host,
            dir: dir.to_owned(),
            files_max,
            state: Mutex::default(),
        })
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn no_more_files_stay_than_may_and_the_newest_do() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("deep/dumps");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("mine.txt"), "stays").unwrap();
        let black_box = black_box(&deep, 3);
        let written: Vec<_> = (0..6).map(|_| black_box.write("quit").unwrap()).collect();
        let names = names(&deep);
        assert_eq!(names.len(), 4, "{names:?}");
        for path in &written[3..] {
            let text = fs::read_to_string(path).unwrap();
            assert!(text.starts_with("{\"process\":"), "{text}");
        }
        assert!(names.iter().all(|name| !name.ends_with(".writing")));
        assert!(names[0].contains("test-a_b_1-"), "{names:?}");
    }

    #[test]
    fn a_loop_of_panics_writes_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let black_box = black_box(dir.path(), 3);
        assert!(black_box.is_due());
        assert!(!black_box.is_due());
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(black_box(&file, 3).write("quit").is_err());
    }

    #[test]
    fn case_s12_a_planted_directory_is_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let (elsewhere, link) = (dir.path().join("elsewhere"), dir.path().join("link"));
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, &link).unwrap();
        let refused = black_box(&link, 3).write("quit").unwrap_err();
        assert!(refused.to_string().contains("link"), "{refused}");

        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = black_box(&open, 3).write("quit").unwrap_err();
        assert!(refused.to_string().contains("777"), "{refused}");
        for place in [&elsewhere, &open] {
            assert!(names(place).is_empty());
        }
        for mode in [0o700, 0o755, 0o1777] {
            fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
            black_box(&open, 9).write("quit").unwrap();
        }
    }
}
