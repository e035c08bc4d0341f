//! Most of these tests on a store in which every block is absent when a call first needs it.
//! Calls must be repeatable up to their first change.

#[path = "../acls.rs"]
mod acls;
#[path = "../crash.rs"]
mod crash;
#[path = "../damage.rs"]
mod damage;
#[path = "../differential.rs"]
mod differential;
#[path = "../fixture.rs"]
mod fixture;
#[path = "../flags.rs"]
mod flags;
#[path = "../formats.rs"]
mod formats;
#[path = "../fsync.rs"]
mod fsync;
#[path = "../hostile.rs"]
mod hostile;
mod journaled;
#[path = "../limits.rs"]
mod limits;
#[path = "../reserve.rs"]
mod reserve;
#[path = "../short_lived.rs"]
mod short_lived;
#[path = "../space.rs"]
mod space;
#[path = "../twins.rs"]
mod twins;

use std::sync::Arc;

/// The store of the file systems in these tests.
fn store(volume: patch::DeviceStore) -> Arc<dyn patch::Store> {
    Arc::new(patch::Forgetful::new(volume))
}
