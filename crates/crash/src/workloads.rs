//! Selection of the scripts that are run.

use crate::choice::mix;
use crate::id::ScriptRef;
use crate::{Enumerated, Options};
use oracle::script::Script;
use oracle::script::generate::{self, Tree};
use std::ops::Range;

impl ScriptRef {
    pub(crate) fn script(&self) -> Result<Script, String> {
        match self {
            ScriptRef::Enumerated { tree, ops, index } => {
                if *ops == 0 || *ops > 3 || *index >= tree.count(*ops) {
                    return Err(format!("there is no script {self}"));
                }
                Ok(tree.sequence(*ops, *index))
            }
            ScriptRef::Random { seed, index, len } => {
                Ok(generate::random(mix(*seed, *index), (*len).min(MAX_LEN)))
            }
            ScriptRef::Text(text) => text.parse().map_err(|e| format!("script: {e}")),
        }
    }

    /// The tree that the script starts from.
    pub(crate) fn tree(&self) -> Tree {
        match self {
            ScriptRef::Enumerated { tree, .. } => *tree,
            ScriptRef::Random { .. } => Tree::Small,
            ScriptRef::Text(_) => Tree::Empty,
        }
    }

    /// The operations to crash. Shorter enumerated sequences are scripts of their own, so only
    /// the last operation of one is new.
    pub(crate) fn crashed(&self, script: &Script) -> Range<usize> {
        let end = script.ops.len();
        match self {
            ScriptRef::Enumerated { .. } => end.saturating_sub(1)..end,
            _ => 0..end,
        }
    }
}

/// Longest random script.
const MAX_LEN: usize = 100_000;

/// The scripts that `options` ask for, in order, and the part of each length that they are.
pub(crate) fn workloads(options: &Options) -> (Vec<ScriptRef>, Vec<Enumerated>) {
    let (mut all, mut parts) = (Vec::new(), Vec::new());
    let longest = options.ops.min(3);
    let trees = options.trees.iter().map(|tree| (*tree, longest));
    let singles = options.singles.iter().map(|tree| (*tree, longest.min(1)));
    let lengths = |(tree, longest)| (1..=longest).map(move |ops| (tree, ops));
    for (tree, ops) in trees.chain(singles).flat_map(lengths) {
        let of = tree.count(ops);
        let sample = options.sample.filter(|n| ops == longest && *n < of);
        let indices = match sample {
            Some(sample) => draw(options.seed, of, sample),
            None => (0..of).collect(),
        };
        parts.push(Enumerated {
            tree,
            ops,
            taken: indices.len() as u64,
            of,
        });
        let scripts = indices.into_iter();
        all.extend(scripts.map(|index| ScriptRef::Enumerated { tree, ops, index }));
    }
    all.extend(options.scripts.iter().cloned().map(ScriptRef::Text));
    all.extend((0..options.random_scripts).map(|index| ScriptRef::Random {
        seed: options.seed,
        index,
        len: options.random_len,
    }));
    (all, parts)
}

/// `sample` different numbers below `of`, ascending.
fn draw(seed: u64, of: u64, sample: u64) -> Vec<u64> {
    let mut drawn = fastrand::Rng::with_seed(seed).choose_multiple(0..of, sample as usize);
    drawn.sort_unstable();
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn distinct(options: &Options) -> (HashSet<ScriptRef>, Vec<Enumerated>) {
        let (all, parts) = workloads(options);
        let len = all.len();
        let all: HashSet<_> = all.into_iter().collect();
        assert_eq!(all.len(), len, "no script twice");
        (all, parts)
    }

    const BOTH: [Tree; 2] = [Tree::Small, Tree::Crowded];

    fn all_of(ops: u32) -> u64 {
        BOTH.iter().map(|tree| tree.count(ops)).sum()
    }

    #[test]
    fn scripts_of_one_and_two_operations_are_all_taken() {
        let mut enumerated = 0;
        for ops in 1..=2 {
            enumerated += all_of(ops);
            let (all, parts) = distinct(&Options {
                ops,
                trees: BOTH.to_vec(),
                random_scripts: 7,
                ..Options::default()
            });
            assert_eq!(all.len() as u64, enumerated + 7);
            assert!(parts.iter().all(|part| part.taken == part.of));
        }
    }

    #[test]
    fn trees_for_singles_give_scripts_of_one_operation() {
        for ops in 0..=2 {
            let options = Options {
                ops,
                singles: vec![Tree::Crowded],
                ..Options::default()
            };
            let small = (1..=ops).map(|ops| Tree::Small.count(ops)).sum::<u64>();
            let crowded = if ops == 0 { 0 } else { Tree::Crowded.count(1) };
            assert_eq!(distinct(&options).0.len() as u64, small + crowded);
        }
    }

    #[test]
    fn a_sample_limits_the_longest_only_and_depends_on_the_seed() {
        let sample = |seed| {
            distinct(&Options {
                ops: 2,
                trees: BOTH.to_vec(),
                sample: Some(500),
                seed,
                ..Options::default()
            })
        };
        let (all, parts) = sample(1);
        assert_eq!(all.len() as u64, all_of(1) + 1000);
        let part = |tree: Tree, ops, taken| Enumerated {
            tree,
            ops,
            taken,
            of: tree.count(ops),
        };
        let expected = BOTH.map(|tree| [part(tree, 1, tree.count(1)), part(tree, 2, 500)]);
        assert_eq!(parts, expected.concat());
        assert_eq!(all, sample(1).0);
        assert_ne!(all, sample(2).0);
    }
}
