//! Which optimisations of section 2.2 are in force.

/// Switches of the optimisations, to measure each. They do not change the order that the
/// cache obeys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Optimise {
    /// Patches that can never be the head of a block-level cycle keep no undo data (2.2.1).
    pub hard: bool,
    /// A change that could be hard joins its block's hard patch (2.2.2). Without it each such
    /// change keeps a record of its own. Has no effect without `hard`.
    pub hard_merge: bool,
    /// A change joins the patch that it overlaps where that is safe (2.2.3).
    pub overlap_merge: bool,
    /// Counts show which patches are ready; without it, a search of the graph does (2.2.4).
    pub ready_lists: bool,
}

impl Optimise {
    /// No optimisation but `ready_lists`.
    pub const NONE: Self = Self {
        hard: false,
        hard_merge: false,
        overlap_merge: false,
        ready_lists: true,
    };
    /// All optimisations.
    pub const ALL: Self = Self {
        hard: true,
        hard_merge: true,
        overlap_merge: true,
        ready_lists: true,
    };
}

impl Default for Optimise {
    fn default() -> Self {
        Self::ALL
    }
}

/// The combinations that Table 2.10 compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimised {
    /// No merges and no hard patches.
    None,
    /// Hard patches, and changes that join them.
    Hard,
    /// Changes that join the patch that they overlap.
    Overlap,
    /// Hard patches and both kinds of merges.
    #[default]
    Both,
}

impl Optimised {
    /// All combinations.
    pub const ALL: [Self; 4] = [Self::None, Self::Hard, Self::Overlap, Self::Both];
}

impl From<Optimised> for Optimise {
    fn from(which: Optimised) -> Self {
        let hard = matches!(which, Optimised::Hard | Optimised::Both);
        Self {
            hard,
            hard_merge: hard,
            overlap_merge: matches!(which, Optimised::Overlap | Optimised::Both),
            ..Self::ALL
        }
    }
}
