//! Serves a [`vfs::FileSystem`] to the kernel through FUSE.
//!
//! Guarantees:
//!
//! - A call has returned to its caller only if the file system returned: nothing is held
//!   back here, and the kernel's write-back cache is off. Killing the server loses
//!   nothing that had returned (beyond what the file system itself defers).
//! - If the file system promises that each call is atomic for data, one write from 256 pages
//!   of memory or fewer is one call of the file system, wherever in the file it begins; the
//!   kernel splits longer ones. Without that promise writes go through the page cache, which
//!   also splits those that begin inside a page that it does not hold.
//! - Permissions are checked by the kernel, always.
//!
//! [`Mount::new`] mounts, [`Mount::serve`] answers until the unmount. The caller opens the
//! file system between the two: a mount that fails has changed nothing.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod error;
mod mount;
mod ops;
mod transport;

pub use error::Error;
pub use mount::{Fact, Facts, Invalidator, Mount, MountOptions, Unmounter};
pub use ops::{STATS_XATTR, SYNC_XATTR, SYNCED};
pub use transport::dev_fuse::io_errors;
