//! Commits, and the reclaim of log space.

use super::format::{SUPER_BYTES, Tag, escape};
use super::transaction::{Committed, LogRing, Mark, Running};
use super::{Guard, Shared, State, hold_for};
use crate::seeded::{Bug, hit};
use crate::{Before, Caller, Change, Content, Op, PatchId, Store, StoreError};
use medium::Rule;
use medium::block::Lba;
use parking_lot::MutexGuard;

impl Shared {
    /// Commits the running transaction, if it has changed anything, and starts the next. If
    /// another thread is committing it, waits for that thread.
    pub(super) fn commit(&self, state: &mut Guard<'_>) -> Result<(), StoreError> {
        if state.closing {
            while state.closing {
                self.changed.wait(state);
            }
            return Ok(());
        }
        if state.running.is_empty() {
            return Ok(());
        }
        state.closing = true;
        while state.running.open > 0 {
            self.changed.wait(state);
        }
        let result = self.write_transaction(state);
        state.closing = false;
        self.changed.notify_all();
        self.due.notify_all();
        result
    }

    /// Writes the log's blocks and the commit block after them. Then it allows writes of the home
    /// blocks (J2, J3). No operation is under way.
    fn write_transaction(&self, state: &mut State) -> Result<(), StoreError> {
        let reserved = self.log_blocks(state.running.blocks.len()) as u32;
        let op = self.log.begin(reserved, Caller::SYSTEM)?;
        let result = self.copy_to_log(state, &op);
        self.log.end(op);
        let transaction = result?;
        let home = &self.home;
        let commit = Before {
            patch: transaction.commit,
            rule: Rule::LogBeforeHome,
        };
        home.set_befores(state.running.hold, &[commit]);
        home.release(state.running.hold);
        state.stats.commits += 1;
        state.stats.logged += transaction.blocks.len() as u64;
        let wait = home.empty(
            &[Before {
                rule: Rule::DataBeforeCommit,
                ..commit
            }],
            true,
        );
        let ordered = self.options.mode == super::Mode::Ordered;
        state.running = Running::new(hold_for(&*self.home, wait), wait, ordered);
        state.log.push(transaction);
        Ok(())
    }

    /// Writes the blocks of the running transaction to the log.
    fn copy_to_log(&self, state: &mut State, op: &Op) -> Result<Committed, StoreError> {
        let sequence = state.log.sequence;
        if state.superblock.start() == 0 {
            let head = state.log.head();
            self.write_tail(state, head, sequence)?;
        }
        let start = state.log.head();
        let used = state.log.used();
        let running = &mut state.running;
        let mut blocks: Vec<_> = std::mem::take(&mut running.blocks).into_iter().collect();
        blocks.sort_unstable_by_key(|(lba, _)| *lba);
        let mut freed: Vec<Lba> = std::mem::take(&mut running.freed).into_iter().collect();
        freed.sort_unstable();
        let wait = running.wait;
        let log = &mut state.log;
        let mut revoked = freed.clone();
        // Only copies need a revoke, of which the log has a bounded number (J5). A block that an older
        // transaction has freed has no copy since.
        revoked.retain(|lba| matches!(log.marks.get(lba), Some(Mark::Logged(_))));
        if hit(Bug::NoRevoke) {
            revoked.clear();
        }
        debug_assert!(
            revoked.len() <= self.revoke_blocks as usize * self.codec.revokes_per_block(),
            "J5: revokes of {} blocks",
            revoked.len()
        );
        let homes: Vec<u64> = revoked.iter().map(|lba| lba.0).collect();
        for homes in homes.chunks(self.codec.revokes_per_block()) {
            let block = self.codec.revoke(sequence, homes);
            self.append(log, op, wait, &block)?;
        }
        for described in blocks.chunks(self.codec.tags_per_descriptor()) {
            let homes: Vec<Lba> = described.iter().map(|(lba, _)| *lba).collect();
            self.append_described(log, op, wait, &homes)?;
        }
        let commit = self.append_commit(state, op)?;
        state.stats.revoked += revoked.len() as u64;
        Ok(Committed {
            sequence,
            start,
            len: state.log.used() - used,
            commit,
            blocks,
            freed,
        })
    }

    /// Writes a descriptor and the blocks that it lists.
    fn append_described(
        &self,
        log: &mut LogRing,
        op: &Op,
        wait: PatchId,
        homes: &[Lba],
    ) -> Result<(), StoreError> {
        let sequence = log.sequence;
        let descriptor = log.take();
        let mut tags = Vec::with_capacity(homes.len());
        for &home in homes {
            let current = self.home.read(home)?;
            let mut copy = std::borrow::Cow::Borrowed(&current[..]);
            let escaped = current.starts_with(&super::format::MAGIC.to_be_bytes());
            if escaped {
                escape(copy.to_mut());
            }
            tags.push(Tag {
                home: home.0,
                escaped,
                crc: self.codec.data_crc(sequence, &copy),
            });
            self.append(log, op, wait, &copy)?;
        }
        let block = self.codec.descriptor(sequence, &tags);
        self.write_at(log, op, (descriptor, wait), &block)
    }

    /// Writes the commit block, which waits for all befores of `wait`.
    fn append_commit(&self, state: &mut State, op: &Op) -> Result<PatchId, StoreError> {
        // Readers ignore a commit whose time is before that of the last one.
        let seconds = (self.options.seconds)().max(state.last_commit_seconds);
        state.last_commit_seconds = seconds;
        let block = self.codec.commit(state.log.sequence, seconds);
        let wait = Before {
            patch: state.running.wait,
            rule: Rule::DataBeforeCommit,
        };
        let tail = Before {
            patch: state.log.tail,
            rule: Rule::NullifyBeforeReuse,
        };
        let befores = [wait, tail];
        let befores: &[Before] = if hit(Bug::CommitWithoutBody) {
            &[]
        } else {
            &befores
        };
        let position = state.log.take();
        let commit = self.change_log(op, position, &block, befores)?;
        self.home.release(state.running.wait);
        Ok(commit)
    }

    fn append(
        &self,
        log: &mut LogRing,
        op: &Op,
        wait: PatchId,
        block: &[u8],
    ) -> Result<(), StoreError> {
        let position = log.take();
        self.write_at(log, op, (position, wait), block)
    }

    /// Writes a block of the log, for which the commit must wait. The block itself waits for
    /// the tail that freed its place (J4).
    fn write_at(
        &self,
        log: &LogRing,
        op: &Op,
        (position, wait): (u32, PatchId),
        block: &[u8],
    ) -> Result<(), StoreError> {
        let tail = Before {
            patch: log.tail,
            rule: Rule::NullifyBeforeReuse,
        };
        let patch = self.change_log(op, position, block, &[tail])?;
        let before = Before {
            patch,
            rule: Rule::DataBeforeCommit,
        };
        self.home.add_before(wait, before);
        Ok(())
    }

    fn change_log(
        &self,
        op: &Op,
        position: u32,
        bytes: &[u8],
        befores: &[Before],
    ) -> Result<PatchId, StoreError> {
        let lba = self.place.lba(position);
        let change = Change::Bytes { at: 0, bytes };
        let patched = self.log.change(op, lba, Content::Data, change, befores)?;
        Ok(patched.id)
    }

    // --- space ----------------------------------------------------------------------

    /// Frees the log space of transactions that replay no longer needs.
    pub(super) fn reclaim(&self, state: &mut State) -> Result<(), StoreError> {
        if !self.home.is_pending(state.log.tail) {
            state.log.forget_left();
        }
        let before = state.log.committed.len();
        while let Some(oldest) = state.log.committed.front()
            && !self.home.is_pending(oldest.commit)
            && self.missing(&state.log, oldest).next().is_none()
        {
            state.log.pop();
        }
        if state.log.committed.len() < before {
            let (start, sequence) = state.log.tail();
            self.write_tail(state, start, sequence)?;
        }
        Ok(())
    }

    /// Changes of a transaction that are neither durable at home nor in a later transaction
    /// whose commit is durable (J4).
    fn missing<'a>(
        &'a self,
        log: &'a LogRing,
        transaction: &'a Committed,
    ) -> impl Iterator<Item = PatchId> + 'a {
        let needed = transaction.blocks.iter().filter(move |(lba, _)| {
            let newest = log
                .marks
                .get(lba)
                .map_or(transaction.sequence, |m: &Mark| m.sequence());
            let overtaken = newest != transaction.sequence
                && log
                    .find(newest)
                    .is_some_and(|later| !self.home.is_pending(later.commit));
            !overtaken && !hit(Bug::TailBeforeHome)
        });
        let patches = needed.flat_map(|(_, patches)| patches.iter().copied());
        patches.filter(|&patch| self.home.is_pending(patch))
    }

    /// Takes one step towards free log space. The caller repeats it until there is enough.
    pub(super) fn make_room(&self, state: &mut Guard<'_>) -> Result<(), StoreError> {
        let used = state.log.used();
        self.reclaim(state)?;
        if state.log.used() < used {
            return Ok(());
        }
        let Some(newest) = state.log.committed.back() else {
            return self.commit(state);
        };
        let commit = newest.commit;
        if self.home.is_pending(commit) {
            return MutexGuard::unlocked(state, || self.home.sync(&[commit]));
        }
        let hold = state.running.hold;
        let transactions = state.log.committed.iter();
        let missing: Vec<PatchId> = transactions
            .flat_map(|t| self.missing(&state.log, t))
            .collect();
        // Blocks that the running transaction changed again are written home after its commit.
        // Then the log has the new copy, and the older one is not needed.
        let (waiting, free): (Vec<_>, Vec<_>) = missing
            .into_iter()
            .partition(|&patch| self.home.waits_for(&[patch], hold));
        if free.is_empty() && !waiting.is_empty() {
            return self.commit(state);
        }
        let written = MutexGuard::unlocked(state, || self.home.sync(&free));
        match written {
            // A change of these blocks joined the running transaction meanwhile.
            Err(StoreError::Held { .. }) => self.commit(state),
            other => other,
        }
    }

    /// Writes the start of the log to its superblock; 0: the log is empty. Replay must not
    /// need anything older.
    pub(super) fn write_tail(
        &self,
        state: &mut State,
        start: u32,
        sequence: u32,
    ) -> Result<(), StoreError> {
        state.superblock.set_tail(start, sequence);
        let bytes = state.superblock.encode();
        debug_assert_eq!(bytes.len(), SUPER_BYTES);
        let change = Change::Bytes { at: 0, bytes };
        let op = self.log.begin(0, Caller::SYSTEM)?;
        let patched = self
            .log
            .change(&op, self.place.lba(0), Content::Data, change, &[]);
        self.log.end(op);
        state.log.tail = patched?.id;
        state.stats.tails += 1;
        Ok(())
    }
}
