//! The bytes of an inode.

use super::BLOCK;
use blockfs::{InodeChange, NewInode};
use vfs::{Attr, FileFlags, FileType, Ino, Timestamp};

/// Offsets of fields. An inode of kind 0 is free.
pub mod field {
    pub const KIND: u32 = 0;
    pub const PERM: u32 = 4;
    pub const NLINK: u32 = 8;
    pub const UID: u32 = 12;
    pub const GID: u32 = 16;
    pub const RDEV: u32 = 20;
    pub const GENERATION: u32 = 24;
    pub const PARENT: u32 = 28;
    pub const SIZE: u32 = 32;
    pub const ATIME: u32 = 40;
    pub const MTIME: u32 = 48;
    pub const CTIME: u32 = 56;
    /// Bytes of the symbolic-link target in the inode, else 0.
    pub const TARGET_LEN: u32 = 64;
    pub const TARGET: u32 = 68;
    pub const RUNS: u32 = 256;
}

/// Longest target in an inode.
pub const TARGET_MAX: usize = 60;

pub fn get(bytes: &[u8], at: u32) -> u32 {
    u32::from_le_bytes(bytes[at as usize..][..4].try_into().unwrap())
}

/// The block of an inode.
pub struct Inode(pub Vec<u8>);

impl Inode {
    pub fn new(new: &NewInode) -> Self {
        let mut inode = Self(vec![0; BLOCK as usize]);
        inode.put(field::KIND, new.kind as u32);
        inode.put(field::RDEV, new.rdev);
        inode.apply(&InodeChange {
            perm: Some(new.perm),
            uid: Some(new.uid),
            gid: Some(new.gid),
            nlink: Some(new.nlink),
            size: None,
            atime: Some(new.now),
            mtime: Some(new.now),
            ctime: Some(new.now),
        });
        inode
    }

    pub fn get(&self, at: u32) -> u32 {
        get(&self.0, at)
    }

    pub fn put(&mut self, at: u32, value: u32) {
        self.0[at as usize..][..4].copy_from_slice(&value.to_le_bytes());
    }

    fn long(&self, at: u32) -> u64 {
        u64::from_le_bytes(self.0[at as usize..][..8].try_into().unwrap())
    }

    pub fn kind(&self) -> Option<FileType> {
        FileType::from_code(self.0[field::KIND as usize])
    }

    pub fn size(&self) -> u64 {
        self.long(field::SIZE)
    }

    pub fn apply(&mut self, change: &InodeChange) {
        let words = [
            (field::PERM, change.perm),
            (field::UID, change.uid),
            (field::GID, change.gid),
            (field::NLINK, change.nlink),
        ];
        for (at, value) in words {
            if let Some(value) = value {
                self.put(at, value);
            }
        }
        let time = |time: Option<Timestamp>| time.map(|time| time.0 as u64);
        let longs = [
            (field::SIZE, change.size),
            (field::ATIME, time(change.atime)),
            (field::MTIME, time(change.mtime)),
            (field::CTIME, time(change.ctime)),
        ];
        for (at, value) in longs {
            if let Some(value) = value {
                self.0[at as usize..][..8].copy_from_slice(&value.to_le_bytes());
            }
        }
    }

    /// The first fragment of a run, and the number of fragments.
    pub fn run(&self, run: u64) -> (u64, u64) {
        match (field::RUNS as usize + 4 * run as usize) < self.0.len() {
            true => {
                let entry = u64::from(self.get(field::RUNS + 4 * run as u32));
                (entry >> 3, entry & 7)
            }
            false => (0, 0),
        }
    }

    pub fn attr(&self, ino: Ino) -> Option<Attr> {
        let fragments: u64 = (0..super::runs::RUNS).map(|run| self.run(run).1).sum();
        let time = |at| Timestamp(self.long(at) as i64);
        Some(Attr {
            ino,
            generation: self.get(field::GENERATION).into(),
            kind: self.kind()?,
            perm: self.get(field::PERM),
            nlink: self.get(field::NLINK),
            uid: self.get(field::UID),
            gid: self.get(field::GID),
            rdev: self.get(field::RDEV),
            size: self.size(),
            blocks: fragments * u64::from(BLOCK) / 512,
            blksize: BLOCK,
            atime: time(field::ATIME),
            mtime: time(field::MTIME),
            ctime: time(field::CTIME),
            flags: FileFlags::empty(),
        })
    }
}
