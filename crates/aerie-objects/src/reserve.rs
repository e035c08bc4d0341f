//! Pages and headers that are kept for somebody, such as a client (paper section 4.2.4, free space
//! management). They are known in memory only: after a crash they are free.

use crate::{Kind, ObjectId};
use hashbrown::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

/// An object that was not made yet: its header is taken. It has a generation already, so that all who
/// make it give it the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewObject {
    pub(crate) id: ObjectId,
    pub(crate) generation: u64,
}

impl NewObject {
    /// Its id.
    pub fn id(&self) -> ObjectId {
        self.id
    }
}

/// Reserved pages and headers. Those that are taken out belong to the caller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserve {
    pub(crate) pages: HashSet<u64>,
    /// Headers, with the generations of their objects.
    pub(crate) headers: HashMap<u64, u64>,
}

impl Reserve {
    /// Number of pages.
    pub fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// Number of headers.
    pub fn header_count(&self) -> usize {
        self.headers.len()
    }

    /// Whether nothing is reserved.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.headers.is_empty()
    }

    /// The pages, by their byte offsets.
    pub fn pages(&self) -> impl Iterator<Item = u64> {
        self.pages.iter().copied()
    }

    /// The objects of a kind that could be made.
    pub fn objects(&self, kind: Kind) -> impl Iterator<Item = ObjectId> {
        self.headers
            .keys()
            .map(move |header| ObjectId::new(kind, *header))
    }

    /// Takes a page out; `false` if it is not reserved here.
    pub fn take_page(&mut self, page: u64) -> bool {
        self.pages.remove(&page)
    }

    /// Takes the header of an object out; `None` if it is not reserved here.
    pub fn take_object(&mut self, id: ObjectId) -> Option<NewObject> {
        let generation = self.headers.remove(&id.header())?;
        Some(NewObject { id, generation })
    }

    /// Puts a page back.
    pub fn put_page(&mut self, page: u64) {
        self.pages.insert(page);
    }

    /// Puts the header of an object back that was not made.
    pub fn put_object(&mut self, NewObject { id, generation }: NewObject) {
        self.headers.insert(id.header(), generation);
    }

    /// Adds what another one has.
    pub fn append(&mut self, other: Self) {
        self.pages.extend(other.pages);
        self.headers.extend(other.headers);
    }
}
