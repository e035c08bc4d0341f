//! The checker: reads an image, and reports what breaks the invariants of `format.md`. [`repair`]
//! removes the leaks that a crash leaves.
//!
//! Guarantees: the checker writes nothing; its memory is a word for each page and a little for each
//! inode; it reads each line once, whatever the image holds. A repair of a damaged image writes
//! nothing either. A repair may be interrupted at any moment, and loses nothing.

use crate::alloc::reserved_pages;
use crate::error::{Error, Fault, Res};
use crate::format::{
    FANOUT, Hash, LINES, Line, Link, MAX_DEPTH, MAX_HEIGHT, PAGE, Page, Root, TABLE_BITS,
    UNMOUNTED, at, bitmap_word, dentry, inode, mode_word,
};
use crate::mount::{SuperInfo, is_flushed, probe, seed, store_use};
use crate::seeded::{Bug, hit};
use crate::space::{Dentry, Space};
use hashbrown::{HashMap, HashSet};
use medium::{Pmem, Rule};
use vfs::check::{Report, Severity};
use vfs::xattr_block::decode;
use vfs::{FileType, Ino, SYMLINK_MAX, check_name};

/// Checks an image.
pub fn check<P: Pmem + ?Sized>(pm: &P) -> Report {
    walk(pm).report
}

/// Most passes of a repair: each one removes at least one leak of names.
const PASSES: usize = 1000;

/// Gives back lost memory, corrects link counts, and removes old names of directories, unless the image
/// is damaged. Returns the findings that are left, and whether it has changed anything. `boot`: as in
/// [`MountOptions`](crate::MountOptions).
///
/// # Errors
/// The medium fails.
pub fn repair<P: Pmem + ?Sized>(pm: &P, boot: Option<u128>) -> Result<(Report, bool), Error> {
    let mut is_durable = match probe(pm) {
        Ok(info) => hit(Bug::RepairNotAdopted) || is_flushed(pm, &info, boot)?,
        Err(_) => false,
    };
    for pass in 0..PASSES {
        let walk = walk(pm);
        if walk.report.worst() <= Some(Severity::Leak) && !is_durable {
            // The repair builds on stores of a killed server, which may not be flushed.
            adopt(pm)?;
            is_durable = true;
        }
        if walk.report.is_clean() {
            pm.store_word(at::CLEAN, UNMOUNTED);
            pm.flush(at::CLEAN, 8);
            pm.fence(Rule::DurableBeforeReturn)?;
        }
        if walk.report.worst() != Some(Severity::Leak) {
            return Ok((walk.report, pass > 0));
        }
        if pass == 0 && !hit(Bug::RepairUnmarked) {
            // The repair may be killed, too.
            store_use(pm, boot);
            pm.flush(at::CLEAN, 24);
            pm.fence(Rule::DurableBeforeUse)?;
        }
        walk.fixes.apply(pm)?;
    }
    Ok((check(pm), true))
}

/// Makes durable what a sound image shows.
fn adopt<P: Pmem + ?Sized>(pm: &P) -> Result<(), Error> {
    let info = probe(pm)?;
    space_of(pm, &info).adopt().map_err(|e| match e {
        Fault::Medium(e) => Error::Medium(e),
        Fault::Corrupt(what) => Error::Corrupt(what),
        Fault::Errno(_) | Fault::Full | Fault::NamesUnread => {
            Error::Corrupt("it changed during the repair".into())
        }
    })
}

/// The image without its latest view, which needs an epoch.
fn space_of<'p, P: Pmem + ?Sized>(pm: &'p P, info: &SuperInfo) -> Space<&'p P> {
    Space {
        pm,
        pages: info.pages,
        epoch: 0,
        seed: seed(&info.uuid),
        is_after_crash: true,
    }
}

/// The stores that remove the leaks of an image.
#[derive(Default)]
struct Fixes {
    /// Pointers to blocks past the end of a file.
    pointers: Vec<(u64, u64)>,
    /// Links to the second name of a directory.
    second_names: Vec<(u64, u64)>,
    links: Vec<(u64, u64)>,
    bitmap: Vec<(u64, u64)>,
}

impl Fixes {
    /// Memory is free only after the pointers to it are removed. Names that are removed here are
    /// freed by the next pass.
    fn apply<P: Pmem + ?Sized>(&self, pm: &P) -> Result<(), Error> {
        for (stores, rule) in [
            (&self.pointers, Rule::NullifyBeforeReuse),
            (&self.second_names, Rule::NullifyBeforeReuse),
            (&self.links, Rule::NullifyBeforeReuse),
            (&self.bitmap, Rule::DurableBeforeReturn),
        ] {
            for (at, value) in stores {
                pm.store_word(*at, *value);
                pm.flush(*at, 8);
            }
            pm.fence(rule)?;
        }
        Ok(())
    }
}

/// A report, and the stores that remove its leaks.
struct Walked {
    report: Report,
    fixes: Fixes,
}

fn walk<P: Pmem + ?Sized>(pm: &P) -> Walked {
    let mut report = Report::default();
    let info = match probe(pm) {
        Ok(info) => info,
        Err(e) => {
            report.add("S1", Severity::Corrupt, e.to_string());
            let fixes = Fixes::default();
            return Walked { report, fixes };
        }
    };
    let space = space_of(pm, &info);
    let mut check = Check {
        used: vec![0; info.pages as usize],
        inodes: HashMap::new(),
        left: Vec::new(),
        fixes: Fixes::default(),
        space,
        report,
    };
    if let Err(e) = check.run() {
        let what = match e {
            Fault::Corrupt(what) => what,
            Fault::Medium(e) => e.to_string(),
            Fault::Errno(e) => e.to_string(),
            Fault::Full | Fault::NamesUnread => "no memory".into(),
        };
        check.report.add("S1", Severity::Corrupt, what);
    }
    Walked {
        report: check.report,
        fixes: check.fixes,
    }
}

/// An inode, as it was read.
struct Seen {
    kind: FileType,
    mode: u32,
    generation: u16,
    links: u32,
    names: u32,
    subdirs: u32,
    parent: Ino,
    /// The directories that name it, if it is one, each with the store that removes the name.
    named_by: Vec<(Ino, (u64, u64))>,
}

struct Check<'p, P: ?Sized> {
    space: Space<&'p P>,
    report: Report,
    /// The lines in use, a word for each page.
    used: Vec<u64>,
    inodes: HashMap<u64, Seen>,
    /// Directories that are not read yet.
    left: Vec<Ino>,
    fixes: Fixes,
}

impl<P: Pmem + ?Sized> Check<'_, P> {
    fn corrupt(&mut self, invariant: &str, what: String) {
        self.report.add(invariant, Severity::Corrupt, what);
    }

    fn leak(&mut self, invariant: &str, what: String) {
        self.report.add(invariant, Severity::Leak, what);
    }

    fn run(&mut self) -> Res<()> {
        for page in 0..reserved_pages(self.space.pages) {
            self.used[page as usize] = u64::MAX;
        }
        if self.inode(Ino::ROOT)? != Some(FileType::Directory) {
            self.corrupt("S1", "the root inode is not a directory".into());
            return Ok(());
        }
        while let Some(dir) = self.left.pop() {
            self.slot(dir, Line(dir.0).word(inode::ROOT), Hash(0), 0)?;
        }
        self.counts();
        self.bitmap()
    }

    /// Claims lines of a page. Returns false, with a finding, if one has a use already.
    fn claim(&mut self, page: Page, bits: u64, what: &dyn Fn() -> String) -> bool {
        if page.0 < reserved_pages(self.space.pages) || page.0 >= self.space.pages {
            self.corrupt("S3", format!("{} is in page {}, outside", what(), page.0));
            return false;
        }
        let used = &mut self.used[page.0 as usize];
        let is_free = *used & bits == 0;
        *used |= bits;
        if !is_free {
            self.corrupt(
                "S3",
                format!("{} in page {} has another use", what(), page.0),
            );
        }
        is_free
    }

    fn claim_line(&mut self, line: Line, what: &dyn Fn() -> String) -> bool {
        self.claim(Page(line.0 / LINES), 1 << (line.0 % LINES), what)
    }

    fn claim_page(&mut self, page: Page, what: &dyn Fn() -> String) -> bool {
        self.claim(page, u64::MAX, what)
    }

    /// Reads an inode for the first time. `None`: it is damaged.
    fn inode(&mut self, ino: Ino) -> Res<Option<FileType>> {
        let line = Line(ino.0);
        let name = || format!("inode {ino}");
        if ino != Ino::ROOT && !self.claim_line(line, &name) {
            return Ok(None);
        }
        let inode = self.space.inode(line)?;
        let Some(kind) = inode.kind() else {
            self.corrupt("S2", format!("inode {ino} has the mode {:o}", inode.mode()));
            return Ok(None);
        };
        let seen = Seen {
            kind,
            mode: inode.mode(),
            generation: inode.generation(),
            links: inode.links(),
            names: 0,
            subdirs: 0,
            parent: Ino(inode.0[2]),
            named_by: Vec::new(),
        };
        self.inodes.insert(ino.0, seen);
        if let Some(page) = inode.xattr() {
            self.xattr(ino, page)?;
        }
        match kind {
            FileType::Directory => self.left.push(ino),
            FileType::Regular => self.file(ino, Root(inode.0[3]), inode.0[2])?,
            FileType::Symlink => self.target(ino, Line(inode.0[3]), inode.0[2])?,
            FileType::Fifo | FileType::Socket | FileType::CharDevice | FileType::BlockDevice => {}
        }
        Ok(Some(kind))
    }

    fn xattr(&mut self, ino: Ino, page: Page) -> Res<()> {
        let name = || format!("the attributes of inode {ino}");
        if self.claim_page(page, &name) {
            let mut bytes = [0; PAGE as usize];
            self.space.pm.read(page.addr(), &mut bytes)?;
            if decode(&bytes).is_none() {
                self.corrupt("S10", format!("{} are malformed", name()));
            }
        }
        Ok(())
    }

    fn target(&mut self, ino: Ino, mut line: Line, len: u64) -> Res<()> {
        let name = || format!("the target of link {ino}");
        if len == 0 || len > SYMLINK_MAX as u64 {
            self.corrupt("S9", format!("{} has {len} bytes", name()));
            return Ok(());
        }
        for _ in 0..(len as usize).div_ceil(crate::format::TEXT) {
            if !self.claim_line(line, &name) {
                return Ok(());
            }
            line = Line(self.space.load(line.word(0))?);
        }
        let mut text = vec![0; len as usize];
        let first = Line(self.space.load(Line(ino.0).word(inode::ROOT))?);
        self.space.text(first, &mut text)?;
        if text.contains(&0) {
            self.corrupt("S9", format!("{} has a NUL", name()));
        }
        Ok(())
    }

    fn file(&mut self, ino: Ino, root: Root, size: u64) -> Res<()> {
        if size > vfs::SIZE_MAX {
            self.corrupt("S2", format!("file {ino} has {size} bytes"));
        }
        match root.page() {
            None => Ok(()),
            Some(_) if root.height() > MAX_HEIGHT => {
                self.corrupt("S7", format!("file {ino} has the height {}", root.height()));
                Ok(())
            }
            Some(page) => {
                let at = Line(ino.0).word(inode::ROOT);
                self.tree(ino, (at, page), root.height(), 0, size.div_ceil(PAGE))
            }
        }
    }

    /// Reads the tree to which the word at `at` leads.
    fn tree(
        &mut self,
        ino: Ino,
        (at, page): (u64, Page),
        height: u32,
        first: u64,
        end: u64,
    ) -> Res<()> {
        let name = || format!("block {first} of file {ino}");
        if !self.claim_page(page, &name) {
            return Ok(());
        }
        if height == 0 {
            if first >= end {
                self.leak("S7", format!("{} is past its end", name()));
                self.fixes.pointers.push((at, 0));
            }
            return Ok(());
        }
        for index in 0..FANOUT {
            let next = self.space.load(page.word(index))?;
            if next != 0 {
                let start = first + (index << (TABLE_BITS * (height - 1)));
                let next = (page.word(index), Page(next));
                self.tree(ino, next, height - 1, start, end)?;
            }
        }
        Ok(())
    }

    /// Reads a slot of a directory, with the least hash that it may hold.
    fn slot(&mut self, dir: Ino, at: u64, least: Hash, depth: u32) -> Res<()> {
        let link = Link(self.space.load(at)?);
        let Some(table) = link.as_table() else {
            return self.chain(dir, at, least, depth);
        };
        if depth == MAX_DEPTH {
            self.corrupt("S4", format!("directory {dir} has a table too deep"));
            return Ok(());
        }
        if !self.claim_page(table, &|| format!("a table of directory {dir}")) {
            return Ok(());
        }
        let step = crate::format::HASH_BITS - TABLE_BITS * (depth + 1);
        for index in 0..FANOUT {
            let least = Hash(least.0 | index << step);
            self.slot(dir, table.word(index), least, depth + 1)?;
        }
        Ok(())
    }

    fn chain(&mut self, dir: Ino, slot: u64, least: Hash, depth: u32) -> Res<()> {
        let mut at = slot;
        let mut link = Link(self.space.load(at)?);
        if link.head(least, depth).is_none() {
            self.corrupt(
                "S4",
                format!("directory {dir}: the link at byte {at} leads to another chain"),
            );
        }
        let mut last = least;
        let mut names = HashSet::new();
        while let Some(line) = link.in_chain(least, depth) {
            if !self.claim_line(line, &|| format!("a dentry of directory {dir}")) {
                return Ok(());
            }
            let entry = self.space.dentry(line)?;
            if entry.hash < last || Link::dentry(line, entry.hash) != link {
                self.corrupt(
                    "S4",
                    format!("directory {dir}: line {} is out of order", line.0),
                );
            }
            last = entry.hash;
            link = self.space.next(line)?;
            if link != Link::NONE && (link.as_table().is_some() || link.tag() < last.tag()) {
                self.corrupt("S4", format!("directory {dir}: line {} leads back", line.0));
            }
            // A slot is not an end of a chain.
            let rest = link.in_chain(least, depth).map_or(Link::NONE, |_| link);
            self.entry(dir, &entry, &mut names, (at, rest.0))?;
            at = line.word(dentry::NEXT);
        }
        Ok(())
    }

    /// Reads a dentry. `removal`: the store that removes it.
    fn entry(
        &mut self,
        dir: Ino,
        entry: &Dentry,
        names: &mut HashSet<Vec<u8>>,
        removal: (u64, u64),
    ) -> Res<()> {
        for line in self.space.lines_of_name(entry)? {
            self.claim_line(line, &|| format!("a name in directory {dir}"));
        }
        let name = self.space.name(entry)?;
        let text = name.escape_ascii().to_string();
        if check_name(&name).is_err() || Hash::of(&name, self.space.seed) != entry.hash {
            self.corrupt("S5", format!("directory {dir}: the name {text} is damaged"));
        }
        if !names.insert(name) {
            self.corrupt("S5", format!("directory {dir} has the name {text} twice"));
        }
        let ino = Ino(entry.ino);
        if !self.inodes.contains_key(&ino.0) {
            self.inode(ino)?;
        }
        let Some(seen) = self.inodes.get_mut(&ino.0) else {
            return Ok(());
        };
        seen.names += 1;
        let kind = seen.kind;
        if kind == FileType::Directory {
            seen.named_by.push((dir, removal));
            if let Some(parent) = self.inodes.get_mut(&dir.0) {
                parent.subdirs += 1;
            }
        }
        if kind as u8 != entry.kind {
            self.corrupt(
                "S5",
                format!("directory {dir}: {text} has another type than its inode"),
            );
        }
        Ok(())
    }

    fn counts(&mut self) {
        for (ino, seen) in std::mem::take(&mut self.inodes) {
            self.count(Ino(ino), &seen);
            self.parent(Ino(ino), &seen);
        }
    }

    fn count(&mut self, ino: Ino, seen: &Seen) {
        let (is_dir, links) = (seen.kind == FileType::Directory, seen.links);
        let wanted = if is_dir { 2 + seen.subdirs } else { seen.names };
        if links < wanted {
            self.corrupt(
                "S6",
                format!("inode {ino} counts {links} of {wanted} links"),
            );
        } else if links != wanted {
            self.leak(
                "S6",
                format!("inode {ino} counts {links} links, not {wanted}"),
            );
            let word = mode_word(seen.mode, seen.generation, wanted);
            let at = Line(ino.0).word(inode::MODE);
            self.fixes.links.push((at, word));
        }
    }

    fn parent(&mut self, ino: Ino, seen: &Seen) {
        let is_parent = |(dir, _): &&(Ino, (u64, u64))| *dir == seen.parent;
        let has_parent = seen.named_by.iter().any(|named| is_parent(&named));
        let is_root = ino == Ino::ROOT && seen.parent == ino;
        if seen.kind == FileType::Directory && !has_parent && !is_root {
            self.corrupt(
                "S8",
                format!("the parent of directory {ino} does not name it"),
            );
        }
        match seen.named_by.len() {
            1.. if ino == Ino::ROOT => {
                self.corrupt("S8", "the root directory has a name".to_owned());
            }
            0 | 1 => {}
            n => {
                self.leak("S8", format!("directory {ino} has {n} names"));
                let other = seen.named_by.iter().find(|named| !is_parent(named));
                let other = other.or(seen.named_by.last());
                // One in each pass: another one may be next to it.
                if let Some((_, removal)) = other.filter(|_| self.fixes.second_names.is_empty()) {
                    self.fixes.second_names.push(*removal);
                }
            }
        }
    }

    fn bitmap(&mut self) -> Res<()> {
        for page in 0..self.space.pages {
            let stored = self.space.load(bitmap_word(Page(page)))?;
            let used = self.used[page as usize];
            if used & !stored != 0 {
                self.corrupt(
                    "S11",
                    format!("lines of page {page} are in use and marked as free"),
                );
            }
            let lost = (stored & !used).count_ones();
            if lost > 0 {
                self.leak("S11", format!("{lost} lines of page {page} have no use"));
                self.fixes.bitmap.push((bitmap_word(Page(page)), used));
            }
        }
        Ok(())
    }
}
