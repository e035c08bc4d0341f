//! Durable memory for programs (Mnemosyne, chapter 3).
//!
//! - [`log`]: the raw word log.
//! - [`tx`]: durable transactions.
//! - [`heap`]: blocks that transactions allocate and free.
//! - [`store`]: all of it together, in regions.
#![forbid(unsafe_code)]

pub mod heap;
pub mod log;
pub mod seeded;
pub mod store;
pub mod tx;
