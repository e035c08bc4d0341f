//! ext2, as Linux has it.
//!
//! The bytes on the medium are described in `format.md`; [`mod@format`] has them as types.
//! [`Ext2`] implements [`blockfs::Format`], and [`blockfs::BlockFs`] makes a file system of it.
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
mod log;
mod mkfs;
mod mount;
mod names;
mod orphan;
mod pending;
mod probe;
mod ready;
mod resting;
pub mod seeded;
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
