//! The contents of a sparse file: 4 KiB blocks by number; a missing block is a hole.
//!
//! Invariant: no block lies wholly beyond the end of the file, and the bytes of the last block
//! beyond the end are zero. The callers keep it, since they have the size.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

/// Bytes in a block.
pub(super) const BLOCK: u64 = 4096;

type Block = [u8; BLOCK as usize];

/// Shared by every block that was allocated and never written.
static ZEROS: LazyLock<Arc<Block>> = LazyLock::new(|| Arc::new([0; BLOCK as usize]));

/// Blocks are shared between forks of a file system until one of them writes.
#[derive(Clone, Default)]
pub(super) struct Pages {
    blocks: BTreeMap<u64, Arc<Block>>,
}

/// The blocks that hold any byte of `off..end`; none if that is empty.
pub(super) fn covering(off: u64, end: u64) -> Range<u64> {
    if end <= off {
        return 0..0;
    }
    off / BLOCK..end.div_ceil(BLOCK)
}

impl Pages {
    /// Number of blocks present.
    pub(super) fn count(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Number of holes among `range`.
    pub(super) fn missing(&self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let wanted = range.end - range.start;
        wanted - self.blocks.range(range).count() as u64
    }

    /// Reads at `off`; holes are zeros. The caller has cut `buf` to the file's size.
    pub(super) fn read(&self, off: u64, buf: &mut [u8]) {
        for (index, at, part) in pieces(off, buf.len()) {
            let out = &mut buf[part];
            match self.blocks.get(&index) {
                Some(block) => out.copy_from_slice(&block[at..at + out.len()]),
                None => out.fill(0),
            }
        }
    }

    /// Writes at `off`, making the blocks that it needs.
    pub(super) fn write(&mut self, off: u64, data: &[u8]) {
        for (index, at, part) in pieces(off, data.len()) {
            let data = &data[part];
            let block = self.blocks.entry(index).or_insert_with(|| ZEROS.clone());
            Arc::make_mut(block)[at..at + data.len()].copy_from_slice(data);
        }
    }

    /// Makes every hole of `range` a block of zeros.
    pub(super) fn allocate(&mut self, range: Range<u64>) {
        for index in range {
            self.blocks.entry(index).or_insert_with(|| ZEROS.clone());
        }
    }

    /// Makes `off..end` read as zeros: removes whole blocks, and clears parts of blocks.
    pub(super) fn punch(&mut self, off: u64, end: u64) {
        let whole = off.div_ceil(BLOCK)..end / BLOCK;
        if whole.start > whole.end {
            // Inside one block.
            self.clear(off, end);
            return;
        }
        self.clear(off, whole.start * BLOCK);
        self.clear(whole.end * BLOCK, end);
        self.remove(whole);
    }

    /// Removes all bytes from `size` on.
    pub(super) fn truncate(&mut self, size: u64) {
        drop(self.blocks.split_off(&size.div_ceil(BLOCK)));
        self.clear(size, size.next_multiple_of(BLOCK));
    }

    /// The first byte at or after `off` that is in a block.
    pub(super) fn next_data(&self, off: u64) -> Option<u64> {
        let (&index, _) = self.blocks.range(off / BLOCK..).next()?;
        Some(off.max(index * BLOCK))
    }

    /// The first byte at or after `off` that is in no block.
    pub(super) fn next_hole(&self, off: u64) -> u64 {
        let mut index = off / BLOCK;
        for (&present, _) in self.blocks.range(index..) {
            if present != index {
                break;
            }
            index += 1;
        }
        off.max(index * BLOCK)
    }

    /// Zeroes `off..end`, which lies in one block, if the block is there.
    fn clear(&mut self, off: u64, end: u64) {
        if off == end {
            return;
        }
        if let Some(block) = self.blocks.get_mut(&(off / BLOCK)) {
            let at = (off % BLOCK) as usize;
            Arc::make_mut(block)[at..at + (end - off) as usize].fill(0);
        }
    }

    fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let gone: Vec<u64> = self.blocks.range(range).map(|(&index, _)| index).collect();
        for index in gone {
            self.blocks.remove(&index);
        }
    }
}

/// Cuts `len` bytes at `off` into pieces of one block. Each piece has the number of its block,
/// its start in the block, and its range in the buffer of the caller.
fn pieces(off: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let pos = off + done as u64;
        let at = (pos % BLOCK) as usize;
        let part = done..len.min(done + BLOCK as usize - at);
        done = part.end;
        Some((pos / BLOCK, at, part))
    })
}
