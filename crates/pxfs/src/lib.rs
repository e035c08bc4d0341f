//! PXFS: POSIX files on the storage objects of Aerie (paper section 4.3.1), as the trusted service runs
//! them for those that cannot map the memory.
//!
//! # Guarantees
//!
//! - **P1** Each call is a transaction of the store: it is durable when it returns, a crash leaves all of
//!   it or nothing, and calls become durable in their order. A write of more than 2 MiB is several.
//! - **P2** A file that was removed while it was open is gone after a crash.
//!
//! The bytes are in `format.md`, with numbered invariants, which [`check`] verifies.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod attrs;
mod calls;
mod check;
mod data;
#[cfg(feature = "engine")]
mod dump;
mod error;
mod fs;
mod inode;
mod mkfs;
mod names;
mod system;
#[cfg(test)]
mod tests;

pub use calls::guarantees;
pub use check::check;
#[cfg(feature = "engine")]
pub use dump::{DumpError, dump};
pub use fs::Pxfs;
pub use mkfs::{MkfsOptions, mkfs};
pub use system::PxfsSystem;
