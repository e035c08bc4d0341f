//! The part of the format that mounting ([`blockfs::mount`]) needs.

use crate::{DeviceCalls, WholeDisk};
use blockfs::mount::{MountError, Mountable, OpenOptions, Opener, Superblock};
use blockfs::{BlockFs, OnError};
use medium::block::BlockDevice;
use patch::Store;
use patch::journal::LogBlocks;
use patch::stack::Stack;
use std::sync::Arc;
use vfs::{Atomicity, Clock, Durability, FileSystem, Guarantees, Ordering};

/// Why a device cannot be mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The stack has a journal.
    #[error(
        "wholedisk has no journal: the device has no room for the mark that a replay is needed; \
         use mode=softupdates or mode=async, or a stack without the layer journal"
    )]
    Journal,
}

impl From<Error> for MountError {
    fn from(error: Error) -> Self {
        Self::image(error)
    }
}

impl Mountable for WholeDisk {
    const NAME: &'static str = "wholedisk";
    const ABOUT_TORN_BLOCKS: &'static str =
        "patchgroups then do not order changes of one block among each other";

    fn check_stack(stack: &Stack) -> Result<(), MountError> {
        match stack.journal() {
            Some(_) => Err(Error::Journal.into()),
            None => Ok(()),
        }
    }

    fn guarantees(stack: &Stack) -> Guarantees {
        Guarantees {
            name: format!("{} (mode={})", Self::NAME, stack.mode()),
            durable: Durability::AtFsync,
            metadata_atomic: Atomicity::None,
            data_atomic: Atomicity::None,
            metadata_ordered: Ordering::None,
            data_ordered: Ordering::None,
            times_atomic: false,
            notes: vec![
                "Each sector is old or new after a crash, as far as the device promises it.".into(),
                "Patchgroups order writes; without them, writes become durable in any order."
                    .into(),
                "The order of changes of one block needs a device that keeps blocks whole.".into(),
                "Time stamps last until the unmount.".into(),
            ],
        }
    }

    fn served(fs: Arc<BlockFs<Self>>) -> Arc<dyn FileSystem> {
        Arc::new(DeviceCalls::new(fs))
    }

    /// The largest blocks from 512 to 4096 bytes that cover the device as the smallest ones do.
    /// The sectors of the device, or the start of a partition, exclude some sizes.
    fn block_size(open: &Opener<'_>) -> Result<u32, MountError> {
        let sizes = [512, 1024, 2048];
        let usable = sizes.into_iter().filter_map(|size| open(size).ok());
        let mut geometries: Vec<_> = usable.map(|device| device.geometry()).collect();
        match open(4096) {
            Ok(device) => geometries.push(device.geometry()),
            Err(error) if geometries.is_empty() => return Err(error.into()),
            Err(_) => {}
        }
        let whole = geometries[0].bytes();
        geometries.retain(|geometry| geometry.bytes() == whole);
        Ok(geometries[geometries.len() - 1].block_bytes)
    }

    fn superblock(disk: &dyn BlockDevice) -> Result<Superblock, MountError> {
        Ok(Superblock {
            block_bytes: disk.geometry().block_bytes,
            uuid: [0; 16],
            on_error: OnError::Continue,
            has_journal: false,
            needs_replay: false,
        })
    }

    fn open(store: Arc<dyn Store>, options: OpenOptions) -> Result<Self, MountError> {
        Ok(Self::new(store, options.clock.now()))
    }

    fn check(
        _disk: &dyn BlockDevice,
        _read_only: bool,
        _journal_inside: bool,
    ) -> Result<(), MountError> {
        Ok(())
    }

    fn journal_place(
        _disk: &Arc<dyn BlockDevice>,
        _replayed: bool,
    ) -> Result<LogBlocks, MountError> {
        Err(Error::Journal.into())
    }

    fn add_journal(
        _disk: &Arc<dyn BlockDevice>,
        _blocks: Option<u64>,
        _clock: Arc<dyn Clock>,
    ) -> Result<(), MountError> {
        Err(Error::Journal.into())
    }

    fn set_needs_replay(_disk: &dyn BlockDevice, _on: bool) -> Result<(), MountError> {
        Err(Error::Journal.into())
    }
}
