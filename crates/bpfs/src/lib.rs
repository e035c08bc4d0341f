//! BPFS: a file system on byte-addressable persistent memory. Every call is atomic, ordered,
//! and durable when it returns (Condit et al., SOSP 2009; Frost's dissertation, chapter 3).
//!
//! All blocks, of 4 KiB, are in one tree: the inode file, whose inodes hold the trees of
//! files and directories. An operation commits with **one aligned 8-byte store** at the
//! lowest place that covers all its changes (short-circuit shadow paging). Blocks below
//! that place are copied. Bytes that are still invisible are stored in place.
//!
//! # Modules, each below those that use it
//! - `alloc`, `error`, `format`, `life`, `mode`, `seeded`: maps of numbers, and the format;
//!   `life` decides when an inode number is free again.
//! - `log`, `super_block`: the redo log of mode `log`, and the super block.
//! - `volume`: reads of blocks, trees and inodes.
//! - `edit`, `stores`, `staged`, `crawl`, `tx`: a change. An operation states edits to a
//!   transaction, which lets the crawler apply them tree by tree, fences, and stores the
//!   commit.
//! - `dir`, `table`, `indexes`: directories, and the volatile state of inodes.
//! - `fs`: the mounted file system.
//! - `names`, `rename`, `data`, `attrs`: the operations.
//! - `audit`, `scan`, `calls`, `mount`: checks and rebuilds the volatile state, the trait,
//!   recovery.
//! - `mkfs`, `check`, `dump`, `system`, `engine`: the image as a whole, and the interfaces.
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
#![warn(unreachable_pub)]

mod alloc;
mod attrs;
mod audit;
mod calls;
mod check;
mod crawl;
mod data;
mod dir;
mod dump;
mod edit;
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
mod staged;
mod stores;
mod super_block;
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
pub use fs::Bpfs;
pub use mkfs::{MkfsOptions, mkfs};
pub use mode::Mode;
pub use mount::{MountOptions, recover};
pub use super_block::{SuperInfo, probe};
pub use system::BpfsSystem;
pub use vfs::Atime;
