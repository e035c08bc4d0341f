//! Free blocks that rest for a while, since the pointers of their last owner may still be on the
//! medium. New contents would have to wait for the removal of these pointers, and later changes of
//! the block could not be merged with them. Such blocks are taken only when no others are left.

use std::borrow::Cow;
use std::collections::BTreeMap;

const MIN_LIMIT: usize = 1024;

/// Resting blocks as bits by group, in the order of the block bitmaps. Some may have rested long
/// enough.
#[derive(Debug, Default)]
pub(crate) struct Resting {
    groups: BTreeMap<u32, Vec<u8>>,
    count: usize,
    /// Count at which blocks that have rested long enough are dropped next.
    limit: usize,
}

impl Resting {
    /// Adds a block. Its group has `bits` blocks. `rests` returns whether a block must still rest.
    pub(crate) fn add(
        &mut self,
        group: u32,
        bit: u32,
        bits: u32,
        rests: impl Fn(u32, u32) -> bool,
    ) {
        if self.count >= self.limit {
            self.sweep(rests);
            self.limit = (self.count * 2).max(MIN_LIMIT);
        }
        let bytes = (bits as usize).div_ceil(8);
        let map = self.groups.entry(group).or_insert_with(|| vec![0; bytes]);
        let (byte, mask) = (&mut map[bit as usize / 8], 1 << (bit % 8));
        self.count += usize::from(*byte & mask == 0);
        *byte |= mask;
    }

    /// An upper bound of the number of resting blocks.
    pub(crate) fn count(&self) -> u64 {
        self.count as u64
    }

    /// Removes a block, if it rests.
    pub(crate) fn remove(&mut self, group: u32, bit: u32) {
        if let Some(map) = self.groups.get_mut(&group) {
            let (byte, mask) = (&mut map[bit as usize / 8], 1 << (bit % 8));
            self.count -= usize::from(*byte & mask != 0);
            *byte &= !mask;
        }
    }

    /// A group's bitmap with all resting blocks marked as used.
    pub(crate) fn hidden<'a>(&self, group: u32, map: &'a [u8]) -> Cow<'a, [u8]> {
        let Some(resting) = self.groups.get(&group) else {
            return Cow::Borrowed(map);
        };
        let mut map = map.to_vec();
        for (byte, rests) in map.iter_mut().zip(resting) {
            *byte |= rests;
        }
        Cow::Owned(map)
    }

    fn sweep(&mut self, rests: impl Fn(u32, u32) -> bool) {
        let mut count = 0;
        self.groups.retain(|group, map| {
            let before = count;
            for (at, byte) in map.iter_mut().enumerate().filter(|(_, byte)| **byte != 0) {
                let stays = |n: &u32| *byte >> n & 1 == 1 && rests(*group, at as u32 * 8 + n);
                *byte = (0..8).filter(stays).map(|n| 1 << n).sum();
                count += byte.count_ones() as usize;
            }
            count > before
        });
        self.count = count;
    }
}
