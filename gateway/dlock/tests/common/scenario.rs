//! Scenarios as a user runs them, and whether there is a Docker for those that need one.

use serde_json::Value;
use std::process::{Command, Output};

/// Whether containers can be started. With `CI=true` a machine without Docker is a failure.
pub fn docker() -> bool {
    let answers = Command::new("docker").arg("version").output();
    if answers.is_ok_and(|output| output.status.success()) {
        return true;
    }
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "no Docker for this test: it starts containers"
    );
    eprintln!("\n*** SKIPPED: no Docker for this test: it starts containers ***\n");
    false
}

/// Runs the binary to its end, with no setting of whoever runs the tests but the names of images.
pub fn dlock(args: &[&str]) -> Output {
    let mut command = Command::new(super::binary());
    for (variable, _) in std::env::vars().filter(|(name, _)| name.starts_with("DLOCK_") && !name.ends_with("_IMAGE")) {
        command.env_remove(variable);
    }
    command.args(args).output().unwrap()
}

/// Runs a scenario, demands that every check and verdict came out as it must, and answers its report.
pub fn judged(args: &[&str]) -> Value {
    let mut args = args.to_vec();
    args.extend(["-o", "json"]);
    let output = dlock(&args);
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {said}"));
    let wrong: Vec<_> = report["checks"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|check| check["expected"] != check["measured"])
        .collect();
    let violated: Vec<_> = report["verdicts"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|verdict| verdict["facts"] == 0 || verdict["violations"] != Value::Array(Vec::new()))
        .collect();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{args:?}: {wrong:?} {violated:?}\n{said}"
    );
    report
}
