//! The trusted service of Aerie (TFS).
//!
//! - [`apply`]: checks the batches of clients, and makes what it accepts durable.
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod apply;
mod parts;
mod refusal;
pub mod seeded;
mod shape;
#[cfg(test)]
mod tests;

pub use apply::{Answer, apply};
pub use parts::Authority;
pub use refusal::{Invariant, Refusal};
