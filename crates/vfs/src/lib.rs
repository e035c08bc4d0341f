//! The interface of every file system here, and the types of its promises.
//!
//! - [`FileSystem`]: the inode-based trait that front ends call.
//! - [`System`]: makes, opens and checks an engine, for harnesses.
//! - [`Guarantees`]: the promises of a file system about crashes, as a value.
//! - [`FileSystemLayer`], [`ReadOnly`]: file systems that stand on another one.
//! - [`ChangeOrder`]: order between sets of changes, without durability.
//! - [`perm`]: permissions and ownership, as Linux has them.
//! - [`check`]: reports of checkers, by invariant.
//!
//! # Example
//!
//! ```
//! use vfs::{Atomicity, Durability, Guarantees, Ordering};
//!
//! let promise = Guarantees {
//!     name: "example".into(),
//!     durable: Durability::AtFsync,
//!     metadata_atomic: Atomicity::Call,
//!     data_atomic: Atomicity::Block,
//!     metadata_ordered: Ordering::Global,
//!     data_ordered: Ordering::None,
//!     times_atomic: true,
//!     notes: Vec::new(),
//! };
//! assert!(vfs::guarantees::table(&[promise]).contains("at fsync"));
//! ```
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod atime;
pub mod check;
mod checks;
mod clock;
mod fs;
pub mod guarantees;
mod layer;
mod new_node;
mod order;
mod paths;
pub mod perm;
mod read_only;
pub mod sync;
mod system;
mod types;
pub mod xattr_block;
pub mod xattrs;

pub use atime::Atime;
pub use checks::{
    absent_xattr, check_name, check_replaced, check_xattr_name, end_of, must_be_regular,
};
pub use clock::{Clock, ManualClock, SystemClock};
pub use fs::{FileSystem, append_by_write};
pub use guarantees::{Atomicity, Durability, Guarantees, Ordering};
pub use layer::FileSystemLayer;
pub use new_node::NewNode;
pub use order::{ChangeOrder, SetId, Sets};
pub use paths::Paths;
pub use read_only::ReadOnly;
pub use rustix::io::Errno;
pub use system::{BlockSystem, DrawnWrite, Still, System};
pub use types::*;

/// Result of a file-system call. The error is the errno of the call.
pub type Result<T> = std::result::Result<T, Errno>;
