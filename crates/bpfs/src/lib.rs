//! BPFS: a file system on byte-addressable persistent memory. Every call is atomic, ordered,
//! and durable when it returns (Condit et al., SOSP 2009; Frost's dissertation, chapter 3).
//!
//! All blocks, of 4 KiB, are in one tree: the inode file, whose inodes hold the trees of
//! files and directories. An operation commits with **one aligned 8-byte store** at the
//! lowest place that covers all its changes (short-circuit shadow paging). Blocks below
//! that place are copied. Bytes that are still invisible are stored in place.
//!
//! # The path of a change
//! An operation of `fs` states edits to a transaction (`tx`). The transaction lets `crawl`
//! apply them tree by tree, fences, and stores the commit. `volume` reads. `dir` finds and
//! makes entries. `log` is the redo log of the mode of that name. `mount` recovers, and
//! `scan` rebuilds the volatile state. `life` decides when an inode number is free again.
//!
//! # Locks, in this order
//! 1. the tree lock: shared for operations that leave inodes where they are; exclusive for
//!    those that move inodes (after `Fault::Exclusive`), and for renames between directories;
//! 2. inode locks: a directory before the inodes that it names, two files by number;
//! 3. the lock for growth of the inode file;
//! 4. a log slot; a group of a bitmap. No lock is taken while one of these is held.
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

use std::sync::atomic; // `life` imports its atomics from its parent

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
