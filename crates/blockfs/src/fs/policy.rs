//! Policies of an image and its mount: the reaction to damage, reserved blocks, changes that are
//! durable when the call returns.

use super::known::Synced;
use super::{BlockFs, Refusal, caller};
use crate::Format;
use patch::Op;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use vfs::{Ctx, Errno, FileFlags, Ino, Result};

/// The reaction to a damaged image. In any case the call fails and the image is marked, so that the
/// next check examines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// Go on.
    #[default]
    Continue,
    /// Refuse changes from then on.
    ReadOnly,
    /// Refuse all calls from then on, where the kernel would panic.
    Halt,
}

/// Damage and flags found while mounted.
#[derive(Default)]
pub(super) struct Policy {
    /// The calls refused because of damage: none, [`CHANGES`] or [`ALL`].
    refused: AtomicU8,
    /// Whether damage was found and the image marked.
    damaged: AtomicBool,
    /// Whether an inode was found whose changes must be durable at once.
    synchronous: AtomicBool,
}

const CHANGES: u8 = 1;
const ALL: u8 = 2;

impl<F: Format> BlockFs<F> {
    /// Whether changes are refused.
    pub(super) fn is_read_only(&self) -> bool {
        self.options.read_only || self.policy.refused.load(Relaxed) >= CHANGES
    }

    /// Fails once all calls are refused.
    pub(super) fn is_served(&self) -> Result<()> {
        match self.policy.refused.load(Relaxed) {
            ALL => Err(Errno::IO),
            _ => Ok(()),
        }
    }

    /// The errno of a refusal. Damage marks the image, so the caller must hold no lock.
    pub(super) fn failed(&self, refusal: Refusal) -> Errno {
        if refusal.is_damage() {
            self.damaged();
        }
        refusal.errno()
    }

    /// Marks the image once, and applies the mount's reaction to damage.
    fn damaged(&self) {
        if self.options.read_only || self.policy.damaged.swap(true, Relaxed) {
            return;
        }
        if let Err(error) = self.format.mark_damaged() {
            tracing::error!("the image could not be marked as damaged: {error}");
        }
        let (refused, told) = match self.options.on_error {
            OnError::Continue => (0, "goes on"),
            OnError::ReadOnly => (CHANGES, "is read-only from now on"),
            OnError::Halt => (ALL, "refuses all calls from now on"),
        };
        self.policy.refused.store(refused, Relaxed);
        tracing::error!("the image is damaged: the mount {told}; unmount it and run e2fsck");
    }

    /// Runs a [`change`](Self::change). It may use the reserved blocks only if the caller may.
    pub(super) fn change_for<T>(
        &self,
        cx: &Ctx,
        blocks: u32,
        mut f: impl FnMut(&Op) -> std::result::Result<T, Refusal>,
    ) -> Result<T> {
        let keeps = !self.format.may_use_reserve(cx);
        self.change(&caller(cx), blocks, |op| {
            self.format.keep_reserve(keeps);
            let done = f(op);
            self.format.keep_reserve(false);
            done
        })
    }

    /// Free blocks for this caller.
    pub(super) fn room(&self, cx: &Ctx) -> crate::Result<u64> {
        let space = self.format.statfs()?;
        Ok(match self.format.may_use_reserve(cx) {
            true => space.blocks_free,
            false => space.blocks_avail,
        })
    }

    /// Records whether an inode with these flags makes changes durable at once.
    pub(super) fn saw(&self, flags: FileFlags) {
        if flags.intersects(FileFlags::SYNC | FileFlags::DIRSYNC) {
            self.policy.synchronous.store(true, Relaxed);
        }
    }

    /// Makes the changes of each of these inodes durable if it has one of these flags. The numbers
    /// are the callers'.
    pub(super) fn stored(&self, inos: &[Ino], flags: FileFlags) -> Result<()> {
        if !self.policy.synchronous.load(Relaxed) {
            return Ok(());
        }
        for &ino in inos {
            if self
                .look(|| self.attr(self.down(ino)))?
                .flags
                .intersects(flags)
            {
                self.sync_inode(ino, Synced::All)?;
            }
        }
        Ok(())
    }

    /// Makes changes of names durable in directories whose flags ask for it.
    pub(super) fn stored_names(&self, dirs: &[Ino]) -> Result<()> {
        self.stored(dirs, FileFlags::SYNC | FileFlags::DIRSYNC)
    }
}
