//! Batches of clients: what they ask for is checked, and applied as far as it is accepted.

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
