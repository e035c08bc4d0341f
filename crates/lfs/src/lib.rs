//! What block file systems have in common.
//!
//! - [`LowLevel`]: the steps that a format can do (L2FS in section 2.4 of the Featherstitch
//!   chapter).
#![forbid(unsafe_code)]

mod low;

pub use low::{
    Allocated, Detached, Found, Heads, InodeChange, LowError, LowLevel, NewInode, Purpose, Removed,
    Result,
};
