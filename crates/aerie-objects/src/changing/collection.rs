//! Changes of collections.

use crate::error::{Error, Result};
use crate::layout::{BUCKETS, header};
use crate::reading::bucket::{Bucket, CHAIN_MAX, chain};
use crate::reading::collection::{Table, check_key};
use crate::reading::object::{generation, is_inside, word};
use crate::reading::tree::{self, Visited};
use crate::seeded::{Bug, hit};
use crate::transaction::Transaction;
use crate::{Kind, ObjectId};
use medium::Pmem;

/// Key and object of an entry.
type Pair = (Vec<u8>, ObjectId);

/// Entries per bucket at which a table grows.
const TARGET: u64 = 12;
/// A table shrinks if it has this many times more buckets than it needs.
const SPARSE: u64 = 16;

impl<P: Pmem> Transaction<'_, P> {
    fn table(&self, collection: ObjectId) -> Result<Table> {
        Table::load(self, collection, self.superblock().seed)
    }

    /// Adds an entry (`addObject` of the paper), and counts it as one that leads to the object.
    ///
    /// # Errors
    /// [`Error::Claimed`] beside other transactions, [`Error::KeyExists`], [`Error::HasParent`], [`Error::Cycle`], [`Error::KeyLength`], [`Error::Crowded`], [`Error::NoObject`],
    /// [`Error::Full`], errors of the memory and of a damaged table. The transaction should then be
    /// rolled back to an earlier mark.
    pub fn add(&mut self, collection: ObjectId, key: &[u8], object: ObjectId) -> Result<()> {
        check_key(key)?;
        let mut table = self.table(collection)?;
        if table.find(self, key)?.is_some() {
            return Err(Error::KeyExists);
        }
        let members = self.add_members(object, 1)?;
        if object.kind() == Kind::Collection {
            if members > 1 {
                return Err(Error::HasParent(object));
            }
            // Another transaction may move a collection above, which no claim would show.
            let is_old = generation(self.memory(), object).is_ok();
            if is_old && !self.is_alone() && !hit(Bug::MovedBeside) {
                return Err(Error::Claimed);
            }
            if is_inside(self, collection, object)? {
                return Err(Error::Cycle(object));
            }
        }
        let parent = if members == 1 {
            collection.to_bits()
        } else {
            0
        };
        self.set_header(object, header::PARENT, parent)?;
        self.change(collection)?;
        if table.buckets == 0 {
            self.add_page(collection, 0)?;
            table = self.set_buckets(table, 1)?;
        }
        self.add_to_chain(table, key, object)?;
        let entries = word(self, collection, header::ENTRIES)? + 1;
        self.set_header(collection, header::ENTRIES, entries)?;
        match entries > table.buckets * TARGET {
            true => self.grow(table),
            false => Ok(()),
        }
    }

    /// Removes an entry (`removeObject` of the paper). Returns the object and the number of entries
    /// that still lead to it; `None` if there is no such key.
    ///
    /// # Errors
    /// [`Error::KeyLength`], [`Error::NoObject`], errors of the memory and of a damaged table.
    pub fn remove(&mut self, collection: ObjectId, key: &[u8]) -> Result<Option<(ObjectId, u64)>> {
        check_key(key)?;
        let table = self.table(collection)?;
        let Some(entry) = table.find(self, key)? else {
            return Ok(None);
        };
        self.change(collection)?;
        self.set(entry.slot, 0)?;
        let entries = word(self, collection, header::ENTRIES)?.saturating_sub(1);
        self.set_header(collection, header::ENTRIES, entries)?;
        let members = self.add_members(entry.object, -1)?;
        self.set_header(entry.object, header::PARENT, 0)?;
        if table.buckets > SPARSE && entries * SPARSE < table.buckets * TARGET {
            self.rehash(table, (entries / TARGET * 2).max(1))?;
        }
        Ok(Some((entry.object, members)))
    }

    fn set_buckets(&mut self, table: Table, buckets: u64) -> Result<Table> {
        self.set_header(table.id, header::SIZE, buckets)?;
        Ok(Table { buckets, ..table })
    }

    fn add_to_chain(&mut self, table: Table, key: &[u8], object: ObjectId) -> Result<()> {
        let hash = table.hash(key);
        let first = table.bucket(self, table.number(hash))?;
        let buckets = chain(self, first).collect::<Result<Vec<_>>>()?;
        for bucket in buckets {
            if self.put(bucket, hash, key, object)? {
                return Ok(());
            }
        }
        // Without what removed entries have left there may be room.
        let mut pairs = self.pairs(first)?;
        pairs.push((key.to_owned(), object));
        self.fill(table, first, &pairs)
    }

    /// The entries of a chain.
    fn pairs(&self, first: Bucket) -> Result<Vec<Pair>> {
        let mut pairs = Vec::new();
        for bucket in chain(self, first) {
            for entry in bucket?.entries(self)? {
                pairs.push((entry.key(self)?, entry.object));
            }
        }
        Ok(pairs)
    }

    /// Makes these the entries of a chain, with no more pages than they need.
    fn fill(&mut self, table: Table, first: Bucket, pairs: &[Pair]) -> Result<()> {
        let old = chain(self, first).collect::<Result<Vec<_>>>()?;
        let mut pages = old.into_iter().filter_map(Bucket::page);
        let (mut bucket, mut length) = (first, 1);
        self.empty(bucket)?;
        for (key, object) in pairs {
            let hash = table.hash(key);
            if self.put(bucket, hash, key, *object)? {
                continue;
            }
            let page = match pages.next() {
                Some(page) => page,
                None => self.page_for(table.id)?,
            };
            length += 1;
            if length > CHAIN_MAX {
                return Err(Error::Crowded);
            }
            bucket = self.continue_in(bucket, page)?;
            self.empty(bucket)?;
            self.put(bucket, hash, key, *object)?;
        }
        self.continue_in(bucket, 0)?;
        pages.try_for_each(|page| self.free_page(table.id, page))
    }

    /// Adds a bucket, into which a part of another one moves.
    fn grow(&mut self, table: Table) -> Result<()> {
        let (number, old) = (table.buckets, table.split());
        if number.is_multiple_of(BUCKETS) {
            self.add_page(table.id, number / BUCKETS)?;
        }
        let from = table.bucket(self, old)?;
        let pairs = self.pairs(from)?;
        let table = self.set_buckets(table, number + 1)?;
        let (stay, go) = pairs
            .into_iter()
            .partition::<Vec<_>, _>(|(key, _)| table.number(table.hash(key)) == old);
        self.fill(table, from, &stay)?;
        let to = table.bucket(self, number)?;
        self.fill(table, to, &go)
    }

    /// Puts all entries into a new table, which replaces the old one.
    fn rehash(&mut self, table: Table, buckets: u64) -> Result<()> {
        let mut pairs = Vec::new();
        for number in 0..table.buckets {
            pairs.append(&mut self.pairs(table.bucket(self, number)?)?);
        }
        for page in self.pages_of(table)? {
            self.free_page(table.id, page)?;
        }
        self.set_header(table.id, header::ROOT, 0)?;
        for index in 0..buckets.div_ceil(BUCKETS) {
            self.add_page(table.id, index)?;
        }
        let table = self.set_buckets(table, buckets)?;
        for (key, object) in pairs {
            self.add_to_chain(table, &key, object)?;
        }
        Ok(())
    }

    /// All pages of a table: of its tree, its buckets, and those that continue them.
    fn pages_of(&self, table: Table) -> Result<Vec<u64>> {
        let mut pages = table.chained(self)?;
        tree::visit(self, table.id, &mut |visited| {
            let (Visited::Pointers(page) | Visited::Contents(_, page)) = visited;
            pages.push(page);
            Ok(())
        })?;
        Ok(pages)
    }

    /// Frees the pages of a collection without entries.
    pub(crate) fn clear_table(&mut self, collection: ObjectId) -> Result<()> {
        let table = self.table(collection)?;
        for page in self.pages_of(table)? {
            self.free_page(collection, page)?;
        }
        self.set_header(collection, header::ROOT, 0)?;
        self.set_buckets(table, 0)?;
        Ok(())
    }
}
