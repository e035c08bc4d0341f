//! The targets of workloads: how each is made.

use crate::error::{Context, Result};
use crate::server::{Served, Server};
use crate::service::Service;
use crate::tree::{ByPath, Directory, InProcess, Tree};
use crate::values::Values;
use crate::{Engine, detached, images};
use engine::{Scratch, ScratchOptions};
use medium::{Latency, LatencyModel};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

/// Bytes that ext4 needs besides those of the image: its journal and its inodes.
const EXT4_BYTES: u64 = 256 << 20;

/// Bytes of a store of Aerie besides those of the image: what a client has reserved is not free for others.
const RESERVED_BYTES: u64 = 256 << 20;

/// A target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Called in this process.
    Engine(Engine),
    /// A directory, by system calls.
    Directory(PathBuf),
    /// Ext4 on a loop device over a file on tmpfs, by system calls.
    Ext4,
    /// An engine on a FUSE mount, by system calls.
    Mounted(Engine),
    /// PXFS: a service, and clients of it that are called in this process.
    Pxfs,
    /// PXFS: a FUSE mount of a client, by system calls.
    Fuse,
    /// KVFS: a service, and clients of it that use keys and values in this process.
    Kvfs,
}

/// The memory and the program of a target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Making<'a> {
    /// Bytes of the image.
    pub image_bytes: u64,
    /// The `selvedge` program, which mounts.
    pub program: &'a Path,
    /// Delays of the memory, for targets that are called in this process.
    pub latency: Option<LatencyModel>,
}

/// A file system that was made.
pub(crate) enum Made {
    /// All its users call the same value.
    Tree(Arc<dyn Tree>),
    /// Each of its users is a client of a service.
    Service(Arc<Service>),
    /// Each of its users is a client of a service, and uses keys and values.
    Values(Arc<Service>),
}

impl Made {
    /// Adds a user of the file system.
    pub(crate) fn client(&self) -> Result<Arc<dyn Tree>> {
        self.client_with(&aerie_client::Options::of_environment())
    }

    /// Adds a user of the file system; a client of a service has these options.
    pub(crate) fn client_with(&self, options: &aerie_client::Options) -> Result<Arc<dyn Tree>> {
        match self {
            Self::Tree(tree) => Ok(Arc::clone(tree)),
            Self::Service(service) => {
                let client = Service::client(Arc::clone(service), options)?;
                Ok(Arc::new(ByPath(client)))
            }
            Self::Values(service) => {
                let client = Service::client(Arc::clone(service), options)?;
                Ok(Arc::new(Values::new(client)?))
            }
        }
    }
}

impl Target {
    /// Whether a machine may lack it: a loop device and a mount need rights.
    pub(crate) fn is_optional(&self) -> bool {
        matches!(self, Self::Ext4 | Self::Mounted(_) | Self::Fuse)
    }

    /// Makes an empty file system, or a directory on one.
    pub(crate) fn make(&self, making: Making<'_>) -> Result<Made> {
        let Making {
            image_bytes,
            program,
            latency,
        } = making;
        let tree: Arc<dyn Tree> = match self {
            Self::Engine(engine) => {
                let scratch = scratch(*engine, image_bytes, latency)?;
                let fs = engine.fresh_on(scratch, &ScratchOptions::default())?;
                Arc::new(InProcess::new(fs))
            }
            Self::Directory(dir) => Arc::new(Directory::temporary(temporary(dir)?)?),
            Self::Ext4 => {
                let root = detached::ext4_on_loop(image_bytes + EXT4_BYTES)?;
                Arc::new(Directory::owned(root))
            }
            Self::Mounted(engine) => {
                let scratch = temporary(Path::new("/dev/shm"))?;
                let served = Served::Engine(*engine);
                let server = Server::start(served, program, scratch.path(), image_bytes)?;
                Arc::new(Directory::mounted(server, scratch)?)
            }
            Self::Pxfs => {
                let service = Service::start(image_bytes + RESERVED_BYTES, latency)?;
                return Ok(Made::Service(Arc::new(service)));
            }
            Self::Kvfs => {
                let service = Service::start(image_bytes + RESERVED_BYTES, latency)?;
                return Ok(Made::Values(Arc::new(service)));
            }
            Self::Fuse => {
                let service = Service::start(image_bytes + RESERVED_BYTES, latency)?;
                let scratch = temporary(Path::new("/dev/shm"))?;
                let mut command = Command::new(program);
                command.args(["mount", "--foreground"]);
                command.args([service.socket(), scratch.path()]);
                let server = Server::of(&mut command, "fuse", scratch.path())?;
                Arc::new(Directory::mounted(server, (service, scratch))?)
            }
        };
        Ok(Made::Tree(tree))
    }
}

fn scratch(engine: Engine, bytes: u64, latency: Option<LatencyModel>) -> Result<Scratch> {
    if !engine.has_medium() {
        return Ok(Scratch::Own);
    }
    let memory = images::flushing_memory(bytes)?;
    Ok(match latency {
        None => Scratch::Mapped(memory.into()),
        Some(model) => Scratch::Any(Arc::new(Latency::new(memory, model))),
    })
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(engine) => engine.fmt(f),
            Self::Directory(dir) => dir.display().fmt(f),
            Self::Ext4 => f.write_str("ext4"),
            Self::Mounted(engine) => write!(f, "{engine}, mounted"),
            Self::Pxfs => f.write_str("pxfs"),
            Self::Fuse => f.write_str("fuse"),
            Self::Kvfs => f.write_str("kvfs"),
        }
    }
}

fn temporary(parent: &Path) -> Result<TempDir> {
    let prefix = format!("selvedge-workloads-{}-", std::process::id());
    let dir = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent);
    dir.what(|| format!("making a directory in {}", parent.display()))
}
