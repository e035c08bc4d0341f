//! The steps between frames and files, for any memory and any files.
//!
//! Each step keeps the [invariants](super) if a crash happens at any point in it.

use crate::seeded::{Bug, hit};
use medium::{LINE_BYTES, MediumError, Pmem, Rule, WORD_BYTES};
use std::io;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// "SELPOOL" and the version.
const MAGIC: u64 = u64::from_le_bytes(*b"SELPOOL\x01");
/// Words of the header in use.
const HEAD_WORDS: usize = 4;
const AT_CHECK: u64 = HEAD_WORDS as u64 * WORD_BYTES;
const AT_CLAIM: u64 = LINE_BYTES;
const AT_TABLE: u64 = 4096;
/// The largest number of frames of a pool.
const FRAMES_MAX: u64 = 1 << 31;
/// The bit of every entry in use.
const USED: u64 = 1 << 63;

/// A page of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId {
    /// The slot of the region.
    pub slot: u16,
    /// The number of the page in the region.
    pub page: u32,
}

/// The file of a region, for pages that are in no frame.
pub trait PageStore {
    /// Copies a page to `buf`; the part after the end of the file is zeros.
    ///
    /// # Errors
    /// The system's.
    fn read_page(&self, page: u32, buf: &mut [u8]) -> io::Result<()>;

    /// Writes a page, up to the end of the file.
    ///
    /// # Errors
    /// The system's; the page may be torn.
    fn write_page(&self, page: u32, bytes: &[u8]) -> io::Result<()>;

    /// Waits until all written pages are durable.
    ///
    /// # Errors
    /// The system's; none of the writes can be relied on then.
    fn sync(&self) -> io::Result<()>;
}

/// A hash of 128 bits, by which a changed frame is detected.
pub type Digest = u128;

/// An error of moving a page.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// An error of the pool.
    #[error(transparent)]
    Pool(#[from] MediumError),
    /// An error of the file.
    #[error(transparent)]
    File(#[from] io::Error),
}

/// The errors of a pool's contents.
#[derive(Debug, thiserror::Error)]
pub enum FramesError {
    /// The contents are not those of a pool.
    #[error("this is not a pool of frames: {what}")]
    NotAPool {
        /// The difference.
        what: &'static str,
    },
    /// A pool of this size and page size is not possible.
    #[error(
        "a pool of {bytes} bytes cannot have pages of {page_bytes}: a power of two is needed, \
         and room for {least} of them"
    )]
    Layout {
        /// Bytes of the pool.
        bytes: u64,
        /// Bytes of a page.
        page_bytes: u64,
        /// The least number of frames.
        least: u64,
    },
    /// An entry of the frame table is damaged.
    #[error("the entry of frame {frame}, at byte {at:#x}, is damaged: {what}")]
    Entry {
        /// The frame of the entry.
        frame: u32,
        /// Offset of the entry in bytes.
        at: u64,
        /// The damage.
        what: String,
    },
    /// An error of the memory.
    #[error(transparent)]
    Medium(#[from] MediumError),
}

/// Frames in persistent memory, and the table of their pages.
pub struct Frames<P> {
    pm: P,
    id: u64,
    page_bytes: u64,
    count: u32,
}

impl<P: Pmem> Frames<P> {
    /// Makes a pool of at least `least` empty frames in all of `pm`, with pages of `page_bytes`
    /// and the id `id`. Durable at return.
    ///
    /// # Errors
    /// [`FramesError`].
    pub fn format(pm: &P, page_bytes: u64, least: u64, id: u64) -> Result<(), FramesError> {
        let count = check_layout(pm.len(), page_bytes, least)?;
        for line in (0..AT_TABLE + count * WORD_BYTES).step_by(LINE_BYTES as usize) {
            pm.store_nt(line, &[0; LINE_BYTES as usize]);
        }
        let head = [MAGIC, id, page_bytes, count];
        for (n, word) in head.iter().enumerate().skip(1) {
            pm.store_word(n as u64 * WORD_BYTES, *word);
        }
        pm.store_word(AT_CHECK, check(&head));
        pm.flush(0, LINE_BYTES);
        pm.fence(Rule::InitialiseBeforePoint)?;
        pm.store_word(0, MAGIC);
        pm.flush(0, WORD_BYTES);
        Ok(pm.fence(Rule::DurableBeforeReturn)?)
    }

    /// Opens a pool, and returns the page in each frame. Stores nothing.
    ///
    /// # Errors
    /// [`FramesError`]: the first damage found.
    pub fn open(pm: P) -> Result<(Self, Vec<Option<PageId>>), FramesError> {
        let mut head = [0; HEAD_WORDS];
        for (n, word) in head.iter_mut().enumerate() {
            *word = pm.load(n as u64 * WORD_BYTES)?;
        }
        let wrong = |what| Err(FramesError::NotAPool { what });
        if head[0] != MAGIC {
            return wrong("the magic is missing, or of another version");
        }
        if pm.load(AT_CHECK)? != check(&head) {
            return wrong("its header is damaged");
        }
        let [_, id, page_bytes, count] = head;
        if count_in(pm.len(), page_bytes).is_none_or(|fit| fit < count) || count > FRAMES_MAX {
            return wrong("it is shorter than its frames");
        }
        let frames = Self {
            pm,
            id,
            page_bytes,
            count: count as u32,
        };
        let there = frames.entries()?;
        Ok((frames, there))
    }

    fn entries(&self) -> Result<Vec<Option<PageId>>, FramesError> {
        let mut seen = hashbrown::HashMap::new();
        let mut entries = Vec::with_capacity(self.count as usize);
        for frame in 0..self.count {
            let page = match self.pm.load(self.entry(frame))? {
                0 => None,
                word => Some(self.decode(frame, word)?),
            };
            if let Some(page) = page
                && let Some(other) = seen.insert(page, frame)
            {
                let PageId { slot, page } = page;
                let what = format!("frame {other} has page {page} of region {slot}, too");
                return Err(self.damaged(frame, what));
            }
            entries.push(page);
        }
        Ok(entries)
    }

    /// The error for a damaged entry.
    pub fn damaged(&self, frame: u32, what: String) -> FramesError {
        let at = self.entry(frame);
        FramesError::Entry { frame, at, what }
    }

    /// The memory.
    pub fn pmem(&self) -> &P {
        &self.pm
    }

    /// The id, which distinguishes the pool from others.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// The number of frames.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Offset of a frame in bytes.
    pub fn at(&self, frame: u32) -> u64 {
        first_frame(u64::from(self.count), self.page_bytes) + u64::from(frame) * self.page_bytes
    }

    /// Whether a directory has recorded the pool.
    ///
    /// # Errors
    /// [`MediumError`].
    pub fn is_claimed(&self) -> Result<bool, MediumError> {
        Ok(self.pm.load(AT_CLAIM)? != 0)
    }

    /// Records that a directory uses the pool. Durable at return.
    ///
    /// # Errors
    /// [`MediumError`].
    pub fn claim(&self) -> Result<(), MediumError> {
        self.pm.store_word(AT_CLAIM, 1);
        self.pm.flush(AT_CLAIM, WORD_BYTES);
        // Otherwise the pool of a directory could look unused, and be formatted again.
        self.pm.fence(Rule::DurableBeforeReturn)
    }

    /// Copies a page from its file to a free frame. `buf` has the length of a page.
    ///
    /// # Errors
    /// [`PageError`]; the frame is still free, unless the pool failed.
    pub fn load(
        &self,
        frame: u32,
        page: PageId,
        from: &impl PageStore,
        buf: &mut [u8],
    ) -> Result<Digest, PageError> {
        from.read_page(page.page, buf)?;
        self.pm.store_nt(self.at(frame), buf);
        // Once the entry is there, the frame counts, and not the file.
        if !hit(Bug::EntryBeforeCopy) {
            self.pm.fence(Rule::InitialiseBeforePoint)?;
        }
        let at = self.entry(frame);
        self.pm.store_word(at, self.encode(frame, page));
        // A crash that loses the entry loses fenced stores in the frame: the fence of another
        // thread does not cover the entry.
        if !hit(Bug::EntryNotDurable) {
            self.pm.flush(at, WORD_BYTES);
            self.pm.fence(Rule::DurableBeforeUse)?;
        }
        Ok(xxh3_128(buf))
    }

    /// Writes a page to its file, unless `known` shows that it is there: the digest of the
    /// file's durable contents. Returns whether it was written, and its digest. Only a later
    /// `sync` of the file makes it durable. No thread may store to the frame meanwhile, unless
    /// its entry stays.
    ///
    /// # Errors
    /// [`PageError`]; the entry must stay.
    pub fn write_back(
        &self,
        frame: u32,
        page: u32,
        known: Option<Digest>,
        to: &impl PageStore,
        buf: &mut [u8],
    ) -> Result<(bool, Digest), PageError> {
        self.pm.read(self.at(frame), buf)?;
        let digest = xxh3_128(buf);
        if known == Some(digest) || known.is_some() && hit(Bug::ChangeNotSeen) {
            return Ok((false, digest));
        }
        to.write_page(page, buf)?;
        Ok((true, digest))
    }

    /// Waits until the pages written back to a file are durable.
    ///
    /// # Errors
    /// The system's; the entries of the file's pages must stay.
    pub fn sync(&self, file: &impl PageStore) -> io::Result<()> {
        // The file before the entry is cleared: until then the frame has the only durable copy.
        match hit(Bug::ReleaseBeforeSync) {
            true => Ok(()),
            false => file.sync(),
        }
    }

    /// Clears entries: from here on these pages are in the files, or removed. The frames are
    /// free at return.
    ///
    /// # Errors
    /// [`MediumError`]; the frames must not be used then.
    pub fn release(&self, frames: &[u32]) -> Result<(), MediumError> {
        for frame in frames {
            let at = self.entry(*frame);
            self.pm.store_word(at, 0);
            self.pm.flush(at, WORD_BYTES);
        }
        // An old entry would refer to the next page in the frame.
        if hit(Bug::ReuseBeforeReleased) {
            return Ok(());
        }
        self.pm.fence(Rule::NullifyBeforeReuse)
    }

    fn entry(&self, frame: u32) -> u64 {
        AT_TABLE + u64::from(frame) * WORD_BYTES
    }

    fn encode(&self, frame: u32, PageId { slot, page }: PageId) -> u64 {
        let what = u64::from(page) | u64::from(slot) << 32;
        let mut bytes = [0; 24];
        for (part, word) in bytes.chunks_mut(8).zip([self.id, frame.into(), what]) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        USED | (xxh3_64(&bytes) & 0x7fff) << 48 | what
    }

    fn decode(&self, frame: u32, word: u64) -> Result<PageId, FramesError> {
        let page = PageId {
            slot: (word >> 32) as u16,
            page: word as u32,
        };
        match word == self.encode(frame, page) {
            true => Ok(page),
            false => Err(self.damaged(frame, format!("{word:#018x} has a wrong check"))),
        }
    }
}

/// The number of frames in a pool of `bytes`: at least `least`.
pub(crate) fn check_layout(bytes: u64, page_bytes: u64, least: u64) -> Result<u64, FramesError> {
    let count = count_in(bytes, page_bytes);
    let count = count.filter(|count| (least.max(1)..=FRAMES_MAX).contains(count));
    count.ok_or(FramesError::Layout {
        bytes,
        page_bytes,
        least,
    })
}

/// The number of frames that fit into `bytes`.
pub(crate) fn count_in(bytes: u64, page_bytes: u64) -> Option<u64> {
    if !page_bytes.is_power_of_two() || page_bytes < LINE_BYTES {
        return None;
    }
    let most = bytes.checked_sub(AT_TABLE)? / (page_bytes + WORD_BYTES);
    let fits = |count: &u64| first_frame(*count, page_bytes) + count * page_bytes <= bytes;
    // The start of the frames is rounded up, which costs at most the entries in 4,096 bytes.
    let least = most.saturating_sub(AT_TABLE / LINE_BYTES);
    (least..=most).rev().find(fits)
}

fn first_frame(count: u64, page_bytes: u64) -> u64 {
    (AT_TABLE + count * WORD_BYTES).next_multiple_of(page_bytes.max(4096))
}

fn check(head: &[u64; HEAD_WORDS]) -> u64 {
    let mut bytes = [0; HEAD_WORDS * WORD_BYTES as usize];
    for (part, word) in bytes.chunks_mut(8).zip(head) {
        part.copy_from_slice(&word.to_le_bytes());
    }
    xxh3_64(&bytes)
}
