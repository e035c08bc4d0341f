//! Every crash state of puts, in both models of memory: a client puts values, and a service beside it applies
//! them. A crash leaves the old value or the new one of each key, in the order of the puts.

use super::bounds::bound;
use aerie_objects::{ObjectId, Reserve};
use aerie_proto::ops::{Answers, Condition};
use crash::program::{Memory, Program, explore};
use crash::{Options, PersistModel};
use medium::MemoryPmem;
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
    /// Each put but the first comes before the end of the ship of the one before.
    Beside,
}

/// Values of two keys, of which one has a value before.
struct Puts {
    access: Access,
    ships: Ships,
}

/// The puts, in their order.
const PUTS: [(&[u8], &[u8]); 3] = [
    (b"old", &[2; 4500]),
    (b"new", b"value"),
    (b"old", &[3; 300]),
];

impl Puts {
    /// The values after the first `count` puts.
    fn expected(count: usize) -> Values {
        let mut values = Values::from([(b"old".to_vec(), vec![1; 5000])]);
        for (key, value) in &PUTS[..count] {
            values.insert(key.to_vec(), value.to_vec());
        }
        values
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

impl Program for Puts {
    type Opened = Pxfs<Memory>;

    fn bytes(&self) -> u64 {
        48 * 4096
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
        let put = |n: usize| {
            let (key, value) = PUTS[n];
            let at = Name::new(Ino::ROOT, key);
            client.put(&Ctx::root(), at, 0o644, value, CONDITION)
        };
        put(0).map_err(text)?;
        for n in 1..PUTS.len() {
            match self.ships {
                Ships::AtEnd => put(n),
                Ships::AfterEach => client.sync().and_then(|()| {
                    mark(n as u64);
                    put(n)
                }),
                Ships::Beside => {
                    let shipped = client.ship_beside(|end| put(n).and_then(|()| end()));
                    shipped.inspect(|()| mark(n as u64))
                }
            }
            .map_err(text)?;
        }
        client.sync().map_err(text)?;
        mark(PUTS.len() as u64);
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
        let mut allowed = (done..=PUTS.len()).map(Self::expected);
        if !allowed.any(|values| values == found) {
            return Err(format!("after {done} puts there is {found:?}"));
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

fn failure(puts: &Puts, model: PersistModel) -> Option<String> {
    let options = Options {
        model,
        recovery_depth: 0,
        states_per_point: bound(12, 256),
        samples: bound(2, 16),
        ..Options::default()
    };
    let explored = explore(puts, &options).unwrap();
    let states = explored.states;
    assert!(explored.failure.is_some() || states > 20, "{states} states");
    explored.failure.map(|failure| format!("{failure:?}"))
}

#[test]
fn a_crash_leaves_a_prefix_of_the_puts() {
    for model in PersistModel::ALL {
        for access in [Access::ReadWrite, Access::ReadOnly] {
            for ships in [Ships::AtEnd, Ships::AfterEach, Ships::Beside] {
                let puts = Puts { access, ships };
                assert_eq!(failure(&puts, model), None, "{access:?}, {ships:?}");
            }
        }
    }
}

/// A value that is not durable before its name shows it: by the client, and by the service.
#[test]
fn values_that_are_not_durable_in_time_are_found() {
    let find = |access, ships| {
        let puts = Puts { access, ships };
        failure(&puts, PersistModel::Words).expect("a violation")
    };
    for ships in [Ships::AfterEach, Ships::Beside] {
        pxfs::seeded::arm(Some(pxfs::seeded::Bug::StoredNotFlushed));
        let found = find(Access::ReadWrite, ships);
        assert!(found.contains("puts there is"), "{found}");
        pxfs::seeded::arm(None);
        aerie_objects::seeded::arm(Some(aerie_objects::seeded::Bug::NoInitFence));
        find(Access::ReadOnly, ships);
        aerie_objects::seeded::arm(None);
    }
}

/// The model of this test has the values that the puts leave.
#[test]
fn puts_leave_their_values() {
    let memory: Memory = Arc::new(MemoryPmem::new(48 * 4096));
    let puts = Puts {
        access: Access::ReadWrite,
        ships: Ships::Beside,
    };
    puts.format(memory.clone()).unwrap();
    puts.run(memory.clone(), &|_| ()).unwrap();
    let found = values(&open(memory).unwrap()).unwrap();
    assert_eq!(found, Puts::expected(PUTS.len()));
}
