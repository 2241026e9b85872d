//! Ends the children and containers of a harness that was itself killed.
//!
//! A parent that dies by SIGKILL cannot clean up, and a child that is stopped (SIGSTOP) would wait for ever. The reaper
//! is a small shell in a process group of its own: it is told each child's process group, each container, network and
//! volume, and when its standard input closes, because the parent has gone in whatever way, it kills the groups that were not
//! taken back and takes the containers, networks and volumes away.

use super::RunError;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

const SCRIPT: &str = r#"
groups= containers= networks= volumes=
while read -r sign group; do
    case $sign in
        +) groups="$groups $group" ;;
        -) left=; for g in $groups; do [ "$g" = "$group" ] || left="$left $g"; done; groups=$left ;;
        container) containers="$containers $group" ;;
        network) networks="$networks $group" ;;
        volume) volumes="$volumes $group" ;;
    esac
done
for group in $groups; do kill -s KILL -- "-$group" 2>/dev/null; done
[ -z "$containers" ] || docker rm --force --volumes $containers >/dev/null 2>&1
[ -z "$networks" ] || docker network rm $networks >/dev/null 2>&1
[ -z "$volumes" ] || docker volume rm --force $volumes >/dev/null 2>&1
exit 0
"#;

#[derive(Debug)]
pub(super) struct Reaper {
    child: Child,
    tell: Option<ChildStdin>,
}

impl Reaper {
    pub(super) fn start() -> Result<Self, RunError> {
        let mut child = Command::new("/bin/sh")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(RunError::io("starting the reaper"))?;
        let tell = child.stdin.take();
        Ok(Self { child, tell })
    }

    pub(super) fn watch(&mut self, group: u32) {
        self.say("+", group);
    }

    pub(super) fn forget(&mut self, group: u32) {
        self.say("-", group);
    }

    /// A container, a network or a volume, by its name.
    pub(super) fn watch_docker(&mut self, kind: &str, name: &str) {
        self.say(kind, name);
    }

    fn say(&mut self, sign: &str, group: impl std::fmt::Display) {
        if let Some(tell) = &mut self.tell
            && let Err(error) = writeln!(tell, "{sign} {group}")
        {
            tracing::warn!(event = "reaper_gone", %error);
            self.tell = None;
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        // Its input closes, so it kills what is left and ends.
        self.tell = None;
        if let Err(error) = self.child.wait() {
            tracing::warn!(event = "reaper_lost", %error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").process_group(0).spawn().unwrap()
    }

    #[test]
    fn children_die_with_the_reapers_input_and_forgotten_ones_live() {
        let (mut doomed, mut spared) = (sleeper(), sleeper());
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(i32::try_from(doomed.id()).unwrap()),
            nix::sys::signal::Signal::SIGSTOP,
        )
        .unwrap();
        let mut reaper = Reaper::start().unwrap();
        reaper.watch(doomed.id());
        reaper.watch(spared.id());
        reaper.forget(spared.id());
        drop(reaper);
        assert_eq!(doomed.wait().unwrap().signal(), Some(9));
        assert!(spared.try_wait().unwrap().is_none());
        spared.kill().unwrap();
        spared.wait().unwrap();
    }
}
