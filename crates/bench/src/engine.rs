//! The engines that benchmarks take, from the one list of engines.

use crate::error::{Context, Error, Result};
use crate::images;
use ::engine::{Scratch, ScratchKind, ScratchOptions};
use medium::{Counting, MemoryPmem};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use vfs::{FileSystem, ManualClock, Timestamp};

/// An engine to measure, by its name: `NAME` or `NAME:MODE`.
#[derive(Clone, Copy)]
pub struct Engine {
    engine: &'static dyn ::engine::Engine,
    mode: Option<&'static str>,
}

/// A medium that counts, and a new file system on it.
pub(crate) struct Counted {
    /// The counters of the medium.
    pub pm: Arc<Counting<MemoryPmem>>,
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
}

impl Engine {
    /// The first on persistent memory, in its usual mode: what is measured unless the user
    /// chooses.
    pub fn usual() -> Self {
        Self::first(ScratchKind::Memory)
    }

    /// The first in ordinary memory: the cost of the trait itself, without persistence.
    pub fn baseline() -> Self {
        Self::first(ScratchKind::Own)
    }

    fn first(kind: ScratchKind) -> Self {
        let mut engines = engines::all().iter().copied();
        let engine = engines.find(|engine| engine.scratch() == Some(kind));
        Self {
            engine: engine.unwrap_or_else(engines::default),
            mode: None,
        }
    }

    /// The first that has all of these modes.
    pub(crate) fn with_modes(modes: &[&str]) -> Option<Self> {
        let mut all = Self::all().into_iter().filter(|one| one.mode.is_none());
        all.find(|one| modes.iter().all(|mode| one.engine.modes().contains(mode)))
    }

    /// The engine alone and in each of its modes.
    pub(crate) fn with_each_mode(self) -> Vec<Self> {
        Self::variants(self.engine).collect()
    }

    /// Engines that live on a medium, each alone and in each of its modes.
    pub fn stored() -> Vec<Self> {
        let all = Self::all().into_iter();
        all.filter(|engine| engine.has_medium()).collect()
    }

    /// All engines, each alone and in each of its modes.
    pub fn all() -> Vec<Self> {
        let engines = engines::all().iter().copied();
        let measured = engines.filter(|engine| engine.scratch().is_some());
        measured.flat_map(Self::variants).collect()
    }

    fn variants(engine: &'static dyn ::engine::Engine) -> impl Iterator<Item = Self> {
        let modes = engine.modes().into_iter().map(Some);
        let modes = std::iter::once(None).chain(modes);
        modes.map(move |mode| Self { engine, mode })
    }

    /// The name, without the mode.
    pub(crate) fn name(self) -> &'static str {
        self.engine.name()
    }

    /// The mode, if one was chosen.
    pub(crate) fn mode(self) -> Option<&'static str> {
        self.mode
    }

    /// Whether it lives on a medium.
    pub(crate) fn has_medium(self) -> bool {
        self.engine.scratch() != Some(ScratchKind::Own)
    }

    /// A new file system in this process, over memory that is flushed where it has a medium.
    pub(crate) fn fresh(self) -> Result<Arc<dyn FileSystem>> {
        let scratch = match self.has_medium() {
            true => Scratch::Mapped(images::flushing_memory(images::IMAGE_BYTES)?.into()),
            false => Scratch::Own,
        };
        self.fresh_on(scratch, &ScratchOptions::default())
    }

    /// A new file system on a medium that counts; `None` for engines without a medium. Its
    /// clock moves a microsecond at each reading, so that counts repeat exactly.
    pub(crate) fn counted(self) -> Result<Option<Counted>> {
        if !self.has_medium() {
            return Ok(None);
        }
        let pm = Arc::new(Counting::new(MemoryPmem::new(images::IMAGE_BYTES)));
        let clock = Arc::new(ManualClock::new(Timestamp(1 << 60), 1000));
        let options = ScratchOptions {
            clock,
            ..ScratchOptions::default()
        };
        let fs = self.fresh_on(Scratch::Any(pm.clone()), &options)?;
        Ok(Some(Counted { pm, fs }))
    }

    /// A new file system in this mode on a given medium.
    pub(crate) fn fresh_on(
        self,
        scratch: Scratch,
        options: &ScratchOptions<'_>,
    ) -> Result<Arc<dyn FileSystem>> {
        let options = ScratchOptions {
            mode: self.mode,
            ..options.clone()
        };
        let made = self.engine.fresh(scratch, &options);
        made.what(|| format!("making a file system of type {self}"))
    }

    /// The file system that a medium holds already, in the mode that it was made with.
    pub(crate) fn reopen(
        self,
        scratch: Scratch,
        options: &ScratchOptions<'_>,
    ) -> Result<Arc<dyn FileSystem>> {
        let opened = self.engine.reopen(scratch, options);
        opened.what(|| format!("mounting a file system of type {self}"))
    }

    /// The engine of the image in this file.
    pub(crate) fn of_image(path: &Path) -> Result<Self> {
        let what = || format!("reading {}", path.display());
        let found = engines::of_image(path, 0).what(what)?;
        let Some(engine) = found else {
            let why = format!("{} holds no file system of a known type", path.display());
            return Err(Error::Usage(why));
        };
        Ok(Self { engine, mode: None })
    }
}

impl PartialEq for Engine {
    /// Names are unique.
    fn eq(&self, other: &Self) -> bool {
        (self.name(), self.mode) == (other.name(), other.mode)
    }
}

impl Eq for Engine {}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
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

/// The names of these engines, as help texts and messages list them: `NAME, NAME:MODE`.
pub fn names(engines: &[Engine]) -> String {
    let names = engines.iter().map(|engine| match engine.mode {
        None => engine.to_string(),
        Some(_) => format!("{}:MODE", engine.name()),
    });
    let mut names: Vec<String> = names.collect();
    names.dedup();
    names.join(", ")
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let all = Self::all();
        let found = all.iter().copied().find(|one| one.to_string() == text);
        found.ok_or_else(|| format!("unknown type '{text}': known are {}", names(&all)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_engines_and_modes_round_trip() {
        for engine in Engine::all() {
            assert_eq!(engine.to_string().parse(), Ok(engine));
            let name = engine.name();
            for wrong in [format!("{name}:"), format!("{name}:x"), format!("{name}x")] {
                assert!(wrong.parse::<Engine>().is_err(), "{wrong}");
            }
        }
        assert!("".parse::<Engine>().is_err());
    }

    #[test]
    fn an_engine_that_is_not_measured_is_rejected_with_the_list_of_the_others() {
        let listed = names(&Engine::all());
        for engine in engines::all().iter().filter(|e| e.scratch().is_none()) {
            let error = engine.name().parse::<Engine>().unwrap_err();
            assert!(error.ends_with(&format!("known are {listed}")), "{error}");
        }
        for engine in Engine::all() {
            let name = match engine.mode {
                None => engine.to_string(),
                Some(_) => format!("{}:MODE", engine.name()),
            };
            let found = listed.split(", ").filter(|one| *one == name);
            assert_eq!(found.count(), 1, "{listed}");
        }
    }

    #[test]
    fn every_engine_makes_a_file_system() {
        for engine in Engine::all().into_iter().filter(|e| e.mode.is_none()) {
            let made = engine.fresh().map(drop);
            assert!(made.is_ok(), "{engine}: {made:?}");
            let counted = engine.counted().unwrap();
            assert_eq!(counted.is_some(), engine.has_medium());
        }
        assert!(Engine::usual().has_medium() && !Engine::baseline().has_medium());
    }
}
