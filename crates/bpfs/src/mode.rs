//! The commit modes of Figure 3.8 of the dissertation, and mode `log`.

use std::fmt;
use std::str::FromStr;

/// The optimisations that a mount uses: the columns of Figure 3.8 in the dissertation (section
/// 3.6.4), plus [`Mode::Log`]. All modes use one format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Shadow paging: copy-on-write up to the super block, which is written twice.
    Sp,
    /// Adds short-circuit commits (3.3.1).
    Sc,
    /// Adds in-place append (3.3.3).
    A,
    /// Short-circuit commits and independent time updates (3.3.4).
    T,
    /// In-place append and independent time updates.
    At,
    /// Adds in-place tree height switch, in-place creation and derived link counts: all
    /// optimisations of the paper.
    Other,
    /// All optimisations of the paper, and a small redo log instead of copies for small
    /// overwrites and renames (in the spirit of section 3.7).
    Log,
}

impl Mode {
    /// The default of mkfs. `docs/benchmarks.md` compares the modes.
    pub const DEFAULT: Mode = Mode::Log;

    /// Every mode, weakest first.
    pub const ALL: [Mode; 7] = [
        Mode::Sp,
        Mode::Sc,
        Mode::A,
        Mode::T,
        Mode::At,
        Mode::Other,
        Mode::Log,
    ];

    /// The name, as options and messages spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Sp => "sp",
            Mode::Sc => "sc",
            Mode::A => "a",
            Mode::T => "t",
            Mode::At => "at",
            Mode::Other => "other",
            Mode::Log => "log",
        }
    }

    /// The number that the super block stores.
    pub(crate) fn code(self) -> u64 {
        Self::ALL
            .iter()
            .position(|m| *m == self)
            .map_or(0, |i| i as u64)
    }

    pub(crate) fn from_code(code: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }

    pub(crate) fn rules(self) -> Rules {
        let full = Rules {
            short_circuit: true,
            append: true,
            times: true,
            other: true,
            log: true,
        };
        match self {
            Mode::Log => full,
            Mode::Other => Rules { log: false, ..full },
            Mode::At => Rules {
                log: false,
                other: false,
                ..full
            },
            Mode::T => Rules {
                log: false,
                other: false,
                append: false,
                ..full
            },
            Mode::A => Rules {
                log: false,
                other: false,
                times: false,
                ..full
            },
            Mode::Sc => Rules {
                short_circuit: true,
                ..Rules::default()
            },
            Mode::Sp => Rules::default(),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Mode::ALL
            .into_iter()
            .find(|m| m.to_string() == s)
            .ok_or_else(|| format!("unknown mode '{s}': use sp, sc, a, t, at, other or log"))
    }
}

/// The optimisations of a mode.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rules {
    /// Commit by one atomic store at the lowest common ancestor, not at the root.
    pub short_circuit: bool,
    /// Store bytes beyond the end of a file in place.
    pub append: bool,
    /// Store times in place, outside the atomic step.
    pub times: bool,
    /// Store in place: inodes and entries in the making, and changes of a tree that leave its
    /// contents (height, zeroed blocks).
    pub other: bool,
    /// Commit several small stores through the redo log.
    pub log: bool,
}
