//! Explains a state of an engine by calls.
//!
//! An engine writes blocks, and a crash loses some of them. The user wants to know which calls that
//! has undone. So the state is compared with the trees that effects of the calls leave, under the
//! model `posix`, which lets a crash keep any of them. The nearest tree names the calls.

use crate::Tree;
use crate::model::Modelled;
use std::cmp::Reverse;

/// Most numbers of first effects that are tried.
const PREFIXES: usize = 512;

/// Effects on either side of a first tree that are taken out or added one by one. Each takes as many
/// steps as there are effects, so that long runs try fewer.
const SINGLES: (usize, usize) = (16, 256);
const STEPS: usize = 100_000;

/// The effects that explain a state.
pub(super) struct Explained {
    /// By effect: whether it is there.
    pub present: Vec<bool>,
    /// Effects that are there in part: an engine may write parts of a page at different times.
    pub torn: Vec<usize>,
}

/// Explains a state by the first `end` effects.
pub(super) fn explain(modelled: &Modelled<'_>, end: usize, state: &Tree) -> Explained {
    let present = nearest(modelled, end, state);
    let pages = modelled.tree(&present).different_pages(state);
    let newest_of = |(node, page)| {
        let stores = |n: &usize| present[*n] && modelled.effects[*n].stores_to(node, page);
        (0..end).rev().find(stores)
    };
    let torn = pages.into_iter().filter_map(newest_of).collect();
    Explained { present, torn }
}

/// The effects, among the first `end`, whose tree is nearest to `state`. If several are as near, the
/// ones with the fewest losses. The newest one is visible in the tree.
fn nearest(modelled: &Modelled<'_>, end: usize, state: &Tree) -> Vec<bool> {
    let search = |first: usize| {
        let mut present: Vec<bool> = (0..end).map(|n| n < first).collect();
        let far = approach(modelled, &mut present, first, state);
        let losses = present.iter().filter(|is| !**is).count();
        (far, losses, present)
    };
    let prefix = search(nearest_prefix(modelled, end, state));
    let whole = search(end);
    let (far, _, mut present) = prefix.min(whole);
    while let Some(newest) = present.iter().rposition(|is| *is) {
        present[newest] = false;
        if modelled.tree(&present).distance(state) != far {
            present[newest] = true;
            break;
        }
    }
    present
}

/// Takes out and adds single effects near the effect `first`, while that brings the tree nearer
/// to `state`. Returns the distance.
fn approach(modelled: &Modelled<'_>, present: &mut Vec<bool>, first: usize, state: &Tree) -> usize {
    let mut far = modelled.tree(present).distance(state);
    // A call that is there although an earlier one is lost comes first: it may bring back what the
    // lost one then takes away.
    let singles = (STEPS / present.len().max(1)).clamp(SINGLES.0, SINGLES.1);
    let later = first..present.len().min(first + singles);
    let earlier = (first.saturating_sub(singles)..first).rev();
    for n in later.chain(earlier) {
        if far == 0 {
            break;
        }
        let other = toggled(modelled, present, n);
        let now = modelled.tree(&other).distance(state);
        if now < far {
            (far, *present) = (now, other);
        }
    }
    far
}

/// Takes an effect out with those that need it, or adds it with those that it needs.
fn toggled(modelled: &Modelled<'_>, present: &[bool], n: usize) -> Vec<bool> {
    let mut other = present.to_vec();
    other[n] = !present[n];
    if present[n] {
        for later in n + 1..other.len() {
            other[later] &= modelled.effects[later].inherent.iter().all(|n| other[*n]);
        }
    } else {
        let mut left = vec![n];
        while let Some(n) = left.pop() {
            other[n] = true;
            left.extend(modelled.effects[n].inherent.iter().filter(|n| !other[**n]));
        }
    }
    other
}

/// The greatest number of first effects with the least distance.
fn nearest_prefix(modelled: &Modelled<'_>, end: usize, state: &Tree) -> usize {
    let mut tree = modelled.start.clone();
    let mut best = (tree.distance(state), Reverse(0));
    let step = end.div_ceil(PREFIXES).max(1);
    for (n, effect) in modelled.effects[..end].iter().enumerate() {
        effect.apply(&mut tree, &modelled.run.data);
        if (n + 1) % step == 0 || n + 1 == end {
            best = best.min((tree.distance(state), Reverse(n + 1)));
        }
    }
    best.1.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::model::tests::run;

    fn explained(script: &str, lost: &[usize]) -> Vec<usize> {
        let run = run(script);
        let modelled = Modelled::new(&run, Model::Posix).unwrap();
        let end = modelled.effects.len();
        let present: Vec<bool> = (0..end).map(|n| !lost.contains(&n)).collect();
        let state = modelled.tree(&present);
        let found = nearest(&modelled, end, &state);
        assert_eq!(modelled.tree(&found).distance(&state), 0);
        (0..end).filter(|n| !found[*n]).collect()
    }

    #[test]
    fn a_page_that_is_there_in_part_names_its_write() {
        let run = run("create f\nwrite f old\ncreate g\n");
        let modelled = Modelled::new(&run, Model::Posix).unwrap();
        let end = modelled.effects.len();
        let mut state = modelled.tree(&vec![true; end]);
        let file = state.resolve(b"f").unwrap();
        state.get_mut(file).unwrap().contents.zero(1, 1);
        let found = explain(&modelled, end, &state);
        assert!(found.present.iter().all(|is| *is));
        assert_eq!(found.torn, [3]);
    }

    #[test]
    fn lost_effects_are_found() {
        // Effects 0 to 3 are of `f`: the inode, its name, length and data. Those of `t` are 4 to 7.
        let script = "create f\nwrite f old\ncreate t\nwrite t new\nrename t f\ncreate g\n";
        for lost in [
            &[][..],           // nothing
            &[7],              // the data of the file that replaces `f`
            &[6, 7],           // and its length
            &[8],              // the rename, though not `g` after it
            &[9, 10],          // the newest file
            &[7, 9, 10],       // both
            &[6, 7, 8, 9, 10], // all but the names
        ] {
            assert_eq!(explained(script, lost), lost, "{lost:?}");
        }
        // Nobody sees that the replaced file was empty.
        assert!(explained(script, &[3]).is_empty());
    }
}
