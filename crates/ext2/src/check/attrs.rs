//! Extended attributes, in blocks and after the fields of inodes.

use super::Checker;
use crate::format::{ATTR_MAGIC, AttrEntry, AttrHeader, Compat};
use medium::block::BlockDevice;
use std::mem::size_of;
use zerocopy::FromBytes;

impl<D: BlockDevice + ?Sized> Checker<'_, D> {
    /// Checks the attribute block of an inode. Several inodes may share one.
    pub(super) fn attribute_block(&mut self, ino: u32, block: u32) {
        if !self.ground.compat.contains(Compat::EXT_ATTR) {
            let what = format_args!("inode {ino}: an attribute block without the feature");
            self.corrupt("E11", what);
        }
        if let Some((_, found)) = self.attr_blocks.get_mut(&block) {
            *found += 1;
            return;
        }
        if !self.claim(ino, block) {
            return;
        }
        let mut buf = vec![0; self.ground.block as usize];
        if !self.read_block(block, &mut buf) {
            return;
        }
        let Ok((header, _)) = AttrHeader::read_from_prefix(&buf) else {
            return;
        };
        let claimed = header.references.get();
        self.attr_blocks.insert(block, (claimed, 1));
        let what = match () {
            () if header.magic.get() != ATTR_MAGIC => Some("has no signature"),
            () if header.blocks.get() != 1 => Some("is not one block"),
            () => entries(&buf[size_of::<AttrHeader>()..], size_of::<AttrHeader>()),
        };
        if let Some(what) = what {
            let what = format_args!("inode {ino}: attribute block {block} {what}");
            self.corrupt("E11", what);
        }
    }

    /// Checks the part of an inode after its fields, if it has attributes.
    pub(super) fn attributes_behind(&mut self, ino: u32, behind: &[u8]) {
        let Some((magic, rest)) = behind.split_first_chunk() else {
            return;
        };
        if u32::from_le_bytes(*magic) == ATTR_MAGIC
            && let Some(what) = entries(rest, 0)
        {
            self.corrupt(
                "E11",
                format_args!("inode {ino}: its list of attributes {what}"),
            );
        }
    }

    /// Checks the count of inodes in every attribute block.
    pub(super) fn attribute_references(&mut self) {
        for (block, (claimed, found)) in std::mem::take(&mut self.attr_blocks) {
            let what = format_args!("attribute block {block}: {claimed} references, not {found}");
            if claimed < found {
                self.corrupt("E11", what);
            } else if claimed > found {
                self.leak("E25", what);
            }
        }
    }
}

/// Returns the defect of a list of entries whose values lie after them. Offsets of values are
/// counted from `base` bytes before `area`.
fn entries(area: &[u8], base: usize) -> Option<&'static str> {
    let mut at = 0;
    let mut lowest = area.len();
    loop {
        let left = &area[at..];
        match left.first_chunk::<4>() {
            None => return Some("has no end"),
            Some([0, 0, 0, 0]) => break,
            Some(_) => {}
        }
        let Ok((entry, behind)) = AttrEntry::read_from_prefix(left) else {
            return Some("has an entry beyond its end");
        };
        let name = usize::from(entry.name_len);
        if name > behind.len() {
            return Some("has a name beyond its end");
        }
        let size = entry.value_size.get() as usize;
        if entry.value_inode.get() != 0 {
            return Some("has a value elsewhere");
        }
        let value = if size > 0 {
            let value = usize::from(entry.value_offset.get()).checked_sub(base);
            let inside = value.filter(|v| v.checked_add(size).is_some_and(|end| end <= area.len()));
            let Some(value) = inside else {
                return Some("has a value outside");
            };
            lowest = lowest.min(value);
            // The hash takes whole words.
            value..(value + size).next_multiple_of(4).min(area.len())
        } else {
            0..0
        };
        let hash = entry.hash.get();
        if hash != attribute_hash(&behind[..name], &area[value]) && (hash != 0 || base > 0) {
            return Some("has a wrong hash");
        }
        at = (at + size_of::<AttrEntry>() + name).next_multiple_of(4);
        if at > area.len() {
            return Some("has no end");
        }
    }
    (lowest < at + 4).then_some("overlaps a value")
}

/// The expected hash of an entry, over its name and then its value in words.
fn attribute_hash(name: &[u8], value: &[u8]) -> u32 {
    let name = name
        .iter()
        .fold(0u32, |hash, byte| hash.rotate_left(5) ^ u32::from(*byte));
    value.chunks(4).fold(name, |hash, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}
