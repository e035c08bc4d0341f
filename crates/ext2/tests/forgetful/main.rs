//! The tests of `behaviour` on a store in which every block is absent when a call first needs it.
//! Calls must be repeatable up to their first change.

#[path = "../behaviour/acls.rs"]
mod acls;
#[path = "../behaviour/crash.rs"]
mod crash;
#[path = "../behaviour/damage.rs"]
mod damage;
#[path = "../behaviour/differential.rs"]
mod differential;
#[path = "../behaviour/fixture.rs"]
mod fixture;
#[path = "../behaviour/flags.rs"]
mod flags;
#[path = "../behaviour/formats.rs"]
mod formats;
#[path = "../behaviour/fsync.rs"]
mod fsync;
#[path = "../behaviour/hostile.rs"]
mod hostile;
mod journaled;
#[path = "../behaviour/limits.rs"]
mod limits;
#[path = "../behaviour/reserve.rs"]
mod reserve;
#[path = "../behaviour/short_lived.rs"]
mod short_lived;
#[path = "../behaviour/space.rs"]
mod space;
#[path = "../behaviour/twins.rs"]
mod twins;

use std::sync::Arc;

/// The store of the file systems in these tests.
fn store(volume: patch::DeviceStore) -> Arc<dyn patch::Store> {
    Arc::new(patch::Forgetful::new(volume))
}
