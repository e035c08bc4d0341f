//! Durable memory for C and C++ (Mnemosyne, chapter 3): what stands behind `selvedge.h`.
//!
//! - [`program`]: the memory of this process, which is opened when it is first used.
//! - [`itm`]: transactions as a compiler calls them.
//! - [`statics`]: persistent variables.
//! - [`heap`], [`region`], [`log`], [`primitives`]: the other calls of the header.
//! - [`structures`]: the calls of `selvedge/structures.h`.
//!
//! Programs call this crate by its C symbols. All of those begin with `selvedge_`, or with
//! what the transactions of gcc need (`_ITM_`, and `_ZGTt` for the transactional clone of a
//! function). The contract of a C symbol is the header's, or that of the interface between
//! gcc and its runtime; who breaks it breaks what any C program breaks.
#![allow(clippy::missing_safety_doc)] // the header has them

mod call;
mod cxx;
mod elf;
mod errno;
mod fatal;
mod heap;
mod itm;
mod log;
mod message;
mod open_logs;
mod primitives;
mod program;
mod region;
mod space;
mod statics;
mod structures;
mod thread;
