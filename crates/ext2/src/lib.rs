//! ext2, as Linux has it.
//!
//! The bytes on the medium are described in `format.md`; [`mod@format`] has them as types.
//! [`Ext2`] implements [`blockfs::Format`], and [`blockfs::BlockFs`] makes a file system of it.
//!
//! # Modules, each below those that use it
//! - `format`, `bytes`, `error`, `seeded`: the format.
//! - `acl`, `features`, `layout`: parts of it: access control lists, feature bits, the places of
//!   structures.
//! - `names`, `pending`, `resting`, `orphan_list`, `state`: volatile state: names of large
//!   directories, changes that are not durable, freed blocks that rest, orphans, counts.
//! - `volume`: the mounted image, and changes of its superblock.
//! - `needed`, `inode`, `alloc`: blocks that an allocation reads, inodes, free blocks and inodes.
//! - `tree`, `cut`, `dir`, `attrs`, `orphan`, `ready`: the steps: blocks of files, directories,
//!   attributes, orphans, and what each step reads.
//! - `steps`, `describe`: the trait, and names of blocks for drawings.
//! - `probe`, `log`, `mkfs`, `check`, `fsck`, `mount`, `system`, `engine`: the image as a whole, and
//!   the interfaces.
//!
//! # Example
//!
//! ```
//! use ext2::{MkfsOptions, check, mkfs};
//! use medium::block::{Geometry, MemoryDevice};
//!
//! let device = MemoryDevice::new(Geometry { block_bytes: 512, blocks: 8192 });
//! mkfs(&device, &MkfsOptions::for_size(4 << 20))?;
//! assert!(check(&device).findings.is_empty());
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod acl;
mod alloc;
mod attrs;
mod bytes;
mod check;
mod cut;
mod describe;
mod dir;
#[cfg(feature = "engine")]
mod engine;
mod error;
mod features;
pub mod format;
pub mod fsck;
mod inode;
mod layout;
mod log;
mod mkfs;
mod mount;
mod names;
mod needed;
mod orphan;
mod orphan_list;
mod pending;
mod probe;
mod ready;
mod resting;
pub mod seeded;
mod state;
mod steps;
mod system;
mod tree;
mod volume;

#[cfg(feature = "engine")]
pub use crate::engine::Ext2Engine;
pub use check::check;
pub use error::Error;
pub use mkfs::{Inodes, MkfsOptions, mkfs};
pub use mount::Mounted;
pub use probe::{SuperInfo, probe};
pub use system::Ext2System;
pub use volume::Ext2;
