//! Durable memory for programs (Mnemosyne, chapter 3).
//!
//! - [`log`]: the raw word log.
//! - [`tx`]: durable transactions.
//! - [`heap`]: blocks that transactions allocate and free.
#![forbid(unsafe_code)]

pub mod heap;
pub mod log;
pub mod seeded;
pub mod tx;
