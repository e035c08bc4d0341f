//! The trusted service of Aerie (TFS).
//!
//! - [`locks`]: the lock service.
//! - [`serve`]: the service as a process, with connections, sessions and leases.
//! - [`Protected`]: a store in a directory, of which each user maps what the user may read.
//! - [`seeded`]: bugs of the lock service, for tests.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

pub mod locks;
mod protected;
pub mod seeded;
mod service;

pub use protected::Protected;
pub use service::{Description, Limits, ServeError, Serving, serve, serve_protected};
