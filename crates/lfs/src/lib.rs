//! What block file systems have in common.
//!
//! - [`LowLevel`]: the steps that a format can do (L2FS in section 2.4 of the Featherstitch
//!   chapter).
//! - [`Universal`]: every system call in terms of these steps, in soft-updates order.
#![forbid(unsafe_code)]

mod low;
pub mod seeded;
mod universal;

pub use low::{
    Allocated, Detached, Found, Heads, InodeChange, LowError, LowLevel, NewInode, Next, Purpose,
    Removed, Result,
};
pub use universal::{OnError, Universal, UniversalOptions};
