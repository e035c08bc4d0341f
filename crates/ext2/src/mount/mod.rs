//! The part of ext2 that mounting ([`blockfs::mount`]) needs.

use crate::format::{Compat, Incompat, JOURNAL_INO};
use crate::{Error, Ext2, features, log};
use blockfs::Format;
use blockfs::mount::{MountError, Mountable, OpenOptions, Superblock, plain_cache};
use medium::Rule;
use medium::block::{BlockDevice, Lba};
use patch::Store;
use patch::journal::{self, LogBlocks};
use std::sync::Arc;
use vfs::Clock;

/// A mounted image.
pub type Mounted = blockfs::mount::Mounted<Ext2>;

impl From<Error> for MountError {
    fn from(error: Error) -> Self {
        Self::image(error)
    }
}

impl Mountable for Ext2 {
    const NAME: &'static str = "ext2";

    fn superblock(disk: &dyn BlockDevice) -> Result<Superblock, MountError> {
        let block_bytes = crate::probe(disk)?.block_bytes;
        let sup = log::superblock(disk)?;
        Ok(Superblock {
            block_bytes,
            uuid: sup.uuid,
            on_error: sup.on_error(),
            has_journal: sup.compat.get() & Compat::HAS_JOURNAL.bits() != 0,
            needs_replay: sup.incompat.get() & Incompat::RECOVER.bits() != 0,
        })
    }

    fn open(store: Arc<dyn Store>, options: OpenOptions) -> Result<Self, MountError> {
        Ok(Ext2::open(store, options)?)
    }

    fn check(
        disk: &dyn BlockDevice,
        read_only: bool,
        journal_inside: bool,
    ) -> Result<(), MountError> {
        let sup = log::superblock(disk)?;
        let replayed = OpenOptions {
            read_only,
            replayed: true,
            ..OpenOptions::default()
        };
        features::check(&sup, &replayed)?;
        match journal_inside && sup.revision.get() == 0 {
            true => Err(Error::Revision0.into()),
            false => Ok(()),
        }
    }

    /// The blocks of inode 8.
    fn journal_place(disk: &Arc<dyn BlockDevice>, replayed: bool) -> Result<LogBlocks, MountError> {
        let inode = log::superblock(&**disk)?.journal_ino.get();
        if inode != JOURNAL_INO {
            return Err(Error::JournalElsewhere(inode).into());
        }
        let options = OpenOptions {
            read_only: true,
            replayed,
            ..OpenOptions::default()
        };
        let format = Ext2::open(Arc::new(plain_cache(disk).store(0)), options)?;
        Ok(format.log_place()?)
    }

    /// Makes a journal as `tune2fs -j` does.
    fn add_journal(
        disk: &Arc<dyn BlockDevice>,
        blocks: Option<u64>,
        clock: Arc<dyn Clock>,
    ) -> Result<(), MountError> {
        let sup = log::superblock(&**disk)?;
        if sup.revision.get() == 0 {
            return Err(Error::Revision0.into());
        }
        let blocks = blocks.unwrap_or_else(|| log::usual_blocks(sup.blocks_count.get()));
        let open = |read_only| {
            let options = OpenOptions {
                read_only,
                clock: clock.clone(),
                replayed: false,
            };
            Ext2::open(Arc::new(plain_cache(disk).store(0)), options)
        };
        let fits = |format: &Ext2| match format.room_for_log(blocks)? {
            free if free < blocks => Err(MountError::NoRoom { blocks, free }),
            _ => Ok(()),
        };
        // Opening corrects the counts of an image that was not unmounted.
        let reader = open(true)?;
        if reader.was_clean() {
            fits(&reader)?;
        }
        drop(reader);
        let (place, inode) = {
            let format = open(false)?;
            let made = fits(&format).and_then(|()| Ok(format.make_log(blocks)?));
            // Without this mark the image would count as not unmounted when it is mounted without a
            // journal.
            Format::close(&format)?;
            made?;
            (format.log_place()?, format.load(JOURNAL_INO)?.inode)
        };
        journal::format(&**disk, &place, sup.uuid)?;
        disk.flush(Rule::InitialiseBeforePoint)?;
        Ok(log::set_internal(&**disk, &inode)?)
    }

    fn set_needs_replay(disk: &dyn BlockDevice, on: bool) -> Result<(), MountError> {
        Ok(log::set_recover(disk, on)?)
    }

    fn describe(&self, lba: Lba) -> Option<String> {
        self.structure_at(lba)
    }
}

#[cfg(test)]
mod tests;
