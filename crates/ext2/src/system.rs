//! ext2 for test harnesses.

use crate::format::{AttrHeader, Inode, InodeFlags};
use crate::inode::Node;
use crate::{Ext2, Inodes, MkfsOptions, check, mkfs};
use blockfs::Format;
use blockfs::mount::{Devices, MountOptions, Mountable, mount, recover};
use medium::Rule;
use medium::block::{BlockDevice, BlockError, Buffer, Lba, MemoryDevice, Write};
use patch::Optimised;
use patch::stack::{CacheLayer, Mode, Stack};
use std::mem::{offset_of, size_of};
use std::ops::RangeInclusive;
use std::sync::Arc;
use vfs::check::{Report, Severity};
use vfs::{
    Atime, BlockSystem, Clock, Ctx, Errno, FileSystem, FileType, Ino, ManualClock, Still, System,
    Timestamp, XattrMode,
};
use zerocopy::{FromZeros, IntoBytes};

const BLOCK_BYTES: u32 = 1024;
/// Blocks of a test image besides the journal.
const BLOCKS: u64 = 384;
/// Inodes of a test image.
const INODES: u32 = 112;
/// Blocks of its journal.
const JOURNAL_BLOCKS: u64 = 96;

/// ext2 in one mode, on a small image. Its free blocks and inodes are not zero.
#[derive(Debug, Clone, Copy)]
pub struct Ext2System {
    /// How the order of changes is kept.
    mode: Mode,
    /// Blocks besides the journal.
    blocks: u64,
    journal_blocks: u64,
    /// Inodes of a new image.
    inodes: u32,
    /// Whether the id names the size.
    is_sized: bool,
    start: Start,
    optimised: Optimised,
    forgetful: bool,
}

/// The contents of a new image: what mke2fs, the kernel or a crash may leave, and no call of this file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Empty,
    /// [`Ext2System::with_cut_file`].
    Cut,
    /// [`Ext2System::with_shared_attributes`].
    Shared,
    /// [`Ext2System::with_block_past_end`].
    PastEnd,
}

/// Bytes of an image, and their place.
type Patches = Vec<(usize, Vec<u8>)>;

impl Ext2System {
    /// A system in this mode. Its journal is small, so that it is quick to walk and sometimes full.
    pub const fn new(mode: Mode) -> Self {
        Self {
            mode,
            blocks: BLOCKS,
            journal_blocks: JOURNAL_BLOCKS,
            inodes: INODES,
            is_sized: true,
            start: Start::Empty,
            optimised: Optimised::Both,
            forgetful: false,
        }
    }

    /// A system with room for that many bytes of data and that many inodes, and a journal of the
    /// least size that e2fsck accepts.
    pub fn with_room(mode: Mode, bytes: u64, inodes: u64) -> Self {
        // Half of it more, for indirect blocks and directories.
        let blocks = bytes.saturating_mul(3) / 2 / u64::from(BLOCK_BYTES);
        let inodes = inodes.saturating_add(u64::from(INODES)).min(1 << 20) as u32;
        Self {
            blocks: blocks + 2048 + u64::from(inodes) / 2,
            inodes,
            is_sized: false,
            ..Self::with_usual_journal(mode)
        }
    }

    /// A system with little space, which is quickly full.
    pub const fn cramped(mode: Mode) -> Self {
        Self {
            blocks: 64,
            ..Self::new(mode)
        }
    }

    /// A system with a journal of the least size that e2fsck accepts.
    pub const fn with_usual_journal(mode: Mode) -> Self {
        Self {
            journal_blocks: 1024,
            ..Self::new(mode)
        }
    }

    /// A system with a file `cut` of 100 bytes. Its block holds other bytes past that size, as a
    /// crash between a cut and the zeroing of the rest of the block leaves them.
    pub const fn with_cut_file(mode: Mode) -> Self {
        Self {
            start: Start::Cut,
            ..Self::new(mode)
        }
    }

    /// A system with two files `a` and `b`, whose inodes are in different blocks and share the block of their
    /// attributes, as the kernel lets them.
    pub const fn with_shared_attributes(mode: Mode) -> Self {
        Self {
            start: Start::Shared,
            ..Self::new(mode)
        }
    }

    /// A system with a directory `D` of 13 full blocks. It points to one more, with a name, as a crash between that
    /// pointer, in an indirect block, and the size leaves it.
    pub const fn with_block_past_end(mode: Mode) -> Self {
        Self {
            start: Start::PastEnd,
            ..Self::new(mode)
        }
    }

    /// Selects the optimisations of the patch graph. Without them fewer changes reach the medium in
    /// one write, so that a missing order shows.
    #[must_use]
    pub const fn optimised(self, optimised: Optimised) -> Self {
        Self { optimised, ..self }
    }

    /// Selects a store on which each call is repeated at each block that it needs.
    #[must_use]
    pub const fn forgetful(self) -> Self {
        Self {
            forgetful: true,
            ..self
        }
    }

    fn is_journaled(self) -> bool {
        !matches!(self.mode, Mode::Async | Mode::SoftUpdates)
    }

    fn all_blocks(self) -> u64 {
        self.blocks
            + if self.is_journaled() {
                self.journal_blocks + 16
            } else {
                0
            }
    }

    fn stack(self, wave: usize) -> Stack {
        Stack::new("ext2", self.mode).with_cache(CacheLayer {
            bytes: 8 << 20,
            wave,
            interval: None,
            optimise: self.optimised,
            ..CacheLayer::default()
        })
    }

    fn mounted(
        self,
        disk: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
        wave: usize,
    ) -> Result<crate::Mounted, String> {
        let options = MountOptions {
            atime: Atime::Never,
            clock,
            journal_blocks: Some(self.journal_blocks),
            forgetful: self.forgetful,
            ..MountOptions::default()
        };
        let devices = Devices { disk, log: None };
        mount(&self.stack(wave), devices, &options).map_err(|e| e.to_string())
    }
}

impl Ext2System {
    /// A copy of the device after a replay of its journal.
    ///
    /// # Errors
    /// The defect of the journal, in one line.
    pub fn replayed(self, device: &dyn BlockDevice) -> Result<Arc<dyn BlockDevice>, String> {
        let mut bytes = vec![0; device.geometry().bytes() as usize];
        device.read(Lba(0), &mut bytes).map_err(|e| e.to_string())?;
        let image: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(BLOCK_BYTES, bytes));
        if self.is_journaled() {
            recover::<Ext2>(&image, None, false).map_err(|e| e.to_string())?;
        }
        Ok(image)
    }
}

impl System<dyn BlockDevice> for Ext2System {
    fn id(&self) -> String {
        let blocks = match self.blocks {
            BLOCKS => String::new(),
            _ if !self.is_sized => String::new(),
            blocks => format!("-{blocks}"),
        };
        let start = match self.start {
            Start::Empty => "",
            Start::Cut => "-cut",
            Start::Shared => "-shared",
            Start::PastEnd => "-past-end",
        };
        let optimised = match self.optimised {
            Optimised::Both => String::new(),
            other => format!("-{other}"),
        };
        let forgetful = if self.forgetful { "-forgetful" } else { "" };
        format!("ext2-{}{blocks}{start}{optimised}{forgetful}", self.mode)
    }

    fn image_bytes(&self) -> u64 {
        self.all_blocks() * u64::from(BLOCK_BYTES)
    }

    fn times(&self) -> RangeInclusive<Timestamp> {
        crate::inode::times(true)
    }

    fn format(&self, device: &dyn BlockDevice) -> Result<(), String> {
        let image = Arc::new(MemoryDevice::new(device.geometry()));
        let options = MkfsOptions {
            block_bytes: BLOCK_BYTES,
            inodes: Inodes::Count(self.inodes),
            now: Timestamp(0),
            ..MkfsOptions::for_size(self.image_bytes())
        };
        mkfs(&*image, &options).map_err(|e| e.to_string())?;
        // The first mount makes the journal.
        let clock = Arc::new(ManualClock::new(Timestamp(0), 0));
        let mounted = self.mounted(image.clone(), clock, 1024)?;
        let made = match self.start {
            Start::Empty => Ok(Vec::new()),
            Start::Cut => make_cut_file(&mounted),
            Start::Shared => make_sharers(&mounted),
            Start::PastEnd => make_past_end(&mounted),
        };
        let patches = made.map_err(|e| format!("files to begin with: {e}"))?;
        let format = mounted.file_system().format();
        let free = format.free_list().map_err(|e| e.to_string())?;
        let inodes = format.free_inode_ranges().map_err(|e| e.to_string())?;
        mounted.close().map_err(|e| e.to_string())?;
        let mut bytes = image.bytes();
        poison(&mut bytes, &free);
        for range in inodes {
            fill_with_removed(&mut bytes[range], &free);
        }
        for (at, patch) in patches {
            bytes[at..at + patch.len()].copy_from_slice(&patch);
        }
        copy(&bytes, device).map_err(|e| e.to_string())
    }

    fn open(
        &self,
        device: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn FileSystem>, String> {
        self.open_still(device, clock, 1024).map(|still| still.fs)
    }

    fn has_cache(&self) -> bool {
        true
    }

    fn open_still(
        &self,
        device: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
        wave: usize,
    ) -> Result<Still, String> {
        let mounted = self.mounted(device, clock, wave)?;
        let fs = mounted.file_system().clone();
        let mounted = Arc::new(mounted);
        let same = mounted.clone();
        let write_some = move || {
            commit(&mounted)?;
            mounted.cache().write_some().map_err(|e| e.to_string())
        };
        Ok(Still {
            fs,
            write_some: Box::new(write_some),
            write_drawn: Box::new(move |pick| write_drawn(&same, pick)),
        })
    }

    /// Checks the image after a replay of its journal.
    fn check(&self, device: &dyn BlockDevice) -> Report {
        if !self.is_journaled() {
            return check(device);
        }
        self.replayed(device).map_or_else(
            |error| {
                let mut report = Report::default();
                report.add("journal", Severity::Corrupt, error);
                report
            },
            |image| check(&*image),
        )
    }
}

impl BlockSystem<dyn BlockDevice> for Ext2System {
    fn block_bytes(&self) -> u32 {
        BLOCK_BYTES
    }

    /// Soft updates change single bytes of blocks in place.
    fn atomic_bytes(&self) -> u32 {
        BLOCK_BYTES
    }

    fn scratch(&self, device: Arc<dyn BlockDevice>) -> Result<Vec<u64>, String> {
        if !self.is_journaled() {
            return Ok(Vec::new());
        }
        let place = Ext2::journal_place(&device, true);
        let place = place.map_err(|e| e.to_string())?;
        Ok(place.lbas().skip(1).map(|lba| lba.0).collect())
    }
}

fn commit(mounted: &crate::Mounted) -> Result<(), String> {
    match mounted.journal() {
        Some(journal) => journal.commit().map_err(|e| e.to_string()),
        None => Ok(()),
    }
}

/// Commits now and then, and when nothing else can be written.
fn write_drawn(
    mounted: &crate::Mounted,
    pick: &mut dyn FnMut(usize) -> usize,
) -> Result<usize, String> {
    if pick(3) == 0 {
        commit(mounted)?;
    }
    let most = 1 + pick(3);
    let mut write = || mounted.cache().write_drawn(most, pick);
    match write().map_err(|e| e.to_string())? {
        0 => {
            commit(mounted)?;
            write().map_err(|e| e.to_string())
        }
        written => Ok(written),
    }
}

/// Makes the file `cut`. Returns the rest of its block.
fn make_cut_file(mounted: &crate::Mounted) -> vfs::Result<Patches> {
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    let made = fs.create(&cx, Ino::ROOT, b"cut", 0o644)?.ino;
    let len = fs.write(&cx, made, 0, &[1; 100])?;
    fs.forget(made, 1);
    let block = fs.format().block_of(made, 0).map_err(|e| e.errno())?;
    let start = block.ok_or(Errno::IO)?.0 as usize * BLOCK_BYTES as usize;
    Ok(vec![(start + len, vec![0xee; BLOCK_BYTES as usize - len])])
}

/// Makes the files `a`, with an attribute, and `b`, without. Returns what lets `b` share it.
fn make_sharers(mounted: &crate::Mounted) -> vfs::Result<Patches> {
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    let make = |name: &[u8]| -> vfs::Result<Ino> {
        let made = fs.create(&cx, Ino::ROOT, name, 0o644)?.ino;
        fs.forget(made, 1);
        Ok(made)
    };
    let a = make(b"a")?;
    fs.setxattr(&cx, a, b"user.k", b"shared", XattrMode::Set)?;
    // The other inodes of the block.
    let between: Vec<Vec<u8>> = (0..8).map(|n| vec![b'0' + n]).collect();
    between.iter().try_for_each(|name| make(name).map(drop))?;
    let b = make(b"b")?;
    let mut between = between.iter();
    between.try_for_each(|name| fs.unlink(&cx, Ino::ROOT, name))?;
    let of = |ino| fs.format().load_ino(ino).map_err(|e| e.errno());
    let (a, b) = (of(a)?, of(b)?);
    let acl = a.inode.file_acl.get();
    let at = |field| place(&b) + field;
    let sectors = b.inode.sectors.get() + BLOCK_BYTES / 512;
    let count = acl as usize * BLOCK_BYTES as usize + offset_of!(AttrHeader, references);
    Ok(vec![
        (at(offset_of!(Inode, file_acl)), acl.to_le_bytes().into()),
        (at(offset_of!(Inode, sectors)), sectors.to_le_bytes().into()),
        (count, 2_u32.to_le_bytes().into()),
    ])
}

/// The place of an inode in the image.
fn place(node: &Node) -> usize {
    node.lba.0 as usize * BLOCK_BYTES as usize + node.at as usize
}

/// Makes the directory `D`, and a file with its names. Returns the smaller size, and the count of the other names.
fn make_past_end(mounted: &crate::Mounted) -> vfs::Result<Patches> {
    const FULL: u64 = 13 * BLOCK_BYTES as u64;
    let (fs, cx) = (mounted.file_system(), Ctx::root());
    let dir = fs.mkdir(&cx, Ino::ROOT, b"D", 0o755)?.ino;
    let file = fs.create(&cx, Ino::ROOT, b"f", 0o644)?.ino;
    for n in 0.. {
        let name = format!("{n:0250}");
        fs.link(&cx, file, dir, name.as_bytes())?;
        fs.forget(file, 1);
        // The last name is in the block past the end.
        if fs.getattr(&cx, dir)?.size > FULL {
            break;
        }
    }
    let of = |ino| fs.format().load_ino(ino).map_err(|e| e.errno());
    let (parent, named) = (of(dir)?, of(file)?);
    fs.forget(file, 1);
    fs.forget(dir, 1);
    let (size, links) = (FULL as u32, named.inode.links.get() - 1);
    Ok(vec![
        (
            place(&parent) + offset_of!(Inode, size_low),
            size.to_le_bytes().into(),
        ),
        (
            place(&named) + offset_of!(Inode, links),
            links.to_le_bytes().into(),
        ),
    ])
}

/// Fills free blocks with possible pointers, since a used disk is not all zeros.
fn poison(image: &mut [u8], free: &[u32]) {
    for (n, &block) in free.iter().enumerate() {
        let start = block as usize * BLOCK_BYTES as usize;
        let words = image[start..start + BLOCK_BYTES as usize].chunks_exact_mut(4);
        for (word, bytes) in words.enumerate() {
            bytes.copy_from_slice(&free[(n + word) % free.len()].to_le_bytes());
        }
    }
}

/// Fills a free inode with the fields of a removed file: no links, a time of deletion, and pointers
/// to `blocks`. Other systems leave such inodes.
fn fill_with_removed(slot: &mut [u8], blocks: &[u32]) {
    let mut inode = Inode::new_zeroed();
    inode.mode.set(FileType::Regular.mode_bits() as u16 | 0o666);
    (inode.uid_low, inode.uid_high) = (1000.into(), 1.into());
    (inode.gid_low, inode.gid_high) = (1000.into(), 1.into());
    (inode.size_low, inode.size_high) = (5000.into(), 1.into());
    inode.dtime.set(i32::MAX as u32);
    inode.sectors.set(12);
    inode.flags.set(InodeFlags::IMMUTABLE.bits());
    inode.generation.set(5);
    for (pointer, block) in inode.block.iter_mut().zip(blocks) {
        pointer.set(*block);
    }
    inode.file_acl.set(blocks[0]);
    let (main, behind) = slot.split_at_mut(size_of::<Inode>());
    main.copy_from_slice(inode.as_bytes());
    behind.fill(0xee);
}

/// Stores a whole image, durably.
fn copy(image: &[u8], device: &dyn BlockDevice) -> Result<(), BlockError> {
    let blocks = image.chunks_exact(BLOCK_BYTES as usize);
    let write = |(n, bytes): (u64, &[u8])| Write {
        tag: n,
        lba: Lba(n),
        data: Arc::new(Buffer::from_slice(bytes)),
        durable: None,
    };
    let writes: Vec<Write> = (0..).zip(blocks).map(write).collect();
    let mut left = writes.len();
    device.submit(writes);
    while left > 0 {
        for done in device.reap(left) {
            done.result?;
            left -= 1;
        }
    }
    device.flush(Rule::DurableBeforeUse)
}
