//! Times at which blocks leave the cache.

use serde::Serialize;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// A schedule of write-back for a script's changes. Each ends with a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// All by that sync.
    Sync,
    /// One wave after each operation.
    Each,
    /// After the last operation, block by block.
    Ones,
    /// After the last operation, two blocks at a time.
    Twos,
    /// After the last operation, in waves of all blocks that can be written.
    Waves,
    /// After each operation and after the last, in waves of a few blocks. They are drawn by this
    /// seed from all blocks that can be written.
    Any(u32),
    /// One wave after some of the operations: after number `first`, from 0, and then after every
    /// `period` ones.
    Every {
        /// Operations from one wave to the next, at least 1.
        period: u32,
        /// The operation with the first wave after it.
        first: u32,
    },
}

impl Schedule {
    /// The schedules that tests of engines run by default.
    pub const ALL: [Schedule; 6] = [
        Schedule::Sync,
        Schedule::Each,
        Schedule::Ones,
        Schedule::Twos,
        Schedule::Waves,
        Schedule::Any(1),
    ];

    /// Most blocks in one wave.
    pub(crate) fn wave(self) -> usize {
        match self {
            Schedule::Ones => 1,
            Schedule::Twos => 2,
            Schedule::Sync
            | Schedule::Each
            | Schedule::Waves
            | Schedule::Any(_)
            | Schedule::Every { .. } => 1024,
        }
    }

    /// Whether one wave is written after operation number `n`.
    pub(crate) fn writes_after(self, n: usize) -> bool {
        match self {
            Schedule::Each => true,
            Schedule::Every { period, first } => {
                let since = n.checked_sub(first as usize);
                since.is_some_and(|since| since.is_multiple_of(period.max(1) as usize))
            }
            Schedule::Sync
            | Schedule::Ones
            | Schedule::Twos
            | Schedule::Waves
            | Schedule::Any(_) => false,
        }
    }
}

impl Display for Schedule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Schedule::Sync => "sync",
            Schedule::Each => "each",
            Schedule::Ones => "ones",
            Schedule::Twos => "twos",
            Schedule::Waves => "waves",
            Schedule::Any(seed) => return write!(f, "any{seed}"),
            Schedule::Every { period, first } => return write!(f, "every{period}+{first}"),
        })
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let drawn = || s.strip_prefix("any")?.parse().ok().map(Schedule::Any);
        let every = || {
            let (period, first) = s.strip_prefix("every")?.split_once('+')?;
            let (period, first) = (period.parse().ok()?, first.parse().ok()?);
            (period > 0).then_some(Schedule::Every { period, first })
        };
        let named = || Schedule::ALL.into_iter().find(|x| x.to_string() == s);
        drawn().or_else(every).or_else(named).ok_or_else(|| {
            format!(
                "`{s}` is not a schedule of write-back (sync, each, ones, twos, waves, anySEED, \
                 everyPERIOD+FIRST)"
            )
        })
    }
}
