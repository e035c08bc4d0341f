//! Every crash state of a few transactions, in both models of memory, and the seeded bugs.

use crate::layout::at;
use crate::seeded::{Bug, arm, fired};
use crate::{Kind, Load, ObjectId, Store, Transaction, check, list_all};
use crash::program::{Memory, Program, explore};
use crash::{Options, PersistModel};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// One step of a transaction.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    /// Makes a file with this name.
    File(u8),
    /// Makes a collection with this name.
    Collection(u8),
    /// Adds another name of the first file.
    Link(u8, u8),
    /// Removes a name, and the object with its last one.
    Remove(u8),
    /// Adds a page with this index to a file.
    Page(u8, u64),
    /// Removes the pages of a file from this one on.
    Cut(u8, u64),
    /// Adds many names, so that the collection grows, within the collection of this name.
    Many(u8, u64),
    /// Stores contents in the first page of a file, and shows them by a word of the file.
    Show(u8),
    /// Makes a file with a page, and undoes that.
    Undone(u8),
}
pub(super) use Step::{Collection, Cut, File, Link, Many, Page, Remove, Show, Undone};

/// Contents that a file shows.
const SHOWN: u64 = 0x1234_5678_9abc_def0;

/// Transactions in sequence.
struct Steps {
    transactions: &'static [&'static [Step]],
    /// Readable contents after none of them, after the first, and so on.
    contents: Vec<String>,
}

fn name(n: u8) -> Vec<u8> {
    // Long names, so that few fill a bucket.
    vec![n; 100]
}

fn step(tx: &mut Transaction<'_, Memory>, step: Step) -> crate::Result<()> {
    let (root, seed) = (tx.superblock().root, tx.superblock().seed);
    let find = |tx: &Transaction<'_, Memory>, n| {
        crate::lookup(tx, root, seed, &name(n)).map(|found| found.expect("the name is there"))
    };
    match step {
        File(n) | Collection(n) => {
            let is_file = matches!(step, File(_));
            let object = tx.create([Kind::Collection, Kind::MFile][usize::from(is_file)])?;
            tx.set_own(object, 0, n.into())?;
            tx.add(root, &name(n), object)?;
        }
        Link(old, new) => {
            let object = find(tx, old)?;
            tx.add(root, &name(new), object)?;
        }
        Remove(n) => {
            if let Some((object, 0)) = tx.remove(root, &name(n))? {
                tx.delete(object)?;
            }
        }
        Page(n, index) => {
            let file = find(tx, n)?;
            tx.add_page(file, index)?;
            tx.set_size(file, (index + 1) * crate::PAGE)?;
        }
        Cut(n, from) => {
            let file = find(tx, n)?;
            tx.cut_pages(file, from)?;
            tx.set_size(file, from * crate::PAGE)?;
        }
        Many(n, count) => {
            let collection = find(tx, n)?;
            let object = tx.create(Kind::MFile)?;
            for key in 0..count {
                tx.add(collection, &key.to_le_bytes(), object)?;
            }
        }
        Show(n) => {
            let file = find(tx, n)?;
            let page = crate::page(tx, file, 0)?.expect("the file has a page");
            tx.store_contents(page, &SHOWN.to_le_bytes());
            tx.set_own(file, 1, 1)?;
        }
        Undone(n) => {
            let mark = tx.mark();
            step_all(tx, &[File(n), Page(n, 600)])?;
            tx.roll_back(mark);
        }
    }
    Ok(())
}

pub(super) fn step_all(tx: &mut Transaction<'_, Memory>, steps: &[Step]) -> crate::Result<()> {
    steps.iter().try_for_each(|one| step(tx, *one))
}

pub(super) fn text(error: impl ToString) -> String {
    error.to_string()
}

/// All that can be read, as text.
pub(super) fn contents(memory: &Memory, store: &Store<Memory>) -> crate::Result<String> {
    let mut text = String::new();
    let mut waiting = vec![store.root()];
    while let Some(collection) = waiting.pop() {
        for entry in list_all(&**memory, collection, store.seed())? {
            let object = entry.object;
            let size = match object.kind() {
                Kind::MFile => crate::size(memory, object)?,
                Kind::Collection => crate::entries(memory, object)?,
            };
            let own = crate::own(memory, object, 0)?;
            if crate::own(memory, object, 1)? == 1 {
                let page = crate::page(memory, object, 0)?.unwrap_or(0);
                text += &format!("{:#x}\n", Load::load(memory, page)?);
            }
            let pages = [0, 1, 600].map(|index| page_of(memory, object, index));
            let members = crate::members(memory, object)?;
            text += &format!("{:?} {own} {size} {members} {pages:?}\n", entry.key);
            if object.kind() == Kind::Collection {
                waiting.push(object);
            }
        }
    }
    Ok(text)
}

/// Demands that all objects are of an earlier epoch, so that no new one can have their generation.
fn old_generations(memory: &Memory, store: &Store<Memory>) -> Result<(), String> {
    let epoch = memory.load(at::EPOCH).map_err(text)?;
    for entry in list_all(&**memory, store.root(), store.seed()).map_err(text)? {
        let generation = crate::generation(memory, entry.object).map_err(text)?;
        if generation >> 32 >= epoch {
            return Err(format!("{} is of the present epoch", entry.object));
        }
    }
    Ok(())
}

fn page_of(memory: &Memory, object: ObjectId, index: u64) -> Option<bool> {
    match object.kind() {
        Kind::MFile => crate::page(memory, object, index)
            .ok()
            .map(|page| page.is_some()),
        Kind::Collection => None,
    }
}

impl Steps {
    /// Runs them, without bugs.
    fn new(transactions: &'static [&'static [Step]]) -> Self {
        let mut program = Self {
            transactions,
            contents: Vec::new(),
        };
        let memory: Memory = Arc::new(medium::MemoryPmem::new(program.bytes()));
        program.format(memory.clone()).unwrap();
        let store = Store::open(memory.clone()).unwrap();
        program.contents.push(contents(&memory, &store).unwrap());
        for steps in transactions {
            let mut tx = store.begin().unwrap();
            step_all(&mut tx, steps).unwrap();
            tx.commit().unwrap();
            program.contents.push(contents(&memory, &store).unwrap());
        }
        program
    }
}

impl Program for Steps {
    type Opened = (Store<Memory>, Memory);

    fn bytes(&self) -> u64 {
        1 << 18
    }

    fn format(&self, memory: Memory) -> Result<(), String> {
        crate::format(&memory, 7).map_err(text)
    }

    fn run(&self, memory: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        for (n, steps) in self.transactions.iter().enumerate() {
            // Each in an epoch of its own.
            let store = Store::open(memory.clone()).map_err(text)?;
            let mut tx = store.begin().map_err(text)?;
            step_all(&mut tx, steps).map_err(text)?;
            tx.commit().map_err(text)?;
            mark(n as u64 + 1);
        }
        Ok(())
    }

    fn open(&self, memory: Memory) -> Result<Self::Opened, String> {
        let store = Store::open(memory.clone()).map_err(text)?;
        Ok((store, memory))
    }

    fn check(&self, (store, memory): &mut Self::Opened, marks: &[u64]) -> Result<u64, String> {
        let report = check(memory);
        if let Some(finding) = report.findings.first() {
            return Err(finding.to_string());
        }
        old_generations(memory, store)?;
        let done = marks.last().map_or(0, |done| *done as usize);
        let found = contents(memory, store).map_err(text)?;
        let mut allowed = self.contents.iter().skip(done).take(2);
        if !allowed.any(|contents| *contents == found) {
            return Err(format!("after {done} transactions there is {found}"));
        }
        let mut hasher = DefaultHasher::new();
        found.hash(&mut hasher);
        Ok(hasher.finish())
    }

    fn go_on(&self, (store, memory): Self::Opened) -> Result<(), String> {
        let used = |n: u8| crate::lookup(&memory, store.root(), store.seed(), &name(n));
        let mut tx = store.begin().map_err(text)?;
        for n in 0..10 {
            if used(n)
                .map_err(text)?
                .is_some_and(|id| id.kind() == Kind::MFile)
            {
                step(&mut tx, Link(n, n + 100)).map_err(text)?;
            }
        }
        step_all(&mut tx, &[File(200), Page(200, 600)]).map_err(text)?;
        tx.commit().map_err(text)?;
        match check(&memory).findings.first() {
            None => Ok(()),
            Some(finding) => Err(format!("after another transaction: {finding}")),
        }
    }
}

fn programs() -> [Steps; 2] {
    [
        // Objects of both kinds, trees that grow and shrink, pages that are used again.
        Steps::new(&[
            &[File(1), Page(1, 0), Collection(2)],
            &[Page(1, 600), Link(1, 3), Undone(4)],
            &[Remove(1), Cut(3, 1), File(5), Page(5, 0)],
            // The roll-back leaves the contents to be made durable.
            &[Show(5), Undone(7)],
            // Without a new page.
            &[File(6)],
            &[Remove(3), Remove(2), Page(5, 1)],
        ]),
        // Buckets that overflow, and a table that grows.
        Steps::new(&[
            &[Collection(1), Many(1, 40)],
            &[
                File(2),
                File(3),
                File(4),
                File(5),
                File(6),
                File(7),
                File(8),
                File(9),
            ],
            &[
                Remove(2),
                Remove(3),
                Remove(4),
                Remove(5),
                File(10),
                File(11),
            ],
        ]),
    ]
}

pub(super) fn options() -> impl Iterator<Item = Options> {
    PersistModel::ALL.into_iter().flat_map(|model| {
        [(0, 64), (1, 8)].map(|(recovery_depth, states_per_point)| Options {
            model,
            recovery_depth,
            states_per_point,
            samples: 8,
            ..Options::default()
        })
    })
}

#[test]
fn a_crash_leaves_whole_transactions() {
    for program in programs() {
        for options in options() {
            let explored = explore(&program, &options).unwrap();
            assert!(explored.failure.is_none(), "{:?}", explored.failure);
            assert!(explored.states > explored.points, "nothing was in flight");
        }
    }
}

#[test]
fn seeded_bugs_are_found() {
    let programs = programs();
    // No program here ends by a kill: the tests of kills find that bug. The tests of ships of PXFS find those of
    // speculations, which a crash does not show.
    let elsewhere = |bug| {
        let others = [
            &super::protection::BUGS[..],
            &super::leaks::BUGS,
            &super::beside::BUGS,
        ];
        let of_others = [
            Bug::ReplayBeforeLog,
            Bug::MovedBeside,
            Bug::FreedKept,
            Bug::ChangedDropped,
            Bug::NotBuried,
        ];
        of_others.contains(&bug) || others.concat().contains(&bug)
    };
    let here = Bug::ALL.iter().filter(|bug| !elsewhere(**bug));
    for bug in here {
        let is_found = |program, options| {
            arm(Some(*bug));
            let explored = explore(program, &options);
            let has_fired = fired() > 0;
            arm(None);
            let has_failed = explored.map_or(true, |explored| explored.failure.is_some());
            assert!(
                has_fired || !has_failed,
                "{bug:?} had no part in the failure"
            );
            has_failed
        };
        let found = programs
            .iter()
            .any(|p| options().any(|options| is_found(p, options)));
        assert!(found, "{bug:?} is not found");
    }
}
