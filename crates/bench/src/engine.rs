//! The engines that benchmarks know, in one table: a new engine is a new row.

use crate::error::Result;
use crate::images::{self, Counted};
use bpfs::Mode;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use vfs::FileSystem;

/// An engine to measure, by its name: `bpfs`, `bpfs:MODE` or `model`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Engine {
    known: &'static Known,
    mode: Option<Mode>,
}

/// A row of the table.
#[derive(Debug)]
struct Known {
    name: &'static str,
    /// Whether it lives on a medium; else nothing of it is durable.
    has_medium: bool,
    /// Whether `NAME:MODE` chooses one of BPFS's commit modes.
    has_modes: bool,
    /// A new one in this process, over memory that is flushed where it has a medium.
    fresh: fn(Option<Mode>) -> Result<Arc<dyn FileSystem>>,
    /// A new one whose medium counts; `None` for those without.
    counted: Option<fn(Option<Mode>) -> Result<Counted>>,
}

const TABLE: [&Known; 2] = [&BPFS, &MODEL];

static BPFS: Known = Known {
    name: "bpfs",
    has_medium: true,
    has_modes: true,
    fresh: images::on_shared_memory,
    counted: Some(images::counted),
};

static MODEL: Known = Known {
    name: "model",
    has_medium: false,
    has_modes: false,
    fresh: |_| Ok(images::model()),
    counted: None,
};

impl PartialEq for Known {
    /// Names are unique.
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Known {}

impl Engine {
    /// BPFS, in the mode that mkfs chooses.
    pub const BPFS: Self = Self {
        known: &BPFS,
        mode: None,
    };

    /// The in-memory model: what the trait itself costs, without persistence.
    pub const MODEL: Self = Self {
        known: &MODEL,
        mode: None,
    };

    /// Engines that live on a medium, each alone and in each of its modes.
    pub fn stored() -> Vec<Self> {
        let stored = TABLE.into_iter().filter(|known| known.has_medium);
        stored.flat_map(Self::variants).collect()
    }

    /// All engines, each alone and in each of its modes.
    pub fn all() -> Vec<Self> {
        TABLE.into_iter().flat_map(Self::variants).collect()
    }

    fn variants(known: &'static Known) -> impl Iterator<Item = Self> {
        let modes = Mode::ALL.into_iter().filter(|_| known.has_modes).map(Some);
        let modes = std::iter::once(None).chain(modes);
        modes.map(move |mode| Self { known, mode })
    }

    /// The name, without the mode.
    pub(crate) fn name(self) -> &'static str {
        self.known.name
    }

    /// BPFS's commit mode, if one was chosen.
    pub(crate) fn mode(self) -> Option<Mode> {
        self.mode
    }

    /// Whether it lives on a medium.
    pub(crate) fn has_medium(self) -> bool {
        self.known.has_medium
    }

    /// A new file system in this process.
    pub(crate) fn fresh(self) -> Result<Arc<dyn FileSystem>> {
        (self.known.fresh)(self.mode)
    }

    /// A new file system on a medium that counts; `None` for engines without a medium.
    pub(crate) fn counted(self) -> Result<Option<Counted>> {
        let counted = self.known.counted.map(|counted| counted(self.mode));
        counted.transpose()
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mode {
            None => f.pad(self.name()),
            Some(mode) => f.pad(&format!("{}:{mode}", self.name())),
        }
    }
}

/// The names that can be given, for messages.
fn known_names() -> String {
    let names = TABLE.iter().flat_map(|known| {
        let with_mode = known.has_modes.then(|| format!("{}:MODE", known.name));
        [Some(known.name.to_owned()), with_mode]
    });
    names.flatten().collect::<Vec<_>>().join(", ")
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (name, mode) = match text.split_once(':') {
            Some((name, mode)) => (name, Some(mode)),
            None => (text, None),
        };
        let known = TABLE
            .into_iter()
            .find(|known| known.name == name && (known.has_modes || mode.is_none()))
            .ok_or_else(|| format!("unknown type '{text}': known are {}", known_names()))?;
        let mode = mode.map(str::parse).transpose()?;
        Ok(Self { known, mode })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for engine in Engine::all() {
            assert_eq!(engine.to_string().parse(), Ok(engine));
        }
        for name in ["bpfs", "bpfs:sp", "bpfs:log", "model"] {
            assert_eq!(name.parse::<Engine>().unwrap().to_string(), name);
        }
        for name in ["", "bpfs:", "bpfs:x", "model:sp", "ext2"] {
            assert!(name.parse::<Engine>().is_err(), "{name}");
        }
        let error = "ext2".parse::<Engine>().unwrap_err();
        assert!(
            error.ends_with("known are bpfs, bpfs:MODE, model"),
            "{error}"
        );
    }

    #[test]
    fn every_row_makes_a_file_system() {
        for known in TABLE {
            let engine: Engine = known.name.parse().unwrap();
            let made = engine.fresh().map(drop);
            assert!(made.is_ok(), "{}: {made:?}", known.name);
            let counted = engine.counted().unwrap();
            assert_eq!(counted.is_some(), engine.has_medium());
        }
    }
}
