//! Durable memory for programs (Mnemosyne, chapter 3).
//!
//! - [`log`]: the raw word log.
//! - [`tx`]: durable transactions.
//! - [`heap`]: blocks that transactions allocate and free.
//! - [`store`]: all of it together, in regions.
//! - [`typed`]: values, pointers and roots with types.
//! - [`structures`]: maps, trees, vectors, queues and logs of them.
//! - [`statics`]: how persistent variables of programs are kept.
//!
//! The bytes, with numbered invariants, are in `format.md`.
#![forbid(unsafe_code)]

pub mod heap;
pub mod log;
mod sealed;
pub mod seeded;
pub mod statics;
pub mod store;
pub mod structures;
pub mod tx;
pub mod typed;

/// Derives [`typed::Persist`].
pub use mnemosyne_derive::Persist;
pub use typed::{Array, Field, Layouts, Persist, Ptr};
#[doc(hidden)]
pub use typed::{decode_at, encode_at, largest, places};

// Derived code names this crate, even inside it.
extern crate self as mnemosyne;
