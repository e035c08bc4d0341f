//! Extended attributes: one block, which inodes may share, and those that ext4 keeps after an
//! inode's fields. The latter are read, and move to the block when they change.

use crate::acl::{Acl, Malformed, has_list};
use crate::alloc::Purpose;
use crate::features::Need;
use crate::format::{ATTR_MAGIC, ATTR_PREFIXES, AttrEntry, AttrHeader, Inode, InodeExtra};
use crate::inode::Node;
use crate::needed::Needed;
use crate::seeded::{Bug, hit};
use crate::volume::Ext2;
use blockfs::{FormatError, Heads, Removed, Result};
use medium::block::{Buffer, Lba};
use patch::{Before, Op, PatchId, Rule};
use std::mem::{offset_of, size_of};
use vfs::{Errno, FileType, Ino};
use zerocopy::{FromBytes, IntoBytes};

/// An attribute as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stored {
    index: u8,
    name: Vec<u8>,
    value: Vec<u8>,
}

/// [`ATTR_PREFIXES`]: the access list, and the default of a directory.
const ACCESS_LIST: u8 = 2;
const DEFAULT_LIST: u8 = 3;

type Named = (Vec<u8>, Vec<u8>);

const ENTRY: usize = size_of::<AttrEntry>();
const HEADER: usize = size_of::<AttrHeader>();
/// Indexes whose values callers see as they are stored. Other attributes are kept and not shown,
/// such as access control lists, which have another form outside.
const SHOWN: [u8; 3] = [1, 4, 6];

fn prefix(index: u8) -> Option<&'static [u8]> {
    let known = ATTR_PREFIXES.iter().find(|(other, _)| *other == index);
    known.map(|(_, prefix)| *prefix)
}

impl Stored {
    fn of((name, value): &Named) -> Result<Self> {
        let found = ATTR_PREFIXES
            .iter()
            .find(|(index, prefix)| SHOWN.contains(index) && name.starts_with(prefix));
        let (index, prefix) = found.ok_or(FormatError::Limit(Errno::OPNOTSUPP))?;
        Ok(Self {
            index: *index,
            name: name[prefix.len()..].to_vec(),
            value: value.clone(),
        })
    }

    fn shown(&self) -> Option<Named> {
        let mut name = prefix(self.index)?.to_vec();
        name.extend_from_slice(&self.name);
        SHOWN
            .contains(&self.index)
            .then(|| (name, self.value.clone()))
    }

    /// The order of entries in a block.
    fn order(a: &Self, b: &Self) -> std::cmp::Ordering {
        let key = |stored: &Self| (stored.index, stored.name.len());
        key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
    }

    fn entry_len(&self) -> usize {
        (ENTRY + self.name.len()).next_multiple_of(4)
    }

    fn value_len(&self) -> usize {
        self.value.len().next_multiple_of(4)
    }

    /// The hash of an entry, as e2fsck checks it.
    fn hash(&self) -> u32 {
        let name = self.name.iter();
        let hash = name.fold(0_u32, |hash, byte| hash.rotate_left(5) ^ u32::from(*byte));
        self.value.chunks(4).fold(hash, |hash, chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            hash.rotate_left(16) ^ u32::from_le_bytes(word)
        })
    }
}

/// Reads entries from `first` on. Offsets of values count from `base`.
fn parse(bytes: &[u8], first: usize, base: usize) -> Option<Vec<Stored>> {
    let (mut all, mut at) = (Vec::new(), first);
    loop {
        let word: [u8; 4] = *bytes.get(at..)?.first_chunk()?;
        if word == [0; 4] {
            return Some(all);
        }
        let (entry, _) = AttrEntry::read_from_prefix(bytes.get(at..)?).ok()?;
        let name = bytes.get(at + ENTRY..at + ENTRY + usize::from(entry.name_len))?;
        let value = match entry.value_size.get() as usize {
            0 => &[][..],
            len => {
                let start = base + usize::from(entry.value_offset.get());
                bytes.get(start..start.checked_add(len)?)?
            }
        };
        if entry.value_inode.get() != 0 {
            return None;
        }
        let stored = Stored {
            index: entry.name_index,
            name: name.to_vec(),
            value: value.to_vec(),
        };
        at += stored.entry_len();
        all.push(stored);
    }
}

/// A block with these attributes, which are in order. `None` if they do not fit.
fn encode(all: &[Stored], block_bytes: usize) -> Option<Buffer> {
    let entries: usize = all.iter().map(Stored::entry_len).sum();
    let values: usize = all.iter().map(Stored::value_len).sum();
    if HEADER + entries + 4 + values > block_bytes {
        return None;
    }
    let mut block = Buffer::zeroed(block_bytes);
    let (mut at, mut end, mut hash) = (HEADER, block_bytes, 0_u32);
    for stored in all {
        end -= stored.value_len();
        let own = stored.hash();
        hash = hash.rotate_left(16) ^ own;
        let empty = stored.value.is_empty();
        let entry = AttrEntry {
            name_len: stored.name.len() as u8,
            name_index: stored.index,
            value_offset: if empty { 0 } else { end as u16 }.into(),
            value_inode: 0.into(),
            value_size: (stored.value.len() as u32).into(),
            hash: own.into(),
        };
        block[at..at + ENTRY].copy_from_slice(entry.as_bytes());
        block[at + ENTRY..at + ENTRY + stored.name.len()].copy_from_slice(&stored.name);
        block[end..end + stored.value.len()].copy_from_slice(&stored.value);
        at += stored.entry_len();
    }
    let header = AttrHeader {
        magic: ATTR_MAGIC.into(),
        references: 1.into(),
        blocks: 1.into(),
        hash: hash.into(),
        checksum: 0.into(),
        reserved: [0.into(); 3],
    };
    block[..HEADER].copy_from_slice(header.as_bytes());
    Some(block)
}

impl Ext2 {
    // --- access control lists -----------------------------------------------------------

    /// A list of an inode: the access list, or the default of a directory.
    fn list(&self, node: &Node, index: u8) -> Result<Option<Acl>> {
        if !node.has_attributes || !node.kind().is_some_and(has_list) {
            return Ok(None);
        }
        let found = match self.stored(node) {
            Err(FormatError::Corrupt(what)) => {
                self.report_damaged_attributes(node.ino, &what);
                return Ok(Some(Acl::owner_only()));
            }
            found => found?,
        };
        let Some(found) = found.into_iter().find(|stored| stored.index == index) else {
            return Ok(None);
        };
        Ok(Acl::parse(&found.value).unwrap_or_else(|Malformed| {
            self.report_malformed_list(node.ino);
            Some(Acl::owner_only())
        }))
    }

    /// Logs a malformed list, once for each inode.
    fn report_malformed_list(&self, ino: u32) {
        if self.state.lock().malformed_lists.insert(ino) {
            tracing::error!(
                "inode {ino}: its access control list is malformed, so nobody but the owner has \
                 permissions; chmod replaces the list"
            );
        }
    }

    /// Logs unreadable attributes, once for each inode, and marks the image. A list may be among
    /// them, so the strictest one stands for it. Calls on the attributes fail.
    fn report_damaged_attributes(&self, ino: u32, what: &str) {
        self.note_errors_later();
        if self.state.lock().malformed_lists.insert(ino) {
            tracing::error!(
                "{what}; nobody but the owner has permissions for inode {ino}: run e2fsck"
            );
        }
    }

    /// The default list for new inodes in a directory.
    pub(crate) fn default_list(&self, dir: &Node) -> Result<Option<Acl>> {
        self.list(dir, DEFAULT_LIST)
    }

    /// Permission bits that grant no more than an inode's list does.
    pub(crate) fn shown_perm(&self, node: &Node) -> Result<u32> {
        let perm = u32::from(node.inode.mode.get()) & 0o7777;
        let acl = self.list(node, ACCESS_LIST)?;
        Ok(acl.map_or(perm, |acl| acl.bits(perm)))
    }

    /// Changes an inode's list, if it has one, for new permission bits. Returns the bits to store,
    /// and their befores.
    pub(crate) fn chmod_list(&self, op: &Op, node: &Node, perm: u32) -> Result<(u32, Vec<Before>)> {
        let Some(mut acl) = self.list(node, ACCESS_LIST)? else {
            return Ok((perm, Vec::new()));
        };
        let before = acl.clone();
        let stored = acl.chmod(u32::from(node.inode.mode.get()) & 0o7777, perm);
        if acl == before {
            return Ok((stored, Vec::new()));
        }
        let mut all = self.stored(node)?;
        if acl.is_minimal() {
            all.retain(|stored| stored.index != ACCESS_LIST);
        }
        let lists = all.iter_mut().filter(|stored| stored.index == ACCESS_LIST);
        lists.for_each(|list| list.value = acl.encode());
        let heads = self.store_attributes(op, node, all)?;
        let rule = Rule::InitialiseBeforePoint;
        let befores = heads.into_iter().map(|patch| Before { patch, rule });
        Ok((stored, befores.collect()))
    }

    /// Gives a new inode the lists that it inherits from its directory.
    pub(crate) fn inherit_lists(&self, op: &Op, dir: Ino, ino: Ino) -> Result<Heads> {
        let node = self.load_ino(ino)?;
        let default = self.default_list(&self.load_ino(dir)?)?;
        let Some(default) = default.filter(|_| node.kind().is_some_and(has_list)) else {
            return Ok(Heads::new());
        };
        // The stored bits are already those of the new inode.
        let (access, _) = default.inherit(u32::from(node.inode.mode.get()));
        let list = |index, acl: &Acl| Stored {
            index,
            name: Vec::new(),
            value: acl.encode(),
        };
        let mut all = Vec::new();
        if !access.is_minimal() {
            all.push(list(ACCESS_LIST, &access));
        }
        if node.kind() == Some(FileType::Directory) {
            all.push(list(DEFAULT_LIST, &default));
        }
        match all.is_empty() {
            true => Ok(Heads::new()),
            false => self.store_attributes(op, &node, all),
        }
    }

    // --- blocks of attributes -----------------------------------------------------------

    /// The attribute block, and the number of inodes that share it.
    pub(crate) fn attr_block(&self, node: &Node) -> Result<Option<(u32, u32)>> {
        let Some(block) = self.pointee(node.inode.file_acl.get(), node.ino)? else {
            return Ok(None);
        };
        let contents = self.store.read(Lba(block.into()))?;
        match AttrHeader::read_from_prefix(&contents) {
            Ok((header, _)) if header.magic.get() == ATTR_MAGIC && header.blocks.get() == 1 => {
                Ok(Some((block, header.references.get())))
            }
            _ => Err(bad_block(node, block)),
        }
    }

    /// The offset of the attributes' magic number in the inode, if it has attributes within.
    fn within(&self, node: &Node, bytes: &[u8]) -> Option<usize> {
        let used = node.extra?.extra_isize.get();
        let at = size_of::<Inode>() + usize::from(used);
        let magic = bytes.get(at..)?.first_chunk().copied();
        (magic.map(u32::from_le_bytes) == Some(ATTR_MAGIC)).then_some(at)
    }

    fn inode_bytes(&self, node: &Node) -> Result<Vec<u8>> {
        let block = self.store.read(node.lba)?;
        let at = node.at as usize;
        Ok(block[at..at + self.layout.inode_bytes as usize].to_vec())
    }

    fn stored(&self, node: &Node) -> Result<Vec<Stored>> {
        let bytes = self.inode_bytes(node)?;
        let mut all = Vec::new();
        if let Some(at) = self.within(node, &bytes) {
            let found = parse(&bytes, at + 4, at + 4);
            let ino = node.ino;
            all = found.ok_or_else(|| {
                FormatError::Corrupt(format!("inode {ino}: its attributes make no sense"))
            })?;
        }
        if let Some((block, _)) = self.attr_block(node)? {
            let contents = self.store.read(Lba(block.into()))?;
            let found = parse(&contents, HEADER, 0).ok_or_else(|| bad_block(node, block))?;
            all.extend(found);
        }
        Ok(all)
    }

    pub(crate) fn all_attributes(&self, ino: Ino) -> Result<Vec<Named>> {
        let stored = self.stored(&self.load_ino(ino)?)?;
        Ok(stored.iter().filter_map(Stored::shown).collect())
    }

    pub(crate) fn replace_attributes(&self, op: &Op, ino: Ino, all: &[Named]) -> Result<Heads> {
        if self.layout.revision == 0 {
            return Err(FormatError::Limit(Errno::OPNOTSUPP));
        }
        let node = self.load_ino(ino)?;
        let before = self.stored(&node)?;
        let hidden = before.into_iter().filter(|stored| stored.shown().is_none());
        let new: Result<Vec<Stored>> = all.iter().map(Stored::of).collect();
        let new: Vec<Stored> = new?.into_iter().chain(hidden).collect();
        self.store_attributes(op, &node, new)
    }

    /// Replaces all attributes of an inode. Returns the patches, none if nothing changes.
    fn store_attributes(&self, op: &Op, node: &Node, mut new: Vec<Stored>) -> Result<Heads> {
        let mut before = self.stored(node)?;
        before.sort_by(Stored::order);
        new.sort_by(Stored::order);
        if new == before {
            return Ok(Heads::new());
        }
        let block = match new.is_empty() {
            true => None,
            false => {
                let encoded = encode(&new, self.layout.block_bytes as usize);
                Some(encoded.ok_or(FormatError::Limit(Errno::NOSPC))?)
            }
        };
        let old = self.attr_block(node)?;
        let mut heads = Heads::new();
        match (old, block) {
            (None, None) => {}
            (Some((at, 0 | 1)), Some(block)) => {
                heads.push(self.change(op, Lba(at.into()), 0, &block, &[])?);
            }
            (old, Some(block)) => heads.push(self.attach_attributes(op, node, old, &block)?),
            (Some(old), None) => heads.push(self.detach_attributes(op, node, old)?),
        }
        heads.extend(self.clear_within(op, node, &heads)?);
        Ok(heads)
    }

    /// Points an inode at a new attribute block, and releases the old one.
    fn attach_attributes(
        &self,
        op: &Op,
        node: &Node,
        old: Option<(u32, u32)>,
        block: &[u8],
    ) -> Result<PatchId> {
        let mut node = node.clone();
        self.ready_old(old)?;
        let new = self.take_block(op, node.ino, 0, Purpose::Attributes)?;
        let reused = new.before_contents();
        let filled = self.change(op, new.lba, 0, block, reused.as_slice())?;
        let feature = self.need(op, Need::Attributes)?;
        let befores = [filled, new.bit, feature].map(|patch| Before {
            patch,
            rule: Rule::InitialiseBeforePoint,
        });
        let older = old.and_then(|(block, _)| self.older_removal(block));
        let befores: Vec<Before> = befores.into_iter().chain(older).collect();
        if old.is_none() {
            let sectors = &mut node.inode.sectors;
            sectors.set(sectors.get().saturating_add(self.layout.block_bytes / 512));
        }
        node.inode.file_acl.set(new.lba.0 as u32);
        let pointed = self.write_node(op, &node, ACL_SPAN, &befores)?;
        self.first_pointed(new.lba.0 as u32, pointed.id);
        if let Some(old) = old {
            // The block is shared, so it may be stored.
            let removed = Removed {
                patch: pointed.id,
                never_stored: false,
            };
            self.drop_reference(op, old, removed)?;
        }
        Ok(pointed.id)
    }

    fn detach_attributes(&self, op: &Op, node: &Node, old: (u32, u32)) -> Result<PatchId> {
        let mut node = node.clone();
        self.ready_old(Some(old))?;
        node.inode.file_acl.set(0);
        let sectors = &mut node.inode.sectors;
        sectors.set(sectors.get().saturating_sub(self.layout.block_bytes / 512));
        let befores = self.older_removal(old.0);
        let patched = self.write_node(op, &node, ACL_SPAN, befores.as_slice())?;
        let attached = {
            let state = self.state.lock();
            state.attached.get(&*self.store, &old.0).copied()
        };
        let removed = Removed {
            patch: patched.id,
            never_stored: patched.merged && attached == Some(patched.id),
        };
        self.drop_reference(op, old, removed)?;
        Ok(patched.id)
    }

    /// The before of removing an inode's pointer to its attribute block: the last removal of another inode that has
    /// shared the block. So the youngest removal stands for all, and the block is free after all.
    pub(crate) fn older_removal(&self, block: u32) -> Option<Before> {
        let older = self.state.lock().removed.get(&*self.store, &block).copied();
        let older = older.filter(|_| !hit(Bug::SharerForgotten));
        older.map(|patch| Before {
            patch,
            rule: Rule::NullifyBeforeReuse,
        })
    }

    /// Reads all that releasing an attribute block needs, before the first change.
    fn ready_old(&self, old: Option<(u32, u32)>) -> Result<()> {
        let mut needed = Needed::new();
        if let Some((block, _)) = old {
            self.map_of(&self.state.lock(), block, &mut needed);
        }
        Ok(self.store.ready(&needed)?)
    }

    /// Takes an inode off the block's references. The last one frees the block.
    fn drop_reference(
        &self,
        op: &Op,
        (block, references): (u32, u32),
        removed: Removed,
    ) -> Result<()> {
        if references <= 1 {
            return self.give_block(op, block, removed);
        }
        let at = offset_of!(AttrHeader, references) as u32;
        let fewer = (references - 1).to_le_bytes();
        let befores = removed.before_reuse();
        let fewer = self.change(op, Lba(block.into()), at, &fewer, befores.as_slice())?;
        self.state.lock().removed.insert(&*self.store, block, fewer);
        Ok(())
    }

    /// Clears the attributes within the inode, after they were removed or `moved` to the block.
    fn clear_within(&self, op: &Op, node: &Node, moved: &[PatchId]) -> Result<Option<PatchId>> {
        let bytes = self.inode_bytes(node)?;
        let Some(at) = self.within(node, &bytes) else {
            return Ok(None);
        };
        let rule = Rule::LinkBeforeUnlink;
        let befores: Vec<Before> = moved.iter().map(|&patch| Before { patch, rule }).collect();
        let at = node.at + at as u32;
        Ok(Some(self.change(op, node.lba, at, &[0; 4], &befores)?))
    }

    /// Releases the attribute block of a cleared inode. A block that does not hold attributes stays
    /// marked as used.
    pub(crate) fn release_attributes(&self, op: &Op, node: &Node, removed: Removed) -> Result<()> {
        match self.attr_block(node) {
            Ok(Some(old)) => self.drop_reference(op, old, removed),
            Ok(None) => Ok(()),
            Err(FormatError::Corrupt(what)) => {
                tracing::error!("{what}, and is not freed: run e2fsck");
                self.note_errors_later();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// The bytes of an inode from its count of sectors to its attribute pointer.
const ACL_SPAN: std::ops::Range<usize> =
    offset_of!(Inode, sectors)..offset_of!(Inode, file_acl) + 4;

const _: () = assert!(offset_of!(InodeExtra, extra_isize) == 0);

fn bad_block(node: &Node, block: u32) -> FormatError {
    let ino = node.ino;
    FormatError::Corrupt(format!(
        "inode {ino}: attribute block {block} makes no sense"
    ))
}
