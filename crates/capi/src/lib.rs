//! Durable memory for C and C++ (Mnemosyne, chapter 3): the functions of `selvedge.h`; and files of a store
//! that a service serves.
//!
//! - [`program`]: the durable memory of this process, opened at its first use.
//! - [`itm`]: the runtime that gcc's transactions call.
//! - [`statics`]: persistent variables.
//! - [`heap`], [`region`], [`log`], [`primitives`]: the other calls of the header.
//! - [`structures`]: the calls of `selvedge/structures.h`.
//! - [`files`]: the calls of `selvedge/files.h`, which need no durable memory.
//!
//! Programs call this crate by its C symbols. Their names begin with `selvedge_`, `_ITM_` (the
//! interface between gcc and its runtime) or `_ZGTt` (the transactional clone of a function).
//! The header, or gcc's interface, states the contract of each symbol. A call that breaks it has
//! undefined behaviour.
#![allow(clippy::missing_safety_doc)] // the header has them
#![warn(unreachable_pub)]

mod call;
mod cxx;
mod elf;
mod errno;
mod fatal;
mod files;
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
