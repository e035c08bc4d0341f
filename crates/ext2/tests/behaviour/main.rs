//! What the mounted file system does, on images that mke2fs makes, judged by the model, by
//! e2fsck and by debugfs.

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

/// What the file systems of the tests are stored on.
fn store(volume: patch::Volume) -> Arc<dyn patch::Store> {
    Arc::new(volume)
}
