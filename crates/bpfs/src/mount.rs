//! Opening: recovery; then `scan` rebuilds the volatile maps.
//!
//! Recovery writes in two cases only: it applies a committed record of the redo log, or it
//! mends a torn super block from its copy. Both may be interrupted and repeated. Inodes that
//! were unlinked while open, and blocks that an interrupted operation had taken, are free
//! because nothing refers to them.

use crate::alloc::Bitmap;
use crate::error::Error;
use crate::format::{BLOCK, INODE, at};
use crate::fs::Bpfs;
use crate::indexes::{self, Indexes};
use crate::log::{self, RedoLog};
use crate::mode::Mode;
use crate::scan;
use crate::super_block::{SuperInfo, probe, root_of};
use crate::table::Table;
use crate::volume::{Volume, reserve};
use crossbeam_utils::sync::ShardedLock;
use medium::{Pmem, Rule};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vfs::{Atime, Clock, SystemClock};

/// Options of a mount.
#[derive(Clone)]
pub struct MountOptions {
    /// Nothing is written to the medium.
    pub read_only: bool,
    /// Commit mode from now on; `None`: as before.
    pub mode: Option<Mode>,
    /// Access times.
    pub atime: Atime,
    /// The source of time stamps.
    pub clock: Arc<dyn Clock>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            mode: None,
            atime: Atime::Relative,
            clock: Arc::new(SystemClock),
        }
    }
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
            log: RedoLog::new(info.log_start, info.log_blocks),
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
        .map_err(Error::medium("mending the super block"))
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
    records: Vec<(u64, Vec<log::RedoRecord>)>,
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
            nameless: Mutex::default(),
            indexes: Indexes::new(indexes::LIMIT_BYTES),
            info,
        })
    }
}
