//! The trusted service of Aerie (TFS).
//!
//! - [`batches`]: checks the batches of clients, and makes what it accepts durable.
//! - [`locks`]: the lock service.
//! - [`seeded`]: bugs of the lock service, for tests.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

pub mod batches;
pub mod locks;
pub mod seeded;
