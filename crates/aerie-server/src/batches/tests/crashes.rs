//! Every crash state of batches with operations of each kind, in both models of memory.

use super::super::apply;
use super::{ALL, link, make_directory, make_file, rename, truncate, unlink, write};
use aerie_objects::{Kind, ObjectId, Store, check, list_all, pages, size};
use aerie_proto::batch::Builder;
use crash::program::{Memory, Program, explore};
use crash::{Options, PersistModel};
use medium::MemoryPmem;
use std::sync::Arc;

/// An operation, on objects and extents of the reserve by their numbers.
#[derive(Debug, Clone, Copy)]
enum Op {
    File(usize),
    Directory(usize),
    Write(usize, u64),
    Truncate(usize),
    Link(usize),
    Unlink(usize),
    Move(usize),
    Replace(usize, usize),
}
use Op::{Directory, Link, Move, Replace, Truncate, Unlink, Write};

const KINDS: [Op; 8] = [
    Op::File(4),
    Directory(5),
    Write(0, 1),
    Truncate(0),
    Link(0),
    Unlink(1),
    Move(0),
    Replace(1, 0),
];

fn name(n: usize) -> Vec<u8> {
    vec![b'a' + n as u8; 90]
}

/// A store with two files and two directories; then two batches.
struct Batches {
    ops: [Op; 2],
    is_one_batch: bool,
    /// Readable contents before, after the first operation, and after both.
    contents: Vec<String>,
}

/// An open store, with the objects and extents that the operations use.
struct World {
    store: Store<Memory>,
    reserve: aerie_objects::Reserve,
    objects: [Vec<ObjectId>; 2],
    extents: Vec<u64>,
}

impl World {
    /// Opens the store. The reserve is the same each time.
    fn open(memory: Memory) -> Result<Self, String> {
        let store = Store::open(memory).map_err(text)?;
        let reserve = store.reserve(8, 8);
        let objects = [Kind::MFile, Kind::Collection].map(|kind| {
            let mut objects: Vec<_> = reserve.objects(kind).collect();
            objects.sort();
            objects
        });
        let mut extents: Vec<_> = reserve.pages().collect();
        extents.sort_unstable();
        Ok(Self {
            store,
            reserve,
            objects,
            extents,
        })
    }

    fn file(&self, n: usize) -> ObjectId {
        self.objects[0][n]
    }

    fn directory(&self, n: usize) -> ObjectId {
        self.objects[1][n]
    }

    /// Files 0 and 1, directories 2 and 3.
    fn prepare(&mut self) -> Result<(), String> {
        let root = self.store.root();
        let mut batch = Builder::default();
        for n in [0, 1] {
            make_file(&mut batch, root, &name(n), self.file(n), 0);
            write(&mut batch, self.file(n), 0, &[self.extents[n]], 0);
        }
        for n in [2, 3] {
            make_directory(&mut batch, root, &name(n), self.directory(n), 0);
        }
        self.send(&batch)
    }

    fn send(&mut self, batch: &Builder) -> Result<(), String> {
        let answers = apply(&self.store, &mut self.reserve, &ALL, batch.bytes()).map_err(text)?;
        answers
            .into_iter()
            .try_for_each(|(_, answer)| answer.map_err(text))
    }

    fn add(&self, batch: &mut Builder, op: Op) {
        let root = self.store.root();
        match op {
            Op::File(n) => make_file(batch, root, &name(n), self.file(n), 0),
            Directory(n) => make_directory(batch, root, &name(n), self.directory(n), 0),
            Write(n, first) => write(batch, self.file(n), first, &self.extents[4..6], 0),
            Truncate(n) => truncate(batch, self.file(n), 7, 0),
            Link(n) => link(batch, self.directory(2), &name(9), self.file(n), 0),
            Unlink(n) => unlink(batch, root, &name(n), self.file(n), 0),
            Move(n) => {
                let to = self.directory(2);
                rename(
                    batch,
                    (root, &name(n)),
                    (to, &name(n)),
                    self.file(n),
                    None,
                    0,
                );
            }
            Replace(n, by) => {
                let (old, new) = (name(by), name(n));
                let (file, replaced) = (self.file(by), self.file(n));
                rename(batch, (root, &old), (root, &new), file, Some(replaced), 0);
            }
        }
    }

    fn contents(&self) -> Result<String, String> {
        let (memory, seed) = (self.store.memory(), self.store.seed());
        let mut found = String::new();
        let mut waiting = vec![self.store.root()];
        while let Some(directory) = waiting.pop() {
            for entry in list_all(&**memory, directory, seed).map_err(text)? {
                let object = entry.object;
                let bytes = size(memory, object).unwrap_or(0);
                let pages = match object.kind() {
                    Kind::MFile => pages(memory, object).map_err(text)?,
                    Kind::Collection => 0,
                };
                found += &format!("{:?} {object} {bytes} {pages}\n", entry.key);
                if object.kind() == Kind::Collection {
                    waiting.push(object);
                }
            }
        }
        Ok(found)
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

impl Batches {
    /// Two operations, or `None` if the second one is not possible after the first.
    fn new(ops: [Op; 2], is_one_batch: bool) -> Option<Self> {
        let mut program = Self {
            ops,
            is_one_batch,
            contents: Vec::new(),
        };
        let memory: Memory = Arc::new(MemoryPmem::new(program.bytes()));
        program.format(memory.clone()).unwrap();
        let mut world = World::open(memory).unwrap();
        world.prepare().unwrap();
        program.contents.push(world.contents().unwrap());
        for op in ops {
            let mut batch = Builder::default();
            world.add(&mut batch, op);
            world.send(&batch).ok()?;
            program.contents.push(world.contents().unwrap());
        }
        Some(program)
    }
}

impl Program for Batches {
    type Opened = World;

    fn bytes(&self) -> u64 {
        1 << 18
    }

    fn format(&self, memory: Memory) -> Result<(), String> {
        aerie_objects::format(&memory, 7).map_err(text)
    }

    fn run(&self, memory: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let mut world = World::open(memory)?;
        world.prepare()?;
        mark(1);
        let mut batch = Builder::default();
        for (n, op) in (2..).zip(self.ops) {
            world.add(&mut batch, op);
            if !self.is_one_batch {
                world.send(&batch)?;
                mark(n);
                batch = Builder::default();
            }
        }
        world.send(&batch)?;
        mark(3);
        Ok(())
    }

    /// The preparation is explored once, with the first program.
    fn is_explored(&self, marks: &[u64]) -> bool {
        !marks.is_empty()
    }

    fn open(&self, memory: Memory) -> Result<Self::Opened, String> {
        World::open(memory)
    }

    fn check(&self, world: &mut Self::Opened, marks: &[u64]) -> Result<u64, String> {
        if let Some(finding) = check(world.store.memory()).findings.first() {
            return Err(finding.to_string());
        }
        let done = marks.last().map_or(0, |mark| *mark as usize - 1);
        let found = world.contents()?;
        let allowed = match self.is_one_batch {
            // Both or neither: they have one record.
            true if done == 0 => vec![0, 2],
            true => vec![2],
            false => vec![done, (done + 1).min(2)],
        };
        match allowed.iter().position(|n| self.contents[*n] == found) {
            Some(place) => Ok(place as u64),
            None => Err(format!("after {done} operations there is {found}")),
        }
    }

    fn go_on(&self, mut world: Self::Opened) -> Result<(), String> {
        let mut batch = Builder::default();
        make_file(&mut batch, world.store.root(), b"new", world.file(7), 0);
        write(&mut batch, world.file(7), 0, &world.extents[7..], 0);
        world.send(&batch)?;
        match check(world.store.memory()).findings.first() {
            None => Ok(()),
            Some(finding) => Err(finding.to_string()),
        }
    }
}

#[test]
fn a_crash_leaves_a_prefix_of_the_accepted_operations() {
    let (mut states, mut programs) = (0, 0);
    let pairs = KINDS
        .iter()
        .flat_map(|first| KINDS.iter().map(|second| [*first, *second]));
    let setups = pairs.flat_map(|ops| [(ops, false), (ops, true)]);
    for (ops, is_one_batch) in setups {
        let Some(program) = Batches::new(ops, is_one_batch) else {
            continue;
        };
        programs += 1;
        for model in PersistModel::ALL {
            let options = Options {
                model,
                recovery_depth: 0,
                states_per_point: 24,
                samples: 4,
                ..Options::default()
            };
            let explored = explore(&program, &options).unwrap();
            assert!(
                explored.failure.is_none(),
                "{ops:?}: {:?}",
                explored.failure
            );
            states += explored.states;
        }
    }
    assert!(
        programs >= 80 && states > 10_000,
        "{states} states of {programs} programs"
    );
}
