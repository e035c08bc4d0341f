//! Modes of a lock, and the two tables from which all rules about them follow.
//!
//! A mode has two parts: what its holder may do to the object itself, and to the descendants of the
//! object. So every combination of an explicit, a hierarchical and an intent lock is one mode, and
//! two combinations have a least upper bound.
//!
//! 1. Strength is a lattice: [`Mode::join`] is the weakest mode that contains both, and
//!    [`Mode::meet`] the strongest that both contain.
//! 2. Compatibility is symmetric, and a weaker mode is compatible with everything with which a
//!    stronger one is.
//! 3. Two modes of two clients that cover the same descendant, one of them for writing, are
//!    incompatible at some ancestor, provided that both hold the intents that [`Mode::intent`] demands.

use crate::seeded::{Bug, hit};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The actions that a lock allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Reading, beside other readers.
    Shared,
    /// Writing, alone.
    Exclusive,
}

/// One part of a mode. The bits are a lattice: a part contains another if it has all its bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Part(u8);

const NONE: Part = Part(0b0000);
/// Shared locks further down.
const IS: Part = Part(0b0001);
/// Exclusive locks further down.
const IX: Part = Part(0b0011);
/// Shared.
const S: Part = Part(0b0101);
/// Shared, and exclusive locks further down.
const SIX: Part = Part(0b0111);
/// Exclusive.
const X: Part = Part(0b1111);

/// The first table: the parts with which a part is compatible.
const COMPATIBLE: [(Part, &[Part]); 6] = [
    (NONE, &[NONE, IS, IX, S, SIX, X]),
    (IS, &[NONE, IS, IX, S, SIX]),
    (IX, &[NONE, IS, IX]),
    (S, &[NONE, IS, S]),
    (SIX, &[NONE, IS]),
    (X, &[NONE]),
];

/// The second table, of the part for descendants: the part that it covers for both parts of a
/// descendant's mode, and the strongest parts of a child's mode that it allows to lock explicitly.
const DOWN: [(Part, Part, Part); 6] = [
    // part, covers, allows
    (NONE, NONE, NONE),
    (IS, NONE, S),
    (IX, NONE, X),
    (S, S, S),
    (SIX, S, X),
    (X, X, X),
];

impl Part {
    fn is_within(self, other: Self) -> bool {
        self.0 & other.0 == self.0
    }

    fn is_compatible(self, other: Self) -> bool {
        let is_intent = |part: Self| part == IX;
        let is_tree = |part: Self| [S, SIX, X].contains(&part);
        let beside_tree = is_intent(self) && is_tree(other) || is_tree(self) && is_intent(other);
        if beside_tree && hit(Bug::IntentBesideTree) {
            return true;
        }
        let mut row = COMPATIBLE.iter().filter(|(part, _)| *part == self);
        row.any(|(_, compatible)| compatible.contains(&other))
    }

    /// The part that this one covers for a descendant, and the one that it allows for a child.
    fn down(self) -> (Self, Self) {
        let row = DOWN.iter().find(|(part, _, _)| *part == self);
        row.map_or((NONE, NONE), |(_, covers, allows)| (*covers, *allows))
    }

    /// The weakest part of a parent that allows this part in a child.
    fn intent(self) -> Self {
        let allows = |parent: &Part| self.is_within(parent.down().1);
        let parents = COMPATIBLE.map(|(part, _)| part);
        parents.into_iter().find(allows).unwrap_or(X)
    }

    /// The strongest part within this one that passes a test.
    fn limited(self, passes: impl Fn(Self) -> bool) -> Self {
        let parts = COMPATIBLE.map(|(part, _)| part);
        let within = parts.into_iter().filter(|part| part.is_within(self));
        within
            .filter(|part| passes(*part))
            .fold(NONE, |most, part| Self(most.0 | part.0))
    }
}

/// A mode of a lock. The default is not to hold it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub struct Mode {
    own: Part,
    below: Part,
}

impl Mode {
    /// The lock is not held.
    pub const NONE: Self = Self {
        own: NONE,
        below: NONE,
    };

    /// The object, but not its descendants.
    pub const fn explicit(access: Access) -> Self {
        Self {
            own: full(access),
            below: NONE,
        }
    }

    /// The object and its descendants: a hierarchical lock.
    pub const fn tree(access: Access) -> Self {
        Self {
            own: full(access),
            below: full(access),
        }
    }

    /// Neither the object nor its descendants, but the right to lock descendants.
    pub const fn intent(access: Access) -> Self {
        let below = match access {
            Access::Shared => IS,
            Access::Exclusive => IX,
        };
        Self { own: NONE, below }
    }

    /// Every mode.
    pub fn all() -> impl Iterator<Item = Self> {
        let below = COMPATIBLE.map(|(part, _)| part).into_iter();
        below.flat_map(|below| [NONE, S, X].map(|own| Self { own, below }))
    }

    /// Whether the lock is not held.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Whether the other mode allows all that this one does.
    pub fn is_within(self, other: Self) -> bool {
        self.own.is_within(other.own) && self.below.is_within(other.below)
    }

    /// Whether two clients, or two threads, can hold these modes at a time.
    pub fn is_compatible(self, other: Self) -> bool {
        self.own.is_compatible(other.own) && self.below.is_compatible(other.below)
    }

    /// The weakest mode that contains both.
    pub fn join(self, other: Self) -> Self {
        Self {
            own: Part(self.own.0 | other.own.0),
            below: Part(self.below.0 | other.below.0),
        }
    }

    /// The strongest mode that both contain.
    pub fn meet(self, other: Self) -> Self {
        Self {
            own: Part(self.own.0 & other.own.0),
            below: Part(self.below.0 & other.below.0),
        }
    }

    /// The strongest mode within this one that is compatible with another client's: the target of a
    /// revoke.
    pub fn beside(self, other: Self) -> Self {
        Self {
            own: self.own.limited(|part| part.is_compatible(other.own)),
            below: self.below.limited(|part| part.is_compatible(other.below)),
        }
    }

    /// The mode that a holder of this one holds implicitly of every descendant with one membership.
    pub fn covers(self) -> Self {
        let (covered, _) = self.below.down();
        Self {
            own: covered,
            below: covered,
        }
    }

    /// The intent that a holder of this mode needs on the parent.
    pub fn needs(self) -> Self {
        let below = self.own.intent().0 | self.below.intent().0;
        Self {
            own: NONE,
            below: Part(below),
        }
    }

    /// Whether the holder may change the object or a descendant.
    pub fn may_write(self) -> bool {
        self.own == X || self.below == X
    }
}

/// The part of an object or a tree that is locked as a whole.
const fn full(access: Access) -> Part {
    match access {
        Access::Shared => S,
        Access::Exclusive => X,
    }
}

impl From<Mode> for u8 {
    /// The part for the object in the upper half, that for the descendants in the lower half.
    fn from(mode: Mode) -> Self {
        mode.own.0 << 4 | mode.below.0
    }
}

/// A number that is not a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0:#x} is not the mode of a lock")]
pub struct NotAMode(u8);

impl TryFrom<u8> for Mode {
    type Error = NotAMode;

    fn try_from(bits: u8) -> Result<Self, NotAMode> {
        let mode = Self::all().find(|mode| u8::from(*mode) == bits);
        mode.ok_or(NotAMode(bits))
    }
}

impl Default for Mode {
    fn default() -> Self {
        Self::NONE
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            NONE => "none",
            IS => "intent-shared",
            IX => "intent-exclusive",
            S => "shared",
            SIX => "shared-intent-exclusive",
            _ => "exclusive",
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "object {}, below {}", self.own, self.below)
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs() -> impl Iterator<Item = (Mode, Mode)> {
        Mode::all().flat_map(|a| Mode::all().map(move |b| (a, b)))
    }

    #[test]
    fn strength_is_a_lattice() {
        for (a, b) in pairs() {
            let (up, down) = (a.join(b), a.meet(b));
            assert!(a.is_within(up) && b.is_within(up));
            assert!(down.is_within(a) && down.is_within(b));
            assert!(Mode::all().any(|mode| mode == up) && Mode::all().any(|mode| mode == down));
            for c in Mode::all() {
                assert!(!(a.is_within(c) && b.is_within(c)) || up.is_within(c));
                assert!(!(c.is_within(a) && c.is_within(b)) || c.is_within(down));
                assert!(!(a.is_within(b) && b.is_within(c)) || a.is_within(c));
            }
            assert_eq!(a.is_within(b) && b.is_within(a), a == b);
        }
        assert_eq!(Mode::all().count(), 18);
    }

    #[test]
    fn compatibility_is_symmetric_and_weaker_modes_keep_it() {
        for (a, b) in pairs() {
            assert_eq!(a.is_compatible(b), b.is_compatible(a), "{a} and {b}");
            assert!(a.is_compatible(Mode::NONE));
            for c in Mode::all().filter(|c| c.is_within(b)) {
                assert!(!a.is_compatible(b) || a.is_compatible(c), "{a}, {b}, {c}");
            }
        }
    }

    /// The rules of Gray and others, in the words of the paper.
    #[test]
    fn compatibility_is_that_of_the_modes_names() {
        use Access::{Exclusive, Shared};
        let both_read = |a, b| (a, b) == (Shared, Shared);
        for a in [Shared, Exclusive] {
            for b in [Shared, Exclusive] {
                let [explicit, tree, intent] = [Mode::explicit, Mode::tree, Mode::intent];
                assert_eq!(explicit(a).is_compatible(explicit(b)), both_read(a, b));
                assert_eq!(tree(a).is_compatible(tree(b)), both_read(a, b));
                assert_eq!(explicit(a).is_compatible(tree(b)), both_read(a, b));
                assert_eq!(intent(a).is_compatible(tree(b)), both_read(a, b));
                assert!(intent(a).is_compatible(intent(b)));
                assert!(intent(a).is_compatible(explicit(b)));
            }
        }
    }

    #[test]
    fn a_revoke_asks_for_no_more_than_the_waiter_needs() {
        for (held, wanted) in pairs() {
            let left = held.beside(wanted);
            assert!(left.is_within(held) && left.is_compatible(wanted));
            for other in Mode::all().filter(|mode| mode.is_within(held)) {
                let is_enough = other.is_compatible(wanted);
                assert!(!is_enough || other.is_within(left), "{held}, {wanted}");
            }
            assert_eq!(left == held, held.is_compatible(wanted));
        }
        let tree = Mode::tree(Access::Exclusive);
        let intent = Mode::intent(Access::Exclusive);
        let left = intent.join(Mode::explicit(Access::Exclusive));
        assert_eq!(tree.beside(intent), left, "de-escalation");
    }

    #[test]
    fn intents_are_the_weakest_that_allow_a_child() {
        for (child, parent) in pairs() {
            let (_, allowed) = parent.below.down();
            let is_allowed = child.own.is_within(allowed) && child.below.is_within(allowed);
            assert_eq!(
                child.needs().is_within(parent),
                is_allowed,
                "{child}, {parent}"
            );
            // A holder of a covering lock can lock explicitly what it covers.
            assert!(parent.covers().needs().is_within(parent));
        }
    }

    /// Two clients, an ancestor, and a child that one covers implicitly and the other one locks.
    #[test]
    fn covered_and_locked_descendants_conflict_at_the_ancestor() {
        for (covering, locked) in pairs() {
            let meets_at_child = !covering.covers().is_compatible(locked);
            let meets_at_parent = !covering.is_compatible(locked.needs());
            assert_eq!(meets_at_child, meets_at_parent, "{covering} and {locked}");
            // Two coverings of the same descendant.
            if !covering.covers().is_compatible(locked.covers()) {
                assert!(!covering.is_compatible(locked));
            }
        }
    }
}
