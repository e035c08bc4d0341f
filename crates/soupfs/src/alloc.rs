//! The content-oblivious allocator (SoupFS, section 3.2): lines of 64 bytes and pages of 4 KiB, for
//! any use.
//!
//! The bitmap on the medium is the consistent view. The latest view is that bitmap, with the words
//! that differ in memory. Allocation and the return of memory that no persistent structure used
//! change memory only. [`Alloc::mark`] and [`Alloc::clear`] change the bitmap; a persister calls
//! them.
//!
//! Guarantees:
//! - Memory is handed out only if neither view has it in use.
//! - The search continues in a circle, so that freed memory is not used again at once.

use crate::error::{Fault, Res, corrupt};
use crate::format::{FANOUT, LINES, Line, Page, bitmap_pages, bitmap_word};
use crate::seeded::{Bug, hit};
use crate::shards::Shards;
use crate::space::Space;
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use crate::sync::{Mutex, MutexGuard};
use hashbrown::HashMap;
use medium::Pmem;
use smallvec::SmallVec;

/// Pages that a shard takes at a time.
const PAGE_BATCH: usize = 32;
/// Pages whose lines a shard takes at a time.
const LINE_BATCH: usize = 4;
/// Lines that a shard collects before it gives them back.
const RETURNED: usize = 128;
/// The word of a page all of whose lines are in use.
const ALL: u64 = u64::MAX;

/// Some lines; seldom many.
pub(crate) type Lines = SmallVec<[Line; 4]>;

/// The words of one page of the bitmap.
#[derive(Default)]
struct Chunk {
    /// Words of the latest view that differ from the consistent one, by page.
    latest: HashMap<u64, u64>,
    /// Nothing was free at the last look.
    has_no_page: bool,
    has_no_line: bool,
    /// Its free memory, once somebody has counted it.
    free: Option<Free>,
}

/// Memory that is free.
#[derive(Clone, Copy, Default)]
pub(crate) struct Free {
    /// Pages all of whose lines are free. Contents need these.
    pub pages: u64,
    /// Free lines, also those of such pages.
    pub lines: u64,
}

impl Free {
    /// The free memory of one page, by its word.
    fn of(word: u64) -> Self {
        Self {
            pages: u64::from(word == 0),
            lines: u64::from(word.count_zeros()),
        }
    }

    fn add(&mut self, more: Self) {
        self.pages += more.pages;
        self.lines += more.lines;
    }

    fn subtract(&mut self, less: Self) {
        self.pages -= less.pages;
        self.lines -= less.lines;
    }
}

/// Memory that was taken from the chunks, and is not handed out yet.
#[derive(Default)]
struct Shard {
    pages: Vec<Page>,
    lines: Vec<Line>,
    /// Lines that were given up.
    returned: Vec<Line>,
}

pub(crate) struct Alloc {
    chunks: Box<[Mutex<Chunk>]>,
    shards: Shards<Mutex<Shard>>,
    /// Where the search for pages, and for lines, goes on.
    page_at: AtomicUsize,
    line_at: AtomicUsize,
}

impl Alloc {
    pub(crate) fn new(pages: u64) -> Self {
        let chunks = (0..bitmap_pages(pages)).map(|_| Mutex::default());
        Self {
            chunks: chunks.collect(),
            shards: Shards::default(),
            page_at: AtomicUsize::new(0),
            line_at: AtomicUsize::new(0),
        }
    }

    pub(crate) fn take_page<P: Pmem>(&self, space: &Space<P>) -> Res<Page> {
        let mut shard = self.shards.own().lock();
        if let Some(page) = shard.pages.pop() {
            return Ok(page);
        }
        self.refill_pages(space, &mut shard)?;
        match shard.pages.pop() {
            Some(page) => Ok(page),
            None => self.last_page(space, shard),
        }
    }

    /// Takes a page when the chunks have none: gives back what shards hold, and looks again.
    fn last_page<P: Pmem>(&self, space: &Space<P>, own: MutexGuard<'_, Shard>) -> Res<Page> {
        drop(own);
        self.drain(space)?;
        let mut shard = self.shards.own().lock();
        self.refill_pages(space, &mut shard)?;
        shard.pages.pop().ok_or(Fault::Full)
    }

    /// Takes several pages, or none.
    pub(crate) fn take_pages<P: Pmem>(&self, space: &Space<P>, count: usize) -> Res<Vec<Page>> {
        let mut pages = Vec::new();
        while pages.len() < count {
            match self.take_page(space) {
                Ok(page) => pages.push(page),
                Err(e) => {
                    let mut pages = pages.into_iter();
                    pages.try_for_each(|page| self.abandon_page(space, page))?;
                    return Err(e);
                }
            }
        }
        Ok(pages)
    }

    /// Takes several lines, or none.
    pub(crate) fn take_lines<P: Pmem>(&self, space: &Space<P>, count: usize) -> Res<Lines> {
        let mut lines = Lines::new();
        let enough = self.pop_lines(space, &mut lines, count).and_then(|()| {
            if lines.len() < count {
                self.drain(space)?;
                self.pop_lines(space, &mut lines, count)?;
            }
            match lines.len() < count {
                true => Err(Fault::Full),
                false => Ok(()),
            }
        });
        if let Err(e) = enough {
            self.abandon_lines(space, lines)?;
            return Err(e);
        }
        Ok(lines)
    }

    /// Takes lines until `count` are there, as far as the chunks have any.
    fn pop_lines<P: Pmem>(&self, space: &Space<P>, lines: &mut Lines, count: usize) -> Res<()> {
        let mut shard = self.shards.own().lock();
        while lines.len() < count {
            if shard.lines.is_empty() {
                self.refill_lines(space, &mut shard)?;
            }
            match shard.lines.pop() {
                Some(line) => lines.push(line),
                None => break,
            }
        }
        // The next call stores to the next lines.
        let next = shard.lines.iter().rev().take(count);
        next.for_each(|line| space.prefetch(*line));
        Ok(())
    }

    fn refill_pages<P: Pmem>(&self, space: &Space<P>, shard: &mut Shard) -> Res<()> {
        self.search(&self.page_at, |number, chunk| {
            if chunk.has_no_page {
                return Ok(false);
            }
            for page in pages_of(number, space.pages) {
                if chunk.word(space, page)? == 0 {
                    chunk.set(space, page, 0, ALL)?;
                    shard.pages.push(page);
                    if shard.pages.len() >= PAGE_BATCH {
                        break;
                    }
                }
            }
            chunk.has_no_page = shard.pages.len() < PAGE_BATCH;
            // The lowest is handed out first.
            shard.pages.reverse();
            Ok(!shard.pages.is_empty())
        })
    }

    fn refill_lines<P: Pmem>(&self, space: &Space<P>, shard: &mut Shard) -> Res<()> {
        self.search(&self.line_at, |number, chunk| {
            if chunk.has_no_line {
                return Ok(false);
            }
            // Pages that are partly in use come first, so that whole pages stay.
            let (mut parts, mut whole) = (Vec::new(), Vec::new());
            for page in pages_of(number, space.pages) {
                match chunk.word(space, page)? {
                    ALL => {}
                    0 if whole.len() < LINE_BATCH => whole.push((page, 0)),
                    0 => {}
                    word => parts.push((page, word)),
                }
                if parts.len() == LINE_BATCH {
                    break;
                }
            }
            let taken = if parts.is_empty() { whole } else { parts };
            chunk.has_no_line = taken.is_empty();
            // The lowest is handed out first.
            for (page, word) in taken.into_iter().rev() {
                let free = (0..LINES).rev().filter(|bit| word & 1 << bit == 0);
                let free = free.map(|bit| Line(page.0 * LINES + bit));
                shard.lines.extend(free);
                chunk.set(space, page, word, ALL)?;
            }
            Ok(!shard.lines.is_empty())
        })
    }

    /// Tries the chunks in a circle, until one is enough.
    fn search(
        &self,
        from: &AtomicUsize,
        mut enough: impl FnMut(usize, &mut Chunk) -> Res<bool>,
    ) -> Res<()> {
        let start = from.load(Relaxed);
        for step in 0..self.chunks.len() {
            let number = (start + step) % self.chunks.len();
            if enough(number, &mut self.chunks[number].lock())? {
                from.store(number, Relaxed);
                break;
            }
        }
        Ok(())
    }

    /// Gives back what the shards hold.
    fn drain<P: Pmem>(&self, space: &Space<P>) -> Res<()> {
        for shard in self.shards.all() {
            let shard = std::mem::take(&mut *shard.lock());
            self.return_lines(space, &shard.lines)?;
            self.return_lines(space, &shard.returned)?;
            for page in shard.pages {
                self.abandon_page(space, page)?;
            }
        }
        Ok(())
    }

    fn chunk<P: Pmem>(&self, space: &Space<P>, page: Page) -> Res<MutexGuard<'_, Chunk>> {
        let number = (space.page(page)?.0 / FANOUT) as usize;
        let chunk = self.chunks.get(number);
        Ok(chunk
            .ok_or_else(|| corrupt(format_args!("page {} has no bits", page.0)))?
            .lock())
    }

    /// Gives back a page that no persistent structure has used.
    pub(crate) fn abandon_page<P: Pmem>(&self, space: &Space<P>, page: Page) -> Res<()> {
        let mut chunk = self.chunk(space, page)?;
        let word = chunk.word(space, page)?;
        chunk.set(space, page, word, 0)
    }

    /// Gives back lines that no persistent structure has used.
    pub(crate) fn abandon_lines<P: Pmem>(
        &self,
        space: &Space<P>,
        lines: impl IntoIterator<Item = Line>,
    ) -> Res<()> {
        let mut shard = self.shards.own().lock();
        shard.returned.extend(lines);
        if shard.returned.len() >= RETURNED {
            self.return_lines(space, &shard.returned)?;
            // Its room stays for the next ones.
            shard.returned.clear();
        }
        Ok(())
    }

    fn return_lines<P: Pmem>(&self, space: &Space<P>, lines: &[Line]) -> Res<()> {
        for lines in lines.chunk_by(|a, b| a.0 / LINES == b.0 / LINES) {
            let page = Page(lines[0].0 / LINES);
            let bits = lines
                .iter()
                .fold(0, |bits, line| bits | 1 << (line.0 % LINES));
            let mut chunk = self.chunk(space, page)?;
            let word = chunk.word(space, page)?;
            chunk.set(space, page, word, word & !bits)?;
        }
        Ok(())
    }

    /// Sets bits of a page in the bitmap, and starts the write-back.
    pub(crate) fn mark<P: Pmem>(&self, space: &Space<P>, page: Page, bits: u64) -> Res<()> {
        let mut chunk = self.chunk(space, page)?;
        let latest = chunk.word(space, page)?;
        let word = space.load(bitmap_word(page))?;
        if word & bits != bits {
            if hit(Bug::MarkUnlocked) {
                drop(chunk);
                chunk = self.chunk(space, page)?;
            }
            space.pm.store_word(bitmap_word(page), word | bits);
            chunk.set(space, page, latest, latest | bits)?;
            // Calls do not wait for the flush.
            drop(chunk);
            space.pm.flush(bitmap_word(page), 8);
        }
        Ok(())
    }

    pub(crate) fn mark_line<P: Pmem>(&self, space: &Space<P>, line: Line) -> Res<()> {
        self.mark(space, Page(line.0 / LINES), 1 << (line.0 % LINES))
    }

    pub(crate) fn mark_page<P: Pmem>(&self, space: &Space<P>, page: Page) -> Res<()> {
        self.mark(space, page, ALL)
    }

    /// Clears bits of a page in both views, and starts the write-back.
    pub(crate) fn clear<P: Pmem>(&self, space: &Space<P>, page: Page, bits: u64) -> Res<()> {
        let mut chunk = self.chunk(space, page)?;
        let latest = chunk.word(space, page)?;
        let word = space.load(bitmap_word(page))?;
        let is_changed = word & bits != 0;
        if is_changed {
            space.pm.store_word(bitmap_word(page), word & !bits);
        }
        chunk.set(space, page, latest, latest & !bits)?;
        drop(chunk);
        if is_changed {
            space.pm.flush(bitmap_word(page), 8);
        }
        Ok(())
    }

    pub(crate) fn clear_line<P: Pmem>(&self, space: &Space<P>, line: Line) -> Res<()> {
        self.clear(space, Page(line.0 / LINES), 1 << (line.0 % LINES))
    }

    pub(crate) fn clear_page<P: Pmem>(&self, space: &Space<P>, page: Page) -> Res<()> {
        self.clear(space, page, ALL)
    }

    /// The free memory. The first call reads the whole bitmap.
    pub(crate) fn free<P: Pmem>(&self, space: &Space<P>) -> Res<Free> {
        // A page of which a shard holds lines, or some that were given up, may be free as a whole.
        self.drain(space)?;
        let mut all = Free::default();
        for (number, chunk) in self.chunks.iter().enumerate() {
            let mut chunk = chunk.lock();
            all.add(match chunk.free {
                Some(free) => free,
                None => {
                    let mut count = Free::default();
                    for page in pages_of(number, space.pages) {
                        count.add(Free::of(chunk.word(space, page)?));
                    }
                    *chunk.free.insert(count)
                }
            });
        }
        Ok(all)
    }
}

/// The pages whose words are in a page of the bitmap.
fn pages_of(chunk: usize, pages: u64) -> impl Iterator<Item = Page> {
    let first = chunk as u64 * FANOUT;
    (first..(first + FANOUT).min(pages)).map(Page)
}

impl Chunk {
    /// The word of a page in the latest view.
    fn word<P: Pmem>(&self, space: &Space<P>, page: Page) -> Res<u64> {
        match self.latest.get(&page.0) {
            Some(word) => Ok(*word),
            None => space.load(bitmap_word(page)),
        }
    }

    /// Changes the word of a page in the latest view from `old`.
    fn set<P: Pmem>(&mut self, space: &Space<P>, page: Page, old: u64, word: u64) -> Res<()> {
        if let Some(free) = &mut self.free {
            free.add(Free::of(word));
            free.subtract(Free::of(old));
        }
        if word & old != old {
            (self.has_no_page, self.has_no_line) = (false, false);
        }
        match space.load(bitmap_word(page))? == word {
            true => self.latest.remove(&page.0),
            false => self.latest.insert(page.0, word),
        };
        Ok(())
    }
}

/// Bytes of the image before the first page that can be allocated.
pub(crate) fn reserved_pages(pages: u64) -> u64 {
    1 + bitmap_pages(pages)
}
