//! BPFS for harnesses: the explorer and the tests.

use crate::format::{
    BLOCK, BlockNo, DIRENT_MIN, DirentHead, HeightAddr, INODE, Inode, LOG_BLOCKS, MIN_BLOCKS, at,
};
use crate::{Atime, Bpfs, MkfsOptions, Mode, MountOptions, check, mkfs};
use medium::{MediumError, Pmem, Rule};
use std::sync::Arc;
use vfs::check::Report;
use vfs::{Clock, FileSystem, FileType, System};
use zerocopy::{FromZeros, IntoBytes};

/// BPFS in one mode on the smallest image, whose free space is not zeroed.
#[derive(Debug, Clone, Copy)]
pub struct BpfsSystem(pub Mode);

impl System<dyn Pmem> for BpfsSystem {
    fn id(&self) -> String {
        format!("bpfs-{}", self.0)
    }

    fn image_bytes(&self) -> u64 {
        MIN_BLOCKS * BLOCK
    }

    fn format(&self, pm: &dyn Pmem) -> Result<(), String> {
        let options = MkfsOptions {
            mode: self.0,
            ..MkfsOptions::default()
        };
        mkfs(pm, &options).map_err(|e| e.to_string())?;
        poison(pm).map_err(|e| e.to_string())
    }

    fn open(
        &self,
        pm: Arc<dyn Pmem>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn FileSystem>, String> {
        let options = MountOptions {
            read_only: false,
            mode: None,
            atime: Atime::Never,
            clock,
        };
        let fs = Bpfs::open(pm, options).map_err(|e| e.to_string())?;
        Ok(Arc::new(fs))
    }

    fn check(&self, pm: &dyn Pmem) -> Report {
        check(pm)
    }
}

/// Fills free space with data of an earlier file system, as on a used medium. Free inodes hold
/// files. Free blocks hold inodes, directory entries and pointers in turn.
fn poison(pm: &dyn Pmem) -> Result<(), MediumError> {
    let root = BlockNo(pm.load(at::SUPER_ROOT)?);
    let inodes = HeightAddr(pm.load(root.addr())?).block();
    pm.store_nt(inodes.addr() + INODE, &old_inodes()[INODE as usize..]);
    let fills = [old_inodes(), old_entries(), old_pointers()];
    for (block, fill) in (inodes.0 + 1..MIN_BLOCKS).zip(fills.iter().cycle()) {
        pm.store_nt(BlockNo(block).addr(), fill);
    }
    pm.fence(Rule::DurableBeforeUse)
}

/// Inodes of files that share a block of contents and one of attributes.
fn old_inodes() -> Vec<u8> {
    let mut inode = Inode::new_zeroed();
    inode.generation = 5.into();
    (inode.uid, inode.gid) = (1000.into(), 1000.into());
    inode.mode = (FileType::Regular.mode_bits() | 0o666).into();
    inode.ha = HeightAddr::new(1, BlockNo(MIN_BLOCKS / 2)).0.into();
    inode.size = (3 * BLOCK).into();
    inode.rdev = 0x103.into();
    inode.xattr = (MIN_BLOCKS - 1).into();
    let one = inode.as_bytes();
    one.repeat(BLOCK as usize / one.len())
}

/// Entries of the least length, so that one begins where a chain of names usually ends.
fn old_entries() -> Vec<u8> {
    let entry = |n: usize| {
        let head = DirentHead {
            ino: (2 + n as u64 % 8).into(),
            rec_len: (DIRENT_MIN as u16).into(),
            kind: FileType::Regular as u8,
            name_len: 4,
        };
        let name = format!("{n:04}");
        [head.as_bytes(), name.as_bytes()].concat()
    };
    (0..BLOCK as usize / DIRENT_MIN).flat_map(entry).collect()
}

/// Pointers to all blocks after the log.
fn old_pointers() -> Vec<u8> {
    let blocks = (2 + LOG_BLOCKS..MIN_BLOCKS).cycle();
    let words = blocks.take(BLOCK as usize / 8);
    words.flat_map(u64::to_le_bytes).collect()
}
