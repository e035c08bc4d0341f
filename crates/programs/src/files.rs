//! Durable memory in the files of a directory: regions and the note of the boot. The file system
//! may lose all unsynchronised changes.

use crate::disk::{Arena, DISK_BYTES, Disk, Process};
use crate::marks::{BEGUN, RETURNED, count_of, hash, mark_of, text};
use crate::whole::{Step, Table, Using, Whole};
use crash::program::{Memory, Program};
use medium::{Durability, MapOptions, Overlay, Pmem};
use mnemosyne::memory::{
    Backing, BackingError, Directory, DirectoryOptions, Files, MemoryError, Region, check_regions,
};
use mnemosyne::tx::Truncation;
use parking_lot::Mutex;
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use wordlog::Kind;

/// Path of the directory. At first neither it nor the one above exists.
const PLACE: &str = "/above/memory";

/// A mark: the directory exists.
const OPENED: u64 = 11;
/// A mark with a count: odd while the directory is in use with durability `process`, even after.
const LOSABLE: u64 = 12;
/// A mark: a process was killed.
const KILLED: u64 = 13;

/// A process that uses the directory.
pub struct Life {
    pub durability: Durability,
    /// Its steps. Those that do not fit the present slots are skipped.
    pub steps: &'static [Step],
}

const fn life(durability: Durability, steps: &'static [Step]) -> Life {
    Life { durability, steps }
}

const MAKE: Step = Step::Map { slot: 2 };
const REMOVE: Step = Step::Unmap { slot: 2 };
/// A block of which the heap's first region has room for one.
const BLOCK: Step = Step::Shadow {
    slot: 0,
    bytes: 20_000,
};
const SECOND_BLOCK: Step = Step::Shadow {
    slot: 1,
    bytes: 20_000,
};

/// All kinds of steps, and a second process that replaces a region.
pub const DURABLE: &[Life] = &[
    life(
        Durability::Auto,
        &[
            BLOCK,
            MAKE,
            Step::Write { slot: 2 },
            Step::Map { slot: 3 },
            REMOVE,
            MAKE,
            SECOND_BLOCK,
            Step::FailMap,
            Step::Unmap { slot: 3 },
        ],
    ),
    life(Durability::Auto, &[REMOVE, Step::Map { slot: 3 }]),
];

/// With and without a note of the boot.
pub const NOTED: &[Life] = &[
    life(Durability::Process, &[MAKE, BLOCK]),
    life(Durability::Auto, &[Step::Write { slot: 2 }, REMOVE]),
    life(Durability::Process, &[MAKE, Step::Free { slot: 0 }]),
    life(Durability::Process, &[REMOVE]),
];

/// Pairs of a process that is killed and one that follows, for each durability of both.
pub const SUCCESSORS: [&[Life]; 4] = [
    &[
        life(Durability::Auto, &[MAKE, REMOVE]),
        life(Durability::Auto, &[MAKE]),
    ],
    &[
        life(Durability::Auto, &[MAKE]),
        life(Durability::Process, &[]),
    ],
    &[
        life(Durability::Process, &[MAKE, REMOVE]),
        life(Durability::Auto, &[MAKE]),
    ],
    &[
        life(Durability::Process, &[]),
        life(Durability::Process, &[MAKE]),
    ],
];

/// Processes that run serially in one boot of the machine.
pub struct InFiles {
    whole: Whole,
    pub lives: &'static [Life],
    /// The first of them is killed after that many steps.
    killed_after: usize,
    /// Whether it was killed before its end.
    pub was_killed: AtomicBool,
    /// The states that they went through, each with the value that its step fills in.
    states: Mutex<Vec<(Table, u64)>>,
}

type Use = Using<Directory<Process>>;

/// Progress of the processes.
struct Turn<'a> {
    mark: &'a dyn Fn(u64),
    states: &'a Mutex<Vec<(Table, u64)>>,
    /// Number of the present state.
    at: Cell<usize>,
    /// Count of the mark [`LOSABLE`].
    losable: usize,
}

impl Turn<'_> {
    /// Marks whether a crash may lose earlier changes.
    fn lose(&mut self, may: bool) {
        if may == self.losable.is_multiple_of(2) {
            self.losable += 1;
            (self.mark)(mark_of(LOSABLE, self.losable));
        }
    }

    /// Demands that a process found one of the states that the one before can have left: the last
    /// one reached, or the next. Continues from there.
    fn found(&self, using: &Use) -> Result<Table, String> {
        let mut states = self.states.lock();
        let at = self.at.get();
        let allowed = &states[at..(at + 2).min(states.len())];
        let (_, filling) = allowed[allowed.len() - 1];
        let found = using.found(filling)?;
        if !allowed.iter().any(|(table, _)| *table == found) {
            return Err(format!("a process finds {found:?}, not of {allowed:?}"));
        }
        states.push((found, filling));
        let last = states.len() - 1;
        drop(states);
        self.begin(last);
        self.at.set(last - 1);
        self.reach();
        Ok(found)
    }

    fn begin(&self, state: usize) {
        (self.mark)(mark_of(BEGUN, state));
    }

    /// Marks that the next state is reached, and the one after it begun, if there is one.
    fn reach(&self) {
        self.at.set(self.at.get() + 1);
        (self.mark)(mark_of(RETURNED, self.at.get()));
        if self.at.get() + 1 < self.states.lock().len() {
            self.begin(self.at.get() + 1);
        }
    }

    /// Runs a step, which fills things with `filling`.
    fn step(&self, using: &mut Use, step: Step, filling: u64) -> Result<(), String> {
        let seed = {
            let mut states = self.states.lock();
            let seed = states.len() as u64 + 10;
            let (now, _) = states[self.at.get()];
            let filling = if filling == 0 { seed } else { filling };
            let after = step.states(now, seed).into_iter();
            states.extend(after.map(|table| (table, filling)));
            seed
        };
        self.begin(self.at.get() + 1);
        using.step(step, seed, &|| self.reach())?;
        self.reach();
        Ok(())
    }
}

/// Whether a step fits the present slots. Each slot holds things of one kind.
fn fits(step: Step, now: &Table) -> bool {
    let is_there = |slot: u64| now[slot as usize].0 > 0;
    match step {
        Step::Alloc { slot, .. } | Step::Shadow { slot, .. } | Step::Map { slot } => {
            !is_there(slot)
        }
        Step::Write { slot } | Step::Free { slot } | Step::Unmap { slot } => is_there(slot),
        _ => true,
    }
}

impl InFiles {
    pub fn new(lives: &'static [Life], killed_after: usize) -> Self {
        let whole = Whole {
            kind: Kind::TornBit,
            truncation: Truncation::Lazy,
            log_lines: 30,
            steps: &[],
        };
        Self {
            whole,
            lives,
            killed_after,
            was_killed: AtomicBool::new(false),
            states: Mutex::default(),
        }
    }

    fn open_as(
        &self,
        process: &Process,
        durability: Durability,
        accept_loss: bool,
        is_open: &dyn Fn(),
    ) -> Result<Use, MemoryError> {
        let options = DirectoryOptions {
            bytes: 1 << 20,
            layout: self.whole.layout(),
            map: MapOptions {
                durability,
                ..MapOptions::default()
            },
            accept_loss,
            ..DirectoryOptions::default()
        };
        let directory = Directory::open_in(process.clone(), PLACE, &options)?;
        is_open();
        Using::open(&self.whole, directory)
    }

    /// Runs one process.
    fn live(&self, process: &Process, life: &Life, turn: &mut Turn<'_>) -> Result<(), String> {
        let is_process = life.durability == Durability::Process;
        if is_process {
            turn.lose(true);
        }
        let is_open = || (turn.mark)(mark_of(OPENED, 1));
        let opened = self.open_as(process, life.durability, false, &is_open);
        let mut using = opened.map_err(text)?;
        if !is_process {
            turn.lose(false);
        }
        let found = turn.found(&using)?;
        for (slot, thing) in (0..).zip(found) {
            // The process before was filling this thing.
            if thing.0 > 0 && thing.1 == 0 {
                let (_, filling) = self.states.lock()[turn.at.get()];
                turn.step(&mut using, Step::Write { slot }, filling)?;
            }
        }
        for step in life.steps {
            let (now, _) = self.states.lock()[turn.at.get()];
            if fits(*step, &now) {
                turn.step(&mut using, *step, 0)?;
            }
        }
        drop(using);
        if is_process && !process.is_dead() {
            turn.lose(false);
        }
        Ok(())
    }

    /// Demands that there are only the files of regions, and that the checker accepts their
    /// contents.
    fn check_files(&self, using: &Use, process: &Process) -> Result<(), String> {
        let mut slots = Vec::new();
        for name in process.names(Path::new(PLACE)).map_err(text)? {
            let name = name.to_string_lossy();
            match name.strip_prefix("region-").map(str::parse) {
                Some(Ok(slot)) => slots.push(slot),
                _ if name == "regions" => {}
                _ => return Err(format!("{name} is left over")),
            }
        }
        let directory = using.store.backing();
        let pm = Arc::new(Overlay::new(directory.arena().clone()));
        let report = check_regions(&Seen { directory, pm }, &slots);
        match report.findings.first() {
            None => Ok(()),
            Some(finding) => Err(finding.to_string()),
        }
    }
}

/// The regions of an open directory, as a backing for the checker.
struct Seen<'a> {
    directory: &'a Directory<Process>,
    pm: Arc<Overlay<Arc<Arena>>>,
}

impl Backing for Seen<'_> {
    type Pmem = Arc<Overlay<Arc<Arena>>>;

    fn pmem(&self) -> &Self::Pmem {
        &self.pm
    }

    fn create(&self, _region: &Region) -> Result<(), BackingError> {
        Ok(())
    }

    fn open(&self, region: &Region) -> Result<bool, BackingError> {
        Ok(self.pm.load(region.start + region.len - 8).is_ok())
    }

    fn remove(&self, _region: &Region) -> Result<(), BackingError> {
        Ok(())
    }

    fn describe(&self, region: &Region) -> String {
        self.directory.describe(region)
    }
}

/// The result of a start after a crash.
pub enum Found {
    /// The directory is refused, since the machine crashed.
    Refused(Process),
    /// The directory is open.
    There {
        using: Box<Use>,
        process: Process,
        /// Whether it existed before this start.
        was_there: bool,
    },
}

impl Program for InFiles {
    type Opened = Found;

    fn bytes(&self) -> u64 {
        DISK_BYTES
    }

    fn format(&self, _pm: Memory) -> Result<(), String> {
        Ok(())
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        *self.states.lock() = vec![(Table::default(), 0)];
        self.was_killed.store(false, Relaxed);
        let disk = Disk::mount(pm)?;
        let mut turn = Turn {
            mark,
            states: &self.states,
            at: Cell::new(0),
            losable: 0,
        };
        for (n, life) in self.lives.iter().enumerate() {
            let process = disk.process(if n == 0 {
                self.killed_after
            } else {
                usize::MAX
            });
            let lived = self.live(&process, life, &mut turn);
            match process.is_dead() {
                true => {
                    self.was_killed.store(true, Relaxed);
                    mark(mark_of(KILLED, 1));
                }
                false => lived?,
            }
        }
        Ok(())
    }

    /// Skips crashes before the kill of a process: a run without the kill has the same states.
    fn is_explored(&self, marks: &[u64]) -> bool {
        !self.was_killed.load(Relaxed) || count_of(marks, KILLED) > 0
    }

    fn open(&self, pm: Memory) -> Result<Found, String> {
        let process = Disk::mount(pm)?.process(usize::MAX);
        let regions = Path::new(PLACE).join("regions");
        let was_there = process.exists(&regions).map_err(text)?;
        match self.open_as(&process, Durability::Auto, false, &|| {}) {
            Ok(using) => Ok(Found::There {
                using: Box::new(using),
                process,
                was_there,
            }),
            Err(MemoryError::Backing(BackingError::Crashed { .. })) => Ok(Found::Refused(process)),
            Err(error) => Err(text(error)),
        }
    }

    fn check(&self, found: &mut Found, marks: &[u64]) -> Result<u64, String> {
        let Found::There {
            using,
            process,
            was_there,
        } = found
        else {
            return match count_of(marks, LOSABLE).is_multiple_of(2) {
                true => Err("it is refused, and all was durable".into()),
                false => Ok(1),
            };
        };
        if !*was_there && count_of(marks, OPENED) > 0 {
            return Err("it was there, and is lost".into());
        }
        let states = self.states.lock();
        let allowed = count_of(marks, RETURNED)..=count_of(marks, BEGUN);
        let (_, filling) = states[*allowed.end()];
        let table = using.found(filling)?;
        if !allowed.clone().any(|n| states[n].0 == table) {
            return Err(format!("{table:?} is not one of the states {allowed:?}"));
        }
        self.check_files(using, process)?;
        Ok(hash(table.iter().flat_map(|(a, b)| [*a, *b])))
    }

    fn go_on(&self, found: Found) -> Result<(), String> {
        let process = match found {
            Found::There {
                mut using, process, ..
            } => {
                using.turn_over()?;
                process
            }
            Found::Refused(process) => {
                // The contents are unknown, so that opening them may fail.
                if self
                    .open_as(&process, Durability::Auto, true, &|| {})
                    .is_err()
                {
                    return Ok(());
                }
                process
            }
        };
        self.open_as(&process, Durability::Auto, false, &|| {})
            .map(drop)
            .map_err(text)
    }
}
