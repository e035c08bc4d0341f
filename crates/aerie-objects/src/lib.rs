//! Storage objects of Aerie (paper section 4.2.4): collections and mFiles in persistent memory. A
//! trusted service changes them by transactions; clients read them directly.
//!
//! # Guarantees
//!
//! - **O1** A transaction is durable when [`Transaction::commit`] returns. Before that, a crash leaves
//!   all of it or nothing.
//!   Transactions that are open at a time change different objects.
//! - **O2** A crash leaks nothing: what no object uses is free when the store is opened.
//! - **O3** A reader ends, with a result or an error, whatever the memory contains, and allocates no
//!   more than a page for each page that it visits. It never panics.
//! - **O4** [`stable`] returns what an object was between two transactions, although the service may
//!   change it meanwhile.
//! - **O5** A listing visits each entry that is there all the time once, although the collection grows
//!   and shrinks meanwhile. Only keys with the same hash may be listed again.
//! - **O6** With [`Protection`], no page with contents, names or attributes of an object can be read by a user
//!   whom the [`Policy`] does not permit it, at any time, also after a crash. Pages that lose readers do so
//!   before the change is durable, and pages that gain them after it. The caller ends each change by
//!   [`Transaction::narrow`], before it makes another one in the same transaction.
//!
//! The bytes are in `format.md`, with numbered invariants, which [`check`] verifies.
//!
//! # Example
//!
//! ```
//! use aerie_objects::{Kind, Store, lookup};
//! use medium::MemoryPmem;
//! use std::sync::Arc;
//!
//! let memory = Arc::new(MemoryPmem::new(1 << 20));
//! aerie_objects::format(&memory, 1)?;
//! let store = Store::open(memory.clone())?;
//! let mut transaction = store.begin()?;
//! let file = transaction.create(Kind::MFile)?;
//! transaction.add(store.root(), b"name", file)?;
//! transaction.commit()?;
//! assert_eq!(lookup(&memory, store.root(), store.seed(), b"name")?, Some(file));
//! # Ok::<_, aerie_objects::Error>(())
//! ```
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod changing;
mod check;
mod claims;
mod commit;
mod error;
mod id;
pub mod layout;
mod load;
mod log;
mod overlay;
mod pages;
mod protection;
mod readers;
mod reading;
mod reclass;
mod record;
mod remains;
mod reserve;
pub mod seeded;
mod slots;
mod space;
mod store;
mod superblock;
#[cfg(test)]
mod tests;
mod transaction;
mod whole;
mod words;

pub use check::{check, free_pages, list_all};
pub use error::{Error, Result};
pub use id::{HEADER_BYTES, Kind, ObjectId};
pub use layout::{KEY_MAX, PAGE, header::OWN_WORDS};
pub use load::Load;
pub use overlay::Overlay;
pub use protection::{Contents, Guard, Policy, Protection};
pub use readers::Readers;
pub use reading::collection::{Listed, entries, list, lookup};
pub use reading::object::{
    Header, generation, header, is_inside, members, only_parent, own, pages, parent, size, stable,
    version,
};
pub use reading::tree::{next_page, page};
pub use reserve::{NewObject, Reserve};
pub use store::{Store, recover};
pub use superblock::{Superblock, format, format_logs, format_with};
pub use transaction::{Before, Mark, Transaction};
