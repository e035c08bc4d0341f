//! ext2, as Linux has it.
//!
//! The bytes on the medium are described in `format.md`; [`format`] has them as types.
#![forbid(unsafe_code)]

pub mod format;
