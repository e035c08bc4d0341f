//! Every crash state of puts and appends, in both models of memory: a client makes them, and a service beside it
//! applies them. A crash leaves a prefix of them: nothing of a later one, and all contents of those before.

use super::bounds::bound;
use aerie_objects::{ObjectId, Reserve};
use aerie_proto::ops::{Answers, Condition};
use crash::program::{Memory, Program, explore};
use crash::{Options, PersistModel};
use medium::MemoryPmem;
use pxfs::seeded::Bug;
use pxfs::{Access, Authority, Credentials, Host, MkfsOptions, Pxfs, Session, Speculation, mkfs};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use vfs::{
    Atime, Cookie, Ctx, DirEntry, Errno, FileSystem, FileType, Ino, ManualClock, Name, StatFs,
    Timestamp,
};

const START: Timestamp = Timestamp(1_000_000_000_000);
const CONDITION: Condition<'_> = Condition::Always;

type Values = BTreeMap<Vec<u8>, Vec<u8>>;

struct All;

impl Authority for All {
    fn covers(&self, _path: &[ObjectId]) -> Result<(), String> {
        Ok(())
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

fn open(memory: Memory) -> Result<Pxfs<Memory>, String> {
    let clock = Arc::new(ManualClock::new(START, 0));
    Pxfs::open(memory, clock, Atime::Never).map_err(text)
}

/// A service in the same process.
struct Link {
    service: Pxfs<Memory>,
    session: Mutex<Session>,
}

impl Link {
    fn new(service: Pxfs<Memory>) -> Self {
        let session = service.begin(superuser(), true).into();
        Self { service, session }
    }
}

impl Host for Link {
    fn reserve(&self, pages: usize, headers: usize) -> vfs::Result<Reserve> {
        let mut session = self.session.lock().unwrap();
        Ok(self
            .service
            .grant(&mut session, pages.min(4), headers.min(4)))
    }

    fn ship(&self, batch: &[u8]) -> vfs::Result<Answers> {
        let mut session = self.session.lock().unwrap();
        let answers = self.service.apply(&mut session, &All, batch);
        answers.map_err(|_| Errno::IO)
    }

    fn statfs(&self) -> vfs::Result<StatFs> {
        self.service.statfs()
    }
}

fn superuser() -> Credentials {
    Credentials {
        uid: 0,
        gid: 0,
        groups: Vec::new(),
    }
}

type Client = Speculation<Memory, Link>;

fn client(memory: Memory, access: Access) -> Result<Client, String> {
    let host = Link::new(open(memory.clone())?);
    let clock = Arc::new(ManualClock::new(START, 1));
    let who = (superuser(), true);
    Speculation::new(memory, access, who, clock, Atime::Never, host).map_err(text)
}

/// When a client ships.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ships {
    AtEnd,
    AfterEach,
    /// Each change but the first comes before the end of the ship of the one before.
    Beside,
}

/// A change of the value of a key.
#[derive(Debug, Clone, Copy)]
enum Change {
    Put(&'static [u8]),
    /// A write at the end.
    Append(&'static [u8]),
}
use Change::*;

/// Changes of the values of two keys, of which one has a value before.
struct Changes {
    all: &'static [(&'static [u8], Change)],
    access: Access,
    ships: Ships,
}

// Some fill pages, which then go around the caches of the processor, and others only parts of pages, or both.
const PUTS: [(&[u8], Change); 3] = [
    (b"old", Put(&[2; 4500])),
    (b"new", Put(&[4; 4096])),
    (b"old", Put(&[3; 300])),
];
const APPENDS: [(&[u8], Change); 3] = [
    (b"old", Append(&[2; 8192 - 5000])),
    (b"old", Append(&[3; 4096])),
    (b"old", Append(&[4; 4200])),
];

impl Changes {
    /// The values after the first `count` changes.
    fn expected(&self, count: usize) -> Values {
        let mut values = Values::from([(b"old".to_vec(), vec![1; 5000])]);
        for (key, change) in &self.all[..count] {
            let value = values.entry(key.to_vec()).or_default();
            match change {
                Put(new) => *value = new.to_vec(),
                Append(more) => value.extend_from_slice(more),
            }
        }
        values
    }
}

fn make(client: &Client, (key, change): (&[u8], Change)) -> vfs::Result<()> {
    let cx = Ctx::root();
    match change {
        Put(value) => client.put(&cx, Name::new(Ino::ROOT, key), 0o644, value, CONDITION),
        Append(more) => {
            let file = client.lookup(&cx, Ino::ROOT, key)?;
            let written = client.write(&cx, file.ino, file.size, more);
            client.forget(file.ino, 1);
            written.map(drop)
        }
    }
}

/// The contents of all files.
fn values(fs: &Pxfs<Memory>) -> vfs::Result<Values> {
    let cx = &Ctx::root();
    let mut files = Vec::new();
    let mut sink = |entry: &DirEntry<'_>| {
        let file = (entry.name.to_vec(), entry.ino);
        files.extend((entry.kind == FileType::Regular).then_some(file));
        true
    };
    fs.readdir(cx, Ino::ROOT, Cookie(0), &mut sink)?;
    let read = |(name, ino)| {
        let mut contents = vec![0; fs.getattr(cx, ino)?.size as usize];
        fs.read(cx, ino, 0, &mut contents)?;
        Ok((name, contents))
    };
    files.into_iter().map(read).collect()
}

impl Program for Changes {
    type Opened = Pxfs<Memory>;

    fn bytes(&self) -> u64 {
        64 * 4096
    }

    fn format(&self, memory: Memory) -> Result<(), String> {
        mkfs(&memory, &MkfsOptions::default()).map_err(text)?;
        let fs = open(memory)?;
        let cx = Ctx::root();
        let file = fs.create(&cx, Ino::ROOT, b"old", 0o644).map_err(text)?;
        fs.write(&cx, file.ino, 0, &[1; 5000]).map_err(text)?;
        Ok(())
    }

    fn run(&self, memory: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let client = client(memory, self.access)?;
        mark(0);
        make(&client, self.all[0]).map_err(text)?;
        for n in 1..self.all.len() {
            let change = || make(&client, self.all[n]);
            match self.ships {
                Ships::AtEnd => change(),
                Ships::AfterEach => client.sync().and_then(|()| {
                    mark(n as u64);
                    change()
                }),
                Ships::Beside => {
                    let shipped = client.ship_beside(|end| change().and_then(|()| end()));
                    shipped.inspect(|()| mark(n as u64))
                }
            }
            .map_err(text)?;
        }
        client.sync().map_err(text)?;
        mark(self.all.len() as u64);
        Ok(())
    }

    fn is_explored(&self, marks: &[u64]) -> bool {
        !marks.is_empty()
    }

    fn open(&self, memory: Memory) -> Result<Self::Opened, String> {
        open(memory)
    }

    fn check(&self, fs: &mut Self::Opened, marks: &[u64]) -> Result<u64, String> {
        if let Some(finding) = fs.audit().first() {
            return Err(finding.to_string());
        }
        let done = marks.last().map_or(0, |mark| *mark as usize);
        let found = values(fs).map_err(text)?;
        let mut allowed = (done..=self.all.len()).map(|count| self.expected(count));
        if !allowed.any(|values| values == found) {
            return Err(format!("after {done} changes there is {found:?}"));
        }
        let mut hasher = DefaultHasher::new();
        found.hash(&mut hasher);
        Ok(hasher.finish())
    }

    fn go_on(&self, fs: Self::Opened) -> Result<(), String> {
        let cx = Ctx::root();
        fs.create(&cx, Ino::ROOT, b"more", 0o600).map_err(text)?;
        fs.audit()
            .first()
            .map_or(Ok(()), |finding| Err(text(finding)))
    }
}

fn failure(changes: &Changes, model: PersistModel) -> Option<String> {
    let options = Options {
        model,
        recovery_depth: 0,
        states_per_point: bound(12, 256),
        samples: bound(2, 16),
        ..Options::default()
    };
    let explored = explore(changes, &options).unwrap();
    let states = explored.states;
    assert!(explored.failure.is_some() || states > 20, "{states} states");
    explored.failure.map(|failure| format!("{failure:?}"))
}

#[test]
fn a_crash_leaves_a_prefix_of_the_changes() {
    for model in PersistModel::ALL {
        for access in [Access::ReadWrite, Access::ReadOnly] {
            for ships in [Ships::AtEnd, Ships::AfterEach, Ships::Beside] {
                for all in [&PUTS, &APPENDS] {
                    let changes = Changes { all, access, ships };
                    assert_eq!(failure(&changes, model), None, "{access:?}, {ships:?}");
                }
            }
        }
    }
}

/// A value that is not durable before its name shows it: by the client, and by the service.
#[test]
fn values_that_are_not_durable_in_time_are_found() {
    let find = |all, access, ships| {
        let changes = Changes { all, access, ships };
        failure(&changes, PersistModel::Words).expect("a violation")
    };
    for ships in [Ships::AfterEach, Ships::Beside] {
        for bug in [Bug::StoredNotFlushed, Bug::FilledNotFenced] {
            for all in [&PUTS, &APPENDS] {
                pxfs::seeded::arm(Some(bug));
                let found = find(all, Access::ReadWrite, ships);
                assert!(found.contains("changes there is"), "{bug:?}: {found}");
                pxfs::seeded::arm(None);
            }
        }
        aerie_objects::seeded::arm(Some(aerie_objects::seeded::Bug::NoInitFence));
        find(&PUTS, Access::ReadOnly, ships);
        aerie_objects::seeded::arm(None);
    }
}

/// The model of this test has the values that the changes leave.
#[test]
fn changes_leave_their_values() {
    for all in [&PUTS, &APPENDS] {
        let changes = Changes {
            all,
            access: Access::ReadWrite,
            ships: Ships::Beside,
        };
        let memory: Memory = Arc::new(MemoryPmem::new(changes.bytes()));
        changes.format(memory.clone()).unwrap();
        changes.run(memory.clone(), &|_| ()).unwrap();
        let found = values(&open(memory).unwrap()).unwrap();
        assert_eq!(found, changes.expected(all.len()));
    }
}
