//! Stable storage, and the only way to change it.
//!
//! There are two kinds. Persistent memory ([`Pmem`]) is a region of bytes that ordinary loads
//! and stores reach and that survives a power failure. Block devices ([`block::BlockDevice`])
//! are read and written in whole blocks; their persistence model is in [`block`].
//!
//! # Persistence model of [`Pmem`]
//!
//! 1. **Atomic unit.** A store of 1, 2, 4 or 8 bytes at a naturally aligned offset is one
//!    instruction. A crash leaves all of it or nothing. No wider store is atomic.
//! 2. **Any time.** A store may become durable at any moment after it is issued, flushed or
//!    not: a cache line may be evicted.
//! 3. **Any order.** Two stores that no [`Pmem::fence`] separates may become durable
//!    in either order.
//! 4. **Durable.** A store is durable after two steps. A `flush` of its line is issued after it
//!    (a `store_nt` needs none), and then a `fence` of the same thread returns `Ok`.
//! 5. **Errors stick.** A store cannot report an error; the next `fence` and all later ones
//!    report it.
//!
//! File systems reach the bytes through the trait only; no code holds a `&mut [u8]` over live
//! memory.
//!
//! # Example
//!
//! ```
//! use medium::{MapOptions, MappedPmem, Pmem, Reserve, Rule, create_file};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("region");
//! create_file(&path, 1 << 20, Reserve::Sparse)?;
//! let pm = MappedPmem::open(&path, &MapOptions::default())?;
//! // The record is durable before the word that points to it.
//! pm.store(4096, b"a record");
//! pm.flush(4096, 8);
//! pm.fence(Rule::InitialiseBeforePoint)?;
//! pm.store_word(0, 4096);
//! pm.flush(0, 8);
//! pm.fence(Rule::DurableBeforeReturn)?;
//! drop(pm);
//!
//! let pm = MappedPmem::open(&path, &MapOptions::default())?;
//! let mut record = [0; 8];
//! pm.read(pm.load(0)?, &mut record)?;
//! assert_eq!(&record, b"a record");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # Back ends
//!
//! | type | what it is |
//! |---|---|
//! | [`MappedPmem`] | a mapped file, block device or DAX device: the real thing |
//! | [`Arena`] | several such files in one range of addresses; with a [pager](pager::Pager), larger ones |
//! | [`MemoryPmem`] | plain memory |
//!
//! and, around any of them, a [`PmemLayer`](layer::PmemLayer):
//!
//! | type | what it adds |
//! |---|---|
//! | [`Counting`] | counts of bytes, stores, flushed lines and fences |
//! | [`Latency`] | the write latency and bandwidth of slower memory |
//! | [`Faulty`] | lines that cannot be read, fences that fail |
//! | [`PowerCut`] | a power cut at any moment, into a legal crash state |
//! | [`Recording`] | a trace of every store, flush and fence |
//! | [`Overlay`] | stores that stay in memory, to try something on a region that must not change |
#![warn(unreachable_pub)]

mod addresses;
mod arena;
mod arena_error;
pub mod block;
mod budget;
mod claim;
mod counting;
mod cpu;
mod durability;
mod error;
mod faulty;
mod guard;
mod latency;
pub mod layer;
mod lock;
mod lossy;
mod mapped;
mod memory;
mod model;
mod open_error;
mod overlay;
pub mod pager;
mod peer;
mod power_cut;
mod prefetch;
mod raw;
mod rcu;
pub mod recording;
mod rule;
mod seeded;
mod shared_bytes;
mod sigbus;
mod signals;
pub mod text;
mod touched;
mod units;
mod users;

pub use arena::Arena;
pub use arena_error::ArenaError;
pub use budget::Budget;
pub use claim::check_unclaimed;
pub use counting::{Counting, Counts};
pub use durability::{Durability, EffectiveDurability, UnknownDurability, is_in_memory};
pub use error::MediumError;
pub use faulty::Faulty;
pub use guard::Guarding;
pub use latency::{Calibration, Latency, LatencyModel};
pub use lock::{holder, lock_for_writer};
pub use mapped::{MapOptions, MappedPmem, Reserve, create_file, create_private_file};
pub use memory::MemoryPmem;
pub use model::{PersistModel, UnknownModel};
pub use open_error::OpenError;
pub use overlay::Overlay;
pub use peer::{Peer, peer};
pub use power_cut::{CutAfter, CutReport, PowerCut};
pub use prefetch::prefetch;
pub use recording::Recording;
pub use rule::Rule;
pub use shared_bytes::SharedBytes;
pub use signals::without_signals;
pub use units::{Unit, unit_count, units};
pub use users::{Claim, Holder};

/// Bytes in a cache line: the unit of [`Pmem::flush`].
pub const LINE_BYTES: u64 = 64;

/// Bytes in a word: the largest unit that is stored atomically.
pub const WORD_BYTES: u64 = 8;

/// A region of persistent memory (the primitives of Mnemosyne's Table 3.2, on ranges).
/// All offsets are in bytes from the start of the region. Implementations never panic on an
/// offset outside the region. Loads return [`MediumError::OutOfRange`]; after a store, the next
/// fence returns it.
///
/// Two threads may load and store different words at once. A bulk [`read`](Pmem::read) that
/// races with a store to the same word returns each byte old or new. The caller excludes such
/// races if necessary, with a lock.
pub trait Pmem: Send + Sync {
    /// Size of the region in bytes; a multiple of [`LINE_BYTES`].
    fn len(&self) -> u64;

    /// Loads the aligned word at `off` in one instruction (little-endian).
    ///
    /// # Errors
    /// [`MediumError`] if the line cannot be read or `off` is outside the region or
    /// not a multiple of 8.
    fn load(&self, off: u64) -> Result<u64, MediumError>;

    /// Loads the aligned words from `off` on as [`load`](Pmem::load) does, in any order. Less work than a call for
    /// each.
    ///
    /// # Errors
    /// As [`load`](Pmem::load); `words` are then unspecified.
    fn load_words(&self, off: u64, words: &mut [u64]) -> Result<(), MediumError> {
        for (n, word) in (0..).zip(words) {
            *word = self.load(off.saturating_add(n * WORD_BYTES))?;
        }
        Ok(())
    }

    /// Copies `buf.len()` bytes starting at `off` into `buf`.
    ///
    /// # Errors
    /// As [`load`](Pmem::load); `buf` is then unspecified.
    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError>;

    /// Stores `bytes` at `off` through the cache, in ascending order. It makes the fewest
    /// naturally aligned stores of 8, 4, 2 and 1 bytes; each of those is atomic. In particular
    /// 1, 2, 4 or 8 bytes at a naturally aligned offset are one store.
    fn store(&self, off: u64, bytes: &[u8]);

    /// Stores `bytes` at `off` around the cache (streaming). Needs no flush, only a fence.
    /// Aligned units of at most 8 bytes are atomic. Best for whole lines.
    fn store_nt(&self, off: u64, bytes: &[u8]);

    /// Starts writing back every line that `off..off + len` touches.
    ///
    /// A flush has no rule: like CLWB it orders nothing, neither other flushes nor later stores.
    /// The next [`fence`](Pmem::fence) of the thread makes the order, and names the rule for all
    /// flushes before it.
    fn flush(&self, off: u64, len: u64);

    /// Waits until this thread's earlier flushes and streaming stores, and what was [handed over](Pmem::drain) to it,
    /// are durable, and orders later stores after them. `rule` is the reason: the memory ignores it, traces record it.
    ///
    /// # Errors
    /// The first error of any store, flush or fence of this region. The caller must not treat
    /// its stores as durable.
    fn fence(&self, rule: Rule) -> Result<(), MediumError>;

    /// Hands this thread's earlier streaming stores over to other threads: the next fence of one that has learnt of
    /// them afterwards, by a lock or a message, makes them durable. Cheaper than a fence where that waits for a disk.
    /// Simulations of several threads know no drain: in them, only a fence of the thread that stored counts.
    fn drain(&self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// Starts to bring the line at `off` into the caches of the processor. A hint: it reads nothing, and
    /// ignores an offset outside of the region.
    fn prefetch(&self, _off: u64) {}

    /// Prepares the pages of `off..off + len` for stores, so that these meet no page fault. A hint: it changes no
    /// byte, and ignores a range outside of the region.
    fn populate(&self, _off: u64, _len: u64) {}

    /// Whether the region has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stores one aligned 8-byte word, for example a commit.
    fn store_word(&self, off: u64, value: u64) {
        self.store(off, &value.to_le_bytes());
    }
}
