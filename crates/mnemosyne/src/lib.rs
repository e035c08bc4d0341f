//! Durable memory for programs (Mnemosyne, chapter 3).
//!
//! - [`tx`]: durable transactions.
//! - [`heap`]: blocks that transactions allocate and free.
//! - [`memory`]: all of it together, in regions.
//! - [`statics`]: how persistent variables of programs are kept.
//!
//! The crate `wordlog` has the logs of transactions; the crate `persist` adds types. The bytes, with
//! numbered invariants, are in `format.md`.
//!
//! # Example
//!
//! ```
//! use medium::MemoryPmem;
//! use mnemosyne::memory::{Flat, Layout, Options, DurableMemory};
//! use mnemosyne::tx::Stop;
//! use std::convert::Infallible;
//! use std::sync::Arc;
//!
//! // Memory that is not persistent serves as well; `DurableMemory::open_directory` takes files.
//! let pm = Arc::new(MemoryPmem::new(4 << 20));
//! let layout = Layout { logs: 1, log_bytes: 64 << 10, ..Layout::default() };
//! layout.format(&pm)?;
//! let options = Options { heap_growth: 1 << 20, ..Options::default() };
//! let memory = DurableMemory::open(Flat(pm.clone()), pm, options)?;
//! let count = memory.session().run(|tx| {
//!     let at = tx.alloc(8)?;
//!     tx.store(at, 1)?;
//!     // The block and its name are there after any crash, or neither.
//!     tx.set_root("count", 1, at)?;
//!     Ok::<_, Stop<Infallible>>(tx.load(at)?)
//! })?;
//! assert_eq!(count, 1);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod error;
pub mod heap;
pub mod memory;
mod region;
pub mod seeded;
pub mod statics;
pub mod tx;
