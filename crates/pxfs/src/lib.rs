//! PXFS: POSIX files on the storage objects of Aerie (paper section 4.3.1), as the trusted service runs
//! them for those that cannot map the memory.
//!
//! # Guarantees
//!
//! - **P1** Each call is a transaction of the store: it is durable when it returns, a crash leaves all of
//!   it or nothing, and calls become durable in their order. A write of more than 2 MiB is several.
//! - **P2** A file that was removed while it was open is gone after a crash.
//!
//! Directories are collections, all other nodes mFiles; the target of a symbolic link is its contents. The
//! module `inode` defines the words of an object that hold its attributes. Extended attributes are in an
//! mFile of a collection of their own, under the id of their object.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod attrs;
mod calls;
mod data;
mod error;
mod fs;
mod inode;
mod mkfs;
mod names;
mod system;
#[cfg(test)]
mod tests;

pub use calls::guarantees;
pub use fs::Pxfs;
pub use mkfs::{MkfsOptions, mkfs};
pub use system::PxfsSystem;
