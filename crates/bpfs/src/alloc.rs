//! Volatile bitmaps of the blocks and inode numbers in use.
//!
//! Nothing here is stored: a mount rebuilds it from the tree (3.3.2). Numbers are split into
//! groups with a lock each, so that threads rarely contend. A request fails only when every
//! group is empty.

use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Fewest numbers in one group.
const GROUP_MIN: u64 = 8192;
/// Most groups. Bounds the memory that a large image takes for numbers not in use yet.
const GROUPS_MAX: u64 = 4096;

struct Group {
    /// Bit set: in use.
    words: Vec<u64>,
    /// Bits not set.
    free: u64,
    /// Word where the next search starts.
    hint: usize,
}

/// A set of numbers `0..len`, some in use.
pub(crate) struct Bitmap {
    /// Numbers in one group.
    group: u64,
    groups: Vec<Mutex<Group>>,
    len: AtomicU64,
    free: AtomicU64,
}

/// Spreads threads over groups.
static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static HOME: usize = NEXT_THREAD.fetch_add(1, Relaxed);
}

impl Bitmap {
    /// All of `0..len` free; `capacity` bounds how far [`grow`](Self::grow) may go.
    pub(crate) fn new(len: u64, capacity: u64) -> Self {
        let group = (capacity / GROUPS_MAX).next_power_of_two().max(GROUP_MIN);
        let groups = (0..capacity.div_ceil(group))
            .map(|_| {
                Mutex::new(Group {
                    words: Vec::new(),
                    free: 0,
                    hint: 0,
                })
            })
            .collect();
        let map = Self {
            group,
            groups,
            len: AtomicU64::new(0),
            free: AtomicU64::new(0),
        };
        map.grow(len);
        map
    }

    /// Numbers in all.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Relaxed)
    }

    /// Numbers not in use.
    pub(crate) fn free(&self) -> u64 {
        self.free.load(Relaxed)
    }

    /// Extends the set to `0..len`, the new numbers free. One caller at a time.
    pub(crate) fn grow(&self, len: u64) {
        let old = self.len.swap(len, Relaxed);
        for g in old / self.group..len.div_ceil(self.group) {
            let mut group = self.groups[g as usize].lock();
            let had = old.saturating_sub(g * self.group).min(self.group);
            let now = (len - g * self.group).min(self.group);
            // Bits past the end are marked as used. New bits are added in whole words.
            if !had.is_multiple_of(64) {
                group.words[(had / 64) as usize] &= !(u64::MAX << (had % 64));
            }
            group.words.resize(now.div_ceil(64) as usize, 0);
            if !now.is_multiple_of(64) {
                group.words[(now / 64) as usize] |= u64::MAX << (now % 64);
            }
            group.free += now - had;
            self.free.fetch_add(now - had, Relaxed);
        }
    }

    /// Takes one number.
    pub(crate) fn take(&self) -> Option<u64> {
        let mut got = None;
        self.take_many(1, &mut |n| got = Some(n));
        got
    }

    /// Takes up to `count` numbers, calls `each` with each of them, and returns how many.
    pub(crate) fn take_many(&self, count: u64, each: &mut dyn FnMut(u64)) -> u64 {
        let groups = (self.len().div_ceil(self.group) as usize).max(1);
        let home = HOME.with(|h| *h) * 7 % groups;
        let mut taken = 0;
        for g in (home..groups).chain(0..home) {
            if taken == count || self.free() == 0 {
                break;
            }
            let mut group = self.groups[g].lock();
            let got = group.take(count - taken, g as u64 * self.group, each);
            self.free.fetch_sub(got, Relaxed);
            taken += got;
        }
        taken
    }

    /// Gives a number back. Returns false if it was not in use.
    pub(crate) fn release(&self, n: u64) -> bool {
        self.change(n, false)
    }

    /// Marks a number as in use. Returns false if it was already.
    pub(crate) fn mark(&self, n: u64) -> bool {
        self.change(n, true)
    }

    /// Marks numbers as in use, a word of bits at a time. Stops at the first that was in use
    /// already, and returns it.
    pub(crate) fn mark_run(&self, run: Range<u64>) -> Result<(), u64> {
        let mut at = run.start;
        while at < run.end {
            let mut group = self.groups[(at / self.group) as usize].lock();
            let group_end = run.end.min((at / self.group + 1) * self.group);
            while at < group_end {
                let end = group_end.min((at / 64 + 1) * 64);
                let bits = (u64::MAX >> (64 - (end - at))) << (at % 64);
                let word = &mut group.words[(at % self.group / 64) as usize];
                let twice = *word & bits;
                if twice != 0 {
                    return Err(at / 64 * 64 + u64::from(twice.trailing_zeros()));
                }
                *word |= bits;
                group.free -= end - at;
                self.free.fetch_sub(end - at, Relaxed);
                at = end;
            }
        }
        Ok(())
    }

    /// The 64 numbers from `first` (a multiple of 64, below the capacity), one bit each, set if
    /// the number is in use. Bits past the end are undefined.
    pub(crate) fn used_64(&self, first: u64) -> u64 {
        let group = self.groups[(first / self.group) as usize].lock();
        let word = group.words.get((first % self.group / 64) as usize);
        word.copied().unwrap_or_default()
    }

    /// Whether a number is in use.
    pub(crate) fn is_used(&self, n: u64) -> bool {
        let group = self.groups[(n / self.group) as usize].lock();
        group.words[(n % self.group / 64) as usize] >> (n % 64) & 1 == 1
    }

    fn change(&self, n: u64, used: bool) -> bool {
        let mut group = self.groups[(n / self.group) as usize].lock();
        let at = (n % self.group / 64) as usize;
        let bit = 1 << (n % 64);
        if (group.words[at] & bit != 0) == used {
            return false;
        }
        group.words[at] ^= bit;
        // The group is still locked, so that the sum never runs ahead of the bits.
        if used {
            group.free -= 1;
            self.free.fetch_sub(1, Relaxed);
        } else {
            group.free += 1;
            self.free.fetch_add(1, Relaxed);
            group.hint = group.hint.min(at);
        }
        true
    }
}

impl Group {
    fn take(&mut self, count: u64, base: u64, each: &mut dyn FnMut(u64)) -> u64 {
        let mut taken = 0;
        let words = self.words.len();
        for at in (self.hint..words).chain(0..self.hint.min(words)) {
            if taken == count || self.free == 0 {
                break;
            }
            while taken < count && self.words[at] != u64::MAX {
                let bit = self.words[at].trailing_ones();
                self.words[at] |= 1 << bit;
                self.free -= 1;
                self.hint = at;
                taken += 1;
                each(base + at as u64 * 64 + u64::from(bit));
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_each_number_once_and_takes_it_back() {
        let map = Bitmap::new(10_000, 20_000);
        let mut seen = vec![false; 10_000];
        let taken = map.take_many(10_001, &mut |n| {
            assert!(!std::mem::replace(&mut seen[n as usize], true));
        });
        assert_eq!((taken, map.free(), map.take()), (10_000, 0, None));
        assert!(map.release(9_999) && !map.release(9_999));
        assert_eq!((map.take(), map.take()), (Some(9_999), None));
        map.grow(10_001);
        assert_eq!((map.take(), map.len()), (Some(10_000), 10_001));
    }

    #[test]
    fn grows_by_any_step() {
        let map = Bitmap::new(0, 20_000);
        let (mut len, mut taken) = (0, 0);
        for step in [1, 62, 1, 1, 63, 64, 65, 8_000, 200, 9_000] {
            len += step;
            map.grow(len);
            assert_eq!(map.free(), len - taken);
            while let Some(n) = map.take() {
                assert!(n < len);
                taken += 1;
            }
            assert_eq!(taken, len);
        }
    }

    #[test]
    fn mark_run_equals_marking_each_number() {
        for run in [
            0..0,
            0..1,
            3..64,
            63..65,
            64..128,
            5..200,
            8_190..16_390,
            0..20_000,
        ] {
            let (runs, ones) = (Bitmap::new(20_000, 20_000), Bitmap::new(20_000, 20_000));
            assert_eq!(runs.mark_run(run.clone()), Ok(()));
            assert!(run.clone().all(|n| ones.mark(n)));
            assert_eq!(runs.free(), ones.free());
            for first in (0..20_000).step_by(64) {
                assert_eq!(runs.used_64(first), ones.used_64(first), "{run:?} {first}");
            }
        }
        let map = Bitmap::new(20_000, 20_000);
        assert!(map.mark(100) && map.mark(110));
        assert_eq!(map.mark_run(10..300), Err(100));
        assert_eq!(map.mark_run(101..110), Ok(()));
    }

    #[test]
    fn mark_and_release_agree_with_is_used() {
        let map = Bitmap::new(100, 100);
        assert!(map.mark(63) && !map.mark(63) && map.is_used(63) && !map.is_used(64));
        assert_eq!(map.free(), 99);
        assert!(map.release(63) && !map.is_used(63));
    }
}
