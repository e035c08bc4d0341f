//! The latest view of a directory (SoupFS, section 3.4).
//!
//! A directory is a set of chains, each in the order of hashes. A *slot* holds a link to a chain or
//! to a table of 512 slots; the word in the inode is the first slot. The latest view has slots of
//! its own in memory, made on demand, and shares the dentries: each has two links to the next one.
//!
//! Guarantee: nothing here stores a consistent link. The caller holds the lock of the directory.

use crate::error::{Res, corrupt};
use crate::format::{FANOUT, Hash, Line, Link, MAX_DEPTH};
use crate::space::{Dentry, Space};
use medium::Pmem;

/// A chain with more dentries is split.
pub(crate) const CHAIN_MAX: usize = 12;

/// A slot of the latest view that differs from the consistent one, or is about to.
pub(crate) enum Slot {
    Chain(Link),
    Table(Box<Table>),
}

impl Slot {
    /// Whether the slot on the medium at `at` has all tables of this one.
    fn is_mirrored<P: Pmem>(&self, space: &Space<P>, at: u64) -> Res<bool> {
        let Self::Table(table) = self else {
            return Ok(true);
        };
        let Some(page) = Link(space.load(at)?).as_table() else {
            return Ok(false);
        };
        for (index, slot) in table.0.iter().enumerate() {
            if let Some(slot) = slot
                && !slot.is_mirrored(space, space.entry(page, index as u64)?)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A volatile table; `None` is the slot of the consistent view.
pub(crate) struct Table([Option<Slot>; FANOUT as usize]);

impl Table {
    fn unchanged() -> Box<Self> {
        Box::new(Self([const { None }; FANOUT as usize]))
    }

    /// A table of empty chains.
    fn empty() -> Box<Self> {
        Box::new(Self(
            [const { Some(Slot::Chain(Link::NONE)) }; FANOUT as usize],
        ))
    }
}

/// A dentry in the latest view.
pub(crate) struct Found {
    pub entry: Dentry,
    /// The dentry before it in its chain.
    before: Option<Line>,
}

/// The place of a new name in the latest view.
pub(crate) struct Place {
    /// The dentry before it in its chain.
    before: Option<Line>,
    /// The dentry after it.
    pub next: Link,
    depth: u32,
    /// Dentries of the chain.
    len: usize,
}

/// The latest view of a directory.
#[derive(Default)]
pub(crate) struct View {
    /// Address of the first slot; `None` while the inode is not on the medium.
    pub slot: Option<u64>,
    pub latest: Option<Slot>,
}

impl View {
    /// The view of a new, empty directory.
    pub(crate) fn empty() -> Self {
        Self {
            slot: None,
            latest: Some(Slot::Chain(Link::NONE)),
        }
    }

    /// The chain of a hash: its first link, and the number of tables above it.
    fn head<P: Pmem>(&self, space: &Space<P>, hash: Hash) -> Res<(Link, u32)> {
        let (mut latest, mut slot) = (self.latest.as_ref(), self.slot);
        let mut depth = 0;
        loop {
            let stored = |slot: Option<u64>| slot.map_or(Ok(0), |at| space.load(at)).map(Link);
            match latest {
                Some(Slot::Chain(link)) => return Ok((*link, depth)),
                Some(Slot::Table(table)) => {
                    slot = match stored(slot)?.as_table() {
                        Some(page) => Some(space.entry(page, hash.index(depth))?),
                        None => None,
                    };
                    latest = table.0[hash.index(depth) as usize].as_ref();
                }
                None => match stored(slot)?.as_table().filter(|_| depth < MAX_DEPTH) {
                    Some(page) => slot = Some(space.entry(page, hash.index(depth))?),
                    None => return Ok((stored(slot)?, depth)),
                },
            }
            depth += 1;
        }
    }

    /// The volatile slot of the chain of a hash.
    fn slot_mut<P: Pmem>(&mut self, space: &Space<P>, hash: Hash) -> Res<&mut Slot> {
        let (mut latest, mut slot) = (&mut self.latest, self.slot);
        let mut depth = 0;
        loop {
            let stored = slot.map_or(Ok(0), |at| space.load(at)).map(Link)?;
            let table = stored.as_table();
            if latest.is_none() {
                *latest = Some(match table {
                    Some(_) => Slot::Table(Table::unchanged()),
                    None => Slot::Chain(stored),
                });
            }
            if !matches!(latest, Some(Slot::Table(_))) {
                // A second match, since a borrow that is returned on one path lasts for all.
                return Ok(latest.get_or_insert(Slot::Chain(Link::NONE)));
            }
            let Some(Slot::Table(volatile)) = latest else {
                unreachable!("matched above");
            };
            slot = match table {
                Some(page) => Some(space.entry(page, hash.index(depth))?),
                None => None,
            };
            latest = &mut volatile.0[hash.index(depth) as usize];
            depth += 1;
        }
    }

    /// Walks the chain of a hash up to the dentries with greater hashes.
    fn walk<P: Pmem>(
        &self,
        space: &Space<P>,
        hash: Hash,
        visit: &mut dyn FnMut(&Dentry) -> Res<bool>,
    ) -> Res<()> {
        let (mut link, depth) = self.head(space, hash)?;
        let mut order = Order::default();
        while let Some(line) = link.in_chain(hash, depth) {
            let entry = space.dentry(line)?;
            order.follow(&entry)?;
            if !visit(&entry)? {
                break;
            }
            link = space.latest_next(line)?;
        }
        Ok(())
    }

    pub(crate) fn find<P: Pmem>(
        &self,
        space: &Space<P>,
        hash: Hash,
        name: &[u8],
    ) -> Res<Option<Found>> {
        let (mut before, mut found) = (None, None);
        self.walk(space, hash, &mut |entry| {
            if entry.hash == hash && space.is_named(entry, name)? {
                found = Some(Found {
                    entry: *entry,
                    before,
                });
                return Ok(false);
            }
            before = Some(entry.line);
            Ok(entry.hash <= hash)
        })?;
        Ok(found)
    }

    /// The place of a new dentry: after all with this hash, or a smaller one.
    pub(crate) fn place<P: Pmem>(&self, space: &Space<P>, hash: Hash) -> Res<Place> {
        let (link, depth) = self.head(space, hash)?;
        let mut place = Place {
            before: None,
            next: link,
            depth,
            len: 0,
        };
        let mut order = Order::default();
        let mut at = link;
        while let Some(line) = at.in_chain(hash, depth) {
            let entry = space.dentry(line)?;
            order.follow(&entry)?;
            place.len += 1;
            at = space.latest_next(line)?;
            if entry.hash <= hash {
                (place.before, place.next) = (Some(line), at);
            }
        }
        if place.next.in_chain(hash, depth).is_none() {
            place.next = Link::NONE;
        }
        Ok(place)
    }

    /// Puts a new dentry at its place. Its own link is set already.
    pub(crate) fn insert<P: Pmem>(
        &mut self,
        space: &Space<P>,
        place: &Place,
        line: Line,
        hash: Hash,
    ) -> Res<()> {
        self.set_link(space, place.before, hash, Link::dentry(line, hash))?;
        if place.len >= CHAIN_MAX && place.depth < MAX_DEPTH {
            self.split(space, hash)?;
        }
        Ok(())
    }

    pub(crate) fn remove<P: Pmem>(&mut self, space: &Space<P>, found: &Found) -> Res<()> {
        let next = space.latest_next(found.entry.line)?;
        self.set_link(space, found.before, found.entry.hash, next)
    }

    fn set_link<P: Pmem>(
        &mut self,
        space: &Space<P>,
        before: Option<Line>,
        hash: Hash,
        link: Link,
    ) -> Res<()> {
        match before {
            Some(line) => space.set_latest_next(line, link),
            None => *self.slot_mut(space, hash)? = Slot::Chain(link),
        }
        Ok(())
    }

    /// Splits the chain of a hash into a table. No dentry changes, since its links end the parts.
    fn split<P: Pmem>(&mut self, space: &Space<P>, hash: Hash) -> Res<()> {
        let (link, depth) = self.head(space, hash)?;
        let mut table = Table::empty();
        let mut at = link;
        let mut last = None;
        let mut order = Order::default();
        while let Some(line) = at.in_chain(hash, depth) {
            let entry = space.dentry(line)?;
            order.follow(&entry)?;
            let own = entry.hash;
            let index = own.index(depth);
            if last != Some(index) {
                table.0[index as usize] = Some(Slot::Chain(Link::dentry(line, own)));
            }
            last = Some(index);
            at = space.latest_next(line)?;
        }
        *self.slot_mut(space, hash)? = Slot::Table(table);
        Ok(())
    }

    /// Visits the dentries from a hash on, in the order of hashes, until `visit` returns false.
    pub(crate) fn list<P: Pmem>(
        &self,
        space: &Space<P>,
        from: Hash,
        visit: &mut dyn FnMut(&Dentry) -> Res<bool>,
    ) -> Res<()> {
        let mut at = from;
        let mut goes_on = true;
        loop {
            let (_, depth) = self.head(space, at)?;
            self.walk(space, at, &mut |entry| {
                if entry.hash >= from {
                    goes_on = visit(entry)?;
                }
                Ok(goes_on)
            })?;
            match at.after(depth).filter(|_| goes_on) {
                Some(next) => at = next,
                None => return Ok(()),
            }
        }
    }

    /// Lets go of the volatile slots when all changes are persistent, unless a table has none on the
    /// medium: links of dentries end its chains, and mean nothing in a longer one.
    pub(crate) fn settle<P: Pmem>(&mut self, space: &Space<P>) -> Res<()> {
        let is_mirrored = match (&self.latest, self.slot) {
            (Some(latest), Some(slot)) => latest.is_mirrored(space, slot)?,
            _ => true,
        };
        if is_mirrored {
            self.latest = None;
        }
        Ok(())
    }

    pub(crate) fn is_empty<P: Pmem>(&self, space: &Space<P>) -> Res<bool> {
        let mut empty = true;
        self.list(space, Hash(0), &mut |_| {
            empty = false;
            Ok(false)
        })?;
        Ok(empty)
    }
}

/// Most names of a directory that may have one hash.
const SAME_HASH_MAX: u32 = 100;

/// The dentries of a chain so far. The hashes of a chain never fall, so that a damaged chain does not
/// return.
#[derive(Default)]
struct Order {
    last: Option<Hash>,
    same: u32,
}

impl Order {
    fn follow(&mut self, entry: &Dentry) -> Res<()> {
        self.same = match self.last == Some(entry.hash) {
            true => self.same + 1,
            false => 0,
        };
        if self.last.is_some_and(|last| entry.hash < last) || self.same == SAME_HASH_MAX {
            let line = entry.line.0;
            return Err(corrupt(format_args!(
                "the dentry in line {line} is out of order"
            )));
        }
        self.last = Some(entry.hash);
        Ok(())
    }
}
