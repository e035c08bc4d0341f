//! Logs inside an image or beside it: their owner, their replay and their preparation.

use super::{MountError, MountOptions, Mountable};
use crate::seeded::{Bug, hit};
use medium::Rule;
use medium::block::{BlockDevice, BlockError, Geometry, Lba, OverlayDevice};
use patch::journal::{self, LogBlocks};
use std::sync::Arc;

/// Flushes the devices. A killed server may have left writes in their caches only, and recovery
/// builds on these writes.
fn flush_all(devices: [Option<&Arc<dyn BlockDevice>>; 2]) -> Result<(), BlockError> {
    let mut devices = devices.into_iter().flatten();
    if hit(Bug::MountUnflushed) {
        return Ok(());
    }
    devices.try_for_each(|device| device.flush(Rule::DurableBeforeUse))
}

/// Replays the journal that a crash left. Returns the device to use: with `read_only` a view of
/// `disk` that keeps the replay in memory, else `disk` itself.
///
/// # Errors
/// [`MountError`].
pub fn recover<F: Mountable>(
    disk: &Arc<dyn BlockDevice>,
    external: Option<&Arc<dyn BlockDevice>>,
    read_only: bool,
) -> Result<Arc<dyn BlockDevice>, MountError> {
    Ok(recovered::<F>(disk, external, read_only)?.0)
}

/// [`recover`], with the place of the journal in the image if it was replayed.
pub(super) fn recovered<F: Mountable>(
    disk: &Arc<dyn BlockDevice>,
    external: Option<&Arc<dyn BlockDevice>>,
    read_only: bool,
) -> Result<(Arc<dyn BlockDevice>, Option<LogBlocks>), MountError> {
    let sup = F::superblock(&**disk)?;
    if sup.has_journal && external.is_some() {
        return Err(MountError::LogInside);
    }
    if !read_only {
        flush_all([Some(disk), external])?;
    }
    if !sup.needs_replay {
        return Ok((disk.clone(), None));
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
        _ if sup.has_journal => (disk.clone(), F::journal_place(&disk, true)?),
        Some(log) => {
            belongs_to(log, sup.uuid)?;
            (usable(log), whole(log.geometry()))
        }
        None => return Err(MountError::LogElsewhere),
    };
    if journal::needs_recovery(&*log, &place)? {
        let done = journal::replay(&*disk, &*log, &place)?;
        tracing::info!("journal: {} transactions replayed", done.transactions);
    }
    F::set_needs_replay(&*disk, false)?;
    Ok((disk, external.is_none().then_some(place)))
}

/// Prepares an empty log. Returns its place, which is known of a log in the image that was replayed.
pub(super) fn prepare_log<F: Mountable>(
    disk: &Arc<dyn BlockDevice>,
    external: Option<&Arc<dyn BlockDevice>>,
    known: Option<LogBlocks>,
    options: &MountOptions,
) -> Result<LogBlocks, MountError> {
    if let Some(known) = known {
        return Ok(known);
    }
    let sup = F::superblock(&**disk)?;
    if let Some(log) = external {
        let place = whole(log.geometry());
        if !belongs_to(log, sup.uuid)? {
            journal::format(&**log, &place, sup.uuid)?;
            log.flush(Rule::InitialiseBeforePoint)?;
        }
        return Ok(place);
    }
    if !sup.has_journal {
        F::add_journal(disk, options.journal_blocks, options.clock.clone())?;
    }
    F::journal_place(disk, false)
}

/// The place of a log that fills a device.
fn whole(geometry: Geometry) -> LogBlocks {
    LogBlocks::new([(Lba(0), geometry.blocks)])
}

/// Whether the device holds a log of the file system with this UUID. Another file system's log is
/// an error.
pub(super) fn belongs_to(log: &Arc<dyn BlockDevice>, uuid: [u8; 16]) -> Result<bool, MountError> {
    let wrong = |what| MountError::ExternalLog {
        device: log.name().into(),
        what,
    };
    match owner_of(&**log).map_err(wrong)? {
        None => Ok(false),
        Some(owner) if owner == uuid => Ok(true),
        Some(_) => Err(wrong("is the log of another file system")),
    }
}

/// The owner's UUID, from the JBD2 superblock at the start of a log. `None` if the start is empty.
fn owner_of(log: &dyn BlockDevice) -> Result<Option<[u8; 16]>, &'static str> {
    const MAGIC: [u8; 4] = 0xc03b_3998_u32.to_be_bytes();
    const UUID: usize = 48;
    /// Bytes that must be zero in an empty device, since a file system has its superblock there.
    const START: usize = 2048;
    let geometry = log.geometry();
    if geometry.bytes() < START as u64 {
        return Err("is too small for a log");
    }
    let mut start = vec![0; START.next_multiple_of(geometry.block_bytes as usize)];
    log.read(Lba(0), &mut start).map_err(|_| "cannot be read")?;
    if start[..START].iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    if start[..4] != MAGIC {
        return Err("holds something that is not a log; to use it for one, clear its first blocks");
    }
    Ok(start[UUID..].first_chunk().copied())
}
