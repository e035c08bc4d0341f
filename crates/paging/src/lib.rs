//! Regions larger than the persistent memory that they are given: paging.
//!
//! The pages of such a region lie in an ordinary file, which may be on a disk, or in *frames*
//! of a [`Pool`], a file of a fixed size on persistent memory. A page that is touched comes
//! into a frame, and is mapped where it belongs; for that, others go.
//!
//! # Guarantees
//!
//! 1. A page reads as it was last stored to, wherever it is.
//! 2. What a thread flushed or streamed is as durable when its next fence returns `Ok` as the
//!    pool's durability says, whether or not its page went, or came back, in between.
//! 3. The memory in use is that of the pool, however large the regions are. (For each frame
//!    there are some 100 bytes of ordinary memory, too.)
//! 4. A page that cannot be read is zeros, and marks its region as unreadable; one that cannot
//!    be written stays in its frame, and its region's fences fail from then on. Nobody waits
//!    for ever: if no frame can be freed, pages cannot be read.
//! 5. A child made by `fork` does not have these regions.
//!
//! What holds on to memory by other means than its address takes no part in this, since a page
//! does not stay in its frame: direct I/O (`O_DIRECT`) to or from these regions, other devices
//! that write to memory by themselves, and futexes shared with other processes.
//!
//! # Format of a pool
//!
//! Little-endian words. The header: magic and version ("SELPOOL", 1); the pool's id; bytes of
//! a page, *P*, a power of two, 64 at least (here: a page of the system); frames, *n*; and the
//! XXH3 (64 bits) of these words. At byte 64, 1 if a directory knows of the pool, else 0. From
//! byte 4,096 on the *frame table*, a word for each frame: 0 if it is free; else bit 63 is
//! set, and bits 0 to 31 are the number of the page that it has, bits 32 to 47 the slot of the
//! region, and bits 48 to 62 the low 15 bits of the XXH3 of three words: the id, the number of
//! the frame, and bits 0 to 47. From the first multiple of *P*, and of 4,096, behind the table
//! on, the frames, *P* bytes each.
//!
//! # Invariants
//!
//! In every state that a crash may leave:
//!
//! - **P1** An entry is 0, or names a page and has the right check.
//! - **P2** No two entries name the same page.
//! - **P3** A page that an entry names is in that frame, whatever the file has.
//! - **P4** A page that no entry names is in the region's file.
//! - **P5** The page that an entry names is part of a region that there is, or of one that is
//!   being made or removed.
//!
//! # How they are kept
//!
//! *A page comes*: it is copied into a free frame; fence; the entry, one word; fence; and only
//! then can it be stored to. Before the entry is durable P4 holds for the page, after it P3.
//!
//! *A page goes*: its frame is taken from its address, so that nobody can store to it. If the
//! digest of the frame is not that of what the file is known to have, the page is written to
//! the file, and the file is synchronised, once for several pages. P3 holds still, so that a
//! page torn on the disk does no harm. Then the entry is cleared; fence; and P4 holds. Only
//! then does the frame go to another page. Of a page that was in its frame when the pool was
//! opened nothing is known, and it is always written: whoever was here before may have died
//! between writing and synchronising. (And the file is synchronised once when it is opened.)
//!
//! *A region goes*: its entries are cleared, durably, before its file is removed.
//!
//! # Why a fence is enough
//!
//! A thread stores to a page, flushes, and fences. At the store the page is in a frame, whose
//! entry is durable. If it still is at the flush, the flush is one of the line in the frame;
//! for `msync` the bytes of the frame are marked, and written back by the fence. If it went in
//! between, it did so after the store: taking the frame away interrupts each processor that
//! could still reach it, and a barrier on each of them follows, so that the store, even a
//! streaming one that its thread has not fenced, is in what is then compared and written to
//! the file. The entry is cleared after that is durable: nothing is left for the flush to do.
//! (It flushes a line of a frame all the same, when the page comes back; or marks nothing.) If
//! the page came back, it was copied from the durable file into its new frame, and was durable
//! there before it was mapped. So at each moment after the fence the word is durable in the
//! place that counts.
//!
//! With durability `process`, which no power failure is to survive, files are not
//! synchronised: the system has what was written to them, as it has the pool.
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
pub use pool::{PAGE_BYTES, PageCounts, Pool};
pub use residency::{Fault, Residency, Victim};
