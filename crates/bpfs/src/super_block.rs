//! The super block: reads and checks it, and finds the root record in force.

use crate::error::Error;
use crate::format::{BLOCK, LOG_BLOCKS, MAGIC, MIN_BLOCKS, Super, VERSION, at};
use crate::mode::Mode;
use medium::Pmem;
use zerocopy::FromBytes;

/// The contents of the super block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuperInfo {
    /// Identity.
    pub uuid: [u8; 16],
    /// Format version.
    pub version: u32,
    /// Blocks of 4 KiB, in all.
    pub blocks: u64,
    /// First block of the redo log.
    pub log_start: u64,
    /// Blocks of the redo log.
    pub log_blocks: u64,
    /// Commit mode of the last mount.
    pub mode: Mode,
}

/// Reads and checks the super block.
///
/// # Errors
/// [`Error::NotBpfs`], [`Error::Version`], [`Error::Size`], [`Error::Corrupt`],
/// [`Error::Medium`].
pub fn probe<P: Pmem + ?Sized>(pm: &P) -> Result<SuperInfo, Error> {
    let need = MIN_BLOCKS * BLOCK;
    if pm.len() < need {
        return Err(Error::Size {
            what: "a BPFS",
            need,
            have: pm.len(),
        });
    }
    let sup = read_super(pm, 0)?;
    if sup.magic != MAGIC {
        return Err(Error::NotBpfs);
    }
    if sup.version.get() != VERSION {
        return Err(Error::Version(sup.version.get()));
    }
    if sup.crc.get() != sup.static_crc() {
        return Err(Error::Corrupt(
            "the super block's checksum does not match".into(),
        ));
    }
    let blocks = sup.blocks.get();
    let need = blocks.saturating_mul(BLOCK);
    if pm.len() < need {
        return Err(Error::Size {
            what: "this BPFS",
            need,
            have: pm.len(),
        });
    }
    let log_ok = sup.log_start.get() == 2 && sup.log_blocks.get() == LOG_BLOCKS;
    if sup.block_bytes.get() != BLOCK as u32 || blocks < MIN_BLOCKS || !log_ok {
        return Err(Error::Corrupt(
            "the super block's sizes make no sense".into(),
        ));
    }
    let mode = sup.mode.get();
    let mode = Mode::from_code(mode)
        .ok_or_else(|| Error::Corrupt(format!("the super block names the unknown mode {mode}")))?;
    Ok(SuperInfo {
        uuid: sup.uuid,
        version: VERSION,
        blocks,
        log_start: sup.log_start.get(),
        log_blocks: sup.log_blocks.get(),
        mode,
    })
}

fn read_super<P: Pmem + ?Sized>(pm: &P, block: u64) -> Result<Super, Error> {
    let mut bytes = [0; BLOCK as usize];
    pm.read(block * BLOCK, &mut bytes)
        .map_err(Error::medium("reading the super block"))?;
    Super::read_from_bytes(&bytes).map_err(|_| Error::NotBpfs)
}

/// The root record in force, and whether the super block must be mended. Shadow paging writes
/// the copy first and the super block second, each as a whole. If the two root fields of the
/// super block differ, its write was interrupted, and the copy is complete.
pub(crate) fn root_of<P: Pmem + ?Sized>(pm: &P, info: &SuperInfo) -> Result<(u64, bool), Error> {
    let load = |off| {
        pm.load(off)
            .map_err(Error::medium("reading the super block"))
    };
    let root = load(at::SUPER_ROOT)?;
    if info.mode != Mode::Sp || root == load(at::SUPER_ROOT_COPY)? {
        return Ok((root, false));
    }
    let (copy, check) = (
        load(BLOCK + at::SUPER_ROOT)?,
        load(BLOCK + at::SUPER_ROOT_COPY)?,
    );
    if copy != check {
        return Err(Error::Corrupt("both super blocks are torn".into()));
    }
    Ok((copy, true))
}
