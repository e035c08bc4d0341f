//! The protocol between a client of Aerie and its trusted service (Volos and others, EuroSys 2014).
//!
//! - [`locks`]: modes and messages of the lock service.
//! - [`messages`]: the messages on a connection, and their frames.
//! - [`ops`]: operations of a file system, remote calls, and their answers.
//! - [`seeded`]: bugs for tests.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

pub mod locks;
pub mod messages;
pub mod ops;
pub mod seeded;
