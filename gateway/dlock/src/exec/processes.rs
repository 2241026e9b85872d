//! What runs on behalf of the command, as `/proc` tells it.
//!
//! Owns: the question who belongs to the command. Every process that it started, directly or not, whatever group and session
//! it went to: this process takes in whoever lost its parent (`PR_SET_CHILD_SUBREAPER`, or by being a container's first
//! process), so all of them stay below it.
//! Does not own: when they are ended.
//!
//! That nobody is left is never concluded from a list of processes that is empty: processes that live shortly, each of which
//! starts the next one and ends, are on no list. The kernel says so: this process has no child any more, or none but those
//! from before and ended ones, which have no children.
//! On failure: without `/proc` only the command's process group is known.

use super::say::say;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgid, getpid};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

/// How many ended children are reaped at one go: whoever makes them faster than that is looked at again.
const REAPED_AT_ONCE: usize = 10_000;

/// One process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    id: Pid,
    state: char,
    parent: Pid,
    group: Pid,
    session: Pid,
    threads: u64,
    /// When it started, in ticks since boot: with the id it names a process for good.
    started: u64,
}

impl Process {
    fn parse(stat: &str) -> Option<Self> {
        let (id, _) = stat.split_once(' ')?;
        // The name in parentheses may hold anything; what follows its end may not.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<_> = rest.split_ascii_whitespace().collect();
        let pid = |text: &str| text.parse().ok().map(Pid::from_raw);
        Some(Self {
            id: pid(id)?,
            state: fields.first()?.chars().next()?,
            parent: pid(fields.get(1)?)?,
            group: pid(fields.get(2)?)?,
            session: pid(fields.get(3)?)?,
            threads: fields.get(17)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether it can still do anything. One that has ended and that nobody has reaped cannot; one whose first thread has
    /// ended looks the same and can.
    fn runs(&self) -> bool {
        !matches!(self.state, 'Z' | 'X') || self.threads > 1
    }
}

/// All processes. None where there is no `/proc`.
fn all() -> Option<Vec<Process>> {
    let processes = std::fs::read_dir("/proc").ok()?;
    let stats = processes
        .flatten()
        .filter(|entry| {
            entry
                .file_name()
                .as_encoded_bytes()
                .first()
                .is_some_and(u8::is_ascii_digit)
        })
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    Some(stats.filter_map(|stat| Process::parse(&stat)).collect())
}

/// One process, while its id stands for it.
fn stat_of(id: Pid) -> Option<Process> {
    Process::parse(&std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

/// The children of a process, by the kernel's own lists, one for each of its threads. None if one of them could not be read.
fn children(parent: Pid) -> Option<Vec<Pid>> {
    let mut found = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{parent}/task")).ok()? {
        match std::fs::read_to_string(thread.ok()?.path().join("children")) {
            Ok(list) => {
                let ids = list.split_ascii_whitespace().filter_map(|id| id.parse().ok());
                found.extend(ids.map(Pid::from_raw));
            }
            // The thread has ended meanwhile, and its children are another one's.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => {}
            Err(_) => return None,
        }
    }
    Some(found)
}

/// The children of this process, ended ones too. Nobody is missing who was there at its beginning: the kernel adds at the
/// end, and only this process takes away. None where the kernel keeps no such list, or `/proc` is that of others.
fn own_children() -> Option<Vec<Pid>> {
    let us = getpid();
    let is_ours = std::fs::read_link("/proc/self").is_ok_and(|link| link == Path::new(&us.to_string()));
    let is_kept = is_ours && Path::new(&format!("/proc/{us}/task/{us}/children")).exists();
    if is_kept { children(us) } else { None }
}

/// The command and its descendants.
#[derive(Debug)]
pub(super) struct Family {
    /// The command's id, and its group's.
    pub command: Pid,
    /// Children that this process had before: a shell that becomes `dlock exec` by its `exec` leaves some.
    strangers: BTreeSet<(i32, u64)>,
}

/// The children that this process has before it starts a command.
pub(super) struct Before(BTreeSet<(i32, u64)>);

impl Before {
    pub fn now() -> Self {
        let children = all()
            .unwrap_or_default()
            .into_iter()
            .filter(|one| one.parent == getpid());
        Self(children.map(|one| (one.id.as_raw(), one.started)).collect())
    }
}

impl Family {
    pub fn new(command: Pid, before: Before) -> Self {
        Self {
            command,
            strangers: before.0,
        }
    }

    /// Those that still run, parents before their children. None where it cannot be known.
    fn running(&self) -> Option<Vec<Process>> {
        Some(self.among(&all()?, getpid()))
    }

    fn among(&self, all: &[Process], us: Pid) -> Vec<Process> {
        let mut found = Vec::new();
        let mut seen = BTreeSet::from([us.as_raw()]);
        let mut parents = vec![us];
        while let Some(parent) = parents.pop() {
            for one in all.iter().filter(|one| one.parent == parent) {
                let is_stranger = self.strangers.contains(&(one.id.as_raw(), one.started));
                if !is_stranger && seen.insert(one.id.as_raw()) {
                    parents.push(one.id);
                    found.push(*one);
                }
            }
        }
        // Normally among them already.
        found.extend(
            all.iter()
                .filter(|one| one.group == self.command && seen.insert(one.id.as_raw())),
        );
        found.retain(Process::runs);
        found
    }

    fn is_stranger(&self, id: Pid) -> bool {
        let candidates = (id.as_raw(), u64::MIN)..=(id.as_raw(), u64::MAX);
        self.strangers.range(candidates).next().is_some()
            && stat_of(id).is_none_or(|one| self.strangers.contains(&(id.as_raw(), one.started)))
    }

    /// Everybody's id, ended ones too, parents before their children. It takes far less time than a look at all processes:
    /// it has to be done before who is on it has started the next one.
    fn listed(&self) -> Vec<Pid> {
        let Some(own) = own_children() else {
            return self.running().unwrap_or_default().iter().map(|one| one.id).collect();
        };
        let mut left: Vec<_> = own.into_iter().filter(|id| !self.is_stranger(*id)).collect();
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        while let Some(id) = left.pop() {
            if seen.insert(id) {
                found.push(id);
                left.extend(children(id).unwrap_or_default());
            }
        }
        found
    }

    /// Whether nobody runs any more, and nobody can come. Reaps whoever has ended, the command too: to be called when its
    /// end is known or of no interest.
    pub fn is_gone(&self) -> bool {
        // Only where this process could not be made the one that takes in orphans does the list say more.
        self.has_no_children() && self.nobody_is_found()
    }

    fn has_no_children(&self) -> bool {
        for _ in 0..REAPED_AT_ONCE {
            match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)) {
                Ok(WaitStatus::StillAlive) => return self.has_none_that_run(),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return error == Errno::ECHILD,
            }
        }
        false
    }

    /// Children are left: are they those from before, and ended ones that a debugger keeps? A process that has ended has
    /// no children, so if all have ended that are on the list and it is the same afterwards, then nobody is below them.
    fn has_none_that_run(&self) -> bool {
        let Some(before) = own_children() else {
            return !self.strangers.is_empty() && self.nobody_is_found();
        };
        let mut others = before.iter().filter(|id| !self.is_stranger(**id));
        let have_ended = others.all(|id| stat_of(*id).is_some_and(|one| !one.runs()));
        have_ended && !before.is_empty() && own_children() == Some(before)
    }

    fn nobody_is_found(&self) -> bool {
        match self.running() {
            Some(running) => running.is_empty(),
            None => killpg(self.command, None) == Err(Errno::ESRCH),
        }
    }

    /// The ids of those that run at this moment, for a message.
    pub fn ids(&self) -> Vec<String> {
        let mut ids = self.listed();
        ids.retain(|id| stat_of(*id).is_some_and(|one| one.runs()));
        ids.iter().map(ToString::to_string).collect()
    }

    /// Sends to the command's process group: what a signal from outside is meant for.
    pub fn signal(&self, signal: Signal) {
        match killpg(self.command, signal) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => say!("dlock: {signal} could not be sent to the command: {error}"),
        }
    }

    /// Sends to everybody, wherever it went.
    pub fn signal_all(&self, signal: Signal) {
        let _ = killpg(self.command, signal);
        let mut elsewhere = self.listed();
        elsewhere.retain(|id| getpgid(Some(*id)) != Ok(self.command));
        for id in elsewhere {
            // It may have ended by itself meanwhile; one that may not be signalled is told of when it is still there at the end.
            let _ = kill(id, signal);
        }
    }

    /// Kills everybody who is found, and adds them to those that were killed before. Answers whether somebody new was among
    /// them: it may have started another one.
    pub fn kill_all(&self, killed: &mut BTreeSet<Pid>) -> bool {
        let _ = killpg(self.command, Signal::SIGKILL);
        let mut is_new = false;
        for id in self.listed() {
            is_new |= kill(id, Signal::SIGKILL).is_ok() && killed.insert(id);
        }
        is_new
    }

    /// Reaps what ended, but for the command itself: descendants that lost their parent are this process's children now.
    pub fn reap(&self) {
        let children = own_children().unwrap_or_else(|| {
            let us = getpid();
            let all = all().unwrap_or_default().into_iter();
            all.filter(|one| one.parent == us).map(|one| one.id).collect()
        });
        for id in children.into_iter().filter(|id| *id != self.command) {
            let _ = waitpid(id, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL));
        }
    }
}

/// Whether nobody would continue this process group once it is stopped: no member has a parent in another group of the
/// same session, as a job of a shell has. The kernel lets no terminal stop such a group.
pub(super) fn is_orphaned(group: Pid) -> bool {
    let all = all().unwrap_or_default();
    !all.iter().filter(|one| one.group == group).any(|member| {
        all.iter()
            .any(|parent| parent.id == member.parent && parent.group != group && parent.session == member.session)
    })
}

/// Everybody else in the process group of this process.
pub(super) fn beside_us(group: Pid) -> Vec<Pid> {
    let all = all().unwrap_or_default();
    let members = all.iter().filter(|one| one.group == group && one.id != getpid());
    members.map(|one| one.id).collect()
}

/// Whether anybody runs in this process group.
pub(super) fn is_alive(group: Pid) -> bool {
    all().is_none_or(|all| all.iter().any(|one| one.group == group && one.runs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: i32, parent: i32, group: i32) -> Process {
        Process {
            id: Pid::from_raw(id),
            state: 'S',
            parent: Pid::from_raw(parent),
            group: Pid::from_raw(group),
            session: Pid::from_raw(1),
            threads: 1,
            started: 7,
        }
    }

    #[test]
    fn a_name_may_hold_what_separates_fields() {
        let stat = "4711 (a) Z 1 (b)) S 12 13 14 34816 13 4194304 90 0 0 0 0 0 0 0 20 0 3 0 5120 0 0";
        let parsed = Process::parse(stat).unwrap();
        assert_eq!(
            (
                parsed.id.as_raw(),
                parsed.state,
                parsed.parent.as_raw(),
                parsed.group.as_raw()
            ),
            (4711, 'S', 12, 13)
        );
        assert_eq!((parsed.session.as_raw(), parsed.threads, parsed.started), (14, 3, 5120));
        assert_eq!(Process::parse("4711 (a) S 12"), None);
    }

    #[test]
    fn whoever_descends_from_the_command_belongs_to_it_and_a_child_from_before_does_not() {
        let all = [
            process(1, 0, 1),
            process(10, 1, 10),
            process(20, 10, 20),
            process(21, 20, 20),
            process(30, 10, 30),
            process(31, 30, 31),
            process(40, 10, 10),
            process(41, 40, 10),
        ];
        let family = Family::new(Pid::from_raw(20), Before(BTreeSet::from([(40, 7)])));
        let mut ids: Vec<_> = family
            .among(&all, Pid::from_raw(10))
            .iter()
            .map(|one| one.id.as_raw())
            .collect();
        ids.sort_unstable();
        assert_eq!(ids, [20, 21, 30, 31]);
    }

    #[test]
    fn an_ended_process_runs_only_as_long_as_a_thread_of_it_does() {
        let mut one = process(5, 1, 5);
        one.state = 'Z';
        assert!(!one.runs());
        one.threads = 2;
        assert!(one.runs());
    }
}
