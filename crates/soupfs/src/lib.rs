//! SoupFS: soft updates on byte-addressable persistent memory, by pointer-based dual views (Dong and
//! Chen, USENIX ATC 2017).
//!
//! A call changes the *latest view*, and flushes and fences nothing. A *persister* makes changes part
//! of the *consistent view* later, in an order that keeps this view usable at every instant. So a
//! mount after a crash needs no recovery, no log and no check. Both views share most structures: they
//! differ in the links and roots that they follow. `format.md` has the bytes.
//!
//! # Modules, each below those that use it
//! - `error`, `format`, `mode`, `seeded`, `sync`: the format; locks and atomics.
//! - `space`, `shards`, `alloc`: reads of the image; values for each thread; the allocator.
//! - `numa`, `sharing`: the number of NUMA nodes; the steps of a round among several persisters.
//! - `copies`, `view`, `by_hash`, `change`, `staged`, `node`: the latest view of directories, the changes
//!   that are not persistent, blocks of files, inodes in memory.
//! - `pressure`: how much is not persistent.
//! - `twins`, `nodes`: directories with several names; all inodes in memory, and their uses.
//! - `volume`: all nodes and lists; its documentation has the order of locks.
//! - `names`, `rename`, `data`, `attrs`: the operations.
//! - `persist`, `persister`: the rounds of the persister; its thread, and the times of rounds.
//! - `fs`, `mount`, `mkfs`, `check`, `system`, `dump`, `engine`: the trait, and the image as
//!   a whole.
//!
//! # Example
//!
//! ```
//! use medium::MemoryPmem;
//! use soupfs::{MkfsOptions, MountOptions, SoupFs, mkfs};
//! use vfs::{Ctx, FileSystem, Ino};
//!
//! let pm = MemoryPmem::new(4 << 20);
//! mkfs(&pm, &MkfsOptions::default())?;
//! let fs = SoupFs::open(pm, MountOptions::default())?;
//! let caller = Ctx::root();
//! let file = fs.create(&caller, Ino::ROOT, b"letter", 0o644)?;
//! fs.write(&caller, file.ino, 0, b"kept")?;
//! // Durable now; without this, within a second.
//! fs.fsync(&caller, file.ino, false)?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod alloc;
mod attrs;
mod by_hash;
mod change;
mod check;
mod copies;
mod data;
#[cfg(feature = "engine")]
mod dump;
#[cfg(feature = "engine")]
mod engine;
mod error;
pub mod format;
mod fs;
mod mkfs;
mod mode;
mod mount;
mod names;
mod node;
mod nodes;
mod numa;
mod persist;
mod persister;
mod pressure;
mod rename;
pub mod seeded;
mod shards;
mod sharing;
mod space;
mod staged;
mod sync;
mod system;
mod twins;
mod view;
mod volume;

#[cfg(feature = "engine")]
pub use crate::engine::SoupEngine;
pub use check::{check, repair};
pub use error::Error;
pub use fs::SoupFs;
pub use mkfs::{MkfsOptions, mkfs};
pub use mode::Mode;
pub use mount::{MountOptions, SuperInfo, probe};
pub use persister::Timer;
pub use system::SoupSystem;
pub use vfs::Atime;
