//! Changes of extents in a process that is killed.

use crate::home::{Home, PAGE, identity, partition, run, window};
use medium::{MapOptions, MappedPmem, Pmem, Rule};
use scm::files::{Class, Files, Part, Place, Share};
use scm::{Credentials, Directory, Identity, Partition, Run, ScmError, Store};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// The files of a store, until a process is killed after `left` more steps: nothing works then.
struct Killed {
    files: Directory,
    left: AtomicU32,
}

impl Killed {
    fn step(&self) -> Result<(), ScmError> {
        let count = self
            .left
            .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        count
            .map(drop)
            .map_err(|_| ScmError::Denied("killed".to_owned()))
    }
}

impl Files for Killed {
    type Memory = MappedPmem;

    fn table(&self) -> &MappedPmem {
        self.files.table()
    }

    fn allow(&self, identity: Identity) -> Result<(), ScmError> {
        self.files.allow(identity)
    }

    fn make(&self, place: Place) -> Result<(), ScmError> {
        self.step()?;
        self.files.make(place)
    }

    fn remove(&self, place: Place) -> Result<(), ScmError> {
        self.step()?;
        self.files.remove(place)
    }

    fn keep(&self, places: &[Place]) -> Result<(), ScmError> {
        self.files.keep(places)
    }

    fn identities(&self, place: Place) -> Result<MappedPmem, ScmError> {
        self.files.identities(place)
    }

    fn classes(&self, place: Place) -> Result<Vec<Identity>, ScmError> {
        self.files.classes(place)
    }

    fn allocate(&self, class: Class, run: Run) -> Result<(), ScmError> {
        self.step()?;
        self.files.allocate(class, run)
    }

    fn copy(&self, from: Class, to: Class, run: Run) -> Result<(), ScmError> {
        self.step()?;
        self.files.copy(from, to, run)
    }

    fn punch(&self, class: Class, run: Run) -> Result<(), ScmError> {
        self.step()?;
        self.files.punch(class, run)
    }

    fn sync(&self, class: Class, rule: Rule) -> Result<(), ScmError> {
        self.step()?;
        self.files.sync(class, rule)
    }

    fn restore(&self, class: Class, runs: &[Run]) -> Result<(), ScmError> {
        self.files.restore(class, runs)
    }

    fn room_bytes(&self, class: Class) -> Result<u64, ScmError> {
        self.files.room_bytes(class)
    }

    fn contents(&self, class: Class, run: Run) -> Result<Option<u64>, ScmError> {
        self.files.contents(class, run)
    }

    fn share(&self, place: Place, part: Part, writable: bool) -> Result<Share, ScmError> {
        self.files.share(place, part, writable)
    }
}

/// Runs `change` in a process that is killed after `steps` steps. Returns whether it ended before.
fn killed_after(
    steps: u32,
    home: &Home,
    change: impl Fn(&Partition<Killed>) -> Result<(), ScmError>,
) -> bool {
    // Settles the change before.
    drop(home.open().unwrap());
    let files = Directory::open(home.path(), &MapOptions::default()).unwrap();
    let left = AtomicU32::new(steps);
    let store = Store::open(Killed { files, left }).unwrap();
    let pages = store.partition("p", &Credentials::own()).unwrap();
    match change(&pages) {
        Ok(()) => true,
        Err(e) => {
            assert!(matches!(e, ScmError::Denied(_)), "{e}");
            false
        }
    }
}

#[test]
fn a_change_that_stops_at_any_step_is_undone_or_done() {
    let (old, new) = (identity(1), identity(2));
    let mut stops = 0;
    for steps in 0.. {
        let home = Home::new();
        let pages = partition(&home.store());
        pages.create_extent(run(1, 3), old).unwrap();
        window(&pages, old).store(2 * PAGE, b"contents");
        drop(pages);
        let has_created = killed_after(steps, &home, |pages| pages.create_extent(run(8, 2), old));
        let has_moved = killed_after(steps, &home, |pages| pages.protect(run(1, 2), new));
        let has_freed = killed_after(steps, &home, |pages| pages.free(run(3, 1)));
        let store = home.open().unwrap();
        let pages = partition(&store);
        let one_of = |page, done: bool, [before, after]: [Identity; 2]| {
            let found = pages.identity(page).unwrap();
            assert!(
                found == after || found == before && !done,
                "page {page}: {found}"
            );
            found
        };
        one_of(8, has_created, [Identity::FREE, old]);
        one_of(3, has_freed, [old, Identity::FREE]);
        let class = one_of(1, has_moved, [old, new]);
        assert_eq!(pages.identity(2).unwrap(), class);
        assert_eq!(pages.identity(8).unwrap(), pages.identity(9).unwrap());
        let contents = u64::from_le_bytes(*b"contents");
        assert_eq!(window(&pages, class).load(2 * PAGE), Ok(contents));
        drop((pages, store));
        assert_eq!(home.findings(), [""; 0], "after {steps} steps");
        stops += 1;
        if has_created && has_moved && has_freed {
            break;
        }
    }
    // Allocate, copy, sync, punch, sync.
    assert_eq!(stops, 6);
}
