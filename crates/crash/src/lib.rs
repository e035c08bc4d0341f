//! The crash-state explorer.
//!
//! Runs operation scripts on a file system over recorded persistent memory or a recorded
//! block device, visits the states that a power cut could leave at any moment, lets the
//! file system recover from each, and demands what its declared guarantees promise.
//!
//! - [`PmemSystem`], [`BlockSystem`]: what takes part (format, open, check); engines
//!   implement it. What follows is for memory; [`block`] has the same for block devices.
//! - [`explore`]: all short scripts, sampled and random longer ones; [`explore_script`]:
//!   one script; [`replay`]: one failure, by its [`FailureId`].
//! - [`program`]: the same for a program that keeps data in persistent memory itself.
//!
//! What is visited: see the documentation of `walk` (points in time), `state` (choices
//! at a point) and `oracle` (demands). In program order, besides, the logical state must
//! go from old to new in one step at one store of each operation.
#![forbid(unsafe_code)]

pub mod block;
mod choice;
mod explore;
mod handles;
mod id;
mod life;
mod oracle;
pub mod program;
mod report;
mod sabotage;
#[cfg(test)]
mod selftest;
mod state;
mod system;
#[cfg(test)]
mod toy;
mod trial;
mod walk;
mod world;

pub use block::Schedule;
pub use explore::{explore, explore_script, replay};
pub use id::FailureId;
pub use report::{Enumerated, FailureReport, Options, Outcome, Progress};
pub use state::Model;
pub use system::{BlockSystem, PmemSystem};
