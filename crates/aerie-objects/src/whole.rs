//! The free pages and headers of a store. They are known in memory only: an opened store finds them by a walk, so
//! that a crash leaks nothing.

use crate::id::HEADER_BYTES;
use crate::layout::PAGE;
use crate::pages::Pages;
use buddy_system_allocator::FrameAllocator;
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::ops::Range;

/// Headers in a page of headers.
const HEADERS: u64 = PAGE / HEADER_BYTES;
const _: () = assert!(HEADERS == u32::BITS as u64);

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

/// Free pages, as a buddy allocator keeps them (paper section 4.2.4), and pages of headers.
pub(crate) struct Whole {
    pages: FrameAllocator<48>,
    free_pages: u64,
    /// The used headers of each page that has any, as bits.
    headers: HashMap<u64, u32>,
    /// Pages in `headers` that have a free header.
    open: BTreeSet<u64>,
    /// The generation of the last object.
    generation: u64,
}

impl Whole {
    /// All pages with these numbers are free, but for those that are used or have used headers.
    pub(crate) fn new(
        numbers: Range<u64>,
        used: &Pages,
        headers: HashMap<u64, u32>,
        generation: u64,
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
        let is_open = |(page, bits): (&u64, &u32)| (*bits != u32::MAX).then_some(*page);
        let open = headers.iter().filter_map(is_open).collect();
        Self {
            pages: frames,
            free_pages,
            headers,
            open,
            generation,
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

    /// Takes a page; its byte offset.
    pub(crate) fn take_page(&mut self) -> Option<u64> {
        let page = self.pages.alloc(1)?;
        self.free_pages -= 1;
        Some(page as u64 * PAGE)
    }

    pub(crate) fn give_page(&mut self, page: u64) {
        self.pages.dealloc((page / PAGE) as usize, 1);
        self.free_pages += 1;
    }

    /// Takes a free header of a page that has one.
    pub(crate) fn take_header(&mut self) -> Option<u64> {
        let page = *self.open.first()?;
        let bits = self.headers.get_mut(&page)?;
        let slot = bits.trailing_ones();
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

    /// Takes back a page of headers of which none is used.
    pub(crate) fn remove_headers(&mut self, page: u64) {
        debug_assert_eq!(self.headers.get(&page), Some(&0));
        self.headers.remove(&page);
        self.open.remove(&page);
    }

    /// Whether a used header begins at this byte.
    pub(crate) fn has_header(&self, header: u64) -> bool {
        let bits = self.headers.get(&(header / PAGE * PAGE));
        bits.is_some_and(|bits| bits & 1 << (header % PAGE / HEADER_BYTES) != 0)
    }

    /// Frees a header.
    pub(crate) fn give_header(&mut self, header: u64) {
        let page = header / PAGE * PAGE;
        if let Some(bits) = self.headers.get_mut(&page) {
            if *bits == u32::MAX {
                self.open.insert(page);
            }
            *bits &= !(1 << (header % PAGE / HEADER_BYTES));
        }
    }

    /// Frees a header, and its page if no other header there is used.
    pub(crate) fn give_header_and_page(&mut self, header: u64) {
        let page = header / PAGE * PAGE;
        self.give_header(header);
        if self.headers.get(&page) == Some(&0) {
            self.remove_headers(page);
            self.give_page(page);
        }
    }
}
