//! Paging: regions that are larger than their persistent memory.
//!
//! The pages of such a region lie in an ordinary file, which may be on a disk, or in *frames*
//! of a [`Pool`]. A pool is a file of a fixed size on persistent memory. A page that is touched
//! is copied to a frame, and mapped at its address. Other pages are evicted to free frames.
//!
//! # Example
//!
//! ```
//! use medium::{Arena, MapOptions, Pmem, Reserve, Rule};
//! use paging::Pool;
//! use std::sync::Arc;
//!
//! let dir = tempfile::tempdir()?;
//! let (pool, region) = (dir.path().join("pool"), dir.path().join("region"));
//! let map = MapOptions::default();
//! Pool::create(&pool, 2 << 20, None, &map)?;
//! medium::create_file(&region, 16 << 20, Reserve::Sparse)?;
//!
//! // A region of 16 MiB, with a pool of 2 MiB.
//! let pool = Arc::new(Pool::open(&pool, &map)?);
//! let arena = Arena::reserve(None, 1 << 30)?;
//! arena.map_paged(0, &region, (&pool, 0), &map)?;
//! for page in 0..256 {
//!     let at = page * pool.page_bytes();
//!     arena.store_word(at, page);
//!     arena.flush(at, 8);
//! }
//! arena.fence(Rule::DurableBeforeReturn)?;
//! assert_eq!(arena.load(7 * pool.page_bytes())?, 7);
//! assert!(pool.counts().written > 200);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//!
//! 1. A page has the contents of its last stores, in a frame or in the file.
//! 2. A thread's flushes and streaming stores are durable when its next fence returns `Ok`, to
//!    the extent of the pool's durability. This holds even if the page was evicted or loaded in
//!    between.
//! 3. The memory in use is that of the pool, however large the regions are. (Each frame also
//!    takes some 100 bytes of ordinary memory.)
//! 4. A page that cannot be read is zeros, and marks its region as unreadable. A page that
//!    cannot be written stays in its frame, and the fences of its region fail from then on. No
//!    thread waits forever: if no frame can be freed, pages cannot be read.
//! 5. A child made by `fork` does not have these regions.
//!
//! A page does not stay in its frame, so its memory must not be accessed other than by its
//! address. Not supported are direct I/O (`O_DIRECT`) to or from these regions, other devices
//! that write to memory, and futexes shared with other processes.
//!
//! # Format of a pool
//!
//! A pool consists of little-endian words:
//!
//! | at | contents |
//! |---|---|
//! | byte 0 | magic and version ("SELPOOL", 1) |
//! | | the pool's id |
//! | | bytes of a page, *P*: a power of two, at least 64 (here: at least a page of the system) |
//! | | number of frames, *n* |
//! | | XXH3 (64 bits) of the words before |
//! | byte 64 | 1 if a directory uses the pool, else 0 |
//! | byte 4,096 | the *frame table*: *n* entries of one word |
//! | the next multiple of *P* and of 4,096 | the frames, *P* bytes each |
//!
//! An entry is 0 if its frame is free. Otherwise it has these bits:
//!
//! | bits | contents |
//! |---|---|
//! | 0 to 31 | the number of the page in the frame |
//! | 32 to 47 | the slot of the page's region |
//! | 48 to 62 | the low 15 bits of the XXH3 of three words: the id, the number of the frame, bits 0 to 47 |
//! | 63 | 1 |
//!
//! # Invariants
//!
//! In every state that a crash may leave:
//!
//! - **P1** An entry is 0, or names a page and has the right check.
//! - **P2** No two entries name the same page.
//! - **P3** A page that an entry names is in that frame, whatever the file has.
//! - **P4** A page that no entry names is in the region's file.
//! - **P5** The page that an entry names is part of an existing region, or of one that is being
//!   made or removed.
//!
//! # How they are kept
//!
//! *Loading a page.* The page is copied to a free frame; fence; the entry, one word, is stored;
//! fence. Only then can the page be stored to. P4 holds for the page until the entry is
//! durable, and P3 afterwards.
//!
//! *Evicting a page.* Its frame is removed from its address, so that no thread can store to it.
//! If the digest of the frame differs from that of the file's known contents, the page is
//! written to the file. The file is synchronised, once for several pages. P3 still holds, so a
//! torn page on the disk is harmless. Then the entry is cleared; fence; and P4 holds. Only then
//! is the frame used for another page.
//!
//! For a page that was in its frame when the pool was opened no digest is known, and it is
//! always written. The previous process may have ended between writing and synchronising. (The
//! file is also synchronised once when it is opened.)
//!
//! *Removing a region.* Its entries are cleared, durably, before its file is removed.
//!
//! # Why a fence is enough
//!
//! A thread stores to a page, flushes, and fences. At the store the page is in a frame, whose
//! entry is durable. If the page is still there at the flush, the line of the frame is flushed.
//! With `msync`, the bytes of the frame are marked, and written back by the fence.
//!
//! If the page was evicted in between, this happened after the store. Removing the frame
//! interrupts each processor that could still reach it, and a barrier on each of them follows.
//! So the store is visible when the frame is then compared and written to the file. This
//! includes a streaming store that its thread has not fenced. The entry is cleared after the
//! write is durable, so the flush has nothing left to do. (If the page is loaded again, it
//! flushes a line of a frame regardless; or it marks nothing.)
//!
//! If the page was loaded again, it was copied from the durable file to its new frame, and was
//! durable there before it was mapped. So at each moment after the fence the word is durable in
//! the place that counts.
//!
//! The durability `process` does not cover power failures. Files are then not synchronised: the
//! system has the contents that were written to them, as it has the pool.
#![warn(unreachable_pub)]

mod error;
mod frames;
mod moving;
mod pool;
mod region;
mod residency;
pub mod seeded;
mod userfaultfd;

pub use error::PoolError;
pub use frames::{Digest, Frames, FramesError, PageError, PageId, PageStore};
pub use moving::PageCounts;
pub use pool::{PAGE_BYTES, Pool};
pub use residency::{Fault, Residency, Victim};
