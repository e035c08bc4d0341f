//! Opening: super block and recovery; then `scan` rebuilds the volatile maps.
//!
//! Recovery writes in two cases only: it applies a committed record of the redo log, or it
//! mends a torn super block from its copy. Both may be interrupted and repeated. Inodes that
//! were unlinked while open, and blocks that an interrupted operation had taken, are free
//! because nothing refers to them.

use crate::alloc::Bitmap;
use crate::error::Error;
use crate::format::{BLOCK, INODE, LOG_BLOCKS, MAGIC, MIN_BLOCKS, Super, VERSION, at};
use crate::fs::{Bpfs, MountOptions};
use crate::indexes::{self, Indexes};
use crate::log::{self, Log};
use crate::mkfs::static_crc;
use crate::mode::Mode;
use crate::scan;
use crate::table::Table;
use crate::volume::{Volume, reserve};
use crossbeam_utils::sync::ShardedLock;
use medium::{MediumError, Pmem, Rule};
use parking_lot::Mutex;
use std::sync::atomic::AtomicBool;
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
    if sup.crc.get() != static_crc(&sup) {
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
        .map_err(medium("reading the super block"))?;
    Super::read_from_bytes(&bytes).map_err(|_| Error::NotBpfs)
}

fn medium(while_doing: &'static str) -> impl Fn(MediumError) -> Error {
    move |source| Error::Medium {
        while_doing,
        source,
    }
}

/// The root record in force, and whether the super block must be mended. Shadow paging writes
/// the copy first and the super block second, each as a whole. If the two root fields of the
/// super block differ, its write was interrupted, and the copy is complete.
pub(crate) fn root_of<P: Pmem + ?Sized>(pm: &P, info: &SuperInfo) -> Result<(u64, bool), Error> {
    let load = |off| pm.load(off).map_err(medium("reading the super block"));
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

/// An image with a valid super block, before recovery. Only [`recover`](Self::recover) leads to
/// its volume.
struct Unrecovered<P> {
    pm: P,
    info: SuperInfo,
}

impl<P: Pmem> Unrecovered<P> {
    /// Replays the log, mends the super block, and sets the mode.
    fn recover(self, o: &MountOptions) -> Result<Volume<P>, Error> {
        let Self { pm, info } = self;
        let found = Pending::of(&pm, &info)?;
        let mode = o.mode.unwrap_or(info.mode);
        if o.read_only && found.is_some() {
            return Err(Error::NeedsRecovery);
        }
        if !o.read_only {
            found.apply(&pm)?;
            set_mode(&pm, info.mode, mode, found.root)?;
        }
        let map = Bitmap::new(info.blocks, info.blocks);
        for block in 0..info.log_start + info.log_blocks {
            map.mark(block);
        }
        Ok(Volume {
            log: Log::new(info.log_start, info.log_blocks),
            blocks: info.blocks,
            rules: mode.rules(),
            reserve: reserve(info.blocks, mode.rules()),
            map,
            failed: AtomicBool::new(false),
            pm,
        })
    }
}

/// Stores a word of a super block and waits until it is durable. So the copies of the root are
/// right before the mode that trusts them is stored. One super block is whole while the other
/// is mended.
fn store<P: Pmem>(pm: &P, off: u64, value: u64) -> Result<(), Error> {
    pm.store_word(off, value);
    pm.flush(off, 8);
    pm.fence(Rule::InitialiseBeforePoint)
        .map_err(medium("mending the super block"))
}

/// Stores `mode` as the one in force. Only shadow paging trusts the copies of the root, so they
/// are updated before.
fn set_mode<P: Pmem>(pm: &P, old: Mode, mode: Mode, root: u64) -> Result<(), Error> {
    if mode == old {
        return Ok(());
    }
    if mode == Mode::Sp {
        for off in [
            BLOCK + at::SUPER_ROOT,
            BLOCK + at::SUPER_ROOT_COPY,
            at::SUPER_ROOT_COPY,
        ] {
            store(pm, off, root)?;
        }
    }
    store(pm, BLOCK + at::SUPER_MODE, mode.code())?;
    store(pm, at::SUPER_MODE, mode.code())
}

/// Recovers an image as opening for writing does: replays the redo log and mends the super
/// block. Returns whether that was necessary.
///
/// On an [`Overlay`](medium::Overlay), the medium below stays unchanged. An image that cannot
/// be written is opened in this way.
///
/// # Errors
/// As [`probe`], and [`Error::Corrupt`] of a damaged log.
pub fn recover<P: Pmem>(pm: &P) -> Result<bool, Error> {
    let info = probe(pm)?;
    let found = Pending::of(pm, &info)?;
    found.apply(pm)?;
    Ok(found.is_some())
}

/// The work of a recovery.
struct Pending {
    /// Slots of the log, and the record in each.
    records: Vec<(u64, Vec<log::Record>)>,
    root: u64,
    /// Whether the super block must be mended.
    torn: bool,
}

impl Pending {
    fn of<P: Pmem>(pm: &P, info: &SuperInfo) -> Result<Self, Error> {
        let end = info.blocks * BLOCK;
        let (root, torn) = root_of(pm, info)?;
        Ok(Self {
            records: log::pending(pm, info.log_start, info.log_blocks, end)?,
            root,
            torn,
        })
    }

    fn is_some(&self) -> bool {
        !self.records.is_empty() || self.torn
    }

    fn apply<P: Pmem>(&self, pm: &P) -> Result<(), Error> {
        log::replay(pm, &self.records).map_err(|f| f.at("replaying the redo log"))?;
        if self.torn {
            store(pm, at::SUPER_ROOT, self.root)?;
            store(pm, at::SUPER_ROOT_COPY, self.root)?;
        }
        Ok(())
    }
}

impl<P: Pmem> Bpfs<P> {
    /// Opens a file system: recovers it, then scans it.
    ///
    /// # Errors
    /// See [`Error`]. Only recovery has changed the image then.
    pub fn open(pm: P, o: MountOptions) -> Result<Self, Error> {
        let fs = Self::unscanned(pm, o)?;
        let workers = scan::workers(fs.inodes.len());
        scan::run(&fs, workers).map_err(|f| f.at("scanning the file system"))?;
        Ok(fs)
    }

    /// Recovers a file system. Its maps are still empty, and only the scan may use it.
    pub(crate) fn unscanned(pm: P, o: MountOptions) -> Result<Self, Error> {
        let mut info = probe(&pm)?;
        let vol = Unrecovered {
            pm,
            info: info.clone(),
        }
        .recover(&o)?;
        let inode_capacity = info.blocks * (BLOCK / INODE);
        let file = vol
            .inode_file()
            .map_err(|f| f.at("reading the root record"))?;
        let numbers = file.size / INODE + 1;
        if numbers > inode_capacity || !file.size.is_multiple_of(BLOCK) {
            return Err(Error::Corrupt(format!(
                "the inode file has {} bytes",
                file.size
            )));
        }
        info.mode = o.mode.unwrap_or(info.mode);
        Ok(Self {
            vol,
            table: Table::new(inode_capacity),
            inodes: Bitmap::new(numbers, inode_capacity),
            inode_capacity,
            read_only: o.read_only,
            atime: o.atime,
            clock: o.clock,
            tree_lock: ShardedLock::new(()),
            grow_lock: Mutex::new(()),
            indexes: Indexes::new(indexes::LIMIT_BYTES),
            info,
        })
    }
}
