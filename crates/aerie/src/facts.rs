//! Facts of a store that commands show.

use aerie_objects::{PAGE, Superblock};
use engine::{Error, Result};
use medium::Pmem;
use serde_json::{Map, Value, json};
use std::path::Path;

/// The name of the engine.
pub(crate) const NAME: &str = "pxfs";

pub(crate) fn probe<P: Pmem>(path: &Path, memory: &P) -> Result<Superblock> {
    Superblock::load(memory).map_err(|e| Error::about(path, e))
}

pub(crate) fn uuid(superblock: &Superblock) -> String {
    engine::uuid(&superblock.uuid.to_le_bytes())
}

/// The facts that `info` shows both of an image and of a mount.
pub(crate) fn about(superblock: &Superblock) -> Map<String, Value> {
    let about = [
        ("type", json!(NAME)),
        ("version", json!(superblock.version())),
        ("uuid", json!(uuid(superblock))),
        ("size_bytes", json!(superblock.bytes)),
        ("block_bytes", json!(PAGE)),
        ("blocks", json!(superblock.bytes / PAGE)),
        ("log_bytes", json!(superblock.logs_bytes())),
        ("logs", json!(superblock.logs)),
    ];
    let named = |(name, value): (&str, Value)| (name.to_owned(), value);
    about.map(named).into_iter().collect()
}
