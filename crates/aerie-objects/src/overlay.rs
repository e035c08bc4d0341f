//! Private changes of a shared memory, by lines.
//!
//! - A word that was stored here is read from here, all others from the shared memory. Lines without
//!   private words follow the shared memory: headers of other objects may be in the same page.
//! - The header of a deleted object is a *grave*: it is read as zeros while the shared memory has that object, and
//!   follows the shared memory afterwards.
//! - After the shared memory there are private pages, which only this process sees.
//! - A read of a page without private lines costs three loads more than one of the shared memory.
//! - One thread at a time stores or clears. Others may read meanwhile: [`Overlay::stable`] returns what
//!   an object was between two transactions.

use crate::error::Result;
use crate::layout::PAGE;
use crate::seeded::{Bug, hit};
use crate::{HEADER_BYTES, ObjectId};
use medium::{LINE_BYTES, MediumError, Pmem, Rule, WORD_BYTES};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use vfs::sync::Mutex;

/// Private pages after the shared memory.
const PRIVATE_PAGES: u64 = 1 << 20;
/// Most pages with private lines at a time.
const SLOTS: usize = 1 << 20;
/// Entries in a part of the table of pages. A process begins with the list of parts, so that there are few of them.
const PART: usize = 4096;
/// Entries in a part of the table of slots.
const SLOT_PART: usize = 1024;
const WORDS: usize = (PAGE / WORD_BYTES) as usize;
/// Words of a line.
const LINE: usize = (LINE_BYTES / WORD_BYTES) as usize;
const _: () = assert!(WORDS / LINE == u64::BITS as usize);
/// The lines of the first header of a page.
const HEADER_LINES: u64 = (1 << (HEADER_BYTES / LINE_BYTES)) - 1;

/// The page of a header, and its lines there.
pub(crate) fn lines_of(header: u64) -> (u64, u64) {
    let word = (header % PAGE / WORD_BYTES) as usize;
    (header / PAGE * PAGE, header_lines(word))
}

/// The lines of the header that has this word.
fn header_lines(word: usize) -> u64 {
    let header = word as u64 * WORD_BYTES / HEADER_BYTES;
    HEADER_LINES << (header * HEADER_BYTES / LINE_BYTES)
}

/// The private lines of a page.
struct Slot {
    /// The lines that are private.
    lines: AtomicU64,
    /// Those of them that are graves. The first word of each has the first word of the header before. Bits of lines that
    /// are not private mean nothing: a reader may have seen that a line was.
    graves: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Slot {
    fn new() -> Self {
        Self {
            lines: AtomicU64::new(0),
            graves: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    #[inline]
    fn has(&self, word: usize) -> bool {
        self.lines.load(Ordering::Acquire) & 1 << (word / LINE) != 0
    }

    #[inline]
    fn is_grave(&self, word: usize) -> bool {
        self.graves.load(Ordering::Relaxed) & 1 << (word / LINE) != 0
    }

    /// The private lines, but for graves.
    fn kept(&self) -> u64 {
        self.lines.load(Ordering::Acquire) & !self.graves.load(Ordering::Relaxed)
    }

    fn drop_lines(&self, lines: u64) {
        self.lines.fetch_and(!lines, Ordering::Relaxed);
    }

    fn bury(&self, header: usize, was: u64) {
        self.words[header].store(was, Ordering::Relaxed);
        self.graves
            .fetch_or(header_lines(header), Ordering::Relaxed);
        self.lines.fetch_or(header_lines(header), Ordering::Relaxed);
    }
}

/// Values in parts that exist if one of their values is used.
type Parts<T> = Box<[OnceLock<Box<[T]>>]>;

type Loaded<T> = std::result::Result<T, MediumError>;

/// The slots that are used.
#[derive(Default)]
struct Used {
    /// The page of each slot that was used since the last clear.
    pages: Vec<u64>,
    /// Those of them that are free again, and those that will be after the next time that lines are dropped: a reader may
    /// still look at one.
    free: Vec<u32>,
    resting: Vec<u32>,
    /// Pages that may have no private line any more.
    dropped: Vec<u64>,
}

/// A shared memory with private changes.
pub struct Overlay<P> {
    base: P,
    /// Byte offset of the first private page.
    private: u64,
    /// For each page, 1 more than the number of its slot, or 0.
    table: Parts<AtomicU32>,
    slots: Parts<OnceLock<Box<Slot>>>,
    used: Mutex<Used>,
    /// Number of times that private changes were dropped, twice; odd meanwhile.
    clears: AtomicU64,
    failed: OnceLock<MediumError>,
    /// 1 more than the offset of a line that could not be read for a store, since the last
    /// [`clear`](Self::clear); or 0.
    denied: AtomicU64,
}

fn unset<T>(count: u64) -> Box<[OnceLock<T>]> {
    (0..count).map(|_| OnceLock::new()).collect()
}

impl<P: Pmem> Overlay<P> {
    /// No changes of `base`.
    pub fn new(base: P) -> Self {
        let private = base.len().next_multiple_of(PAGE);
        let pages = private / PAGE + PRIVATE_PAGES;
        Self {
            base,
            private,
            table: unset(pages.div_ceil(PART as u64)),
            slots: unset((SLOTS / SLOT_PART) as u64),
            used: Mutex::default(),
            clears: AtomicU64::new(0),
            failed: OnceLock::new(),
            denied: AtomicU64::new(0),
        }
    }

    /// The shared memory.
    pub fn base(&self) -> &P {
        &self.base
    }

    /// The private pages, by their numbers.
    pub fn private_pages(&self) -> Range<u64> {
        self.private / PAGE..self.private / PAGE + PRIVATE_PAGES
    }

    /// Whether a part of the page with this byte offset is private.
    pub fn is_private(&self, page: u64) -> bool {
        page >= self.private || self.slot(page).is_some_and(|slot| slot.kept() != 0)
    }

    /// Whether the word at this offset is in a private line.
    pub fn is_private_word(&self, off: u64) -> bool {
        let word = (off % PAGE / WORD_BYTES) as usize;
        off >= self.private
            || self
                .slot(off / PAGE * PAGE)
                .is_some_and(|slot| slot.has(word) && !slot.is_grave(word))
    }

    /// Whether a header is a grave.
    pub(crate) fn is_grave(&self, header: u64) -> bool {
        let word = (header % PAGE / WORD_BYTES) as usize;
        let slot = self.slot(header / PAGE * PAGE);
        slot.is_some_and(|slot| slot.has(word) && slot.is_grave(word))
    }

    /// Bytes of memory that private changes take.
    pub fn used_bytes(&self) -> u64 {
        let used = self.used.lock();
        (used.pages.len() - used.free.len() - used.resting.len()) as u64 * PAGE
    }

    /// Drops all private changes.
    pub fn clear(&self) {
        let mut used = self.used.lock();
        self.clears.fetch_add(1, Ordering::Relaxed);
        // A reader that sees a change from here on also sees the odd number.
        fence(Ordering::Release);
        for (number, page) in used.pages.drain(..).enumerate() {
            if let Some(entry) = self.entry(page) {
                entry.store(0, Ordering::Relaxed);
            }
            if let Some(slot) = self.slot_of(number as u32) {
                slot.drop_lines(u64::MAX);
            }
        }
        used.free.clear();
        used.resting.clear();
        used.dropped.clear();
        self.denied.store(0, Ordering::Relaxed);
        self.clears.fetch_add(1, Ordering::Release);
    }

    /// Drops private lines, given as bits for each page. The shared memory has the same objects.
    pub(crate) fn drop_lines(&self, lines: impl IntoIterator<Item = (u64, u64)>) {
        let used = &mut *self.used.lock();
        self.clears.fetch_add(1, Ordering::Relaxed);
        // As in `clear`.
        fence(Ordering::Release);
        used.free.append(&mut used.resting);
        for (page, lines) in lines {
            if let Some(slot) = self.slot(page) {
                slot.drop_lines(lines);
                used.dropped.push(page);
            }
        }
        for page in used.dropped.drain(..) {
            let Some((entry, number)) = self.entry(page).and_then(|entry| {
                let number = entry.load(Ordering::Relaxed).checked_sub(1)?;
                Some((entry, number))
            }) else {
                continue;
            };
            let is_empty = |slot: &Slot| slot.lines.load(Ordering::Relaxed) == 0;
            if self.slot_of(number).is_some_and(is_empty) {
                entry.store(0, Ordering::Relaxed);
                used.resting.push(number);
            }
        }
        self.clears.fetch_add(1, Ordering::Release);
    }

    /// Drops the private lines of freed pages, and makes graves of freed headers, given with their first words before.
    pub(crate) fn drop_freed(&self, pages: &[u64], headers: &[(u64, u64)]) {
        if pages.is_empty() && headers.is_empty() {
            return;
        }
        let used = &mut *self.used.lock();
        self.clears.fetch_add(1, Ordering::Relaxed);
        // As in `clear`.
        fence(Ordering::Release);
        for page in pages {
            if let Some(slot) = self.slot(*page) {
                slot.drop_lines(u64::MAX);
                used.dropped.push(*page);
            }
        }
        for (header, was) in headers {
            let word = (header % PAGE / WORD_BYTES) as usize;
            match self.slot(header / PAGE * PAGE) {
                Some(slot) if hit(Bug::NotBuried) => slot.drop_lines(header_lines(word)),
                Some(slot) => slot.bury(word, *was),
                None => {}
            }
        }
        self.clears.fetch_add(1, Ordering::Release);
    }

    /// Keeps the error of a store for the next fence. Changes that were dropped did not need what was denied.
    #[cold]
    fn fail(&self, error: MediumError) {
        match error {
            MediumError::Denied { off } => self.denied.store(off + 1, Ordering::Relaxed),
            error => drop(self.failed.set(error).is_ok()),
        }
    }

    /// Reads an object beside a thread that stores or clears: `read` runs again until neither changed
    /// the object during a run.
    ///
    /// # Errors
    /// As [`crate::stable`].
    pub fn stable<T>(&self, object: ObjectId, read: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            let before = self.clears.load(Ordering::Acquire);
            let result = crate::stable(self, object, &read);
            fence(Ordering::Acquire);
            let is_same = self.clears.load(Ordering::Relaxed) == before;
            if is_same && before.is_multiple_of(2) {
                return result;
            }
            std::hint::spin_loop();
        }
    }

    #[inline]
    fn entry(&self, page: u64) -> Option<&AtomicU32> {
        let number = (page / PAGE) as usize;
        self.table.get(number / PART)?.get()?.get(number % PART)
    }

    #[inline]
    fn slot_of(&self, number: u32) -> Option<&Slot> {
        let number = number as usize;
        let part = self.slots.get(number / SLOT_PART)?.get()?;
        part.get(number % SLOT_PART)?.get().map(|slot| &**slot)
    }

    /// The private lines of a page.
    #[inline]
    fn slot(&self, page: u64) -> Option<&Slot> {
        match self.entry(page)?.load(Ordering::Acquire) {
            0 => None,
            number => self.slot_of(number - 1),
        }
    }

    /// The slot of a page, which gets one.
    fn make_slot(&self, page: u64) -> Option<&Slot> {
        if let Some(slot) = self.slot(page) {
            return Some(slot);
        }
        let number = (page / PAGE) as usize;
        let new_part = || (0..PART).map(|_| AtomicU32::new(0)).collect();
        let entry = &self.table.get(number / PART)?.get_or_init(new_part)[number % PART];
        let mut used = self.used.lock();
        if let Some(free) = used.free.pop() {
            used.pages[free as usize] = page;
            let slot = self.slot_of(free)?;
            slot.graves.store(0, Ordering::Relaxed);
            entry.store(free + 1, Ordering::Release);
            return Some(slot);
        }
        let next = used.pages.len();
        let part = self.slots.get(next / SLOT_PART)?;
        let part = part.get_or_init(|| unset(SLOT_PART as u64));
        let slot = part[next % SLOT_PART].get_or_init(|| Box::new(Slot::new()));
        slot.graves.store(0, Ordering::Relaxed);
        used.pages.push(page);
        entry.store(next as u32 + 1, Ordering::Release);
        Some(slot)
    }

    /// Words of the shared memory, or of a private page that is new.
    #[inline]
    fn base_words(&self, off: u64, words: &mut [u64]) -> Loaded<()> {
        match off < self.private {
            true => self.base.load_words(off, words)?,
            false => words.fill(0),
        }
        Ok(())
    }

    /// Loads a word of a grave.
    #[cold]
    fn load_grave(&self, slot: &Slot, off: u64) -> Loaded<u64> {
        let header = off / HEADER_BYTES * HEADER_BYTES;
        let was = slot.words[(header % PAGE / WORD_BYTES) as usize].load(Ordering::Relaxed);
        let found = self.base.load(header)?;
        match found == was {
            true => Ok(0),
            // The first word may change meanwhile.
            false if off == header => Ok(found),
            false => self.base.load(off),
        }
    }

    /// Loads words of a page, each line as it is.
    fn load_lines(&self, slot: &Slot, off: u64, words: &mut [u64]) -> Loaded<()> {
        let lines = slot.lines.load(Ordering::Acquire);
        let mut at = off;
        let mut rest = words;
        while !rest.is_empty() {
            let word = (at % PAGE / WORD_BYTES) as usize;
            let (part, more) = rest.split_at_mut(rest.len().min(LINE - word % LINE));
            match lines & 1 << (word / LINE) {
                0 => self.base_words(at, part)?,
                _ if slot.is_grave(word) => {
                    for (n, to) in (0..).zip(&mut *part) {
                        *to = self.load_grave(slot, at + n * WORD_BYTES)?;
                    }
                }
                _ => {
                    let private = &slot.words[word..word + part.len()];
                    let pairs = part.iter_mut().zip(private);
                    pairs.for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
                }
            }
            at += part.len() as u64 * WORD_BYTES;
            rest = more;
        }
        Ok(())
    }

    /// Stores a word. Its line is private from here on.
    fn put(&self, off: u64, change: impl FnOnce(u64) -> u64) -> Loaded<()> {
        let page = off / PAGE * PAGE;
        let out_of_range = MediumError::OutOfRange {
            off,
            len: WORD_BYTES,
        };
        let slot = self.make_slot(page).ok_or(out_of_range)?;
        let word = (off % PAGE / WORD_BYTES) as usize;
        if slot.has(word) && slot.is_grave(word) {
            slot.drop_lines(header_lines(word));
        }
        if !slot.has(word) {
            let first = word / LINE * LINE;
            let mut line = [0; LINE];
            self.base_words(page + first as u64 * WORD_BYTES, &mut line)?;
            for (to, from) in slot.words[first..].iter().zip(line) {
                to.store(from, Ordering::Relaxed);
            }
            slot.graves
                .fetch_and(!(1 << (word / LINE)), Ordering::Relaxed);
            slot.lines.fetch_or(1 << (word / LINE), Ordering::Release);
        }
        let word = &slot.words[word];
        word.store(change(word.load(Ordering::Relaxed)), Ordering::Relaxed);
        Ok(())
    }

    /// Stores the bytes of each word that the range touches.
    fn put_bytes(&self, off: u64, bytes: &[u8]) -> Loaded<()> {
        let mut rest = bytes;
        let mut at = off;
        while !rest.is_empty() {
            let skip = (at % WORD_BYTES) as usize;
            let (part, more) = rest.split_at(rest.len().min(WORD_BYTES as usize - skip));
            self.put(at - skip as u64, |old| {
                let mut word = old.to_le_bytes();
                word[skip..skip + part.len()].copy_from_slice(part);
                u64::from_le_bytes(word)
            })?;
            at += part.len() as u64;
            rest = more;
        }
        Ok(())
    }

    /// Reads a part of a page. Nothing reads headers by bytes.
    fn read_part(&self, off: u64, buf: &mut [u8]) -> Loaded<()> {
        match off < self.private {
            true => self.base.read(off, buf)?,
            false => buf.fill(0),
        }
        let Some(slot) = self.slot(off / PAGE * PAGE) else {
            return Ok(());
        };
        let lines = slot.kept();
        let mut done = 0;
        while done < buf.len() && lines != 0 {
            let at = (off % PAGE) as usize + done;
            let (word, skip) = (at / WORD_BYTES as usize, at % WORD_BYTES as usize);
            let count = (buf.len() - done).min(WORD_BYTES as usize - skip);
            if lines & 1 << (word / LINE) != 0 {
                let bytes = slot.words[word].load(Ordering::Relaxed).to_le_bytes();
                buf[done..done + count].copy_from_slice(&bytes[skip..skip + count]);
            }
            done += count;
        }
        Ok(())
    }
}

impl<P: Pmem> Pmem for Overlay<P> {
    fn len(&self) -> u64 {
        self.private + PRIVATE_PAGES * PAGE
    }

    #[inline]
    fn load(&self, off: u64) -> Loaded<u64> {
        let word = (off % PAGE / WORD_BYTES) as usize;
        match self.slot(off / PAGE * PAGE) {
            Some(slot) if off.is_multiple_of(WORD_BYTES) && slot.has(word) => {
                match slot.is_grave(word) {
                    false => Ok(slot.words[word].load(Ordering::Relaxed)),
                    true => self.load_grave(slot, off),
                }
            }
            _ if off < self.private || !off.is_multiple_of(WORD_BYTES) || off >= self.len() => {
                self.base.load(off)
            }
            _ => Ok(0),
        }
    }

    #[inline]
    fn load_words(&self, off: u64, words: &mut [u64]) -> Loaded<()> {
        let len = size_of_val(words) as u64;
        let is_inside = off.checked_add(len).is_some_and(|end| end <= self.len());
        if !is_inside || !off.is_multiple_of(WORD_BYTES) {
            return Err(MediumError::OutOfRange { off, len });
        }
        let mut rest = words;
        let mut at = off;
        while !rest.is_empty() {
            let left = ((PAGE - at % PAGE) / WORD_BYTES) as usize;
            let (part, more) = rest.split_at_mut(rest.len().min(left));
            match self.slot(at / PAGE * PAGE) {
                Some(slot) => self.load_lines(slot, at, part)?,
                None => self.base_words(at, part)?,
            }
            at += part.len() as u64 * WORD_BYTES;
            rest = more;
        }
        Ok(())
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Loaded<()> {
        let len = buf.len() as u64;
        if off.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(MediumError::OutOfRange { off, len });
        }
        let mut rest = buf;
        let mut at = off;
        while !rest.is_empty() {
            let count = rest.len().min((PAGE - at % PAGE) as usize);
            let (part, more) = rest.split_at_mut(count);
            self.read_part(at, part)?;
            at += count as u64;
            rest = more;
        }
        Ok(())
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        if let Err(error) = self.put_bytes(off, bytes) {
            self.fail(error);
        }
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        // A new private page has zeros.
        if off < self.private
            || self.slot(off / PAGE * PAGE).is_some()
            || bytes != [0; PAGE as usize]
        {
            self.store(off, bytes);
        }
    }

    /// Nothing here is durable.
    fn flush(&self, _off: u64, _len: u64) {}

    fn fence(&self, _: Rule) -> Loaded<()> {
        match self.denied.load(Ordering::Relaxed) {
            0 => self.failed.get().map_or(Ok(()), |error| Err(*error)),
            off => Err(MediumError::Denied { off: off - 1 }),
        }
    }

    fn store_word(&self, off: u64, value: u64) {
        let stored = match off.is_multiple_of(WORD_BYTES) {
            true => self.put(off, |_| value),
            false => self.put_bytes(off, &value.to_le_bytes()),
        };
        if let Err(error) = stored {
            self.fail(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use medium::MemoryPmem;
    use medium::layer::PmemLayer;

    /// A memory of 1 TiB, of which nothing is read.
    struct Large(MemoryPmem);

    impl PmemLayer for Large {
        type Below = MemoryPmem;

        fn below(&self) -> &MemoryPmem {
            &self.0
        }

        fn len(&self) -> u64 {
            1 << 40
        }
    }

    #[test]
    fn words_that_are_loaded_together_are_those_of_single_loads() {
        let mut rng = fastrand::Rng::with_seed(1);
        let base = MemoryPmem::new(4 * PAGE);
        (0..4 * WORDS as u64).for_each(|n| base.store_word(n * WORD_BYTES, n));
        let overlay = Overlay::new(base);
        let private = overlay.private_pages().start * PAGE;
        for _ in 0..2_000 {
            let page = [PAGE, 2 * PAGE, private, private + PAGE][rng.usize(..4)];
            match rng.u32(..50) {
                0 => overlay.clear(),
                1..10 => overlay.store_word(page + rng.u64(..512) * WORD_BYTES, rng.u64(..)),
                _ => {
                    let off = page + rng.u64(..512) * WORD_BYTES;
                    let mut words = vec![1; rng.usize(..40)];
                    overlay.load_words(off, &mut words).unwrap();
                    for (n, word) in (0..).zip(words) {
                        assert_eq!(overlay.load(off + n * WORD_BYTES), Ok(word));
                    }
                }
            }
        }
        let end = overlay.len();
        for off in [end - 8, end, 4, private + 4] {
            assert!(overlay.load_words(off, &mut [0; 2]).is_err(), "{off}");
        }
    }

    /// Each process under `selvedge run` begins with an overlay.
    #[test]
    fn an_overlay_of_a_large_memory_begins_small() {
        let overlay = Overlay::new(Large(MemoryPmem::new(PAGE)));
        let bytes = size_of_val(&*overlay.table) + size_of_val(&*overlay.slots);
        assert!(bytes < 2 << 20, "{bytes} bytes");
    }
}
