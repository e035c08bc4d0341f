//! Programs on durable memory for the crash-state explorer: logs, transactions, heap and regions,
//! structures, repairs, pages that move, files of a directory.
//!
//! Each is a [`crash::program::Program`]. Tests choose the sizes; [`all`] lists the programs that
//! `selvedge crash test --type memory` explores.
//!
//! # Example
//!
//! ```
//! use crash::Options;
//! use crash::program::explore;
//! use programs::neighbours::Neighbours;
//! use wordlog::Kind;
//!
//! let program = Neighbours {
//!     kind: Kind::TornBit,
//!     lines: 6,
//!     count: 3,
//! };
//! let explored = explore(&program, &Options::default())?;
//! assert!(explored.failure.is_none(), "no crash changes the neighbours of a written word");
//! # Ok::<(), String>(())
//! ```
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![allow(missing_docs)] // fields are the sizes of a program, named for what they count

pub mod disk;
pub mod files;
mod list;
pub mod logs;
pub mod marks;
pub mod neighbours;
pub mod overflows;
pub mod pages;
pub mod plain;
pub mod repairs;
pub mod structures;
pub mod threads;
pub mod transactions;
pub mod whole;

pub use list::all;
