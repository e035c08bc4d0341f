//! What every file system here is, promises, and is compared with.
//!
//! - [`FileSystem`]: the one trait, inode-based, that front ends drive.
//! - [`System`]: an engine as harnesses make, open and check it.
//! - [`Guarantees`]: what a file system promises about crashes, as a value.
//! - [`ModelFs`]: a complete in-memory file system, the oracle.
//! - [`script`]: operation scripts, generated, replayed, shrunk and printed.
//! - [`Snapshot`]: the whole visible state as a value.
//! - [`perm`]: permissions and ownership, as Linux has them.
//! - [`check`]: how checkers report, by invariant.
#![forbid(unsafe_code)]

pub mod check;
mod clock;
mod fs;
pub mod guarantees;
mod model;
pub mod perm;
pub mod script;
pub mod snapshot;
mod system;
mod types;

pub use clock::{Clock, ManualClock, SystemClock};
pub use fs::FileSystem;
pub use guarantees::{Atomicity, Durability, Guarantees, Ordering};
pub use model::{Atime, ModelFs, ModelOptions};
pub use rustix::io::Errno;
pub use snapshot::{Snapshot, SnapshotError};
pub use system::{CachedSystem, DrawnWrite, Still, System};
pub use types::*;

/// Result of a file-system call: the error is the errno that the caller sees.
pub type Result<T> = std::result::Result<T, Errno>;
