//! The clients of Aerie.
//!
//! # Modules
//! - `seeded`, `sync`: bugs for tests; locks.
//! - `clerk`: caches locks of the service, and gives them to the threads of a client.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod clerk;
pub mod seeded;
mod sync;
