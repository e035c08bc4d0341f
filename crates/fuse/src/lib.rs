//! Serves a [`vfs::FileSystem`] to the kernel through FUSE.
//!
//! # Guarantees
//!
//! - A call returns to its caller after the file system has returned. This crate defers nothing,
//!   and the kernel's write-back cache is off. So a kill of the server loses only what the file
//!   system itself defers.
//! - If the file system promises that each call is atomic for data, a write of up to 256 pages of
//!   memory is one call of the file system. The kernel splits longer writes. Without that promise
//!   writes pass through the page cache, which also splits writes that begin inside a page that is
//!   not cached.
//! - The kernel checks all permissions.
//!
//! [`Mount::new`] mounts, and [`Mount::serve`] answers until the unmount. The caller opens the
//! file system between the two: a mount that fails has changed nothing.
//!
//! # Example
//!
//! ```no_run
//! use fuse::{Mount, MountOptions};
//! use oracle::ModelFs;
//! use std::sync::Arc;
//!
//! fn main() -> Result<(), fuse::Error> {
//!     let mount = Mount::new("/mnt".as_ref(), &MountOptions::default())?;
//!     let fs = ModelFs::default(); // opened only after the mount
//!     mount.serve(Arc::new(fs), Vec::new()) // returns after the unmount
//! }
//! ```
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod error;
mod fact;
mod mount;
mod ops;
mod options;
mod transport;

pub use error::Error;
pub use fact::{Fact, Facts};
pub use mount::{Invalidator, Mount, Unmounter};
pub use ops::{STATS_XATTR, SYNC_XATTR, SYNCED};
pub use options::MountOptions;
pub use transport::dev_fuse::io_errors;
