//! The trusted service of Aerie (TFS).
//!
//! - [`locks`]: the lock service.
//! - [`seeded`]: bugs of the lock service, for tests.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

pub mod locks;
pub mod seeded;
