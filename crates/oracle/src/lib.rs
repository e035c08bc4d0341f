//! What file systems are compared with, and how.
//!
//! - [`ModelFs`]: a complete file system in memory. It has the semantics of every other one.
//! - [`script`]: operation scripts, generated, replayed, shrunk and printed.
//! - [`Snapshot`]: the whole visible state of a file system as a value.
//!
//! Engines do not depend on this crate; their tests do.
#![forbid(unsafe_code)]

mod model;
pub mod script;
pub mod snapshot;

pub use model::{ModelFs, ModelOptions};
pub use snapshot::{Snapshot, SnapshotError};
