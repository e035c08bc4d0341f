//! Opening: super block, recovery, and the scan that rebuilds the volatile maps.
//!
//! Recovery writes only in two cases: a committed record in the redo log is brought into
//! place, and a super block that a shadow-paging commit left torn is mended from its
//! copy. Both may be interrupted and repeated. What was unlinked while open, and what an
//! interrupted operation had taken, is free simply because nothing refers to it. What
//! the scan has read is written back before anything builds on it.

use crate::alloc::Bitmap;
use crate::dir;
use crate::error::{Error, Fault, Res};
use crate::format::{BLOCK, BlockNo, INODE, LOG_BLOCKS, MAGIC, MIN_BLOCKS, Super, VERSION, at};
use crate::fs::{Bpfs, MountOptions};
use crate::log::{self, Log};
use crate::mkfs::static_crc;
use crate::mode::Mode;
use crate::seeded::{Bug, hit};
use crate::table::Table;
use crate::volume::Volume;
use crossbeam_utils::sync::ShardedLock;
use medium::{MediumError, Pmem};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vfs::{FileType, Ino};
use zerocopy::FromBytes;

/// What the super block says.
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

/// The root record in force, and whether the super block must be mended to say so.
/// Shadow paging writes the copy first and the super block second, each as a whole: a
/// super block whose two root fields differ was being written, so the copy is complete.
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

/// An image that was found to be BPFS, before recovery. The only way on is
/// [`recover`](Self::recover).
struct Unrecovered<P> {
    pm: P,
    info: SuperInfo,
}

impl<P: Pmem> Unrecovered<P> {
    /// Replays the log, mends the super block, and sets the mode.
    fn recover(self, o: &MountOptions) -> Result<Volume<P>, Error> {
        let Self { pm, info } = self;
        let end = info.blocks * BLOCK;
        let found = log::pending(&pm, info.log_start, info.log_blocks, end)?;
        let (root, torn) = root_of(&pm, &info)?;
        let mode = o.mode.unwrap_or(info.mode);
        let dirty = !found.is_empty() || torn;
        if o.read_only && dirty {
            return Err(Error::NeedsRecovery);
        }
        if !o.read_only {
            log::replay(&pm, &found).map_err(|f| f.at("replaying the redo log"))?;
            if torn {
                store(&pm, at::SUPER_ROOT, root)?;
                store(&pm, at::SUPER_ROOT_COPY, root)?;
            }
            set_mode(&pm, info.mode, mode, root)?;
        }
        let map = Bitmap::new(info.blocks, info.blocks);
        for block in 0..info.log_start + info.log_blocks {
            map.mark(block);
        }
        Ok(Volume {
            log: Log::new(info.log_start, info.log_blocks),
            blocks: info.blocks,
            rules: mode.rules(),
            map,
            failed: AtomicBool::new(false),
            pm,
        })
    }
}

fn store<P: Pmem>(pm: &P, off: u64, value: u64) -> Result<(), Error> {
    pm.store_word(off, value);
    pm.flush(off, 8);
    pm.fence().map_err(medium("mending the super block"))
}

/// Makes `mode` the one in force. Only shadow paging trusts the copies of the root, so
/// they are brought up to date before it does.
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

impl<P: Pmem> Bpfs<P> {
    /// Opens a file system: recovers it, then scans it.
    ///
    /// # Errors
    /// See [`Error`]; nothing was changed but by recovery.
    pub fn open(pm: P, o: MountOptions) -> Result<Self, Error> {
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
        let fs = Self {
            vol,
            table: Table::new(inode_capacity),
            inodes: Bitmap::new(numbers, inode_capacity),
            inode_capacity,
            read_only: o.read_only,
            atime: o.atime,
            clock: o.clock,
            tree_lock: ShardedLock::new(()),
            grow_lock: Mutex::new(()),
            info,
        };
        Scan {
            fs: &fs,
            dirs: Vec::new(),
        }
        .run()
        .map_err(|f| f.at("scanning the file system"))?;
        Ok(fs)
    }
}

/// The mount scan (3.3.2): marks blocks and inodes in use and counts links.
struct Scan<'f, P: Pmem> {
    fs: &'f Bpfs<P>,
    /// Directories still to be read.
    dirs: Vec<Ino>,
}

impl<P: Pmem> Scan<'_, P> {
    fn run(mut self) -> Res<()> {
        let vol = &self.fs.vol;
        self.settle(
            0,
            (self.fs.info.log_start + self.fs.info.log_blocks) * BLOCK,
        );
        let record = BlockNo(vol.root_record()? / BLOCK);
        self.mark(record)?;
        self.settle(record.addr(), BLOCK);
        let file = vol.inode_file()?;
        let mut leaves = 0;
        vol.walk(&file, &mut |block, height| {
            leaves += u64::from(height == 0);
            self.settle(block.addr(), BLOCK);
            self.mark(block).map(|()| true)
        })?;
        if leaves != file.valid_leaves() {
            return Err(Fault::Corrupt("the inode file has holes".into()));
        }
        self.fs.inodes.mark(0); // there is no inode 0
        self.name(Ino::ROOT, FileType::Directory, Ino::ROOT)?;
        while let Some(dir) = self.dirs.pop() {
            self.directory(dir)?;
        }
        if !self.fs.read_only {
            vol.pm.fence()?;
        }
        Ok(())
    }

    /// Starts writing back what the scan reads and will be trusted. A server that was
    /// killed may have left a commit in the caches: seen now, it must not be lost by a
    /// power failure after others have built on it. *Rule: data before commit.*
    fn settle(&self, addr: u64, len: u64) {
        if !self.fs.read_only && !hit(Bug::MountUnsettled) {
            self.fs.vol.pm.flush(addr, len);
        }
    }

    fn mark(&self, block: BlockNo) -> Res<()> {
        if self.fs.vol.map.mark(block.0) {
            Ok(())
        } else {
            Err(Fault::Corrupt(format!("block {} is used twice", block.0)))
        }
    }

    fn directory(&mut self, dir: Ino) -> Res<()> {
        let fs = self.fs;
        let tree = fs.vol.tree(fs.vol.inode_addr(dir)?)?;
        dir::for_blocks(&fs.vol, &tree, 0, &mut |base, bytes| {
            dir::parse(bytes, base, &mut |entry| {
                if entry.ino == 0 {
                    return Ok(());
                }
                let kind = FileType::from_code(entry.kind).ok_or_else(|| {
                    Fault::Corrupt(format!("directory {dir}, entry at {}: type", entry.pos))
                })?;
                self.name(Ino(entry.ino), kind, dir)
            })?;
            Ok(true)
        })
    }

    /// An entry names `ino`: counts it and, the first time, takes what the inode has.
    fn name(&mut self, ino: Ino, kind: FileType, parent: Ino) -> Res<()> {
        let fs = self.fs;
        let bad = |why: String| {
            Err(Fault::Corrupt(format!(
                "directory {parent} names inode {ino}{why}"
            )))
        };
        if ino.0 >= fs.inodes.len() || ino.0 == 0 {
            return bad(", which is outside the inode file".into());
        }
        let first = fs.inodes.mark(ino.0);
        let node = fs.table.node(ino);
        node.names.fetch_add(1, Relaxed);
        node.live.store(true, Relaxed);
        let addr = fs.vol.inode_addr(ino)?;
        let inode = fs.vol.inode(addr)?;
        if FileType::from_mode(inode.mode.get()) != Some(kind) {
            return bad(format!(
                ", whose mode is {:o}, as a {kind:?}",
                inode.mode.get()
            ));
        }
        if !first {
            return if kind == FileType::Directory {
                bad(", a directory that has a name".into())
            } else {
                Ok(())
            };
        }
        if kind == FileType::Directory {
            node.parent.store(parent.0, Relaxed);
            if ino != Ino::ROOT {
                fs.table.node(parent).subdirs.fetch_add(1, Relaxed);
            }
            self.dirs.push(ino);
        }
        let mut blocks = 0;
        let tree = fs.vol.tree(addr)?;
        if kind == FileType::Directory && !tree.size.is_multiple_of(BLOCK) {
            return bad(format!(", a directory of {} bytes", tree.size));
        }
        let is_dir = kind == FileType::Directory;
        fs.vol.walk(&tree, &mut |block, height| {
            blocks += 1;
            if height > 0 || is_dir {
                self.settle(block.addr(), BLOCK);
            }
            self.mark(block).map(|()| true)
        })?;
        let xattr = fs.vol.pointer(inode.xattr.get())?;
        if !xattr.is_null() {
            blocks += 1;
            self.mark(xattr)?;
        }
        node.blocks.store(blocks, Relaxed);
        Ok(())
    }
}
