//! Opens an image. There is no recovery: the consistent view is usable as it is.

use crate::error::{Error, Fault};
use crate::format::{MAGIC, MAX_PAGES, MIN_PAGES, PAGE, UNMOUNTED, VERSION, WITH_REMAINS, at};
use crate::fs::SoupFs;
use crate::mode::Mode;
use crate::numa;
use crate::pressure::Portion;
use crate::seeded::{Bug, hit};
use crate::sharing::Sharing;
use crate::space::Space;
use crate::volume::{Settings, Volume};
use medium::{MediumError, Pmem, Rule};
use std::num::NonZeroUsize;
use std::sync::Arc;
use vfs::{Atime, Clock, SystemClock};

/// Options of a mount.
#[derive(Clone)]
pub struct MountOptions {
    /// Nothing is written.
    pub read_only: bool,
    /// The policy for access times.
    pub atime: Atime,
    /// The clock of time stamps.
    pub clock: Arc<dyn Clock>,
    /// Seconds after which a change is persistent: what a crash may lose. `None`: only a sync makes
    /// changes persistent.
    pub bound_s: Option<u32>,
    /// Each call that changes something is persistent when it returns.
    pub sync: bool,
    /// A number of this boot of the machine. If it is that of the last mount or repair, which did not
    /// end, the process was killed: stores may be in the caches of the processor, and the mount flushes
    /// all. `None`: it assumes so.
    pub boot: Option<u128>,
    /// The way in which file contents are overwritten.
    pub mode: Mode,
    /// Threads that share a round of the persister if it has many changes. By default one for each
    /// NUMA node of the machine.
    pub persisters: NonZeroUsize,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            atime: Atime::default(),
            clock: Arc::new(SystemClock),
            bound_s: Some(1),
            sync: false,
            boot: None,
            mode: Mode::default(),
            persisters: numa::nodes(),
        }
    }
}

/// The facts of a superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuperInfo {
    /// Version of the format.
    pub version: u32,
    /// UUID.
    pub uuid: [u8; 16],
    /// Pages of the file system.
    pub pages: u64,
    /// Mounts that wrote, and the mkfs.
    pub epoch: u64,
    /// Whether it was unmounted: all that it shows is durable.
    pub is_unmounted: bool,
    /// Whether it was, and nothing is left of an earlier crash.
    pub is_clean: bool,
}

/// Reads the superblock.
///
/// # Errors
/// There is no SoupFS, or its superblock is damaged.
pub fn probe<P: Pmem + ?Sized>(pm: &P) -> Result<SuperInfo, Error> {
    let mut head = [0; at::CRC as usize];
    if pm.len() < MIN_PAGES * PAGE {
        return Err(Error::NotSoupFs);
    }
    pm.read(0, &mut head)?;
    if head[..8] != MAGIC {
        return Err(Error::NotSoupFs);
    }
    let version = pm.load(at::VERSION)? as u32;
    if version != VERSION {
        return Err(Error::Version(version));
    }
    if pm.load(at::CRC)? != u64::from(crc32fast::hash(&head)) {
        return Err(Error::Corrupt("the superblock has a wrong checksum".into()));
    }
    let pages = pm.load(at::PAGES)?;
    if !(MIN_PAGES..=MAX_PAGES).contains(&pages) {
        return Err(Error::Corrupt(format!(
            "the superblock counts {pages} pages"
        )));
    }
    if pages * PAGE > pm.len() {
        return Err(Error::Size {
            need: pages * PAGE,
            have: pm.len(),
        });
    }
    let mark = pm.load(at::CLEAN)?;
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&head[at::UUID as usize..][..16]);
    Ok(SuperInfo {
        version,
        uuid,
        pages,
        epoch: pm.load(at::EPOCH)?,
        is_unmounted: matches!(mark, UNMOUNTED | WITH_REMAINS),
        is_clean: mark == UNMOUNTED,
    })
}

/// Whether all stores to an image were flushed: it was unmounted, or there was a power failure since.
/// `boot`: as in [`MountOptions`].
pub(crate) fn is_flushed<P: Pmem + ?Sized>(
    pm: &P,
    info: &SuperInfo,
    boot: Option<u128>,
) -> Result<bool, MediumError> {
    let mut last = [0; 16];
    pm.read(at::BOOT, &mut last)?;
    // A boot that is not known may be the same.
    let is_unknown = last == [0; 16] && !hit(Bug::UnknownBoot);
    let is_same_boot = boot.is_none_or(|now| is_unknown || last == now.to_le_bytes());
    Ok(info.is_unmounted || !is_same_boot)
}

/// Stores that an image is in use in this boot, for [`is_flushed`] if the user is killed.
pub(crate) fn store_use<P: Pmem + ?Sized>(pm: &P, boot: Option<u128>) {
    pm.store_word(at::CLEAN, 0);
    pm.store(at::BOOT, &boot.unwrap_or(0).to_le_bytes());
}

/// The seed of the hashes of names.
pub(crate) fn seed(uuid: &[u8; 16]) -> u64 {
    let (a, b) = uuid.split_at(8);
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    word(a) ^ word(b)
}

impl<P: Pmem + 'static> SoupFs<P> {
    /// Opens an image.
    ///
    /// # Errors
    /// See [`probe`]; the medium fails; there is no thread for the persister.
    pub fn open(pm: P, options: MountOptions) -> Result<Self, Error> {
        let sharing = Sharing::among(options.persisters.get());
        Self::open_with(pm, options, sharing, Portion::OF_MOUNT)
    }

    /// Opens an image; persisters share rounds in this way, each of which takes this much.
    pub(crate) fn open_with(
        pm: P,
        options: MountOptions,
        sharing: Sharing,
        portion: Portion,
    ) -> Result<Self, Error> {
        let info = probe(&pm)?;
        let is_flushed = is_flushed(&pm, &info, options.boot)?;
        let epoch = info.epoch.wrapping_add(1).max(1);
        if !options.read_only {
            // Latest links of this epoch are stored from now on. If the number were lost, the next
            // mount would have it, too, and believe them.
            pm.store_word(at::EPOCH, epoch);
            store_use(&pm, options.boot);
            pm.flush(at::EPOCH, 32);
            if !hit(Bug::NoEpochFence) {
                pm.fence(Rule::DurableBeforeUse)?;
            }
        }
        let space = Space {
            pm,
            pages: info.pages,
            epoch,
            seed: seed(&info.uuid),
            is_after_crash: !info.is_clean,
        };
        let settings = Settings {
            sharing,
            portion,
            clock: options.clock,
            atime: options.atime,
            read_only: options.read_only,
            sync: options.sync,
            copies_data: options.mode == Mode::Atomic,
        };
        let core = Volume::new(space, settings);
        let failed = |e: Fault| match e {
            Fault::Corrupt(what) => Error::Corrupt(what),
            Fault::Medium(e) => Error::Medium(e),
            Fault::Errno(_) | Fault::Full | Fault::NamesUnread => {
                Error::Corrupt("the root inode is damaged".into())
            }
        };
        core.node(vfs::Ino::ROOT).map_err(failed)?;
        if !is_flushed && !core.read_only {
            core.space.adopt().map_err(failed)?;
        }
        Self::new(core, options.bound_s).map_err(|e| Error::Thread(e.to_string()))
    }
}
