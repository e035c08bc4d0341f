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
    /// How many of the findings are leaks.
    #[serde(skip)]
    leaks: usize,
}

impl Report {
    /// Most findings that a report lists.
    pub const MAX_FINDINGS: usize = 1000;

    /// Adds a finding, up to [`MAX_FINDINGS`](Self::MAX_FINDINGS). Of more than that, leaks
    /// make room for what is worse.
    pub fn add(&mut self, invariant: &str, severity: Severity, what: impl Into<String>) {
        let finding = Finding {
            invariant: invariant.into(),
            severity,
            what: what.into(),
        };
        let is_leak = severity == Severity::Leak;
        if self.findings.len() < Self::MAX_FINDINGS {
            self.findings.push(finding);
            self.leaks += usize::from(is_leak);
            return;
        }
        self.truncated = true;
        if !is_leak && self.leaks > 0 {
            let milder = |found: &&mut Finding| found.severity == Severity::Leak;
            if let Some(leak) = self.findings.iter_mut().find(milder) {
                *leak = finding;
                self.leaks -= 1;
            }
        }
    }

    /// The worst finding, listed or not; `None` if nothing is wrong.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|found| found.severity).max()
    }

    /// Whether nothing is wrong (leaks count as wrong).
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaks_make_room_for_what_is_worse() {
        let mut report = Report::default();
        for _ in 0..Report::MAX_FINDINGS + 1 {
            report.add("X1", Severity::Leak, "a leak");
        }
        assert_eq!(
            (report.worst(), report.truncated),
            (Some(Severity::Leak), true)
        );
        for _ in 0..Report::MAX_FINDINGS + 1 {
            report.add("X2", Severity::Corrupt, "damage");
        }
        assert!(report.findings.iter().all(|found| found.invariant == "X2"));
        assert_eq!(report.findings.len(), Report::MAX_FINDINGS);
    }
}
