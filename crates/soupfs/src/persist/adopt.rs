//! Flushes what a killed server may have left in the caches of the processor.
//!
//! A kill loses no store, but a later power failure may lose those that the server had not flushed. The
//! next mount sees them, and builds on them. So it first makes all durable that the consistent view
//! reaches, and the bitmap. After a power failure there is nothing to do: what a mount sees is durable.

use super::dirs::Chain;
use super::files::pages_of;
use crate::error::{Res, corrupt};
use crate::format::{
    FANOUT, HASH_BITS, Hash, Line, Link, MAX_DEPTH, Page, Root, TABLE_BITS, bitmap_pages, inode,
};
use crate::seeded::{Bug, hit};
use crate::space::Space;
use hashbrown::HashSet;
use medium::{Pmem, Rule};
use vfs::{FileType, Ino};

impl<P: Pmem> Space<P> {
    /// Makes the whole consistent view durable, before the file system is used.
    pub(crate) fn adopt(&self) -> Res<()> {
        if hit(Bug::NotAdopted) {
            return Ok(());
        }
        let mut walk = Walk {
            space: self,
            seen: HashSet::new(),
            tables: Vec::new(),
            left: vec![Ino::ROOT],
        };
        while let Some(ino) = walk.left.pop() {
            if walk.seen.insert(ino.0) {
                walk.inode(ino)?;
            }
        }
        (0..bitmap_pages(self.pages)).for_each(|n| self.flush_page(Page(1 + n)));
        Ok(self.pm.fence(Rule::DurableBeforeUse)?)
    }
}

struct Walk<'s, P> {
    space: &'s Space<P>,
    seen: HashSet<u64>,
    /// The tables of all directories.
    tables: Vec<Page>,
    left: Vec<Ino>,
}

impl<P: Pmem> Walk<'_, P> {
    fn inode(&mut self, ino: Ino) -> Res<()> {
        let space = self.space;
        let line = Line(ino.0);
        let inode = space.inode(line)?;
        space.flush_line(line);
        if let Some(page) = inode.xattr() {
            space.flush_page(space.page(page)?);
        }
        match inode.kind() {
            Some(FileType::Directory) => self.slot(line.word(inode::ROOT), Hash(0), 0)?,
            Some(FileType::Regular) => {
                let mut pages = Vec::new();
                pages_of(space, Root(inode.0[3]), &mut pages)?;
                pages.into_iter().for_each(|page| space.flush_page(page));
            }
            Some(FileType::Symlink) => {
                let lines = space.text_lines(Line(inode.0[3]), inode.0[2] as usize)?;
                lines.into_iter().for_each(|line| space.flush_line(line));
            }
            Some(_) => {}
            None => return Err(corrupt(format_args!("inode {ino} has no type"))),
        }
        Ok(())
    }

    fn slot(&mut self, at: u64, least: Hash, depth: u32) -> Res<()> {
        let space = self.space;
        let Some(table) = Link(space.load(at)?)
            .as_table()
            .filter(|_| depth < MAX_DEPTH)
        else {
            return self.chain(at, least, depth);
        };
        space.add_page(table, &mut self.tables)?;
        space.flush_page(table);
        let shift = HASH_BITS - TABLE_BITS * (depth + 1);
        for index in 0..FANOUT {
            self.slot(table.word(index), Hash(least.0 | index << shift), depth + 1)?;
        }
        Ok(())
    }

    fn chain(&mut self, at: u64, least: Hash, depth: u32) -> Res<()> {
        let space = self.space;
        for (line, ..) in Chain::from(space, at, least, depth)?.entries {
            space.flush_line(line);
            let entry = space.dentry(line)?;
            space
                .lines_of_name(&entry)?
                .into_iter()
                .for_each(|line| space.flush_line(line));
            self.left.push(Ino(entry.ino));
        }
        Ok(())
    }
}
