//! Protected stores under random changes. Secrets are words of contents, of names and of headers in places
//! that a hostile user may not read. No page that this user may read ever has a secret: the memory checks
//! each store and each change of protection. After each commit every page has exactly its readers.

use crate::layout::{PAGE, header};
use crate::load::Load;
use crate::reading::object::{own, parent};
use crate::seeded::{Bug, arm, fired};
use crate::{
    Contents, Error, Guard, Kind, ObjectId, Protection, Readers, Result, Store, Superblock,
    Transaction, entries, lookup, page,
};
use fastrand::Rng;
use medium::{MediumError, MemoryPmem, Pmem, Rule};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// The bugs that these tests find.
pub(super) const BUGS: [Bug; 4] = [
    Bug::NotNarrowed,
    Bug::ReusedAsItIs,
    Bug::RemainsKept,
    Bug::NotRepaired,
];

const BYTES: u64 = 1 << 20;
const SECRET: u64 = u64::from_le_bytes(*b"A SECRET");
const HOSTILE: u32 = 2;
/// The own word with the readers of an object, as an index of `SETS`, and one with an attribute.
const MODE: u64 = 0;
const ATTRIBUTE: u64 = 4;
const SETS: [Readers; 5] = [
    Readers::NOBODY,
    Readers::Everyone,
    Readers::These {
        user: Some(1),
        group: None,
    },
    Readers::These {
        user: Some(HOSTILE),
        group: None,
    },
    Readers::These {
        user: Some(1),
        group: Some(7),
    },
];

fn is_hostile(readers: Readers) -> bool {
    Readers::user(HOSTILE).is_within(readers)
}

/// Those of the object and of all above it.
fn policy(memory: &dyn Load, superblock: &Superblock, object: ObjectId) -> Result<Readers> {
    let mut readers = Readers::Everyone;
    let mut at = object;
    loop {
        let set = SETS.get(own(memory, at, MODE)? as usize);
        readers = readers.meet(*set.unwrap_or(&Readers::NOBODY));
        match parent(memory, at)? {
            Some(above) => at = above,
            None if at == superblock.root => return Ok(readers),
            None => return Ok(Readers::NOBODY),
        }
    }
}

/// A memory with the readers of its pages. It notes secrets that the hostile user could read.
struct Watched {
    below: MemoryPmem,
    readers: Mutex<Vec<Readers>>,
    /// Changes of protection fail.
    is_full: AtomicBool,
    leaks: Mutex<Vec<String>>,
}

impl Watched {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            below: MemoryPmem::new(BYTES),
            readers: Mutex::new(vec![Readers::NOBODY; (BYTES / PAGE) as usize]),
            is_full: AtomicBool::new(false),
            leaks: Mutex::default(),
        })
    }

    fn of(&self, page: u64) -> Readers {
        self.readers.lock().unwrap()[(page / PAGE) as usize]
    }

    fn look(&self, page: u64, doing: &str) {
        let words = (page..page + PAGE).step_by(8);
        let mut secrets = words.filter(|at| Pmem::load(&self.below, *at) == Ok(SECRET));
        if let Some(at) = secrets.next().filter(|_| is_hostile(self.of(page))) {
            let what = format!("{doing} shows a secret at byte {at:#x}");
            self.leaks.lock().unwrap().push(what);
        }
    }

    fn leak(&self) -> Option<String> {
        self.leaks.lock().unwrap().first().cloned()
    }

    fn looked(&self, off: u64, len: usize) {
        let end = off + len as u64;
        (off / PAGE..end.div_ceil(PAGE)).for_each(|page| self.look(page * PAGE, "a store"));
    }
}

impl Pmem for Watched {
    fn len(&self) -> u64 {
        self.below.len()
    }

    fn load(&self, off: u64) -> std::result::Result<u64, MediumError> {
        Pmem::load(&self.below, off)
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> std::result::Result<(), MediumError> {
        Pmem::read(&self.below, off, buf)
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        self.below.store(off, bytes);
        self.looked(off, bytes.len());
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.store(off, bytes);
    }

    fn flush(&self, off: u64, len: u64) {
        self.below.flush(off, len);
    }

    fn fence(&self, rule: Rule) -> std::result::Result<(), MediumError> {
        self.below.fence(rule)
    }
}

impl Guard for Watched {
    fn readers(&self, page: u64) -> Result<Readers> {
        Ok(self.of(page))
    }

    fn protect(&self, page: u64, pages: u64, readers: Readers, contents: Contents) -> Result<()> {
        if self.is_full.load(SeqCst) {
            return Err(Error::Full);
        }
        let all: Vec<u64> = (page..page + pages * PAGE).step_by(PAGE as usize).collect();
        assert!(all.iter().all(|one| self.of(*one) == self.of(page)));
        for page in all {
            if contents == Contents::Dropped {
                self.below.store(page, &[0; PAGE as usize]);
            }
            self.readers.lock().unwrap()[(page / PAGE) as usize] = readers;
            self.look(page, "a change of protection");
        }
        Ok(())
    }
}

type Memory = Arc<Watched>;

fn protection(memory: &Memory) -> Protection {
    let guard = memory.clone();
    Protection { guard, policy }
}

fn open(memory: &Memory) -> Store<Memory> {
    Store::open_with(memory.clone(), Some(protection(memory))).unwrap()
}

/// Random changes, and all objects.
struct Random {
    rng: Rng,
    dirs: Vec<ObjectId>,
    files: Vec<ObjectId>,
    /// Number of the next name.
    next: u64,
}

type Tx<'a> = Transaction<'a, Memory>;

impl Random {
    fn pick(&mut self, of: Kind) -> Option<ObjectId> {
        let all = match of {
            Kind::Collection => &self.dirs,
            Kind::MFile => &self.files,
        };
        (!all.is_empty()).then(|| all[self.rng.usize(..all.len())])
    }

    fn any(&mut self) -> Option<ObjectId> {
        let kind = [Kind::Collection, Kind::MFile][self.rng.usize(..2)];
        self.pick(kind).or_else(|| self.pick(Kind::Collection))
    }

    /// A name that is a secret in a directory that the hostile user may not list.
    fn name(&mut self, tx: &Tx<'_>, dir: ObjectId) -> Vec<u8> {
        self.next += 1;
        let readers = policy(tx, tx.superblock(), dir).unwrap();
        let first = match is_hostile(readers) {
            true => *b"a public",
            false => SECRET.to_le_bytes(),
        };
        [first.as_slice(), self.next.to_string().as_bytes()].concat()
    }

    fn make(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(dir) = self.pick(Kind::Collection) else {
            return Ok(());
        };
        let kind = [Kind::Collection, Kind::MFile, Kind::MFile][self.rng.usize(..3)];
        let name = self.name(tx, dir);
        let object = match self.rng.bool() {
            true => tx.create(kind)?,
            false => tx.create_for(dir, kind)?,
        };
        tx.set_own(object, MODE, self.rng.u64(..SETS.len() as u64))?;
        tx.add(dir, &name, object)?;
        if !is_hostile(policy(tx, tx.superblock(), dir)?) {
            tx.set_own(object, ATTRIBUTE, SECRET)?;
        }
        match kind {
            Kind::Collection => self.dirs.push(object),
            Kind::MFile => self.files.push(object),
        }
        Ok(())
    }

    fn write(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(file) = self.pick(Kind::MFile) else {
            return Ok(());
        };
        let index = self.rng.u64(..3);
        if tx.remove_page(file, index)?.is_none() && self.rng.bool() {
            return Ok(());
        }
        let word = match is_hostile(policy(tx, tx.superblock(), file)?) {
            true => 1,
            false => SECRET,
        };
        let contents: Vec<u8> = [word.to_le_bytes(); (PAGE / 8) as usize].concat();
        tx.add_contents(file, index, contents[..].try_into().unwrap())?;
        tx.set_size(file, 3 * PAGE)
    }

    /// Removes what would not be a secret any more. The bytes that are cut stay in the last page.
    fn declassify(&mut self, tx: &mut Tx<'_>, object: ObjectId) -> Result<bool> {
        if object.kind() == Kind::Collection {
            return Ok(entries(tx, object)? == 0);
        }
        tx.set_own(object, ATTRIBUTE, 0)?;
        tx.cut_pages(object, 1)?;
        if let Some(page) = page(tx, object, 0)? {
            tx.store_contents(page, &[1; 100]);
        }
        tx.set_size(object, 100)?;
        Ok(true)
    }

    fn change_mode(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(object) = self.any() else {
            return Ok(());
        };
        let before = policy(tx, tx.superblock(), object)?;
        let (old, new) = (own(tx, object, MODE)?, self.rng.u64(..SETS.len() as u64));
        tx.set_own(object, MODE, new)?;
        let after = policy(tx, tx.superblock(), object)?;
        if is_hostile(after) && !is_hostile(before) && !self.declassify(tx, object)? {
            tx.set_own(object, MODE, old)?;
        }
        Ok(())
    }

    /// The directory and the name of an object with one name.
    fn place(tx: &Tx<'_>, object: ObjectId) -> Option<(ObjectId, Vec<u8>)> {
        let dir = parent(tx, object).ok()??;
        let mut after = 0;
        loop {
            let part = crate::list(tx, dir, tx.superblock().seed, after).unwrap();
            after = part.last()?.cookie;
            let found = part.into_iter().find(|entry| entry.object == object);
            if let Some(found) = found {
                return Some((dir, found.key));
            }
        }
    }

    fn rename(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        let (Some(object), Some(to)) = (self.any(), self.pick(Kind::Collection)) else {
            return Ok(());
        };
        let Some((from, name)) = Self::place(tx, object) else {
            return Ok(());
        };
        let mark = tx.mark();
        let gains = |tx: &Tx<'_>, of: ObjectId, before| {
            Ok::<_, Error>(is_hostile(policy(tx, tx.superblock(), of)?) && !is_hostile(before))
        };
        let before = [from, object].map(|of| policy(tx, tx.superblock(), of).unwrap());
        tx.remove(from, &name)?;
        let name = self.name(tx, to);
        let moved = tx.add(to, &name, object).is_ok()
            && (!(gains(tx, object, before[1])? || gains(tx, to, before[0])?)
                || self.declassify(tx, object)?);
        match moved {
            true if is_hostile(policy(tx, tx.superblock(), to)?) => {
                tx.set_own(object, ATTRIBUTE, 0)
            }
            true => Ok(()),
            false => {
                tx.roll_back(mark);
                Ok(())
            }
        }
    }

    fn link(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        if let (Some(file), Some(dir)) = (self.pick(Kind::MFile), self.pick(Kind::Collection)) {
            let name = self.name(tx, dir);
            tx.add(dir, &name, file)?;
        }
        Ok(())
    }

    fn delete(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(object) = self.any() else {
            return Ok(());
        };
        let Some((dir, name)) = Self::place(tx, object) else {
            return Ok(());
        };
        if object.kind() == Kind::Collection && entries(tx, object)? > 0 {
            return Ok(());
        }
        tx.remove(dir, &name)?;
        tx.delete(object)?;
        self.dirs.retain(|one| *one != object);
        self.files.retain(|one| *one != object);
        Ok(())
    }

    fn step(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        match self.rng.u32(..12) {
            0..4 => self.make(tx),
            4..6 => self.write(tx),
            6..8 => self.change_mode(tx),
            8 => self.rename(tx),
            9 if self.rng.bool() => self.link(tx),
            9 | 10 => self.delete(tx),
            _ => Ok(()),
        }
    }

    /// One change. If it fails, or at random, it is undone.
    fn one(&mut self, tx: &mut Tx<'_>) {
        let (dirs, files) = (self.dirs.clone(), self.files.clone());
        let mark = tx.mark();
        let done = self.step(tx).and_then(|()| tx.narrow());
        if done.is_err() || self.rng.u32(..10) == 0 {
            tx.roll_back(mark);
            (self.dirs, self.files) = (dirs, files);
        }
    }
}

/// A page that has not exactly the readers of its objects.
fn wrong(store: &Store<Memory>, objects: impl Iterator<Item = ObjectId>) -> Option<String> {
    let memory = store.memory();
    for object in objects {
        let wanted = policy(memory, store.superblock(), object).unwrap();
        let above = parent(memory, object).unwrap();
        let above = above.map_or(Readers::NOBODY, |above| {
            policy(memory, store.superblock(), above).unwrap()
        });
        let of_header = memory.of(object.header() / PAGE * PAGE);
        if object != store.root() && !of_header.is_within(above) {
            return Some(format!("the header of {object} has readers {of_header:?}"));
        }
        for index in 0..3 {
            let found = page(memory, object, index).unwrap();
            let found = found.map_or(wanted, |page| memory.of(page));
            if found != wanted {
                return Some(format!("{object} has {found:?} in place of {wanted:?}"));
            }
        }
    }
    None
}

/// Random changes. Returns the first leak, or page with wrong readers.
fn failure(seed: u64) -> Option<String> {
    let memory = Watched::new();
    crate::format_with(&memory, 9, &[1]).unwrap();
    let mut store = open(&memory);
    let mut random = Random {
        rng: Rng::with_seed(seed),
        dirs: vec![store.root()],
        files: Vec::new(),
        next: 0,
    };
    for _ in 0..25 {
        let mut tx = store.begin().unwrap();
        for _ in 0..random.rng.u32(1..8) {
            random.one(&mut tx);
        }
        // A crash before pages get more readers.
        let is_crash = random.rng.u32(..6) == 0;
        tx.narrow().unwrap();
        memory.is_full.store(is_crash, SeqCst);
        tx.commit().unwrap();
        memory.is_full.store(false, SeqCst);
        if is_crash {
            store = open(&memory);
        }
        let objects = random.dirs.iter().chain(&random.files);
        let found = memory.leak();
        let found = found.or_else(|| wrong(&store, objects.copied()));
        if found.is_some() {
            return found;
        }
        let report = crate::check(&memory);
        assert!(report.is_clean(), "{:?}", report.findings);
    }
    None
}

#[test]
fn a_user_never_reads_what_the_policy_denies() {
    for seed in 0..60 {
        assert_eq!(failure(seed), None, "seed {seed}");
    }
}

#[test]
fn bugs_of_the_protection_are_found() {
    for bug in BUGS {
        let is_found = |seed| {
            arm(Some(bug));
            let failed = failure(seed).is_some();
            let has_fired = fired() > 0;
            arm(None);
            assert!(has_fired || !failed, "{bug:?} had no part in the failure");
            failed
        };
        assert!((0..60).any(is_found), "{bug:?} is not found");
    }
}

/// Objects beside each other that many may read keep a page of headers of their own.
#[test]
fn headers_are_beside_those_with_the_same_readers() {
    let memory = Watched::new();
    crate::format_with(&memory, 9, &[1]).unwrap();
    let store = open(&memory);
    let mut tx = store.begin().unwrap();
    let private = tx.create_for(store.root(), Kind::Collection).unwrap();
    tx.add(store.root(), b"private", private).unwrap();
    for n in 0..40u8 {
        for dir in [store.root(), private] {
            let file = tx.create_for(dir, Kind::MFile).unwrap();
            tx.add(dir, &[n, 1], file).unwrap();
        }
    }
    tx.commit().unwrap();
    for n in 0..40u8 {
        for (dir, wanted) in [
            (store.root(), Readers::Everyone),
            (private, Readers::NOBODY),
        ] {
            let file = lookup(&memory, dir, store.seed(), &[n, 1])
                .unwrap()
                .unwrap();
            assert_eq!(memory.of(file.header() / PAGE * PAGE), wanted);
        }
    }
    let mut reserve = store.reserve_for(Readers::user(1), 10, 40);
    assert_eq!(reserve.pages().count(), 10);
    for page in reserve.pages() {
        assert_eq!(memory.of(page), Readers::NOBODY);
    }
    let objects: Vec<_> = reserve.objects(Kind::MFile).collect();
    for object in objects {
        let readers = memory.of(object.header() / PAGE * PAGE);
        assert!(Readers::user(1).is_within(readers));
        assert!(reserve.take_object(object).is_some());
    }
    const { assert!(header::OWN_WORDS > ATTRIBUTE) };
}

/// The opening repairs the readers that the medium has, by a walk.
#[test]
fn opening_takes_readers_that_a_page_should_not_have() {
    let memory = Watched::new();
    crate::format_with(&memory, 9, &[1]).unwrap();
    let store = open(&memory);
    let mut tx = store.begin().unwrap();
    let file = tx.create(Kind::MFile).unwrap();
    tx.add(store.root(), b"file", file).unwrap();
    let page = tx.add_page(file, 0).unwrap();
    tx.commit().unwrap();
    memory.readers.lock().unwrap()[(page / PAGE) as usize] = Readers::Everyone;
    memory.readers.lock().unwrap()[1] = Readers::Everyone;
    drop(store);
    open(&memory);
    assert_eq!(memory.of(page), Readers::NOBODY);
    assert_eq!(memory.of(PAGE), Readers::NOBODY, "the log");
    assert_eq!(memory.of(0), Readers::Everyone, "the superblock");
}

/// Many sets of readers have a page of headers each, of which only some are looked at.
#[test]
fn headers_of_new_readers_take_one_page() {
    let memory = Watched::new();
    crate::format(&memory, 7).unwrap();
    let guard = memory.clone();
    let protection = Protection { guard, policy };
    let store = Store::open_with(memory, Some(protection)).unwrap();
    for user in 0..100 {
        let free = store.free_pages();
        let reserve = store.reserve_for(Readers::user(user), 0, 1);
        assert_eq!(reserve.header_count(), 1, "of user {user}");
        assert!(free - store.free_pages() <= 1, "for user {user}");
    }
}
