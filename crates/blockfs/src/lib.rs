//! The common part of block file systems.
//!
//! - [`Format`]: the steps that a format can do (L2FS in section 2.4 of the Featherstitch
//!   chapter).
//! - [`BlockFs`]: every system call in terms of these steps, in soft-updates order. Programs can
//!   order sets of its changes ([`vfs::ChangeOrder`]), by the layer [`patch::Groups`].
//! - [`mount`](mod@mount): mounts an image through the stack in a description.
//! - `engine`, with the feature of that name: the common part of the engines of formats.
//! - `conformance`, with the feature of that name: a suite that each format runs in its tests.
//!
//! # Example
//! The stack of a mount determines its promise.
//!
//! ```
//! use blockfs::mount::guarantees;
//! use patch::stack::Stack;
//! use vfs::{Atomicity, Durability};
//!
//! let stack: Stack = "uhfs > ext2 > journal(ordered, internal) > cache > disk".parse()?;
//! let promise = guarantees(&stack);
//! assert_eq!(promise.durable, Durability::AtFsync);
//! assert_eq!(promise.metadata_atomic, Atomicity::Call);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "engine")]
pub mod engine;
mod format;
mod fs;
pub mod mount;
pub mod seeded;

pub use format::{
    Allocated, Befores, Filled, Format, FormatError, Freed, Heads, InodeChange, NewInode, Next,
    Piece, Removed, Result, Written, after,
};
pub use fs::{BlockFs, BlockFsOptions, OnError};
