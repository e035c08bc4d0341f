//! The durability that the fences of a mapping give.

use crate::open_error::OpenError;
use rustix::fs::StatFs;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// The durability that the user requests (`--durability`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// [`Dax`](Self::Dax) if the file allows it, else [`Process`](Self::Process). If the
    /// mapping is to be [safe against power failures](crate::MapOptions::power_safe),
    /// [`Msync`](Self::Msync) replaces `Process`.
    #[default]
    Auto,
    /// Durable through a power failure by flush and fence alone; needs persistent
    /// memory mapped with `MAP_SYNC`.
    Dax,
    /// Survives a crash of the process, but not of the machine.
    Process,
    /// Every fence writes the touched pages back with `msync`: durable through a power failure
    /// on any file, but slow.
    Msync,
}

/// The durability in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EffectiveDurability {
    /// As [`Durability::Dax`].
    Dax,
    /// As [`Durability::Process`].
    Process,
    /// As [`Durability::Msync`].
    Msync,
}

impl Durability {
    /// All values, in the order in which help texts list them.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Dax, Self::Process, Self::Msync];

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Dax => "dax",
            Self::Process => "process",
            Self::Msync => "msync",
        }
    }
}

impl EffectiveDurability {
    /// The crashes that durable changes survive, in plain words.
    pub fn survived(self) -> &'static str {
        match self {
            Self::Dax => "durable changes survive a power failure",
            Self::Process => {
                "durable changes survive a crash of this program, but not a crash of the machine \
                 or a power failure"
            }
            Self::Msync => "durable changes survive a power failure; every sync waits for the disk",
        }
    }

    /// The same, where each call is durable when it returns.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Dax => "what a call has done when it returns survives a power failure",
            Self::Process => {
                "what a call has done when it returns survives a crash of this program, \
                 but not a crash of the machine or a power failure"
            }
            Self::Msync => {
                "what a call has done when it returns survives a power failure; \
                 every commit waits for the disk"
            }
        }
    }
}

impl From<EffectiveDurability> for Durability {
    fn from(effective: EffectiveDurability) -> Self {
        match effective {
            EffectiveDurability::Dax => Self::Dax,
            EffectiveDurability::Process => Self::Process,
            EffectiveDurability::Msync => Self::Msync,
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for EffectiveDurability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Durability::from(*self).name())
    }
}

/// The error for a text other than `auto`, `dax`, `process` and `msync`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not one of auto, dax, process, msync")]
pub struct UnknownDurability(String);

impl FromStr for Durability {
    type Err = UnknownDurability;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|d| d.name() == s);
        found.ok_or_else(|| UnknownDurability(s.to_owned()))
    }
}

/// Whether files at `path` lie in a file system in memory (tmpfs, ramfs). No file there
/// survives a crash of the machine, whatever the durability.
///
/// # Errors
/// [`OpenError::System`].
pub fn is_in_memory(path: impl AsRef<Path>) -> Result<bool, OpenError> {
    let path = path.as_ref();
    let found = rustix::fs::statfs(path).map_err(|e| OpenError::System {
        doing: "find",
        path: path.to_owned(),
        source: e.into(),
    })?;
    Ok(is_memory_fs(&found))
}

/// Whether a file system keeps its files in memory.
pub(crate) fn is_memory_fs(found: &StatFs) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    const HUGETLBFS: u32 = 0x9584_58f6;
    [TMPFS, RAMFS, HUGETLBFS].contains(&(found.f_type as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for d in Durability::ALL {
            assert_eq!(d.to_string().parse(), Ok(d));
        }
        let error = "DAX".parse::<Durability>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "'DAX' is not one of auto, dax, process, msync"
        );
    }
}
