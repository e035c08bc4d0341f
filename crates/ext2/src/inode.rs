//! Inodes: their places, the meaning of their fields, and their changes.

use crate::acl::has_list;
use crate::features::Need;
use crate::format::{
    ATTR_MAGIC, DIRECT, INLINE_TARGET_MAX, Inode, InodeExtra, InodeFlags, ROOT_INO,
};
use crate::seeded::{Bug, hit};
use crate::state::{Fresh, State};
use crate::volume::Ext2;
use blockfs::{Befores, FormatError, Heads, InodeChange, NewInode, Result};
use medium::block::Lba;
use patch::{Before, Op, PatchId, Rule, attempt};
use smallvec::SmallVec;
use std::mem::{offset_of, size_of};
use std::ops::{Range, RangeInclusive};
use vfs::{Attr, Errno, FileFlags, FileType, Ino, Timestamp};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Sizes beyond this need the feature `large_file`.
const SMALL_FILE_MAX: u64 = 0x7fff_ffff;
const INODE: usize = size_of::<Inode>();
/// `extra_isize` of inodes that have the fields of [`InodeExtra`] up to `atime_extra`.
const EXTRA_WITH_TIMES: u16 = 16;

/// An inode in its present state, and its place.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub ino: u32,
    pub lba: Lba,
    pub at: u32,
    pub inode: Inode,
    /// The extra fields, if the inode has nanoseconds.
    pub extra: Option<InodeExtra>,
    /// Whether it may have extended attributes.
    pub has_attributes: bool,
}

impl Node {
    pub(crate) fn kind(&self) -> Option<FileType> {
        FileType::from_mode(self.inode.mode.get().into())
    }

    /// The size in bytes. Only regular files have a high half.
    pub(crate) fn size(&self) -> u64 {
        let low = u64::from(self.inode.size_low.get());
        match self.kind() {
            Some(FileType::Regular) => u64::from(self.inode.size_high.get()) << 32 | low,
            _ => low,
        }
    }

    /// Whether it has block pointers, rather than a target or a device number.
    pub(crate) fn has_blocks(&self, block_bytes: u32) -> bool {
        match self.kind() {
            Some(FileType::Regular | FileType::Directory) => true,
            Some(FileType::Symlink) => !self.is_inline(block_bytes),
            None
            | Some(
                FileType::Fifo | FileType::Socket | FileType::CharDevice | FileType::BlockDevice,
            ) => false,
        }
    }

    /// Whether a symbolic link has its target in the inode.
    pub(crate) fn is_inline(&self, block_bytes: u32) -> bool {
        let own = match self.inode.file_acl.get() {
            0 => 0,
            _ => block_bytes / 512,
        };
        self.inode.sectors.get() <= own && self.size() <= INLINE_TARGET_MAX as u64
    }

    /// The device number of a device node.
    fn rdev(&self) -> u32 {
        match (self.kind(), self.inode.block[0].get()) {
            (Some(FileType::CharDevice | FileType::BlockDevice), 0) => self.inode.block[1].get(),
            // The old form has a major and a minor of 8 bits each. The new form is the same for
            // these.
            (Some(FileType::CharDevice | FileType::BlockDevice), old) => old & 0xffff,
            _ => 0,
        }
    }
}

/// The time of a field of seconds and, if there is one, of the field with nanoseconds and two more
/// bits of seconds.
fn time_of(secs: u32, extra: Option<u32>) -> Timestamp {
    let low = i64::from(secs as i32);
    match extra {
        None => Timestamp::from_parts(low, 0),
        Some(extra) => {
            let nanos = (extra >> 2).min(999_999_999);
            Timestamp::from_parts(low + (i64::from(extra & 3) << 32), nanos)
        }
    }
}

/// The times that an inode can have, with room for the extra bits or without.
pub(crate) fn times(has_extra: bool) -> RangeInclusive<Timestamp> {
    let low = i64::from(i32::MIN);
    let high = match has_extra {
        true => low + (4 << 32) - 1,
        false => i32::MAX.into(),
    };
    Timestamp::from_parts(low, 0)..=Timestamp::from_parts(high, 0)
}

/// The fields of a time. A time that does not fit becomes the nearest that does, as in the kernel.
fn of_time(time: Timestamp, has_extra: bool) -> (u32, u32) {
    let range = times(has_extra);
    let (secs, nanos) = time.clamp(*range.start(), *range.end()).parts();
    if !has_extra {
        return (secs as u32, 0);
    }
    let epoch = (secs - i64::from(secs as i32)) >> 32;
    (secs as u32, nanos << 2 | (epoch as u32 & 3))
}

/// The flags that change what calls do.
fn flags_of(inode: &Inode) -> FileFlags {
    let found = InodeFlags::from_bits_truncate(inode.flags.get());
    let each = [
        (InodeFlags::IMMUTABLE, FileFlags::IMMUTABLE),
        (InodeFlags::APPEND, FileFlags::APPEND),
        (InodeFlags::SYNC, FileFlags::SYNC),
        (InodeFlags::DIRSYNC, FileFlags::DIRSYNC),
        (InodeFlags::NOATIME, FileFlags::NOATIME),
    ];
    let set = each.into_iter().filter(|(bit, _)| found.contains(*bit));
    set.map(|(_, flag)| flag).collect()
}

/// The flags that a new inode gets from its directory, as the kernel's ext2 hands them down.
fn inherited(of_directory: u32, kind: FileType) -> u32 {
    let any = InodeFlags::NODUMP | InodeFlags::NOATIME;
    let file = any | InodeFlags::SYNC;
    let handed = match kind {
        FileType::Directory => file | InodeFlags::DIRSYNC,
        FileType::Regular => file,
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharDevice
        | FileType::BlockDevice => any,
    };
    of_directory & handed.bits()
}

fn device_pointers(rdev: u32) -> (u32, u32) {
    // `dev_t` of 32 bits: minor 0..8 and 20..32, major 8..20.
    if rdev <= 0xffff && rdev != 0 {
        (rdev, 0)
    } else {
        (0, rdev)
    }
}

/// The bytes that a change covers.
#[derive(Debug, Default)]
struct Span(Option<Range<usize>>);

impl Span {
    fn add(&mut self, at: usize, len: usize) {
        let old = self.0.take().unwrap_or(at..at + len);
        self.0 = Some(old.start.min(at)..old.end.max(at + len));
    }
}

/// Adds a field, by its offset and its length.
macro_rules! add_field {
    ($span:expr, $ty:ty, $field:ident, $len:literal) => {
        $span.add(offset_of!($ty, $field), $len)
    };
}

impl Ext2 {
    /// The number as an inode number of files, if it can be one.
    pub(crate) fn number(&self, ino: Ino) -> Option<u32> {
        let number = u32::try_from(ino.0).ok()?;
        let is_file =
            number == ROOT_INO || (self.layout.first_ino..=self.layout.inodes).contains(&number);
        is_file.then_some(number)
    }

    /// Block of an inode, and the offset in bytes there.
    pub(crate) fn place(&self, ino: u32) -> (Lba, u32) {
        self.place_in(&self.state.lock(), ino)
    }

    pub(crate) fn place_in(&self, state: &State, ino: u32) -> (Lba, u32) {
        let layout = &self.layout;
        let index = (ino - 1) % layout.inodes_per_group;
        let group = layout.group_of_inode(ino);
        let table = state.groups[group as usize].inode_table;
        let per_block = layout.block_bytes / layout.inode_bytes;
        let lba = Lba(u64::from(table + index / per_block));
        (lba, index % per_block * layout.inode_bytes)
    }

    /// Reads an inode, in use or not.
    pub(crate) fn load(&self, ino: u32) -> Result<Node> {
        let (lba, at) = self.place(ino);
        let block = self.store.read(lba)?;
        let bytes = &block[at as usize..(at + self.layout.inode_bytes) as usize];
        let inode = Inode::read_from_prefix(bytes);
        let extra = InodeExtra::read_from_prefix(&bytes[INODE..]);
        let room = self.layout.inode_bytes as usize - INODE;
        let has_times = |extra: &InodeExtra| {
            let used = extra.extra_isize.get();
            used >= EXTRA_WITH_TIMES && usize::from(used) <= room
        };
        let behind = |extra: &InodeExtra| {
            let at = INODE + usize::from(extra.extra_isize.get());
            let magic = bytes.get(at..).and_then(|rest| rest.first_chunk());
            magic.is_some_and(|magic| u32::from_le_bytes(*magic) == ATTR_MAGIC)
        };
        let has_attributes_behind = extra.as_ref().is_ok_and(|(extra, _)| behind(extra));
        match inode {
            Ok((inode, _)) => Ok(Node {
                has_attributes: inode.file_acl.get() != 0 || has_attributes_behind,
                ino,
                lba,
                at,
                inode,
                extra: extra.ok().map(|(extra, _)| extra).filter(has_times),
            }),
            Err(_) => Err(FormatError::Corrupt(format!("inode {ino}: it is cut off"))),
        }
    }

    /// Reads an inode that has a name.
    pub(crate) fn load_ino(&self, ino: Ino) -> Result<Node> {
        match self.number(ino) {
            Some(ino) => self.load(ino),
            None => Err(FormatError::Limit(Errno::STALE)),
        }
    }

    pub(crate) fn attr(&self, ino: Ino) -> Result<Option<Attr>> {
        let Some(number) = self.number(ino) else {
            return Ok(None);
        };
        let node = self.load(number)?;
        let inode = &node.inode;
        if inode.links.get() == 0 && !self.state.lock().orphans.contains(number) {
            return Ok(None);
        }
        let Some(kind) = node.kind() else {
            let mode = inode.mode.get();
            return Err(FormatError::Corrupt(format!("inode {ino}: mode {mode:#o}")));
        };
        let extra = |f: fn(&InodeExtra) -> u32| node.extra.as_ref().map(f);
        Ok(Some(Attr {
            ino,
            generation: inode.generation.get().into(),
            kind,
            perm: self.shown_perm(&node)?,
            nlink: inode.links.get().into(),
            uid: u32::from(inode.uid_high.get()) << 16 | u32::from(inode.uid_low.get()),
            gid: u32::from(inode.gid_high.get()) << 16 | u32::from(inode.gid_low.get()),
            rdev: node.rdev(),
            size: node.size(),
            blocks: inode.sectors.get().into(),
            blksize: self.layout.block_bytes,
            atime: time_of(inode.atime.get(), extra(|e| e.atime_extra.get())),
            mtime: time_of(inode.mtime.get(), extra(|e| e.mtime_extra.get())),
            ctime: time_of(inode.ctime.get(), extra(|e| e.ctime_extra.get())),
            flags: flags_of(inode),
        }))
    }

    /// Writes a range of an inode's first 128 bytes.
    pub(crate) fn write_node(
        &self,
        op: &Op,
        node: &Node,
        range: Range<usize>,
        befores: &[Before],
    ) -> Result<patch::Patched> {
        let bytes = &node.inode.as_bytes()[range.clone()];
        self.patch(op, node.lba, node.at + range.start as u32, bytes, befores)
    }

    /// Makes an inode in one change.
    pub(crate) fn make(&self, op: &Op, dir: Ino, new: &NewInode) -> Result<(Ino, Heads)> {
        let dir = self.load_ino(dir)?;
        let flags = inherited(dir.inode.flags.get(), new.kind);
        let mut new = *new;
        let directory = new.kind == FileType::Directory;
        let mut blocks = u64::from(directory || new.kind == FileType::Symlink);
        if let Some(default) = self.default_list(&dir)?.filter(|_| has_list(new.kind)) {
            new.perm = default.inherit(new.perm).1;
            blocks += 1;
        }
        let (ino, bit) = self.take_inode(op, dir.ino, (directory, blocks))?;
        let (lba, at) = self.place(ino);
        let size = self.layout.inode_bytes as usize;
        let old: Box<[u8]> = self.store.read(lba)?[at as usize..at as usize + size].into();
        let bytes = self.new_bytes(&new, flags, &old);
        // Otherwise a crash may leave an inode that looks used and is marked free.
        let marked = Before {
            patch: bit,
            rule: Rule::InitialiseBeforePoint,
        };
        let made = self.change(op, lba, at, &bytes, &[marked])?;
        let fresh = Fresh { patch: made, old };
        self.state.lock().fresh.insert(&*self.store, ino, fresh);
        Ok((Ino(ino.into()), Heads::from_slice(&[made])))
    }

    fn new_bytes(&self, new: &NewInode, flags: u32, old: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; self.layout.inode_bytes as usize];
        let mut inode = Inode::new_zeroed();
        let has_extra = bytes.len() >= INODE + size_of::<InodeExtra>();
        let (secs, nanos) = of_time(new.now, has_extra);
        if hit(Bug::InodeNotCleared)
            && let Ok((before, _)) = Inode::read_from_prefix(old)
        {
            inode.block = before.block;
        }
        inode.mode.set((new.kind.mode_bits() | new.perm) as u16);
        inode.links.set(new.nlink as u16);
        inode.flags.set(flags);
        inode.uid_low.set(new.uid as u16);
        inode.uid_high.set((new.uid >> 16) as u16);
        inode.gid_low.set(new.gid as u16);
        inode.gid_high.set((new.gid >> 16) as u16);
        inode.atime.set(secs);
        inode.ctime.set(secs);
        inode.mtime.set(secs);
        inode.generation.set(self.next_generation(old));
        if matches!(new.kind, FileType::CharDevice | FileType::BlockDevice) {
            let (first, second) = device_pointers(new.rdev);
            inode.block[0].set(first);
            inode.block[1].set(second);
        }
        bytes[..INODE].copy_from_slice(inode.as_bytes());
        if has_extra {
            let mut extra = InodeExtra::new_zeroed();
            extra.extra_isize.set(size_of::<InodeExtra>() as u16);
            extra.atime_extra.set(nanos);
            extra.ctime_extra.set(nanos);
            extra.mtime_extra.set(nanos);
            extra.crtime.set(secs);
            extra.crtime_extra.set(nanos);
            bytes[INODE..INODE + size_of::<InodeExtra>()].copy_from_slice(extra.as_bytes());
        }
        bytes
    }

    /// The next generation of this mount that differs from the inode's last one.
    fn next_generation(&self, old: &[u8]) -> u32 {
        let at = offset_of!(Inode, generation);
        let old = old[at..]
            .first_chunk()
            .map_or(0, |b| u32::from_le_bytes(*b));
        if hit(Bug::SameGeneration) {
            return old;
        }
        let mut state = self.state.lock();
        let next = state.generation.wrapping_add(1);
        state.generation = next.wrapping_add(u32::from(next == old));
        state.generation
    }

    /// Changes fields, all in one write of their block. Those in the first 128 bytes change in one patch.
    pub(crate) fn change_fields(
        &self,
        op: &Op,
        ino: Ino,
        change: &InodeChange,
        befores: &[Before],
    ) -> Result<PatchId> {
        let mut node = self.load_ino(ino)?;
        let mut befores: SmallVec<[Before; 4]> = SmallVec::from_slice(befores);
        let mut change = *change;
        if let Some(perm) = change.perm {
            let (stored, list) = self.chmod_list(op, &node, perm)?;
            if !list.is_empty() {
                node = self.load_ino(ino)?;
            }
            change.perm = Some(stored);
            befores.extend(list);
        }
        if let Some(size) = change.size {
            befores.extend(self.allow_size(op, &node, size)?);
        }
        let (main, extra) = apply(&mut node, &change);
        let mut last = PatchId::DURABLE;
        if let Some(range) = main.0 {
            last = self.write_node(op, &node, range, &befores)?.id;
        }
        if let (Some(range), Some(value)) = (extra.0, &node.extra) {
            // No write of the block has the one patch without the other, or a time would be half old and half new. This
            // one waits for the first, and so for all that the first waits for, such as an older change of the times.
            let bytes = &value.as_bytes()[range.clone()];
            let at = node.at + (INODE + range.start) as u32;
            let (patch, rule) = (last, Rule::Overlap);
            let main = (!hit(Bug::HalfTime)).then_some(Before { patch, rule });
            last = self.change(op, node.lba, at, bytes, main.as_slice())?;
        }
        Ok(last)
    }

    /// Checks a new size. Large ones need a feature bit first.
    fn allow_size(&self, op: &Op, node: &Node, size: u64) -> Result<Option<Before>> {
        let regular = node.kind() == Some(FileType::Regular);
        if size > self.largest() || (!regular && size > u32::MAX.into()) {
            return Err(FormatError::Limit(Errno::FBIG));
        }
        if !regular || size <= SMALL_FILE_MAX {
            return Ok(None);
        }
        let patch = self.need(op, Need::LargeFile)?;
        let rule = Rule::InitialiseBeforePoint;
        Ok(Some(Before { patch, rule }))
    }

    /// The largest file in bytes, limited by the pointers and by the 32-bit count of sectors.
    pub(crate) fn largest(&self) -> u64 {
        if self.layout.revision == 0 {
            return SMALL_FILE_MAX;
        }
        let block = u64::from(self.layout.block_bytes);
        let pointers = block / 4;
        let reach = DIRECT as u64 + pointers + pointers.pow(2) + pointers.pow(3);
        let countable = u64::from(u32::MAX) / (block / 512);
        let meta = 1 + (1 + pointers) + (1 + pointers + countable.div_ceil(pointers));
        reach.min(countable - meta) * block
    }

    /// Clears an inode, then marks it as free, and releases its attributes.
    pub(crate) fn unmake(
        &self,
        op: &Op,
        ino: Ino,
        befores: &[Before],
        never_stored: bool,
    ) -> Result<()> {
        let node = self.load_ino(ino)?;
        attempt::commit(); // memory changes first
        let fresh = self.state.lock().fresh.remove(&node.ino);
        let fresh = fresh.filter(|fresh| never_stored && self.store.is_pending(fresh.patch));
        let bytes = match &fresh {
            Some(fresh) => fresh.old.to_vec(),
            None => self.dead_bytes(&node),
        };
        let older = self.older_removal(node.inode.file_acl.get());
        let befores: Befores = befores.iter().copied().chain(older).collect();
        let cleared = self.patch(op, node.lba, node.at, &bytes, &befores)?;
        let never_stored = fresh.is_some_and(|fresh| cleared.merged && fresh.patch == cleared.id);
        let removed = blockfs::Removed {
            patch: cleared.id,
            never_stored,
        };
        {
            let mut state = self.state.lock();
            state.unindexed.remove(&node.ino);
            state.malformed_lists.remove(&node.ino);
        }
        self.names.lock().forget(node.ino);
        self.release_attributes(op, &node, removed)?;
        let directory = node.kind() == Some(FileType::Directory);
        let gone = removed.before_reuse();
        self.give_inode(op, node.ino, directory, gone.as_slice())
    }

    /// The bytes of a free inode: its generation and the time of its removal.
    fn dead_bytes(&self, node: &Node) -> Vec<u8> {
        let mut inode = Inode::new_zeroed();
        inode.generation = node.inode.generation;
        // Checkers take low numbers for links of the list of orphans.
        inode
            .dtime
            .set(self.now_secs().max(self.layout.inodes.saturating_add(1)));
        let mut bytes = inode.as_bytes().to_vec();
        bytes.resize(self.layout.inode_bytes as usize, 0);
        bytes
    }

    // --- short symbolic links ---------------------------------------------------------

    pub(crate) fn short_target(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        let node = self.load_ino(ino)?;
        if node.kind() != Some(FileType::Symlink) || !node.is_inline(self.layout.block_bytes) {
            return Ok(None);
        }
        let target = &node.inode.block.as_bytes()[..node.size() as usize];
        Ok(Some(target.to_vec()))
    }

    pub(crate) fn store_short_target(&self, op: &Op, ino: Ino, target: &[u8]) -> Result<PatchId> {
        if target.len() > INLINE_TARGET_MAX {
            return Err(FormatError::Limit(Errno::NAMETOOLONG));
        }
        let mut node = self.load_ino(ino)?;
        node.inode.size_low.set(target.len() as u32);
        node.inode.block.as_mut_bytes()[..target.len()].copy_from_slice(target);
        let range = offset_of!(Inode, size_low)..offset_of!(Inode, generation);
        Ok(self.write_node(op, &node, range, &[])?.id)
    }
}

/// Applies a change. Returns the changed bytes among the first 128, and among those after them.
fn apply(node: &mut Node, change: &InodeChange) -> (Span, Span) {
    let (mut main, mut extra) = (Span::default(), Span::default());
    let kind = node.kind();
    let inode = &mut node.inode;
    if let Some(perm) = change.perm {
        let kind = inode.mode.get() & 0xf000;
        inode.mode.set(kind | (perm & 0o7777) as u16);
        add_field!(main, Inode, mode, 2);
    }
    if let Some(uid) = change.uid {
        inode.uid_low.set(uid as u16);
        add_field!(main, Inode, uid_low, 2);
        if u32::from(inode.uid_high.get()) != uid >> 16 {
            inode.uid_high.set((uid >> 16) as u16);
            add_field!(main, Inode, uid_high, 2);
        }
    }
    if let Some(gid) = change.gid {
        inode.gid_low.set(gid as u16);
        add_field!(main, Inode, gid_low, 2);
        if u32::from(inode.gid_high.get()) != gid >> 16 {
            inode.gid_high.set((gid >> 16) as u16);
            add_field!(main, Inode, gid_high, 2);
        }
    }
    if let Some(nlink) = change.nlink {
        inode.links.set(nlink.min(u16::MAX.into()) as u16);
        add_field!(main, Inode, links, 2);
    }
    if let Some(size) = change.size {
        inode.size_low.set(size as u32);
        add_field!(main, Inode, size_low, 4);
        let high = (size >> 32) as u32;
        if kind == Some(FileType::Regular) && inode.size_high.get() != high {
            inode.size_high.set(high);
            add_field!(main, Inode, size_high, 4);
        }
    }
    macro_rules! set_time {
        ($field:ident, $more:ident) => {
            if let Some(time) = change.$field {
                let (secs, nanos) = of_time(time, node.extra.is_some());
                inode.$field.set(secs);
                add_field!(main, Inode, $field, 4);
                if let Some(value) = node.extra.as_mut().filter(|e| e.$more.get() != nanos) {
                    value.$more.set(nanos);
                    add_field!(extra, InodeExtra, $more, 4);
                }
            }
        };
    }
    set_time!(atime, atime_extra);
    set_time!(mtime, mtime_extra);
    set_time!(ctime, ctime_extra);
    (main, extra)
}
