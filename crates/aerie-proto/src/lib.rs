//! The protocol between a client of Aerie and its trusted service (Volos and others, EuroSys 2014).
//!
//! - [`batch`]: the changes that a client asks for, as bytes.
//! - [`locks`]: modes and messages of the lock service.
//! - [`messages`]: the messages on a connection, and their frames.
//! - [`ops`]: operations of a file system, and remote calls.
//! - [`seeded`]: bugs for tests.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

pub mod batch;
pub mod locks;
pub mod messages;
pub mod ops;
pub mod seeded;
