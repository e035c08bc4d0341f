//! A write-ahead log as a [`Store`] (2.1.4, 2.4.2): operations are atomic.
//!
//! # Guarantees
//!
//! `journal.md` lists J1 to J9. Home blocks wait for `hold`, an empty patch that stands for
//! the running transaction. The commit makes `hold` wait for the commit block, which waits for
//! the other blocks of the log. The format is that of JBD2, so other readers of ext3 file
//! systems can replay the log.

mod commit;
mod durability;
mod format;
mod log_blocks;
mod recovery;
#[cfg(test)]
pub(crate) mod tests;
mod transaction;

pub use log_blocks::LogBlocks;
pub use recovery::{Replayed, format, needs_recovery, replay};

use crate::seeded::{Bug, hit};
use crate::{Before, Caller, Change, Content, Op, PatchId, Patched, Store, StoreError, StoreLayer};
use format::{Codec, Super};
use medium::Rule;
use medium::block::{BlockError, Lba};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use transaction::{LogRing, Mark, Running};

/// Which changes go through the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Metadata and data.
    Full,
    /// Metadata; data are home before the commit of their transaction.
    Ordered,
    /// Metadata; data are written home at any time.
    Metadata,
}

/// A clock that returns seconds since 1970.
pub type Seconds = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Settings of a journal.
#[derive(Clone)]
pub struct JournalOptions {
    /// Which changes are logged.
    pub mode: Mode,
    /// Age at which a thread of the journal commits a transaction; `None`: only calls that
    /// wait for it, or for log space, commit it.
    pub interval: Option<Duration>,
    /// Time of commit blocks.
    pub seconds: Seconds,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            mode: Mode::Ordered,
            interval: Some(Duration::from_secs(5)),
            seconds: Arc::new(|| SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_secs())),
        }
    }
}

/// Counters of a journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct JournalStats {
    /// Transactions committed.
    pub commits: u64,
    /// Blocks copied to the log.
    pub logged: u64,
    /// Blocks revoked.
    pub revoked: u64,
    /// Times that the log's tail has moved.
    pub tails: u64,
    /// Blocks of the log for transactions.
    pub capacity: u32,
    /// Of these, blocks in use now.
    pub used: u32,
}

/// Why a log cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] BlockError),
    /// The store below failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The log's superblock or a record is invalid.
    #[error("journal: {what}")]
    Superblock {
        /// The defect.
        what: &'static str,
    },
    /// The log uses features that this reader does not support.
    #[error("journal: unknown features (incompat {incompat:#x}, compat {compat:#x})")]
    Features {
        /// `s_feature_incompat`.
        incompat: u32,
        /// `s_feature_compat`.
        compat: u32,
    },
    /// Home and log have blocks of different sizes.
    #[error("journal: the log has blocks of {log} bytes, the file system has blocks of {home}")]
    BlockSizes {
        /// Bytes in a block of the file system.
        home: u32,
        /// Bytes in a block of the log.
        log: u32,
    },
    /// The log is not empty: [`replay`] it first.
    #[error("journal: the log is not empty, and was not replayed; run e2fsck")]
    NeedsRecovery,
}

/// A store with atomic operations. [`Journal::checkpoint`] before the drop makes a replay at
/// the next mount unnecessary.
pub struct Journal {
    shared: Arc<Shared>,
    committer: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    home: Arc<dyn Store>,
    log: Arc<dyn Store>,
    place: LogBlocks,
    codec: Codec,
    options: JournalOptions,
    /// Most revoke blocks that a transaction may need.
    revoke_blocks: u32,
    max_op_blocks: u32,
    state: Mutex<State>,
    /// For operations and commits that wait: an operation or a commit has ended.
    changed: Condvar,
    /// For the committer alone: the log has grown, or the journal closes. An operation that ends
    /// does not wake it.
    due: Condvar,
}

struct State {
    running: Running,
    log: LogRing,
    superblock: Super,
    /// Changes written home directly that may not be durable.
    direct: HashSet<PatchId>,
    /// Size of `direct` at which the durable patches are removed from it.
    direct_limit: usize,
    /// A commit waits for the running operations to end.
    closing: bool,
    stopping: bool,
    last_commit_seconds: u64,
    stats: JournalStats,
}

type Guard<'a> = MutexGuard<'a, State>;

impl State {
    /// Whether only reservations of operations under way take room in the log.
    fn is_only_reserved(&self) -> bool {
        self.running.is_empty() && self.running.open > 0 && self.log.committed.is_empty()
    }
}

impl Journal {
    /// Opens a journal over `home`, whose log is at `place` on `log`. `log` is `home` or another
    /// store whose patches are in the same graph. Both must obey befores.
    ///
    /// # Errors
    /// The log's superblock cannot be read or is invalid; the log is not empty; its blocks
    /// differ in size from those of `home`.
    ///
    /// # Panics
    /// If the stores' patches are in different graphs.
    pub fn open(
        home: Arc<dyn Store>,
        log: Arc<dyn Store>,
        place: LogBlocks,
        options: JournalOptions,
    ) -> Result<Self, JournalError> {
        Ok(Self::start(Shared::open(home, log, place, options)?))
    }

    fn start(shared: Shared) -> Self {
        let shared = Arc::new(shared);
        let committer = shared.options.interval.map(|interval| {
            let shared = shared.clone();
            std::thread::spawn(move || shared.commit_old(interval))
        });
        Self { shared, committer }
    }

    /// Which changes are logged.
    pub fn mode(&self) -> Mode {
        self.shared.options.mode
    }

    /// The counters.
    pub fn stats(&self) -> JournalStats {
        let state = self.shared.state.lock();
        JournalStats {
            capacity: state.log.capacity(),
            used: state.log.used(),
            ..state.stats
        }
    }

    /// Ends the running transaction. Returns before it is durable.
    ///
    /// # Errors
    /// An earlier write has failed.
    pub fn commit(&self) -> Result<(), StoreError> {
        self.shared.commit(&mut self.shared.state.lock())
    }

    /// Writes everything home and leaves an empty log, as at unmount. Waits for operations
    /// under way and for those that begin meanwhile.
    ///
    /// # Errors
    /// A write has failed, now or earlier.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        self.shared.checkpoint()
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.due.notify_all();
        if let Some(committer) = self.committer.take() {
            // A thread that panicked has printed its message.
            let _ = committer.join();
        }
    }
}

impl Shared {
    fn open(
        home: Arc<dyn Store>,
        log: Arc<dyn Store>,
        place: LogBlocks,
        options: JournalOptions,
    ) -> Result<Self, JournalError> {
        assert_eq!(
            home.graph(),
            log.graph(),
            "edges lead from home to the log: one graph holds both"
        );
        if home.block_bytes() != log.block_bytes() {
            return Err(JournalError::BlockSizes {
                home: home.block_bytes(),
                log: log.block_bytes(),
            });
        }
        place.check(log.blocks())?;
        let mut superblock = {
            let block = log.read(place.lba(0))?;
            Super::parse(&block, place.blocks())?
        };
        if superblock.start() != 0 {
            return Err(JournalError::NeedsRecovery);
        }
        superblock.use_our_features(home.blocks() > u64::from(u32::MAX));
        let codec = superblock.codec();
        let log_state = LogRing::new(superblock.first(), superblock.end(), superblock.sequence());
        let capacity = log_state.capacity();
        let per_block = codec.revokes_per_block() as u32;
        // Copies that left the log are revoked too until the superblock with the new tail is
        // durable.
        let revoke_blocks = (2 * u64::from(capacity)).div_ceil(u64::from(per_block)) as u32;
        let wait = home.empty(&[], true);
        let hold = hold_for(&*home, wait);
        let running = Running::new(hold, wait, options.mode == Mode::Ordered);
        let mut shared = Self {
            home,
            log,
            place,
            codec,
            options,
            revoke_blocks,
            max_op_blocks: 0,
            state: Mutex::new(State {
                running,
                log: log_state,
                superblock,
                direct: HashSet::new(),
                direct_limit: 1024,
                closing: false,
                stopping: false,
                last_commit_seconds: 0,
                stats: JournalStats::default(),
            }),
            changed: Condvar::new(),
            due: Condvar::new(),
        };
        let fits = |blocks: &u32| shared.has_room_for(*blocks as usize, 0, capacity);
        shared.max_op_blocks = (0..=capacity).rev().find(fits).unwrap_or(0);
        if shared.max_op_blocks == 0 {
            return Err(JournalError::Superblock {
                what: "no room for a transaction",
            });
        }
        Ok(shared)
    }

    /// Most blocks of the log that a transaction of `blocks` home blocks takes (J5).
    fn log_blocks(&self, blocks: usize) -> u64 {
        let descriptors = blocks.div_ceil(self.codec.tags_per_descriptor());
        blocks as u64 + descriptors as u64 + u64::from(self.revoke_blocks) + 1
    }

    /// Whether a transaction of `blocks` home blocks fits `free` blocks of the log and the cache (J5).
    fn has_room_for(&self, blocks: usize, held: usize, free: u32) -> bool {
        self.log_blocks(blocks) <= u64::from(free) && self.fits_cache(blocks, held)
    }

    /// Whether it fits the cache, which holds its blocks, its operations' reservations, its copies, and `held` blocks
    /// that it has changed and freed.
    fn fits_cache(&self, blocks: usize, held: usize) -> bool {
        3 * self.log_blocks(blocks) + held as u64 <= u64::from(self.home.max_op_blocks())
    }

    // --- operations -----------------------------------------------------------------

    fn begin(&self, blocks: u32, caller: Caller) -> Result<Op, StoreError> {
        if blocks > self.max_op_blocks {
            return Err(StoreError::TooLarge {
                blocks,
                what: "journal",
                limit: self.max_op_blocks,
            });
        }
        let mut state = self.state.lock();
        loop {
            if let Some(error) = self.home.failure() {
                return Err(StoreError::Failed(error));
            }
            if state.closing {
                self.changed.wait(&mut state);
                continue;
            }
            let blocks = blocks as usize;
            let running = &state.running;
            let wanted = running.blocks.len() + running.reserved + blocks;
            // A transaction of several operations takes at most a quarter of the log. The new
            // operation's reservation, a worst case, does not count here. Otherwise a commit
            // would often write blocks that the next operation changes again.
            let (held, most) = (running.held, (state.log.capacity() / 4).max(1));
            // A commit is all that gives back the room of freed blocks.
            let large = !self.has_room_for(wanted - blocks, held, most)
                || held > 0 && !self.fits_cache(wanted, held);
            if !running.is_empty() && (large || self.home.is_crowded()) {
                self.commit(&mut state)?;
            } else if self.has_room_for(wanted, held, state.log.free()) {
                break;
            } else if state.is_only_reserved() {
                // No commit frees this room: it is reserved for the operations under way.
                self.changed.wait(&mut state);
            } else {
                self.make_room(&mut state)?;
            }
        }
        state.running.open += 1;
        state.running.reserved += blocks as usize;
        state.running.promised += blocks as usize;
        drop(state);
        // This waits for room in the cache. A commit never does: there is room for its copies (J5).
        let begun = self.home.begin(blocks, caller);
        if begun.is_err() {
            self.leave(blocks);
        }
        begun
    }

    fn end(&self, op: Op) {
        let blocks = op.token as u32;
        self.home.end(op);
        self.leave(blocks);
    }

    fn leave(&self, blocks: u32) {
        let mut state = self.state.lock();
        state.running.open -= 1;
        state.running.reserved -= blocks as usize;
        drop(state);
        self.changed.notify_all();
    }

    /// Whether a change goes through the log.
    fn must_log(&self, state: &State, lba: Lba, content: Content, befores: &[Before]) -> bool {
        if self.options.mode == Mode::Full || content == Content::Metadata {
            return true;
        }
        let running = &state.running;
        // J6: replay would write the log's copy of this block. And until the transaction that
        // freed the block commits, a crash state may contain the block's old use.
        if running.blocks.contains_key(&lba)
            || running.emptied.contains(&lba)
            || matches!(state.log.marks.get(&lba), Some(Mark::Logged(_)))
        {
            return true;
        }
        // The data must not wait for a commit that waits for them.
        let befores: Vec<PatchId> = befores.iter().map(|b| b.patch).collect();
        !befores.is_empty() && self.home.waits_for(&befores, running.hold)
    }

    fn change_logged(
        &self,
        state: &mut State,
        op: &Op,
        (lba, content, change): (Lba, Content, Change<'_>),
        befores: &[Before],
    ) -> Result<Patched, StoreError> {
        let is_group = |before: &Before| before.rule == Rule::GroupAfterGroup;
        if befores.iter().any(is_group) && !hit(Bug::GroupBeforeData) {
            self.order_data(state);
        }
        let running = &mut state.running;
        let known = running.blocks.contains_key(&lba);
        if !known && running.blocks.len() >= running.promised {
            return Err(StoreError::TooLarge {
                blocks: running.blocks.len() as u32 + 1,
                what: "reservation",
                limit: running.promised as u32,
            });
        }
        let hold = Before {
            patch: running.hold,
            rule: Rule::LogBeforeHome,
        };
        let patched = self.home.change(op, lba, content, change, &[hold])?;
        // All changes of the transaction become durable at once, so one id stands for them.
        // It differs from the id of an older transaction's change in the same patch, since a
        // replay can restore the older change alone.
        let merged = std::mem::replace(&mut running.touched, true);
        let id = running.hold;
        running.freed.remove(&lba);
        let patches = running.blocks.entry(lba).or_default();
        if !patches.contains(&patched.id) {
            patches.push(patched.id);
        }
        Ok(Patched { id, merged })
    }

    fn change_direct(
        &self,
        state: &mut State,
        op: &Op,
        (lba, content, change): (Lba, Content, Change<'_>),
        befores: &[Before],
    ) -> Result<Patched, StoreError> {
        let mut needed: Vec<Before> = Vec::new();
        let commit_of = |patch, rule| Before { patch, rule };
        for before in befores {
            if before.rule == Rule::GroupAfterGroup && hit(Bug::GroupLostByData) {
                continue;
            }
            if state.direct.contains(&before.patch) || before.rule == Rule::GroupAfterGroup {
                needed.push(*before);
            } else if self.home.is_pending(before.patch)
                && let Some(newest) = state.log.committed.back()
            {
                // The before is logged, so it is durable once its transaction is committed.
                needed.push(commit_of(newest.commit, before.rule));
            }
        }
        if let Some(Mark::Freed(sequence)) = state.log.marks.get(&lba)
            && let Some(freed) = state.log.find(*sequence)
        {
            needed.push(commit_of(freed.commit, Rule::NullifyBeforeReuse));
        }
        if state.running.ordered && hit(Bug::DataAfterCommit) {
            needed.push(commit_of(state.running.hold, Rule::LogBeforeHome));
            let patched = self.home.change(op, lba, content, change, &needed)?;
            state.direct.insert(patched.id);
            return Ok(patched);
        }
        let patched = self.home.change(op, lba, content, change, &needed)?;
        if state.direct.insert(patched.id) {
            if state.running.ordered {
                self.precede_commit(&state.running, patched.id);
            }
            if state.direct.len() > state.direct_limit {
                self.prune_direct(state);
            }
        } else if state.running.ordered {
            self.precede_commit(&state.running, patched.id);
        }
        Ok(patched)
    }

    /// Makes the commit of the running transaction wait for a change of data.
    fn precede_commit(&self, running: &Running, data: PatchId) {
        let before = Before {
            patch: data,
            rule: Rule::DataBeforeCommit,
        };
        self.home.add_before(running.wait, before);
    }

    /// Makes the running transaction ordered, also in mode `Metadata`.
    fn order_data(&self, state: &mut State) {
        if state.running.ordered {
            return;
        }
        state.running.ordered = true;
        self.prune_direct(state);
        for &data in &state.direct {
            // Data that have become part of the transaction will be in the log.
            if !self.home.waits_for(&[data], state.running.hold) {
                self.precede_commit(&state.running, data);
            }
        }
    }

    fn prune_direct(&self, state: &mut State) {
        state.direct.retain(|&id| self.home.is_pending(id));
        state.direct_limit = (2 * state.direct.len()).max(1024);
    }

    fn freed(&self, op: &Op, lba: Lba, unreachable: bool) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let marked = state.log.marks.contains_key(&lba);
        let running = &mut state.running;
        let was_changed = running.blocks.remove(&lba).is_some();
        // A block that this transaction both allocated and freed needs no write, unless an
        // older transaction used it.
        let nobodys = unreachable && !marked && !running.emptied.contains(&lba);
        if !nobodys {
            running.held += usize::from(was_changed);
            if !hit(Bug::ForgetEmptied) {
                running.emptied.insert(lba);
            }
            if marked || self.options.mode != Mode::Full {
                running.freed.insert(lba);
            }
        }
        // A change that a replay could restore must not be cancelled.
        self.home.freed(op, lba, &[], nobodys)
    }
}

/// Makes the patch for which a transaction's home changes wait. `wait`: the patch for which
/// its commit waits.
fn hold_for(home: &dyn Store, wait: PatchId) -> PatchId {
    let before = Before {
        patch: wait,
        rule: Rule::DataBeforeCommit,
    };
    home.empty(&[before], true)
}

impl StoreLayer for Journal {
    type Below = dyn Store;

    fn below(&self) -> &(dyn Store + 'static) {
        &*self.shared.home
    }

    fn max_op_blocks(&self) -> u32 {
        self.shared.max_op_blocks
    }

    fn is_atomic(&self) -> bool {
        true
    }

    fn begin(&self, blocks: u32, caller: Caller) -> Result<Op, StoreError> {
        self.shared.begin(blocks, caller)
    }

    fn end(&self, op: Op) {
        self.shared.end(op);
    }

    fn change(
        &self,
        op: &Op,
        lba: Lba,
        content: Content,
        change: Change<'_>,
        befores: &[Before],
    ) -> Result<Patched, StoreError> {
        let shared = &*self.shared;
        if !crate::store::check_change(change, shared.home.block_bytes()) {
            // Read the block before the lock is taken. An attempt stops here, before it changes
            // the transaction. All other reads belong to commits, which end before an operation
            // begins.
            drop(shared.home.read(lba)?);
        }
        let mut state = shared.state.lock();
        let what = (lba, content, change);
        if shared.must_log(&state, lba, content, befores) {
            shared.change_logged(&mut state, op, what, befores)
        } else {
            shared.change_direct(&mut state, op, what, befores)
        }
    }

    fn freed(
        &self,
        op: &Op,
        lba: Lba,
        _befores: &[Before],
        unreachable: bool,
    ) -> Result<(), StoreError> {
        self.shared.freed(op, lba, unreachable)
    }

    fn sync(&self, patches: &[PatchId]) -> Result<(), StoreError> {
        self.shared.sync(patches)
    }

    fn sync_all(&self) -> Result<(), StoreError> {
        self.shared.sync_all()
    }
}
