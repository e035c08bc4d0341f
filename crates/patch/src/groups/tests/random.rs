//! Random calls on sets and random power cuts: a change survives only with all for which it
//! waits.

use super::*;
use crate::journal::tests::device::Event;
use crate::seeded::{self, Bug};
use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};
use std::collections::{BTreeMap, BTreeSet};

const SETS: usize = 6;
const BLOCKS: u64 = 20;

/// Crashes of each script.
const CRASHES: usize = 24;

#[derive(Debug, Clone)]
enum Step {
    /// An operation whose changes join these sets, by bits, with the blocks that it changes.
    Change(u8, Vec<u64>),
    /// The first set waits for the second one.
    Depend(usize, usize),
    Barrier(usize),
    Sync(usize),
    /// Another set takes the place of a removed one.
    Replace(usize),
    WriteSome,
    Commit,
    Checkpoint,
    SyncAll,
    /// A block is freed, so what it held is of no more use.
    Free(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let set = || 0..SETS;
    let changes = proptest::collection::vec(0..BLOCKS, 1..4);
    let bits = prop_oneof![
        1 => Just(0),
        4 => set().prop_map(|set| 1_u8 << set),
        1 => any::<u8>(),
    ];
    let step = prop_oneof![
        20 => (bits, changes).prop_map(|(sets, blocks)| Step::Change(sets, blocks)),
        5 => (set(), set()).prop_map(|(after, before)| Step::Depend(after, before)),
        4 => set().prop_map(Step::Barrier),
        1 => set().prop_map(Step::Sync),
        1 => set().prop_map(Step::Replace),
        8 => Just(Step::WriteSome),
        2 => Just(Step::Commit),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::SyncAll),
        2 => (0..BLOCKS).prop_map(Step::Free),
    ];
    proptest::collection::vec(step, 1..80)
}

/// A set as the guarantees describe it.
#[derive(Debug, Clone, Default)]
struct Model {
    number: u64,
    /// All changes for which later ones wait.
    befores: BTreeSet<u64>,
    changes: BTreeSet<u64>,
}

/// A change, by its stamp. A later change at the same place counts as this one too.
#[derive(Debug)]
struct Made {
    place: (u64, u64),
    befores: BTreeSet<u64>,
}

struct World {
    setup: Setup,
    sets: Vec<Model>,
    /// The changes whose blocks were not freed.
    made: BTreeMap<u64, Made>,
    /// The number of changes so far.
    stamps: u64,
    /// The changes that each sync made durable.
    synced: Vec<BTreeSet<u64>>,
}

impl World {
    fn new(on: On) -> Self {
        let setup = Setup::new(on);
        let set = |_| Model {
            number: setup.groups.create(),
            ..Model::default()
        };
        Self {
            sets: (0..SETS).map(set).collect(),
            setup,
            made: BTreeMap::new(),
            stamps: 0,
            synced: Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Change(bits, blocks) => self.change(*bits, blocks),
            Step::Depend(after, before) => self.depend(*after, *before),
            Step::Barrier(set) => {
                self.setup.groups.barrier(self.sets[*set].number).unwrap();
                self.wait_for(*set, *set);
            }
            Step::Sync(set) => {
                let set = &self.sets[*set];
                self.setup.sync(set.number).unwrap();
                let all = self.closure(set);
                self.must_survive(all);
            }
            Step::Replace(set) => {
                let groups = &self.setup.groups;
                groups.remove(self.sets[*set].number);
                self.sets[*set] = Model {
                    number: groups.create(),
                    ..Model::default()
                };
            }
            Step::WriteSome => {
                self.setup.cache.write_some().unwrap();
            }
            Step::Commit => self.setup.commit(),
            Step::Checkpoint => {
                if let Some(journal) = &self.setup.journal {
                    journal.checkpoint().unwrap();
                }
            }
            Step::SyncAll => {
                self.setup.top.sync_all().unwrap();
                self.must_survive(self.made.keys().copied().collect());
            }
            Step::Free(lba) => self.free(*lba),
        }
        self.setup.cache.verify().unwrap();
    }

    fn change(&mut self, bits: u8, blocks: &[u64]) {
        let joined: Vec<usize> = (0..SETS).filter(|set| bits >> set & 1 == 1).collect();
        let numbers: Vec<u64> = joined.iter().map(|set| self.sets[*set].number).collect();
        let mut befores = BTreeSet::new();
        for set in &joined {
            befores.extend(&self.sets[*set].befores);
        }
        let top = &self.setup.top;
        let op = top.begin(blocks.len() as u32, caller(&numbers)).unwrap();
        for &lba in blocks {
            self.stamps += 1;
            let stamp = self.stamps;
            // Many changes overlap others.
            let place = (lba, 1 + stamp % 5);
            self.setup.put_in(&op, place, content(lba), stamp).unwrap();
            let befores = befores.clone();
            self.made.insert(stamp, Made { place, befores });
            for set in &joined {
                self.sets[*set].changes.insert(stamp);
            }
        }
        self.setup.top.end(op);
    }

    fn depend(&mut self, after: usize, before: usize) {
        let number = |set: usize| self.sets[set].number;
        self.setup.groups.depend(number(after), number(before));
        self.wait_for(after, before);
    }

    fn wait_for(&mut self, after: usize, before: usize) {
        let befores = self.closure(&self.sets[before]);
        self.sets[after].befores.extend(befores);
    }

    /// The changes of a set, and those for which it waits.
    fn closure(&self, set: &Model) -> BTreeSet<u64> {
        let mut all = &set.befores | &set.changes;
        for change in &set.changes {
            if let Some(made) = self.made.get(change) {
                all.extend(&made.befores);
            }
        }
        all
    }

    fn must_survive(&mut self, changes: BTreeSet<u64>) {
        self.synced.push(changes);
        self.setup.device.note(Event::Synced(self.synced.len()));
    }

    /// Crash states may keep what a freed block held, or not.
    fn free(&mut self, lba: u64) {
        let op = self.setup.top.begin(1, Caller::SYSTEM).unwrap();
        self.setup.top.freed(&op, Lba(lba), &[], false).unwrap();
        self.setup.top.end(op);
        self.made.retain(|_, made| made.place.0 != lba);
    }

    fn check(&self, stamps: &Stamps, synced: usize) -> Result<(), String> {
        let survives = |change: &u64| {
            let made = self.made.get(change);
            made.is_none_or(|made| stamps.at(made.place) >= *change)
        };
        for (change, made) in self.made.iter().filter(|(change, _)| survives(change)) {
            if let Some(lost) = made.befores.iter().find(|before| !survives(before)) {
                return Err(format!("{change} of {made:?} is there without {lost}"));
            }
        }
        for synced in &self.synced[..synced] {
            if let Some(lost) = synced.iter().find(|change| !survives(change)) {
                return Err(format!("{lost} was synced, and is lost"));
            }
        }
        Ok(())
    }
}

/// Runs a script, cuts the power at random moments, and returns the first wrong state.
fn run(on: On, steps: &[Step], seed: u64) -> Result<(), String> {
    let mut world = World::new(on);
    for step in steps {
        world.step(step);
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    let events = world.setup.device.events.lock().len();
    for _ in 0..CRASHES {
        let until = rng.usize(..=events);
        let crash = world.setup.device.crash(until, &mut rng, |lba| lba >= HOME);
        let synced = crash.synced;
        let stamps = world.setup.after(crash);
        let checked = world.check(&stamps, synced);
        checked.map_err(|e| format!("{on:?}, event {until} of {events}: {e}"))?;
    }
    Ok(())
}

/// Runs random scripts until one leaves a wrong state.
fn explore(on: On, cases: u32) -> Result<(), String> {
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut runner = TestRunner::new(config);
    let found = runner.run(&(steps(), any::<u64>()), |(steps, seed)| {
        run(on, &steps, seed).map_err(TestCaseError::fail)
    });
    found.map_err(|e| match e {
        TestError::Fail(why, (steps, seed)) => format!("{why}: {steps:?}, seed {seed}"),
        TestError::Abort(why) => why.to_string(),
    })
}

#[test]
fn a_change_survives_only_with_all_for_which_it_waits() {
    for on in On::ALL {
        explore(on, 300).unwrap();
    }
}

#[test]
fn a_group_that_is_released_early_is_found() {
    for on in On::ALL {
        seeded::arm(Some(Bug::GroupReleasedEarly));
        let caught = explore(on, 2000).is_err();
        let fired = seeded::fired();
        seeded::arm(None);
        assert!(caught && fired > 0, "{on:?}");
    }
}
