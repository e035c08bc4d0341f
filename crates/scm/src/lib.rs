//! The manager of storage-class memory.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod change;
pub mod check;
mod directory;
mod error;
mod extents;
pub mod files;
mod format;
mod identity;
mod intent;
mod records;
pub mod seeded;
mod store;
mod table;
#[cfg(test)]
mod tests;

pub use directory::Directory;
pub use error::{Finding, ScmError};
pub use extents::{Partition, Scrubbed};
pub use files::{Files, Run};
pub use format::{Geometry, MOST_PAGES, MOST_SLOTS, NAME_BYTES, PAGE_BYTES, PartitionRecord};
pub use identity::{AccessList, Credentials, Entry, Identity, Rights, Subject};
pub use store::Store;
pub use table::format;
