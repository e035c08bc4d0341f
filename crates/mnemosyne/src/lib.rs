//! Durable memory for programs (Mnemosyne, chapter 3).
//!
//! - [`memory`]: the durable memory of a program, which has regions, transactions, a heap and named
//!   roots. Begin here.
//! - [`tx`]: durable transactions.
//! - [`heap`]: blocks that transactions allocate and free.
//! - [`statics`]: persistent variables of programs.
//!
//! The crate `wordlog` has the logs of transactions; the crate `persist` adds types. The format,
//! with numbered invariants, is in `format.md`.
//!
//! # Example
//!
//! ```
//! use medium::MemoryPmem;
//! use mnemosyne::memory::{DurableMemory, Flat, Layout, Options};
//! use mnemosyne::tx::Stop;
//! use std::convert::Infallible;
//! use std::sync::Arc;
//!
//! // This memory is volatile; `DurableMemory::open_directory` uses the files of a directory.
//! let pm = Arc::new(MemoryPmem::new(4 << 20));
//! let layout = Layout { logs: 1, log_bytes: 64 << 10, ..Layout::default() };
//! layout.format(&pm)?;
//! let options = Options { heap_growth: 1 << 20, ..Options::default() };
//! let memory = DurableMemory::open(Flat(pm.clone()), pm, options)?;
//! let count = memory.session().run(|tx| {
//!     let at = tx.alloc(8)?;
//!     tx.store(at, 1)?;
//!     // After any crash both the block and its root exist, or neither.
//!     tx.set_root("count", 1, at)?;
//!     Ok::<_, Stop<Infallible>>(tx.load(at)?)
//! })?;
//! assert_eq!(count, 1);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod error;
pub mod heap;
pub mod memory;
mod region;
pub mod seeded;
pub mod statics;
pub mod tx;
