//! The checker: a walk from the superblock that visits each object and each page once. An opened store
//! also learns by it what is free.

use crate::error::{Error, Result};
use crate::id::HEADER_BYTES;
use crate::layout::{PAGE, header};
use crate::pages::Pages;
use crate::reading::bucket::chain;
use crate::reading::collection::{Table, list};
use crate::reading::object::{generation, word};
use crate::reading::tree::{self, Visited};
use crate::superblock::Superblock;
use crate::{Kind, ObjectId};
use hashbrown::{HashMap, HashSet};
use medium::Pmem;
use vfs::check::{Report, Severity};

/// Checks a store whose log was replayed. It changes nothing.
pub fn check<P: Pmem + ?Sized>(memory: &P) -> Report {
    let mut report = Report::default();
    match Superblock::load(memory) {
        Ok(superblock) => drop(walk(memory, &superblock, &mut report)),
        Err(error) => report.add("A1", Severity::Corrupt, error.to_string()),
    }
    report
}

/// Number of free pages, by a walk. Pages of headers of which none is used count as free.
///
/// # Errors
/// [`Error::NotAStore`], or the first violation of the format.
pub fn free_pages<P: Pmem + ?Sized>(memory: &P) -> Result<u64> {
    let superblock = Superblock::load(memory)?;
    let mut report = Report::default();
    let walk = walk(memory, &superblock, &mut report);
    if let Some(finding) = report.findings.first() {
        return Err(crate::error::damaged("store", 0, finding.to_string()));
    }
    let pages = superblock.first_page()..superblock.bytes / PAGE;
    let is_used =
        |page: &u64| walk.pages.contains(page * PAGE) || walk.headers.contains_key(&(page * PAGE));
    Ok(pages.filter(|page| !is_used(page)).count() as u64)
}

/// Used memory, as a walk has found it.
pub(crate) struct Walk {
    /// Pages of contents and pointers.
    pub(crate) pages: Pages,
    /// The used headers of each page that has any, by its byte offset, as bits.
    pub(crate) headers: HashMap<u64, u32>,
}

/// The state of a walk.
struct Walker<'a, P: ?Sized> {
    memory: &'a P,
    superblock: &'a Superblock,
    report: &'a mut Report,
    walk: Walk,
    /// Entries that lead to each object.
    members: HashMap<ObjectId, u64>,
    /// Objects that were found and not visited.
    waiting: Vec<ObjectId>,
}

/// Visits all objects.
pub(crate) fn walk<P: Pmem + ?Sized>(
    memory: &P,
    superblock: &Superblock,
    report: &mut Report,
) -> Walk {
    let mut walker = Walker {
        memory,
        superblock,
        report,
        walk: Walk {
            pages: Pages::none_of(superblock.bytes),
            headers: HashMap::new(),
        },
        members: HashMap::new(),
        waiting: Vec::new(),
    };
    for object in superblock.collections() {
        walker.count(object);
    }
    while let Some(object) = walker.waiting.pop() {
        if let Err(error) = walker.object(object) {
            walker.found(invariant(&error), format!("{object}: {error}"));
        }
    }
    walker.compare_members();
    walker.walk
}

/// The invariant that an error of a reader violates.
fn invariant(error: &Error) -> &'static str {
    match error {
        Error::Damaged { structure, .. } if *structure == "pointer" => "A2",
        Error::Damaged { structure, .. } if *structure == "page" => "A3",
        Error::Damaged { structure, .. } if *structure == "header" => "A4",
        Error::NoObject(_) => "A4",
        _ => "A6",
    }
}

impl<P: Pmem + ?Sized> Walker<'_, P> {
    fn found(&mut self, invariant: &str, what: String) {
        self.report.add(invariant, Severity::Corrupt, what);
    }

    /// Counts an entry that leads to an object, which is visited once.
    fn count(&mut self, object: ObjectId) {
        let members = self.members.entry(object).or_default();
        *members += 1;
        if *members == 1 {
            self.waiting.push(object);
        }
    }

    fn object(&mut self, object: ObjectId) -> Result<()> {
        self.claim_header(object)?;
        generation(self.memory, object)?;
        if !word(self.memory, object, header::VERSION)?.is_multiple_of(2) {
            self.found("A10", format!("{object} is being changed"));
        }
        let mut pages = 0;
        let (memory, superblock, walk) = (self.memory, self.superblock, &mut self.walk);
        tree::visit(memory, object, &mut |visited| {
            let (Visited::Pointers(page) | Visited::Contents(_, page)) = visited;
            pages += 1;
            claim(walk, superblock, page)
        })?;
        if object.kind() == Kind::Collection {
            pages += self.collection(object)?;
        }
        let counted = word(self.memory, object, header::PAGES)?;
        if counted != pages {
            self.found(
                "A5",
                format!("{object} has {pages} pages and counts {counted}"),
            );
        }
        Ok(())
    }

    fn claim_header(&mut self, object: ObjectId) -> Result<()> {
        let at = object.header();
        let page = at / PAGE * PAGE;
        if at >= self.superblock.bytes || page / PAGE < self.superblock.first_page() {
            return Err(out_of_place("header", at));
        }
        if self.walk.pages.contains(page) {
            return Err(twice(page));
        }
        *self.walk.headers.entry(page).or_default() |= 1 << (at % PAGE / HEADER_BYTES);
        Ok(())
    }

    /// Visits the entries. Returns the number of pages that continue buckets.
    fn collection(&mut self, object: ObjectId) -> Result<u64> {
        let table = Table::load(self.memory, object, self.superblock.seed)?;
        let (mut pages, mut entries) = (0, 0);
        let mut keys = HashSet::new();
        for number in 0..table.buckets {
            keys.clear();
            for bucket in chain(self.memory, table.bucket(self.memory, number)?) {
                let bucket = bucket?;
                if let Some(page) = bucket.page() {
                    claim(&mut self.walk, self.superblock, page)?;
                    pages += 1;
                }
                for entry in bucket.entries(self.memory)? {
                    let key = entry.key(self.memory)?;
                    let hash = table.hash(&key);
                    if table.number(hash) != number || !entry.has_hash(self.memory, hash)? {
                        self.found(
                            "A7",
                            format!("{object} has a key in the wrong bucket, {number}"),
                        );
                    }
                    if !keys.insert(key) {
                        self.found(
                            "A7",
                            format!("{object} has a key twice, in bucket {number}"),
                        );
                    }
                    entries += 1;
                    self.count(entry.object);
                    self.compare_parent(entry.object, object)?;
                }
            }
        }
        let counted = word(self.memory, object, header::ENTRIES)?;
        if counted != entries {
            self.found(
                "A8",
                format!("{object} has {entries} entries and counts {counted}"),
            );
        }
        Ok(pages)
    }

    fn compare_parent(&mut self, object: ObjectId, collection: ObjectId) -> Result<()> {
        let parent = word(self.memory, object, header::PARENT)?;
        let is_unknown = object.kind() == Kind::MFile && parent == 0;
        if !is_unknown && parent != collection.to_bits() {
            self.found(
                "A12",
                format!("{object} does not lead back to {collection}"),
            );
        }
        Ok(())
    }

    fn compare_members(&mut self) {
        let mut members: Vec<_> = self.members.drain().collect();
        members.sort_unstable();
        for (object, entries) in members {
            match word(self.memory, object, header::MEMBERS) {
                Ok(counted) if counted == entries => {}
                Ok(counted) => {
                    self.found(
                        "A9",
                        format!("{object} has {entries} entries and counts {counted}"),
                    );
                }
                // Its visit has said so.
                Err(_) => {}
            }
            if object.kind() == Kind::Collection && entries > 1 {
                self.found("A11", format!("{object} is in {entries} collections"));
            }
            let parent = word(self.memory, object, header::PARENT).unwrap_or(0);
            if object.kind() == Kind::MFile && entries > 1 && parent != 0 {
                let what = format!(
                    "{object} has {entries} entries and names a collection as the only one"
                );
                self.found("A12", what);
            }
        }
    }
}

/// Notes that a page is used, once.
fn claim(walk: &mut Walk, superblock: &Superblock, page: u64) -> Result<()> {
    if page / PAGE < superblock.first_page() || page >= superblock.bytes {
        return Err(out_of_place("pointer", page));
    }
    if walk.pages.contains(page) || walk.headers.contains_key(&page) {
        return Err(twice(page));
    }
    walk.pages.insert(page);
    Ok(())
}

fn out_of_place(structure: &'static str, at: u64) -> Error {
    crate::error::damaged(structure, at, "it is outside the space for objects")
}

fn twice(page: u64) -> Error {
    crate::error::damaged("page", page, "it is used twice")
}

/// Lists a whole collection, in the order of its cookies.
///
/// # Errors
/// As [`list`].
pub fn list_all<P: Pmem + ?Sized>(
    memory: &P,
    collection: ObjectId,
    seed: u64,
) -> Result<Vec<crate::Listed>> {
    let mut all: Vec<crate::Listed> = Vec::new();
    loop {
        let after = all.last().map_or(0, |entry| entry.cookie);
        match list(memory, collection, seed, after)? {
            next if next.is_empty() => return Ok(all),
            mut next => all.append(&mut next),
        }
    }
}
