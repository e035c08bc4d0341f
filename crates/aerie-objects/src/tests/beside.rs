//! Every crash state of two transactions that are open at a time, in both models of memory, and the seeded bugs.

use super::crashes::{options, text};
use crate::commit::Stored;
use crate::seeded::{Bug, arm, fired};
use crate::{Error, HEADER_BYTES, Kind, ObjectId, PAGE, Store, Transaction, check, list_all};
use crash::Options;
use crash::program::{Memory, Program, explore};
use medium::layer::PmemLayer;
use medium::{MediumError, Pmem, Rule};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

/// One of the two transactions. Each has a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    X,
    Y,
}
use Of::{X, Y};

/// A step of a program.
#[derive(Debug, Clone, Copy)]
enum Act {
    Begin(Of),
    /// Makes a file with this name in the collection of the transaction.
    File(Of, u8),
    /// Removes the file with this name from the collection of the transaction.
    Remove(Of, u8),
    /// Adds a page with this index to such a file.
    Page(Of, u8, u64),
    /// Changes a file that both know, unless the other one does.
    Common(Of),
    /// Makes the changes durable, and stores them at home.
    Store(Of),
    /// Truncates the log.
    Finish(Of),
    /// The same. The other transaction takes all its steps before the new head of the log is durable.
    FinishDuring(Of, &'static [Act]),
    Drop(Of),
}
use Act::{Begin, Common, Drop, File, Finish, FinishDuring, Page, Remove, Store as Keep};

impl Act {
    fn of(self) -> Of {
        match self {
            Begin(of) | File(of, _) | Remove(of, _) | Page(of, ..) | Common(of) => of,
            Keep(of) | Finish(of) | FinishDuring(of, _) | Drop(of) => of,
        }
    }

    /// The same steps, each by itself.
    fn apart(self) -> Vec<Self> {
        match self {
            FinishDuring(of, others) => [others, &[Finish(of)]].concat(),
            act => vec![act],
        }
    }
}

/// Memory in which a fence can wait.
struct Waiting {
    below: Memory,
    /// The next fence sends a message, and waits for one.
    talk: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl PmemLayer for Waiting {
    type Below = dyn Pmem;

    fn below(&self) -> &Self::Below {
        &*self.below
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        let talk = self.talk.lock().unwrap().take();
        if let Some((begun, go_on)) = talk {
            begun.send(()).unwrap();
            go_on.recv().unwrap();
        }
        self.below.fence(rule)
    }
}

/// The name of the file that both know, and of collections.
const COMMON: &[u8] = b"common";
const NAMES: [&[u8]; 2] = [b"x", b"y"];

struct Beside {
    acts: &'static [Act],
    /// The transactions that are committed at the end, each with what can then be read: after neither, the first,
    /// the second, and both.
    expected: Vec<([bool; 2], [String; 3])>,
}

/// An open transaction, and its commit if that has begun.
type Open<'a> = (Transaction<'a, Memory>, Option<Stored<'a>>);

fn find(tx: &Transaction<'_, Memory>, of: Of, name: &[u8]) -> crate::Result<ObjectId> {
    let (root, seed) = (tx.superblock().root, tx.superblock().seed);
    let own = crate::lookup(tx, root, seed, NAMES[of as usize])?.expect("it is there");
    match name {
        [] => Ok(own),
        name => Ok(crate::lookup(tx, own, seed, name)?.expect("it is there")),
    }
}

fn run<'a>(
    store: &'a Store<Memory>,
    open: &mut [Option<Open<'a>>; 2],
    act: Act,
) -> crate::Result<()> {
    let open = &mut open[act.of() as usize];
    match (act, open.take()) {
        (Begin(_), _) => *open = Some((store.begin_beside()?, None)),
        (Keep(_), Some((mut tx, _))) => {
            let stored = tx.store(None)?;
            *open = Some((tx, Some(stored)));
        }
        (Finish(_), Some((tx, Some(stored)))) => tx.finish(stored)?,
        (Drop(_), _) => {}
        (_, Some((mut tx, _))) => {
            step(store, &mut tx, act)?;
            *open = Some((tx, None));
        }
        (act, None) => panic!("nothing is open for {act:?}"),
    }
    Ok(())
}

/// Ends a transaction. Another thread takes steps while the fence of the truncation waits.
fn finish_during(
    memory: &Waiting,
    store: &Store<Memory>,
    (tx, stored): Open<'_>,
    others: &[Act],
) -> crate::Result<()> {
    let ((begun, has_begun), (go_on, may_go_on)) = (channel(), channel());
    *memory.talk.lock().unwrap() = Some((begun, may_go_on));
    thread::scope(|scope| {
        let beside = scope.spawn(move || {
            has_begun.recv().unwrap();
            let mut open = [None, None];
            let done = others
                .iter()
                .try_for_each(|act| run(store, &mut open, *act));
            go_on.send(()).unwrap();
            done
        });
        tx.finish(stored.expect("its record is stored"))?;
        beside.join().unwrap()
    })
}

fn step(store: &Store<Memory>, tx: &mut Transaction<'_, Memory>, act: Act) -> crate::Result<()> {
    let of = act.of();
    let own = find(tx, of, b"")?;
    match act {
        File(_, n) => {
            let file = tx.create(Kind::MFile)?;
            tx.set_own(file, 0, n.into())?;
            tx.add(own, &[n], file)?;
        }
        Remove(_, n) => {
            if let Some((file, 0)) = tx.remove(own, &[n])? {
                tx.delete(file)?;
            }
        }
        Page(_, n, index) => {
            let file = find(tx, of, &[n])?;
            tx.add_page(file, index)?;
            tx.set_size(file, (index + 1) * PAGE)?;
        }
        _ => {
            let (root, seed) = (store.root(), store.seed());
            let file = crate::lookup(tx, root, seed, COMMON)?.expect("it is there");
            // A refusal does not help the next attempt.
            for _ in 0..2 {
                let mark = tx.mark();
                match tx.set_own(file, 0, 1 + of as u64) {
                    Err(Error::Claimed) => tx.roll_back(mark),
                    done => done?,
                }
            }
        }
    }
    Ok(())
}

/// The readable contents of both collections and of the common file, as text.
fn contents(memory: &Memory, store: &Store<Memory>) -> crate::Result<[String; 3]> {
    let mut texts: [String; 3] = Default::default();
    for entry in list_all(&**memory, store.root(), store.seed())? {
        let own = crate::own(memory, entry.object, 0)?;
        let Some(at) = NAMES.iter().position(|name| *name == entry.key) else {
            if entry.key == COMMON {
                texts[2] = own.to_string();
            }
            continue;
        };
        for file in list_all(&**memory, entry.object, store.seed())? {
            let (own, size) = (
                crate::own(memory, file.object, 0)?,
                crate::size(memory, file.object)?,
            );
            texts[at] += &format!("{:?} {own} {size}\n", file.key);
        }
    }
    Ok(texts)
}

impl Beside {
    fn new(acts: &'static [Act]) -> Self {
        let mut program = Self {
            acts,
            expected: Vec::new(),
        };
        let ends = |of| {
            let is_end = |act: Act| matches!(act, Finish(end) if end == of);
            acts.iter().flat_map(|act| act.apart()).any(is_end)
        };
        for is_done in [[false; 2], [true, false], [false, true], [true; 2]] {
            if (ends(X) || !is_done[0]) && (ends(Y) || !is_done[1]) {
                let expected = program.after(is_done).unwrap();
                program.expected.push((is_done, expected));
            }
        }
        program
    }

    /// Contents without crashes if only some of the transactions are committed.
    fn after(&self, is_done: [bool; 2]) -> Result<[String; 3], String> {
        let memory: Memory = Arc::new(medium::MemoryPmem::new(self.bytes()));
        self.format(memory.clone())?;
        let store = Store::open(memory.clone()).map_err(text)?;
        let mut open = [None, None];
        for act in self.acts.iter().flat_map(|act| act.apart()) {
            // A transaction claims objects, though it is not committed.
            let is_end = matches!(act, Keep(_) | Finish(_));
            if !is_end || is_done[act.of() as usize] {
                run(&store, &mut open, act).map_err(text)?;
            }
        }
        drop(open);
        contents(&memory, &store).map_err(text)
    }
}

impl Program for Beside {
    type Opened = (Store<Memory>, Memory);

    fn bytes(&self) -> u64 {
        1 << 18
    }

    fn format(&self, memory: Memory) -> Result<(), String> {
        crate::format_logs(&memory, 7, &[], 2).map_err(text)?;
        // Free pages with what users may have put there: words like those of headers.
        let first = crate::Superblock::load(&memory).map_err(text)?.first_page();
        for at in ((first + 1) * PAGE..self.bytes()).step_by(HEADER_BYTES as usize) {
            memory.store_word(at, Kind::MFile as u64);
            memory.flush(at, 8);
        }
        let store = Store::open(memory.clone()).map_err(text)?;
        let mut tx = store.begin().map_err(text)?;
        let mut fill = || {
            let root = store.root();
            for (name, n) in NAMES.into_iter().zip(1u64..) {
                let own = tx.create(Kind::Collection)?;
                tx.set_own(own, 0, n)?;
                tx.add(root, name, own)?;
                let file = tx.create(Kind::MFile)?;
                tx.add(own, &[0], file)?;
                tx.add_page(file, 0)?;
                tx.set_size(file, PAGE)?;
            }
            let file = tx.create(Kind::MFile)?;
            tx.add(root, COMMON, file)?;
            // The page of headers is full.
            for n in 0..PAGE / HEADER_BYTES - 3 - 5 {
                let file = tx.create(Kind::MFile)?;
                tx.add(root, &n.to_le_bytes(), file)?;
            }
            Ok(())
        };
        fill().map_err(|error: Error| text(error))?;
        tx.commit().map_err(text)
    }

    fn run(&self, memory: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let memory = Arc::new(Waiting {
            below: memory,
            talk: Mutex::default(),
        });
        let store = Store::open(memory.clone() as Memory).map_err(text)?;
        let mut open = [None, None];
        for act in self.acts {
            if let FinishDuring(of, others) = act {
                let ending = open[*of as usize].take().expect("it is open");
                finish_during(&memory, &store, ending, others).map_err(text)?;
            } else {
                run(&store, &mut open, *act).map_err(text)?;
            }
            for act in act.apart() {
                if let Finish(of) = act {
                    mark(of as u64);
                }
            }
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
        let found = contents(memory, store).map_err(text)?;
        let is_allowed = |(is_done, expected): &([bool; 2], [String; 3])| {
            let is_kept = |of: Of| is_done[of as usize] || !marks.contains(&(of as u64));
            is_kept(X) && is_kept(Y) && *expected == found
        };
        if !self.expected.iter().any(is_allowed) {
            return Err(format!("after {marks:?} there is {found:?}"));
        }
        let mut hasher = DefaultHasher::new();
        found.hash(&mut hasher);
        Ok(hasher.finish())
    }

    fn go_on(&self, (store, memory): Self::Opened) -> Result<(), String> {
        // Headers that are free for all are not taken for objects.
        let reserve = store.reserve(0, 20);
        for object in reserve.objects(Kind::MFile) {
            if store.has(&memory, object).map_err(text)? {
                return Err(format!("{object} exists, and nobody has made it"));
            }
        }
        store.release(reserve);
        let mut open = [None, None];
        for act in [Begin(X), Begin(Y), File(Y, 90), File(X, 90), Page(Y, 90, 3)] {
            run(&store, &mut open, act).map_err(text)?;
        }
        for act in [Keep(Y), Keep(X), Finish(X), Finish(Y)] {
            run(&store, &mut open, act).map_err(text)?;
        }
        match check(&memory).findings.first() {
            None => Ok(()),
            Some(finding) => Err(format!("after two more transactions: {finding}")),
        }
    }
}

const PROGRAMS: [&[Act]; 5] = [
    // Steps alternate, one commits between steps of the other.
    &[
        Begin(X),
        Begin(Y),
        File(X, 1),
        File(Y, 1),
        Page(X, 1, 0),
        Remove(Y, 0),
        Keep(X),
        Finish(X),
        Page(Y, 1, 2),
        Keep(Y),
        Finish(Y),
    ],
    // Both logs have a record. The second transaction ends first.
    &[
        Begin(X),
        Begin(Y),
        Remove(X, 0),
        File(Y, 1),
        Page(Y, 0, 1),
        Common(X),
        Keep(X),
        Common(Y),
        Keep(Y),
        Finish(Y),
        Finish(X),
    ],
    // One has changed an object that the other one then needs.
    &[
        Begin(X),
        Begin(Y),
        Common(X),
        Common(Y),
        File(Y, 1),
        Keep(Y),
        Finish(Y),
        Keep(X),
        Finish(X),
    ],
    // One adds a page of headers, and is undone. The other has an object there.
    &[
        Begin(X),
        Begin(Y),
        File(X, 1),
        File(Y, 1),
        Drop(X),
        Page(Y, 1, 0),
        Page(Y, 1, 1),
        Page(Y, 0, 1),
        Keep(Y),
        Finish(Y),
    ],
    // One makes a file while the record that frees a header is still in the log of the other one.
    &[
        Begin(X),
        Remove(X, 0),
        Keep(X),
        FinishDuring(
            X,
            &[Begin(Y), File(Y, 1), Page(Y, 1, 0), Keep(Y), Finish(Y)],
        ),
    ],
];

#[test]
fn a_crash_leaves_whole_transactions_of_two_that_are_open() {
    for program in PROGRAMS.map(Beside::new) {
        for options in options() {
            let explored = explore(&program, &options).unwrap();
            assert!(explored.failure.is_none(), "{:?}", explored.failure);
            assert!(explored.states > explored.points, "nothing was in flight");
        }
    }
}

/// The bugs that two open transactions show.
pub(super) const BUGS: [Bug; 6] = [
    Bug::ClaimedTwice,
    Bug::ClaimsEndEarly,
    Bug::OneLogReplayed,
    Bug::HeadersTakenBack,
    Bug::HeadersNotCleared,
    Bug::HeadersNotFenced,
];

#[test]
fn seeded_bugs_of_two_transactions_are_found() {
    let programs = PROGRAMS.map(Beside::new);
    for bug in BUGS.into_iter().chain([Bug::HomeBeforeLog]) {
        let is_found = |program: &Beside, options: &Options| {
            arm(Some(bug));
            let explored = explore(program, options);
            let has_fired = fired() > 0;
            arm(None);
            let has_failed = explored.map_or(true, |explored| explored.failure.is_some());
            assert!(
                has_fired || !has_failed,
                "{bug:?} had no part in the failure"
            );
            has_failed
        };
        let is_found = |program| options().any(|options| is_found(program, &options));
        assert!(programs.iter().any(is_found), "{bug:?} is not found");
    }
}

/// Two moves of collections, each of which would be below the other one.
#[test]
fn collections_do_not_move_beside_each_other() {
    let is_refused = |bug| {
        let memory = Arc::new(medium::MemoryPmem::new(1 << 20));
        crate::format_logs(&memory, 7, &[], 2).unwrap();
        let store = Store::open(memory).unwrap();
        let mut tx = store.begin().unwrap();
        // a/b and c/d: a moves into d, and c into b.
        let [above, a, b, other, c, d] = [(); 6].map(|()| tx.create(Kind::Collection).unwrap());
        tx.add(store.root(), b"1", above).unwrap();
        tx.add(store.root(), b"2", other).unwrap();
        for (collection, object) in [(above, a), (a, b), (other, c), (c, d)] {
            tx.add(collection, b"it", object).unwrap();
        }
        tx.commit().unwrap();
        let moves = [(above, a, d), (other, c, b)];
        arm(bug);
        let mut open = moves.map(|_| Some(store.begin_beside().unwrap()));
        let results = [0, 1].map(|n| {
            let ((from, object, to), tx) = (moves[n], open[n].as_mut().unwrap());
            let moved = tx.remove(from, b"it").map(drop);
            moved.and_then(|()| tx.add(to, b"moved", object))
        });
        for (tx, result) in open.iter_mut().zip(&results) {
            if result.is_ok() {
                tx.take().unwrap().commit().unwrap();
            }
        }
        arm(None);
        let is_clean = check(store.memory()).is_clean();
        is_clean && results.iter().all(|r| matches!(r, Err(Error::Claimed)))
    };
    assert!(is_refused(None));
    assert!(!is_refused(Some(Bug::MovedBeside)));
}

/// A transaction that runs alone waits for the others, and holds off later ones.
#[test]
fn a_transaction_that_runs_alone_is_alone() {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    let memory = Arc::new(medium::MemoryPmem::new(1 << 20));
    crate::format_logs(&memory, 7, &[], 3).unwrap();
    let store = Store::open(memory).unwrap();
    assert_eq!(store.most_open(), 3);
    let open = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..6u64 {
            let (store, open) = (&store, &open);
            scope.spawn(move || {
                for n in 0..200u64 {
                    let is_alone = (n + thread).is_multiple_of(7);
                    let tx = match is_alone {
                        true => store.begin(),
                        false => store.begin_beside(),
                    };
                    let tx = tx.unwrap();
                    assert_eq!(tx.is_alone(), is_alone);
                    let before = open.fetch_add(1, SeqCst);
                    assert!(before < 3 && (before == 0 || !is_alone));
                    thread::yield_now();
                    let left = open.fetch_sub(1, SeqCst);
                    assert!(left == 1 || !is_alone);
                    tx.commit().unwrap();
                }
            });
        }
    });
}

/// Words of the version that no program has written.
#[test]
fn unknown_numbers_of_logs_are_refused() {
    for (version, is_known) in [
        (1, true),
        (2, false),
        (2 | 1 << 32, false),
        (2 | 2 << 32, false), // the logs would take the place of objects
        (1 | 2 << 32, false),
        (2 | 17 << 32, false),
        (3 | 2 << 32, false),
    ] {
        let memory = Arc::new(medium::MemoryPmem::new(1 << 20));
        crate::format(&memory, 7).unwrap();
        crate::superblock::forge(&memory, crate::layout::at::VERSION, version).unwrap();
        assert_eq!(Store::open(memory).is_ok(), is_known, "{version:#x}");
    }
}
