//! The steps between frames and files, on any memory and any files.
//!
//! Each keeps the [invariants](super) for a crash at any point in it.

use crate::seeded::{Bug, hit};
use medium::{LINE_BYTES, MediumError, Pmem, Rule, WORD_BYTES};
use std::io;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// "SELPOOL" and the version.
const MAGIC: u64 = u64::from_le_bytes(*b"SELPOOL\x01");
/// Words of the header that say something.
const HEAD_WORDS: usize = 4;
const AT_CHECK: u64 = HEAD_WORDS as u64 * WORD_BYTES;
const AT_CLAIM: u64 = LINE_BYTES;
const AT_TABLE: u64 = 4096;
/// Most frames that a pool can have.
const FRAMES_MAX: u64 = 1 << 31;
/// The bit of every entry in use.
const USED: u64 = 1 << 63;

/// A page of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId {
    /// The region's slot.
    pub slot: u16,
    /// Its number in the region.
    pub page: u32,
}

/// Where pages are that are in no frame: the file of a region.
pub trait PageStore {
    /// Copies a page to `buf`; what lies behind the end of the file is zeros.
    ///
    /// # Errors
    /// The system's.
    fn read_page(&self, page: u32, buf: &mut [u8]) -> io::Result<()>;

    /// Writes a page, up to the end of the file.
    ///
    /// # Errors
    /// The system's; the page may be torn.
    fn write_page(&self, page: u32, bytes: &[u8]) -> io::Result<()>;

    /// Waits until what was written is durable.
    ///
    /// # Errors
    /// The system's; nothing that was written may be relied on then.
    fn sync(&self) -> io::Result<()>;
}

/// What tells whether a frame has changed: a hash of 128 bits.
pub type Digest = u128;

/// A page cannot be moved.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The pool fails.
    #[error(transparent)]
    Pool(#[from] MediumError),
    /// The file fails.
    #[error(transparent)]
    File(#[from] io::Error),
}

/// What is wrong with a pool.
#[derive(Debug, thiserror::Error)]
pub enum FramesError {
    /// It is none.
    #[error("this is no pool of frames: {what}")]
    NotAPool {
        /// What is wrong.
        what: &'static str,
    },
    /// It was to be made in a way that it cannot be.
    #[error(
        "a pool of {bytes} bytes cannot have pages of {page_bytes}: a power of two is needed, \
         and room for {least} of them"
    )]
    Layout {
        /// Bytes of the pool.
        bytes: u64,
        /// Bytes of a page.
        page_bytes: u64,
        /// How many frames there must be.
        least: u64,
    },
    /// An entry of the frame table is damaged.
    #[error("the entry of frame {frame}, at byte {at:#x}, is damaged: {what}")]
    Entry {
        /// Which one.
        frame: u32,
        /// Where it is.
        at: u64,
        /// What is wrong.
        what: String,
    },
    /// The memory fails.
    #[error(transparent)]
    Medium(#[from] MediumError),
}

/// Frames in persistent memory, and the table of what is in them.
pub struct Frames<P> {
    pm: P,
    id: u64,
    page_bytes: u64,
    count: u32,
}

impl<P: Pmem> Frames<P> {
    /// Makes a pool of `least` empty frames or more in all of `pm`, of pages of `page_bytes`,
    /// with an id of its own. Durable at return.
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

    /// Opens a pool, and says what is in which frame. Stores nothing.
    ///
    /// # Errors
    /// [`FramesError`]: the first thing that is wrong.
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

    /// What is wrong with an entry.
    pub fn damaged(&self, frame: u32, what: String) -> FramesError {
        let at = self.entry(frame);
        FramesError::Entry { frame, at, what }
    }

    /// The memory.
    pub fn pmem(&self) -> &P {
        &self.pm
    }

    /// What tells it from other pools.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// How many frames there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Where a frame is.
    pub fn at(&self, frame: u32) -> u64 {
        first_frame(u64::from(self.count), self.page_bytes) + u64::from(frame) * self.page_bytes
    }

    /// Whether a directory knows of the pool.
    ///
    /// # Errors
    /// [`MediumError`].
    pub fn is_claimed(&self) -> Result<bool, MediumError> {
        Ok(self.pm.load(AT_CLAIM)? != 0)
    }

    /// Says that a directory knows of the pool. Durable at return.
    ///
    /// # Errors
    /// [`MediumError`].
    pub fn claim(&self) -> Result<(), MediumError> {
        self.pm.store_word(AT_CLAIM, 1);
        self.pm.flush(AT_CLAIM, WORD_BYTES);
        // Else a directory could be made with a pool that looks unused, and is formatted again.
        self.pm.fence(Rule::DurableBeforeReturn)
    }

    /// Brings a page from its file into a frame that is free. `buf` has room for it.
    ///
    /// # Errors
    /// [`PageError`]; the frame is free then, unless the pool fails.
    pub fn load(
        &self,
        frame: u32,
        page: PageId,
        from: &impl PageStore,
        buf: &mut [u8],
    ) -> Result<Digest, PageError> {
        from.read_page(page.page, buf)?;
        self.pm.store_nt(self.at(frame), buf);
        // With its entry, the frame counts, and not the file.
        if !hit(Bug::EntryBeforeCopy) {
            self.pm.fence(Rule::InitialiseBeforePoint)?;
        }
        let at = self.entry(frame);
        self.pm.store_word(at, self.encode(frame, page));
        // What is fenced in the frame is lost without the entry, which the fence of another
        // thread does not wait for.
        if !hit(Bug::EntryNotDurable) {
            self.pm.flush(at, WORD_BYTES);
            self.pm.fence(Rule::DurableBeforeUse)?;
        }
        Ok(xxh3_128(buf))
    }

    /// Writes a page to its file, if it may not be there: `known` is the digest of what the
    /// file durably has. Nobody may store to the frame meanwhile, unless its entry stays. To
    /// be relied on after a `sync` of the file. Whether it was written, and its digest.
    ///
    /// # Errors
    /// [`PageError`]; the entry has to stay.
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

    /// Waits until what was written back to a file is durable.
    ///
    /// # Errors
    /// The system's; the entries of its pages have to stay.
    pub fn sync(&self, file: &impl PageStore) -> io::Result<()> {
        // The file before the entry goes: the frame was all there was.
        match hit(Bug::ReleaseBeforeSync) {
            true => Ok(()),
            false => file.sync(),
        }
    }

    /// Clears entries: from here on the files have these pages, or nobody. The frames are free
    /// at return.
    ///
    /// # Errors
    /// [`MediumError`]; nobody may use the frames then.
    pub fn release(&self, frames: &[u32]) -> Result<(), MediumError> {
        for frame in frames {
            let at = self.entry(*frame);
            self.pm.store_word(at, 0);
            self.pm.flush(at, WORD_BYTES);
        }
        // An old entry would take the next page for its own.
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

/// How many frames there are in a pool of so many bytes: `least` at least.
pub(crate) fn check_layout(bytes: u64, page_bytes: u64, least: u64) -> Result<u64, FramesError> {
    let count = count_in(bytes, page_bytes);
    let count = count.filter(|count| (least.max(1)..=FRAMES_MAX).contains(count));
    count.ok_or(FramesError::Layout {
        bytes,
        page_bytes,
        least,
    })
}

/// How many frames fit in so many bytes.
pub(crate) fn count_in(bytes: u64, page_bytes: u64) -> Option<u64> {
    if !page_bytes.is_power_of_two() || page_bytes < LINE_BYTES {
        return None;
    }
    let most = bytes.checked_sub(AT_TABLE)? / (page_bytes + WORD_BYTES);
    let fits = |count: &u64| first_frame(*count, page_bytes) + count * page_bytes <= bytes;
    // Where they start is rounded up, which costs as many as there are in 4,096 bytes at most.
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
