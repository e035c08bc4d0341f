//! [`Engine`]: the interface of a file system for the commands, the benchmarks and the crash
//! explorer. An engine implements it in its own crate; the crate `engines` lists all engines.
//!
//! # Guarantees
//! - Commands use engines through this trait only.
//! - A default method returns an error with the engine and the missing feature.
//! - [`Engine::mount`] writes nothing. [`Prepared::open`] may write, after the kernel has
//!   mounted. So a refused mount leaves the image unchanged.
//!
//! # Example
//!
//! An engine that has promises, and no other feature yet:
//!
//! ```
//! use clap::ArgMatches;
//! use engine::{Engine, Interposer, MountRequest, Prepared, Result};
//! use vfs::{Atomicity, Durability, Guarantees, Ordering};
//!
//! struct Example;
//!
//! impl Engine for Example {
//!     fn name(&self) -> &'static str {
//!         "example"
//!     }
//!
//!     fn about(&self) -> &'static str {
//!         "a file system for the documentation"
//!     }
//!
//!     fn guarantees(&self) -> Result<Vec<Guarantees>> {
//!         Ok(vec![Guarantees {
//!             name: self.name().into(),
//!             durable: Durability::AtFsync,
//!             metadata_atomic: Atomicity::Call,
//!             data_atomic: Atomicity::Block,
//!             metadata_ordered: Ordering::Global,
//!             data_ordered: Ordering::None,
//!             times_atomic: true,
//!             notes: Vec::new(),
//!         }])
//!     }
//!
//!     fn mount(
//!         &self,
//!         _request: &MountRequest,
//!         _options: &ArgMatches,
//!         _between: Option<&mut dyn Interposer>,
//!     ) -> Result<Prepared> {
//!         Err(self.lacks("mount"))
//!     }
//! }
//!
//! assert!(Example.magic().is_none() && Example.subjects().is_empty());
//! ```
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod error;
pub mod magic;
pub mod memory;
pub mod options;
mod request;
mod scratch;
pub mod size;
pub mod values;

pub use error::{Error, Result};
pub use magic::Magic;
pub use request::{
    Checked, Close, Draw, Graph, Identity, Image, Info, Interposer, Marks, MountRequest, Opened,
    Prepared, Replayed, Selection, Service, ServiceRequest, Stats,
};
pub use scratch::{Scratch, ScratchKind, ScratchOptions};

use clap::{ArgMatches, Command};
use medium::Pmem;
use medium::block::BlockDevice;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use vfs::{BlockSystem, FileSystem, Guarantees, System};

/// A command for which an engine may have options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// `mkfs`.
    Mkfs,
    /// `mount`; its options can also be given after `-o`.
    Mount,
    /// `fsck`.
    Fsck,
    /// `crash test`.
    CrashTest,
    /// `graph`.
    Graph,
    /// `serve`.
    Serve,
}

/// A kind of file system.
pub trait Engine: Sync {
    /// Its name, as `--type` takes it: lower-case letters and digits.
    fn name(&self) -> &'static str;

    /// A description of one line, for help texts.
    fn about(&self) -> &'static str;

    /// The magic number of its images. `None` if nothing in an image shows its type, or if it has
    /// no images.
    fn magic(&self) -> Option<Magic> {
        None
    }

    /// Whether a mount uses a file or device. By default, whether images have a magic number.
    fn uses_image(&self) -> bool {
        self.magic().is_some()
    }

    /// The names of its modes.
    fn modes(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Its promises about crashes, in each of its modes.
    ///
    /// # Errors
    /// If an empty file system in memory cannot be made, which would be a bug.
    fn guarantees(&self) -> Result<Vec<Guarantees>>;

    /// The arguments that a command has for this engine only.
    fn options(&self, verb: Verb) -> Command {
        let _ = verb;
        Command::new(self.name())
    }

    /// Bytes of the smallest image, if that does not depend on options.
    fn min_bytes(&self) -> u64 {
        0
    }

    /// Makes an empty file system on a file or device that is there. Returns one line that
    /// describes it.
    ///
    /// # Errors
    /// A fault of the medium or the options.
    fn mkfs(&self, image: &Image, identity: &Identity, options: &ArgMatches) -> Result<String> {
        let _ = (image, identity, options);
        Err(self.lacks("mkfs: it has no images"))
    }

    /// Makes an empty file system of `bytes` bytes in a new or empty directory, if the options ask for that.
    /// Returns one line that describes it.
    fn mkfs_directory(
        &self,
        path: &Path,
        bytes: u64,
        identity: &Identity,
        options: &ArgMatches,
    ) -> Option<Result<String>> {
        let _ = (path, bytes, identity, options);
        None
    }

    /// Whether a directory has a file system of this engine.
    fn is_directory(&self, path: &Path) -> bool {
        let _ = path;
        false
    }

    /// Locks an image for a mount, without a write. `between` wraps the medium of the file system.
    ///
    /// # Errors
    /// A fault of the image or the options.
    fn mount(
        &self,
        request: &MountRequest,
        options: &ArgMatches,
        between: Option<&mut dyn Interposer>,
    ) -> Result<Prepared>;

    /// Whether programs can use its images through a [service](Self::serve). A mount of such an engine
    /// also takes the socket of a service in the place of an image.
    fn has_service(&self) -> bool {
        false
    }

    /// Starts a service on an image, in threads of this process.
    ///
    /// # Errors
    /// A fault of the image, the socket or the options.
    fn serve(&self, request: &ServiceRequest, options: &ArgMatches) -> Result<Service> {
        let _ = (request, options);
        Err(self.lacks("service for programs"))
    }

    /// Runs the format's checker. With `repair`, replays a journal, clears marks, and may reclaim
    /// leaks first.
    ///
    /// # Errors
    /// The reason why the image could not be checked.
    fn check(&self, image: &Image, repair: bool, options: &ArgMatches) -> Result<Checked> {
        let _ = (image, repair, options);
        Err(self.lacks("fsck: it has no images"))
    }

    /// Describes an image that is not mounted.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    fn info(&self, image: &Image) -> Result<Info> {
        let _ = image;
        Err(self.lacks("info: it has no images"))
    }

    /// Prints structures of an image as text. Damage ends it with an error.
    ///
    /// # Errors
    /// The reason why it cannot be read further.
    fn dump(&self, image: &Image, what: &Selection, out: &mut dyn Write) -> Result<()> {
        let _ = (image, what, out);
        Err(self.lacks("dump"))
    }

    /// Whether it has a graph of changes, which [`graph`](Self::graph) draws.
    fn has_graph(&self) -> bool {
        false
    }

    /// Makes calls on an empty file system in memory and draws the changes that are not
    /// durable then.
    ///
    /// # Errors
    /// The error of `calls`; an option that does not fit.
    fn graph(&self, calls: &Calls<'_>, options: &ArgMatches) -> Result<Graph> {
        let _ = (calls, options);
        Err(self.lacks("graph of changes"))
    }

    /// The engine in the configuration that the options name, for the crash explorer.
    ///
    /// # Errors
    /// If there is nothing to explore.
    fn subject(&self, options: &ArgMatches) -> Result<Explored> {
        let _ = options;
        Err(self.lacks("crash test: it has no medium"))
    }

    /// All results of [`subject`](Self::subject). Empty if there is nothing to explore.
    fn subjects(&self) -> Vec<Explored> {
        Vec::new()
    }

    /// The engine in each of its modes, with room for that many bytes of data and that many inodes:
    /// for the explorer of recorded programs. Empty if it takes no part.
    fn with_room(&self, bytes: u64, inodes: u64) -> Vec<Explored> {
        let _ = (bytes, inodes);
        Vec::new()
    }

    /// The kind of the scratch medium for [`fresh`](Self::fresh). `None`: not part of benchmarks in
    /// this process.
    fn scratch(&self) -> Option<ScratchKind> {
        None
    }

    /// A new file system on a scratch medium, for benchmarks in this process.
    ///
    /// # Errors
    /// The error, or that the engine does not run on such a medium.
    fn fresh(&self, scratch: Scratch, options: &ScratchOptions<'_>) -> Result<Arc<dyn FileSystem>> {
        let _ = (scratch, options);
        Err(self.lacks("benchmarks in this process"))
    }

    /// Opens the file system that [`fresh`](Self::fresh) made on this medium.
    ///
    /// # Errors
    /// The error, or that the engine does not run on such a medium.
    fn reopen(
        &self,
        scratch: Scratch,
        options: &ScratchOptions<'_>,
    ) -> Result<Arc<dyn FileSystem>> {
        let _ = (scratch, options);
        Err(self.lacks("second mount in benchmarks"))
    }

    /// The type, as mount(8) takes it, of the kernel's file system with the same format. `None` if
    /// the kernel has none.
    fn kernel_type(&self) -> Option<&'static str> {
        None
    }

    /// The error of a feature that this engine does not have.
    fn lacks(&self, what: &str) -> Error {
        Error::Lacks {
            engine: self.name(),
            what: what.to_owned(),
        }
    }
}

/// Calls on a file system: those of a script, for example.
pub type Calls<'a> = dyn Fn(&dyn FileSystem) -> Result<()> + 'a;

/// An engine in one configuration, for the crash explorer, by the kind of its medium.
pub enum Explored {
    /// A system on persistent memory.
    Memory(Box<dyn System<dyn Pmem>>),
    /// A system on a block device.
    Blocks(Box<dyn BlockSystem<dyn BlockDevice>>),
}

impl Explored {
    /// The system's id, such as `bpfs-log`.
    pub fn id(&self) -> String {
        match self {
            Self::Memory(system) => system.id(),
            Self::Blocks(system) => system.id(),
        }
    }
}

/// The text form of a UUID.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_uuid_has_five_groups_of_digits() {
        let text = super::uuid(&std::array::from_fn(|i| i as u8 * 17));
        assert_eq!(text, "00112233-4455-6677-8899-aabbccddeeff");
    }
}
