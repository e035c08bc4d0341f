//! Kills: a service ends in the middle of a commit, the next one recovers what is in the caches, and then the power
//! fails. All that the recovery has found is durable.

use super::crashes::{Collection, Cut, File, Link, Page, Remove, Show, Step};
use super::crashes::{contents, options, step_all, text};
use crate::seeded::{Bug, arm, fired};
use crate::{Store, check};
use crash::program::{Explored, Memory, Program, explore};
use medium::layer::PmemLayer;
use medium::{MediumError, MemoryPmem, Pmem, Rule};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

/// Memory of a process that is killed after some calls.
struct Dying {
    below: Memory,
    left: AtomicU64,
}

impl Dying {
    fn new(below: &Memory, calls: u64) -> Arc<Self> {
        Arc::new(Self {
            below: below.clone(),
            left: AtomicU64::new(calls),
        })
    }

    /// Counts a call, or ends the process. `false` in what runs while it ends.
    fn lives(&self) -> bool {
        let less = |left: u64| left.checked_sub(1);
        let lives = self.left.fetch_update(SeqCst, SeqCst, less).is_ok();
        if !lives && !thread::panicking() {
            panic::resume_unwind(Box::new("killed"));
        }
        lives
    }
}

impl PmemLayer for Dying {
    type Below = dyn Pmem;

    fn below(&self) -> &Self::Below {
        &*self.below
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        if self.lives() {
            self.below.store(off, bytes);
        }
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        if self.lives() {
            self.below.store_nt(off, bytes);
        }
    }

    fn flush(&self, off: u64, len: u64) {
        if self.lives() {
            self.below.flush(off, len);
        }
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        match self.lives() {
            true => self.below.fence(rule),
            false => Err(MediumError::PowerCut),
        }
    }
}

/// A transaction that a kill ends, after the first one.
#[derive(Debug, Clone)]
struct Killed {
    transactions: [&'static [Step]; 2],
    /// Stores, flushes and fences of the second transaction before the kill.
    calls: u64,
    /// Readable contents without the second transaction, with it, and after the recovery.
    contents: [String; 3],
}

/// The process is dead.
const DEAD: u64 = 1;
/// The next one has recovered.
const RECOVERED: u64 = 2;

impl Killed {
    /// A program for each moment of the kill.
    fn all(transactions: [&'static [Step]; 2]) -> Vec<Self> {
        let mut program = Self {
            transactions,
            calls: u64::MAX,
            contents: Default::default(),
        };
        let memory: Memory = Arc::new(MemoryPmem::new(program.bytes()));
        program.format(memory.clone()).unwrap();
        let seen = || contents(&memory, &Store::open(memory.clone()).unwrap()).unwrap();
        program.contents[0] = seen();
        let calls = program.kill(&memory).unwrap();
        program.contents[1] = seen();
        let killed = (0..calls).map(|calls| {
            let mut program = Self {
                calls,
                ..program.clone()
            };
            let memory: Memory = Arc::new(MemoryPmem::new(program.bytes()));
            program.format(memory.clone()).unwrap();
            program.kill(&memory).unwrap();
            let store = Store::open(memory.clone()).unwrap();
            program.contents[2] = contents(&memory, &store).unwrap();
            assert!(program.contents[..2].contains(&program.contents[2]));
            program
        });
        killed.collect()
    }

    /// Returns the number of calls that the second transaction has made.
    fn kill(&self, memory: &Memory) -> Result<u64, String> {
        let dying = Dying::new(memory, u64::MAX);
        let store = Store::open(dying.clone() as Memory).map_err(text)?;
        dying.left.store(self.calls, SeqCst);
        let mut tx = store.begin().map_err(text)?;
        let process = AssertUnwindSafe(move || {
            step_all(&mut tx, self.transactions[1])?;
            tx.commit()
        });
        match panic::catch_unwind(process) {
            Ok(done) => done.map_err(text)?,
            Err(payload) if payload.is::<&str>() && dying.left.load(SeqCst) == 0 => {}
            Err(payload) => panic::resume_unwind(payload),
        }
        Ok(self.calls - dying.left.load(SeqCst))
    }
}

impl Program for Killed {
    type Opened = (Store<Memory>, Memory);

    fn bytes(&self) -> u64 {
        1 << 18
    }

    fn format(&self, memory: Memory) -> Result<(), String> {
        crate::format(&memory, 7).map_err(text)?;
        let store = Store::open(memory).map_err(text)?;
        let mut tx = store.begin().map_err(text)?;
        step_all(&mut tx, self.transactions[0]).map_err(text)?;
        tx.commit().map_err(text)
    }

    fn run(&self, memory: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        self.kill(&memory)?;
        mark(DEAD);
        Store::open(memory).map_err(text)?;
        mark(RECOVERED);
        Ok(())
    }

    fn is_explored(&self, marks: &[u64]) -> bool {
        marks.contains(&DEAD)
    }

    fn open(&self, memory: Memory) -> Result<Self::Opened, String> {
        let store = Store::open(memory.clone()).map_err(text)?;
        Ok((store, memory))
    }

    fn check(&self, (store, memory): &mut Self::Opened, marks: &[u64]) -> Result<u64, String> {
        if let Some(finding) = check(memory).findings.first() {
            return Err(finding.to_string());
        }
        let found = contents(memory, store).map_err(text)?;
        let [without, with, recovered] = &self.contents;
        let is_allowed = match marks.contains(&RECOVERED) {
            true => *recovered == found,
            false => [without, with].contains(&&found),
        };
        if !is_allowed {
            return Err(format!("after {marks:?} there is {found}"));
        }
        let mut hasher = DefaultHasher::new();
        found.hash(&mut hasher);
        Ok(hasher.finish())
    }
}

const PROGRAMS: [[&[Step]; 2]; 2] = [
    [&[File(1), Page(1, 0)], &[Link(1, 3), Page(1, 1), Show(1)]],
    [
        &[File(1), Page(1, 600), Collection(2)],
        &[Cut(1, 1), Remove(2), File(4)],
    ],
];

/// Explores the kills of a program, up to the first failure. Returns the number of states as well.
fn explore_all(programs: &[Killed]) -> (u64, Option<(u64, Explored)>) {
    let mut states = 0;
    for program in programs {
        for options in options().filter(|options| options.recovery_depth == 0) {
            let explored = explore(program, &options).unwrap();
            states += explored.states;
            if explored.failure.is_some() {
                return (states, Some((program.calls, explored)));
            }
        }
    }
    (states, None)
}

#[test]
fn a_recovery_after_a_kill_is_durable() {
    for program in PROGRAMS {
        let (states, failure) = explore_all(&Killed::all(program));
        assert!(failure.is_none(), "{failure:?}");
        assert!(states > 100, "{states} states");
    }
}

#[test]
fn a_replay_of_a_log_that_is_not_durable_is_found() {
    let programs = Killed::all(PROGRAMS[0]);
    arm(Some(Bug::ReplayBeforeLog));
    let (_, failure) = explore_all(&programs);
    let has_fired = fired() > 0;
    arm(None);
    assert!(failure.is_some() && has_fired);
}
