//! PXFS: POSIX files on the storage objects of Aerie (paper section 4.3.1). The same code runs twice: a
//! client runs each call on a [`Speculation`], whose changes nobody else sees, and ships the call. The
//! trusted service runs it again on the store ([`Pxfs::apply`]), with all its checks.
//!
//! # Guarantees
//!
//! - **P1** Each call at the service is a transaction of the store: it is durable when it returns, a
//!   crash leaves all of it or nothing, and calls become durable in their order. A write of more than
//!   2 MiB is several. The calls of a batch are atomic each, become durable in their order, and are durable when
//!   the batch is answered. Batches of different sessions run at a time (`batch`).
//! - **P2** A file that was removed while it was open is gone after a crash.
//! - **P3** The service ends on any batch and any remote call, refuses what the caller or the client may
//!   not do, and then changes nothing. It relies on no claim of a client: neither the caller, the time,
//!   the ids and the pages, nor that a call has succeeded.
//!
//! The bytes are in `format.md`, with numbered invariants, which [`check`] verifies.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod apply;
mod attrs;
mod batch;
mod callers;
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
mod protect;
mod references;
mod remote;
pub mod seeded;
mod session;
mod speculation;
mod system;
#[cfg(test)]
mod tests;
mod values;

pub use calls::guarantees;
pub use check::check;
pub use data::WRITE_MAX;
#[cfg(feature = "engine")]
pub use dump::{DumpError, dump};
pub use fs::Pxfs;
pub use inode::SIZE_MAX;
pub use mkfs::{MkfsOptions, mkfs};
pub use session::{Authority, Credentials, Session};
pub use speculation::{Access, Host, InPlace, Speculation};
pub use system::PxfsSystem;
pub use values::Value;
