//! Gives pages the readers of their objects.
//!
//! Guarantees:
//!
//! 1. A page that loses readers does so before the change that takes them is durable
//!    ([`narrow`](Protection::narrow)); one that gains readers, after it ([`restore`](Protection::restore)).
//!    So a crash leaves a page with too few readers at most, and [`repair`](Protection::repair) ends that.
//! 2. A page that gains readers has no remains of removed entries, deleted objects or cut contents.
//! 3. A page of headers has the readers that all its objects have in common.

use crate::error::Result;
use crate::id::HEADER_BYTES;
use crate::layout::{PAGE, header};
use crate::load::Load;
use crate::protection::{Contents, Protection};
use crate::reading::collection::Table;
use crate::reading::object::{generation, word};
use crate::reading::tree::{self, Visited};
use crate::remains::{clear_headers, clear_object};
use crate::seeded::{Bug, hit};
use crate::superblock::Superblock;
use crate::{Kind, ObjectId, Readers};
use medium::{Pmem, Rule};
use std::collections::BTreeSet;

/// The pages of an object.
fn pages(memory: &dyn Load, superblock: &Superblock, object: ObjectId) -> Result<Vec<u64>> {
    let mut pages = match object.kind() {
        Kind::Collection => Table::load(memory, object, superblock.seed)?.chained(memory)?,
        Kind::MFile => Vec::new(),
    };
    tree::visit(memory, object, &mut |visited| {
        let (Visited::Pointers(page) | Visited::Contents(_, page)) = visited;
        pages.push(page);
        Ok(())
    })?;
    Ok(pages)
}

/// Calls `f` for an object, and for all objects below it if `is_deep`.
fn each(
    memory: &dyn Load,
    superblock: &Superblock,
    object: ObjectId,
    is_deep: bool,
    f: &mut dyn FnMut(ObjectId) -> Result<()>,
) -> Result<()> {
    let mut waiting = vec![object];
    while let Some(object) = waiting.pop() {
        f(object)?;
        if is_deep && object.kind() == Kind::Collection {
            let table = Table::load(memory, object, superblock.seed)?;
            waiting.append(&mut table.objects(memory)?);
        }
    }
    Ok(())
}

fn header_page(object: ObjectId) -> u64 {
    object.header() / PAGE * PAGE
}

/// The objects with a header in a page of headers.
fn objects_in(memory: &dyn Load, page: u64) -> Result<Vec<ObjectId>> {
    let mut objects = Vec::new();
    for at in (page..page + PAGE).step_by(HEADER_BYTES as usize) {
        for kind in [Kind::Collection, Kind::MFile] {
            let object = ObjectId::new(kind, at);
            if word(memory, object, header::KIND)? & 0xff == kind as u64 {
                objects.push(object);
            }
        }
    }
    Ok(objects)
}

impl Protection {
    /// Takes readers from the pages of an object, and from those of all objects below it if `is_deep`,
    /// that these objects do not have.
    pub(crate) fn narrow(
        &self,
        memory: &dyn Load,
        superblock: &Superblock,
        object: ObjectId,
        is_deep: bool,
    ) -> Result<()> {
        if hit(Bug::NotNarrowed) || hit(Bug::NarrowedLate) {
            return Ok(());
        }
        each(memory, superblock, object, is_deep, &mut |object| {
            let own = (self.policy)(memory, superblock, object)?;
            let above = self.of_header(memory, superblock, object)?;
            let pages = pages(memory, superblock, object)?.into_iter();
            let wanted = pages.map(|page| (page, own));
            self.change(
                wanted.chain([(header_page(object), above)]),
                |now, own| match hit(Bug::WidenedEarly) {
                    true => own,
                    false => now.meet(own),
                },
            )
        })
    }

    /// Gives the pages of an object exactly its readers, and those of all objects below it if `is_deep`.
    pub(crate) fn restore<P: Pmem>(
        &self,
        memory: &P,
        superblock: &Superblock,
        object: ObjectId,
        is_deep: bool,
    ) -> Result<()> {
        each(memory, superblock, object, is_deep, &mut |object| {
            let own = (self.policy)(memory, superblock, object)?;
            let pages = pages(memory, superblock, object)?;
            if self.would_widen(&pages, own)? && !hit(Bug::RemainsKept) {
                clear_object(memory, superblock, object)?;
                memory.fence(Rule::NullifyBeforeReuse)?;
            }
            let is_kept = |now, own: Readers| own.is_within(now) && hit(Bug::NotNarrowed);
            let wanted = pages.into_iter().map(|page| (page, own));
            self.change(wanted, |now, own| if is_kept(now, own) { now } else { own })
        })
    }

    /// Gives a page of headers the readers that all its objects have in common.
    pub(crate) fn restore_headers<P: Pmem>(
        &self,
        memory: &P,
        superblock: &Superblock,
        page: u64,
    ) -> Result<()> {
        let now = self.guard.readers(page)?;
        let objects = objects_in(memory, page)?;
        let mut wanted = Readers::Everyone;
        // Most objects are in the same few collections.
        let mut known = BTreeSet::new();
        for object in &objects {
            let above = word(memory, *object, header::PARENT)?;
            if above == 0 || known.insert(above) {
                wanted = wanted.meet(self.of_header(memory, superblock, *object)?);
            }
        }
        if objects.is_empty() || now == wanted {
            return Ok(());
        }
        if !wanted.is_within(now) && !hit(Bug::RemainsKept) {
            clear_headers(memory, page)?;
            memory.fence(Rule::NullifyBeforeReuse)?;
        }
        self.guard.protect(page, 1, wanted, Contents::Kept)
    }

    /// Gives all used pages their readers.
    pub(crate) fn repair<P: Pmem>(
        &self,
        memory: &P,
        superblock: &Superblock,
        header_pages: impl Iterator<Item = u64>,
    ) -> Result<()> {
        if hit(Bug::NotRepaired) {
            return Ok(());
        }
        let log = (PAGE..superblock.first_page() * PAGE).step_by(PAGE as usize);
        let log = log.map(|page| (page, Readers::NOBODY));
        let first = (0, Readers::Everyone);
        self.change(log.chain([first]), |_, wanted| wanted)?;
        for collection in superblock.collections() {
            self.restore(memory, superblock, collection, true)?;
        }
        for page in header_pages {
            self.restore_headers(memory, superblock, page)?;
        }
        Ok(())
    }

    /// Restores what a committed transaction has left with too few readers. `changed`: objects whose
    /// readers may have changed, with those below them or not.
    pub(crate) fn settle<P: Pmem>(
        &self,
        memory: &P,
        superblock: &Superblock,
        changed: impl Iterator<Item = (ObjectId, bool)>,
    ) -> Result<()> {
        let mut header_pages = BTreeSet::new();
        for (object, is_deep) in changed {
            header_pages.insert(header_page(object));
            if generation(memory, object).is_err() {
                continue;
            }
            self.restore(memory, superblock, object, is_deep)?;
            if is_deep {
                each(memory, superblock, object, true, &mut |object| {
                    header_pages.insert(header_page(object));
                    Ok(())
                })?;
            }
        }
        for page in header_pages {
            self.restore_headers(memory, superblock, page)?;
        }
        Ok(())
    }

    fn would_widen(&self, pages: &[u64], readers: Readers) -> Result<bool> {
        for page in pages {
            if !readers.is_within(self.guard.readers(*page)?) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Gives pages the readers that `choose` makes of their present ones and the wanted ones.
    fn change(
        &self,
        wanted: impl Iterator<Item = (u64, Readers)>,
        choose: impl Fn(Readers, Readers) -> Readers,
    ) -> Result<()> {
        let mut pages: Vec<_> = wanted.collect();
        pages.sort_unstable();
        // Consecutive pages that change in the same way: the first, their number, from, to.
        let mut run: Option<(u64, u64, Readers, Readers)> = None;
        for (page, wanted) in pages {
            let now = self.guard.readers(page)?;
            let new = choose(now, wanted);
            match &mut run {
                Some((first, count, from, to))
                    if (*first + *count * PAGE, *from, *to) == (page, now, new) =>
                {
                    *count += 1;
                }
                _ => self.change_run(run.replace((page, 1, now, new)))?,
            }
        }
        self.change_run(run)
    }

    fn change_run(&self, run: Option<(u64, u64, Readers, Readers)>) -> Result<()> {
        match run {
            Some((first, count, from, to)) if from != to => {
                self.guard.protect(first, count, to, Contents::Kept)
            }
            _ => Ok(()),
        }
    }
}
