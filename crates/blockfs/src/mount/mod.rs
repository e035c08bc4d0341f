//! Mounts and unmounts an image through a [`Stack`], for every format.
//!
//! # Guarantees
//! - Before the journal is replayed, only the superblock and the journal's place are read.
//! - A mount for reading writes nothing. It replays the journal in memory.
//! - While a journal may hold changes that the image lacks, the superblock records it
//!   ([`Superblock::needs_replay`]). Programs that cannot replay it refuse the image.
//! - [`Mounted::close`] returns `Ok` only when everything is durable in place.

mod devices;
mod drawing;
mod error;
mod guarantees;
mod journals;

pub use devices::Devices;
pub use error::MountError;
pub use guarantees::guarantees;
pub use journals::recover;

use crate::{BlockFs, BlockFsOptions, Format, FormatError, OnError};
use journals::{belongs_to, prepare_log, recovered};
use medium::block::{BlockDevice, Lba};
use patch::journal::{LogBlocks, Seconds};
use patch::partition::PartitionError;
use patch::stack::{BuildError, Stack};
use patch::{Cache, CacheOptions, Forgetful, Groups, Journal, Store};
use std::sync::Arc;
use vfs::{Atime, Clock, FileSystem, Guarantees, SystemClock};

/// The facts in a superblock that a mount needs before it opens the image.
#[derive(Debug, Clone, Copy)]
pub struct Superblock {
    /// Bytes in a block.
    pub block_bytes: u32,
    /// The image's UUID, which its log repeats.
    pub uuid: [u8; 16],
    /// The reaction to damage, unless the mount chooses one.
    pub on_error: OnError,
    /// Whether the image contains a journal.
    pub has_journal: bool,
    /// Whether a journal may hold changes that the image lacks.
    pub needs_replay: bool,
}

/// Options with which a format opens an image.
#[derive(Clone)]
pub struct OpenOptions {
    /// Change nothing, not even the superblock.
    pub read_only: bool,
    /// The clock for times of mounting and deleting.
    pub clock: Arc<dyn Clock>,
    /// Whether the journal was replayed, although the image may still require it.
    pub replayed: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            clock: Arc::new(SystemClock),
            replayed: false,
        }
    }
}

/// Opens an image in blocks of this many bytes.
pub type Opener<'a> = dyn Fn(u32) -> Result<Arc<dyn BlockDevice>, BuildError> + 'a;

/// A format of images that can be mounted.
#[allow(clippy::missing_errors_doc)] // MountError documents them once
pub trait Mountable: Format + Sized + 'static {
    /// Its name in stacks, such as `ext2`.
    const NAME: &'static str;
    /// The end of the note that a power failure can tear blocks under soft updates.
    const ABOUT_TORN_BLOCKS: &'static str = "journal modes repair that";

    /// Refuses stacks on which the format cannot stand, before anything is opened.
    fn check_stack(_stack: &Stack) -> Result<(), MountError> {
        Ok(())
    }
    /// Bytes in a block of an image, which `open` opens for reading. By default the superblock
    /// contains them. It is read in the largest blocks that the start of the partition is a
    /// multiple of. Sectors are not larger than these.
    fn block_size(open: &Opener<'_>) -> Result<u32, MountError> {
        let is_aligned = |opened: &Result<_, BuildError>| {
            let error = opened.as_ref().err();
            !matches!(
                error,
                Some(BuildError::Partition(PartitionError::Misaligned { .. }))
            )
        };
        let device = [4096, 2048].into_iter().map(open).find(is_aligned);
        let device = device.unwrap_or_else(|| open(1024))?;
        Ok(Self::superblock(&*device)?.block_bytes)
    }
    /// The promise of a mount with this stack.
    fn guarantees(stack: &Stack) -> Guarantees {
        guarantees(stack)
    }
    /// The file system that an engine serves: the calls of [`BlockFs`], or a layer above them.
    fn served(fs: Arc<BlockFs<Self>>) -> Arc<dyn FileSystem> {
        fs
    }

    /// Reads the superblock.
    fn superblock(disk: &dyn BlockDevice) -> Result<Superblock, MountError>;
    /// Opens an image, and marks it as being in use unless it is read-only.
    fn open(store: Arc<dyn Store>, options: OpenOptions) -> Result<Self, MountError>;
    /// Refuses an image that the superblock shows to be unusable, before anything is written.
    /// `journal_inside`: the mount needs a journal in the image, which may not exist yet.
    fn check(
        disk: &dyn BlockDevice,
        read_only: bool,
        journal_inside: bool,
    ) -> Result<(), MountError>;

    /// The blocks of the journal in an image. They do not change, so they can be read before a
    /// replay. `replayed`: the replay has been done.
    fn journal_place(disk: &Arc<dyn BlockDevice>, replayed: bool) -> Result<LogBlocks, MountError>;
    /// Makes an empty journal in an unmounted image, of this many blocks or of the usual number.
    /// After an interruption, blocks may stay marked as used.
    fn add_journal(
        disk: &Arc<dyn BlockDevice>,
        blocks: Option<u64>,
        clock: Arc<dyn Clock>,
    ) -> Result<(), MountError>;
    /// Records durably whether a journal may hold changes that the image lacks.
    fn set_needs_replay(disk: &dyn BlockDevice, on: bool) -> Result<(), MountError>;

    /// The name of a block's contents, such as `block bitmap of group 0`, for drawings.
    fn describe(&self, _lba: Lba) -> Option<String> {
        None
    }
}

/// Options of a mount besides the stack.
#[derive(Clone)]
pub struct MountOptions {
    /// Whether changes are refused, and none are made.
    pub read_only: bool,
    /// When reads update access times.
    pub atime: Atime,
    /// The clock for time stamps.
    pub clock: Arc<dyn Clock>,
    /// The reaction to damage. `None`: the reaction in the superblock.
    pub on_error: Option<OnError>,
    /// Blocks of an internal journal, if one must be made. `None`: the usual number.
    pub journal_blocks: Option<u64>,
    /// Whether each call finds each block absent at first ([`Forgetful`]), for tests.
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
pub struct Mounted<F: Mountable> {
    fs: Arc<BlockFs<F>>,
    cache: Arc<Cache>,
    journal: Option<Arc<Journal>>,
    /// The number of the log's device in the cache, and the log's blocks there.
    log: Option<(u8, LogBlocks)>,
    disk: Arc<dyn BlockDevice>,
    stack: Stack,
    read_only: bool,
}

/// Mounts: replays the journal that a crash left, then builds the stack. An internal journal that
/// does not exist yet is made.
///
/// # Errors
/// [`MountError`].
pub fn mount<F: Mountable>(
    stack: &Stack,
    devices: Devices,
    options: &MountOptions,
) -> Result<Mounted<F>, MountError> {
    if stack.format() != F::NAME {
        return Err(MountError::Format {
            found: stack.format().into(),
            expected: F::NAME,
        });
    }
    F::check_stack(stack)?;
    let Devices { disk, log } = devices;
    let is_journaled = stack.journal().is_some() && !options.read_only;
    F::check(&*disk, options.read_only, is_journaled && log.is_none())?;
    if let Some(log) = &log {
        belongs_to(log, F::superblock(&*disk)?.uuid)?;
    }
    let (disk, known) = recovered::<F>(&disk, log.as_ref(), options.read_only)?;
    let log_number = u8::from(log.is_some());
    let place = match is_journaled {
        true => Some((
            log_number,
            prepare_log::<F>(&disk, log.as_ref(), known, options)?,
        )),
        false => None,
    };
    let devices = std::iter::once(disk.clone()).chain(log).collect();
    let assembled = stack.assemble(devices, place.clone(), seconds_of(options.clock.clone()))?;
    if assembled.journal.is_some() {
        // The mark follows the check of the log, so that an unusable log is not required later. The
        // log is empty, and the cache has not read the superblock.
        F::set_needs_replay(&*disk, true)?;
    }
    // On the layers of each stack: the journal and `async` keep the order between sets.
    let groups = Arc::new(Groups::new(assembled.store));
    let mut store: Arc<dyn Store> = groups.clone();
    if options.forgetful {
        store = Arc::new(Forgetful::new(store));
    }
    let opened = OpenOptions {
        read_only: options.read_only,
        clock: options.clock.clone(),
        replayed: assembled.journal.is_some(),
    };
    let format = F::open(store, opened)?;
    let served = BlockFsOptions {
        read_only: options.read_only,
        atime: options.atime,
        clock: options.clock.clone(),
        guarantees: F::guarantees(stack),
        on_error: match options.on_error {
            Some(chosen) => chosen,
            None => F::superblock(&*disk)?.on_error,
        },
        groups: Some(groups),
    };
    Ok(Mounted {
        fs: Arc::new(BlockFs::open(format, served)?),
        cache: assembled.cache,
        journal: assembled.journal,
        log: place,
        disk,
        stack: stack.clone(),
        read_only: options.read_only,
    })
}

/// The seconds of a clock, for a journal.
fn seconds_of(clock: Arc<dyn Clock>) -> Seconds {
    Arc::new(move || u64::try_from(clock.now().0 / 1_000_000_000).unwrap_or(0))
}

/// Makes a small cache over an unmounted image. It writes only at a sync.
pub fn plain_cache(disk: &Arc<dyn BlockDevice>) -> Arc<Cache> {
    let options = CacheOptions {
        blocks: 4096,
        dirty_limit: 2048,
        interval: None,
        ..CacheOptions::default()
    };
    Arc::new(Cache::new(vec![Box::new(disk.clone())], options))
}

impl<F: Mountable> Mounted<F> {
    /// The file system to serve.
    pub fn file_system(&self) -> &Arc<BlockFs<F>> {
        &self.fs
    }

    /// The cache below the file system.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// The journal, if there is one.
    pub fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.as_ref()
    }

    /// The stack of the mount.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The image.
    pub fn disk(&self) -> &Arc<dyn BlockDevice> {
        &self.disk
    }

    /// Unmounts: makes everything durable in place, and marks the image as clean. No call may be
    /// under way, and none may follow.
    ///
    /// # Errors
    /// If something could not be stored. The image is then not marked as clean.
    pub fn close(&self) -> Result<(), MountError> {
        if self.read_only {
            return Ok(());
        }
        self.fs.close()?;
        if let Some(journal) = &self.journal {
            journal.checkpoint().map_err(FormatError::from)?;
            F::set_needs_replay(&*self.disk, false)?;
        }
        Ok(())
    }
}
