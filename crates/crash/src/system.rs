//! What the explorer explores, and what it asks of each kind of medium.

use crate::id::Spot;
use crate::report::Options;
use crate::walk::{Limits, Tally};
use medium::Pmem;
use medium::block::BlockDevice;
use oracle::script::Script;
use std::fmt::Display;
use std::ops::Range;
use std::str::FromStr;

/// A file system on persistent memory, in one configuration; the engines implement it.
pub type PmemSystem = dyn vfs::System<dyn Pmem>;

/// A file system on a block device, in one configuration; the engines implement it.
pub type BlockSystem = dyn vfs::CachedSystem<dyn BlockDevice>;

/// A failure within a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub op: usize,
    pub spot: Spot,
    pub what: String,
}

/// A system on a kind of medium: how one script is run on it and crashed.
pub(crate) trait Subject: Sync {
    /// What is varied besides the script. Its text is part of an id.
    type Setting: Copy + PartialEq + Send + Sync + Display + FromStr<Err: Display>;
    /// What scripts start from. One thread's own.
    type Start: Send;

    /// [`vfs::System::id`].
    fn name(&self) -> String;

    /// The settings in which each script is run.
    fn settings(options: &Options) -> Vec<Self::Setting>;

    /// A file system on which `setup` was run.
    fn start(&self, setting: Self::Setting, setup: &Script) -> Result<Self::Start, String>;

    /// Runs `script` and visits the crash states of the operations in `ops` (or more, where
    /// what an operation does comes later).
    fn trial(
        &self,
        start: &Self::Start,
        setting: Self::Setting,
        script: &Script,
        ops: Range<usize>,
        limits: Limits,
        tally: &mut Tally,
    ) -> Result<(), Failure>;

    /// Visits one failure again; returns what is wrong there now.
    ///
    /// # Errors
    /// There is no such place.
    fn again(
        &self,
        start: &Self::Start,
        setting: Self::Setting,
        script: &Script,
        op: usize,
        spot: &Spot,
    ) -> Result<Option<Failure>, String>;
}
