//! Programs on the structures of `persist`: transactions that grow and shrink them.

use crate::marks::{BEGUN, RETURNED, count_of, hash, mark_of, text};
use crash::program::{Memory, Program};
use medium::MemoryPmem;
use mnemosyne::memory::{DurableMemory, Flat, Layout, Options, Session, Tx};
use mnemosyne::tx::{self, Interrupted, Stop, Truncation};
use persist::structures::{BTree, Bytes, HashMap, Journal, Queue, Vector};
use persist::{Persist, Ptr, TypedSession};
use std::convert::Infallible;
use std::sync::Arc;

/// One structure of each kind, with small parts.
#[derive(Debug, Persist)]
struct All {
    table: HashMap<u64, Bytes>,
    tree: BTree<Bytes, u64, 3>,
    vector: Vector<Bytes, 1>,
    queue: Queue<u64, 2>,
    log: Journal<24>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Table,
    Tree,
    Vector,
    Queue,
    Log,
}

pub const KINDS: [Kind; 5] = [
    Kind::Table,
    Kind::Tree,
    Kind::Vector,
    Kind::Queue,
    Kind::Log,
];

/// A change of a structure.
#[derive(Debug, Clone, Copy)]
pub enum Change {
    /// Adds an element with this key or content. In a table or tree it may replace the value of
    /// a key.
    Add(Kind, u64),
    /// Removes the element with this key, the next element, or all of a log in front of this one.
    Take(Kind, u64),
}

/// The contents of a structure, and its blocks of the heap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holds {
    /// A line for each element, and one with their number.
    pub contents: Vec<String>,
    pub blocks: Vec<u64>,
}

/// Transactions on structures. Those before `from` are over when the program begins.
pub struct Structures {
    pub truncation: Truncation,
    pub from: usize,
    pub steps: Vec<Vec<Change>>,
    /// By number of transactions: the contents after them.
    pub states: Vec<[Holds; 5]>,
}

/// Bytes that are too long to lie in a structure itself. Some are too long to be logged.
fn bytes(n: u64) -> Vec<u8> {
    let mut bytes = format!("{n:020}").into_bytes();
    if n % 4 == 3 {
        bytes.resize(600, b'.');
    }
    bytes
}

fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    format!("{} of {}", text.trim_start_matches('0'), bytes.len())
}

type Done<T> = Result<T, Interrupted>;

fn change(tx: &mut Tx<'_, Memory>, all: Ptr<All>, change: Change, step: u64) -> Done<()> {
    let (table, tree) = (all.at(All::TABLE), all.at(All::TREE));
    let (vector, queue, log) = (all.at(All::VECTOR), all.at(All::QUEUE), all.at(All::LOG));
    match change {
        Change::Add(Kind::Table, n) => table.insert(tx, &n, &bytes(step)).map(drop),
        Change::Add(Kind::Tree, n) => tree.insert(tx, &bytes(n), &step).map(drop),
        Change::Add(Kind::Vector, n) => vector.push(tx, &bytes(n)).map(drop),
        Change::Add(Kind::Queue, n) => queue.push(tx, &n),
        Change::Add(Kind::Log, n) => log.append(tx, &bytes(n)[..13 + n as usize % 8]).map(drop),
        Change::Take(Kind::Table, n) => table.remove(tx, &n).map(drop),
        Change::Take(Kind::Tree, n) => tree.remove(tx, &bytes(n)).map(drop),
        Change::Take(Kind::Vector, _) => vector.pop(tx).map(drop),
        Change::Take(Kind::Queue, _) => queue.pop(tx).map(drop),
        Change::Take(Kind::Log, n) => log.truncate(tx, n),
    }
}

/// The contents of a structure, by iteration and by lookup.
fn holds(tx: &mut Tx<'_, Memory>, all: Ptr<All>, kind: Kind) -> Done<Holds> {
    let mut contents = Vec::new();
    let (counted, blocks) = match kind {
        Kind::Table => {
            let table = all.at(All::TABLE);
            let entries = table.iter(tx).collect::<Done<Vec<_>>>()?;
            for (key, value) in entries {
                let is_found = table.get(tx, &key)?.as_ref() == Some(&value);
                contents.push(format!("{key}: {} {is_found}", shown(&value)));
            }
            contents.sort();
            (table.len(tx)?, table.blocks(tx)?)
        }
        Kind::Tree => {
            let tree = all.at(All::TREE);
            let entries = tree.iter(tx).collect::<Done<Vec<_>>>()?;
            for (key, value) in entries {
                let is_found = tree.get(tx, &key)? == Some(value);
                contents.push(format!("{}: {value} {is_found}", shown(&key)));
            }
            (tree.len(tx)?, tree.blocks(tx)?)
        }
        Kind::Vector => {
            let vector = all.at(All::VECTOR);
            let elements = vector.iter(tx).collect::<Done<Vec<_>>>()?;
            contents.extend(elements.iter().map(|bytes| shown(bytes)));
            (vector.len(tx)?, vector.blocks(tx)?)
        }
        Kind::Queue => {
            let queue = all.at(All::QUEUE);
            let elements = queue.iter(tx).collect::<Done<Vec<_>>>()?;
            contents.extend(elements.iter().map(u64::to_string));
            (queue.len(tx)?, queue.blocks(tx)?)
        }
        Kind::Log => {
            let log = all.at(All::LOG);
            let records = log.iter(tx, 0).collect::<Done<Vec<_>>>()?;
            contents.extend(
                records
                    .iter()
                    .map(|(n, bytes)| format!("{n}: {}", shown(bytes))),
            );
            let numbers = log.numbers(tx)?;
            (numbers.end - numbers.start, log.blocks(tx)?)
        }
    };
    contents.push(format!("{counted} in all"));
    Ok(Holds { contents, blocks })
}

/// The structures in use.
pub struct Using {
    session: Session<Flat<Memory>>,
    all: Ptr<All>,
}

impl Using {
    fn open(pm: Memory, options: Options) -> Result<Self, String> {
        let store = DurableMemory::open(Flat(pm.clone()), pm, options).map_err(text)?;
        let mut session = store.session();
        let make = |_: &mut Tx<'_, Memory>| {
            Ok(All {
                table: HashMap::with_seed(1),
                tree: BTree::new(),
                vector: Vector::new(),
                queue: Queue::new(),
                log: Journal::new(),
            })
        };
        let all = session.root("all", make).map_err(text)?;
        Ok(Self { session, all })
    }

    fn run<T>(
        &mut self,
        mut body: impl FnMut(&mut Tx<'_, Memory>, Ptr<All>) -> Done<T>,
    ) -> Result<T, String> {
        let all = self.all;
        let done = self
            .session
            .run(|tx| Ok::<_, Stop<Infallible>>(body(tx, all)?));
        done.map_err(text)
    }

    fn step(&mut self, changes: &[Change], step: usize) -> Result<(), String> {
        self.run(|tx, all| {
            let mut changes = changes.iter();
            changes.try_for_each(|one| change(tx, all, *one, step as u64))
        })
    }

    /// The contents of all structures. Demands that their blocks are the allocated ones.
    fn found(&mut self) -> Result<[Holds; 5], String> {
        let found = self.run(|tx, all| {
            let mut found = Vec::new();
            for kind in KINDS {
                found.push(holds(tx, all, kind)?);
            }
            Ok(found)
        })?;
        let mut blocks = vec![self.all.off()];
        blocks.extend(found.iter().flat_map(|holds| &holds.blocks));
        let mut allocated = Vec::new();
        let store = self.session.memory();
        for segment in store.heap().segments() {
            let there = segment.blocks(store.memory().space()).map_err(text)?;
            allocated.extend(there.iter().map(|(start, _)| *start));
        }
        blocks.sort_unstable();
        allocated.sort_unstable();
        match blocks == allocated {
            true => found.try_into().map_err(|_| "there are five".into()),
            false => Err(format!("blocks {blocks:x?}, in the heap {allocated:x?}")),
        }
    }
}

impl Structures {
    pub fn new(truncation: Truncation, from: usize, steps: Vec<Vec<Change>>) -> Self {
        let states = Vec::new();
        let mut program = Self {
            truncation,
            from,
            steps,
            states,
        };
        program.states = program.states_without_crash().expect("it runs");
        program
    }

    fn states_without_crash(&self) -> Result<Vec<[Holds; 5]>, String> {
        let pm: Memory = Arc::new(MemoryPmem::new(self.bytes()));
        self.layout().format(&pm).map_err(text)?;
        let mut using = Using::open(pm, self.options())?;
        let mut states = vec![using.found()?];
        for (n, step) in self.steps.iter().enumerate() {
            using.step(step, n)?;
            states.push(using.found()?);
        }
        Ok(states)
    }

    fn layout(&self) -> Layout {
        Layout {
            slots: 6,
            roots: 2,
            granule: 8192,
            logs: 1,
            log_bytes: 61 * 64,
            ..Layout::default()
        }
    }

    fn options(&self) -> Options {
        Options {
            tx: tx::Options {
                truncation: self.truncation,
                locks: 256,
                ..tx::Options::default()
            },
            heap_growth: 80 << 10,
        }
    }
}

impl Program for Structures {
    type Opened = Using;

    fn bytes(&self) -> u64 {
        (self.layout().bytes() + (96 << 10)).next_multiple_of(64)
    }

    fn format(&self, pm: Memory) -> Result<(), String> {
        self.layout().format(&pm).map_err(text)?;
        let mut using = Using::open(pm, self.options())?;
        for (n, step) in self.steps[..self.from].iter().enumerate() {
            using.step(step, n)?;
        }
        Ok(())
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let mut using = Using::open(pm, self.options())?;
        for (n, step) in self.steps.iter().enumerate().skip(self.from) {
            mark(mark_of(BEGUN, n + 1));
            using.step(step, n)?;
            mark(mark_of(RETURNED, n + 1));
        }
        Ok(())
    }

    fn open(&self, pm: Memory) -> Result<Using, String> {
        Using::open(pm, self.options())
    }

    fn check(&self, using: &mut Using, marks: &[u64]) -> Result<u64, String> {
        let found = using.found()?;
        let contents = |state: &[Holds; 5]| state.clone().map(|holds| holds.contents);
        let count = |what| count_of(marks, what).max(self.from);
        let allowed = count(RETURNED)..=count(BEGUN);
        let mut states = self.states[allowed.clone()].iter();
        match states.any(|state| contents(state) == contents(&found)) {
            true => {
                let bytes = contents(&found).concat().concat().into_bytes();
                Ok(hash(bytes.into_iter().map(u64::from)))
            }
            false => Err(format!("{found:?} is none of the states {allowed:?}")),
        }
    }

    fn go_on(&self, mut using: Using) -> Result<(), String> {
        for kind in KINDS {
            using.step(
                &[
                    Change::Add(kind, 1),
                    Change::Add(kind, 77),
                    Change::Take(kind, 1),
                ],
                99,
            )?;
        }
        using.found()?;
        using.run(|tx, all| {
            all.at(All::TABLE).clear(tx)?;
            all.at(All::TREE).clear(tx)?;
            all.at(All::VECTOR).clear(tx)?;
            all.at(All::QUEUE).clear(tx)?;
            all.at(All::LOG).clear(tx)
        })?;
        let left = using.found()?;
        match left.iter().all(|holds| holds.blocks.is_empty()) {
            true => Ok(()),
            false => Err(format!("after the clear: {left:?}")),
        }
    }
}
