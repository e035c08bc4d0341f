//! Durable memory for programs (Mnemosyne, chapter 3).
//!
//! - [`log`]: the raw word log.
//! - [`tx`]: durable transactions.
#![forbid(unsafe_code)]

pub mod log;
pub mod seeded;
pub mod tx;
