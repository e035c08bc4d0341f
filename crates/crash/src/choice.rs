//! The choices that lead to one crash state, and the walk over all of them.

/// Decision of cells beyond the path that is being replayed. A cell is a unit that a crash
/// leaves independently of others: a word, a line, a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Policy {
    /// None of its pending stores: the depth-first walk starts there.
    #[default]
    None,
    /// All of its pending stores.
    All,
    /// All for these two cells (which may be one), none for others.
    Only(u32, u32),
    /// None for these two cells, all for others.
    AllBut(u32, u32),
    /// The stores that were issued before this one, by number.
    Before(u64),
    /// All for the cells that have this one or a later one, none for others.
    Since(u64),
    /// Seeded, by cell, so the order of reads does not matter.
    Random(u64),
}

impl Policy {
    /// The choice for a cell: 0 takes none of its stores, `all` takes all of them. `choices`
    /// counts all choices, torn ones included. `numbers` are its stores, in order.
    pub(crate) fn pick(self, cell: u32, all: u32, choices: u32, numbers: &[u64]) -> u32 {
        match self {
            Policy::None => 0,
            Policy::All => all,
            Policy::Only(a, b) => all * u32::from(a == cell || b == cell),
            Policy::AllBut(a, b) => all * u32::from(a != cell && b != cell),
            Policy::Before(n) => numbers.iter().take_while(|number| **number < n).count() as u32,
            Policy::Since(n) => all * u32::from(numbers.last().is_some_and(|last| *last >= n)),
            Policy::Random(seed) => (mix(seed, u64::from(cell)) % u64::from(choices)) as u32,
        }
    }
}

/// A decision on the current path. Its cell is known once it was taken.
#[derive(Debug, Clone, Copy)]
struct Decision {
    cell: u32,
    choice: u32,
    choices: u32,
}

/// A path through the choices, taken decision by decision.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    path: Vec<Decision>,
    /// Decisions taken in this evaluation.
    taken: usize,
    policy: Policy,
}

impl Choices {
    /// Has the next evaluation take `path`, and `policy` beyond it. Choices out of range are
    /// clamped.
    pub(crate) fn start(&mut self, path: &[u32], policy: Policy) {
        let decision = |choice: &u32| Decision {
            cell: 0,
            choice: *choice,
            choices: u32::MAX,
        };
        self.path = path.iter().map(decision).collect();
        self.policy = policy;
        self.taken = 0;
    }

    /// Decides `cell`, which has several `choices`; `by` returns the choice of a policy.
    pub(crate) fn take(
        &mut self,
        cell: u32,
        choices: u32,
        by: impl FnOnce(Policy) -> u32,
    ) -> usize {
        if self.taken == self.path.len() {
            let choice = by(self.policy);
            self.path.push(Decision {
                cell,
                choice,
                choices,
            });
        }
        let decision = &mut self.path[self.taken];
        decision.cell = cell;
        decision.choices = choices;
        decision.choice = decision.choice.min(choices - 1);
        self.taken += 1;
        decision.choice as usize
    }

    /// Ends an evaluation. Decisions that it did not reach leave the path.
    pub(crate) fn end(&mut self) {
        self.path.truncate(self.taken);
        self.taken = 0;
    }

    /// Moves on to the next path, which the next evaluation takes. Returns whether there is one.
    pub(crate) fn next_path(&mut self) -> bool {
        while self.path.last().is_some_and(|d| d.choice + 1 >= d.choices) {
            self.path.pop();
        }
        if let Some(last) = self.path.last_mut() {
            last.choice += 1;
        }
        !self.path.is_empty()
    }

    /// The decisions taken since the evaluation began: cell and choice.
    pub(crate) fn decisions(&self) -> Vec<(u32, u32)> {
        let taken = &self.path[..self.taken];
        taken.iter().map(|d| (d.cell, d.choice)).collect()
    }
}

/// A 64-bit hash of two words (the finaliser of MurmurHash3).
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut h = (a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b).wrapping_add(0x2545_f491_4f6c_dd1d);
    for k in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        h = (h ^ (h >> 33)).wrapping_mul(k);
    }
    h ^ (h >> 33)
}
