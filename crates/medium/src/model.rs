//! The states in which a power failure may leave persistent memory.

use crate::{LINE_BYTES, WORD_BYTES};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// Which stores a power failure may lose if they were not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PersistModel {
    /// Every aligned 8-byte word keeps any number of its stores, oldest first, independently of
    /// the other words. BPFS and Mnemosyne assume this of the hardware.
    #[default]
    Words,
    /// Every 64-byte line keeps any number of its stores, in program order, independently of
    /// the other lines. SoupFS assumes this, and x86 does it. Streaming stores count in program
    /// order too; [`Words`](Self::Words) covers their reordering.
    Lines,
}

impl PersistModel {
    /// Both models.
    pub const ALL: [Self; 2] = [Self::Words, Self::Lines];

    /// Bytes of the unit whose stores keep their order.
    pub fn cell_bytes(self) -> u64 {
        match self {
            Self::Words => WORD_BYTES,
            Self::Lines => LINE_BYTES,
        }
    }
}

impl fmt::Display for PersistModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Words => "words",
            Self::Lines => "lines",
        })
    }
}

/// The error for a text other than `words` and `lines`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not one of words, lines")]
pub struct UnknownModel(String);

impl FromStr for PersistModel {
    type Err = UnknownModel;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "words" => Ok(Self::Words),
            "lines" => Ok(Self::Lines),
            _ => Err(UnknownModel(s.to_owned())),
        }
    }
}
