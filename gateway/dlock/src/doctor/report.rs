//! What was looked at, how it stands, and what to do about it.

use crate::exit::{Failure, OK, REFUSED};
use crate::output::{self, Format};
use serde::Serialize;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Could not be looked at, or was not asked for.
    NotChecked,
    /// Works, and somebody should know.
    Warning,
    /// Has to be mended.
    Wrong,
}

impl Level {
    const fn shown(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotChecked => "not checked",
            Self::Warning => "warning",
            Self::Wrong => "WRONG",
        }
    }
}

/// One check.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// How it came out.
    pub level: Level,
    /// What was looked at: a URL without secrets, or a file.
    pub subject: String,
    /// Which check.
    pub check: &'static str,
    /// What was found.
    pub found: String,
    /// What to do; none where there is nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// All checks of a run, in order.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    checks: Vec<Check>,
}

impl Report {
    fn add(&mut self, level: Level, subject: &str, check: &'static str, found: String, next: Option<String>) {
        self.checks.push(Check {
            level,
            subject: subject.to_owned(),
            check,
            found,
            next,
        });
    }

    /// As it should be.
    pub fn ok(&mut self, subject: &str, check: &'static str, found: impl Into<String>) {
        self.add(Level::Ok, subject, check, found.into(), None);
    }

    /// Works, and somebody should know.
    pub fn warning(&mut self, subject: &str, check: &'static str, found: impl Into<String>, next: impl Into<String>) {
        self.add(Level::Warning, subject, check, found.into(), Some(next.into()));
    }

    /// Has to be mended.
    pub fn wrong(&mut self, subject: &str, check: &'static str, found: impl Into<String>, next: impl Into<String>) {
        self.add(Level::Wrong, subject, check, found.into(), Some(next.into()));
    }

    /// Could not be looked at, and why.
    pub fn not_checked(&mut self, subject: &str, check: &'static str, why: impl Into<String>) {
        self.add(Level::NotChecked, subject, check, why.into(), None);
    }

    fn count(&self, level: Level) -> usize {
        self.checks.iter().filter(|check| check.level == level).count()
    }

    /// Writes the checks and answers the exit code: 1 where something is wrong.
    pub fn finish(&self, format: Format) -> Result<u8, Failure> {
        let (wrong, warnings) = (self.count(Level::Wrong), self.count(Level::Warning));
        let unchecked = self.count(Level::NotChecked);
        match format {
            Format::Json => output::object(
                format,
                &serde_json::json!({
                    "ok": wrong == 0,
                    "wrong": wrong,
                    "warnings": warnings,
                    "not_checked": unchecked,
                    "checks": self.checks,
                }),
            )?,
            Format::Table => output::line(format, &(), || self.lines(wrong, warnings, unchecked))?,
        }
        Ok(if wrong == 0 { OK } else { REFUSED })
    }

    fn lines(&self, wrong: usize, warnings: usize, unchecked: usize) -> String {
        let mut text = String::new();
        let mut subject = "";
        for check in &self.checks {
            if check.subject != subject {
                text.push_str(&format!("{}\n", check.subject));
                subject = &check.subject;
            }
            text.push_str(&format!(
                "  {:<11}  {:<20} {}\n",
                check.level.shown(),
                check.check,
                check.found
            ));
            if let Some(next) = &check.next {
                text.push_str(&format!("  {:<11}  {:<20} -> {next}\n", "", ""));
            }
        }
        let ok = self.count(Level::Ok);
        text.push_str(&format!(
            "{ok} ok, {warnings} warnings, {wrong} wrong, {unchecked} not checked"
        ));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wrong_changes_the_exit_code() {
        let mut report = Report::default();
        report.ok("a", "one", "fine");
        report.warning("a", "two", "late", "look");
        report.not_checked("b", "three", "no route");
        assert_eq!(report.finish(Format::Table).unwrap(), OK);
        report.wrong("b", "four", "broken", "mend");
        assert_eq!(report.finish(Format::Table).unwrap(), REFUSED);
        let text = report.lines(1, 1, 1);
        assert!(text.ends_with("1 ok, 1 warnings, 1 wrong, 1 not checked"), "{text}");
        assert!(text.contains("-> mend") && text.matches("\nb\n").count() == 1, "{text}");
    }
}
