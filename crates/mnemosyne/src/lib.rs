//! Durable memory for programs (Mnemosyne, chapter 3).
//!
//! - [`tx`]: durable transactions.
//! - [`heap`]: blocks that transactions allocate and free.
//! - [`store`]: all of it together, in regions.
//! - [`statics`]: how persistent variables of programs are kept.
//!
//! The crate `wordlog` has the logs of transactions; the crate `persist` adds types. The bytes, with
//! numbered invariants, are in `format.md`.
#![forbid(unsafe_code)]

mod error;
pub mod heap;
mod region;
pub mod seeded;
pub mod statics;
pub mod store;
pub mod tx;
