//! Pages and headers that are kept for somebody, such as a client (paper section 4.2.4, free space
//! management). They are known in memory only: after a crash they are free.

use crate::{Kind, ObjectId};
use hashbrown::HashSet;

/// Reserved pages and headers. Those that are taken out belong to the caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reserve {
    pub(crate) pages: HashSet<u64>,
    pub(crate) headers: HashSet<u64>,
}

impl Reserve {
    /// The pages, by their byte offsets.
    pub fn pages(&self) -> impl Iterator<Item = u64> {
        self.pages.iter().copied()
    }

    /// The objects of a kind that could be made.
    pub fn objects(&self, kind: Kind) -> impl Iterator<Item = ObjectId> {
        self.headers
            .iter()
            .map(move |header| ObjectId::new(kind, *header))
    }

    /// Takes a page out; `false` if it is not reserved here.
    pub fn take_page(&mut self, page: u64) -> bool {
        self.pages.remove(&page)
    }

    /// Takes the header of an object out; `false` if it is not reserved here.
    pub fn take_object(&mut self, object: ObjectId) -> bool {
        self.headers.remove(&object.header())
    }

    /// Puts a page back.
    pub fn put_page(&mut self, page: u64) {
        self.pages.insert(page);
    }

    /// Puts the header of an object back.
    pub fn put_object(&mut self, object: ObjectId) {
        self.headers.insert(object.header());
    }

    /// Adds what another one has.
    pub fn append(&mut self, other: Self) {
        self.pages.extend(other.pages);
        self.headers.extend(other.headers);
    }
}
