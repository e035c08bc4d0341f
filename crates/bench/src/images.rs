//! Mapped files that stand in for persistent memory.

use crate::error::{Context, Result};
use medium::{MapOptions, MappedPmem, Pmem, Reserve};
use std::path::Path;

/// Size of the images.
pub(crate) const IMAGE_BYTES: u64 = 256 << 20;

/// Pages that are touched beforehand.
const PAGE_BYTES: u64 = 4096;

/// A mapped file in `/dev/shm` that is treated as persistent memory, with real flushes and
/// fences. All its pages are there and mapped. The file is already unlinked: it is removed
/// with the value.
pub(crate) fn flushing_memory(len_bytes: u64) -> Result<MappedPmem> {
    flushing_memory_in(Path::new("/dev/shm"), len_bytes)
}

/// Maps a file in another directory, as [`flushing_memory`] does.
pub(crate) fn flushing_memory_in(dir: &Path, len_bytes: u64) -> Result<MappedPmem> {
    let what = || format!("making an image in {}", dir.display());
    let dir = tempfile::Builder::new()
        .prefix("selvedge-bench-")
        .tempdir_in(dir)
        .what(what)?;
    flushing_file(&dir.path().join("image"), len_bytes)
}

/// Makes a file on tmpfs that stays, and maps it as [`flushing_memory`] does.
pub(crate) fn flushing_file(path: &Path, len_bytes: u64) -> Result<MappedPmem> {
    let what = || format!("making {}", path.display());
    medium::create_file(path, len_bytes, Reserve::Whole).what(what)?;
    let options = MapOptions {
        force_flush: true,
        ..MapOptions::default()
    };
    let pm = MappedPmem::open(path, &options).what(what)?;
    touch(&pm);
    Ok(pm)
}

/// Takes the page faults beforehand: a real device has them at the mount at most.
fn touch(pm: &dyn Pmem) {
    for off in (0..pm.len()).step_by(PAGE_BYTES as usize) {
        pm.store_word(off, 0);
    }
}
