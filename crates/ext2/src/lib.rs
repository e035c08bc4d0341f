//! ext2, as Linux has it.
//!
//! The bytes on the medium are described in `format.md`; [`format`] has them as types.
#![forbid(unsafe_code)]

mod bytes;
mod error;
mod features;
pub mod format;
mod mkfs;
mod probe;

pub use error::Error;
pub use mkfs::{Inodes, MkfsOptions, mkfs};
pub use probe::{SuperInfo, probe};
