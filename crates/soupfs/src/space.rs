//! The image: reads of its structures with their bounds, and the epoch of this mount.

use crate::error::{Res, corrupt};
use crate::format::{
    FANOUT, Hash, INLINE_NAME, Inode, LINES, Line, Link, MAX_HEIGHT, NAME_START, PAGE, Page, Root,
    TABLE_BITS, TEXT, UNMOUNTED, WITH_REMAINS, at, dentry,
};
use crate::seeded::{Bug, hit};
use medium::{Pmem, Rule};
use vfs::{FileType, SYMLINK_MAX};

/// The medium of a mount.
pub(crate) struct Space<P> {
    pub pm: P,
    /// Pages of the file system.
    pub pages: u64,
    /// The number of this mount. Latest pointers of another epoch mean nothing.
    pub epoch: u64,
    /// Seed of the hashes of names.
    pub seed: u64,
    /// Whether an earlier mount did not end with an unmount, and no repair has followed.
    pub is_after_crash: bool,
}

/// A dentry without its name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dentry {
    pub line: Line,
    pub ino: u64,
    pub kind: u8,
    pub hash: Hash,
    pub len: usize,
}

impl<P: Pmem> Space<P> {
    /// Checks a line that was read.
    pub(crate) fn line(&self, line: Line) -> Res<Line> {
        match line.0 / LINES < self.pages {
            true => Ok(line),
            false => Err(corrupt(format_args!("line {} is outside", line.0))),
        }
    }

    /// Checks a page that was read.
    pub(crate) fn page(&self, page: Page) -> Res<Page> {
        match page.0 != 0 && page.0 < self.pages {
            true => Ok(page),
            false => Err(corrupt(format_args!("page {} is outside", page.0))),
        }
    }

    /// Checks a page of a tree that was read, and counts it among those `seen`. A damaged tree may reach one again and
    /// again.
    pub(crate) fn page_of_tree(&self, page: Page, seen: &mut u64) -> Res<Page> {
        *seen += 1;
        match *seen > self.pages {
            true => Err(twice(page)),
            false => self.page(page),
        }
    }

    /// Adds a page that was read to those of a tree. A damaged tree may reach one several times.
    pub(crate) fn add_page(&self, page: Page, pages: &mut Vec<Page>) -> Res<()> {
        if pages.len() as u64 >= self.pages {
            return Err(twice(page));
        }
        pages.push(self.page(page)?);
        Ok(())
    }

    pub(crate) fn load(&self, at: u64) -> Res<u64> {
        Ok(self.pm.load(at)?)
    }

    pub(crate) fn inode(&self, line: Line) -> Res<Inode> {
        self.line(line)?;
        let mut words = [0; 8];
        for (n, word) in words.iter_mut().enumerate() {
            *word = self.load(line.word(n as u64))?;
        }
        Ok(Inode(words))
    }

    /// The entry of a table with the index.
    pub(crate) fn entry(&self, table: Page, index: u64) -> Res<u64> {
        Ok(self.page(table)?.word(index % FANOUT))
    }

    pub(crate) fn dentry(&self, line: Line) -> Res<Dentry> {
        self.line(line)?;
        let (inode, hash) = (
            self.load(line.word(dentry::INODE))?,
            self.load(line.word(dentry::HASH))?,
        );
        Ok(Dentry {
            line,
            ino: inode & ((1 << 56) - 1),
            kind: (inode >> 56) as u8,
            hash: Hash(hash >> 8),
            len: (hash & 0xff) as usize,
        })
    }

    /// The link in a slot for `hash` below `depth` tables, which leads to no table.
    pub(crate) fn head(&self, link: Link, hash: Hash, depth: u32) -> Res<Link> {
        let outside = || {
            corrupt(format_args!(
                "a slot leads to line {} of another chain",
                link.line().0
            ))
        };
        link.head(hash, depth).ok_or_else(outside)
    }

    /// The next dentry in the consistent view.
    pub(crate) fn next(&self, line: Line) -> Res<Link> {
        Ok(Link(self.load(line.word(dentry::NEXT))?))
    }

    /// The next dentry in the latest view.
    pub(crate) fn latest_next(&self, line: Line) -> Res<Link> {
        match self.load(line.word(dentry::EPOCH))? == self.epoch || hit(Bug::StaleEpoch) {
            true => Ok(Link(self.load(line.word(dentry::LATEST))?)),
            false => self.next(line),
        }
    }

    /// Sets the next dentry in the latest view.
    pub(crate) fn set_latest_next(&self, line: Line, next: Link) {
        self.pm.store_word(line.word(dentry::LATEST), next.0);
        self.pm.store_word(line.word(dentry::EPOCH), self.epoch);
    }

    /// The first line of a long name.
    fn name_lines(&self, entry: &Dentry) -> Res<Option<Line>> {
        if entry.len <= INLINE_NAME {
            return Ok(None);
        }
        let line = Line(self.load(entry.line.word(dentry::NAME))?);
        self.line(line).map(Some)
    }

    /// All lines of a dentry's name.
    pub(crate) fn lines_of_name(&self, entry: &Dentry) -> Res<Vec<Line>> {
        match self.name_lines(entry)? {
            None => Ok(Vec::new()),
            Some(first) => self.text_lines(first, entry.len - NAME_START),
        }
    }

    /// The name of a dentry.
    pub(crate) fn name(&self, entry: &Dentry) -> Res<Vec<u8>> {
        let mut name = vec![0; entry.len];
        match self.name_lines(entry)? {
            None => self.pm.read(entry.line.word(dentry::NAME), &mut name)?,
            Some(line) => {
                let (start, rest) = name.split_at_mut(NAME_START);
                self.pm.read(entry.line.word(dentry::NAME + 1), start)?;
                self.text(line, rest)?;
            }
        }
        Ok(name)
    }

    /// Whether a dentry has this name.
    pub(crate) fn is_named(&self, entry: &Dentry, name: &[u8]) -> Res<bool> {
        if entry.len != name.len() {
            return Ok(false);
        }
        if entry.len > INLINE_NAME {
            return Ok(self.name(entry)? == name);
        }
        let mut bytes = [0; INLINE_NAME];
        let own = &mut bytes[..entry.len];
        self.pm.read(entry.line.word(dentry::NAME), own)?;
        Ok(own == name)
    }

    /// Reads a text that begins in `line`.
    pub(crate) fn text(&self, mut line: Line, out: &mut [u8]) -> Res<()> {
        for part in out.chunks_mut(TEXT) {
            self.line(line)?;
            self.pm.read(line.addr() + 8, part)?;
            line = Line(self.load(line.word(0))?);
        }
        Ok(())
    }

    /// The lines of a text of `len` bytes that begins in `line`.
    pub(crate) fn text_lines(&self, mut line: Line, len: usize) -> Res<Vec<Line>> {
        if len > SYMLINK_MAX {
            return Err(corrupt(format_args!("a text has {len} bytes")));
        }
        let mut lines = Vec::new();
        for _ in 0..len.div_ceil(TEXT) {
            lines.push(self.line(line)?);
            line = Line(self.load(line.word(0))?);
        }
        Ok(lines)
    }

    /// Stores a text in as many lines as it needs.
    pub(crate) fn put_text(&self, lines: &[Line], text: &[u8]) {
        for (n, part) in text.chunks(TEXT).enumerate() {
            let mut bytes = [0; 64];
            let next = lines.get(n + 1).map_or(0, |line| line.0);
            bytes[..8].copy_from_slice(&next.to_le_bytes());
            bytes[8..8 + part.len()].copy_from_slice(part);
            self.pm.store(lines[n].addr(), &bytes);
        }
    }

    /// Stores a new dentry, which is in no chain yet. `lines`: those of a long name.
    pub(crate) fn put_dentry(&self, at: Line, new: &NewDentry<'_>, lines: &[Line]) {
        let name = new.name;
        let mut bytes = [0; 64];
        let mut word = |n: u64, value: u64| {
            bytes[n as usize * 8..][..8].copy_from_slice(&value.to_le_bytes());
        };
        word(dentry::INODE, new.ino | u64::from(new.kind as u8) << 56);
        word(dentry::LATEST, new.next.0);
        word(dentry::EPOCH, self.epoch);
        word(dentry::HASH, new.hash.0 << 8 | name.len() as u64);
        let place = dentry::NAME as usize * 8;
        match lines.first() {
            None => bytes[place..][..name.len()].copy_from_slice(name),
            Some(first) => {
                bytes[place..][..8].copy_from_slice(&first.0.to_le_bytes());
                bytes[place + 8..].copy_from_slice(&name[..NAME_START]);
                self.put_text(lines, &name[NAME_START..]);
            }
        }
        self.pm.store(at.addr(), &bytes);
    }

    /// The page of a block in a tree on the medium.
    pub(crate) fn block(&self, root: Root, block: u64) -> Res<Option<Page>> {
        let (mut page, mut height) = match root.page() {
            Some(page) if block < Root::span(root.height()) => (page, root.height()),
            _ => return Ok(None),
        };
        if height > MAX_HEIGHT {
            return Err(corrupt(format_args!("a tree has the height {height}")));
        }
        while height > 0 {
            height -= 1;
            let index = block >> (TABLE_BITS * height);
            match self.load(self.entry(page, index)?)? {
                0 => return Ok(None),
                next => page = self.page(Page(next))?,
            }
        }
        self.page(page).map(Some)
    }

    /// Marks the image as unmounted. `leaks`: this mount leaves memory that is not in use.
    pub(crate) fn mark_unmounted(&self, leaks: bool) -> Res<()> {
        // The last round has cleared bits of the bitmap, and no fence has followed.
        if !hit(Bug::CleanBeforeFree) {
            self.pm.fence(Rule::DurableBeforeUse)?;
        }
        let remains = self.is_after_crash && !hit(Bug::RemainsForgotten);
        let mark = if leaks || remains {
            WITH_REMAINS
        } else {
            UNMOUNTED
        };
        self.put(at::CLEAN, mark);
        match hit(Bug::NoCleanFence) {
            true => Ok(()),
            false => Ok(self.pm.fence(Rule::DurableBeforeReturn)?),
        }
    }

    pub(crate) fn prefetch(&self, line: Line) {
        self.pm.prefetch(line.addr());
    }

    pub(crate) fn flush_line(&self, line: Line) {
        self.pm.flush(line.addr(), 64);
    }

    pub(crate) fn flush_page(&self, page: Page) {
        self.pm.flush(page.addr(), PAGE);
    }

    /// Flushes a block of a file of this size. The bytes after the end are never read, and a file that
    /// grows over them zeros them first.
    pub(crate) fn flush_block(&self, page: Page, block: u64, size: u64) {
        let mut len = size.saturating_sub(block * PAGE).min(PAGE);
        if hit(Bug::LastLineNotFlushed) {
            len = len.saturating_sub(64);
        }
        if len > 0 {
            self.pm.flush(page.addr(), len);
        }
    }

    /// Stores a word and starts its write-back.
    pub(crate) fn put(&self, at: u64, value: u64) {
        self.pm.store_word(at, value);
        self.pm.flush(at, 8);
    }

    pub(crate) fn zero_page(&self, page: Page) {
        self.pm.store(page.addr(), &[0; PAGE as usize]);
    }
}

/// Lines that a name needs besides its dentry.
pub(crate) fn lines_of_name(len: usize) -> usize {
    match len <= INLINE_NAME {
        true => 0,
        false => (len - NAME_START).div_ceil(TEXT),
    }
}

/// A dentry to be made.
pub(crate) struct NewDentry<'a> {
    pub ino: u64,
    pub kind: FileType,
    pub hash: Hash,
    pub name: &'a [u8],
    /// The next dentry in the latest view.
    pub next: Link,
}

fn twice(page: Page) -> crate::error::Fault {
    corrupt(format_args!("page {} is in a tree twice", page.0))
}
