//! Runs of fragments: taking, growing, moving and freeing them.

use super::bytes::{Inode, field};
use super::{BITMAP, BLOCK, BLOCKS, FIRST_FRAGMENT, Fault, RESERVE, Toy, init, place};
use blockfs::{Allocated, FormatError, Freed, Heads, Piece, Result, Written};
use medium::block::Lba;
use patch::{Before, Change, Content, Op, PatchId, Rule};
use std::ops::Range;
use vfs::{Errno, FileType, Ino};

/// Pointers of an inode.
pub const RUNS: u64 = (BLOCK as u64 - field::RUNS as u64) / 4;

/// A run that is to be written.
struct Run<'a> {
    ino: Ino,
    number: u64,
    first: u64,
    /// Number of fragments before the write.
    had: u64,
    /// Number of fragments after the write.
    count: u64,
    /// The fragment that gets bytes, and the bytes.
    piece: Option<(u64, Piece<'a>)>,
}

impl Toy {
    /// Fragments of a full run.
    fn full(&self) -> u64 {
        self.kind.fragments
    }

    /// Bytes of the largest file.
    pub fn largest(&self) -> u64 {
        RUNS * self.full() * u64::from(BLOCK)
    }

    /// The number of fragments up to the last one of a file.
    pub fn end_of(&self, inode: &Inode) -> u64 {
        let last = (0..RUNS).rev().find(|run| inode.run(*run).1 > 0);
        last.map_or(0, |run| run * self.full() + inode.run(run).1)
    }

    pub fn fragment_of(&self, inode: &Inode, index: u64) -> Option<Lba> {
        if inode.get(field::TARGET_LEN) > 0 {
            return None;
        }
        let (first, count) = inode.run(index / self.full());
        let within = index % self.full();
        (within < count).then(|| Lba(first + within))
    }

    // --- the bitmap -------------------------------------------------------------

    pub fn counted(&self) -> Result<u64> {
        let map = self.store.read(BITMAP)?;
        Ok((FIRST_FRAGMENT..BLOCKS)
            .filter(|fragment| is_free(&map, *fragment))
            .count() as u64)
    }

    fn usable(&self) -> u64 {
        let state = self.state.lock();
        state
            .free
            .saturating_sub(if state.keeps_reserve { RESERVE } else { 0 })
    }

    /// Places where a full run fits.
    pub fn roomy(&self) -> Result<u64> {
        let map = self.store.read(BITMAP)?;
        let fits =
            |start: &u64| (*start..start + self.full()).all(|fragment| is_free(&map, fragment));
        Ok(self.starts().filter(fits).count() as u64)
    }

    fn starts(&self) -> impl Iterator<Item = u64> + use<> {
        let full = self.full();
        let first = FIRST_FRAGMENT.next_multiple_of(full);
        (first..=BLOCKS - full).step_by(full as usize)
    }

    /// Neighbouring free fragments within the place of a full run.
    fn find(&self, count: u64) -> Result<u64> {
        if self.usable() < count {
            return Err(FormatError::NoSpace);
        }
        let map = self.store.read(BITMAP)?;
        let within = |start: u64| start..=start + self.full() - count;
        let fits = |first: &u64| (*first..first + count).all(|fragment| is_free(&map, fragment));
        let found = self.starts().flat_map(within).find(fits);
        found.ok_or(FormatError::NoSpace)
    }

    fn flip(&self, op: &Op, fragments: &Range<u64>, befores: &[Before]) -> Result<PatchId> {
        // Runs do not cross a word.
        let at = fragments.start as u32 / 32 * 4;
        let mask = fragments.clone().map(|fragment| 1 << (fragment % 32)).sum();
        let change = Change::Flip { at, mask };
        Ok(self
            .store
            .change(op, BITMAP, Content::Metadata, change, befores)?
            .id)
    }

    fn take(&self, op: &Op, fragments: Range<u64>) -> Result<Vec<Allocated>> {
        let bit = self.flip(op, &fragments, &[])?;
        let mut state = self.state.lock();
        state.free = state.free.saturating_sub(fragments.end - fragments.start);
        let forget = self.has(Fault::ReusesAtOnce);
        let removed = |fragment| state.removed.get(&fragment).copied();
        let taken = fragments.map(|fragment| Allocated {
            lba: Lba(fragment),
            bit,
            reused_after: removed(fragment).filter(|_| !forget),
        });
        Ok(taken.collect())
    }

    /// Marks fragments as free, after the removal of the pointer to them.
    fn give(&self, op: &Op, fragments: Range<u64>, removal: PatchId) -> Result<()> {
        let gone = [Before {
            patch: removal,
            rule: Rule::NullifyBeforeReuse,
        }];
        self.flip(op, &fragments, &gone)?;
        let mut state = self.state.lock();
        state.free += fragments.end - fragments.start;
        for fragment in fragments {
            state.removed.insert(fragment, removal);
            self.store.freed(op, Lba(fragment), &gone, false)?;
        }
        Ok(())
    }

    // --- writing ----------------------------------------------------------------

    pub fn put(
        &self,
        op: &Op,
        ino: Ino,
        index: u64,
        piece: Piece<'_>,
        befores: &[Before],
    ) -> Result<Written> {
        let (number, within) = (index / self.full(), index % self.full());
        if number >= RUNS {
            return Err(FormatError::Limit(Errno::FBIG));
        }
        let inode = self.load(ino)?;
        let (first, had) = inode.run(number);
        let end = (number + 1) * self.full();
        let is_last = self.end_of(&inode) <= end && inode.size() <= end * u64::from(BLOCK);
        let count = if is_last {
            had.max(within + 1)
        } else {
            self.full()
        };
        if !self.kind.moves && count == had {
            let change = Change::Bytes {
                at: piece.at,
                bytes: piece.bytes,
            };
            let lba = Lba(first + within);
            let patched = self
                .store
                .change(op, lba, content(&inode), change, befores)?;
            return Ok(Written {
                patch: patched.id,
                filled: Heads::new(),
            });
        }
        if let Err(error) = self.check_room(&inode, index..index + 1) {
            if self.has(Fault::KeepsOnFailure) {
                let map = self.store.read(BITMAP)?;
                let free = (FIRST_FRAGMENT..BLOCKS).find(|fragment| is_free(&map, *fragment));
                free.map(|fragment| self.take(op, fragment..fragment + 1))
                    .transpose()?;
            }
            return Err(error);
        }
        let mut befores = befores.to_vec();
        let before_it = number * self.full() * u64::from(BLOCK) + 1;
        befores.extend(init(self.fill_last_run(op, ino, before_it)?));
        let run = Run {
            ino,
            number,
            first,
            had,
            count,
            piece: Some((within, piece)),
        };
        self.write_run(op, &run, &befores)
    }

    /// Fills the last run of a file that grows to `size` bytes, unless it then ends within that
    /// run.
    pub fn fill_last_run(&self, op: &Op, ino: Ino, size: u64) -> Result<Heads> {
        let inode = self.load(ino)?;
        let end = self.end_of(&inode);
        let number = end / self.full();
        let (first, had) = inode.run(number);
        let covers = (number + 1) * self.full() * u64::from(BLOCK);
        if had == 0 || size <= covers {
            return Ok(Heads::new());
        }
        let run = Run {
            ino,
            number,
            first,
            had,
            count: self.full(),
            piece: None,
        };
        let written = self.write_run(op, &run, &[])?;
        let mut patches = written.filled;
        patches.push(written.patch);
        Ok(patches)
    }

    /// Lets a run grow where it is, or moves it.
    fn write_run(&self, op: &Op, run: &Run<'_>, befores: &[Before]) -> Result<Written> {
        let inode = self.load(run.ino)?;
        let (old, grown) = (
            run.first..run.first + run.had,
            run.first + run.had..run.first + run.count,
        );
        let map = self.store.read(BITMAP)?;
        let fits = run.first % self.full() + run.count <= self.full();
        let is_free = grown.clone().all(|fragment| is_free(&map, fragment));
        let stays = run.had > 0
            && !self.kind.moves
            && fits
            && (is_free || self.has(Fault::GrowsIntoNeighbour));
        if stays && self.usable() < grown.end - grown.start {
            return Err(FormatError::NoSpace);
        }
        let (first, kept) = match stays {
            true => (run.first, run.had),
            false => (self.find(run.count)?, 0),
        };
        drop(map);
        let new = self.take(op, first + kept..first + run.count)?;
        let mut before_pointer = befores.to_vec();
        let mut filled = Heads::new();
        if let Some((within, piece)) = run.piece.filter(|(within, _)| *within < kept) {
            let change = Change::Bytes {
                at: piece.at,
                bytes: piece.bytes,
            };
            let lba = Lba(first + within);
            filled.push(
                self.store
                    .change(op, lba, content(&inode), change, befores)?
                    .id,
            );
        }
        for (within, fragment) in (kept..).zip(&new) {
            let contents = self.contents_of(run, within)?;
            let done = fragment.fill(&*self.store, op, content(&inode), &contents)?;
            filled.push(done.patch);
            before_pointer.extend(
                done.before_pointer
                    .filter(|_| !self.has(Fault::PointsBeforeContents)),
            );
        }
        before_pointer.extend(init(new.iter().map(|fragment| fragment.bit)));
        let patch = self.point(op, run.ino, run.number, (first, run.count), &before_pointer)?;
        if !stays && run.had > 0 && !self.has(Fault::LeaksOldRun) {
            self.give(op, old, patch)?;
        }
        Ok(Written { patch, filled })
    }

    /// The contents of a fragment of a run after the write.
    fn contents_of(&self, run: &Run<'_>, within: u64) -> Result<Vec<u8>> {
        let mut contents = match within < run.had {
            true => self.store.read(Lba(run.first + within))?.to_vec(),
            false if self.has(Fault::DirtyPadding) => vec![0xee; BLOCK as usize],
            false => vec![0; BLOCK as usize],
        };
        if let Some((_, piece)) = run.piece.filter(|(at, _)| *at == within) {
            contents[piece.at as usize..][..piece.bytes.len()].copy_from_slice(piece.bytes);
        }
        Ok(contents)
    }

    fn point(
        &self,
        op: &Op,
        ino: Ino,
        run: u64,
        (first, count): (u64, u64),
        befores: &[Before],
    ) -> Result<PatchId> {
        let entry = match count {
            0 => 0,
            _ => (first << 3 | count) as u32,
        };
        let at = field::RUNS + 4 * run as u32;
        self.set(op, place(ino), at, &entry.to_le_bytes(), befores)
    }

    // --- room -------------------------------------------------------------------

    /// The free fragments that a write of a range takes.
    pub fn check_room(&self, inode: &Inode, indices: Range<u64>) -> Result<u64> {
        let full = self.full();
        let runs = indices.start / full..indices.end.div_ceil(full);
        let is_missing = |index: u64| self.fragment_of(inode, index).is_none();
        let needs = |run: &u64| {
            let own = indices.start.max(run * full)..indices.end.min((run + 1) * full);
            self.kind.moves || own.clone().any(is_missing)
        };
        let last = self.end_of(inode);
        let grows = !last.is_multiple_of(full) && indices.end.div_ceil(full) > last.div_ceil(full);
        let needed = runs.filter(needs).count() as u64 + u64::from(grows);
        if needed > self.roomy()? {
            return Err(FormatError::NoSpace);
        }
        Ok(needed * full)
    }

    // --- freeing ----------------------------------------------------------------

    /// Frees fragments at the ends of runs. Fragments in the middle of a run, or of a run that must
    /// stay full, are zeroed.
    pub fn cut(
        &self,
        op: &Op,
        ino: Ino,
        range: Range<u64>,
        budget: u32,
        befores: &[Before],
    ) -> Result<Freed> {
        let mut freed = Freed::default();
        let mut left = u64::from(budget.max(1));
        let there = self.load(ino)?;
        for number in (0..RUNS).rev().filter(|run| there.run(*run).1 > 0) {
            let inode = self.load(ino)?;
            let (first, count) = inode.run(number);
            let base = number * self.full();
            let from = range.start.clamp(base, base + count) - base;
            let to = range.end.clamp(base, base + count) - base;
            if from >= to {
                continue;
            }
            if left == 0 {
                freed.more = true;
                break;
            }
            let is_last = self.end_of(&inode) <= base + self.full()
                && inode.size() <= (base + self.full()) * u64::from(BLOCK);
            if to < count || (from > 0 && !is_last) {
                self.zero(op, ino, base + from..base + to, befores, &mut freed.removed)?;
                continue;
            }
            let from = from.max(to.saturating_sub(left));
            freed.more |= from > 0 && range.start < base + from;
            left -= to - from;
            let removal = self.point(op, ino, number, (first, from), befores)?;
            freed.removed.push(removal);
            self.give(op, first + from..first + to, removal)?;
        }
        Ok(freed)
    }

    fn zero(
        &self,
        op: &Op,
        ino: Ino,
        indices: Range<u64>,
        befores: &[Before],
        done: &mut Heads,
    ) -> Result<()> {
        for index in indices {
            let inode = self.load(ino)?;
            let Some(lba) = self.fragment_of(&inode, index) else {
                continue;
            };
            if self.store.read(lba)?.iter().any(|byte| *byte != 0) {
                let zeros = [0; BLOCK as usize];
                done.push(
                    self.put(op, ino, index, Piece::from_start(&zeros), befores)?
                        .patch,
                );
            }
        }
        Ok(())
    }
}

fn content(inode: &Inode) -> Content {
    match inode.kind() {
        Some(FileType::Regular) => Content::Data,
        _ => Content::Metadata,
    }
}

fn is_free(map: &[u8], fragment: u64) -> bool {
    map[fragment as usize / 8] >> (fragment % 8) & 1 == 0
}
