//! The reference for file systems, and the comparison with it.
//!
//! - [`ModelFs`]: a complete file system in memory. Its semantics are those of all other ones.
//! - [`script`]: operation scripts, generated, replayed, shrunk and printed.
//! - [`Snapshot`]: the whole visible state of a file system as a value.
//!
//! Engines do not depend on this crate; their tests do.
//!
//! # Example
//!
//! ```
//! use oracle::script::{Script, State, run};
//! use oracle::{ModelFs, Snapshot};
//!
//! let script: Script = "create f 644\nwrite f 0 3 1\nrename f g replace\n".parse()?;
//! let (one, other) = (ModelFs::default(), ModelFs::default());
//! for fs in [&one, &other] {
//!     let results = run(fs, &mut State::default(), &script);
//!     assert!(results.iter().all(Result::is_ok));
//! }
//! assert!(Snapshot::take(&one)?.is_same_except_times(&Snapshot::take(&other)?));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod model;
pub mod script;
pub mod snapshot;

pub use model::{ModelFs, ModelOptions};
pub use snapshot::{Snapshot, SnapshotError};
