//! Crashes in transactions that change who may read an object, under both models of memory. In each crash state,
//! and after each recovery, no class shows its users what they may not read.
//!
//! Each object has marks: one that fills its contents or is in its entries' names, and one in its header. A user may
//! see a mark if the store, as the recovery finds it, permits that user to read the object.

use super::classes::{BYTES, CLASSES, Classes, HOSTILE, class};
use crate::layout::PAGE;
use crate::load::Load;
use crate::reading::object::{own, parent};
use crate::seeded::{Bug, arm, fired};
use crate::{
    Guard, Kind, ObjectId, Protection, Readers, Store, Superblock, Transaction, list, page,
};
use crash::program::{Memory, Program, explore};
use crash::{Options, PersistModel};
use medium::Pmem;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

type Tx<'a> = Transaction<'a, Arc<Classes>>;

/// Bugs that only these tests find.
pub(super) const BUGS: [Bug; 2] = [Bug::NarrowedLate, Bug::WidenedEarly];

/// The own words of an object: its class, its number, and the mark of its header.
const MODE: u64 = 0;
const NUMBER: u64 = 1;
const MARK: u64 = 4;
/// Indices of `CLASSES`.
const NOBODY: u64 = 0;
const EVERYONE: u64 = 1;
const OTHER: u64 = 2;

const MARKS: u64 = u64::from_le_bytes(*b"\0\0SECRET");
const NUMBERS: u64 = 0xffff;

/// The mark of an object's contents, or of its header.
fn mark(number: u64, is_header: bool) -> u64 {
    MARKS | number << 1 | u64::from(is_header)
}

fn policy(memory: &dyn Load, superblock: &Superblock, object: ObjectId) -> crate::Result<Readers> {
    let mut readers = Readers::Everyone;
    let mut at = object;
    loop {
        let set = CLASSES.get(own(memory, at, MODE)? as usize);
        readers = readers.meet(*set.unwrap_or(&Readers::NOBODY));
        match parent(memory, at)? {
            Some(above) => at = above,
            None if at == superblock.root => return Ok(readers),
            None => return Ok(Readers::NOBODY),
        }
    }
}

fn may_read(readers: Readers) -> bool {
    Readers::user(HOSTILE).is_within(readers)
}

/// A change of the store. Objects have numbers, and their names begin with the mark of their directory.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Makes a directory in another one, of a class.
    Dir(u64, u64, u64),
    /// Makes a file in a directory, of a class, with pages that are full of its mark.
    File(u64, u64, u64, u64),
    /// Gives an object another class.
    Mode(u64, u64),
    /// Cuts a file to 64 bytes, which are not secret. The rest stays in its last page.
    Cut(u64),
    /// Moves an object to another directory.
    Move(u64, u64),
    /// Removes a file.
    Remove(u64),
}
use Step::{Cut, Dir, File, Mode, Move, Remove};

const ROOT: u64 = 0;
/// The store before the explored transactions.
const MADE: &[Step] = &[
    Dir(1, ROOT, EVERYONE),
    Dir(2, ROOT, OTHER),
    File(3, 1, EVERYONE, 1),
    File(4, 1, OTHER, 2),
    File(5, 2, EVERYONE, 1),
    File(6, 1, NOBODY, 2),
    File(7, 1, OTHER, 2),
];
/// The explored transactions.
const CHANGES: &[&[Step]] = &[
    // A file loses readers; another one gains them.
    &[Mode(3, OTHER)],
    &[Mode(4, EVERYONE)],
    // A file gains readers with bytes after its end that no one should see.
    &[Cut(6), Mode(6, EVERYONE)],
    // A directory gains readers, and loses them, with a file in it.
    &[Mode(2, EVERYONE)],
    &[Mode(2, NOBODY)],
    // Files move to another directory.
    &[Move(4, 2), Move(5, 1)],
    // The pages of a file are used for one that all may read.
    &[Remove(7)],
    &[File(8, 1, EVERYONE, 2)],
];
/// Files whose marks the hostile user may read at no time.
const NEVER: [u64; 2] = [6, 7];

fn text(error: impl ToString) -> String {
    error.to_string()
}

/// All objects by their numbers, with their directories.
fn objects(
    memory: &dyn Load,
    superblock: &Superblock,
) -> crate::Result<BTreeMap<u64, (ObjectId, Option<ObjectId>)>> {
    let mut found = BTreeMap::from([(ROOT, (superblock.root, None))]);
    let mut waiting = vec![superblock.root];
    while let Some(dir) = waiting.pop() {
        let mut after = 0;
        loop {
            let part = list(memory, dir, superblock.seed, after)?;
            let Some(last) = part.last() else {
                break;
            };
            after = last.cookie;
            for entry in part {
                let number = own(memory, entry.object, NUMBER)?;
                found.insert(number, (entry.object, Some(dir)));
                if entry.object.kind() == Kind::Collection {
                    waiting.push(entry.object);
                }
            }
        }
    }
    Ok(found)
}

fn name(tx: &Tx<'_>, dir: ObjectId, number: u64) -> crate::Result<Vec<u8>> {
    let first = mark(own(tx, dir, NUMBER)?, false);
    Ok([first.to_le_bytes(), number.to_le_bytes()].concat())
}

fn make(
    tx: &mut Tx<'_>,
    (kind, number): (Kind, u64),
    (dir, class): (ObjectId, u64),
) -> crate::Result<ObjectId> {
    let object = tx.create(kind)?;
    tx.set_own(object, MODE, class)?;
    tx.set_own(object, NUMBER, number)?;
    tx.set_own(object, MARK, mark(number, true))?;
    let name = name(tx, dir, number)?;
    tx.add(dir, &name, object)?;
    Ok(object)
}

fn step(tx: &mut Tx<'_>, step: Step) -> crate::Result<()> {
    let known = objects(tx, tx.superblock())?;
    let find = |number: u64| known[&number].0;
    match step {
        Dir(number, dir, class) => {
            make(tx, (Kind::Collection, number), (find(dir), class))?;
        }
        File(number, dir, class, pages) => {
            let file = make(tx, (Kind::MFile, number), (find(dir), class))?;
            let contents = [mark(number, false).to_le_bytes(); (PAGE / 8) as usize].concat();
            for index in 0..pages {
                tx.add_contents(file, index, contents[..].try_into().expect("a page"))?;
            }
            tx.set_size(file, pages * PAGE)?;
        }
        Mode(number, class) => tx.set_own(find(number), MODE, class)?,
        Cut(number) => {
            let file = find(number);
            tx.cut_pages(file, 1)?;
            if let Some(page) = page(tx, file, 0)? {
                tx.store_contents(page, &[1; 64]);
            }
            tx.set_size(file, 64)?;
        }
        Move(number, to) => {
            let (object, from) = known[&number];
            let from = from.expect("it has a directory");
            let old = name(tx, from, number)?;
            tx.remove(from, &old)?;
            let new = name(tx, find(to), number)?;
            tx.add(find(to), &new, object)?;
        }
        Remove(number) => {
            let (object, dir) = known[&number];
            let dir = dir.expect("it has a directory");
            let name = name(tx, dir, number)?;
            tx.remove(dir, &name)?;
            tx.delete(object)?;
        }
    }
    Ok(())
}

/// One transaction.
fn change(store: &Store<Arc<Classes>>, steps: &[Step]) -> Result<(), String> {
    let mut tx = store.begin().map_err(text)?;
    for one in steps {
        step(&mut tx, *one).map_err(|e| format!("{one:?}: {e}"))?;
    }
    tx.commit().map_err(text)
}

/// The marks in the classes that the hostile user may read.
fn visible(all: &Memory) -> Result<BTreeSet<u64>, String> {
    let mut found = BTreeSet::new();
    let classes = CLASSES.iter().enumerate();
    for (number, _) in classes.filter(|(_, readers)| may_read(**readers)) {
        let class = class(all, number);
        let mut page = [0; PAGE as usize];
        for at in (0..class.len()).step_by(PAGE as usize) {
            Pmem::read(&class, at, &mut page).map_err(text)?;
            let (words, _) = page.as_chunks::<8>();
            let words = words.iter().map(|word| u64::from_le_bytes(*word));
            found.extend(words.filter(|word| word & !NUMBERS == MARKS));
        }
    }
    Ok(found)
}

struct Opened {
    all: Memory,
    memory: Arc<Classes>,
    store: Store<Arc<Classes>>,
    /// The marks that were visible before the recovery.
    crashed: BTreeSet<u64>,
}

fn open(all: &Memory) -> Result<Opened, String> {
    let crashed = visible(all)?;
    let memory = Classes::open(all)?;
    let guard = memory.clone();
    let protection = Protection { guard, policy };
    let store = Store::open_with(memory.clone(), Some(protection)).map_err(text)?;
    let all = all.clone();
    Ok(Opened {
        all,
        memory,
        store,
        crashed,
    })
}

impl Opened {
    /// The marks of objects that the hostile user may not read.
    fn secrets(&self) -> crate::Result<BTreeSet<u64>> {
        let (memory, superblock) = (&self.memory, self.store.superblock());
        let mut secrets = BTreeSet::new();
        for (number, (object, dir)) in objects(memory, superblock)? {
            if !may_read(policy(memory, superblock, object)?) {
                secrets.insert(mark(number, false));
            }
            if let Some(dir) = dir
                && !may_read(policy(memory, superblock, dir)?)
            {
                secrets.insert(mark(number, true));
            }
        }
        secrets.extend(NEVER.map(|number| mark(number, false)));
        Ok(secrets)
    }

    /// A page of an object that has not exactly the readers of the object.
    fn wrong(&self) -> crate::Result<Option<String>> {
        let (memory, superblock) = (&self.memory, self.store.superblock());
        for (number, (object, _)) in objects(memory, superblock)? {
            let wanted = policy(memory, superblock, object)?;
            for index in 0..2 {
                let found = page(memory, object, index)?;
                let found = found.map_or(Ok(wanted), |page| memory.readers(page))?;
                if found != wanted {
                    let what = format!("object {number} has {found:?} in place of {wanted:?}");
                    return Ok(Some(what));
                }
            }
        }
        Ok(None)
    }
}

/// The transactions. Crashes are explored in those from one number on, before another one.
struct Changes {
    explored: std::ops::Range<usize>,
}

const ALL: Changes = Changes {
    explored: 0..CHANGES.len() + 1,
};
/// A file that gains readers, with bytes after its end: the recovery clears them and gives the pages their readers.
const GAINED: Changes = Changes { explored: 2..3 };

impl Program for Changes {
    type Opened = Opened;

    fn bytes(&self) -> u64 {
        BYTES
    }

    fn format(&self, all: Memory) -> Result<(), String> {
        let memory = Classes::format(&all)?;
        crate::format_with(&memory, 9, &[EVERYONE]).map_err(text)?;
        let opened = open(&all)?;
        change(&opened.store, MADE)
    }

    fn run(&self, all: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let opened = open(&all)?;
        for (steps, n) in CHANGES.iter().zip(1..) {
            change(&opened.store, steps)?;
            mark(n);
        }
        Ok(())
    }

    fn is_explored(&self, marks: &[u64]) -> bool {
        self.explored.contains(&marks.len())
    }

    fn open(&self, all: Memory) -> Result<Opened, String> {
        open(&all)
    }

    fn check(&self, opened: &mut Opened, _: &[u64]) -> Result<u64, String> {
        let secrets = opened.secrets().map_err(text)?;
        let now = visible(&opened.all)?;
        for (when, seen) in [("the crash", &opened.crashed), ("the recovery", &now)] {
            if let Some(leak) = seen.intersection(&secrets).next() {
                let (number, is_header) = ((leak & NUMBERS) >> 1, leak & 1 == 1);
                let part = if is_header { "header" } else { "contents" };
                return Err(format!("after {when} a class shows the {part} of {number}"));
            }
        }
        if let Some(wrong) = opened.wrong().map_err(text)? {
            return Err(wrong);
        }
        let report = crate::check(&opened.memory);
        match report.findings.first() {
            Some(finding) => Err(finding.to_string()),
            None => Ok(hash(&now)),
        }
    }
}

fn hash(seen: &BTreeSet<u64>) -> u64 {
    let mut hasher = DefaultHasher::new();
    seen.hash(&mut hasher);
    hasher.finish()
}

fn options(model: PersistModel, recovery_depth: usize) -> Options {
    Options {
        model,
        recovery_depth,
        states_per_point: 4,
        samples: 3,
        ..Options::default()
    }
}

#[test]
fn no_crash_shows_a_user_what_the_policy_denies() {
    for model in PersistModel::ALL {
        for (program, recovery_depth) in [(ALL, 0), (GAINED, 1)] {
            let explored = explore(&program, &options(model, recovery_depth)).unwrap();
            assert!(explored.failure.is_none(), "{:?}", explored.failure);
            assert!(explored.distinct > 100, "{explored:?}");
        }
    }
}

#[test]
fn bugs_of_the_protection_show_in_a_crash_state() {
    // A page is reused as it is only in a full store, which is not explored.
    let others = super::protection::BUGS.iter();
    for bug in BUGS
        .iter()
        .chain(others.filter(|bug| **bug != Bug::ReusedAsItIs))
    {
        arm(Some(*bug));
        let explored = explore(&ALL, &options(PersistModel::Words, 0));
        let has_fired = fired() > 0;
        arm(None);
        assert!(has_fired, "{bug:?} had no part");
        let failure = explored.unwrap().failure;
        let what = failure
            .unwrap_or_else(|| panic!("{bug:?} is not found"))
            .what;
        let is_of_readers = what.contains("a class shows") || what.contains("in place of");
        assert!(is_of_readers, "{bug:?}: {what}");
    }
}
