//! The facts in the superblock of an image.

use crate::bytes;
use crate::error::Error;
use crate::features;
use crate::format::{
    INODE_BYTES_REV0, Incompat, MAGIC, STATE_ERRORS, STATE_VALID, SUPER_OFFSET, Super,
};
use medium::block::BlockDevice;
use std::mem::size_of;
use zerocopy::FromBytes;

/// The facts about an image that `info` shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuperInfo {
    /// The volume's name, without padding.
    pub label: Vec<u8>,
    /// The UUID, zero in revision 0.
    pub uuid: [u8; 16],
    /// 0 or 1.
    pub revision: u32,
    /// All features, by name.
    pub features: Vec<String>,
    /// Features that allow only reading, by name.
    pub read_only: Vec<String>,
    /// Bytes in a block.
    pub block_bytes: u32,
    /// Blocks of the file system.
    pub blocks: u32,
    /// Free blocks, as counted in the superblock.
    pub free_blocks: u32,
    /// Blocks for the superuser only.
    pub reserved_blocks: u32,
    /// Block groups.
    pub groups: u32,
    /// Bytes of an inode.
    pub inode_bytes: u16,
    /// Inodes, the reserved ones included.
    pub inodes: u32,
    /// Free inodes, as counted in the superblock.
    pub free_inodes: u32,
    /// Whether it was unmounted cleanly after its last use.
    pub clean: bool,
    /// Whether it is marked as damaged.
    pub errors: bool,
    /// Mounts since the last check.
    pub mounts: u16,
    /// The place of the last mount, without padding.
    pub last_mounted: Vec<u8>,
    /// Seconds since 1970 of its making, or 0 if not recorded.
    pub made: u32,
    /// Seconds since 1970 of the last write to the superblock.
    pub written: u32,
}

/// Reads the superblock of a device.
pub(crate) fn superblock<D: BlockDevice + ?Sized>(device: &D) -> Result<Super, Error> {
    let mut bytes = [0; size_of::<Super>()];
    if device.geometry().bytes() < SUPER_OFFSET + bytes.len() as u64 {
        return Err(Error::NotExt2);
    }
    bytes::read(device, SUPER_OFFSET, &mut bytes)?;
    Super::read_from_bytes(&bytes)
        .ok()
        .filter(|sup| sup.magic.get() == MAGIC)
        .ok_or(Error::NotExt2)
}

/// Examines an image from its superblock alone.
///
/// # Errors
/// - [`Error::NotExt2`];
/// - [`Error::Features`] with the names of the unknown incompatible features;
/// - [`Error::Corrupt`] if the superblock is inconsistent;
/// - [`Error::Device`].
pub fn probe<D: BlockDevice + ?Sized>(device: &D) -> Result<SuperInfo, Error> {
    let sup = superblock(device)?;
    let revision = sup.revision.get();
    let modern = revision > 0;
    if revision > 1 {
        return Err(Error::Features(format!("revision {revision}")));
    }
    // Mounting replays a journal first.
    let known = features::INCOMPAT | Incompat::RECOVER;
    let unknown = sup.incompat.get() & !known.bits();
    if modern && unknown != 0 {
        return Err(Error::Features(features::incompat(unknown).join(", ")));
    }
    let read_only = sup.ro_compat.get() & !features::RO_COMPAT.bits();
    let block_bytes = 1024u32.checked_shl(sup.log_block_size.get().min(32));
    let block_bytes = block_bytes.filter(|b| *b != 0 && *b <= 4096);
    let corrupt = |what: &str| Error::Corrupt(format!("superblock: {what}"));
    let block_bytes =
        block_bytes.ok_or_else(|| corrupt("blocks are not of 1024, 2048 or 4096 bytes"))?;
    let (first, per_group) = (sup.first_data_block.get(), sup.blocks_per_group.get());
    let data = sup.blocks_count.get().checked_sub(first);
    let groups = data
        .filter(|_| per_group > 0)
        .map(|d| d.div_ceil(per_group));
    let groups = groups.ok_or_else(|| corrupt("there are no block groups"))?;
    let state = sup.state.get();
    let replay = modern && sup.incompat.get() & Incompat::RECOVER.bits() != 0;
    Ok(SuperInfo {
        label: unpadded(&sup.label),
        uuid: sup.uuid,
        revision,
        features: if modern {
            features::all(&sup)
        } else {
            Vec::new()
        },
        read_only: if modern {
            features::ro_compat(read_only)
        } else {
            Vec::new()
        },
        block_bytes,
        blocks: sup.blocks_count.get(),
        free_blocks: sup.free_blocks.get(),
        reserved_blocks: sup.reserved_blocks.get(),
        groups,
        inode_bytes: if modern {
            sup.inode_size.get()
        } else {
            INODE_BYTES_REV0
        },
        inodes: sup.inodes_count.get(),
        free_inodes: sup.free_inodes.get(),
        clean: state & STATE_VALID != 0 && !replay,
        errors: state & STATE_ERRORS != 0,
        mounts: sup.mount_count.get(),
        last_mounted: unpadded(&sup.last_mounted),
        made: sup.mkfs_time.get(),
        written: sup.write_time.get(),
    })
}

fn unpadded(bytes: &[u8]) -> Vec<u8> {
    let len = bytes.iter().position(|b| *b == 0);
    bytes[..len.unwrap_or(bytes.len())].to_vec()
}
