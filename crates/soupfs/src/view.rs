//! The latest view of a directory (SoupFS, section 3.4).
//!
//! A directory is a set of chains, each in the order of hashes. A *slot* holds a link to a chain or
//! to a table of 512 slots; the word in the inode is the first slot. The latest view has slots of
//! its own in memory, made on demand, and shares the dentries: each has two links to the next one.
//!
//! Guarantee: nothing here stores a consistent link. The caller holds the lock of the directory.

use crate::copies::{self, Copies};
use crate::error::{Res, corrupt};
use crate::format::{FANOUT, Hash, Line, Link, MAX_DEPTH, Page};
use crate::space::{Dentry, Space};
use medium::Pmem;

/// A chain with more dentries is split, by a name in its second half or by the persister.
pub(crate) const CHAIN_MAX: usize = 12;

/// A slot of the latest view: a link, whose table is one in memory; or the slot of the consistent view.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Slot(Link);

impl Slot {
    /// The slot of the consistent view.
    const UNCHANGED: Self = Self(Link(u64::MAX));
    const EMPTY: Self = Self(Link::NONE);

    /// The slot of a chain. In a damaged image the first link may be none of a dentry.
    fn chain(first: Link) -> Self {
        match first.as_table() {
            None => Self(first),
            Some(_) => Self::EMPTY,
        }
    }

    /// The number of the table.
    fn table(self) -> Option<usize> {
        let table = self.0.as_table().filter(|_| self != Self::UNCHANGED);
        table.map(|number| number.0 as usize)
    }
}

type Table = [Slot; FANOUT as usize];

/// The slots of the latest view that differ from the consistent ones, or are about to.
struct Latest {
    first: Slot,
    tables: Vec<Box<Table>>,
    /// A hash of each chain that is whole, while the medium's is split.
    kept: Vec<Hash>,
}

impl Default for Latest {
    fn default() -> Self {
        Self {
            first: Slot::UNCHANGED,
            tables: Vec::new(),
            kept: Vec::new(),
        }
    }
}

impl Latest {
    /// The first slot, or the one of a table with an index.
    fn slot(&mut self, at: Option<(usize, usize)>) -> &mut Slot {
        match at {
            Some((number, index)) => &mut self.tables[number][index],
            None => &mut self.first,
        }
    }

    /// Fetches the slot for a hash below two tables. In a directory with fewer, it is in a cache.
    fn prefetch(&self, hash: Hash) {
        if let Some(first) = self.first.table()
            && let Some(second) = self.tables[first][hash.index(0) as usize].table()
        {
            medium::prefetch(&self.tables[second][hash.index(1) as usize]);
        }
    }

    /// Adds a table in memory. Returns its slot.
    fn add(&mut self, table: Box<Table>) -> Slot {
        let number = self.tables.len() as u64;
        self.tables.push(table);
        Slot(Link::table(Page(number)))
    }

    /// Whether the slot on the medium at `at` has all tables of `slot`.
    fn is_mirrored<P: Pmem>(&self, space: &Space<P>, slot: Slot, at: u64) -> Res<bool> {
        let Some(number) = slot.table() else {
            return Ok(true);
        };
        let Some(page) = Link(space.load(at)?).as_table() else {
            return Ok(false);
        };
        for (index, slot) in self.tables[number].iter().enumerate() {
            let at = space.entry(page, index as u64)?;
            if !self.is_mirrored(space, *slot, at)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A dentry in the latest view.
pub(crate) struct Found {
    pub entry: Dentry,
    /// The dentry before it in its chain.
    before: Option<Line>,
    depth: u32,
    /// Dentries of the chain that were read in vain.
    pub read: usize,
}

/// The place of a new name in the latest view.
pub(crate) struct Place {
    pub hash: Hash,
    /// The dentry before it in its chain.
    before: Option<Line>,
    /// The dentry after it.
    pub next: Link,
    depth: u32,
    /// Dentries of the chain; if few come before the place, only these.
    len: usize,
}

/// The latest view of a directory. The default is that of a new one, which is empty.
#[derive(Default)]
pub(crate) struct View {
    /// Address of the first slot; `None` while the inode is not on the medium.
    pub slot: Option<u64>,
    latest: Option<Box<Latest>>,
    copies: Copies,
}

/// A dentry of a chain in the latest view, which a search has reached.
struct At<'v> {
    link: Link,
    depth: u32,
    /// The links after it, if the chain has a copy.
    copy: Option<&'v [Link]>,
}

impl Found {
    /// Fetches what a removal changes.
    pub(crate) fn prefetch<P: Pmem>(&self, space: &Space<P>) {
        self.before.iter().for_each(|line| space.prefetch(*line));
    }
}

impl At<'_> {
    /// The dentry, unless its hash is greater.
    fn up_to(&self, hash: Hash) -> Option<Line> {
        self.link.in_chain_up_to(hash, self.depth)
    }

    /// Whether the hash of the dentry is a smaller one, by the link in the copy.
    fn is_skipped(&self, hash: Hash) -> bool {
        self.copy.is_some() && self.link.tag() != hash.tag()
    }

    fn go_on<P: Pmem>(&mut self, space: &Space<P>, line: Line) -> Res<()> {
        self.link = match &mut self.copy {
            Some(links) => links.split_off_first().map_or(Link::NONE, |link| *link),
            None => space.latest_next(line)?,
        };
        Ok(())
    }
}

/// The link in a slot on the medium. Without a slot there is nothing.
fn stored<P: Pmem>(space: &Space<P>, slot: Option<u64>) -> Res<Link> {
    slot.map_or(Ok(0), |at| space.load(at)).map(Link)
}

/// The slot on the medium for a hash, `depth` tables below the slot `first`; `None` if the medium has
/// fewer.
fn below<P: Pmem>(
    space: &Space<P>,
    first: Option<u64>,
    hash: Hash,
    depth: u32,
) -> Res<Option<u64>> {
    let mut slot = first;
    for depth in 0..depth {
        let table = stored(space, slot)?.as_table();
        let entry = table.map(|page| space.entry(page, hash.index(depth)));
        slot = entry.transpose()?;
    }
    Ok(slot)
}

impl View {
    /// The view of a directory on the medium. `slot`: the address of its first slot.
    pub(crate) fn stored(slot: Option<u64>) -> Self {
        Self {
            slot,
            ..Self::default()
        }
    }

    /// Whether some slots differ from those on the medium, or are about to.
    pub(crate) fn has_slots(&self) -> bool {
        self.latest.is_some()
    }

    /// Fetches what a search for a hash reads first, since that mostly misses the caches in a large
    /// directory. The caller has something else to do before the search.
    pub(crate) fn prefetch(&self, hash: Hash) {
        if !self.copies.prefetch(hash)
            && let Some(latest) = &self.latest
        {
            latest.prefetch(hash);
        }
    }

    /// The chain of a hash: its first link, and the number of tables above it.
    fn head<P: Pmem>(&self, space: &Space<P>, hash: Hash) -> Res<(Link, u32)> {
        let mut depth = 0;
        if let Some(latest) = &self.latest {
            let mut slot = latest.first;
            while let Some(number) = slot.table() {
                slot = latest.tables[number][hash.index(depth) as usize];
                depth += 1;
            }
            if slot != Slot::UNCHANGED {
                return Ok((slot.0, depth));
            }
        }
        let mut slot = below(space, self.slot, hash, depth)?;
        loop {
            let link = stored(space, slot)?;
            match link.as_table().filter(|_| depth < MAX_DEPTH) {
                Some(page) => slot = Some(space.entry(page, hash.index(depth))?),
                None => return Ok((space.head(link, hash, depth)?, depth)),
            }
            depth += 1;
        }
    }

    /// The volatile slot of the chain of a hash.
    fn slot_mut<P: Pmem>(&mut self, space: &Space<P>, hash: Hash) -> Res<&mut Slot> {
        let latest = self.latest.get_or_insert_default();
        // The table in memory, and the index in it.
        let (mut at, mut depth) = (None, 0);
        loop {
            let slot = *latest.slot(at);
            if let Some(number) = slot.table() {
                at = Some((number, hash.index(depth) as usize));
                depth += 1;
            } else if slot != Slot::UNCHANGED {
                return Ok(latest.slot(at));
            } else {
                let link = stored(space, below(space, self.slot, hash, depth)?)?;
                let new = match link.as_table() {
                    Some(page) if depth == MAX_DEPTH => {
                        return Err(corrupt(format_args!("table {} is too deep", page.0)));
                    }
                    Some(_) => latest.add(Box::new([Slot::UNCHANGED; FANOUT as usize])),
                    None => Slot::chain(space.head(link, hash, depth)?),
                };
                *latest.slot(at) = new;
            }
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
        let mut at = self.first(space, hash)?;
        let (mut before, mut read, mut order) = (None, 0, Order::default());
        while let Some(line) = at.up_to(hash) {
            if !at.is_skipped(hash) {
                if at.link.tag() == hash.tag() {
                    // Most inodes are made with their dentries, in the line before.
                    space.prefetch(Line(line.0 - 1));
                }
                let entry = space.dentry(line)?;
                order.follow(&entry)?;
                if entry.hash == hash && space.is_named(&entry, name)? {
                    return Ok(Some(Found {
                        entry,
                        before,
                        depth: at.depth,
                        read,
                    }));
                }
                if entry.hash > hash {
                    break;
                }
                read += 1;
            }
            before = Some(line);
            at.go_on(space, line)?;
        }
        Ok(None)
    }

    /// The first dentry of the chain of a hash.
    fn first<P: Pmem>(&self, space: &Space<P>, hash: Hash) -> Res<At<'_>> {
        let Some(links) = self.copies.get(hash) else {
            let (link, depth) = self.head(space, hash)?;
            let copy = None;
            return Ok(At { link, depth, copy });
        };
        debug_assert!(
            self.is_copy(space, hash, links),
            "the copy of a chain differs from it"
        );
        let (first, rest) = links.split_first().unwrap_or((&Link::NONE, links));
        Ok(At {
            link: *first,
            depth: copies::DEPTH,
            copy: Some(rest),
        })
    }

    /// Whether a copy has the links of the chain of a hash, as far as it can be read.
    fn is_copy<P: Pmem>(&self, space: &Space<P>, hash: Hash, copy: &[Link]) -> bool {
        let chain = self.links(space, hash);
        chain.map_or(true, |(links, depth)| {
            (links.as_slice(), depth) == (copy, copies::DEPTH)
        })
    }

    /// The links of the chain of a hash, and the number of tables above it.
    fn links<P: Pmem>(&self, space: &Space<P>, hash: Hash) -> Res<(Vec<Link>, u32)> {
        let (mut link, depth) = self.head(space, hash)?;
        let mut links: Vec<Link> = Vec::new();
        let mut order = Order::default();
        while let Some(line) = link.in_chain(hash, depth) {
            order.follow(&space.dentry(line)?)?;
            links.push(link);
            link = space.latest_next(line)?;
        }
        Ok((links, depth))
    }

    /// Whether the chain of what was found should be copied.
    pub(crate) fn wants_copy(&self, found: &Found) -> bool {
        self.copies.wants(found.entry.hash, found.depth, found.read)
    }

    /// Copies the chain of a hash, of which a search has read this many dentries in vain, if that is
    /// worth it. A damaged chain gets no copy.
    pub(crate) fn copy<P: Pmem>(&mut self, space: &Space<P>, hash: Hash, read: usize) {
        if let Ok((links, depth)) = self.links(space, hash)
            && self.copies.wants(hash, depth, read)
        {
            self.copies.set(hash, links.into_iter());
        }
    }

    /// The place of a new dentry: after all with this hash, or a smaller one. `None` if there is one with
    /// this name already.
    pub(crate) fn place<P: Pmem>(
        &self,
        space: &Space<P>,
        hash: Hash,
        name: &[u8],
    ) -> Res<Option<Place>> {
        let mut at = self.first(space, hash)?;
        let (mut before, mut len, mut order) = (None, 0, Order::default());
        while let Some(line) = at.up_to(hash) {
            if !at.is_skipped(hash) {
                let entry = space.dentry(line)?;
                order.follow(&entry)?;
                if entry.hash == hash && space.is_named(&entry, name)? {
                    return Ok(None);
                }
                if entry.hash > hash {
                    break;
                }
            }
            len += 1;
            before = Some(line);
            at.go_on(space, line)?;
        }
        // The new name changes its link.
        before.iter().for_each(|line| space.prefetch(*line));
        let (next, depth) = (at.link, at.depth);
        // The rest is only counted. In large directories it is seldom in a cache.
        let is_long = |len| len >= CHAIN_MAX / 2;
        while let Some(line) = at.link.in_chain(hash, depth).filter(|_| is_long(len)) {
            order.follow(&space.dentry(line)?)?;
            len += 1;
            at.go_on(space, line)?;
        }
        Ok(Some(Place {
            hash,
            before,
            next: match next.in_chain(hash, depth) {
                Some(_) => next,
                None => Link::NONE,
            },
            depth,
            len,
        }))
    }

    /// Puts a new dentry at its place. Its own link is set already.
    pub(crate) fn insert<P: Pmem>(
        &mut self,
        space: &Space<P>,
        place: &Place,
        line: Line,
    ) -> Res<()> {
        let hash = place.hash;
        let link = Link::dentry(line, hash);
        self.set_link(space, place.before, hash, link)?;
        if place.len >= CHAIN_MAX && place.depth < MAX_DEPTH {
            return self.split(space, hash);
        }
        match self.copies.wants(hash, place.depth, place.len) {
            true => self.copy(space, hash, place.len),
            false => self.copies.insert(hash, place.before, link),
        }
        Ok(())
    }

    pub(crate) fn remove<P: Pmem>(&mut self, space: &Space<P>, found: &Found) -> Res<()> {
        let Dentry { line, hash, .. } = found.entry;
        let next = space.latest_next(line)?;
        self.set_link(space, found.before, hash, next)?;
        self.copies.remove(hash, line);
        Ok(())
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
            None => *self.slot_mut(space, hash)? = Slot::chain(link),
        }
        Ok(())
    }

    /// Splits the chain of a hash into a table. No dentry changes, since its links end the parts.
    fn split<P: Pmem>(&mut self, space: &Space<P>, hash: Hash) -> Res<()> {
        let (link, depth) = self.head(space, hash)?;
        let mut table = Box::new([Slot::EMPTY; FANOUT as usize]);
        let mut at = link;
        let mut last = None;
        let mut order = Order::default();
        while let Some(line) = at.in_chain(hash, depth) {
            let entry = space.dentry(line)?;
            order.follow(&entry)?;
            let own = entry.hash;
            let index = own.index(depth);
            if last != Some(index) {
                table[index as usize] = Slot::chain(Link::dentry(line, own));
            }
            last = Some(index);
            at = space.latest_next(line)?;
        }
        let latest = self.latest.get_or_insert_default();
        let table = latest.add(table);
        *self.slot_mut(space, hash)? = table;
        self.copies.forget(hash);
        Ok(())
    }

    /// Keeps the chain of a hash whole while the medium's is split, since the parts have neither new
    /// names nor removals that are not persistent.
    pub(crate) fn keep_chain<P: Pmem>(&mut self, space: &Space<P>, hash: Hash) -> Res<()> {
        self.slot_mut(space, hash)?;
        let latest = self.latest.get_or_insert_default();
        latest.kept.push(hash);
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
            (Some(latest), Some(slot)) => latest.is_mirrored(space, latest.first, slot)?,
            _ => true,
        };
        if let Some(latest) = self.latest.take_if(|_| is_mirrored) {
            // The tables above a chain that has a copy stay, or the copy is freed.
            let kept = latest.kept.into_iter();
            match self.slot {
                Some(_) => kept.for_each(|hash| self.copies.forget(hash)),
                None => self.copies = Copies::default(),
            }
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
