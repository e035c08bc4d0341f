//! The clients of Aerie.
//!
//! [`Client`] is a file system for the threads of a process. It maps the store of a service, reads it
//! directly, and changes it by batches of operations, under locks of the service. A client that may not
//! map the store calls the service.
//!
//! # Modules
//! - `seeded`, `sync`: bugs for tests; locks.
//! - `clerk`: caches locks of the service, and gives them to the threads of a client.
//! - `plan`: the locks that each call needs.
//! - `connection`: messages to and from the service.
//! - `memory`: an image, or a protected store, as clients map it.
//! - `contended`, `linger`: the files that other clients have needed lately; which locks that others wait
//!   for a client keeps for a moment.
//! - `schedule`: when the thread of a client ships.
//! - `remote`, `mapped`: the file system of a client that does not map the store, and of one that does.
//! - `instead`: calls that the service runs in place of a mapped client.
//! - `values`: values of a client that maps the store.
//! - `client`: connects, and chooses between them.
//! - `files`: files by their paths, and open files.
//! - `kv`: keys and values in a directory.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

pub mod clerk;
mod client;
mod connection;
mod contended;
mod files;
mod instead;
mod kv;
mod linger;
mod mapped;
mod memory;
pub mod plan;
mod remote;
mod schedule;
pub mod seeded;
mod sync;
mod values;

pub use client::{Client, Options};
pub use connection::ConnectError;
pub use files::{File, Files, OFlags};
pub use kv::Kv;
pub use medium::SharedBytes;
