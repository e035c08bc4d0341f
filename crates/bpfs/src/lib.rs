//! BPFS: a file system on byte-addressable persistent memory in which every call is
//! atomic, ordered, and durable when it returns (Condit et al., SOSP 2009; Frost's
//! dissertation, chapter 3).
//!
//! All that is stored hangs in one tree of 4 KiB blocks: the inode file, whose inodes
//! hold the trees of files and directories. An operation commits with **one aligned
//! 8-byte store** at the lowest place that covers all its changes (short-circuit shadow
//! paging); what lies below is copied, and what nobody can see yet is stored in place.
//!
//! # The walk of a change
//! `fs` (one operation) states edits to `tx` (one transaction), which lets `crawl` apply
//! them tree by tree, fences, and stores the commit. `volume` reads; `dir` knows
//! entries; `log` is the redo log of the mode of that name; `mount` recovers, `scan`
//! rebuilds what is only in memory; `life` says when an inode number is free again.
//!
//! # Locks, in this order
//! 1. the tree lock: shared by operations that leave inodes where they are, exclusive
//!    for those that move them (`crawl` asks by `Fault::Exclusive`), and for
//!    renames between directories;
//! 2. inode locks: a directory before what it names, two files in the order of their
//!    numbers;
//! 3. the inode file's growth;
//! 4. a log slot; a group of a bitmap. These two are leaves: nothing is locked inside.
//!
//! # Example
//!
//! ```
//! use bpfs::{Bpfs, MkfsOptions, MountOptions, mkfs};
//! use medium::MemoryPmem;
//! use vfs::{Ctx, FileSystem, Ino};
//!
//! let pm = MemoryPmem::new(4 << 20);
//! mkfs(&pm, &MkfsOptions::default())?;
//! let fs = Bpfs::open(pm, MountOptions::default())?;
//! let (root, caller) = (Ino::ROOT, Ctx::root());
//! let file = fs.create(&caller, root, b"letter", 0o644)?;
//! // Durable as a whole when it returns.
//! fs.write(&caller, file.ino, 0, b"kept")?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod alloc;
mod attrs;
mod audit;
mod check;
mod crawl;
mod data;
mod dir;
mod dump;
#[cfg(feature = "engine")]
mod engine;
mod error;
pub mod format;
mod fs;
mod indexes;
mod life;
mod log;
mod mkfs;
mod mode;
mod mount;
mod names;
mod rename;
mod scan;
pub mod seeded;
mod system;
mod table;
mod tx;
mod volume;

use std::sync::atomic; // `life` takes its atomics from its parent

#[cfg(feature = "engine")]
pub use crate::engine::BpfsEngine;
pub use check::check;
pub use dump::{Dump, DumpError, dump};
pub use error::Error;
pub use fs::{Bpfs, MountOptions};
pub use mkfs::{MkfsOptions, mkfs};
pub use mode::Mode;
pub use mount::{SuperInfo, probe, recover};
pub use system::BpfsSystem;
pub use vfs::Atime;
