//! Names of the files of durable memory.

/// The file of the system region.
pub(super) const SYSTEM: &str = "regions";
/// The file of a pool's pages.
pub(super) const FRAMES: &str = "frames";
/// The file that names a directory's pool.
pub(super) const POOL_NOTE: &str = "pool";
/// The file that names the machine's boot.
pub(super) const BOOT_NOTE: &str = "boot";
/// The prefix of the files of other regions; the number of the slot follows.
const REGION: &str = "region-";

/// The slot whose file has this name.
pub(super) fn slot_of(name: &str) -> Option<u64> {
    let slot = name.strip_prefix(REGION)?.parse().ok()?;
    (name == file_name(slot)).then_some(slot)
}

/// The name of a slot's file.
pub(super) fn file_name(slot: u64) -> String {
    format!("{REGION}{slot:04}")
}

/// Whether a file of durable memory can have this name.
pub(super) fn is_ours(name: &str) -> bool {
    [SYSTEM, FRAMES, BOOT_NOTE, POOL_NOTE].contains(&name) || slot_of(name).is_some()
}
