//! The engines that benchmarks know, by name.

use bpfs::Mode;
use std::fmt;
use std::str::FromStr;

/// An engine to measure: `bpfs`, `bpfs:MODE` or `model`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// BPFS, in the mode that mkfs chooses or in another.
    Bpfs(Option<Mode>),
    /// The in-memory model: what the trait itself costs, without persistence.
    Model,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bpfs(None) => f.pad("bpfs"),
            Self::Bpfs(Some(mode)) => f.pad(&format!("bpfs:{mode}")),
            Self::Model => f.pad("model"),
        }
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s.split_once(':') {
            Some(("bpfs", mode)) => Ok(Self::Bpfs(Some(mode.parse()?))),
            None if s == "bpfs" => Ok(Self::Bpfs(None)),
            None if s == "model" => Ok(Self::Model),
            _ => Err(format!("unknown type '{s}': use bpfs, bpfs:MODE or model")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in ["bpfs", "bpfs:sp", "bpfs:log", "model"] {
            assert_eq!(name.parse::<Engine>().unwrap().to_string(), name);
        }
        for name in ["", "bpfs:", "bpfs:x", "model:sp", "ext2"] {
            assert!(name.parse::<Engine>().is_err(), "{name}");
        }
    }
}
