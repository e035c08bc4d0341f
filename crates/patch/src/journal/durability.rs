//! Durability: syncs, checkpoints, and the thread that commits old transactions.

use super::{Guard, Shared};
use crate::{PatchId, Store, StoreError};
use std::time::Duration;

impl Shared {
    /// Makes patches durable. The first run syncs without the lock. Meanwhile a block of data
    /// may be freed and become metadata, so that its patch joins the running transaction and
    /// is held. The second run keeps the lock, so that no patch joins again.
    pub(super) fn sync(&self, patches: &[PatchId]) -> Result<(), StoreError> {
        let wanted = self.wanted_at_home(&mut self.state.lock(), patches)?;
        match self.home.sync(&wanted) {
            Err(StoreError::Held { .. }) => {
                let mut state = self.state.lock();
                let wanted = self.wanted_at_home(&mut state, patches)?;
                self.home.sync(&wanted)
            }
            done => done,
        }
    }

    /// Commits the running transaction if these patches wait for it. Returns the patches to
    /// sync at home, none of which waits for the running transaction while the lock is held.
    fn wanted_at_home(
        &self,
        state: &mut Guard<'_>,
        patches: &[PatchId],
    ) -> Result<Vec<PatchId>, StoreError> {
        let home = &self.home;
        while home.waits_for(patches, state.running.hold) {
            self.commit(state)?;
        }
        // The newest commit that they wait for waits for the older ones.
        let commits = state.log.committed.iter().rev().map(|c| c.commit);
        let newest = commits
            .take_while(|&commit| self.home.is_pending(commit))
            .find(|&commit| home.waits_for(patches, commit));
        // Changes of data, and empty patches of sets, which may wait for such changes.
        let pending = patches.iter().copied().filter(|&id| home.is_pending(id));
        Ok(pending.chain(newest).collect())
    }

    pub(super) fn sync_all(&self) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        self.commit(&mut state)?;
        self.prune_direct(&mut state);
        let newest = state.log.committed.back().map(|c| c.commit);
        let all: Vec<PatchId> = state.direct.iter().copied().chain(newest).collect();
        drop(state);
        self.sync(&all)
    }

    pub(super) fn checkpoint(&self) -> Result<(), StoreError> {
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

    /// The thread that commits old transactions, and frees space in a log that is more than
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
                self.due.wait_for(&mut state, nap);
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
            if self.home.failure().is_some() {
                // The cache returns the error to callers that wait.
                return;
            }
            if let Err(error) = done {
                tracing::warn!("journal: {error}; its thread tries again");
                self.due.wait_for(&mut state, interval);
            }
        }
    }
}
