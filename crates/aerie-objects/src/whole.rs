//! The free pages and headers of a store. They are known in memory only: an opened store finds them by a walk, so
//! that a crash leaks nothing.
//!
//! With protection, free pages keep their readers, in a pool for each set of readers. A page that gets others is
//! zeros, so that nobody reads the contents of its last use.

use crate::Readers;
use crate::error::{Error, Result};
use crate::id::HEADER_BYTES;
use crate::layout::PAGE;
use crate::pages::Pages;
use crate::protection::{Contents, Guard};
use crate::seeded::{Bug, hit};
use buddy_system_allocator::FrameAllocator;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Most pages that get other readers at once, when a pool is empty.
const REFILL: u64 = 32;

/// Headers in a page of headers.
pub(crate) const HEADERS: usize = (PAGE / HEADER_BYTES) as usize;
const _: () = assert!(HEADERS == u32::BITS as usize);

/// Divides a range into blocks whose start is a multiple of their length, a power of two.
fn blocks(range: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
    let mut start = range.start;
    std::iter::from_fn(move || {
        let left = (range.end - start).checked_ilog2()?;
        let count = 1 << left.min(start.trailing_zeros());
        start += count;
        Some((start - count, count))
    })
}

/// Most pages with free headers that are looked at for one that fits.
const LOOKED_AT: usize = 64;

/// The readers of a page. In the pool of others, it gets those of its next object when it is taken.
fn readers(guard: Option<&dyn Guard>, page: u64) -> Readers {
    let readers = guard.and_then(|guard| guard.readers(page).ok());
    readers.unwrap_or(Readers::NOBODY)
}

/// Free pages, as a buddy allocator keeps them (paper section 4.2.4), and pages of headers.
pub(crate) struct Whole {
    pages: FrameAllocator<48>,
    guard: Option<Arc<dyn Guard>>,
    /// With a guard: free pages that users may read. The others are in `pages`.
    pools: BTreeMap<Readers, BTreeSet<u64>>,
    free_pages: u64,
    /// The used headers of each page that has any, as bits.
    headers: HashMap<u64, u32>,
    /// Pages in `headers` that have a free header.
    open: BTreeSet<u64>,
    /// The generation of the last object.
    generation: u64,
    /// Whether pages that are freed stay unused: how many want that.
    keepers: usize,
    /// Such pages.
    kept: Vec<u64>,
}

impl Whole {
    /// All pages with these numbers are free, but for those that are used or have used headers.
    pub(crate) fn new(
        numbers: Range<u64>,
        used: &Pages,
        headers: HashMap<u64, u32>,
        generation: u64,
        guard: Option<Arc<dyn Guard>>,
    ) -> Self {
        let is_used =
            |number: u64| used.contains(number * PAGE) || headers.contains_key(&(number * PAGE));
        let mut frames = FrameAllocator::new();
        frames.insert(numbers.start as usize..numbers.end as usize);
        let mut free_pages = numbers.end - numbers.start;
        let mut next = numbers.start;
        while let Some(start) = (next..numbers.end).find(|number| is_used(*number)) {
            next = (start..numbers.end)
                .find(|number| !is_used(*number))
                .unwrap_or(numbers.end);
            free_pages -= next - start;
            blocks(start..next).for_each(|(start, count)| {
                let taken = frames.alloc_at(start as usize, count as usize);
                debug_assert!(taken.is_some(), "each page is taken once");
            });
        }
        let mut pools: BTreeMap<Readers, BTreeSet<u64>> = BTreeMap::new();
        for number in numbers.filter(|number| guard.is_some() && !is_used(*number)) {
            let readers = readers(guard.as_deref(), number * PAGE);
            if readers != Readers::NOBODY && frames.alloc_at(number as usize, 1).is_some() {
                pools.entry(readers).or_default().insert(number);
            }
        }
        let is_open = |(page, bits): (&u64, &u32)| (*bits != u32::MAX).then_some(*page);
        let open = headers.iter().filter_map(is_open).collect();
        Self {
            pages: frames,
            guard,
            pools,
            free_pages,
            headers,
            open,
            generation,
            keepers: 0,
            kept: Vec::new(),
        }
    }

    /// Whether pages have readers.
    pub(crate) fn is_protected(&self) -> bool {
        self.guard.is_some()
    }

    /// A free page with these readers, by its number.
    fn pooled(&mut self, readers: Readers) -> Option<u64> {
        match readers == Readers::NOBODY {
            true => self.pages.alloc(1).map(|number| number as u64),
            false => self.pools.get_mut(&readers)?.pop_first(),
        }
    }

    /// Adds a free page with these readers.
    fn put(&mut self, number: u64, readers: Readers) {
        match readers == Readers::NOBODY {
            true => self.pages.dealloc(number as usize, 1),
            false => drop(self.pools.entry(readers).or_default().insert(number)),
        }
    }

    /// The generation of the next object.
    pub(crate) fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    pub(crate) fn free_pages(&self) -> u64 {
        self.free_pages
    }

    /// Takes a page with these readers; its byte offset.
    ///
    /// # Errors
    /// [`Error::Full`], and errors of the protection.
    pub(crate) fn take_page(&mut self, readers: Readers) -> Result<u64> {
        let readers = match self.is_protected() {
            true => readers,
            false => Readers::NOBODY,
        };
        let pooled = self.pooled(readers);
        let number = pooled.map_or_else(|| self.refill(readers), Ok)?;
        let page = number * PAGE;
        match self.must_have(page, readers) {
            Ok(()) => {
                self.free_pages -= 1;
                Ok(page)
            }
            Err(error) => {
                self.put(number, readers);
                Err(error)
            }
        }
    }

    /// Makes sure of the readers of a page, whatever pool it was in.
    fn must_have(&self, page: u64, readers: Readers) -> Result<()> {
        match &self.guard {
            Some(guard) if guard.readers(page)? != readers && !hit(Bug::ReusedAsItIs) => {
                guard.protect(page, 1, readers, Contents::Dropped)
            }
            _ => Ok(()),
        }
    }

    /// Takes a free page of another pool, and moves some more if nobody may read them.
    fn refill(&mut self, readers: Readers) -> Result<u64> {
        let guard = self.guard.clone().ok_or(Error::Full)?;
        let mut counts = (0..=REFILL.ilog2()).rev().map(|log| 1 << log);
        let Some((first, count)) =
            counts.find_map(|count: u64| Some((self.pages.alloc(count as usize)? as u64, count)))
        else {
            // The page gets its readers when it is taken.
            let mut others = self.pools.values_mut();
            return others.find_map(BTreeSet::pop_first).ok_or(Error::Full);
        };
        let moved = match hit(Bug::ReusedAsItIs) {
            true => Ok(()),
            false => guard.protect(first * PAGE, count, readers, Contents::Dropped),
        };
        let of = match moved {
            Ok(()) => readers,
            Err(_) => Readers::NOBODY,
        };
        (first..first + count).for_each(|number| self.put(number, of));
        moved.and_then(|()| self.pooled(readers).ok_or(Error::Full))
    }

    /// Pages that are freed from now on stay unused.
    pub(crate) fn keep_freed(&mut self) {
        self.keepers += 1;
    }

    /// Undoes one [`keep_freed`](Self::keep_freed). The last one makes the pages free.
    pub(crate) fn give_kept(&mut self) {
        self.keepers -= 1;
        if self.keepers == 0 {
            let kept = std::mem::take(&mut self.kept);
            kept.into_iter().for_each(|page| self.give_page(page));
        }
    }

    pub(crate) fn give_page(&mut self, page: u64) {
        if self.keepers > 0 {
            self.kept.push(page);
            return;
        }
        let readers = readers(self.guard.as_deref(), page);
        self.put(page / PAGE, readers);
        self.free_pages += 1;
    }

    /// Takes a free header of a page that has one, and with protection one whose readers `fit`.
    pub(crate) fn take_header(&mut self, fit: impl Fn(Readers) -> bool) -> Option<u64> {
        let guard = self.guard.as_deref();
        let fits = |page: &&u64| guard.is_none() || fit(readers(guard, **page));
        let page = *self.open.iter().take(LOOKED_AT).find(fits)?;
        self.take_header_in(page)
    }

    /// Takes a free header of this page.
    pub(crate) fn take_header_in(&mut self, page: u64) -> Option<u64> {
        let bits = self.headers.get_mut(&page)?;
        let slot = bits.trailing_ones();
        if slot == u32::BITS {
            return None;
        }
        *bits |= 1 << slot;
        if *bits == u32::MAX {
            self.open.remove(&page);
        }
        Some(page + u64::from(slot) * HEADER_BYTES)
    }

    /// Makes a page one of headers, which are all free.
    pub(crate) fn add_headers(&mut self, page: u64) {
        self.headers.insert(page, 0);
        self.open.insert(page);
    }

    /// Whether a used header begins at this byte.
    pub(crate) fn has_header(&self, header: u64) -> bool {
        let bits = self.headers.get(&(header / PAGE * PAGE));
        bits.is_some_and(|bits| bits & 1 << (header % PAGE / HEADER_BYTES) != 0)
    }

    /// Frees a header. Returns its page if no other header there is used: the page belongs to the caller.
    pub(crate) fn give_header(&mut self, header: u64) -> Option<u64> {
        let page = header / PAGE * PAGE;
        let bits = self.headers.get_mut(&page)?;
        if *bits == u32::MAX {
            self.open.insert(page);
        }
        *bits &= !(1 << (header % PAGE / HEADER_BYTES));
        if *bits != 0 && !hit(Bug::HeadersTakenBack) {
            return None;
        }
        self.headers.remove(&page);
        self.open.remove(&page);
        Some(page)
    }

    /// Frees a header, and its page if no other header there is used.
    pub(crate) fn give_header_and_page(&mut self, header: u64) {
        if let Some(page) = self.give_header(header) {
            self.give_page(page);
        }
    }
}
