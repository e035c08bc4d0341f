//! One operation's changes, and their atomic commit.
//!
//! An operation states its changes in three classes:
//!
//! - **visible**: [`Tx::set`], [`Tx::edit`]. All of them appear in one atomic step.
//! - **hidden**: [`Tx::hide`]. Bytes to which no committed structure leads (an inode or
//!   an entry in the making). Stored in place where the mode allows, else visible.
//! - **times**: [`Tx::time`]. Each is old or new by itself where the mode allows
//!   (3.3.4), else visible. [`Tx::time_first`] is durable before the others.
//!
//! # Order
//! 1. Hidden bytes and copies are stored while the trees are crawled. A fence makes
//!    them durable. *Rule: initialise before point.*
//! 2. Neutral stores (a taller tree, a zeroed block in a hole) change the tree but not
//!    its contents. A fence before and after orders them with 1 and with the commit.
//!    *Rule: initialise before point.*
//! 3. **The commit**: one aligned store, or the log's header, or the two super blocks.
//!    The times follow, then a fence. *Rule: data before commit.*
//!    A tree that was cut may then get a lower root, by a store and a fence of its own.
//! 4. Replaced blocks become free. *Rule: nullify before reuse.*
//!
//! # The commit point
//! There is one. The edits of the operation decide which:
//!
//! - *one edit* inside a valid word: that word, with no crawl.
//! - *logged*: some edits go through the redo log, and the others are hidden, past the end
//!   of their tree. No crawl may offer a word or move an inode.
//! - *alone*, which excludes *logged*: the edits are of one file and leave the inode file
//!   unchanged. The crawl of the file has [`Right::Word`], and a word that it offers is
//!   the point.
//! - else the crawl of the inode file yields the point, and files are changed by copies.
//!
//! *Neutral* stores may accompany the last three. They are not part of the point, and
//! precede it.
//!
//! A transaction that is dropped before 3 has changed nothing. It frees the blocks that it
//! took once its invisible stores are durable, since others skip a store of an equal value.

use crate::crawl::{Crawl, Right, RootOutcome, merge};
use crate::error::{Fault, Res};
use crate::format::{BLOCK, BlockNo, HeightAddr, INODE, RootRecord, at};
use crate::fs::TreeLock;
use crate::log::{Records, Slot};
use crate::seeded::{Bug, hit};
use crate::volume::{Dropped, Tree, Volume};
use medium::{LINE_BYTES, Pmem, Rule};
use smallvec::SmallVec;
use std::sync::atomic::Ordering::SeqCst;
use vfs::{Errno, Ino};
use zerocopy::IntoBytes;

/// The number that stands for the inode file as the tree of an edit.
pub(crate) const INODE_FILE: Ino = Ino(0);

/// Below this length, bytes go through the cache: streaming part of a line is slow.
const STREAM_FROM: usize = 256;

/// The effect of an edit on its range of bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum What<'a> {
    /// Stores these bytes.
    Bytes(&'a [u8]),
    /// Stores one aligned word.
    Word(u64),
    /// Stores zeros where a leaf is; a hole stays a hole.
    Zeros,
    /// Removes the leaves, which then read as zeros. Whole blocks only.
    Hole,
    /// Adds a zeroed leaf where there is none.
    Reserve,
    /// Adds a leaf with any contents where there is none. Whole blocks beyond the end only.
    Blank,
}

/// A change of the bytes `start..end` of a tree: a file's, or [`INODE_FILE`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edit<'a> {
    pub tree: Ino,
    pub start: u64,
    pub end: u64,
    pub what: What<'a>,
}

/// Edits; sorted by tree and start once they are staged.
pub(crate) type Edits<'a> = SmallVec<[Edit<'a>; 4]>;

/// The store that turns the whole operation from not done to done.
enum Point<'v> {
    /// Nothing visible changes.
    None,
    /// One aligned word.
    Word { addr: u64, value: u64 },
    /// A record of the redo log: its slot, the header that commits the payload already in the
    /// slot, and the stores of the record.
    Log {
        slot: Slot<'v>,
        header: u64,
        records: Records,
    },
    /// Both super blocks, with this root record.
    Supers(BlockNo),
}

/// Inodes that get a new root over the same contents: number, byte offset, old root, new root.
type Roots = SmallVec<[(Ino, u64, HeightAddr, HeightAddr); 2]>;

/// The edit of an inode that gets a new root.
fn new_root<'a>(ino: Ino, ha: HeightAddr) -> Edit<'a> {
    let start = (ino.0 - 1) * INODE + at::HA;
    Edit {
        tree: INODE_FILE,
        start,
        end: start + 8,
        what: What::Word(ha.0),
    }
}

/// Blocks that an operation takes or frees.
type Blocks = SmallVec<[BlockNo; 4]>;

/// How a commit changed the number of blocks of each tree.
pub(crate) type Deltas = SmallVec<[(Ino, i64); 2]>;

/// Stores on their way to the medium.
pub(crate) struct Stores<'v, P: Pmem> {
    pm: &'v P,
    /// Lines stored to through the cache and not yet flushed: first and last of each run.
    dirty: SmallVec<[(u64, u64); 8]>,
    /// A write-back has begun that a fence must wait for.
    unfenced: bool,
}

impl<'v, P: Pmem> Stores<'v, P> {
    #[inline]
    pub fn new(vol: &'v Volume<P>) -> Self {
        Self {
            pm: &vol.pm,
            dirty: SmallVec::new(),
            unfenced: false,
        }
    }

    /// Stores bytes in place.
    #[inline(always)] // with a constant length it is a few instructions
    pub fn store(&mut self, addr: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.pm.store(addr, bytes);
        self.rely_on(addr, bytes.len() as u64);
    }

    /// Has these bytes flushed, even if another operation or process stored them. A killed
    /// server may have left bytes that were read in the caches only. A store that relies on
    /// them needs them durable.
    #[inline(always)]
    pub fn rely_on(&mut self, addr: u64, len: u64) {
        let (first, last) = (addr / LINE_BYTES, (addr + len - 1) / LINE_BYTES);
        match self.dirty.last_mut() {
            // Neighbouring fields share a line: flush it once.
            Some(run) if run.0 <= first && first <= run.1 => run.1 = run.1.max(last),
            _ => self.dirty.push((first, last)),
        }
    }

    /// Stores bytes that will not be read soon, or many.
    pub fn fill(&mut self, addr: u64, bytes: &[u8]) {
        if bytes.len() < STREAM_FROM {
            self.store(addr, bytes);
        } else {
            self.pm.store_nt(addr, bytes);
            self.unfenced = true;
        }
    }

    /// Stores a word, as the narrowest aligned store that covers what changes.
    #[inline]
    pub fn put_word(&mut self, addr: u64, value: u64) -> Res<()> {
        let changed = self.pm.load(addr)? ^ value;
        if changed == 0 {
            if !hit(Bug::AbortUnflushed) {
                self.rely_on(addr, 8);
            }
            return Ok(());
        }
        let value = value.to_le_bytes();
        let (first, last) = (
            changed.trailing_zeros() as usize / 8,
            7 - changed.leading_zeros() as usize / 8,
        );
        match first ^ last {
            0 => self.store(addr + first as u64, &value[first..=first]),
            1 => self.store(addr + (first & 6) as u64, &value[first & 6..][..2]),
            2..4 => self.store(addr + (first & 4) as u64, &value[first & 4..][..4]),
            _ => self.store(addr, &value),
        }
        Ok(())
    }

    /// The one store that commits.
    #[inline]
    pub fn commit_word(&mut self, addr: u64, value: u64) -> Res<()> {
        if hit(Bug::CommitByMemcpy) {
            for (i, byte) in value.to_le_bytes().iter().enumerate() {
                self.store(addr + i as u64, &[*byte]);
            }
            return Ok(());
        }
        self.put_word(addr, value)?;
        if hit(Bug::NoFlushOfCommit) {
            self.dirty.pop();
        }
        Ok(())
    }

    /// Starts to write back all stores so far.
    #[inline]
    pub fn flush(&mut self) {
        for (first, last) in &self.dirty {
            let lines = last - first + 1;
            self.pm.flush(first * LINE_BYTES, lines * LINE_BYTES);
            self.unfenced = true;
        }
        self.dirty.clear();
    }

    /// Makes all stores so far durable.
    pub fn barrier(&mut self, rule: Rule) -> Res<()> {
        self.flush();
        if std::mem::take(&mut self.unfenced) {
            self.pm.fence(rule)?;
        }
        Ok(())
    }

    /// Gives up the flushes: after an error nothing can be promised.
    fn forget(&mut self) {
        self.dirty.clear();
    }
}

/// A transaction: the changes of one operation.
pub(crate) struct Tx<'v, 'a, P: Pmem> {
    pub vol: &'v Volume<P>,
    lock: TreeLock,
    edits: Edits<'a>,
    times: SmallVec<[(Ino, u64, u64); 4]>,
    /// The time that must be durable before the others are stored.
    first_time: Option<(Ino, u64, u64)>,
    /// Byte offsets of inodes, as far as they were looked up.
    homes: SmallVec<[(Ino, u64); 2]>,
    /// The commit will move inodes.
    moves_inodes: bool,
    /// New size of the inode file.
    root_size: Option<u64>,
    /// Free blocks that this operation must leave.
    leaves: u64,
    taken: Blocks,
    freed: Blocks,
    /// Subtrees to which no pointer leads once this operation has committed, with their trees.
    pub(crate) dropped: SmallVec<[(Ino, Dropped); 2]>,
    /// A lower root over the leaves that a tree keeps, stored after the commit: inode, new
    /// word.
    lower: Option<(Ino, HeightAddr)>,
    stores: Stores<'v, P>,
    pub(crate) neutral: SmallVec<[(u64, u64); 2]>,
}

impl<'v, 'a, P: Pmem> Tx<'v, 'a, P> {
    #[inline]
    pub fn new(vol: &'v Volume<P>, lock: TreeLock) -> Self {
        Self {
            vol,
            lock,
            edits: SmallVec::new(),
            times: SmallVec::new(),
            first_time: None,
            homes: SmallVec::new(),
            moves_inodes: false,
            root_size: None,
            leaves: vol.reserve,
            taken: Blocks::new(),
            freed: Blocks::new(),
            dropped: SmallVec::new(),
            lower: None,
            stores: Stores::new(vol),
            neutral: SmallVec::new(),
        }
    }

    // --- the changes of an operation ---

    /// A visible change of a tree's bytes.
    #[inline]
    pub fn edit(&mut self, tree: Ino, start: u64, end: u64, what: What<'a>) {
        if start < end {
            self.edits.push(Edit {
                tree,
                start,
                end,
                what,
            });
        }
    }

    /// A visible change of one word of an inode.
    pub fn set(&mut self, ino: Ino, field: u64, value: u64) {
        let at = (ino.0 - 1) * INODE + field;
        self.edit(INODE_FILE, at, at + 8, What::Word(value));
    }

    /// A change of a time.
    #[inline]
    pub fn time(&mut self, ino: Ino, field: u64, value: i64) {
        if self.vol.rules.times {
            self.times.push((ino, field, value as u64));
        } else {
            self.set(ino, field, value as u64);
        }
    }

    /// A change of a time that must be durable before the other times are stored.
    pub fn time_first(&mut self, ino: Ino, field: u64, value: i64) {
        if self.vol.rules.times {
            self.first_time = Some((ino, field, value as u64));
        } else {
            self.set(ino, field, value as u64);
        }
    }

    /// A change of bytes at `addr`, to which no committed structure leads.
    pub fn hide(&mut self, addr: u64, bytes: &[u8]) {
        self.store(addr, bytes);
    }

    /// A hidden change of one word, if it differs.
    pub fn hide_word(&mut self, addr: u64, value: u64) -> Res<()> {
        self.put_word(addr, value)
    }

    /// The inode file gets this size.
    pub fn grow_inode_file(&mut self, size: u64) {
        self.root_size = Some(size);
    }

    /// Lets this operation take the blocks that are kept back for changes that free space. It
    /// must free at least as many blocks as it takes.
    pub fn use_reserve(&mut self) {
        self.leaves = 0;
    }

    /// Takes a block for this operation. It is given back if the operation does not commit. The
    /// check precedes the take without a lock: in modes that keep blocks back, no other
    /// operation takes one now ([`crate::volume::reserve`]).
    pub fn take(&mut self) -> Res<BlockNo> {
        if self.vol.map.free() <= self.leaves {
            return Err(Errno::NOSPC.into());
        }
        let block = BlockNo(self.vol.map.take().ok_or(Errno::NOSPC)?);
        self.taken.push(block);
        Ok(block)
    }

    /// Frees a block once this operation has committed.
    pub fn free(&mut self, block: BlockNo) {
        if hit(Bug::ReuseBeforeCommit) {
            self.vol.map.release(block.0);
            return;
        }
        self.freed.push(block);
    }

    /// Frees a subtree of `tree` once this operation has committed. Its blocks are not listed,
    /// which would take unbounded memory: they are found again when they are freed.
    pub fn drop_tree(&mut self, tree: Ino, dropped: Dropped) -> Res<()> {
        if hit(Bug::ReuseBeforeCommit) {
            return self.vol.release(dropped, &mut 0);
        }
        self.dropped.push((tree, dropped));
        Ok(())
    }

    /// Gives the tree of `ino`, which this operation cuts, a lower root. All its leaves are
    /// below `root`. The caller drops the nodes above.
    ///
    /// Where the commit copies, the new root is part of it. Otherwise it is a store of its own,
    /// once the commit is durable: a lower tree with the old size has lost its end. *Rule:
    /// nullify before reuse*, reversed.
    pub fn lower(&mut self, ino: Ino, root: HeightAddr) {
        if self.vol.rules.short_circuit {
            self.lower = Some((ino, root));
        } else {
            self.set(ino, at::HA, root.0);
        }
    }

    /// Fails, for a retry under the exclusive lock, if inodes must not move now.
    pub fn may_move(&mut self, tree: Ino) -> Res<()> {
        if tree == INODE_FILE {
            if self.lock == TreeLock::Shared {
                return Err(Fault::Exclusive);
            }
            self.moves_inodes = true;
        }
        Ok(())
    }

    /// Records the byte offset of an inode that the caller has looked up.
    #[inline]
    pub fn at(&mut self, ino: Ino, addr: u64) {
        self.homes.push((ino, addr));
    }

    /// Byte offset of an inode.
    #[inline]
    pub fn home(&mut self, ino: Ino) -> Res<u64> {
        if let Some((_, addr)) = self.homes.iter().find(|(i, _)| *i == ino) {
            return Ok(*addr);
        }
        let addr = self.vol.inode_addr(ino)?;
        self.homes.push((ino, addr));
        Ok(addr)
    }

    // --- stores ---

    /// Stores bytes in place.
    pub fn store(&mut self, addr: u64, bytes: &[u8]) {
        self.stores.store(addr, bytes);
    }

    /// Has bytes flushed that another operation may have stored.
    pub fn rely_on(&mut self, addr: u64, len: u64) {
        self.stores.rely_on(addr, len);
    }

    /// Stores bytes that will not be read soon, or many.
    pub fn fill(&mut self, addr: u64, bytes: &[u8]) {
        self.stores.fill(addr, bytes);
    }

    /// Stores a word, as the narrowest aligned store that covers what changes.
    pub fn put_word(&mut self, addr: u64, value: u64) -> Res<()> {
        self.stores.put_word(addr, value)
    }

    /// Makes all stores so far durable.
    fn barrier(&mut self, rule: Rule) -> Res<()> {
        self.stores.barrier(rule)
    }

    // --- commit ---

    /// Commits the operation. On an error before the commit point nothing has changed; after
    /// one later, the volume accepts no more changes.
    pub fn commit(mut self) -> Res<Deltas> {
        let mut deltas = Deltas::new();
        let point = self.stage(&mut deltas)?;
        if let Err(e) = self.finish(&point) {
            // The commit may or may not be durable. Nothing of it may be reused: neither blocks
            // nor the log slot that `point` still holds.
            self.vol.failed.store(true, SeqCst);
            self.taken.clear();
            self.stores.forget();
            return Err(e);
        }
        self.taken.clear();
        for block in self.freed.drain(..) {
            self.vol.map.release(block.0);
        }
        self.release_dropped(&mut deltas);
        Ok(deltas)
    }

    /// Step 4 for subtrees. A read error does not undo the operation: it is logged, and the
    /// blocks stay taken until the next mount.
    fn release_dropped(&mut self, deltas: &mut Deltas) {
        for (ino, dropped) in std::mem::take(&mut self.dropped) {
            let mut freed = 0;
            if hit(Bug::DroppedTreeLeaks) {
                self.vol.map.release(dropped.block.0);
                freed = 1;
            } else if let Err(e) = self.vol.release(dropped, &mut freed) {
                e.errno();
            }
            deltas.push((ino, -(freed as i64)));
        }
    }

    /// Steps 1 and 2: everything but the commit point.
    fn stage(&mut self, deltas: &mut Deltas) -> Res<Point<'v>> {
        let mut edits = std::mem::take(&mut self.edits);
        edits.sort_by_key(|e| (e.tree, e.start));
        if let [only] = edits.as_slice()
            && let Some((addr, value)) = self.word_of(only)?
        {
            return Ok(Point::Word { addr, value });
        }
        let logged = self.take_for_log(&mut edits)?;
        let (inodes, files) = edits.split_at(edits.partition_point(|e| e.tree == INODE_FILE));
        let one_tree = files.iter().all(|e| e.tree == files[0].tree);
        let alone = self.vol.rules.short_circuit
            && one_tree
            && inodes.is_empty()
            && logged.is_empty()
            && self.root_size.is_none();
        let right = if alone { Right::Word } else { Right::Copy };
        let mut inodes = Edits::from_slice(inodes);
        let mut point = Point::None;
        let mut roots = Roots::new();
        for group in files.chunk_by(|a, b| a.tree == b.tree) {
            let before = self.taken.len() as i64 - self.freed.len() as i64;
            if let Some((addr, value)) = self.stage_file(group, right, &mut inodes, &mut roots)? {
                point = Point::Word { addr, value };
            }
            let after = self.taken.len() as i64 - self.freed.len() as i64;
            deltas.push((group[0].tree, after - before));
        }
        self.stage_roots(roots, &mut inodes)?;
        if !inodes.is_empty() || self.root_size.is_some() {
            inodes.sort_by_key(|e| e.start);
            point = self.stage_inode_file(&inodes)?;
        }
        if !logged.is_empty() {
            if !matches!(point, Point::None) {
                return Err(Fault::Corrupt(
                    "a logged change has a second commit point".into(),
                ));
            }
            point = self.stage_log(logged)?;
        }
        Ok(point)
    }

    /// The word that a crawl would offer for the only edit, if it lies inside one valid word of
    /// one leaf.
    fn word_of(&mut self, edit: &Edit<'a>) -> Res<Option<(u64, u64)>> {
        let in_word = edit.start / 8 == (edit.end - 1) / 8;
        if !in_word || !self.vol.rules.short_circuit || self.root_size.is_some() {
            return Ok(None);
        }
        let word;
        let bytes = match edit.what {
            What::Bytes(bytes) => bytes,
            What::Word(value) => {
                word = value.to_le_bytes();
                &word
            }
            What::Zeros | What::Hole | What::Reserve | What::Blank => return Ok(None),
        };
        let tree = self.tree(edit.tree)?;
        let leaf = self.vol.leaf(&tree, edit.start / BLOCK)?;
        if leaf.is_null() || edit.end > tree.size {
            return Ok(None);
        }
        merge(&self.vol.pm, leaf.addr() + edit.start % BLOCK, bytes).map(Some)
    }

    /// A tree as it is before the operation.
    pub fn tree(&mut self, tree: Ino) -> Res<Tree> {
        match tree {
            INODE_FILE => self.vol.inode_file(),
            ino => self.home(ino).and_then(|addr| self.vol.tree(addr)),
        }
    }

    /// Crawls one file. Adds the changes of its inode to `inodes`. Returns a single word that
    /// commits everything, if there is one.
    fn stage_file(
        &mut self,
        edits: &[Edit<'a>],
        right: Right,
        inodes: &mut Edits<'a>,
        roots: &mut Roots,
    ) -> Res<Option<(u64, u64)>> {
        let ino = edits[0].tree;
        let addr = self.home(ino)?;
        let tree = self.vol.tree(addr)?;
        match Crawl::new(self, ino, tree.size).tree(&tree, edits, right)? {
            RootOutcome::Same => {}
            RootOutcome::Word { addr, value } => return Ok(Some((addr, value))),
            RootOutcome::Hidden(ha) => self.put_word(addr + at::HA, ha.0)?,
            RootOutcome::Neutral(ha) => roots.push((ino, addr, tree.ha, ha)),
            RootOutcome::Visible(ha) => inodes.push(new_root(ino, ha)),
        }
        Ok(None)
    }

    /// Stores new roots over the same contents on their own, before the commit, if at most one
    /// word of the inode file changes: the inodes then stay where they are. Otherwise the roots
    /// become edits of the inode file.
    fn stage_roots(&mut self, roots: Roots, inodes: &mut Edits<'a>) -> Res<()> {
        let stay = match inodes.as_slice() {
            [] => true,
            [one] => matches!(one.what, What::Word(_)) && self.vol.rules.short_circuit,
            _ => false,
        };
        for (ino, addr, old, new) in roots {
            if !stay {
                inodes.push(new_root(ino, new));
                continue;
            }
            if hit(Bug::HeightAndRootApart) {
                let half = HeightAddr::new(new.height(), old.block());
                self.put_word(addr + at::HA, half.0)?;
            }
            self.neutral.push((addr + at::HA, new.0));
        }
        Ok(())
    }

    /// Crawls the inode file, and changes the root record and the super block if need be.
    fn stage_inode_file(&mut self, edits: &[Edit<'a>]) -> Res<Point<'v>> {
        let rules = self.vol.rules;
        let record = self.vol.root_record()?;
        let tree = self.vol.inode_file()?;
        let right = if rules.short_circuit && self.root_size.is_none() {
            Right::Word
        } else {
            Right::Copy
        };
        let mut new = tree;
        match Crawl::new(self, INODE_FILE, tree.size).tree(&tree, edits, right)? {
            RootOutcome::Same => {}
            RootOutcome::Word { addr, value } => return Ok(Point::Word { addr, value }),
            RootOutcome::Hidden(ha) => self.put_word(record, ha.0)?,
            RootOutcome::Neutral(ha) => self.neutral.push((record, ha.0)),
            RootOutcome::Visible(ha) => new.ha = ha,
        }
        new.size = self.root_size.unwrap_or(tree.size);
        match (new.ha != tree.ha, new.size != tree.size) {
            (false, false) => Ok(Point::None),
            (true, false) if rules.short_circuit => Ok(Point::Word {
                addr: record,
                value: new.ha.0,
            }),
            (false, true) if rules.short_circuit => Ok(Point::Word {
                addr: record + at::ROOT_SIZE,
                value: new.size,
            }),
            _ => {
                self.may_move(INODE_FILE)?;
                let block = self.take()?;
                let bytes = RootRecord {
                    ha: new.ha.0.into(),
                    size: new.size.into(),
                };
                self.fill(block.addr(), bytes.as_bytes());
                self.free(BlockNo(record / BLOCK));
                if rules.short_circuit {
                    Ok(Point::Word {
                        addr: at::SUPER_ROOT,
                        value: block.0,
                    })
                } else {
                    Ok(Point::Supers(block))
                }
            }
        }
    }

    /// Steps 2 and 3.
    fn finish(&mut self, point: &Point<'v>) -> Res<()> {
        if !hit(Bug::NoFenceBeforeCommit) {
            self.barrier(Rule::InitialiseBeforePoint)?;
        }
        if !self.neutral.is_empty() {
            for (addr, value) in std::mem::take(&mut self.neutral) {
                self.stores.commit_word(addr, value)?;
            }
            self.barrier(Rule::InitialiseBeforePoint)?; // durable before the commit
        }
        match point {
            Point::None => {}
            Point::Word { addr, value } => self.stores.commit_word(*addr, *value)?,
            Point::Log {
                slot,
                header,
                records,
            } => self.commit_log(slot, *header, records)?,
            Point::Supers(root) => self.commit_supers(*root)?,
        }
        if hit(Bug::LoweredAtOnce) {
            self.put_lower()?;
        }
        self.put_times()?;
        // Also nullify before reuse: replaced blocks are free from here on.
        self.barrier(Rule::DurableBeforeReturn)?;
        self.put_lower()?;
        self.barrier(Rule::NullifyBeforeReuse)
    }

    /// Stores a lower root. The commit after which it suffices is durable.
    fn put_lower(&mut self) -> Res<()> {
        if let Some((ino, root)) = self.lower.take() {
            let addr = self.home(ino)? + at::HA;
            self.stores.commit_word(addr, root.0)?;
        }
        Ok(())
    }

    /// Stores the times that are not part of the commit, each by itself.
    fn put_times(&mut self) -> Res<()> {
        if self.moves_inodes {
            self.homes.clear();
        }
        if let Some((ino, field, value)) = self.first_time.take() {
            let addr = self.home(ino)? + field;
            self.put_word(addr, value)?;
            if !hit(Bug::TimesAtOnce) {
                // A chosen time is stored after the change time, by which others notice it.
                self.barrier(Rule::GroupAfterGroup)?;
            }
        }
        for (ino, field, value) in std::mem::take(&mut self.times) {
            let addr = self.home(ino)? + field;
            self.put_word(addr, value)?;
        }
        Ok(())
    }

    /// The commit of shadow paging: stores the whole super block, to its copy and then in
    /// place. After a crash at any point one of the two is whole (`mount::root_of`).
    fn commit_supers(&mut self, root: BlockNo) -> Res<()> {
        let mut block = [0; BLOCK as usize];
        self.vol.pm.read(0, &mut block)?;
        for off in [at::SUPER_ROOT, at::SUPER_ROOT_COPY] {
            block[off as usize..off as usize + 8].copy_from_slice(&root.0.to_le_bytes());
        }
        self.fill(BLOCK, &block);
        self.barrier(Rule::CopyBeforeOverwrite)?;
        self.fill(0, &block);
        self.barrier(Rule::DurableBeforeReturn)?;
        Ok(())
    }

    /// Puts records into a slot of the redo log, whose header still marks it as empty.
    fn stage_log(&mut self, records: Records) -> Res<Point<'v>> {
        let slot = self.vol.log.slot();
        self.vol.usable()?; // the slot of a commit that failed must stay as it is
        let payload = crate::log::payload(records.iter().map(|(a, b)| (*a, &b[..])));
        self.store(slot.addr() + 8, &payload);
        let header = crate::log::header(&payload);
        Ok(Point::Log {
            slot,
            header,
            records,
        })
    }

    /// The commit of the redo log: stores the header, applies the records, and clears the
    /// header. The payload is durable before.
    fn commit_log(&mut self, slot: &Slot<'v>, header: u64, records: &Records) -> Res<()> {
        self.store(slot.addr(), &header.to_le_bytes());
        if !hit(Bug::ApplyBeforeLog) {
            self.barrier(Rule::LogBeforeHome)?; // the commit point
        }
        for (addr, bytes) in records {
            self.store(*addr, bytes);
        }
        self.barrier(Rule::HomeBeforeReclaim)?;
        self.store(slot.addr(), &0u64.to_le_bytes());
        self.put_times()?; // their order does not matter; here they cost no fence
        // The header is cleared before the lock is released: a later replay would undo the
        // stores of others.
        self.barrier(Rule::NullifyBeforeReuse)
    }

    /// In mode `log`: takes the edits that a log record covers out of `edits`, if that is
    /// cheaper than copies. Returns the stores of the record; empty for none.
    fn take_for_log(&mut self, edits: &mut Edits<'a>) -> Res<Records> {
        if !self.vol.rules.log || edits.is_empty() || self.root_size.is_some() {
            return Ok(Records::new());
        }
        let Some(plan) = crate::log::plan(self, edits)? else {
            return Ok(Records::new());
        };
        *edits = plan.rest;
        Ok(plan.records)
    }
}

impl<P: Pmem> Drop for Tx<'_, '_, P> {
    fn drop(&mut self) {
        // Invisible stores of this operation stay in place. They must be durable before its
        // blocks are free: a store of the next owner could otherwise lose against them.
        if !self.stores.dirty.is_empty() && hit(Bug::AbortUnflushed) {
            self.stores.forget();
        }
        if self.barrier(Rule::NullifyBeforeReuse).is_err() {
            self.vol.failed.store(true, SeqCst);
        }
        for block in self.taken.drain(..) {
            self.vol.map.release(block.0);
        }
    }
}
