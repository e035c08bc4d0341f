//! Enumerates the legal states after a crash.
//!
//! If there are at most [`ALL_MAX`] sets of effects, all of them are visited. Otherwise these kinds take
//! turns: each number of first effects; each effect alone lost, with those that need it; each
//! effect alone there, with those that it needs; each effect lost out of each number of first
//! effects; and seeded random sets. Effects of the whole run are among the first of each kind.

use super::Modelled;
use std::collections::VecDeque;
use std::fmt::{self, Display, Formatter};
use std::iter;
use std::str::FromStr;

/// Most sets of effects at one moment that are all visited.
const ALL_MAX: usize = 256;

/// Random sets at a moment, for each effect that may be lost.
const RANDOM: usize = 8;

/// The effects that a crash loses, by number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Subset {
    /// Lost effects, in order.
    pub lost: Vec<usize>,
}

impl Subset {
    fn of(present: &[bool]) -> Self {
        let lost = (0..present.len()).filter(|n| !present[*n]).collect();
        Self { lost }
    }
}

/// Ranges such as `3.7-12`; `0` effects are `none`.
impl Display for Subset {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.lost.is_empty() {
            return f.write_str("none");
        }
        let runs = self.lost.chunk_by(|a, b| a + 1 == *b);
        for (n, run) in runs.enumerate() {
            f.write_str(if n > 0 { "." } else { "" })?;
            match run {
                [one] => write!(f, "{one}")?,
                [first, .., last] => write!(f, "{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

impl FromStr for Subset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::default());
        }
        let mut lost = Vec::new();
        for run in text.split('.') {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            let number = |text: &str| text.parse::<usize>().ok().filter(|n| *n < 1 << 24);
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => lost.extend(first..=last),
                _ => return Err(format!("`{run}` is not a range of effects")),
            }
        }
        Ok(Self { lost })
    }
}

/// The legal states at one moment.
pub struct Legal<'m, 'r> {
    modelled: &'m Modelled<'r>,
    /// Number of effects that can be there.
    end: usize,
    /// Effects that are durable.
    forced: Vec<bool>,
    /// The others.
    free: Vec<usize>,
}

impl<'m, 'r> Legal<'m, 'r> {
    /// The states at a moment: entries before `entry` have returned, and that one may have had
    /// some effects.
    pub fn new(modelled: &'m Modelled<'r>, entry: usize) -> Self {
        let end = modelled.before[(entry + 1).min(modelled.before.len() - 1)];
        let mut forced = modelled.forced_before(entry);
        forced.truncate(end);
        let free = (0..end).filter(|n| !forced[*n]).collect();
        Self {
            modelled,
            end,
            forced,
            free,
        }
    }

    /// Number of effects that a crash can lose.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// The effects that are there when these are lost. `None`: such a state is not legal.
    pub fn present(&self, subset: &Subset) -> Option<Vec<bool>> {
        let mut present = vec![true; self.end];
        for &n in &subset.lost {
            *present.get_mut(n)? = false;
        }
        let closed = self.closed(present.clone());
        (closed == present).then_some(present)
    }

    /// Removes effects without their needs, and adds those that are durable.
    fn closed(&self, mut present: Vec<bool>) -> Vec<bool> {
        for n in 0..self.end {
            let effect = &self.modelled.effects[n];
            let has_needs = effect.needs(&present).all(|n| present[n]);
            present[n] = self.forced[n] || present[n] && has_needs;
        }
        present
    }

    /// The effects up to number `last` of those that can be lost.
    fn first(&self, last: usize) -> Vec<bool> {
        let end = self.free.get(last).copied().unwrap_or(self.end);
        (0..self.end).map(|n| n < end || self.forced[n]).collect()
    }

    /// An effect with those that it needs.
    fn only(&self, wanted: usize) -> Vec<bool> {
        let mut present = self.forced.clone();
        present[wanted] = true;
        for n in (0..=wanted).rev().filter(|n| !self.forced[*n]) {
            if present[n] {
                let needs: Vec<usize> = self.modelled.effects[n].needs(&present).collect();
                needs.into_iter().for_each(|need| present[need] = true);
            }
        }
        present
    }

    fn without(&self, lost: usize, first: usize) -> Vec<bool> {
        let mut present = self.first(first);
        present[lost] = false;
        self.closed(present)
    }

    /// All sets, if there are few.
    fn all(&self) -> Option<Vec<Vec<bool>>> {
        let mut sets = vec![self.forced.clone()];
        for &n in &self.free {
            let effect = &self.modelled.effects[n];
            let with: Vec<Vec<bool>> = sets
                .iter()
                .filter(|set| effect.needs(set).all(|n| set[n]))
                .map(|set| {
                    let mut set = set.clone();
                    set[n] = true;
                    set
                })
                .collect();
            sets.extend(with);
            if sets.len() > ALL_MAX {
                return None;
            }
        }
        Some(sets)
    }

    /// Whether [`states`](Self::states) returns all states.
    pub fn is_exhaustive(&self) -> bool {
        self.all().is_some()
    }

    /// The states at this moment, most telling first. `seed`: of the random ones.
    pub fn states(&self, seed: u64) -> Box<dyn Iterator<Item = (Subset, Vec<bool>)> + '_> {
        let named = |present: Vec<bool>| (Subset::of(&present), present);
        if let Some(all) = self.all() {
            // The newest states first: they are most like what the program saw.
            return Box::new(all.into_iter().rev().map(named));
        }
        let free = self.free.len();
        let first = spread(free + 1).map(move |n| self.first(free - n));
        let lost = spread(free).map(move |n| self.without(self.free[n], free));
        let only = spread(free).map(move |n| self.only(self.free[n]));
        let pairs = (1..free)
            .flat_map(move |last| (0..last).map(move |n| self.without(self.free[n], last)));
        let random = (0..(RANDOM * free) as u64).map(move |n| self.random(mix(seed, n)));
        let kinds: [Box<dyn Iterator<Item = Vec<bool>> + '_>; 5] = [
            Box::new(first),
            Box::new(lost),
            Box::new(only),
            Box::new(pairs),
            Box::new(random),
        ];
        let closed = move |present| self.closed(present);
        Box::new(in_turns(kinds).map(closed).map(named))
    }

    fn random(&self, seed: u64) -> Vec<bool> {
        let percent = mix(seed, 1) % 100;
        let end = mix(seed, 2) as usize % (self.free.len() + 1);
        let mut present = self.first(end);
        for &n in &self.free {
            present[n] &= mix(seed, 3 + n as u64) % 100 < percent.max(10);
        }
        self.closed(present)
    }
}

/// The numbers below `end`, with large and small ones among the first: by their bits in reverse.
pub fn spread(end: usize) -> impl Iterator<Item = usize> {
    let bits = end.next_power_of_two().trailing_zeros();
    let reverse = move |n: usize| {
        n.reverse_bits()
            .checked_shr(usize::BITS - bits)
            .unwrap_or(0)
    };
    (0..1 << bits).map(reverse).filter(move |n| *n < end)
}

/// The items of several iterators, one of each in turn.
fn in_turns<'a, T: 'a, const N: usize>(
    iterators: [Box<dyn Iterator<Item = T> + 'a>; N],
) -> impl Iterator<Item = T> + 'a {
    let mut turns = VecDeque::from(iterators);
    iter::from_fn(move || {
        while let Some(mut next) = turns.pop_front() {
            if let Some(item) = next.next() {
                turns.push_back(next);
                return Some(item);
            }
        }
        None
    })
}

/// A hash of two words.
fn mix(a: u64, b: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(&b.to_le_bytes(), a)
}
