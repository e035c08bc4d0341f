//! The images that a crash can leave of a recorded device.

use runs::{Call, Node, PAGE_BYTES, Run, Tree};
use std::collections::HashSet;
use std::sync::Arc;

/// An image, and the number of calls that had returned.
pub struct Crashed {
    pub image: Tree,
    pub returned: usize,
}

/// A page or a range that was written.
#[derive(Clone, Copy)]
enum Change<'a> {
    Page(u64, &'a [u8]),
    Zero(u64, u64),
}

/// A moment of the device: all before a flush, and what was written since.
struct Moment<'a> {
    durable: Arc<Tree>,
    pending: Vec<Change<'a>>,
    /// Changes that were there at the moment before.
    before: usize,
    returned: usize,
}

/// Images after a crash, at most `most`, none twice for the same number of calls.
pub fn crashes(device: &Run, most: usize) -> Vec<Crashed> {
    let image = device.start().unwrap().resolve(b"image").unwrap();
    let mut seed = 1;
    let moments = moments(device, image);
    let mut sets: Vec<(u8, u64, usize, Vec<bool>)> = Vec::new();
    for (n, moment) in moments.iter().enumerate() {
        for (rank, set) in subsets(moment, &mut seed) {
            sets.push((rank, random(&mut seed), n, set));
        }
    }
    // Those that say most first, in a fixed but arbitrary order.
    sets.sort_unstable_by_key(|(rank, order, ..)| (*rank, *order));
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for (_, _, n, set) in sets {
        let moment = &moments[n];
        let mut tree = (*moment.durable).clone();
        let changes = moment.pending.iter().zip(&set).filter(|(_, is)| **is);
        changes.for_each(|(change, _)| change.apply(&mut tree, image));
        if seen.insert((tree.hash(), moment.returned)) {
            found.push(Crashed {
                image: tree,
                returned: moment.returned,
            });
        }
        if found.len() == most {
            break;
        }
    }
    found
}

impl Change<'_> {
    fn apply(self, tree: &mut Tree, image: Node) {
        let contents = &mut tree.get_mut(image).unwrap().contents;
        match self {
            Self::Page(off, bytes) => contents.write(off, bytes),
            Self::Zero(off, len) => contents.zero(off, len),
        }
    }
}

/// The moments before each flush and each mark, from the first mark to the last.
fn moments(device: &Run, image: Node) -> Vec<Moment<'_>> {
    let mut durable = Arc::new(device.start().unwrap());
    let (mut pending, mut before, mut returned) = (Vec::new(), 0, None);
    let mut found = Vec::new();
    for entry in &device.entries[device.header.setup..] {
        if let (Call::Sync { .. } | Call::Output { .. }, Some(returned)) = (&entry.call, returned) {
            found.push(Moment {
                durable: Arc::clone(&durable),
                pending: pending.clone(),
                before,
                returned,
            });
        }
        match &entry.call {
            Call::Write { off, data, .. } => {
                let mut off = *off;
                let mut rest = device.bytes(*data);
                while !rest.is_empty() {
                    let len = (PAGE_BYTES - off % PAGE_BYTES).min(rest.len() as u64);
                    let (page, more) = rest.split_at(len as usize);
                    pending.push(Change::Page(off, page));
                    (off, rest) = (off + len, more);
                }
            }
            Call::Zero { off, len, .. } => pending.push(Change::Zero(*off, *len)),
            Call::Sync { .. } => {
                let tree = Arc::make_mut(&mut durable);
                let changes = pending.drain(..);
                changes.for_each(|change| change.apply(tree, image));
                before = 0;
            }
            Call::Output { data } => {
                let mark = String::from_utf8_lossy(device.bytes(*data)).into_owned();
                returned = Some(mark.parse().unwrap());
                before = pending.len();
            }
            // Loop devices make no other calls.
            call => panic!("{call:?}"),
        }
    }
    found
}

/// Sets of pending changes, each with a rank: the lower, the earlier it is visited.
fn subsets(moment: &Moment<'_>, seed: &mut u64) -> Vec<(u8, Vec<bool>)> {
    let len = moment.pending.len();
    let mut sets = vec![(0, vec![true; len]), (0, vec![false; len])];
    for n in moment.before..len {
        sets.push((1, (0..len).map(|m| m < n).collect()));
    }
    for n in 0..len {
        sets.push((2, (0..len).map(|m| m != n).collect()));
        sets.push((2, (0..len).map(|m| m == n).collect()));
        sets.push((
            2,
            (0..len).map(|_| random(seed).is_multiple_of(2)).collect(),
        ));
    }
    sets
}

/// The next of a fixed sequence of numbers (splitmix64).
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
