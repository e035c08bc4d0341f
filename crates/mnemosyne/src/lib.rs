//! Durable memory for programs (Mnemosyne, chapter 3).
//!
//! - [`log`]: the raw word log.
#![forbid(unsafe_code)]

pub mod log;
