//! The second mapping of a guarded region, through which its stores go.
//!
//! The first mapping is read-only, without a key: loads, and pointers that were passed to the program, work in
//! all threads and handlers of signals, and cost the same as without a guard.

use super::MapOptions;
use super::target::{Target, shared};
use crate::addresses::Mapping;
use crate::durability::EffectiveDurability;
use crate::guard::{Guard, Window};
use rustix::io::Errno;
use rustix::mm::{MprotectFlags, ProtFlags, mmap, mprotect};
use std::ptr::{NonNull, null_mut};

/// The mapping for stores.
pub(super) struct Guarded {
    guard: Guard,
    mapping: Mapping,
}

impl Guarded {
    /// Makes `mapping` of the target read-only, and adds one for stores, if the options request it and the
    /// machine can. Otherwise nothing has changed.
    pub(super) fn of(
        mapping: &Mapping,
        target: &Target,
        durability: EffectiveDurability,
        options: &MapOptions,
    ) -> Option<Self> {
        let guard = match options.guarded && !options.read_only {
            true => Guard::of_process()?,
            false => return None,
        };
        let guarded = Self::map(guard, target, durability);
        let guarded = guarded.and_then(|guarded| {
            let start = mapping.base().as_ptr().cast();
            // SAFETY: nothing has a pointer into the mapping yet.
            unsafe { mprotect(start, target.len as usize, MprotectFlags::READ) }.map(|()| guarded)
        });
        let failed = |e: &Errno| tracing::warn!("the mapping has no guard: {e}");
        guarded.inspect_err(failed).ok()
    }

    fn map(guard: Guard, target: &Target, durability: EffectiveDurability) -> Result<Self, Errno> {
        let len = target.len as usize;
        let file = target.copy.as_ref().unwrap_or(&target.file);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel picks overlaps nothing.
        let base = unsafe { mmap(null_mut(), len, prot, shared(durability), file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        // SAFETY: this is the mapping just made.
        let mapping = unsafe { Mapping::new(base, len) };
        // SAFETY: only `MappedPmem` accesses it, inside of windows.
        unsafe { guard.cover(base, len) }?;
        Ok(Self { guard, mapping })
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    /// Gives this thread access to the mapping for a store.
    #[inline]
    pub(super) fn open(&self) -> Window {
        self.guard.open()
    }
}
