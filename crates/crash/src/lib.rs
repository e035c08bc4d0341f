//! The crash-state explorer.
#![forbid(unsafe_code)]
#![allow(dead_code)]
mod state;
mod walk;
pub use state::Model;
