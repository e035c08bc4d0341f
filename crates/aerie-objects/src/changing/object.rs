//! Changes of objects and their headers.

use crate::error::{Error, Result};
use crate::layout::header;
use crate::load::Load;
use crate::reading::collection::entries;
use crate::reading::object::{WORDS, header, members, own, size, word};
use crate::reserve::NewObject;
use crate::transaction::Transaction;
use crate::{Kind, ObjectId, Readers};
use medium::Pmem;

impl<P: Pmem> Transaction<'_, P> {
    /// Makes an object without contents that no collection has.
    ///
    /// # Errors
    /// [`Error::Full`], and errors of the memory.
    pub fn create(&mut self, kind: Kind) -> Result<ObjectId> {
        let new = self.take_header(kind, Readers::NOBODY)?;
        self.create_at(new)
    }

    /// Makes an object as [`create`](Self::create) does, which the caller adds to a collection. With
    /// protection, its header is beside others of such objects.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_for(&mut self, collection: ObjectId, kind: Kind) -> Result<ObjectId> {
        let readers = match collection == self.superblock().attributes {
            true => Readers::Everyone,
            false => self.readers(collection)?,
        };
        let new = self.take_header(kind, readers)?;
        self.create_at(new)
    }

    /// Makes an object as [`create`](Self::create) does, whose header the caller has
    /// [reserved](crate::Store::reserve).
    ///
    /// # Errors
    /// Errors of the memory.
    pub fn create_at(&mut self, new: NewObject) -> Result<ObjectId> {
        let NewObject { id, generation } = new;
        self.change(id)?;
        self.note_readers(id);
        let mut old = [0; WORDS];
        self.load_words(id.header(), &mut old)?;
        let mut new = [0; WORDS];
        new[header::KIND as usize] = generation << 8 | id.kind() as u64;
        new[header::VERSION as usize] = old[header::VERSION as usize];
        for (n, (new, old)) in (0..).zip(new.into_iter().zip(old)) {
            if new != old {
                self.set(id.header() + n * 8, new)?;
            }
        }
        Ok(id)
    }

    /// Removes an object and its pages. The caller has removed all entries that lead to it.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NoObject`], errors of the memory and of a damaged object.
    pub fn delete(&mut self, object: ObjectId) -> Result<()> {
        match object.kind() {
            Kind::Collection if entries(self, object)? > 0 => return Err(Error::NotEmpty(object)),
            Kind::Collection => self.clear_table(object)?,
            Kind::MFile => self.cut_pages(object, 0)?,
        }
        let was = word(self, object, header::KIND)?;
        self.set_header(object, header::KIND, 0)?;
        self.give_header(object.header(), was);
        Ok(())
    }

    /// Sets the bytes of an mFile. The caller adds and cuts pages.
    ///
    /// # Errors
    /// [`Error::NoObject`], and errors of the memory.
    pub fn set_size(&mut self, file: ObjectId, bytes: u64) -> Result<()> {
        size(self, file)?;
        self.set_header(file, header::SIZE, bytes)?;
        Ok(())
    }

    /// Sets a word of the layer above.
    ///
    /// # Errors
    /// [`Error::NoObject`], and errors of the memory.
    pub fn set_own(&mut self, object: ObjectId, n: u64, value: u64) -> Result<()> {
        if own(self, object, n)? != value {
            self.set_header(object, header::OWN + n, value)?;
        }
        Ok(())
    }

    /// Sets the first words of the layer above.
    ///
    /// # Errors
    /// [`Error::NoObject`], and errors of the memory.
    pub fn set_first_own(&mut self, object: ObjectId, values: &[u64]) -> Result<()> {
        let old = header(self, object)?.own;
        for (n, (value, old)) in (header::OWN..).zip(values.iter().zip(old)) {
            if *value != old {
                self.set_header(object, n, *value)?;
            }
        }
        Ok(())
    }

    /// Adds to the number of entries that lead to an object.
    pub(crate) fn add_members(&mut self, object: ObjectId, change: i64) -> Result<u64> {
        let members = members(self, object)?.wrapping_add_signed(change);
        self.set_header(object, header::MEMBERS, members)?;
        Ok(members)
    }
}
