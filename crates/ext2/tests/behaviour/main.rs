//! The behaviour of the mounted file system, on images of mke2fs, judged by the model, e2fsck and
//! debugfs.

mod acls;
mod beside;
mod callers;
mod conformance;
mod contended;
mod crash;
mod damage;
mod differential;
mod fixture;
mod flags;
#[allow(clippy::duplicate_mod)] // these modules with another store
mod forgetful;
mod formats;
mod fsync;
mod hostile;
mod killed;
mod limits;
mod reads;
mod reserve;
mod short_lived;
mod space;
mod twins;
mod unclean;
mod waits;

use std::sync::Arc;

/// The store of the file systems in these tests.
fn store(volume: patch::DeviceStore) -> Arc<dyn patch::Store> {
    Arc::new(volume)
}
