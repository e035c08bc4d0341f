//! The ways in which file contents are overwritten.

use std::fmt;
use std::str::FromStr;

/// The way in which file contents are overwritten. It may differ from mount to mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// In place, as in the paper: a crash may leave a part of a write.
    #[default]
    InPlace,
    /// By a copy of each block: a write within a block is atomic.
    Atomic,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 2] = [Self::InPlace, Self::Atomic];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InPlace => "in-place",
            Self::Atomic => "atomic",
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
        let mut all = Self::ALL.into_iter();
        all.find(|mode| mode.name() == s)
            .ok_or_else(|| format!("unknown mode '{s}': use in-place or atomic"))
    }
}
