//! What the root of a mount tells about it, as extended attributes that are in no list, so
//! that nothing copies them.

use fuse::STATS_XATTR;
use medium::EffectiveDurability;
use rustix::fs::getxattr;
use serde_json::{Map, Value};
use std::path::Path;

/// The durability in force, as one word.
pub const DURABILITY: &str = "selvedge.durability";

/// A JSON object: what `info` shows of an image, and `threads` if their number was given.
pub const INFO: &str = "selvedge.info";

/// The durability in force in a mount of ours, if it tells.
pub fn durability(dir: &Path) -> Option<EffectiveDurability> {
    use EffectiveDurability::{Dax, Msync, Process};
    let value = read(dir, DURABILITY)?;
    let mut known = [Dax, Process, Msync].into_iter();
    known.find(|d| d.to_string().as_bytes() == value)
}

/// The rest of what a mount of ours tells; nothing if it does not.
pub fn info(dir: &Path) -> Map<String, Value> {
    let value = read(dir, INFO).unwrap_or_default();
    serde_json::from_slice(&value).unwrap_or_default()
}

/// What a mount of ours has done so far, if it counts that.
pub fn stats(dir: &Path) -> Option<Value> {
    serde_json::from_slice(&read(dir, STATS_XATTR)?).ok()
}

fn read(dir: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 1 << 16];
    let len = getxattr(dir, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}
