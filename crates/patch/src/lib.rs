//! Block storage whose changes carry their order.
//!
//! A *patch* is a change of one block together with the patches that must be durable
//! before it (sections 2.1 and 2.2 of the Featherstitch chapter). File systems state what
//! must come first; the [`Cache`] writes blocks in any order that obeys.
//!
//! - [`Store`]: the interface through which a file system changes blocks.
//! - [`DeviceStore`]: a device of a cache. Stores that stand on other stores ([`StoreLayer`]):
//!   [`Journal`], [`Groups`], [`Async`], [`Trace`], [`verify`]; and [`Forgetful`], for tests.
//! - [`attempt`]: work under a lock that does not wait for devices.
//! - [`stack`]: the layers of a mount, as text.
//! - [`partition`]: partitions of devices.
//! - [`draw`]: the graph as a picture.
//!
//! # Example
//!
//! The pointer in block 1 waits for the contents of block 2:
//!
//! ```
//! use medium::block::{Geometry, Lba, MemoryDevice};
//! use patch::{Before, Cache, CacheOptions, Caller, Change, Content, Rule, Store};
//! use std::sync::Arc;
//!
//! let geometry = Geometry { block_bytes: 4096, blocks: 8 };
//! let device = Arc::new(MemoryDevice::new(geometry));
//! let cache = Cache::new(vec![Box::new(device.clone())], CacheOptions::default());
//! let store = Arc::new(cache).store(0);
//!
//! let op = store.begin(2, Caller::SYSTEM)?;
//! let contents = Change::Bytes { at: 0, bytes: &[7; 4096] };
//! let filled = store.change(&op, Lba(2), Content::Data, contents, &[])?;
//! let pointer = Change::Bytes { at: 16, bytes: &[2, 0, 0, 0] };
//! let first = Before { patch: filled.id, rule: Rule::InitialiseBeforePoint };
//! let pointed = store.change(&op, Lba(1), Content::Metadata, pointer, &[first])?;
//! store.end(op);
//!
//! // Makes block 2 durable, then writes block 1 and makes it durable.
//! store.sync(&[pointed.id])?;
//! assert!(!store.is_pending(filled.id));
//! assert_eq!(device.bytes()[4096 + 16], 2);
//! # Ok::<(), patch::StoreError>(())
//! ```
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod asynchronous;
pub mod attempt;
mod cache;
pub mod draw;
mod forgetful;
mod graph;
mod groups;
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
pub use cache::{Cache, CacheOptions, CacheStats, DeviceStore, Durable};
pub use forgetful::Forgetful;
pub use groups::{Groups, Sets};
pub use id::PatchId;
pub use journal::{Journal, JournalOptions, Mode};
pub use medium::Rule;
pub use optimise::{Optimise, Optimised};
pub use stats::Stats;
pub use store::{
    Before, Caller, Change, Content, GraphId, Op, Patched, Store, StoreError, StoreLayer,
};
pub use trace::Trace;
