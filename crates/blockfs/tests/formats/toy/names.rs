//! Directories: slots of equal size, in the blocks of a file. `.` and `..` are not stored.

use super::bytes::field;
use super::{BLOCK, Fault, Toy, bytes, init, place};
use blockfs::{FormatError, InodeChange, Piece, Removed, Result};
use patch::{Before, Op, PatchId, Rule};
use vfs::{Cookie, DirEntry, Errno, FileType, Ino};

const SLOT: usize = 64;
const SLOTS: u64 = BLOCK as u64 / SLOT as u64;
/// Offset of the name in a slot, after the inode, the kind and the length.
const NAME: usize = 6;
pub const NAME_MAX: usize = SLOT - NAME;

/// The first cookie after those of `.` and `..`.
const FIRST_COOKIE: u64 = 3;

/// A name, its slot and its inode.
struct Entry {
    slot: u64,
    ino: Ino,
    kind: FileType,
    name: Vec<u8>,
}

fn slot_bytes(ino: Ino, kind: FileType, name: &[u8]) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    slot[..4].copy_from_slice(&(ino.0 as u32).to_le_bytes());
    (slot[4], slot[5]) = (kind as u8, name.len() as u8);
    slot[NAME..NAME + name.len()].copy_from_slice(name);
    slot
}

impl Toy {
    /// The entries, and the first free slot in the existing blocks.
    fn entries(&self, dir: Ino) -> Result<(Vec<Entry>, Option<u64>)> {
        let inode = self.load(dir)?;
        if inode.kind() != Some(FileType::Directory) {
            return Err(FormatError::Limit(Errno::NOTDIR));
        }
        let (mut entries, mut free) = (Vec::new(), None);
        for index in 0..inode.size() / u64::from(BLOCK) {
            let Some(lba) = self.fragment_of(&inode, index) else {
                return Err(FormatError::Corrupt(format!(
                    "directory {dir}: it has a hole"
                )));
            };
            let block = self.store.read(lba)?;
            for (slot, bytes) in (index * SLOTS..).zip(block.chunks_exact(SLOT)) {
                let ino = Ino(bytes::get(bytes, 0).into());
                match FileType::from_code(bytes[4]).filter(|_| ino.0 != 0) {
                    Some(kind) => entries.push(Entry {
                        slot,
                        ino,
                        kind,
                        name: bytes[NAME..NAME + usize::from(bytes[5])].to_vec(),
                    }),
                    None => free = free.or(Some(slot)),
                }
            }
        }
        Ok((entries, free))
    }

    pub fn find_name(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        let (entries, _) = self.entries(dir)?;
        Ok(entries
            .iter()
            .find(|entry| entry.name == name)
            .map(|entry| entry.ino))
    }

    pub fn has_names(&self, dir: Ino) -> Result<bool> {
        Ok(!self.entries(dir)?.0.is_empty())
    }

    pub fn list_names(
        &self,
        dir: Ino,
        after: Cookie,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let (entries, _) = self.entries(dir)?;
        let kind = FileType::Directory;
        let parent = Ino(self.load(dir)?.get(field::PARENT).into());
        let own: [(u64, Ino, FileType, &[u8]); 2] =
            [(1, dir, kind, b"."), (2, parent, kind, b"..")];
        let cookie = |at: usize, entry: &Entry| match self.has(Fault::ShiftingCookies) {
            true => at as u64 + FIRST_COOKIE,
            false => entry.slot + FIRST_COOKIE,
        };
        let others = entries.iter().enumerate();
        let others =
            others.map(|(at, entry)| (cookie(at, entry), entry.ino, entry.kind, &*entry.name));
        for (cookie, ino, kind, name) in own.into_iter().chain(others) {
            let entry = DirEntry {
                ino,
                kind,
                name,
                cookie: Cookie(cookie),
            };
            if cookie > after.0 && !sink(&entry) {
                break;
            }
        }
        Ok(())
    }

    fn put_slot(
        &self,
        op: &Op,
        dir: Ino,
        slot: u64,
        bytes: &[u8],
        befores: &[Before],
    ) -> Result<PatchId> {
        let piece = Piece {
            at: (slot % SLOTS) as u32 * SLOT as u32,
            bytes,
        };
        Ok(self.put(op, dir, slot / SLOTS, piece, befores)?.patch)
    }

    pub fn insert(
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
        let (_, free) = self.entries(dir)?;
        let mut befores = befores.to_vec();
        let key = (dir, name.to_vec());
        let erased = self.state.lock().erased.get(&key).copied();
        befores.extend(erased.map(|patch| Before {
            patch,
            rule: Rule::NullifyBeforeReuse,
        }));
        let bytes = slot_bytes(ino, kind, name);
        let size = self.load(dir)?.size();
        let slot = free.unwrap_or(size / u64::from(BLOCK) * SLOTS);
        let mut patch = self.put_slot(op, dir, slot, &bytes, &befores)?;
        if free.is_none() {
            let grown = InodeChange {
                size: Some(size + u64::from(BLOCK)),
                ..InodeChange::default()
            };
            patch = self.change_fields(op, dir, &grown, &init([patch]))?;
        }
        match self.has(Fault::WrongPatch) {
            true => Ok(PatchId::DURABLE),
            false => Ok(patch),
        }
    }

    fn must_find(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        let (entries, _) = self.entries(dir)?;
        let found = entries.into_iter().find(|entry| entry.name == name);
        found.ok_or(FormatError::Limit(Errno::NOENT))
    }

    pub fn exchange(
        &self,
        op: &Op,
        dir: Ino,
        name: &[u8],
        (ino, kind): (Ino, FileType),
        befores: &[Before],
    ) -> Result<Removed> {
        let entry = self.must_find(dir, name)?;
        let bytes = slot_bytes(ino, kind, name);
        Ok(Removed {
            patch: self.put_slot(op, dir, entry.slot, &bytes, befores)?,
            never_stored: false,
        })
    }

    pub fn erase(&self, op: &Op, dir: Ino, name: &[u8], befores: &[Before]) -> Result<Removed> {
        let entry = self.must_find(dir, name)?;
        let patch = self.put_slot(op, dir, entry.slot, &[0; SLOT], befores)?;
        self.state.lock().erased.insert((dir, name.to_vec()), patch);
        Ok(Removed {
            patch,
            never_stored: false,
        })
    }

    pub fn set_up(&self, op: &Op, dir: Ino, parent: Ino, befores: &[Before]) -> Result<PatchId> {
        self.load(dir)?;
        self.set(
            op,
            place(dir),
            field::PARENT,
            &(parent.0 as u32).to_le_bytes(),
            befores,
        )
    }
}
