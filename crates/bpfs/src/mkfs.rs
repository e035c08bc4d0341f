//! `mkfs`: makes an empty file system.

use crate::error::Error;
use crate::format::{
    BLOCK, BlockNo, CTIME_ALONE, HeightAddr, Inode, LOG_BLOCKS, MAGIC, MIN_BLOCKS, RootRecord,
    Super, VERSION,
};
use crate::mode::Mode;
use medium::{MediumError, Pmem, Rule};
use vfs::{FileType, Timestamp};
use zerocopy::{FromZeros, IntoBytes};

/// Options of a new file system.
#[derive(Debug, Clone)]
pub struct MkfsOptions {
    /// Identity. Choose it at random to make it unique.
    pub uuid: [u8; 16],
    /// Commit mode until a mount chooses another.
    pub mode: Mode,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Permission bits of the root directory.
    pub root_mode: u32,
    /// Times of the root directory.
    pub now: Timestamp,
}

impl Default for MkfsOptions {
    fn default() -> Self {
        Self {
            uuid: [0; 16],
            mode: Mode::DEFAULT,
            uid: 0,
            gid: 0,
            root_mode: 0o755,
            now: Timestamp(0),
        }
    }
}

/// Makes an empty file system that fills the medium, in whole blocks.
///
/// The super block is written last: an interrupted run leaves no file system.
///
/// # Errors
/// [`Error::Size`] below 1 MiB; [`Error::Medium`].
pub fn mkfs<P: Pmem + ?Sized>(pm: &P, o: &MkfsOptions) -> Result<(), Error> {
    let blocks = pm.len() / BLOCK;
    if blocks < MIN_BLOCKS {
        let need = MIN_BLOCKS * BLOCK;
        return Err(Error::Size {
            what: "a file system",
            need,
            have: pm.len(),
        });
    }
    write(pm, blocks, o).map_err(Error::medium("making it"))
}

fn write<P: Pmem + ?Sized>(pm: &P, blocks: u64, o: &MkfsOptions) -> Result<(), MediumError> {
    let zeros = [0; BLOCK as usize];
    let log = BlockNo(2);
    let record = BlockNo(log.0 + LOG_BLOCKS);
    let inodes = BlockNo(record.0 + 1);
    // Rule: initialise before point. The old signature is erased first, the new one stored
    // last.
    for block in 0..=inodes.0 {
        pm.store_nt(block * BLOCK, &zeros);
    }
    let tree = RootRecord {
        ha: HeightAddr::new(0, inodes).0.into(),
        size: BLOCK.into(),
    };
    pm.store_nt(record.addr(), tree.as_bytes());
    let mut root = Inode::new_zeroed();
    root.generation = 1.into();
    root.uid = o.uid.into();
    root.gid = o.gid.into();
    root.mode = (FileType::Directory.mode_bits() | (o.root_mode & vfs::perm::PERM_MASK)).into();
    (root.mtime, root.atime) = (o.now.0.into(), o.now.0.into());
    root.ctime = (o.now.0 & !CTIME_ALONE).into();
    pm.store_nt(inodes.addr(), root.as_bytes());
    // Also nullify before reuse: the old signature is erased before the copy of the super block
    // leads to these blocks.
    pm.fence(Rule::InitialiseBeforePoint)?;
    let sup = super_block(blocks, log, record, o);
    pm.store_nt(BLOCK, sup.as_bytes());
    pm.fence(Rule::CopyBeforeOverwrite)?; // one super block is whole at any time
    // A torn super block must not be valid: the signature is stored last.
    let (magic, rest) = sup.as_bytes().split_at(MAGIC.len());
    pm.store_nt(MAGIC.len() as u64, rest);
    pm.fence(Rule::DataBeforeCommit)?; // the signature is the commit
    pm.store(0, magic);
    pm.flush(0, magic.len() as u64);
    pm.fence(Rule::DurableBeforeReturn)
}

fn super_block(blocks: u64, log: BlockNo, record: BlockNo, o: &MkfsOptions) -> Super {
    let mut sup = Super::new_zeroed();
    sup.magic = MAGIC;
    sup.version = VERSION.into();
    sup.block_bytes = (BLOCK as u32).into();
    sup.uuid = o.uuid;
    sup.blocks = blocks.into();
    sup.log_start = log.0.into();
    sup.log_blocks = LOG_BLOCKS.into();
    sup.crc = sup.static_crc().into();
    sup.root = record.0.into();
    sup.root_copy = record.0.into();
    sup.mode = o.mode.code().into();
    sup
}
