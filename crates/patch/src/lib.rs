//! Block storage whose changes carry their order.
//!
//! A *patch* is a change of one block together with the patches that must be durable
//! before it (sections 2.1 and 2.2 of the Featherstitch chapter). File systems state what
//! must come first; the [`Cache`] writes blocks in any order that obeys.
//!
//! - [`Store`]: the interface through which a file system changes blocks.
//! - [`Volume`]: a device of a cache. Stores that stand on other stores ([`StoreLayer`]):
//!   [`Journal`], [`Async`], [`Trace`], [`verify`]; and [`Forgetful`], for tests.
//! - [`attempt`]: work under a lock that does not wait for devices.
//! - [`stack`]: the layers of a mount, as text.
//! - [`partition`]: partitions of devices.
//! - [`draw`]: the graph as a picture.
#![forbid(unsafe_code)]

mod asynchronous;
pub mod attempt;
mod cache;
pub mod draw;
mod forgetful;
mod graph;
mod id;
pub mod journal;
mod optimise;
pub mod partition;
pub mod seeded;
pub mod stack;
mod stats;
mod store;
mod trace;
pub mod verify;

pub use asynchronous::Async;
pub use cache::{Cache, CacheOptions, CacheStats, Durable, Volume};
pub use forgetful::Forgetful;
pub use id::PatchId;
pub use journal::{Journal, JournalOptions, Mode};
pub use medium::Rule;
pub use optimise::{Optimise, Optimised};
pub use stats::Stats;
pub use store::{
    Before, Caller, Change, Content, GraphId, Op, Patched, Store, StoreError, StoreLayer,
};
pub use trace::Trace;
