//! Exit codes, and failures that know theirs (C5.1).

use http_client::CallError;
use http_contract::{Code, Problem};
use lock_api::LockError;
use std::fmt;
use std::process::ExitCode;

/// Done.
pub const OK: u8 = 0;
/// The service refused, for a reason that is no mistake in usage.
pub const REFUSED: u8 = 1;
/// The command line, a value on it, or the configuration is wrong.
pub const USAGE: u8 = 64;
/// The service could not be reached, or did not know.
pub const UNAVAILABLE: u8 = 69;
/// A defect, or the operating system would not.
pub const INTERNAL: u8 = 70;
/// Somebody else holds the lock.
pub const CONTENTION: u8 = 75;
/// The lock was lost.
pub const LOST: u8 = 76;
/// The command exists and could not be run.
pub const CANNOT_RUN: u8 = 126;
/// There is no such command.
pub const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that ended the command.
pub const SIGNALLED: u8 = 128;

/// Why a subcommand ends without having done what it was asked.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    problem: Option<Box<Problem>>,
}

impl Failure {
    /// A failure with this exit code.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            problem: None,
        }
    }

    /// A mistake in usage or configuration.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    /// Whether the same may succeed later, or at another server.
    pub const fn is_passing(&self) -> bool {
        self.code == UNAVAILABLE
    }

    /// Its exit code.
    pub const fn code(&self) -> u8 {
        self.code
    }

    /// What the service said, where it refused.
    pub fn problem(&self) -> Option<&Problem> {
        self.problem.as_deref()
    }

    /// With what to do about it, where nobody was reached.
    #[must_use]
    pub fn with_next_step(mut self, step: &str) -> Self {
        if self.code == UNAVAILABLE && self.problem.is_none() {
            self.message = format!("{}; {step}", self.message);
        }
        self
    }

    /// Says it on standard error; a problem of the service also in full, so that its fields can be read. As JSON it is one
    /// object on one line: `message`, `exit_code`, and `problem` as the service gave it, or null.
    pub fn report(&self, as_json: bool) -> ExitCode {
        if as_json {
            let told = serde_json::json!({
                "message": self.message,
                "exit_code": self.code,
                "problem": self.problem,
            });
            eprintln!("{}", gateway_kit::shown_json(&told.to_string()));
            return ExitCode::from(self.code);
        }
        eprintln!("dlock: {}", gateway_kit::shown_lines(&self.message));
        if let Some(problem) = &self.problem {
            for (field, value) in &problem.fields {
                eprintln!("  {field}: {}", gateway_kit::shown_json(&value.to_string()));
            }
            eprintln!("  trace_id: {}", problem.trace_id);
        }
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let problem = match error {
            CallError::Problem(problem) => problem,
            other => return Self::new(UNAVAILABLE, other.to_string()),
        };
        let code = match problem.code {
            Code::HeldByOther | Code::LockDelayed => CONTENTION,
            Code::InvalidRequest | Code::FencingTokenInvalid | Code::FencingTokenRequired => USAGE,
            code if code.status() >= 500 => UNAVAILABLE,
            _ => REFUSED,
        };
        Self {
            code,
            message: format!("{}: {}", problem.code, problem.detail),
            problem: Some(problem),
        }
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        let code = match &error {
            LockError::HeldByOther(_) | LockError::ContentionExceeded { .. } | LockError::Delayed { .. } => CONTENTION,
            LockError::Lost(_) => LOST,
            LockError::Invalid { .. } => USAGE,
            _ => UNAVAILABLE,
        };
        Self::new(code, error.to_string())
    }
}

impl From<lock_api::InvalidValue> for Failure {
    fn from(error: lock_api::InvalidValue) -> Self {
        Self::usage(error.to_string())
    }
}
