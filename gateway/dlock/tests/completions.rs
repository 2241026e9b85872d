//! What the binary says of itself to a shell and to `man`.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{code, dlock, stderr, stdout};
use std::collections::BTreeSet;
use std::process::Command;

fn completions(shell: &str) -> String {
    let ran = dlock().args(["completions", shell]).output().unwrap();
    assert_eq!(code(&ran), 0, "{}", stderr(&ran));
    stdout(&ran)
}

#[test]
fn bash_completes_verbs_options_and_values() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("dlock");
    std::fs::write(&script, completions("bash")).unwrap();
    let complete = |line: &str| {
        let asks = "source \"$1\"; read -ra COMP_WORDS <<< \"$2\"; [[ $2 == *' ' ]] && COMP_WORDS+=('')
            COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE=$2; COMP_POINT=${#2}
            _dlock dlock \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
        let ran = Command::new("bash")
            .args(["-c", asks, "-"])
            .arg(&script)
            .arg(line)
            .output()
            .unwrap();
        assert_eq!(code(&ran), 0, "{}", stderr(&ran));
        stdout(&ran).lines().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let set = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(complete("dlock lock a"), set(&["acquire", "audit"]));
    assert_eq!(complete("dlock doc"), set(&["doctor"]));
    assert_eq!(complete("dlock verify --se"), set(&["--seals"]));
    assert_eq!(complete("dlock version -o "), set(&["table", "json"]));
    // As it stands in a .bashrc.
    let sourced = Command::new("bash")
        .args(["-c", "source <(\"$1\" completions bash); complete -p dlock", "-"])
        .arg(common::binary())
        .output()
        .unwrap();
    assert_eq!(code(&sourced), 0, "{}", stderr(&sourced));
    assert!(stdout(&sourced).contains("-F _dlock"), "{}", stdout(&sourced));
}

#[test]
fn fish_completes_verbs_and_options() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("dlock.fish");
    std::fs::write(&script, completions("fish")).unwrap();
    for (line, expected) in [
        ("dlock lock a", &["acquire", "audit"][..]),
        ("dlock doc", &["doctor"]),
        ("dlock verify --se", &["--seals"]),
    ] {
        let asks = format!("source {}; complete --do-complete '{line}'", script.display());
        let ran = match Command::new("fish").args(["--no-config", "-c", &asks]).output() {
            Ok(ran) => ran,
            Err(error) => return missing("fish", &error),
        };
        assert_eq!(code(&ran), 0, "{}", stderr(&ran));
        let said = stdout(&ran);
        let words: BTreeSet<_> = said.lines().filter_map(|line| line.split(['\t', '=']).next()).collect();
        assert_eq!(words, expected.iter().copied().collect(), "{line}");
    }
}

/// A shell that is not here checks nothing; CI has all of them.
fn missing(shell: &str, error: &std::io::Error) {
    assert!(std::env::var("CI").is_err(), "{shell} is not here: {error}");
    println!("{shell} is not here ({error}): its completions were not checked");
}

#[test]
fn zsh_and_fish_know_the_verbs() {
    for (shell, begins) in [("zsh", "#compdef dlock"), ("fish", "# Print an optspec")] {
        let text = completions(shell);
        assert!(text.starts_with(begins), "{shell}: {}", &text[..80]);
        for verb in ["doctor", "verify", "lock-server", "payout"] {
            assert!(text.contains(verb), "{shell}: {verb}");
        }
    }
    // Where the shells are, they read it.
    for (shell, file) in [("zsh", "_dlock"), ("fish", "dlock.fish")] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(file);
        std::fs::write(&path, completions(shell)).unwrap();
        match Command::new(shell).arg("-n").arg(&path).output() {
            Ok(ran) => assert_eq!(code(&ran), 0, "{shell}: {}", stderr(&ran)),
            Err(error) => missing(shell, &error),
        }
    }
    assert_eq!(code(&dlock().args(["completions", "tcsh"]).output().unwrap()), 64);
}

#[test]
fn there_is_a_manual_page_for_every_verb_that_help_shows() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dlock()
        .arg("man")
        .arg("--dir")
        .arg(dir.path().join("man1"))
        .output()
        .unwrap();
    assert_eq!(code(&ran), 0, "{}", stderr(&ran));
    let pages: BTreeSet<String> = std::fs::read_dir(dir.path().join("man1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let help = stdout(&dlock().arg("--help").output().unwrap());
    let verbs: Vec<&str> = help
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| !line.starts_with("Options:"))
        .filter_map(|line| {
            line.strip_prefix("  ")?
                .split(' ')
                .next()
                .filter(|word| !word.is_empty())
        })
        .filter(|verb| *verb != "help")
        .collect();
    assert!(verbs.len() > 15, "{verbs:?}");
    for page in verbs
        .iter()
        .map(|verb| format!("dlock-{verb}.1"))
        .chain(["dlock.1", "dlock-lock-acquire.1", "dlock-payout-resolve.1"].map(str::to_owned))
    {
        assert!(pages.contains(&page), "{page} is not in {pages:?}");
        let text = std::fs::read_to_string(dir.path().join("man1").join(&page)).unwrap();
        assert!(text.contains(".TH ") && text.contains(".SH NAME"), "{page}");
    }
    assert!(
        !pages.iter().any(|page| page.contains("jepsen-worker")),
        "a hidden verb has a page"
    );
}
