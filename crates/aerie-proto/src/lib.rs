//! The protocol between a client of Aerie and its trusted service (Volos and others, EuroSys 2014).
//!
//! - `lists`: lists of a bounded length.
//! - [`locks`]: modes and messages of the lock service.
//! - [`messages`]: the messages on a connection, and their frames.
//! - [`ops`]: operations of a file system, remote calls, and their answers.
//! - [`seeded`]: bugs for tests.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod lists;
pub mod locks;
pub mod messages;
pub mod ops;
pub mod seeded;

pub use lists::LIST_MAX;
