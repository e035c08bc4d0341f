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
//! What a crash can leave (`media`: persistent memory under two models, block devices) and
//! what is allowed afterwards (`promise`: from the declared guarantees alone) are independent,
//! and so is when a cache writes back ([`Schedule`]). What is visited: see the documentation
//! of `walk` (points in time), `media` (choices at a point) and `trial::judge` (demands).
#![forbid(unsafe_code)]

pub mod block;
mod choice;
mod explore;
mod fitness;
mod handles;
mod id;
mod life;
mod media;
mod panics;
mod past;
pub mod program;
mod promise;
mod report;
mod sabotage;
mod schedule;
mod setting;
mod system;
#[cfg(test)]
mod toy;
mod trial;
mod walk;
mod workloads;
mod world;

pub use explore::{explore, explore_script, replay};
pub use id::FailureId;
pub use medium::PersistModel;
pub use report::{Enumerated, FailureReport, Options, Outcome, Progress};
pub use schedule::Schedule;
pub use system::{BlockSystem, PmemSystem};
