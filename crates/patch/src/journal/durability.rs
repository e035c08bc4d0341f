//! Durability: what a sync waits for, and the thread that commits what is old.

use super::Shared;
use crate::{PatchId, Store, StoreError};
use std::time::Duration;

impl Shared {
    pub(super) fn sync(&self, patches: &[PatchId]) -> Result<(), StoreError> {
        let cache = self.home.cache();
        let mut state = self.state.lock();
        while cache.waits_for(patches, state.running.hold) {
            self.commit(&mut state)?;
        }
        // The newest commit that they wait for; it waits for the older ones.
        let commits = state.log.committed.iter().rev().map(|c| c.commit);
        let newest = commits
            .take_while(|&commit| self.home.is_pending(commit))
            .find(|&commit| cache.waits_for(patches, commit));
        let direct = patches
            .iter()
            .copied()
            .filter(|id| state.direct.contains(id));
        let wanted: Vec<PatchId> = direct.chain(newest).collect();
        drop(state);
        self.home.sync(&wanted)
    }

    pub(super) fn sync_all(&self) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        self.commit(&mut state)?;
        self.prune_direct(&mut state);
        let newest = state.log.committed.back().map(|c| c.commit);
        let wanted: Vec<PatchId> = state.direct.iter().copied().chain(newest).collect();
        drop(state);
        self.home.sync(&wanted)
    }

    pub(super) fn empty(&self) -> Result<(), StoreError> {
        self.sync_all()?;
        let mut state = self.state.lock();
        loop {
            while state.closing || state.running.open > 0 {
                self.changed.wait(&mut state);
            }
            self.commit(&mut state)?;
            self.reclaim(&mut state)?;
            if !state.log.committed.is_empty() {
                self.make_room(&mut state)?;
            } else if state.running.open == 0 && state.running.is_empty() {
                break;
            }
        }
        if state.superblock.start() != 0 {
            let sequence = state.log.sequence;
            self.write_tail(&mut state, 0, sequence)?;
        }
        let tail = state.log.tail;
        drop(state);
        self.home.sync(&[tail])
    }

    /// The thread that commits what has been running for long, and empties a log that is
    /// half full.
    pub(super) fn commit_old(&self, interval: Duration) {
        let mut state = self.state.lock();
        while !state.stopping {
            let left = interval.saturating_sub(state.running.since.elapsed());
            let nap = if state.running.is_empty() {
                interval
            } else {
                left
            };
            if !nap.is_zero() {
                self.changed.wait_for(&mut state, nap);
            }
            if state.stopping {
                return;
            }
            let old = !state.running.is_empty() && state.running.since.elapsed() >= interval;
            let half = state.log.used() > state.log.capacity() / 2;
            let done = if old { self.commit(&mut state) } else { Ok(()) };
            let done = done.and_then(|()| self.reclaim(&mut state));
            let done = done.and_then(|()| {
                if half && !state.log.committed.is_empty() {
                    self.make_room(&mut state)
                } else {
                    Ok(())
                }
            });
            if done.is_err() {
                // Whoever waits for what was lost is told by the cache.
                return;
            }
        }
    }
}
