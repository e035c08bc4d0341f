//! Free pages and headers, of which a transaction takes.

use crate::error::{Error, Result};
use crate::layout::PAGE;
use crate::reserve::{NewObject, Reserve};
use crate::whole::{HEADERS, Whole};
use crate::{Kind, ObjectId, Readers};
use hashbrown::{HashMap, HashSet};
use std::ops::Range;

/// Free pages and headers.
pub(crate) enum Space {
    /// All of a store.
    Whole(Box<Whole>),
    /// Those of a speculation.
    Part(Box<Part>),
}

/// The part of a speculation: headers and pages of a reserve, and pages that no other process sees. Only
/// the latter can be used again after they were freed.
pub(crate) struct Part {
    /// Headers with the generations of their objects.
    headers: Vec<(u64, u64)>,
    pages: Vec<u64>,
    /// Private pages that were not used yet, by their numbers.
    unused: Range<u64>,
    /// Private pages that were freed.
    freed: Vec<u64>,
    /// All private pages.
    private: Range<u64>,
    /// Number of private pages that were taken, also of those that were freed again.
    taken_private: usize,
    /// Headers and pages of the reserve that were taken, the last one last.
    taken_headers: Vec<(u64, u64)>,
    taken_pages: Vec<u64>,
    /// The objects that were changed since the owner was given changes, and those of the changes that it is running, by
    /// their headers: a new object may be of another kind than the one that was deleted there.
    changed: HashMap<u64, ObjectId>,
    sent_changed: HashMap<u64, ObjectId>,
    /// Shared memory that the last transaction has freed.
    freed_shared: Freed,
    /// Numbers of pages and of headers of the reserve that the changes have taken which the owner is running.
    sent: (usize, usize),
}

/// Shared memory that a speculation has freed. It belongs to the owner.
#[derive(Default)]
pub(crate) struct Freed {
    pub(crate) pages: Vec<u64>,
    /// Headers, with their first words before.
    pub(crate) headers: Vec<(u64, u64)>,
}

impl Part {
    pub(crate) fn new(reserve: &Reserve, private: Range<u64>) -> Self {
        let mut part = Self {
            headers: reserve.headers.iter().map(|(h, g)| (*h, *g)).collect(),
            pages: reserve.pages.iter().copied().collect(),
            unused: private.clone(),
            private,
            freed: Vec::new(),
            taken_private: 0,
            taken_headers: Vec::new(),
            taken_pages: Vec::new(),
            changed: HashMap::new(),
            sent_changed: HashMap::new(),
            freed_shared: Freed::default(),
            sent: (0, 0),
        };
        // New objects that are made together are near each other.
        part.headers.sort_unstable_by(|a, b| b.cmp(a));
        part.pages.sort_unstable_by(|a, b| b.cmp(a));
        part
    }

    /// Gives back what was taken and is still in the reserve.
    pub(crate) fn restart(&mut self, reserve: &Reserve) {
        let (headers, pages) = (self.taken_headers.drain(..), self.taken_pages.drain(..));
        let left = headers.filter(|(header, _)| reserve.headers.contains_key(header));
        self.headers.extend(left);
        self.pages
            .extend(pages.filter(|page| reserve.pages.contains(page)));
        self.freed.clear();
        self.taken_private = 0;
        self.unused = self.private.clone();
        self.changed.clear();
        self.sent_changed.clear();
        self.freed_shared = Freed::default();
        self.sent = (0, 0);
    }

    /// Notes that the owner is given all changes up to now. It has nothing of those before to run. Returns the numbers
    /// of pages and of headers of the reserve that they have taken.
    pub(crate) fn send(&mut self) -> (usize, usize) {
        self.taken_private = 0;
        self.sent_changed = std::mem::take(&mut self.changed);
        self.sent = (self.taken_pages.len(), self.taken_headers.len());
        self.sent
    }

    /// Notes that the owner has run what was sent, but for changes that had taken the pages `left`. Returns the objects
    /// that were not changed since.
    pub(crate) fn receive(&mut self, left: &HashSet<u64>) -> Vec<ObjectId> {
        let (pages, headers) = std::mem::take(&mut self.sent);
        self.taken_headers.drain(..headers);
        let pages = self.taken_pages.drain(..pages);
        let left: Vec<u64> = pages.filter(|page| left.contains(page)).collect();
        self.taken_pages.splice(..0, left);
        let changed = &self.changed;
        let sent = self.sent_changed.drain();
        let left = sent.filter(|(header, _)| !changed.contains_key(header));
        left.map(|(_, object)| object).collect()
    }

    /// The objects that were changed since the owner was given changes.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &ObjectId> {
        self.changed.values()
    }

    /// Frees a page if it is private.
    pub(crate) fn free_private(&mut self, page: u64) {
        if page / PAGE >= self.private.start {
            self.freed.push(page);
        }
    }

    /// Takes that many pages of the reserve, without a note of it, or none if the changes need them.
    pub(crate) fn take_apart(&mut self, pages: usize) -> Option<Vec<u64>> {
        let left = self.pages.len().checked_sub(pages)?;
        if left < self.taken_private {
            return None;
        }
        let mut apart = self.pages.split_off(left);
        // In the order in which others are taken.
        apart.reverse();
        Some(apart)
    }

    pub(crate) fn put_back(&mut self, apart: Vec<u64>) {
        self.pages.extend(apart.into_iter().rev());
    }

    /// Notes that pages of the reserve were taken.
    pub(crate) fn used_apart(&mut self, apart: &[u64]) {
        self.taken_pages.extend(apart);
    }

    pub(crate) fn take_freed(&mut self) -> Freed {
        std::mem::take(&mut self.freed_shared)
    }
}

impl Space {
    /// Takes a page of no contents; its byte offset.
    ///
    /// # Errors
    /// [`Error::Full`], and errors of the protection.
    pub(crate) fn take_page(&mut self, readers: Readers) -> Result<u64> {
        match self {
            Self::Whole(whole) => whole.take_page(readers),
            Self::Part(part) => {
                let new = || part.unused.next().map(|number| number * PAGE);
                let page = part.freed.pop().or_else(new).ok_or(Error::Full)?;
                part.taken_private += 1;
                Ok(page)
            }
        }
    }

    /// Undoes [`take_page`](Self::take_page).
    pub(crate) fn untake_page(&mut self, page: u64) {
        if let Self::Part(part) = self {
            part.taken_private -= 1;
        }
        self.give_page(page);
    }

    pub(crate) fn give_page(&mut self, page: u64) {
        match self {
            Self::Whole(whole) => whole.give_page(page),
            Self::Part(part) if page / PAGE >= part.private.start => part.freed.push(page),
            Self::Part(part) => part.freed_shared.pages.push(page),
        }
    }

    /// Takes a page of a reserve.
    pub(crate) fn take_reserved(&mut self) -> Option<u64> {
        match self {
            Self::Whole(_) => None,
            Self::Part(part) => {
                let page = part.pages.pop()?;
                part.taken_pages.push(page);
                Some(page)
            }
        }
    }

    /// Gives back the page of a reserve that was taken last.
    pub(crate) fn give_reserved(&mut self, page: u64) {
        if let Self::Part(part) = self {
            part.taken_pages.pop();
            part.pages.push(page);
        }
    }

    /// Takes a free header for an object of this kind, in a page with these readers; `None` if one needs a new
    /// page.
    ///
    /// # Errors
    /// [`Error::Full`] without a free header, or a page to make some.
    pub(crate) fn take_header(
        &mut self,
        kind: Kind,
        readers: Readers,
    ) -> Result<Option<NewObject>> {
        let new = |(header, generation)| NewObject {
            id: ObjectId::new(kind, header),
            generation,
        };
        match self {
            Self::Whole(whole) => Ok(whole
                .take_header(|of| of == readers)
                .map(|header| new((header, whole.next_generation())))),
            Self::Part(part) => {
                let taken = part.headers.pop().ok_or(Error::Full)?;
                part.taken_headers.push(taken);
                Ok(Some(new(taken)))
            }
        }
    }

    /// Undoes the last [`take_header`](Self::take_header). Returns the page of the header if no other header there
    /// is used: the page belongs to the caller.
    pub(crate) fn give_new(&mut self, NewObject { id, generation }: NewObject) -> Option<u64> {
        match self {
            Self::Whole(whole) => whole.give_header(id.header()),
            Self::Part(part) => {
                part.taken_headers.pop();
                part.headers.push((id.header(), generation));
                None
            }
        }
    }

    /// Makes a page of zeros one of headers, of which one is taken for an object of this kind.
    pub(crate) fn add_headers(&mut self, page: u64, kind: Kind) -> Option<NewObject> {
        let Self::Whole(whole) = self else {
            return None;
        };
        whole.add_headers(page);
        Some(NewObject {
            id: ObjectId::new(kind, whole.take_header_in(page)?),
            generation: whole.next_generation(),
        })
    }

    /// Frees the header of an object, whose first word was `was`, and its page if no other header there is used.
    pub(crate) fn give_header_and_page(&mut self, header: u64, was: u64) {
        match self {
            Self::Whole(whole) => whole.give_header_and_page(header),
            Self::Part(part) => part.freed_shared.headers.push((header, was)),
        }
    }

    /// Notes which objects a transaction of a speculation has changed.
    pub(crate) fn note_changed<'o>(&mut self, objects: impl Iterator<Item = &'o ObjectId>) {
        if let Self::Part(part) = self {
            let by_header = |object: &ObjectId| (object.header(), *object);
            part.changed.extend(objects.map(by_header));
        }
    }

    /// Whether a used header begins at this byte.
    pub(crate) fn has_header(&self, header: u64) -> bool {
        match self {
            Self::Whole(whole) => whole.has_header(header),
            Self::Part(_) => true, // of the others nothing is known
        }
    }

    /// Pages that are free.
    pub(crate) fn free_pages(&self) -> u64 {
        match self {
            Self::Whole(whole) => whole.free_pages(),
            Self::Part(part) => part.pages.len() as u64,
        }
    }

    /// Reserves pages and headers, as many as there are of the wanted ones. With protection, the headers are in
    /// pages that `readers` may read, and nobody may read the other pages. `clear` fills pages with zeros.
    pub(crate) fn reserve(
        &mut self,
        pages: usize,
        headers: usize,
        readers: Readers,
        clear: impl Fn(&[u64]) -> Result<()>,
    ) -> Reserve {
        let mut reserve = Reserve::default();
        let Self::Whole(whole) = self else {
            return reserve;
        };
        while reserve.headers.len() < headers {
            match whole.take_header(|of| readers.is_within(of)) {
                Some(header) => drop(reserve.headers.insert(header, whole.next_generation())),
                None => {
                    let missing = headers - reserve.headers.len();
                    let added = add_headers(whole, missing, readers, &clear);
                    if added.is_empty() {
                        break;
                    }
                    for header in added {
                        reserve.headers.insert(header, whole.next_generation());
                    }
                }
            }
        }
        let taken = (0..pages).map_while(|_| whole.take_page(Readers::NOBODY).ok());
        reserve.pages.extend(taken);
        reserve
    }

    /// Numbers of pages and of headers that can be taken of a reserve.
    pub(crate) fn reserved(&self) -> (usize, usize) {
        match self {
            Self::Whole(_) => (0, 0),
            Self::Part(part) => (part.pages.len(), part.headers.len()),
        }
    }

    /// Number of pages that its owner will take for the changes of a speculation.
    pub(crate) fn taken_private(&self) -> usize {
        match self {
            Self::Whole(_) => 0,
            Self::Part(part) => part.taken_private,
        }
    }

    /// Adds what was reserved.
    pub(crate) fn extend(&mut self, more: &Reserve) {
        if let Self::Part(part) = self {
            let Part { headers, pages, .. } = Part::new(more, 0..0);
            part.headers.extend(headers);
            part.pages.extend(pages);
        }
    }
}

/// Takes this number of headers of new pages, or fewer.
fn add_headers(
    whole: &mut Whole,
    headers: usize,
    readers: Readers,
    clear: impl Fn(&[u64]) -> Result<()>,
) -> Vec<u64> {
    let pages = (0..headers.div_ceil(HEADERS)).map_while(|_| whole.take_page(readers).ok());
    let pages: Vec<u64> = pages.collect();
    if clear(&pages).is_err() {
        pages.into_iter().for_each(|page| whole.give_page(page));
        return Vec::new();
    }
    let mut taken = Vec::new();
    for page in pages {
        whole.add_headers(page);
        let left = headers - taken.len();
        taken.extend((0..left).map_while(|_| whole.take_header_in(page)));
    }
    taken
}
