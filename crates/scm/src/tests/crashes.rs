//! Crashes at each fence of changes of extents and of records, under both persistence models.

use super::simulated::{BYTES, GEOMETRY, Simulated, identities};
use crate::check::check;
use crate::extents::Partition;
use crate::files::{Place, Run};
use crate::identity::{AccessList, Credentials, Identity};
use crate::seeded::{Bug, arm, fired};
use crate::store::Store;
use crate::{PartitionRecord, ScmError, table};
use crash::program::{Memory, Program, explore, replay};
use crash::{Options, PersistModel};
use medium::{CutAfter, PowerCut};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

type Sim = Store<Simulated>;

const ROOT: Credentials = Credentials {
    uid: 0,
    gid: 0,
    groups: Vec::new(),
};
/// Pages of the partition.
const PAGES: u64 = 6;

fn text(e: impl ToString) -> String {
    e.to_string()
}

fn list(uid: u32) -> AccessList {
    AccessList::of_mode(uid, uid, 0o640)
}

fn run(first: u64, pages: u64) -> Run {
    Run { first, pages }
}

/// A step of a program.
#[derive(Clone, Copy)]
enum Step {
    Create(Run, Identity),
    Protect(Run, Identity),
    Free(Run),
}

/// Identity and contents of each page.
type Model = [(Identity, u64); PAGES as usize];

impl Step {
    fn make(self, partition: &Partition<Simulated>) -> Result<(), ScmError> {
        match self {
            Self::Create(run, identity) => partition.create_extent(run, identity),
            Self::Protect(run, identity) => partition.protect(run, identity),
            Self::Free(run) => partition.free(run),
        }
    }

    fn model(self, pages: &mut Model) {
        let (run, identity, keeps) = match self {
            Self::Create(run, identity) => (run, identity, false),
            Self::Protect(run, identity) => (run, identity, true),
            Self::Free(run) => (run, Identity::FREE, false),
        };
        for page in &mut pages[run.first as usize..run.end() as usize] {
            *page = (identity, if keeps { page.1 } else { 0 });
        }
    }
}

/// Creates extents, changes their protection, frees them. The marks are the steps begun and
/// returned, alternately.
struct Extents;

impl Extents {
    fn steps() -> [Step; 6] {
        let [a, b, c] = identities();
        [
            Step::Create(run(4, 2), b),
            Step::Protect(run(0, 3), b),
            Step::Free(run(4, 1)),
            Step::Protect(run(1, 1), c),
            Step::Protect(run(1, 1), a),
            Step::Create(run(3, 2), a),
        ]
    }

    /// The pages after that many steps.
    fn after(steps: usize) -> Model {
        let mut pages = [(Identity::FREE, 0); PAGES as usize];
        for (page, n) in pages[..3].iter_mut().zip(1..) {
            *page = (identities()[0], n);
        }
        Self::steps()[..steps]
            .iter()
            .for_each(|step| step.model(&mut pages));
        pages
    }
}

/// A store with access lists and a partition.
fn new_store(pm: &Memory) -> Result<Arc<Sim>, ScmError> {
    let files = Simulated::new(pm);
    table::format(&files.table, &GEOMETRY)?;
    let store = Store::open(files)?;
    store.set_list(1, list(1))?;
    store.set_list(2, list(2))?;
    store.create_partition("p", PAGES, 0, 0)?;
    Ok(store)
}

fn place_of_p() -> Place {
    Place {
        number: 0,
        first_page: 0,
        pages: PAGES,
    }
}

fn hash(value: &impl Debug) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{value:?}").hash(&mut hasher);
    hasher.finish()
}

/// The numbers of steps that may have happened.
fn possible(marks: &[u64]) -> std::ops::RangeInclusive<usize> {
    marks.len() / 2..=marks.len().div_ceil(2)
}

fn no_findings(pm: &Memory) -> Result<(), String> {
    match &check(&Simulated::new(pm)).map_err(text)?[..] {
        [] => Ok(()),
        [first, ..] => Err(text(first)),
    }
}

impl Program for Extents {
    type Opened = (Arc<Sim>, Memory);

    fn bytes(&self) -> u64 {
        BYTES
    }

    fn format(&self, pm: Memory) -> Result<(), String> {
        let store = new_store(&pm).map_err(text)?;
        let partition = store.partition("p", &ROOT).map_err(text)?;
        let [a, ..] = identities();
        partition.create_extent(run(0, 3), a).map_err(text)?;
        for page in 0..3 {
            store.files.store(place_of_p().class(a), page, page + 1);
        }
        Ok(())
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let store = Store::open(Simulated::new(&pm)).map_err(text)?;
        let partition = store.partition("p", &ROOT).map_err(text)?;
        for (step, n) in Self::steps().into_iter().zip(0..) {
            mark(n);
            step.make(&partition).map_err(text)?;
            mark(n);
        }
        Ok(())
    }

    fn open(&self, pm: Memory) -> Result<Self::Opened, String> {
        no_findings(&pm)?;
        let store = Store::open(Simulated::new(&pm)).map_err(text)?;
        Ok((store, pm))
    }

    fn check(&self, (store, pm): &mut Self::Opened, marks: &[u64]) -> Result<u64, String> {
        no_findings(pm)?;
        let partition = store.partition("p", &ROOT).map_err(text)?;
        let mut found = [(Identity::FREE, 0); PAGES as usize];
        for (page, n) in found.iter_mut().zip(0..) {
            page.0 = partition.identity(n).map_err(text)?;
            for identity in identities() {
                match (
                    store.files.get(place_of_p().class(identity), n),
                    identity == page.0,
                ) {
                    ((1, contents), true) => page.1 = contents,
                    ((0, _), true) => return Err(format!("page {n} has no room")),
                    ((0, 0), false) => {}
                    _ => return Err(format!("page {n} is in two classes")),
                }
            }
        }
        match possible(marks).any(|steps| found == Self::after(steps)) {
            true => Ok(hash(&found)),
            false => Err(format!("after {marks:?} the pages are {found:?}")),
        }
    }

    fn go_on(&self, (store, pm): Self::Opened) -> Result<(), String> {
        let partition = store.partition("p", &ROOT).map_err(text)?;
        let [a, b, _] = identities();
        partition
            .create_extent(run(5, 1), a)
            .or_else(|_| partition.protect(run(5, 1), a))
            .map_err(text)?;
        partition.protect(run(5, 1), b).map_err(text)?;
        partition.free(run(5, 1)).map_err(text)?;
        drop((partition, store));
        let store = Store::open(Simulated::new(&pm)).map_err(text)?;
        let partition = store.partition("p", &ROOT).map_err(text)?;
        match partition.identity(5).map_err(text)? {
            Identity::FREE => no_findings(&pm),
            other => Err(format!("a freed page has {other}")),
        }
    }
}

/// Makes, replaces and removes partitions and access lists.
struct Changes {
    /// Whether a crash has left two versions of an access list before.
    is_after_crash: bool,
}

type Change = fn(&Arc<Sim>) -> Result<(), ScmError>;
/// The partitions, the runs of each, and the access lists.
type Snapshot = (
    Vec<PartitionRecord>,
    Vec<Vec<(Run, Identity)>>,
    Vec<Option<AccessList>>,
);

impl Changes {
    const STEPS: [Change; 7] = [
        |store| store.set_list(2, list(7)),
        |store| store.create_partition("q", 4, 3, 1),
        |store| store.set_access("q", 4, 2),
        |store| store.set_list(3, list(8)),
        |store| store.remove_partition("p"),
        |store| store.create_partition("r", PAGES, 5, 0),
        |store| store.remove_list(3),
    ];

    fn snapshot(store: &Arc<Sim>) -> Result<Snapshot, ScmError> {
        let partitions = store.partitions();
        let runs = |one: &PartitionRecord| store.partition(&one.name, &ROOT)?.runs();
        let runs = partitions.iter().map(runs).collect::<Result<_, _>>()?;
        let lists = (1..=3).map(|group| store.list(group)).collect();
        Ok((partitions, runs, lists))
    }

    /// The snapshot after that many steps without a crash.
    fn after(&self, steps: usize) -> Result<Snapshot, String> {
        let pm: Memory = Arc::new(medium::MemoryPmem::new(BYTES));
        self.format(pm.clone())?;
        let store = Store::open(Simulated::new(&pm)).map_err(text)?;
        for step in &Self::STEPS[..steps] {
            step(&store).map_err(text)?;
        }
        Self::snapshot(&store).map_err(text)
    }
}

impl Program for Changes {
    type Opened = (Arc<Sim>, Memory);

    fn bytes(&self) -> u64 {
        BYTES
    }

    fn format(&self, pm: Memory) -> Result<(), String> {
        let store = new_store(&pm).map_err(text)?;
        let partition = store.partition("p", &ROOT).map_err(text)?;
        partition
            .create_extent(run(1, 3), identities()[1])
            .map_err(text)?;
        drop((partition, store));
        match self.is_after_crash {
            true => leave_two_versions(&pm),
            false => Ok(()),
        }
    }

    fn run(&self, pm: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let store = Store::open(Simulated::new(&pm)).map_err(text)?;
        for (step, n) in Self::STEPS.into_iter().zip(0..) {
            mark(n);
            step(&store).map_err(text)?;
            mark(n);
        }
        Ok(())
    }

    fn open(&self, pm: Memory) -> Result<Self::Opened, String> {
        let store = Store::open(Simulated::new(&pm)).map_err(text)?;
        Ok((store, pm))
    }

    fn check(&self, (store, pm): &mut Self::Opened, marks: &[u64]) -> Result<u64, String> {
        no_findings(pm)?;
        let found = Self::snapshot(store).map_err(text)?;
        for steps in possible(marks) {
            if found == self.after(steps)? {
                return Ok(hash(&found));
            }
        }
        Err(format!("after {marks:?} the store has {found:?}"))
    }

    fn go_on(&self, (store, pm): Self::Opened) -> Result<(), String> {
        for (pages, n) in [(1, 0), (2, 1)] {
            store.create_partition("s", pages, 0, 0).map_err(text)?;
            store.set_list(1, list(n)).map_err(text)?;
            store.remove_partition("s").map_err(text)?;
        }
        let expected = Self::snapshot(&store).map_err(text)?;
        drop(store);
        let store = Store::open(Simulated::new(&pm)).map_err(text)?;
        match Self::snapshot(&store).map_err(text)? == expected {
            true => no_findings(&pm),
            false => Err("changes after the crash were lost".to_owned()),
        }
    }
}

/// Replaces an access list, up to the removal of its older version.
fn leave_two_versions(pm: &Memory) -> Result<(), String> {
    let cut = Arc::new(PowerCut::new(pm.clone()));
    let store = Store::open(Simulated::new(&(cut.clone() as Memory))).map_err(text)?;
    // The fence after the seal of the new version. The seed keeps the seal.
    cut.cut_after(CutAfter::Fences(2), 1, PersistModel::Words);
    let cut_off = store.set_list(1, list(1));
    match cut.outcome() {
        Some(Ok(report)) if cut_off.is_err() && (report.stores, report.lost) == (1, 0) => Ok(()),
        other => Err(format!("a cut with another outcome: {other:?}")),
    }
}

fn options(model: PersistModel) -> Options {
    Options {
        model,
        recovery_depth: 2,
        ..Options::default()
    }
}

#[test]
fn no_crash_breaks_a_change_of_extents() {
    for model in PersistModel::ALL {
        let explored = explore(&Extents, &options(model)).unwrap();
        assert!(
            explored.failure.is_none(),
            "{model}: {:?}",
            explored.failure
        );
        assert!(explored.distinct > 80, "{model}: {explored:?}");
    }
}

#[test]
fn no_crash_breaks_a_change_of_records() {
    let both = |model| [false, true].map(|is_after_crash| (model, is_after_crash));
    for (model, is_after_crash) in PersistModel::ALL.into_iter().flat_map(both) {
        let explored = explore(&Changes { is_after_crash }, &options(model)).unwrap();
        assert!(
            explored.failure.is_none(),
            "{model}, after a crash: {is_after_crash}: {:?}",
            explored.failure
        );
        assert!(explored.distinct > 40, "{model}: {explored:?}");
    }
}

/// Whether the exploration of a program finds the armed bug, and finds it again by its place.
fn is_found(program: &impl Program, bug: Bug) -> bool {
    let options = options(PersistModel::Words);
    arm(Some(bug));
    let explored = explore(program, &options).unwrap();
    let found = explored.failure.is_some_and(|failure| {
        let again = replay(program, &options, &failure).unwrap();
        assert_eq!(again.as_deref(), Some(&*failure.what), "{bug:?}");
        true
    });
    let has_fired = fired() > 0;
    arm(None);
    found && has_fired
}

#[test]
fn each_seeded_bug_is_found() {
    let changes = Changes {
        is_after_crash: false,
    };
    for bug in Bug::ALL {
        let found = match bug {
            Bug::SealBeforeRecord | Bug::RemoveBeforeReplaced | Bug::PartitionBeforeTable => {
                is_found(&changes, *bug)
            }
            _ => is_found(&Extents, *bug),
        };
        assert!(found, "{bug:?} is not found");
    }
}
