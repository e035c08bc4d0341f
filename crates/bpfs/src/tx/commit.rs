//! The commit of a transaction; [`tx`](super) documents its steps.

use super::Tx;
use crate::crawl::{Crawl, Right, RootOutcome};
use crate::edit::{Edit, Edits, INODE_FILE, What};
use crate::error::{Fault, Res};
use crate::format::{BLOCK, BlockNo, HeightAddr, INODE, RootRecord, at};
use crate::log::{self, Records, Slot};
use crate::seeded::{Bug, hit};
use crate::staged::Deltas;
use crate::stores::Stores;
use medium::{Pmem, Rule};
use smallvec::SmallVec;
use vfs::Ino;
use zerocopy::IntoBytes;

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

impl<'v, 'a, P: Pmem> Tx<'v, 'a, P> {
    fn stores(&mut self) -> &mut Stores<'v, P> {
        &mut self.staged.stores
    }

    /// Commits the operation. On an error before the commit point nothing has changed; after
    /// one later, the volume accepts no more changes.
    pub(crate) fn commit(mut self) -> Res<Deltas> {
        let mut deltas = Deltas::new();
        let point = self.stage(&mut deltas)?;
        if let Err(e) = self.finish(&point) {
            self.staged.uncertain(); // before `point` releases the log slot
            return Err(e);
        }
        self.staged.committed(&mut deltas);
        Ok(deltas)
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
            let before = self.staged.balance();
            if let Some((addr, value)) = self.stage_file(group, right, &mut inodes, &mut roots)? {
                point = Point::Word { addr, value };
            }
            deltas.push((group[0].tree, self.staged.balance() - before));
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
        let at = leaf.addr() + edit.start % BLOCK;
        self.vol.merged(at, bytes).map(Some)
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
        match Crawl::new(&mut self.staged, ino, tree.size).tree(&tree, edits, right)? {
            RootOutcome::Same => {}
            RootOutcome::Word { addr, value } => return Ok(Some((addr, value))),
            RootOutcome::Hidden(ha) => self.stores().put_word(addr + at::HA, ha.0)?,
            RootOutcome::Neutral(ha) => roots.push((ino, addr, tree.ha, ha)),
            RootOutcome::Visible(ha) => inodes.push(new_root(ino, ha)),
        }
        Ok(None)
    }

    /// Stores new roots over the same contents on their own, before the commit, if at most one
    /// word of the inode file changes. The inodes then stay where they are. Otherwise the roots
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
                self.stores().put_word(addr + at::HA, half.0)?;
            }
            self.staged.neutral.push((addr + at::HA, new.0));
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
        match Crawl::new(&mut self.staged, INODE_FILE, tree.size).tree(&tree, edits, right)? {
            RootOutcome::Same => {}
            RootOutcome::Word { addr, value } => return Ok(Point::Word { addr, value }),
            RootOutcome::Hidden(ha) => self.stores().put_word(record, ha.0)?,
            RootOutcome::Neutral(ha) => self.staged.neutral.push((record, ha.0)),
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
                self.staged.may_move(INODE_FILE)?;
                let block = self.take()?;
                let bytes = RootRecord {
                    ha: new.ha.0.into(),
                    size: new.size.into(),
                };
                self.stores().fill(block.addr(), bytes.as_bytes());
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
            self.stores().barrier(Rule::InitialiseBeforePoint)?;
        }
        if !self.staged.neutral.is_empty() {
            for (addr, value) in std::mem::take(&mut self.staged.neutral) {
                self.stores().commit_word(addr, value)?;
            }
            self.stores().barrier(Rule::InitialiseBeforePoint)?; // durable before the commit
        }
        match point {
            Point::None => {}
            Point::Word { addr, value } => self.stores().commit_word(*addr, *value)?,
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
        self.stores().barrier(Rule::DurableBeforeReturn)?;
        self.put_lower()?;
        self.stores().barrier(Rule::NullifyBeforeReuse)
    }

    /// Stores a lower root. The commit after which it suffices is durable.
    fn put_lower(&mut self) -> Res<()> {
        if let Some((ino, root)) = self.lower.take() {
            let addr = self.home(ino)? + at::HA;
            self.stores().commit_word(addr, root.0)?;
        }
        Ok(())
    }

    /// Stores the times that are not part of the commit, each by itself.
    fn put_times(&mut self) -> Res<()> {
        if self.staged.moves_inodes {
            self.homes.clear();
        }
        if let Some((ino, field, value)) = self.first_time.take() {
            let addr = self.home(ino)? + field;
            self.stores().put_word(addr, value)?;
            if !hit(Bug::TimesAtOnce) {
                // A chosen time is stored after the change time, by which others notice it.
                self.stores().barrier(Rule::GroupAfterGroup)?;
            }
        }
        for (ino, field, value) in std::mem::take(&mut self.times) {
            let addr = self.home(ino)? + field;
            self.stores().put_word(addr, value)?;
        }
        Ok(())
    }

    /// The commit of shadow paging: stores the whole super block, to its copy and then in
    /// place. After a crash at any point one of the two is whole (`super_block::root_of`).
    fn commit_supers(&mut self, root: BlockNo) -> Res<()> {
        let mut block = [0; BLOCK as usize];
        self.vol.pm.read(0, &mut block)?;
        for off in [at::SUPER_ROOT, at::SUPER_ROOT_COPY] {
            block[off as usize..off as usize + 8].copy_from_slice(&root.0.to_le_bytes());
        }
        self.stores().fill(BLOCK, &block);
        self.stores().barrier(Rule::CopyBeforeOverwrite)?;
        self.stores().fill(0, &block);
        self.stores().barrier(Rule::DurableBeforeReturn)?;
        Ok(())
    }

    /// Puts records into a slot of the redo log, whose header still marks it as empty.
    fn stage_log(&mut self, records: Records) -> Res<Point<'v>> {
        let slot = self.vol.log.slot();
        self.vol.usable()?; // the slot of a commit that failed must stay as it is
        let payload = log::payload(records.iter().map(|(a, b)| (*a, &b[..])));
        self.stores().store(slot.addr() + 8, &payload);
        let header = log::header(&payload);
        Ok(Point::Log {
            slot,
            header,
            records,
        })
    }

    /// The commit of the redo log: stores the header, applies the records, and clears the
    /// header. The payload is durable before.
    fn commit_log(&mut self, slot: &Slot<'v>, header: u64, records: &Records) -> Res<()> {
        self.stores().store(slot.addr(), &header.to_le_bytes());
        if !hit(Bug::ApplyBeforeLog) {
            self.stores().barrier(Rule::LogBeforeHome)?; // the commit point
        }
        for (addr, bytes) in records {
            self.stores().store(*addr, bytes);
        }
        self.stores().barrier(Rule::HomeBeforeReclaim)?;
        self.stores().store(slot.addr(), &0u64.to_le_bytes());
        self.put_times()?; // their order does not matter; here they cost no fence
        // The header is cleared before the lock is released: a later replay would undo the
        // stores of others.
        self.stores().barrier(Rule::NullifyBeforeReuse)
    }

    /// In mode `log`: removes the edits that a log record covers from `edits`, if that is
    /// cheaper than copies. Returns the stores of the record, none if no record is used.
    fn take_for_log(&mut self, edits: &mut Edits<'a>) -> Res<Records> {
        if !self.vol.rules.log || edits.is_empty() || self.root_size.is_some() {
            return Ok(Records::new());
        }
        let Some(plan) = self.plan(edits)? else {
            return Ok(Records::new());
        };
        *edits = plan.rest;
        Ok(plan.records)
    }
}
