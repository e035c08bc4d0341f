//! Mounting: the superblock and the group descriptors, checked once.

use crate::error::Error;
use crate::features;
use crate::format::{
    Compat, GroupDescriptor, MAGIC, RoCompat, STATE_ERRORS, STATE_VALID, SUPER_OFFSET, Super,
};
use crate::layout::{Group, Layout};
use crate::names::AllNames;
use crate::seeded::{Bug, hit};
use crate::state::State;
use blockfs::mount::OpenOptions;
use blockfs::{FormatError, Result};
use medium::block::Lba;
use parking_lot::Mutex;
use patch::{Before, Change, Content, Op, PatchId, Store};
use std::mem::{offset_of, size_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use vfs::Clock;
use zerocopy::FromBytes;

/// A mounted ext2 image.
pub struct Ext2 {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) layout: Layout,
    pub(crate) options: OpenOptions,
    pub(crate) state: Mutex<State>,
    /// The names of large directories. The lock is never held during a wait.
    pub(crate) names: Mutex<AllNames>,
    /// [`Super::state`] before the mount, and errors found since.
    found_state: AtomicU16,
}

/// The number at which this mount begins to count generations. The generations of inodes that a
/// crash has lost are not on the medium, so each mount begins at another number.
fn first_generation(clock: &dyn Clock) -> u32 {
    if hit(Bug::GenerationsRestart) {
        return 0;
    }
    // The upper half of a product depends on all bits of the time (Fibonacci hashing).
    ((clock.now().0 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

impl Ext2 {
    /// Mounts an image. A read-write mount marks it as being in use, and [`close`](Self::close)
    /// removes the mark.
    ///
    /// # Errors
    /// The defect of the image or its store, or an unsupported feature.
    pub fn open(store: Arc<dyn Store>, options: OpenOptions) -> std::result::Result<Self, Error> {
        let found = read_super(&*store)?;
        features::check(&found, &options)?;
        let mut layout = Layout::of(&found, store.blocks())?;
        let groups = read_groups(&*store, &layout)?;
        layout.overhead = layout.count_overhead();
        let fs = Self {
            state: Mutex::new(State::new(
                &found,
                groups,
                first_generation(&*options.clock),
            )),
            names: Mutex::default(),
            store,
            layout,
            options,
            found_state: AtomicU16::new(found.state.get()),
        };
        if fs.options.read_only {
            return Ok(fs);
        }
        if found.state.get() & STATE_ERRORS != 0 {
            tracing::warn!("errors were found in the image: unmount it and run e2fsck");
        }
        fs.read_orphans(found.last_orphan.get())?;
        if !fs.was_clean() {
            tracing::warn!("the image was not unmounted cleanly: counting what is free");
            fs.recount()?;
        }
        fs.mark_mounted(&found)?;
        Ok(fs)
    }

    /// Clears "valid", durably, before anything else changes, since the image needs a check after a
    /// crash. With a journal it needs only a replay, which `needs_recovery` records. As in the
    /// kernel, the image then stays valid.
    fn mark_mounted(&self, found: &Super) -> Result<()> {
        let op = self.store.begin(1, patch::Caller::SYSTEM)?;
        let state = match self.store.is_atomic() {
            true => found.state.get(),
            false => found.state.get() & !STATE_VALID,
        };
        // Mount time, write time and mount count are adjacent, and the state follows.
        let mut bytes = Vec::with_capacity(16);
        bytes.extend(self.now_secs().to_le_bytes());
        bytes.extend(self.now_secs().to_le_bytes());
        bytes.extend(found.mount_count.get().saturating_add(1).to_le_bytes());
        bytes.extend(found.max_mount_count.get().to_le_bytes());
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(state.to_le_bytes());
        let at = offset_of!(Super, mount_time);
        let marked = self.change_super(&op, at, &bytes, &[]);
        self.store.end(op);
        self.store.sync(&[marked?])?;
        Ok(())
    }

    /// Makes everything durable, then restores the image's mark from before the mount. Nothing may
    /// be changed afterwards.
    ///
    /// # Errors
    /// If it could not be stored. The image then stays marked as being in use.
    pub fn close(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.store.sync_all()?;
        let op = self.store.begin(1, patch::Caller::SYSTEM)?;
        let at = offset_of!(Super, state);
        let state = self.found_state.load(Relaxed).to_le_bytes();
        let state = self.change_super(&op, at, &state, &[]);
        let at = offset_of!(Super, write_time);
        let time = self.change_super(&op, at, &self.now_secs().to_le_bytes(), &[]);
        self.store.end(op);
        self.store.sync(&[state?, time?])?;
        Ok(())
    }

    pub(crate) fn was_clean(&self) -> bool {
        self.found_state.load(Relaxed) & STATE_VALID != 0
    }

    /// Marks the image as damaged in the superblock, durably. An unmount keeps the mark.
    pub(crate) fn note_errors(&self) -> Result<()> {
        let state = self.found_state.fetch_or(STATE_ERRORS, Relaxed) | STATE_ERRORS;
        let op = self.store.begin(1, patch::Caller::SYSTEM)?;
        let bytes = (state & !STATE_VALID).to_le_bytes();
        let marked = self.change_super(&op, offset_of!(Super, state), &bytes, &[]);
        self.store.end(op);
        self.store.sync(&[marked?])?;
        Ok(())
    }

    /// The block of the superblock.
    pub(crate) fn super_place(&self) -> Lba {
        Lba(SUPER_OFFSET / u64::from(self.layout.block_bytes))
    }

    /// As [`note_errors`](Self::note_errors), but the superblock is written at unmount, so
    /// that a caller may hold locks.
    pub(crate) fn note_errors_later(&self) {
        self.found_state.fetch_or(STATE_ERRORS, Relaxed);
    }

    /// Changes bytes of the superblock.
    pub(crate) fn change_super(
        &self,
        op: &Op,
        at: usize,
        bytes: &[u8],
        befores: &[Before],
    ) -> Result<PatchId> {
        let at = SUPER_OFFSET + at as u64;
        let size = u64::from(self.layout.block_bytes);
        self.change(op, Lba(at / size), (at % size) as u32, bytes, befores)
    }

    /// Changes bytes of a block of metadata.
    pub(crate) fn change(
        &self,
        op: &Op,
        lba: Lba,
        at: u32,
        bytes: &[u8],
        befores: &[Before],
    ) -> Result<PatchId> {
        Ok(self.patch(op, lba, at, bytes, befores)?.id)
    }

    /// As [`change`](Self::change), and returns whether it merged.
    pub(crate) fn patch(
        &self,
        op: &Op,
        lba: Lba,
        at: u32,
        bytes: &[u8],
        befores: &[Before],
    ) -> Result<patch::Patched> {
        let change = Change::Bytes { at, bytes };
        let patched = self
            .store
            .change(op, lba, Content::Metadata, change, befores)?;
        Ok(patched)
    }

    /// The current time in seconds, as ext2 stores it.
    pub(crate) fn now_secs(&self) -> u32 {
        let (secs, _) = self.options.clock.now().parts();
        secs.clamp(0, u32::MAX.into()) as u32
    }

    /// Sets the feature bits that a change needs. Returns the before of that change.
    pub(crate) fn need(&self, op: &Op, need: features::Need) -> Result<PatchId> {
        let mut state = self.state.lock();
        let (at, bits) = match need {
            features::Need::LargeFile => {
                let bits = state.ro_compat | RoCompat::LARGE_FILE.bits();
                (offset_of!(Super, ro_compat), bits)
            }
            features::Need::Attributes => {
                let bits = state.compat | Compat::EXT_ATTR.bits();
                (offset_of!(Super, compat), bits)
            }
        };
        let known = match need {
            features::Need::LargeFile => state.ro_compat,
            features::Need::Attributes => state.compat,
        };
        if known != bits {
            state.feature_set = self.change_super(op, at, &bits.to_le_bytes(), &[])?;
            match need {
                features::Need::LargeFile => state.ro_compat = bits,
                features::Need::Attributes => state.compat = bits,
            }
        }
        Ok(state.feature_set)
    }
}

fn read_super(store: &dyn Store) -> std::result::Result<Super, Error> {
    let store_bytes = store.block_bytes();
    let from = SUPER_OFFSET as usize;
    let (lba, at) = (from / store_bytes as usize, from % store_bytes as usize);
    if store.blocks() <= lba as u64 {
        return Err(Error::NotExt2);
    }
    let block = store.read(Lba(lba as u64))?;
    let found = Super::read_from_prefix(&block[at..]).ok();
    let (found, _) = found.ok_or(Error::NotExt2)?;
    if found.magic.get() != MAGIC {
        return Err(Error::NotExt2);
    }
    match found.log_block_size.get() {
        log @ 0..=2 if 1024 << log == store_bytes => Ok(found),
        log @ 0..=2 => Err(Error::BlockSize {
            image: 1024 << log,
            store: store_bytes,
        }),
        log => Err(Error::Corrupt(format!("superblock: blocks of 2^{log} KiB"))),
    }
}

fn read_groups(store: &dyn Store, layout: &Layout) -> std::result::Result<Vec<Group>, Error> {
    let mut groups = Vec::new();
    for group in 0..layout.groups {
        let (lba, at) = layout.descriptor(group);
        let block = store.read(lba)?;
        let bytes = &block[at as usize..at as usize + size_of::<GroupDescriptor>()];
        let found = GroupDescriptor::read_from_bytes(bytes).map_err(|_| Error::NotExt2)?;
        let start = layout.group_start(group);
        let end = start + layout.blocks_in(group);
        let lies_within = |first: u32, len: u32| {
            first > layout.first_block + layout.descriptor_blocks
                && first >= start
                && first.checked_add(len).is_some_and(|last| last <= end)
        };
        let good = lies_within(found.block_bitmap.get(), 1)
            && lies_within(found.inode_bitmap.get(), 1)
            && lies_within(found.inode_table.get(), layout.table_blocks());
        if !good {
            let what = format!("descriptor of group {group}: bitmaps or inodes lie elsewhere");
            return Err(FormatError::Corrupt(what).into());
        }
        groups.push(Group {
            block_bitmap: found.block_bitmap.get(),
            inode_bitmap: found.inode_bitmap.get(),
            inode_table: found.inode_table.get(),
            free_blocks: u32::from(found.free_blocks.get()).min(layout.blocks_in(group)),
            free_inodes: u32::from(found.free_inodes.get()).min(layout.inodes_per_group),
            directories: found.directories.get().into(),
        });
    }
    Ok(groups)
}
