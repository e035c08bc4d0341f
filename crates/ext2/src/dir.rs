//! Directories: linear lists of entries in blocks. The places of names in large directories are
//! kept in memory (see `names`).
//!
//! # Order
//! A fresh block is initialised in one change, and the pointer to it comes after that. Every change
//! of a block covers the `rec_len` of each entry that it relies on. It thus overlaps the last
//! changes of these entries, and comes after them: the entries on the medium always tile the block.
//! A name that is made again, perhaps elsewhere, comes after its removal, so that it is never there
//! twice.

use crate::alloc::Purpose;
use crate::format::{DIRENT_HEADER, DirentHeader, Inode, InodeFlags, type_code};
use crate::inode::Node;
use crate::names::Names;
use crate::pending::MadeName;
use crate::seeded::{Bug, hit};
use crate::volume::Ext2;
use blockfs::{FormatError, Heads, Removed, Result};
use medium::block::{Buffer, Lba};
use patch::{Before, Op, PatchId, Rule, attempt};
use std::mem::offset_of;
use std::sync::Arc;
use vfs::{Cookie, DirEntry, Errno, FileType, Ino, NAME_MAX};
use zerocopy::{FromBytes, IntoBytes};

/// An entry in a block.
#[derive(Debug, Clone, Copy)]
struct Entry {
    at: usize,
    ino: u32,
    rec_len: usize,
    name_len: usize,
    code: u8,
}

impl Entry {
    fn name<'a>(&self, block: &'a [u8]) -> &'a [u8] {
        let start = self.at + DIRENT_HEADER;
        &block[start..start + self.name_len]
    }

    /// Bytes of the entry without free space after it.
    fn used(&self) -> usize {
        if self.ino == 0 {
            0
        } else {
            needed(self.name_len)
        }
    }

    fn is_dot(&self, block: &[u8]) -> bool {
        matches!(self.name(block), b"." | b"..")
    }
}

/// An entry and its place.
struct FoundEntry {
    /// The block's number within the directory, and on the device.
    index: u64,
    block: u32,
    contents: Arc<Buffer>,
    entry: Entry,
    /// The entry before it in the block.
    previous: Option<Entry>,
}

/// The smallest `rec_len` for a name.
pub(crate) fn needed(name_len: usize) -> usize {
    (DIRENT_HEADER + name_len).next_multiple_of(4)
}

fn kind_of(code: u8) -> Option<FileType> {
    use FileType as T;
    let all = [
        T::Regular,
        T::Directory,
        T::CharDevice,
        T::BlockDevice,
        T::Fifo,
        T::Socket,
        T::Symlink,
    ];
    all.into_iter().find(|kind| type_code(*kind) == code)
}

/// A function that is called for each entry. It gets the block's number within the directory and on
/// the device, its contents, the entry, and the entry before it.
trait Visit<T>: FnMut(u64, u32, &Arc<Buffer>, Entry, Option<Entry>) -> Result<Option<T>> {}

impl<T, F> Visit<T> for F where
    F: FnMut(u64, u32, &Arc<Buffer>, Entry, Option<Entry>) -> Result<Option<T>>
{
}

/// Most blocks of a directory that is searched from the start.
const FEW_BLOCKS: u64 = 4;

const REC_LEN: usize = offset_of!(DirentHeader, rec_len);

impl Ext2 {
    pub(crate) fn load_dir(&self, dir: Ino) -> Result<Node> {
        let node = self.load_ino(dir)?;
        if node.kind() != Some(FileType::Directory) {
            return Err(FormatError::Limit(Errno::NOTDIR));
        }
        Ok(node)
    }

    pub(crate) fn dir_blocks(&self, dir: &Node) -> Result<u64> {
        let size = dir.size();
        let bytes = u64::from(self.layout.block_bytes);
        if !size.is_multiple_of(bytes) || size / bytes > self.layout.blocks.into() {
            let what = format!("directory {}: its size is {size}", dir.ino);
            return Err(FormatError::Corrupt(what));
        }
        Ok(size / bytes)
    }

    fn dir_block(&self, dir: &Node, index: u64) -> Result<(u32, Arc<Buffer>)> {
        let Some(block) = self.block_at(dir, index)? else {
            let what = format!("directory {}: block {index} is missing", dir.ino);
            return Err(FormatError::Corrupt(what));
        };
        let read = self.store.read(Lba(block.into()));
        let contents = read.inspect_err(|_| self.want_dir_blocks(dir, index + 1))?;
        Ok((block, contents))
    }

    /// The entry at an offset of a block, `None` at its end.
    fn entry(&self, dir: &Node, block: u32, contents: &[u8], at: usize) -> Result<Option<Entry>> {
        if at >= contents.len() {
            return Ok(None);
        }
        let corrupt = |what: &str| {
            let dir = dir.ino;
            let what = format!("directory {dir}: entry at {at} of block {block}: {what}");
            Err(FormatError::Corrupt(what))
        };
        let Ok((header, _)) = DirentHeader::read_from_prefix(&contents[at..]) else {
            return corrupt("cut off");
        };
        let rec_len = usize::from(header.rec_len.get());
        let name_len = usize::from(header.name_len);
        if rec_len % 4 != 0 || rec_len < needed(1) || at + rec_len > contents.len() {
            return corrupt("wrong record length");
        }
        if needed(name_len) > rec_len {
            return corrupt("the name does not fit");
        }
        let ino = header.inode.get();
        if ino != 0 && (name_len == 0 || self.number(Ino(ino.into())).is_none()) {
            return corrupt("wrong inode or empty name");
        }
        let code = if self.layout.file_types {
            header.file_type
        } else {
            0
        };
        Ok(Some(Entry {
            at,
            ino,
            rec_len,
            name_len,
            code,
        }))
    }

    /// Calls `f` for each entry from block `first` on, with the entry before it, until it returns a
    /// value.
    fn scan<T>(&self, dir: &Node, first: u64, mut f: impl Visit<T>) -> Result<Option<T>> {
        for index in first..self.dir_blocks(dir)? {
            let found = self.scan_block(dir, index, &mut f)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn scan_block<T>(&self, dir: &Node, index: u64, f: &mut impl Visit<T>) -> Result<Option<T>> {
        let (block, contents) = self.dir_block(dir, index)?;
        let (mut at, mut previous) = (0, None);
        while let Some(entry) = self.entry(dir, block, &contents, at)? {
            let found = f(index, block, &contents, entry, previous)?;
            if found.is_some() {
                return Ok(found);
            }
            at += entry.rec_len;
            previous = Some(entry);
        }
        Ok(None)
    }

    /// Runs `f` on the known names of a large directory. `None` for others.
    pub(crate) fn with_names<T>(
        &self,
        dir: &Node,
        f: impl FnOnce(&mut Names) -> T,
    ) -> Result<Option<T>> {
        if self.dir_blocks(dir)? <= FEW_BLOCKS {
            return Ok(None);
        }
        if let Some(known) = self.names.lock().get(dir.ino) {
            return Ok(known.map(f));
        }
        // In a directory with a bad block, the names before it can still be found.
        let mut found = match self.gather_names(dir) {
            Err(error) if error.is_absent() => return Err(error),
            gathered => gathered.unwrap_or_default(),
        };
        let result = found.as_mut().map(f);
        self.names.lock().put(dir.ino, found);
        Ok(result)
    }

    /// Reads all names. `None` if there are too many.
    fn gather_names(&self, dir: &Node) -> Result<Option<Names>> {
        self.ready_dir(dir)?;
        let mut names = Names::default();
        for index in 0..self.dir_blocks(dir)? {
            let mut room = 0;
            let full = self.scan_block(dir, index, &mut |_, _, contents, entry, _| {
                room = room.max(entry.rec_len - entry.used());
                let counts = entry.ino == 0 || names.add(entry.name(contents), index);
                Ok((!counts).then_some(()))
            })?;
            if full.is_some() {
                return Ok(None);
            }
            names.set_room(index, room);
        }
        Ok(Some(names))
    }

    /// Updates the known names after a change of a block.
    fn renew_names(&self, dir: &Node, index: u64, f: impl FnOnce(&mut Names) -> bool) {
        if self.names.lock().get(dir.ino).is_none() {
            return;
        }
        let mut room = 0;
        let seen = self.scan_block(dir, index, &mut |_, _, _, entry, _| {
            room = room.max(entry.rec_len - entry.used());
            Ok(None::<()>)
        });
        let mut all = self.names.lock();
        let Some(Some(names)) = all.get(dir.ino) else {
            return;
        };
        let fits = f(names);
        names.set_room(index, room);
        let grown = names.len().is_power_of_two();
        if seen.is_err() || !fits {
            all.forget(dir.ino);
        }
        if grown {
            all.limit();
        }
    }

    fn seek_name(&self, dir: &Node, name: &[u8]) -> Result<Option<FoundEntry>> {
        let mut is_it = |index, block, contents: &Arc<Buffer>, entry: Entry, previous| {
            if entry.ino == 0 || entry.name(contents) != name {
                return Ok(None);
            }
            Ok(Some(FoundEntry {
                index,
                block,
                contents: contents.clone(),
                entry,
                previous,
            }))
        };
        let Some(blocks) = self.with_names(dir, |names| names.blocks_of(name))? else {
            return self.scan(dir, 0, is_it);
        };
        for index in blocks {
            let found = self.scan_block(dir, index, &mut is_it)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Finds the first entry with `need` bytes of room after it.
    fn seek_room(&self, dir: &Node, need: usize) -> Result<Option<FoundEntry>> {
        let mut fits = |index, block, contents: &Arc<Buffer>, entry: Entry, previous| {
            let fits = entry.rec_len - entry.used() >= need;
            Ok(fits.then(|| FoundEntry {
                index,
                block,
                contents: contents.clone(),
                entry,
                previous,
            }))
        };
        match self.with_names(dir, |names| names.block_for(need))? {
            None => self.scan(dir, 0, fits),
            Some(None) => Ok(None),
            Some(Some(index)) => self.scan_block(dir, index, &mut fits),
        }
    }

    fn must_find(&self, dir: &Node, name: &[u8]) -> Result<FoundEntry> {
        let found = self.seek_name(dir, name)?;
        found.ok_or(FormatError::Limit(Errno::NOENT))
    }

    pub(crate) fn find_name(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        let found = self.seek_name(&self.load_dir(dir)?, name)?;
        Ok(found.map(|found| Ino(found.entry.ino.into())))
    }

    pub(crate) fn list_names(
        &self,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.load_dir(dir)?;
        let size = u64::from(self.layout.block_bytes);
        // A cookie is one more than the offset of its entry.
        let first = after.0.saturating_sub(1) / size;
        self.scan(&dir, first, |index, _, contents, entry, _| {
            let cookie = Cookie(index * size + entry.at as u64 + 1);
            if entry.ino == 0 || cookie <= after {
                return Ok(None);
            }
            let ino = Ino(entry.ino.into());
            let kind = match kind_of(entry.code) {
                Some(kind) => kind,
                None => self.kind_by_inode(ino)?,
            };
            let name = entry.name(contents);
            let accepted = sink(&DirEntry {
                ino,
                kind,
                name,
                cookie,
            });
            Ok((!accepted).then_some(()))
        })?;
        Ok(())
    }

    fn kind_by_inode(&self, ino: Ino) -> Result<FileType> {
        let kind = self.load_ino(ino)?.kind();
        kind.ok_or_else(|| FormatError::Corrupt(format!("inode {ino}: it has a name and no type")))
    }

    pub(crate) fn has_no_names(&self, dir: Ino) -> Result<bool> {
        let dir = self.load_dir(dir)?;
        let found = self.scan(&dir, 0, |_, _, contents, entry, _| {
            Ok((entry.ino != 0 && !entry.is_dot(contents)).then_some(()))
        })?;
        Ok(found.is_none())
    }

    // --- changing ---------------------------------------------------------------------

    fn header(&self, ino: u32, rec_len: usize, name_len: usize, kind: FileType) -> DirentHeader {
        DirentHeader {
            inode: ino.into(),
            rec_len: (rec_len as u16).into(),
            name_len: name_len as u8,
            file_type: if self.layout.file_types {
                type_code(kind)
            } else {
                0
            },
        }
    }

    /// An entry's bytes up to the end of its padding.
    fn entry_bytes(&self, ino: u32, rec_len: usize, name: &[u8], kind: FileType) -> Vec<u8> {
        let header = self.header(ino, rec_len, name.len(), kind);
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(name);
        bytes.resize(needed(name.len()), 0);
        bytes
    }

    /// Makes an indexed directory a linear one before its first change. Returns the before of that
    /// change.
    fn unindex(&self, op: &Op, dir: &mut Node) -> Result<Option<Before>> {
        let rule = Rule::InitialiseBeforePoint;
        let flags = dir.inode.flags.get();
        let index = InodeFlags::INDEX.bits();
        if flags & index == 0 {
            let state = self.state.lock();
            let known = state.unindexed.get(&*self.store, &dir.ino);
            return Ok(known.map(|&patch| Before { patch, rule }));
        }
        dir.inode.flags.set(flags & !index);
        let at = offset_of!(Inode, flags);
        let patch = self.write_node(op, dir, at..at + 4, &[])?.id;
        let mut state = self.state.lock();
        state.unindexed.insert(&*self.store, dir.ino, patch);
        Ok(Some(Before { patch, rule }))
    }

    pub(crate) fn start_directory(&self, op: &Op, dir: Ino, parent: Ino) -> Result<Heads> {
        let number = self.load_ino(dir)?.ino;
        let parent = self.load_ino(parent)?.ino;
        let size = self.layout.block_bytes as usize;
        let mut contents = Buffer::zeroed(size);
        let kind = FileType::Directory;
        let dot = self.entry_bytes(number, needed(1), b".", kind);
        let up = self.entry_bytes(parent, size - dot.len(), b"..", kind);
        contents[..dot.len()].copy_from_slice(&dot);
        contents[dot.len()..dot.len() + up.len()].copy_from_slice(&up);
        let (attached, _) = self.add_dir_block(op, dir, 0, &contents, &[])?;
        Ok(Heads::from_slice(&[attached]))
    }

    /// Adds a block to a directory. Returns the patches that point to it and fill it.
    fn add_dir_block(
        &self,
        op: &Op,
        dir: Ino,
        index: u64,
        contents: &[u8],
        befores: &[Before],
    ) -> Result<(PatchId, PatchId)> {
        let number = self.load_ino(dir)?.ino;
        let size = (index + 1) * u64::from(self.layout.block_bytes);
        let size = u32::try_from(size).map_err(|_| FormatError::NoSpace)?;
        if let Some(block) = self.block_past_end(dir, index)? {
            return self.adopt_dir_block(op, dir, block, size, contents, befores);
        }
        // The block, and the indirect blocks that it may need.
        let room = self.missing(dir, index..index + 1)?;
        if self.state.lock().usable_blocks(&self.layout) < room {
            return Err(FormatError::NoSpace);
        }
        let block = self.take_block(op, number, index, Purpose::Directory)?;
        let reused = block.before_contents();
        let reused = reused.filter(|_| !hit(Bug::DirectoryBeforeReuse));
        let filled = self.change(op, block.lba, 0, contents, reused.as_slice())?;
        let mut befores = befores.to_vec();
        if index == 0 || !hit(Bug::GrowBeforeFill) {
            befores.push(Before {
                patch: filled,
                rule: Rule::InitialiseBeforePoint,
            });
        }
        let attached = self.attach(op, dir, index, &block, &befores, Some(size))?;
        Ok((attached, filled))
    }

    pub(crate) fn insert_name(
        &self,
        op: &Op,
        dir: Ino,
        name: &[u8],
        (ino, kind): (Ino, FileType),
        befores: &[Before],
    ) -> Result<PatchId> {
        if name.len() > NAME_MAX {
            return Err(FormatError::Limit(Errno::NAMETOOLONG));
        }
        let mut node = self.load_dir(dir)?;
        let number = self.load_ino(ino)?.ino;
        let need = needed(name.len());
        let found = self.seek_room(&node, need)?;
        let mut befores = befores.to_vec();
        befores.extend(self.erased(&node, name));
        self.layout_change(op, &mut node, &mut befores)?;
        let Some(FoundEntry {
            index,
            block,
            contents,
            entry,
            ..
        }) = found
        else {
            return self.append_name(op, &node, name, (number, kind), &befores);
        };
        let used = entry.used();
        let target = entry.at + used;
        let bytes = self.entry_bytes(number, entry.rec_len - used, name, kind);
        let (at, new) = match used {
            0 => (target, bytes),
            _ => {
                // From the shortened entry's record length on.
                let at = entry.at + REC_LEN;
                let mut new = contents[at..target].to_vec();
                new[..2].copy_from_slice(&(used as u16).to_le_bytes());
                new.extend(bytes);
                (at, new)
            }
        };
        let old = contents[at..at + new.len()].into();
        drop(contents);
        let patch = self.change(op, Lba(block.into()), at as u32, &new, &befores)?;
        let new = new.into();
        let made = MadeName {
            patch,
            at,
            old,
            new,
        };
        self.remember(block, target, made);
        self.renew_names(&node, index, |names| names.add(name, index));
        Ok(patch)
    }

    /// Adds a block with one name to a directory.
    fn append_name(
        &self,
        op: &Op,
        dir: &Node,
        name: &[u8],
        (number, kind): (u32, FileType),
        befores: &[Before],
    ) -> Result<PatchId> {
        let index = self.dir_blocks(dir)?;
        let size = self.layout.block_bytes as usize;
        let mut contents = self.entry_bytes(number, size, name, kind);
        contents.resize(size, 0);
        let ino = Ino(dir.ino.into());
        let (attached, filled) = self.add_dir_block(op, ino, index, &contents, befores)?;
        let made = MadeName {
            patch: filled,
            at: 0,
            old: Box::default(),
            new: Box::default(),
        };
        let dir = self.load(dir.ino)?;
        if let Some(block) = self.block_at(&dir, index)? {
            self.remember(block, 0, made);
        }
        self.renew_names(&dir, index, |names| names.add(name, index));
        Ok(attached)
    }

    /// The removal of a name that is made again.
    fn erased(&self, dir: &Node, name: &[u8]) -> Option<Before> {
        let state = self.state.lock();
        let erased = state.erased.get(&*self.store, &(dir.ino, name.into()));
        let erased = erased.filter(|_| !hit(Bug::NameTwice));
        erased.map(|&patch| Before {
            patch,
            rule: Rule::NullifyBeforeReuse,
        })
    }

    fn layout_change(&self, op: &Op, dir: &mut Node, befores: &mut Vec<Before>) -> Result<()> {
        befores.extend(self.unindex(op, dir)?);
        Ok(())
    }

    fn remember(&self, block: u32, at: usize, made: MadeName) {
        let mut state = self.state.lock();
        state.names.insert(&*self.store, (block, at as u32), made);
    }

    /// Removes and returns the record of a name's making.
    fn maker(&self, found: &FoundEntry) -> Option<MadeName> {
        attempt::commit(); // memory changes first
        let key = (found.block, found.entry.at as u32);
        let made = self.state.lock().names.remove(&key)?;
        self.store.is_pending(made.patch).then_some(made)
    }

    pub(crate) fn exchange_name(
        &self,
        op: &Op,
        dir: Ino,
        name: &[u8],
        (ino, kind): (Ino, FileType),
        befores: &[Before],
    ) -> Result<Removed> {
        let mut node = self.load_dir(dir)?;
        let number = self.load_ino(ino)?.ino;
        let found = self.must_find(&node, name)?;
        let mut befores = befores.to_vec();
        self.layout_change(op, &mut node, &mut befores)?;
        let made = self.maker(&found);
        let (block, entry) = (found.block, found.entry);
        drop(found);
        let header = self.header(number, entry.rec_len, entry.name_len, kind);
        let (lba, bytes) = (Lba(block.into()), header.as_bytes());
        let patched = self.patch(op, lba, entry.at as u32, bytes, &befores)?;
        let patch = patched.id;
        let now = MadeName {
            patch,
            at: 0,
            old: Box::default(),
            new: Box::default(),
        };
        self.remember(block, entry.at, now);
        Ok(Removed {
            patch,
            never_stored: patched.merged && made.is_some_and(|made| made.patch == patch),
        })
    }

    pub(crate) fn erase_name(
        &self,
        op: &Op,
        dir: Ino,
        name: &[u8],
        befores: &[Before],
    ) -> Result<Removed> {
        let mut node = self.load_dir(dir)?;
        let found = self.must_find(&node, name)?;
        let mut befores = befores.to_vec();
        self.layout_change(op, &mut node, &mut befores)?;
        let made = self.maker(&found);
        let (at, bytes) = removal(&found, made.as_ref());
        let (index, lba) = (found.index, Lba(found.block.into()));
        drop(found);
        let patched = self.patch(op, lba, at as u32, &bytes, &befores)?;
        self.renew_names(&node, index, |names| {
            names.remove(name, index);
            true
        });
        let key = (node.ino, name.into());
        (self.state.lock().erased).insert(&*self.store, key, patched.id);
        Ok(Removed {
            patch: patched.id,
            never_stored: patched.merged && made.is_some_and(|made| made.patch == patched.id),
        })
    }

    // --- `..` -------------------------------------------------------------------------

    /// The block and the entry of `..`.
    fn dot_dot(&self, dir: &Node) -> Result<(u32, Entry)> {
        let (block, contents) = self.dir_block(dir, 0)?;
        let first = self.entry(dir, block, &contents, 0)?;
        let next = first.map_or(0, |entry| entry.rec_len);
        match self.entry(dir, block, &contents, next)? {
            Some(entry) if entry.ino != 0 && entry.name(&contents) == b".." => Ok((block, entry)),
            _ => {
                let what = format!("directory {}: it has no \"..\"", dir.ino);
                Err(FormatError::Corrupt(what))
            }
        }
    }

    pub(crate) fn above(&self, dir: Ino) -> Result<Ino> {
        let (_, entry) = self.dot_dot(&self.load_dir(dir)?)?;
        Ok(Ino(entry.ino.into()))
    }

    pub(crate) fn set_above(
        &self,
        op: &Op,
        dir: Ino,
        parent: Ino,
        befores: &[Before],
    ) -> Result<PatchId> {
        let (block, entry) = self.dot_dot(&self.load_dir(dir)?)?;
        let parent = self.load_ino(parent)?.ino.to_le_bytes();
        self.change(op, Lba(block.into()), entry.at as u32, &parent, befores)
    }
}

/// The change that removes an entry. It restores the bytes before the entry was made, if nothing
/// around them has changed since. Otherwise the entry before it takes over its place, or it becomes
/// a free entry.
fn removal(found: &FoundEntry, made: Option<&MadeName>) -> (usize, Vec<u8>) {
    let contents = &found.contents;
    // The change began at the entry itself, or at the entry before it that made room.
    let starts = [Some(found.entry.at), found.previous.map(|e| e.at + REC_LEN)];
    if let Some(made) = made
        && !made.new.is_empty()
        && starts.contains(&Some(made.at))
        && contents[made.at..made.at + made.new.len()] == *made.new
    {
        return (made.at, made.old.to_vec());
    }
    let entry = found.entry;
    let Some(previous) = found.previous else {
        return (entry.at, vec![0; 4]);
    };
    let at = previous.at + REC_LEN;
    let mut bytes = contents[at..entry.at + DIRENT_HEADER].to_vec();
    let joined = (previous.rec_len + entry.rec_len) as u16;
    bytes[..2].copy_from_slice(&joined.to_le_bytes());
    let inode = entry.at - at;
    bytes[inode..inode + 4].fill(0);
    (at, bytes)
}
