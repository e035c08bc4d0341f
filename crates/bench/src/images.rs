//! Fresh file systems to measure.

use crate::error::{Context, Result};
use bpfs::{Bpfs, MkfsOptions, MountOptions};
use medium::{Counting, MapOptions, MappedPmem, MemoryPmem, Pmem, Reserve};
use std::path::Path;
use std::sync::Arc;
use vfs::{FileSystem, ManualClock, ModelFs, ModelOptions, Timestamp};

/// Size of the images.
const IMAGE_BYTES: u64 = 256 << 20;

/// Pages that are touched beforehand.
const PAGE_BYTES: u64 = 4096;

/// A new BPFS over [`flushing_memory`].
pub(crate) fn on_shared_memory(mode: Option<bpfs::Mode>) -> Result<Arc<dyn FileSystem>> {
    let pm = flushing_memory(IMAGE_BYTES)?;
    Ok(Arc::new(fresh(pm, mode, MountOptions::default())?))
}

/// A new in-memory model.
pub(crate) fn model() -> Arc<dyn FileSystem> {
    Arc::new(ModelFs::new(ModelOptions::default()))
}

/// A medium that counts, and a new BPFS on it.
pub(crate) struct Counted {
    /// What the file system does to the medium.
    pub pm: Arc<Counting<MemoryPmem>>,
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
}

/// A new BPFS in counting memory. Its clock moves a microsecond at each reading, so that
/// counts repeat exactly.
pub(crate) fn counted(mode: Option<bpfs::Mode>) -> Result<Counted> {
    let pm = Arc::new(Counting::new(MemoryPmem::new(IMAGE_BYTES)));
    let options = MountOptions {
        clock: Arc::new(ManualClock::new(Timestamp(1 << 60), 1000)),
        ..MountOptions::default()
    };
    let fs = Arc::new(fresh(pm.clone(), mode, options)?);
    Ok(Counted { pm, fs })
}

/// A mapped file in `/dev/shm` that is treated as persistent memory, with real flushes and
/// fences. All its pages are there and mapped. The file is already unlinked: it goes away
/// with the value.
pub(crate) fn flushing_memory(len_bytes: u64) -> Result<MappedPmem> {
    flushing_memory_in(Path::new("/dev/shm"), len_bytes)
}

/// The same in another directory.
pub(crate) fn flushing_memory_in(dir: &Path, len_bytes: u64) -> Result<MappedPmem> {
    let what = || format!("making an image in {}", dir.display());
    let dir = tempfile::Builder::new()
        .prefix("selvedge-bench-")
        .tempdir_in(dir)
        .what(what)?;
    let path = dir.path().join("image");
    medium::create_file(&path, len_bytes, Reserve::Whole).what(what)?;
    let options = MapOptions {
        force_flush: true,
        ..MapOptions::default()
    };
    let pm = MappedPmem::open(&path, &options).what(what)?;
    touch(&pm);
    Ok(pm)
}

/// Makes a file system in `mode` and mounts it.
pub(crate) fn fresh<P: Pmem>(
    pm: P,
    mode: Option<bpfs::Mode>,
    options: MountOptions,
) -> Result<Bpfs<P>> {
    let mut format = MkfsOptions::default();
    format.mode = mode.unwrap_or(format.mode);
    bpfs::mkfs(&pm, &format).what(|| "mkfs".into())?;
    Bpfs::open(pm, options).what(|| "mounting".into())
}

/// Takes the page faults beforehand: a real device has them at the mount at most.
fn touch(pm: &dyn Pmem) {
    for off in (0..pm.len()).step_by(PAGE_BYTES as usize) {
        pm.store_word(off, 0);
    }
}
