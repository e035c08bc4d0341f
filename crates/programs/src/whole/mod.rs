//! A program on all of a durable memory: blocks of the heap and regions, made, changed and freed.

mod using;

pub use using::Using;

use crate::marks::{BEGUN, RETURNED, count_of, hash, mark_of, text};
use crash::program::{Memory, Program};
use mnemosyne::memory::{Flat, Layout, Options};
use mnemosyne::tx::{self, Truncation};
use std::cell::Cell;
use wordlog::Kind;

/// A step of a program on a store. A slot has a pointer to a block or a region, its length and its
/// contents.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// Allocates a block, filled inside the transaction.
    Alloc {
        slot: u64,
        bytes: u64,
    },
    /// Allocates a block, and fills it by plain stores before another transaction records that.
    Shadow {
        slot: u64,
        bytes: u64,
    },
    /// Writes to a thing by a transaction.
    Write {
        slot: u64,
    },
    /// Writes all words of a thing by one transaction.
    Rewrite {
        slot: u64,
    },
    Free {
        slot: u64,
    },
    /// Frees a block and allocates and fills another one, in a transaction that is cancelled.
    Cancel {
        slot: u64,
        bytes: u64,
    },
    /// Allocates a block and fills it in place. An inner transaction stores over that; its cancel
    /// restores the contents.
    Undo {
        slot: u64,
        bytes: u64,
    },
    Map {
        slot: u64,
    },
    /// Makes a region, and fails in the transaction that would record it.
    FailMap,
    Unmap {
        slot: u64,
    },
    /// Frees the block of `slot` and allocates blocks for `slot` and `other`, in one transaction.
    Replace {
        slot: u64,
        other: u64,
        bytes: u64,
    },
}

/// Blocks and regions are made, changed and freed, in places that others had before.
pub const STEPS: &[Step] = &[
    Step::Alloc {
        slot: 0,
        bytes: 100,
    },
    Step::Shadow {
        slot: 1,
        bytes: 5000,
    },
    Step::Write { slot: 1 },
    Step::Free { slot: 1 },
    Step::Shadow {
        slot: 1,
        bytes: 5000,
    },
    Step::Replace {
        slot: 0,
        other: 2,
        bytes: 100,
    },
    Step::Map { slot: 3 },
    Step::Write { slot: 3 },
    Step::Unmap { slot: 3 },
    Step::Map { slot: 3 },
    Step::Free { slot: 2 },
];

/// Transactions that are longer than a log of a few lines, and blocks in the places of their
/// overflows.
pub const OVERFLOWS: &[Step] = &[
    Step::Alloc {
        slot: 0,
        bytes: 320,
    },
    Step::Rewrite { slot: 0 },
    Step::Shadow {
        slot: 1,
        bytes: 5000,
    },
    Step::Rewrite { slot: 0 },
    Step::Free { slot: 1 },
    Step::Rewrite { slot: 0 },
];

/// Inner transactions store to blocks of the outer ones and are cancelled. Some of the blocks were
/// streamed, others were not.
pub const UNDONE: &[Step] = &[
    Step::Undo {
        slot: 0,
        bytes: 1024,
    },
    Step::Undo {
        slot: 1,
        bytes: 128,
    },
    Step::Free { slot: 0 },
    Step::Undo {
        slot: 2,
        bytes: 1024,
    },
];

pub struct Whole {
    pub kind: Kind,
    pub truncation: Truncation,
    pub log_lines: u64,
    pub steps: &'static [Step],
}

const SLOTS: u64 = 4;
/// Words of a slot: start, length in bytes, and contents (0: not filled yet).
const SLOT_WORDS: u64 = 3;

/// Length in bytes and contents of each slot's block or region.
pub type Table = [(u64, u64); SLOTS as usize];

impl Whole {
    pub fn layout(&self) -> Layout {
        Layout {
            slots: 6,
            roots: 2,
            granule: 8192,
            logs: 1,
            log_bytes: (self.log_lines + 1) * 64,
            log_kind: self.kind,
        }
    }

    fn options(&self) -> Options {
        Options {
            tx: tx::Options {
                truncation: self.truncation,
                locks: 256,
                ..tx::Options::default()
            },
            heap_growth: 40 << 10,
        }
    }

    /// The states that the steps go through, each with the value that its step fills in.
    fn states(&self) -> Vec<(Table, u64)> {
        let mut states = vec![(Table::default(), 0)];
        for (step, seed) in self.steps.iter().zip(1..) {
            let (now, _) = *states.last().expect("there is a first one");
            states.extend(
                step.states(now, seed)
                    .into_iter()
                    .map(|state| (state, seed)),
            );
        }
        states
    }
}

impl Step {
    /// The states that it goes through after `now`.
    pub fn states(self, mut now: Table, seed: u64) -> Vec<Table> {
        let mut states = Vec::new();
        match self {
            Self::Alloc { slot, bytes } | Self::Undo { slot, bytes } => {
                now[slot as usize] = (bytes, seed);
            }
            Self::Shadow { slot, bytes } => {
                now[slot as usize] = (bytes, 0);
                states.push(now);
                now[slot as usize] = (bytes, seed);
            }
            Self::Write { slot } | Self::Rewrite { slot } => now[slot as usize].1 = seed,
            Self::Free { slot } | Self::Unmap { slot } => now[slot as usize] = (0, 0),
            Self::Cancel { .. } | Self::FailMap => {}
            Self::Map { slot } => {
                now[slot as usize] = (4096, 0);
                states.push(now);
                now[slot as usize] = (4096, seed);
            }
            Self::Replace { slot, other, bytes } => {
                now[slot as usize] = (bytes, seed);
                now[other as usize] = (bytes, seed);
            }
        }
        states.push(now);
        states
    }
}

impl Program for Whole {
    type Opened = Using<Flat<Memory>>;

    fn bytes(&self) -> u64 {
        (self.layout().bytes() + (96 << 10)).next_multiple_of(64)
    }

    fn format(&self, pm: Memory) -> Result<(), String> {
        self.layout().format(&pm).map_err(text)
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let mut using = Using::open(self, Flat(pm)).map_err(text)?;
        let states = Cell::new(0);
        for (n, step) in self.steps.iter().enumerate() {
            let next = || {
                states.set(states.get() + 1);
                mark(mark_of(RETURNED, states.get()));
                mark(mark_of(BEGUN, states.get() + 1));
            };
            mark(mark_of(BEGUN, states.get() + 1));
            using.step(*step, n as u64 + 1, &next)?;
            states.set(states.get() + 1);
            mark(mark_of(RETURNED, states.get()));
        }
        Ok(())
    }

    fn open(&self, pm: Memory) -> Result<Self::Opened, String> {
        Using::open(self, Flat(pm)).map_err(text)
    }

    fn check(&self, using: &mut Self::Opened, marks: &[u64]) -> Result<u64, String> {
        let states = self.states();
        let allowed = count_of(marks, RETURNED)..=count_of(marks, BEGUN);
        let (_, filling) = states[*allowed.end()];
        let found = using.found(filling)?;
        match allowed.clone().any(|n| states[n].0 == found) {
            true => Ok(hash(found.iter().flat_map(|(a, b)| [*a, *b]))),
            false => Err(format!("{found:?} is none of the states {allowed:?}")),
        }
    }

    fn go_on(&self, mut using: Self::Opened) -> Result<(), String> {
        using.turn_over()
    }
}
