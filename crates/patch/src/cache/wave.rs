//! Waves: writing blocks that do not depend on each other, and making them durable by one
//! flush.
//!
//! A wave is written in parts, and parts of other waves may be written between them. That
//! keeps C1: a block is ready only if all its befores are durable, so no block waits for a
//! block of another wave.

use super::core::{Core, Sent};
use super::needed::Needed;
use super::{AT_ONCE, Durable, Shared};
use crate::graph::BlockSlot;
use crate::{PatchId, StoreError};
use medium::Rule;
use medium::block::{BlockDevice, BlockError, Write};
use parking_lot::MutexGuard;
use std::sync::Arc;

/// The blocks that a wave takes.
pub(super) enum Want<'a> {
    /// All ready blocks, oldest first.
    Anything,
    /// The next level of the sync with this number in [`Core::syncs`].
    Level(usize),
    /// Blocks that a function draws from all ready ones: it returns a number below its
    /// argument.
    Drawn(&'a mut dyn FnMut(usize) -> usize),
}

/// A wave under way.
#[derive(Default)]
struct Wave {
    /// The wave has issued blocks, so other threads may wait for it.
    in_flight: bool,
    written: Vec<BlockSlot>,
    /// Number of blocks that equalled their device's contents.
    unchanged: usize,
    /// Numbers of the devices that must be flushed.
    to_flush: Vec<usize>,
    flushes: u64,
}

impl Shared {
    /// Most blocks in a wave that makes room.
    pub(super) fn small_wave(&self) -> usize {
        self.options.wave.min(AT_ONCE)
    }

    /// Runs a change of the graph that may make patches ready or durable, and wakes waiters.
    pub(super) fn change_order(&self, f: impl FnOnce(&mut Core)) {
        let mut core = self.core.lock();
        f(&mut core);
        core.requeue();
        core.progress += 1;
        drop(core);
        self.progress.notify_all();
    }

    /// Writes at most `most` blocks and makes them durable. Returns the number of blocks.
    pub(super) fn wave(&self, mut want: Want<'_>, most: usize) -> Result<usize, StoreError> {
        let mut wave = Wave::default();
        let result = self.write_wave(&mut wave, &mut want, most);
        if result.is_ok() {
            self.commit(&wave);
        }
        let left = wave.written.len() + wave.unchanged;
        if wave.in_flight || left > 0 {
            let mut core = self.core.lock();
            core.in_flight -= usize::from(wave.in_flight);
            core.progress += 1;
            drop(core);
            self.progress.notify_all();
        }
        result.map(|()| left)
    }

    /// Writes and flushes a wave. The caller commits its patches.
    fn write_wave(
        &self,
        wave: &mut Wave,
        want: &mut Want<'_>,
        most: usize,
    ) -> Result<(), StoreError> {
        loop {
            let room = (most - wave.written.len()).min(AT_ONCE);
            let turn = self.turn.lock();
            let part = self.choose(wave, want, room)?;
            let is_last = part.len() < room || wave.written.len() + part.len() >= most;
            let is_only = wave.written.is_empty() && is_last;
            self.write(&part, is_only, &mut wave.to_flush)
                .map_err(|error| self.fail(error))?;
            wave.written.extend(part.iter().map(|sent| sent.slot));
            if is_last {
                return self.flush(wave);
            }
            MutexGuard::unlock_fair(turn);
        }
    }

    /// Issues the blocks of a part of a wave.
    fn choose(
        &self,
        wave: &mut Wave,
        want: &mut Want<'_>,
        room: usize,
    ) -> Result<Vec<Sent>, StoreError> {
        let mut core = self.core.lock();
        core.check()?;
        let before = core.counts.unchanged;
        let is_first = wave.written.is_empty();
        let part = match want {
            Want::Anything => core.select(room, is_first),
            Want::Level(sync) => core.select_for(*sync, room, is_first),
            Want::Drawn(pick) => core.select_drawn(room, *pick),
        };
        wave.unchanged += (core.counts.unchanged - before) as usize;
        if !part.is_empty() && !wave.in_flight {
            wave.in_flight = true;
            core.in_flight += 1;
        }
        MutexGuard::unlock_fair(core);
        Ok(part)
    }

    /// Writes a part of a wave. Adds the devices that must be flushed.
    fn write(
        &self,
        part: &[Sent],
        is_only: bool,
        to_flush: &mut Vec<usize>,
    ) -> Result<(), BlockError> {
        let mut first_error = None;
        for (number, device) in self.devices.iter().enumerate() {
            let mine = part.iter().filter(|s| usize::from(s.addr.device) == number);
            let count = mine.clone().count();
            if count == 0 {
                continue;
            }
            let (durable, flush) = self.how(&**device, is_only, count);
            let writes = mine.enumerate().map(|(tag, s)| Write {
                tag: tag as u64,
                lba: s.addr.lba,
                data: s.data.clone(),
                durable: durable.then_some(Rule::PatchOrder),
            });
            device.submit(writes.collect());
            let mut left = count;
            while left > 0 {
                for done in device.reap(1) {
                    left -= 1;
                    if let Err(error) = done.result {
                        first_error.get_or_insert(error);
                    }
                }
            }
            if flush && !to_flush.contains(&number) {
                to_flush.push(number);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Whether to write this many blocks with FUA, and whether to flush afterwards.
    /// `is_only`: they are the whole wave.
    fn how(&self, device: &dyn BlockDevice, is_only: bool, blocks: usize) -> (bool, bool) {
        let persistence = device.persistence();
        if !persistence.volatile_cache {
            return (false, false);
        }
        match self.options.durable {
            Durable::Unsafe => (false, false),
            Durable::ForceUnitAccess if persistence.durable_writes => (true, false),
            Durable::Auto if persistence.durable_writes && is_only && blocks <= 2 => (true, false),
            Durable::Auto | Durable::Flush | Durable::ForceUnitAccess => (false, true),
        }
    }

    /// Flushes the devices that the wave wrote to. The caller has the turn.
    fn flush(&self, wave: &mut Wave) -> Result<(), StoreError> {
        for &number in &wave.to_flush {
            wave.flushes += 1;
            let flushed = self.devices[number].flush(Rule::PatchOrder);
            flushed.map_err(|error| self.fail(error))?;
        }
        Ok(())
    }

    /// Stops the cache with an error (C4). The caller has the turn, so that no later flush
    /// hides the error.
    pub(super) fn fail(&self, error: BlockError) -> StoreError {
        tracing::error!("{error}; no more is written, and the file system is read-only");
        let error = Arc::new(error);
        self.core.lock().failure = Some(error.clone());
        StoreError::Failed(error)
    }

    /// Commits the patches of a durable wave.
    fn commit(&self, wave: &Wave) {
        if wave.written.is_empty() {
            return;
        }
        {
            let mut core = self.core.lock();
            core.counts.waves += 1;
            core.counts.flushes += wave.flushes;
        }
        for part in wave.written.chunks(AT_ONCE) {
            let mut core = self.core.lock();
            core.commit(part);
            MutexGuard::unlock_fair(core);
        }
    }

    // --- syncs ----------------------------------------------------------------------

    /// Makes patches durable. Writes only the blocks that they need.
    pub(super) fn sync(&self, ids: &[PatchId]) -> Result<(), StoreError> {
        let mut ids = ids.to_vec();
        loop {
            let (sync, seen) = {
                let mut core = self.core.lock();
                ids.retain(|id| core.graph.is_pending(*id));
                if ids.is_empty() {
                    return Ok(());
                }
                core.check()?;
                let needed = Needed::new(&mut core.graph, &ids);
                (core.syncs.insert(needed), core.progress)
            };
            let written = self.write_levels(sync);
            drop(self.core.lock().syncs.remove(sync));
            if written? == 0 {
                self.wait_for_others(&ids, seen)?;
            }
        }
    }

    /// Writes the blocks that a sync needs, a wave for each level. Returns their number.
    fn write_levels(&self, sync: usize) -> Result<usize, StoreError> {
        let mut all = 0;
        loop {
            match self.wave(Want::Level(sync), self.options.wave)? {
                0 => return Ok(all),
                left => all += left,
            }
        }
    }

    /// Waits for the waves of other threads, after a sync of these patches found nothing to
    /// write: such a wave may have issued the blocks.
    pub(super) fn wait_for_others(&self, ids: &[PatchId], seen: u64) -> Result<(), StoreError> {
        let mut core = self.core.lock();
        if core.progress != seen {
            return Ok(());
        }
        if core.in_flight == 0 {
            // Since the walk, a change may have joined one of the patches and added befores.
            return match core.can_write_for(ids) {
                true => Ok(()),
                false => Err(StoreError::Held { patches: ids.len() }),
            };
        }
        self.progress.wait(&mut core);
        Ok(())
    }

    /// Makes everything durable: first waves of any ready blocks, without a search for needed
    /// ones, then the rest.
    pub(super) fn sync_all(&self) -> Result<(), StoreError> {
        let all = self.core.lock().graph.all();
        // Small waves, so that operations that wait for room can continue between them.
        let most = self.options.wave.min(self.options.dirty_limit / 4).max(1);
        // Blocks that other threads make dirty must not prolong this loop for ever.
        while self.is_any_pending(&all) && self.wave(Want::Anything, most)? >= most {}
        self.sync(&all)
    }

    fn is_any_pending(&self, ids: &[PatchId]) -> bool {
        let core = self.core.lock();
        ids.iter().any(|id| core.graph.is_pending(*id))
    }

    // --- room -----------------------------------------------------------------------

    /// Reserves room for an operation (C3).
    pub(super) fn make_room(&self, blocks: usize) -> Result<(), StoreError> {
        loop {
            let seen = {
                let mut core = self.core.lock();
                if !self.is_crowded(&core) && self.has_room(&mut core, blocks)? {
                    return Ok(());
                }
                core.progress
            };
            if self.wave(Want::Anything, self.small_wave())? > 0 {
                continue;
            }
            // The remaining blocks wait for operations or waves under way, or for a journal.
            let mut core = self.core.lock();
            let may_shrink = self.is_crowded(&core) && core.in_flight > 0;
            if !may_shrink && self.has_room(&mut core, blocks)? {
                return Ok(());
            }
            if core.progress == seen {
                core.counts.waits += 1;
                self.progress.wait(&mut core);
            }
        }
    }

    /// Whether the graph exceeds its memory limit.
    pub(super) fn is_crowded(&self, core: &Core) -> bool {
        core.graph.stats().memory_now() > self.options.patch_bytes
    }

    /// Reserves the blocks, if they fit under the dirty limit.
    fn has_room(&self, core: &mut Core, blocks: usize) -> Result<bool, StoreError> {
        core.check()?;
        let fits = core.dirty() + core.reserved + blocks <= self.options.dirty_limit;
        core.reserved += if fits { blocks } else { 0 };
        Ok(fits)
    }
}
