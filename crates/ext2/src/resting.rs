//! Free blocks that are better left alone for a while: the pointers of their last owner may
//! still be on the medium. New contents would have to wait until those are gone, and until
//! then every other change of the block would have to be kept apart from them. So such
//! blocks are taken only when no others are left.

use std::borrow::Cow;
use std::collections::BTreeMap;

const MIN_LIMIT: usize = 1024;

/// Bits by group, in the order of the block bitmaps. Some may have rested long enough.
#[derive(Debug, Default)]
pub(crate) struct Resting {
    groups: BTreeMap<u32, Vec<u8>>,
    count: usize,
    /// When to look for those that have rested long enough.
    limit: usize,
}

impl Resting {
    /// Adds a block; its group has `bits` of them. `rests` tells of which it is still true.
    pub fn add(&mut self, group: u32, bit: u32, bits: u32, rests: impl Fn(u32, u32) -> bool) {
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

    /// How many there are at most.
    pub fn count(&self) -> u64 {
        self.count as u64
    }

    /// Takes a block out, if it is there.
    pub fn remove(&mut self, group: u32, bit: u32) {
        if let Some(map) = self.groups.get_mut(&group) {
            let (byte, mask) = (&mut map[bit as usize / 8], 1 << (bit % 8));
            self.count -= usize::from(*byte & mask != 0);
            *byte &= !mask;
        }
    }

    /// A group's bitmap in which all that rest are marked as used.
    pub fn hidden<'a>(&self, group: u32, map: &'a [u8]) -> Cow<'a, [u8]> {
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
