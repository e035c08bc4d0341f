//! Fresh file systems to measure.

use crate::Engine;
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

/// A new engine over a mapped file in `/dev/shm`, with real flushes and fences. The file
/// is already unlinked: it goes away with the value.
pub(crate) fn on_shared_memory(engine: Engine) -> Result<Arc<dyn FileSystem>> {
    let mode = match engine {
        Engine::Model => return Ok(Arc::new(ModelFs::new(ModelOptions::default()))),
        Engine::Bpfs(mode) => mode,
    };
    let dir = tempfile::Builder::new()
        .prefix("selvedge-bench-")
        .tempdir_in("/dev/shm")
        .what(|| "making a directory in /dev/shm".into())?;
    let pm = map_flushing(&dir.path().join("image"), IMAGE_BYTES, Reserve::Whole)?;
    touch(&pm);
    let options = MountOptions::default();
    Ok(Arc::new(fresh(pm, mode, options)?))
}

/// A new BPFS in memory, and the counters of what it does there. Its clock moves a
/// microsecond at each reading, so that counts repeat exactly.
pub(crate) fn counted(
    mode: Option<bpfs::Mode>,
) -> Result<(Arc<dyn FileSystem>, Arc<Counting<MemoryPmem>>)> {
    let pm = Arc::new(Counting::new(MemoryPmem::new(IMAGE_BYTES)));
    let options = MountOptions {
        clock: Arc::new(ManualClock::new(Timestamp(1 << 60), 1000)),
        ..MountOptions::default()
    };
    let fs = fresh(pm.clone(), mode, options)?;
    Ok((Arc::new(fs), pm))
}

/// Makes a file and maps it as if it were persistent memory.
pub(crate) fn map_flushing(path: &Path, len_bytes: u64, reserve: Reserve) -> Result<MappedPmem> {
    let what = || "making an image".to_owned();
    medium::create_file(path, len_bytes, reserve).what(what)?;
    let options = MapOptions {
        force_flush: true,
        ..MapOptions::default()
    };
    MappedPmem::open(path, &options).what(what)
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
