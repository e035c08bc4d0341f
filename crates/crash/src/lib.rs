//! The crash-state explorer.
//!
//! The explorer runs scripts of calls on a file system over recorded persistent memory or a
//! recorded block device. It visits the states that a power cut could leave at any moment. The
//! file system recovers from each, and its declared guarantees judge the result.
//!
//! - [`PmemSystem`], [`BlockSystem`]: the system under test (format, open, check); engines
//!   implement them.
//! - [`explore`]: all short scripts, sampled and random longer ones; [`explore_script`]:
//!   one script; [`replay`] and [`revisit`]: one failure, by its [`FailureId`]. These take memory;
//!   [`block`] has the same functions for block devices.
//! - [`observe`]: the states of any calls, for a caller that judges them itself.
//! - [`program`]: the same for a program that keeps data in persistent memory itself.
//!
//! # Example
//!
//! ```
//! use bpfs::{BpfsSystem, Mode};
//! use crash::{Options, PersistModel, explore_script};
//!
//! let options = Options {
//!     model: PersistModel::Lines,
//!     ..Options::default()
//! };
//! let script = "create f 644\nwrite f 0 5000 1\nrename f g replace\n";
//! let failure = explore_script(&BpfsSystem(Mode::Log), script, &options)?;
//! assert_eq!(failure, None, "every crash state keeps the promises of BPFS");
//! # Ok::<(), String>(())
//! ```
//!
//! # Parts
//!
//! Three parts are independent of each other:
//!
//! - the states that a crash can leave (`media`: persistent memory under two models, block
//!   devices);
//! - the states that are allowed afterwards (`promise`, from the declared guarantees alone);
//! - the times at which a cache writes back ([`Schedule`]).
//!
//! Three modules describe the visited states: `walk` (points in time), `media` (choices at a
//! point) and `trial::judge` (demands).
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod block;
mod choice;
mod explore;
mod fitness;
mod handles;
mod id;
mod life;
mod media;
pub mod observe;
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

pub use explore::{explore, explore_script, replay, revisit};
pub use id::FailureId;
pub use medium::PersistModel;
pub use report::{Enumerated, FailureReport, Options, Outcome, Progress};
pub use schedule::Schedule;
pub use system::{BlockSystem, PmemSystem};
