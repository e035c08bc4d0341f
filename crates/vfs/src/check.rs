//! How checkers report: by numbered invariant of the format they check.

use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Wasted space or the like; nothing is wrong for users.
    Leak,
    /// The format is violated.
    Corrupt,
}

/// One violation of one invariant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The invariant, numbered as in the format's `format.md`, such as `B3`.
    pub invariant: String,
    /// How bad it is.
    pub severity: Severity,
    /// One line: the structure, where it is, what is wrong with it.
    pub what: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

/// What a checker found. Checkers are read-only and bounded in time and memory on any
/// input.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Violations, worst first is not required.
    pub findings: Vec<Finding>,
    /// True if the checker stopped listing findings because there were too many.
    pub truncated: bool,
}

impl Report {
    /// Most findings that a report lists.
    pub const MAX_FINDINGS: usize = 1000;

    /// Adds a finding, up to [`MAX_FINDINGS`](Self::MAX_FINDINGS).
    pub fn add(&mut self, invariant: &str, severity: Severity, what: impl Into<String>) {
        if self.findings.len() == Self::MAX_FINDINGS {
            self.truncated = true;
        } else {
            let what = what.into();
            self.findings.push(Finding {
                invariant: invariant.into(),
                severity,
                what,
            });
        }
    }

    /// Whether nothing is wrong (leaks count as wrong).
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// A read-only checker of one format.
pub trait Checker {
    /// Examines the whole image.
    fn check(&self) -> Report;
}
