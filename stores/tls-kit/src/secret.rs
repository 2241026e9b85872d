//! Files that hold a secret: who may read them (case S8).

use crate::{Unusable, file};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Refuses a file that somebody else can read: one with any right for its group or for others. A file of root's may be
/// readable by its group, as those that Kubernetes mounts for a pod with `fsGroup` are (0440); the rule is libpq's. On a
/// file system in memory that is mounted read-only, which is what a volume of secrets is, a file of root's may be readable
/// by everybody: the Secrets Store driver knows no owner but root (0444, 0644), and nobody but this container has the mount.
///
/// # Errors
/// [`Unusable::File`], naming the mode; also where it cannot be looked at.
pub fn check_private(path: &Path) -> Result<(), Unusable> {
    let shown = path.display().to_string();
    let found = std::fs::metadata(path).map_err(|error| file(&shown, error))?;
    let (refused, wanted) = match found.uid() {
        0 if is_volume_of_secrets(path) => (0o022, "writable by root alone"),
        0 => (0o037, "0640 or less for a file of root's"),
        _ => (0o077, "0600 or less"),
    };
    if found.mode() & refused == 0 {
        return Ok(());
    }
    let mode = found.mode() & 0o777;
    Err(file(
        &shown,
        format!("others can use this secret: its mode is {mode:04o} and must be {wanted}"),
    ))
}

/// Whether a file stands on a read-only file system in memory.
#[cfg(target_os = "linux")]
fn is_volume_of_secrets(path: &Path) -> bool {
    use nix::sys::{statfs, statvfs};
    let in_memory = statfs::statfs(path).is_ok_and(|found| found.filesystem_type() == statfs::TMPFS_MAGIC);
    let flags = statvfs::statvfs(path).map(|found| found.flags());
    in_memory && flags.is_ok_and(|flags| flags.contains(statvfs::FsFlags::ST_RDONLY))
}

#[cfg(not(target_os = "linux"))]
fn is_volume_of_secrets(_path: &Path) -> bool {
    false
}

/// A secret that a file holds alone; one newline at its end is no part of it.
///
/// # Errors
/// [`Unusable::File`] where it cannot be read, is no text, or others can read it.
pub fn secret(path: &Path) -> Result<String, Unusable> {
    check_private(path)?;
    let shown = path.display().to_string();
    let mut text = std::fs::read_to_string(path).map_err(|error| file(&shown, error))?;
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn case_s8_a_secret_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "s3cret\n").unwrap();
        let of_root = std::fs::metadata(&path).unwrap().uid() == 0;
        let with = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            secret(&path)
        };
        for mode in [0o600, 0o400] {
            assert_eq!(with(mode).unwrap(), "s3cret", "{mode:o}");
        }
        for mode in [0o644, 0o604, 0o601, 0o620, 0o660] {
            let said = with(mode).unwrap_err().to_string();
            assert!(said.contains(&format!("its mode is {mode:04o}")), "{said}");
            assert!(!said.contains("s3cret"), "{said}");
        }
        assert_eq!(
            with(0o440).is_ok(),
            of_root,
            "a mounted secret of root's, for our group"
        );
    }

    /// As the Secrets Store driver mounts them, where this process may mount a file system.
    #[cfg(target_os = "linux")]
    #[test]
    fn case_s8_a_volume_of_secrets_is_taken_as_it_is() {
        struct Mounted(tempfile::TempDir);
        impl Drop for Mounted {
            fn drop(&mut self) {
                drop(
                    std::process::Command::new("umount")
                        .arg("-l")
                        .arg(self.0.path())
                        .status(),
                );
            }
        }
        let mount = |args: &[&str], at: &Path| {
            let mounted = std::process::Command::new("mount").args(args).arg(at).status();
            mounted.is_ok_and(|status| status.success())
        };
        let dir = tempfile::tempdir().unwrap();
        if !mount(&["-t", "tmpfs", "-o", "size=1m", "tmpfs"], dir.path()) {
            eprintln!("not run: this process may not mount a file system");
            return;
        }
        let dir = Mounted(dir);
        let path = dir.0.path().join("secret");
        std::fs::write(&path, "s3cret").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(check_private(&path).is_err(), "it can be written");
        assert!(mount(&["-o", "remount,ro"], dir.0.path()));
        check_private(&path).unwrap();
    }
}
