//! Reports of checkers: findings by numbered invariant of the format.

use serde::Serialize;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Wasted space or the like, which has no effect on users.
    Leak,
    /// The format is violated.
    Corrupt,
}

/// One violation of one invariant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The invariant, numbered as in the format's `format.md`, such as `B3`.
    pub invariant: String,
    /// The severity.
    pub severity: Severity,
    /// One line: the structure, its place, and what is wrong.
    pub what: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

/// The findings of a checker. Checkers are read-only, and bounded in time and memory on any
/// input.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Violations, in any order.
    pub findings: Vec<Finding>,
    /// True if the checker stopped listing findings because there were too many.
    #[serde(rename = "truncated")]
    pub is_truncated: bool,
    /// Number of findings that are leaks.
    #[serde(skip)]
    leaks: usize,
}

impl Report {
    /// Most findings that a report lists.
    pub const MAX_FINDINGS: usize = 1000;

    /// Adds a finding, up to [`MAX_FINDINGS`](Self::MAX_FINDINGS). After that, worse findings
    /// replace leaks.
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
        self.is_truncated = true;
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
    fn worse_findings_replace_leaks() {
        let mut report = Report::default();
        for _ in 0..Report::MAX_FINDINGS + 1 {
            report.add("X1", Severity::Leak, "a leak");
        }
        assert_eq!(
            (report.worst(), report.is_truncated),
            (Some(Severity::Leak), true)
        );
        for _ in 0..Report::MAX_FINDINGS + 1 {
            report.add("X2", Severity::Corrupt, "damage");
        }
        assert!(report.findings.iter().all(|found| found.invariant == "X2"));
        assert_eq!(report.findings.len(), Report::MAX_FINDINGS);
    }
}
