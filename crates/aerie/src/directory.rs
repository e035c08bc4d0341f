//! Protected stores: directories in place of images.

use crate::facts::{NAME, probe, uuid};
use aerie_objects::PAGE;
use aerie_objects::layout::MIN_PAGES;
use aerie_server::Protected;
use engine::{Error, Identity, Result, size};
use medium::{MapOptions, Overlay};
use pxfs::MkfsOptions;
use scm::Joined;
use std::path::Path;
use std::sync::Arc;

pub(crate) fn is_at(path: &Path) -> bool {
    Protected::is_at(path)
}

/// Makes a store in a new or empty directory.
pub(crate) fn make(path: &Path, bytes: u64, identity: &Identity) -> Result<String> {
    let about = |e: &dyn std::fmt::Display| Error::about(path, e);
    let least = MIN_PAGES * PAGE;
    if bytes < least || !bytes.is_multiple_of(PAGE) {
        let least = size::display(least);
        let why = format!("a protected store has at least {least}, and a multiple of {PAGE} bytes");
        return Err(Error::about(path, why));
    }
    let store = Protected::create(path, bytes, &MapOptions::default()).map_err(|e| about(&e))?;
    let memory = store.memory();
    let options = MkfsOptions {
        // A protected store has one open transaction at a time.
        logs: Some(1),
        ..mkfs_options(identity)
    };
    pxfs::mkfs(&memory, &options).map_err(|e| about(&e))?;
    let made = probe(path, &memory)?;
    let (bytes, uuid) = (size::display(made.bytes), uuid(&made));
    Ok(format!("{NAME}, protected, {bytes}, UUID {uuid}"))
}

pub(crate) fn mkfs_options(identity: &Identity) -> MkfsOptions {
    MkfsOptions {
        uuid: identity.uuid,
        uid: identity.uid,
        gid: identity.gid,
        now: identity.now,
        logs: None,
    }
}

/// Opens a store. It finishes a change of protection that a crash has interrupted.
pub(crate) fn open(path: &Path, options: &MapOptions) -> Result<Protected> {
    Protected::open(path, options).map_err(|e| Error::about(path, e))
}

/// A store that is looked at: all other changes stay in ordinary memory.
pub(crate) fn look(path: &Path) -> Result<(Protected, Arc<Overlay<Arc<Joined>>>)> {
    let store = open(path, &MapOptions::default())?;
    let memory = Arc::new(Overlay::new(store.memory()));
    Ok((store, memory))
}
