//! Mapped files for durable memory that is measured. All regions of the benchmarks come from
//! here.

use crate::error::{Context, Result};
use crate::images;
use medium::{MappedPmem, Pmem};
use mnemosyne::memory::{DurableMemory, Flat, Layout, Options};
use std::path::Path;
use std::sync::Arc;

/// A mapped file that is flushed and fenced as persistent memory is.
pub(super) type Mapped = Arc<MappedPmem>;

/// Durable memory on `P`.
pub(super) type Durable<P> = DurableMemory<Flat<P>>;

/// Durable memory in use by one thread.
pub(super) type Session<P> = mnemosyne::memory::Session<Flat<P>>;

/// Bytes for the growth of the heap and for its own structures.
pub(super) const SPARE_BYTES: u64 = 3 * HEAP_GROWTH;
const HEAP_GROWTH: u64 = 16 << 20;

/// Options of a heap that takes no more than it needs.
pub(super) fn options() -> Options {
    Options {
        heap_growth: HEAP_GROWTH,
        ..Options::default()
    }
}

/// Maps a new file in a directory: one that is already unlinked, with all its pages mapped.
pub(super) fn map(dir: &Path, bytes: u64) -> Result<Mapped> {
    let bytes = bytes.next_multiple_of(4096);
    Ok(Arc::new(images::flushing_memory_in(dir, bytes)?))
}

/// Formats a mapped file as durable memory and opens it.
pub(super) fn make<P: Pmem + Clone>(
    pm: P,
    layout: &Layout,
    options: &Options,
) -> Result<Durable<P>> {
    layout.format(&pm).what(|| "making durable memory".into())?;
    open(pm, options)
}

/// Opens existing durable memory, with recovery.
pub(super) fn open<P: Pmem + Clone>(pm: P, options: &Options) -> Result<Durable<P>> {
    let store = DurableMemory::open(Flat(pm.clone()), pm, options.clone());
    store.what(|| "opening durable memory".into())
}
