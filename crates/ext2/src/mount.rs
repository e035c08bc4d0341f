//! From an image and a [`Stack`] to a file system, and back.
//!
//! # Guarantees
//! - Nothing is read but the superblock, and the journal's inode, before what a crash left
//!   in the journal is in place.
//! - A mount for reading writes nothing: it replays the journal in memory.
//! - While a journal may hold what the image lacks, the image says so (`needs_recovery`):
//!   whoever cannot replay it refuses the image.
//! - [`Mounted::close`] returns `Ok` only when everything is in place, durably.

use crate::format::{Compat, Incompat, JOURNAL_INO};
use crate::seeded::{Bug, hit};
use crate::{Error, Ext2, Options, features, log};
use blockfs::{BlockFs, BlockFsOptions, OnError};
use medium::block::{BlockDevice, BlockError, Geometry, Lba, OverlayDevice};
use medium::{OpenError, Rule};
use patch::journal::{self, JournalError, Place};
use patch::partition::PartitionError;
use patch::stack::{BuildError, Image, Log, Stack};
use patch::{Cache, Forgetful, Journal};
use std::path::Path;
use std::sync::Arc;
use vfs::{Atime, Clock, Guarantees, SystemClock};

/// Why an image could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The image, or the log's file or device, cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The stack names a partition that is not there.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// What is wrong with the image.
    #[error(transparent)]
    Ext2(#[from] Error),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The stack names another format.
    #[error("the format '{0}' is not one of ext2")]
    Format(String),
    /// The image lacks what an external log has.
    #[error(
        "its log is on another device; name the log: mount with journal(..., external=PATH), fsck with -j PATH"
    )]
    LogElsewhere,
    /// The stack has a device that neither the file system nor the log is on.
    #[error("nothing uses device {0} below the cache; journal(..., log={0}) puts the log there")]
    Unused(usize),
    /// An image with a log inside, and a stack with one outside.
    #[error("it has an internal journal; use journal(..., internal)")]
    LogInside,
    /// A journal does not fit into what is free.
    #[error(
        "a journal of {blocks} blocks does not fit into {free} free ones; make the image larger, or put the log elsewhere with journal(..., external=PATH)"
    )]
    NoRoom {
        /// Blocks of the journal.
        blocks: u64,
        /// Free blocks.
        free: u64,
    },
    /// Journals are a feature, and revision 0 has none.
    #[error("revision 0 of ext2 has no place for an internal journal")]
    Revision0,
    /// The external log cannot be used.
    #[error("{device} {what}")]
    ExternalLog {
        /// Its file or device.
        device: String,
        /// What is wrong.
        what: &'static str,
    },
}

impl From<BuildError> for MountError {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Open(error) => Self::Open(error),
            BuildError::Journal(error) => Self::Journal(error),
            BuildError::Partition(error) => Self::Partition(error),
        }
    }
}

impl From<BlockError> for MountError {
    fn from(error: BlockError) -> Self {
        Self::Ext2(error.into())
    }
}

impl From<blockfs::FormatError> for MountError {
    fn from(error: blockfs::FormatError) -> Self {
        Self::Ext2(error.into())
    }
}

/// What a file system is stored on.
#[derive(Clone)]
pub struct Devices {
    /// The image.
    pub disk: Arc<dyn BlockDevice>,
    /// The external log, if the stack has one; of the same block size.
    pub log: Option<Arc<dyn BlockDevice>>,
}

impl Devices {
    /// Opens the image at `path`, and the log that the stack names.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn open(path: &Path, stack: &Stack, read_only: bool) -> Result<Self, MountError> {
        if let Some(Log::External(log)) = stack.journal().map(|journal| &journal.log)
            && log
                .canonicalize()
                .is_ok_and(|log| path.canonicalize().ok() == Some(log))
        {
            return Err(MountError::ExternalLog {
                device: log.display().to_string(),
                what: "is the image itself; use journal(..., internal)",
            });
        }
        let mut image = Image::new(path, block_bytes(path, stack)?, read_only);
        let devices = stack.devices(&mut image)?;
        let number = stack.log_device().map(usize::from);
        let is_unused = |index: &usize| *index > 0 && Some(*index) != number;
        if let Some(unused) = (0..devices.len()).find(is_unused) {
            return Err(MountError::Unused(unused));
        }
        Ok(Self {
            disk: devices[0].clone(),
            log: number.map(|number| devices[number].clone()),
        })
    }
}

/// The block size of the file system in a file or device. It is looked for in the largest
/// blocks that there can be, which sectors are no larger than. Partitions may begin at a
/// multiple of smaller ones only.
fn block_bytes(path: &Path, stack: &Stack) -> Result<u32, MountError> {
    let open = |block_bytes| stack.home_device(&mut Image::new(path, block_bytes, true));
    let is_aligned = |opened: &Result<_, BuildError>| {
        let error = opened.as_ref().err();
        !matches!(
            error,
            Some(BuildError::Partition(PartitionError::Misaligned { .. }))
        )
    };
    let device = [4096, 2048].into_iter().map(open).find(is_aligned);
    let device = device.unwrap_or_else(|| open(1024))?;
    Ok(crate::probe(&*device)?.block_bytes)
}

/// How to mount, besides the stack.
#[derive(Clone)]
pub struct MountOptions {
    /// Refuse changes, and make none.
    pub read_only: bool,
    /// When reads move access times.
    pub atime: Atime,
    /// Where times come from.
    pub clock: Arc<dyn Clock>,
    /// What to do about damage; `None`: as the superblock says.
    pub on_error: Option<OnError>,
    /// Blocks of an internal journal, if one must be made; `None`: as mke2fs.
    pub journal_blocks: Option<u64>,
    /// For tests: each call finds each block absent that it needs ([`Forgetful`]).
    pub forgetful: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            atime: Atime::default(),
            clock: Arc::new(SystemClock),
            on_error: None,
            journal_blocks: None,
            forgetful: false,
        }
    }
}

/// A mounted image. Dropping it without [`close`](Self::close) is a crash.
pub struct Mounted {
    fs: Arc<BlockFs<Ext2>>,
    cache: Arc<Cache>,
    journal: Option<Arc<Journal>>,
    disk: Arc<dyn BlockDevice>,
    stack: Stack,
    read_only: bool,
}

/// Mounts: replays what a crash left in a journal, then puts the modules together. A
/// journal that is to be inside the image and is not there yet is made.
///
/// # Errors
/// [`MountError`].
pub fn mount(
    stack: &Stack,
    devices: Devices,
    options: &MountOptions,
) -> Result<Mounted, MountError> {
    if stack.format() != "ext2" {
        return Err(MountError::Format(stack.format().into()));
    }
    let Devices { disk, log } = devices;
    let is_journaled = stack.journal().is_some() && !options.read_only;
    check(&disk, log.as_ref(), is_journaled, options)?;
    let disk = recover(&disk, log.as_ref(), options.read_only)?;
    let log_number = u8::from(log.is_some());
    let place = match is_journaled {
        true => Some((log_number, prepare_log(&disk, log.as_ref(), options)?)),
        false => None,
    };
    let devices = std::iter::once(disk.clone()).chain(log).collect();
    let assembled = stack.assemble(devices, place)?;
    if assembled.journal.is_some() {
        // A log that cannot be used must not be asked for. Nothing is in it yet, and the
        // cache has not read the superblock.
        log::set_recover(&*disk, true)?;
    }
    let mut store = assembled.store;
    if options.forgetful {
        store = Arc::new(Forgetful::new(store));
    }
    let format = Ext2::open(
        store,
        Options {
            read_only: options.read_only,
            clock: options.clock.clone(),
            replayed: assembled.journal.is_some(),
        },
    )?;
    let fs_options = BlockFsOptions {
        read_only: options.read_only,
        atime: options.atime,
        clock: options.clock.clone(),
        guarantees: guarantees(stack),
        on_error: match options.on_error {
            Some(chosen) => chosen,
            None => log::superblock(&*disk)?.on_error(),
        },
    };
    Ok(Mounted {
        fs: Arc::new(BlockFs::open(format, fs_options)?),
        cache: assembled.cache,
        journal: assembled.journal,
        disk,
        stack: stack.clone(),
        read_only: options.read_only,
    })
}

impl Mounted {
    /// What to serve.
    pub fn file_system(&self) -> &Arc<BlockFs<Ext2>> {
        &self.fs
    }

    /// The cache that everything goes through.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// The journal, if there is one.
    pub fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.as_ref()
    }

    /// What it was put together from.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The image.
    pub fn disk(&self) -> &Arc<dyn BlockDevice> {
        &self.disk
    }

    /// Unmounts: brings everything home, and marks the image as clean. No call may be
    /// under way, and none may follow.
    ///
    /// # Errors
    /// If something could not be stored: the image then says that it was not unmounted.
    pub fn close(&self) -> Result<(), MountError> {
        if self.read_only {
            return Ok(());
        }
        self.fs.close()?;
        if let Some(journal) = &self.journal {
            journal.checkpoint().map_err(blockfs::FormatError::from)?;
            log::set_recover(&*self.disk, false)?;
        }
        Ok(())
    }
}

// --- journals -----------------------------------------------------------------------

/// Refuses, before anything is written, what the superblock shows to be impossible.
fn check(
    disk: &Arc<dyn BlockDevice>,
    external: Option<&Arc<dyn BlockDevice>>,
    journal: bool,
    options: &MountOptions,
) -> Result<(), MountError> {
    let sup = log::superblock(&**disk)?;
    let replayed = Options {
        read_only: options.read_only,
        clock: options.clock.clone(),
        replayed: true,
    };
    features::check(&sup, &replayed)?;
    if let Some(log) = external {
        own_log(log, sup.uuid)?;
    } else if journal && sup.revision.get() == 0 {
        return Err(MountError::Revision0);
    }
    Ok(())
}

/// Makes durable what is there: a server that was killed may have left it in caches only. All
/// that follows builds on it.
fn settle(devices: [Option<&Arc<dyn BlockDevice>>; 2]) -> Result<(), BlockError> {
    let mut devices = devices.into_iter().flatten();
    if hit(Bug::MountUnsettled) {
        return Ok(());
    }
    devices.try_for_each(|device| device.flush(Rule::DurableBeforeUse))
}

/// Brings home what a crash left in a journal. Returns the device to use: with `read_only` a
/// view of `disk`, in whose memory the replay took place; else `disk` itself.
///
/// # Errors
/// [`MountError`].
pub fn recover(
    disk: &Arc<dyn BlockDevice>,
    external: Option<&Arc<dyn BlockDevice>>,
    read_only: bool,
) -> Result<Arc<dyn BlockDevice>, MountError> {
    let sup = log::superblock(&**disk)?;
    let inside = sup.compat.get() & Compat::HAS_JOURNAL.bits() != 0;
    if inside && external.is_some() {
        return Err(MountError::LogInside);
    }
    if !read_only {
        settle([Some(disk), external])?;
    }
    if sup.incompat.get() & Incompat::RECOVER.bits() == 0 {
        return Ok(disk.clone());
    }
    let usable = |device: &Arc<dyn BlockDevice>| -> Arc<dyn BlockDevice> {
        if read_only {
            Arc::new(OverlayDevice::new(device.clone()))
        } else {
            device.clone()
        }
    };
    let disk = usable(disk);
    let (log, place) = match external {
        _ if inside => (disk.clone(), internal_place(&disk, true)?),
        Some(log) => {
            own_log(log, sup.uuid)?;
            (usable(log), whole(log.geometry()))
        }
        None => return Err(MountError::LogElsewhere),
    };
    if journal::needs_recovery(&*log, &place)? {
        let done = journal::replay(&*disk, &*log, &place)?;
        tracing::info!("journal: {} transactions replayed", done.transactions);
    }
    log::set_recover(&*disk, false)?;
    Ok(disk)
}

/// Takes back, durably, the note in the superblock that errors were found, and with `clean` the
/// one that the image was not unmounted. The caller has checked the image, and for `clean` found
/// nothing at all: mounts then trust the counts of what is free and of links.
///
/// # Errors
/// [`MountError`].
pub fn clear_marks(disk: &dyn BlockDevice, clean: bool) -> Result<(), MountError> {
    Ok(log::clear_marks(disk, clean)?)
}

/// The place of an empty log.
fn prepare_log(
    disk: &Arc<dyn BlockDevice>,
    external: Option<&Arc<dyn BlockDevice>>,
    options: &MountOptions,
) -> Result<Place, MountError> {
    let sup = log::superblock(&**disk)?;
    if let Some(log) = external {
        let place = whole(log.geometry());
        if !own_log(log, sup.uuid)? {
            journal::format(&**log, &place, sup.uuid)?;
            log.flush(Rule::InitialiseBeforePoint)?;
        }
        return Ok(place);
    }
    if sup.compat.get() & Compat::HAS_JOURNAL.bits() == 0 {
        add_journal(disk, options.journal_blocks, options.clock.clone())?;
    }
    internal_place(disk, false)
}

/// A log that has a device to itself.
fn whole(geometry: Geometry) -> Place {
    Place::new([(Lba(0), geometry.blocks)])
}

/// Whether there is a log, which then belongs to the file system with this UUID.
fn own_log(log: &Arc<dyn BlockDevice>, uuid: [u8; 16]) -> Result<bool, MountError> {
    let wrong = |what| MountError::ExternalLog {
        device: log.name().into(),
        what,
    };
    match log::owner_of_log(&**log).map_err(wrong)? {
        None => Ok(false),
        Some(owner) if owner == uuid => Ok(true),
        Some(_) => Err(wrong("is the log of another file system")),
    }
}

/// The blocks of inode 8, which do not change: they can be read before a replay.
pub(crate) fn internal_place(
    disk: &Arc<dyn BlockDevice>,
    replayed: bool,
) -> Result<Place, MountError> {
    let options = Options {
        read_only: true,
        replayed,
        ..Options::default()
    };
    let format = Ext2::open(Arc::new(plain_cache(disk).volume(0)), options)?;
    Ok(format.log_place()?)
}

/// A small cache that writes only when asked.
fn plain_cache(disk: &Arc<dyn BlockDevice>) -> Arc<Cache> {
    let options = patch::CacheOptions {
        blocks: 4096,
        dirty_limit: 2048,
        interval: None,
        ..patch::CacheOptions::default()
    };
    Arc::new(Cache::new(vec![Box::new(disk.clone())], options))
}

/// Makes an internal journal in an image that is not mounted, as `tune2fs -j` does.
///
/// # Errors
/// [`MountError`]; a run that was interrupted may leave blocks marked as used.
pub fn add_journal(
    disk: &Arc<dyn BlockDevice>,
    blocks: Option<u64>,
    clock: Arc<dyn Clock>,
) -> Result<(), MountError> {
    let sup = log::superblock(&**disk)?;
    let blocks = blocks.unwrap_or_else(|| log::usual_blocks(sup.blocks_count.get()));
    let open = |read_only| {
        let options = Options {
            read_only,
            clock: clock.clone(),
            replayed: false,
        };
        Ext2::open(Arc::new(plain_cache(disk).volume(0)), options)
    };
    let fits = |format: &Ext2| match format.room_for_log(blocks)? {
        free if free < blocks => Err(MountError::NoRoom { blocks, free }),
        _ => Ok(()),
    };
    // The counts of an image that was not unmounted are right only once it is open.
    let reader = open(true)?;
    if reader.was_clean() {
        fits(&reader)?;
    }
    drop(reader);
    let (place, inode) = {
        let format = open(false)?;
        let made = fits(&format).and_then(|()| Ok(format.make_log(blocks)?));
        // Marked as unmounted also without a journal.
        blockfs::Format::close(&format)?;
        made?;
        (format.log_place()?, format.load(JOURNAL_INO)?.inode)
    };
    journal::format(&**disk, &place, sup.uuid)?;
    disk.flush(Rule::InitialiseBeforePoint)?;
    Ok(log::set_internal(&**disk, &inode)?)
}

// --- promises -----------------------------------------------------------------------

/// What a mount with this stack promises.
pub fn guarantees(stack: &Stack) -> Guarantees {
    use patch::stack::Mode;
    use vfs::{Atomicity, Durability, Ordering};
    let mode = stack.mode();
    let plain = Guarantees {
        name: format!("{} (mode={mode})", stack.format()),
        durable: Durability::AtFsync,
        metadata_atomic: Atomicity::None,
        data_atomic: Atomicity::None,
        metadata_ordered: Ordering::None,
        data_ordered: Ordering::None,
        times_atomic: false,
        notes: Vec::new(),
    };
    let journal = Guarantees {
        metadata_atomic: Atomicity::Call,
        metadata_ordered: Ordering::Global,
        times_atomic: true,
        ..plain.clone()
    };
    let note = |text: &str| vec![text.to_string()];
    match mode {
        Mode::Async => Guarantees {
            durable: Durability::None,
            notes: note("After a crash it may be damaged beyond use: run fsck."),
            ..plain
        },
        Mode::SoftUpdates => Guarantees {
            data_atomic: Atomicity::Block,
            notes: note(
                "After a crash blocks and inodes may be marked as used that are not, link \
                 counts too high and free counts wrong, and a directory that was being renamed \
                 may have both names; nothing else, and fsck need not run.",
            ),
            ..plain
        },
        Mode::JournalMetadata => Guarantees {
            notes: note(
                "After a crash files written lately may hold what their blocks held before.",
            ),
            ..journal
        },
        Mode::JournalOrdered => Guarantees {
            data_atomic: Atomicity::Block,
            ..journal
        },
        Mode::Journal => Guarantees {
            data_atomic: Atomicity::Block,
            data_ordered: Ordering::Global,
            notes: note("Calls that write more than fits a transaction are several."),
            ..journal
        },
    }
}

#[cfg(test)]
mod tests;
