//! The targets: how each is made.

use super::Options;
use crate::error::{Context, Result};
use crate::server::{Served, Server};
use crate::tree::{Directory, InProcess, Tree};
use crate::{Engine, detached, images};
use engine::{Scratch, ScratchOptions};
use std::fmt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Bytes that ext4 needs besides those of the image: its journal and its inodes.
const EXT4_BYTES: u64 = 256 << 20;

/// A target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// Called in this process.
    Engine(Engine),
    /// A directory, by system calls.
    Directory(PathBuf),
    /// Ext4 on a loop device over a file on tmpfs, by system calls.
    Ext4,
    /// An engine on a FUSE mount, by system calls.
    Mounted(Engine),
}

impl Target {
    /// The targets of a run, in the order of its table.
    pub(super) fn all(options: &Options) -> Vec<Self> {
        let types = options.types.iter().copied();
        let mounted = types.clone().filter(|_| options.with_mounts);
        types
            .map(Self::Engine)
            .chain(options.dirs.iter().cloned().map(Self::Directory))
            .chain(options.with_ext4.then_some(Self::Ext4))
            .chain(mounted.map(Self::Mounted))
            .collect()
    }

    /// Whether a machine may lack it: a loop device and a mount need rights.
    pub(super) fn is_optional(&self) -> bool {
        matches!(self, Self::Ext4 | Self::Mounted(_))
    }

    /// Makes an empty file system, or a directory on one.
    pub(super) fn make(&self, image_bytes: u64, program: &Path) -> Result<Box<dyn Tree>> {
        Ok(match self {
            Self::Engine(engine) => {
                let scratch = match engine.has_medium() {
                    true => Scratch::Mapped(images::flushing_memory(image_bytes)?.into()),
                    false => Scratch::Own,
                };
                let fs = engine.fresh_on(scratch, &ScratchOptions::default())?;
                Box::new(InProcess::new(fs))
            }
            Self::Directory(dir) => Box::new(Directory::temporary(temporary(dir)?)?),
            Self::Ext4 => {
                let root = detached::ext4_on_loop(image_bytes + EXT4_BYTES)?;
                Box::new(Directory::owned(root))
            }
            Self::Mounted(engine) => {
                let scratch = temporary(Path::new("/dev/shm"))?;
                let served = Served::Engine(*engine);
                let server = Server::start(served, program, scratch.path(), image_bytes)?;
                Box::new(Directory::mounted(server, scratch)?)
            }
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(engine) => engine.fmt(f),
            Self::Directory(dir) => dir.display().fmt(f),
            Self::Ext4 => f.write_str("ext4"),
            Self::Mounted(engine) => write!(f, "{engine}, mounted"),
        }
    }
}

fn temporary(parent: &Path) -> Result<TempDir> {
    let prefix = format!("selvedge-workloads-{}-", std::process::id());
    let dir = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent);
    dir.what(|| format!("making a directory in {}", parent.display()))
}
