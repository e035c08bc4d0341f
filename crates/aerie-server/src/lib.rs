//! The trusted service of Aerie (TFS).
//!
//! - [`locks`]: the lock service.
//! - [`serve`]: the service as a process, with connections, sessions and leases.
//! - [`seeded`]: bugs of the lock service, for tests.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

pub mod locks;
pub mod seeded;
mod service;

pub use service::{Description, Limits, ServeError, Serving, serve};
