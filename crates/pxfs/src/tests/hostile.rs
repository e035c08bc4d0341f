//! Hostile clients: what they claim is checked, whatever they send. A refused operation changes nothing,
//! and nothing of another user's changes.

use super::clients::{All, service};
use super::{Memory, callers};
use crate::seeded::{Bug, arm, fired};
use crate::{Authority, Credentials, Pxfs, Session};
use aerie_objects::{HEADER_BYTES, Kind, ObjectId, PAGE};
use aerie_proto::ops::{Answers, Batch, Condition, Data, Name, Node, Op, Operation};
use medium::Pmem;
use oracle::snapshot::Snapshot;
use std::cell::RefCell;
use std::sync::Arc;
use vfs::{
    Ctx, Fallocate, FileSystem, FileType, Ino, OpenFlags, Removal, RenameFlags, SetAttr, SetTime,
    Timestamp, XattrMode,
};

pub(super) const USER: u32 = 1000;
pub(super) const OTHER: u32 = 2000;

/// A file system of two users, with a hostile session of the first one.
pub(super) struct World {
    pub(super) service: Arc<Pxfs<Memory>>,
    pub(super) session: Session,
    /// A session of the other user.
    pub(super) other: Session,
    /// Directories: `/own` of the user, and `/shared`, which is sticky, of the super-user.
    pub(super) own: Ino,
    pub(super) shared: Ino,
    /// `/own/file` of the user, and `/shared/foreign` of the other one.
    pub(super) file: Ino,
    pub(super) foreign: Ino,
    /// `/hidden/open`, a directory that all may change, in one of the other user's that nobody else may
    /// search.
    pub(super) open: Ino,
}

pub(super) fn user(uid: u32) -> Credentials {
    Credentials {
        uid,
        gid: uid,
        groups: Vec::new(),
    }
}

pub(super) fn node(kind: FileType) -> Node<'static> {
    Node {
        kind,
        mode: 0o755,
        rdev: 0,
        target: b"",
    }
}

pub(super) fn at(dir: Ino, name: &str) -> Name<'_> {
    let name = name.as_bytes();
    Name { dir, name }
}

impl World {
    pub(super) fn new() -> Self {
        let service = service(1_000);
        let fs = &*service;
        let (root, other) = (Ctx::root(), Ctx::user(OTHER, OTHER));
        let made = |attr: vfs::Result<vfs::Attr>| attr.unwrap().ino;
        let dir = |name: &str, mode, uid| {
            let ino = made(fs.mkdir(&root, Ino::ROOT, name.as_bytes(), mode));
            let set = SetAttr {
                perm: Some(mode),
                uid: Some(uid),
                gid: Some(uid),
                ..SetAttr::default()
            };
            fs.setattr(&root, ino, &set).unwrap();
            ino
        };
        let own = dir("own", 0o755, USER);
        let shared = dir("shared", 0o1777, 0);
        let hidden = dir("hidden", 0o700, OTHER);
        let file = made(fs.create(&Ctx::user(USER, USER), own, b"file", 0o644));
        let foreign = made(fs.create(&other, shared, b"foreign", 0o600));
        fs.write(&other, foreign, 0, &[9; 5000]).unwrap();
        let open = made(fs.mkdir(&other, hidden, b"open", 0o777));
        Self {
            session: fs.begin(user(USER), false),
            other: fs.begin(user(OTHER), false),
            service,
            own,
            shared,
            file,
            foreign,
            open,
        }
    }

    pub(super) fn object(&self, ino: Ino) -> ObjectId {
        self.service
            .object(self.service.store.memory(), ino)
            .unwrap()
    }

    /// All that the other user and the super-user have.
    fn others(&self) -> String {
        let all = Snapshot::take(&*self.service).unwrap();
        format!("{all:?}")
    }

    pub(super) fn apply(&mut self, authority: &dyn Authority, batch: &[u8]) -> Answers {
        let answers = self.service.apply(&mut self.session, authority, batch);
        let report = aerie_objects::check(self.service.store.memory());
        assert!(report.is_clean(), "{:?}", report.findings);
        answers.unwrap()
    }

    pub(super) fn operation<'a>(&self, op: Op<'a>) -> Operation<'a> {
        let (caller, time) = (None, self.service.clock.now());
        Operation { caller, time, op }
    }

    /// Runs one operation. Returns the reason of its refusal, which must have changed nothing.
    pub(super) fn run(
        &mut self,
        operation: &Operation<'_>,
        authority: &dyn Authority,
    ) -> Result<(), String> {
        let before = (self.others(), self.session.reserve.clone());
        let mut batch = Batch::default();
        batch.push(operation);
        let answers = self.apply(authority, batch.bytes());
        match answers.refused.first() {
            None => Ok(()),
            Some(refused) => {
                if (self.others(), self.session.reserve.clone()) != before {
                    return Ok(());
                }
                Err(refused.why.clone())
            }
        }
    }

    pub(super) fn op(&mut self, op: Op<'_>) -> Result<(), String> {
        self.run(&self.operation(op), &All)
    }

    pub(super) fn make<'a>(&self, dir: Ino, name: &'a str, object: ObjectId) -> Op<'a> {
        Op::Make {
            at: Name {
                dir,
                name: name.as_bytes(),
            },
            node: node(FileType::Regular),
            object: Some(object),
        }
    }

    pub(super) fn reserved(&mut self) -> ObjectId {
        let granted = self.service.grant(&mut self.session, 0, 1);
        granted.objects(Kind::MFile).next().unwrap()
    }
}

/// Demands a refusal whose reason contains these words.
pub(super) fn refused(result: Result<(), String>, words: &str) -> Result<(), String> {
    match result {
        Err(why) if why.contains(words) => Ok(()),
        other => Err(format!("{other:?}, and not refused since {words}")),
    }
}

/// The ids of new objects are those that the session has reserved, once.
fn ids_are_reserved() -> Result<(), String> {
    let mut world = World::new();
    let own = world.own;
    let mine = world.reserved();
    let theirs = world.service.grant(&mut world.other, 0, 1);
    let theirs = theirs.objects(Kind::MFile).next().unwrap();
    let used = world.object(world.foreign);
    let beyond = ObjectId::from_bits((1 << 40) | 2).unwrap();
    for foreign in [theirs, used, beyond] {
        refused(world.op(world.make(own, "new", foreign)), "not reserved")?;
    }
    let collection = ObjectId::from_bits(mine.header() | 1).unwrap();
    refused(world.op(world.make(own, "new", collection)), "another kind")?;
    // A refused operation gives its object back, and an accepted one does not.
    refused(world.op(world.make(own, "file", mine)), "exists")?;
    world.op(world.make(own, "new", mine))?;
    refused(world.op(world.make(own, "again", mine)), "not reserved")
}

pub(super) fn stored(ino: Ino, off: u64, len: u64, pages: &[u64]) -> Op<'static> {
    let pages = pages.to_vec();
    let data = Data::Stored { len, pages };
    Op::Write { ino, off, data }
}

/// Stored contents are in pages that the session has reserved, as many as the file needs.
fn pages_are_reserved() -> Result<(), String> {
    let mut world = World::new();
    let file = world.file;
    let page = world.service.grant(&mut world.session, 1, 0);
    let page = page.pages().next().unwrap();
    refused(world.op(stored(file, 0, 100, &[page])), "opened")?;
    let flags = OpenFlags::WRITE;
    world.op(Op::Open { ino: file, flags })?;
    refused(world.op(stored(file, 0, 100, &[page])), "may not store")?;
    refused(world.op(Op::Touch { ino: file }), "may not store")?;
    world.session.is_trusted = true;
    world.op(Op::Touch { ino: file })?;
    refused(world.op(Op::Touch { ino: world.own }), "directory")?;
    let memory = world.service.store.memory();
    let used = aerie_objects::page(memory, world.object(world.foreign), 0);
    let used = used.unwrap().unwrap();
    for foreign in [used, 0, PAGE, page + 8, u64::MAX - 7] {
        refused(world.op(stored(file, 0, 100, &[foreign])), "not reserved")?;
    }
    refused(
        world.op(stored(file, 0, 100, &[page, page])),
        "not reserved",
    )?;
    refused(world.op(stored(file, 0, 5000, &[page])), "not those")?;
    refused(world.op(stored(file, 0, 0, &[page])), "not those")?;
    refused(world.op(stored(file, 1 << 60, 100, &[page])), "too large")?;
    world.op(stored(file, 0, 100, &[page]))?;
    refused(world.op(stored(file, 4096, 1, &[page])), "not reserved")?;
    world.op(stored(file, 0, 50, &[]))
}

pub(super) fn put<'a>(at: Name<'a>, data: Data<'a>, object: Option<ObjectId>) -> Op<'a> {
    Op::Put {
        at,
        mode: 0o644,
        data,
        object,
        condition: Condition::Always,
    }
}

/// A put has the choices of its client's reserve, and needs the permissions of an open for writing.
fn puts_are_checked() -> Result<(), String> {
    let mut world = World::new();
    let (own, shared, open) = (world.own, world.shared, world.open);
    let bytes = || Data::Bytes(b"value");
    refused(
        world.op(put(at(shared, "foreign"), bytes(), None)),
        "denied",
    )?;
    refused(world.op(put(at(open, "new"), bytes(), None)), "denied")?;
    refused(world.op(put(at(Ino::ROOT, "new"), bytes(), None)), "denied")?;
    refused(
        world.op(put(at(Ino::ROOT, "own"), bytes(), None)),
        "directory",
    )?;
    let theirs = world.service.grant(&mut world.other, 0, 1);
    let theirs = theirs.objects(Kind::MFile).next();
    refused(
        world.op(put(at(own, "new"), bytes(), theirs)),
        "not reserved",
    )?;
    let mine = Some(world.reserved());
    refused(world.op(put(at(own, "file"), bytes(), mine)), "exists")?;
    world.op(put(at(own, "new"), bytes(), mine))?;
    refused(
        world.op(put(at(own, "again"), bytes(), mine)),
        "not reserved",
    )?;
    let condition = Condition::Is(b"other");
    let compared = Op::Put {
        at: at(own, "new"),
        mode: 0,
        data: bytes(),
        object: None,
        condition,
    };
    refused(world.op(compared), "canceled")?;
    let granted = world.service.grant(&mut world.session, 2, 0);
    let mut pages: Vec<u64> = granted.pages().collect();
    pages.sort_unstable();
    let stored = |len, pages: &[u64]| {
        let pages = pages.to_vec();
        put(at(own, "file"), Data::Stored { len, pages }, None)
    };
    refused(world.op(stored(100, &pages[..1])), "may not store")?;
    world.session.is_trusted = true;
    for (len, wrong) in [(0, 1), (100, 0), (100, 2), (8193, 2), (4096, 2)] {
        refused(world.op(stored(len, &pages[..wrong])), "not those")?;
    }
    refused(world.op(stored(u64::MAX, &pages)), "too large")?;
    for foreign in [0, PAGE, pages[0] + 8, u64::MAX - 7] {
        refused(world.op(stored(100, &[foreign])), "not reserved")?;
    }
    refused(
        world.op(stored(5000, &[pages[0], pages[0]])),
        "not reserved",
    )?;
    world.op(stored(5000, &pages))?;
    refused(world.op(stored(5000, &pages)), "not reserved")
}

/// A client names what it can reach: by directories that it may search, or since it holds it.
fn paths_are_searched() -> Result<(), String> {
    let mut world = World::new();
    let (open, file, own) = (world.open, world.file, world.own);
    let new = world.reserved();
    refused(world.op(world.make(open, "new", new)), "denied")?;
    refused(world.op(Op::Hold { ino: open }), "denied")?;
    // Names of files are unknown above, unless it is the only one.
    world.op(Op::Link {
        ino: file,
        at: at(own, "second"),
    })?;
    let count = 1;
    world.op(Op::Release { ino: file, count })?;
    refused(world.op(Op::Hold { ino: file }), "path is unknown")?;
    refused(world.op(Op::Look { at: at(open, "x") }), "denied")?;
    world.op(Op::Look {
        at: at(own, "second"),
    })?;
    world.op(Op::Hold { ino: file })?;
    let release = |count| Op::Release { ino: file, count };
    refused(world.op(release(0)), "not held")?;
    // More than all is all.
    world.op(release(3))?;
    refused(world.op(release(1)), "not held")
}

/// Contents change after an open for writing, which needs the permission, and until the release.
fn writes_need_an_open() -> Result<(), String> {
    let mut world = World::new();
    let ino = world.file;
    let write = || Op::Write {
        ino,
        off: 3,
        data: Data::Bytes(b"contents"),
    };
    let allocate = || Op::Allocate {
        ino,
        kind: Fallocate::PunchHole,
        off: 0,
        len: 1,
    };
    refused(world.op(write()), "not opened")?;
    refused(world.op(allocate()), "not opened")?;
    world.op(Op::Open {
        ino,
        flags: OpenFlags::READ,
    })?;
    refused(world.op(write()), "not opened")?;
    world.op(Op::Open {
        ino,
        flags: OpenFlags::WRITE,
    })?;
    world.op(write())?;
    world.op(allocate())?;
    world.op(Op::Release { ino, count: 2 })?;
    refused(world.op(write()), "not opened")
}

/// Locks that cover all but some objects. It keeps the paths.
struct AllBut {
    refused: Vec<ObjectId>,
    paths: RefCell<Vec<Vec<ObjectId>>>,
}

impl Authority for AllBut {
    fn covers(&self, path: &[ObjectId]) -> Result<(), String> {
        self.paths.borrow_mut().push(path.to_vec());
        match self.refused.contains(&path[0]) {
            true => Err("no lock covers it".into()),
            false => Ok(()),
        }
    }
}

/// Each object that an operation changes needs a lock, on the path that it had before.
fn locks_cover_changes() -> Result<(), String> {
    let mut world = World::new();
    let (own, shared, ino) = (world.own, world.shared, world.file);
    let root = world.object(Ino::ROOT);
    let [own_id, shared_id, file_id] = [own, shared, ino].map(|ino| world.object(ino));
    let rename = Op::Rename {
        from: at(own, "file"),
        to: at(shared, "moved"),
        flags: RenameFlags::empty(),
        holds: false,
    };
    let rename = world.operation(rename);
    for object in [own_id, shared_id, file_id] {
        let authority = AllBut {
            refused: vec![object],
            paths: RefCell::default(),
        };
        refused(world.run(&rename, &authority), "no lock covers it")?;
    }
    let authority = AllBut {
        refused: vec![root],
        paths: RefCell::default(),
    };
    world.run(&rename, &authority)?;
    let mut paths = authority.paths.take();
    paths.sort();
    let mut expected = [
        vec![own_id, root],
        vec![shared_id, root],
        vec![file_id, own_id, root],
    ];
    expected.sort();
    assert_eq!(paths, expected);
    // A new object needs none, and neither do files of attributes.
    let new = world.reserved();
    let make = world.operation(world.make(own, "new", new));
    world.run(&make, &authority)?;
    let set = Op::SetXattr {
        ino,
        name: b"user.x",
        value: b"y",
        mode: XattrMode::Set,
    };
    world.run(&world.operation(set), &authority)?;
    // A put changes the file that there is, and not its directory.
    let over = put(at(shared, "moved"), Data::Bytes(b"value"), None);
    world.run(&world.operation(over), &authority)?;
    let paths = authority.paths.take();
    let file = vec![file_id, shared_id, root];
    assert_eq!(paths, [vec![own_id, root], file.clone(), file]);
    Ok(())
}

/// A file with several names or none needs a lock of its own, since no path leads to it.
fn locks_cover_files_without_a_path() -> Result<(), String> {
    let mut world = World::new();
    let (own, ino) = (world.own, world.file);
    let file_id = world.object(ino);
    let second = at(own, "second");
    world.op(Op::Hold { ino })?;
    world.op(Op::Link { ino, at: second })?;
    let authority = AllBut {
        refused: vec![file_id],
        paths: RefCell::default(),
    };
    for names in [&[][..], &[second, at(own, "file")]] {
        for at in names {
            let (which, holds) = (Removal::Unlink, true);
            world.op(Op::Remove {
                at: *at,
                which,
                holds,
            })?;
        }
        let set = SetAttr {
            perm: Some(0o600),
            ..SetAttr::default()
        };
        let chmod = world.operation(Op::SetAttr { ino, set });
        refused(world.run(&chmod, &authority), "no lock covers it")?;
        assert_eq!(authority.paths.take(), [[file_id]]);
    }
    Ok(())
}

/// Times are not far ahead, and do not run backwards.
fn times_are_clamped() -> Result<(), String> {
    let mut world = World::new();
    let ino = world.file;
    let mut last = world.service.clock.now();
    for time in [i64::MIN, 0, i64::MAX, 5] {
        let touch = SetAttr {
            mtime: Some(SetTime::Now),
            ctime: Some(Timestamp(7)),
            ..SetAttr::default()
        };
        let mut operation = world.operation(Op::SetAttr { ino, set: touch });
        operation.time = Timestamp(time);
        world.run(&operation, &All)?;
        let latest = Timestamp(world.service.clock.now().0 + 1_000_000_000);
        let attr = world.service.getattr(&Ctx::root(), ino).unwrap();
        // The session has begun a few readings of the clock earlier.
        let first = Timestamp(last.0 - 20_000);
        for found in [attr.mtime, attr.ctime] {
            if found < first || found > latest {
                return Err(format!("{found:?} is not in {first:?}..={latest:?}"));
            }
        }
        last = attr.mtime;
    }
    Ok(())
}

/// Directories stay a tree, and what looks like a header in a file is not an object.
fn structures_stay() -> Result<(), String> {
    let mut world = World::new();
    let own = world.own;
    world.op(Op::Make {
        at: at(own, "dir"),
        node: node(FileType::Directory),
        object: None,
    })?;
    let dir = world.service.lookup(&Ctx::root(), own, b"dir").unwrap().ino;
    world.session.is_trusted = true;
    for flags in [RenameFlags::empty(), RenameFlags::EXCHANGE] {
        world
            .op(Op::Make {
                at: at(dir, "x"),
                node: node(FileType::Directory),
                object: None,
            })
            .ok();
        let rename = Op::Rename {
            from: at(Ino::ROOT, "own"),
            to: at(dir, "x"),
            flags,
            holds: false,
        };
        refused(world.op(rename), "Invalid")?;
    }
    let unknown = Op::Rename {
        from: at(own, "file"),
        to: at(own, "x"),
        flags: RenameFlags::from_bits_retain(1 << 9),
        holds: false,
    };
    refused(world.op(unknown), "Invalid")?;
    // A copy of the header of a directory, in a page of the client.
    let page = world.service.grant(&mut world.session, 1, 0);
    let page = page.pages().next().unwrap();
    let memory = world.service.store.memory().clone();
    let mut header = [0; HEADER_BYTES as usize];
    Pmem::read(&*memory, world.object(own).header(), &mut header).unwrap();
    memory.store(page, &header);
    world.op(stored(world.file, 0, 4096, &[page]))?;
    let forged = Ino(page | 1);
    let new = world.reserved();
    refused(world.op(world.make(forged, "new", new)), "Stale")?;
    let superblock = *world.service.store.superblock();
    for inner in [superblock.open, superblock.attributes] {
        let ino = Ino(inner.to_bits());
        refused(world.op(world.make(ino, "new", new)), "clean")?;
    }
    Ok(())
}

const CLAIMS: [fn() -> Result<(), String>; 13] = [
    ids_are_reserved,
    pages_are_reserved,
    puts_are_checked,
    callers::callers_are_checked,
    callers::claims_of_open_files_are_checked,
    callers::claims_of_open_directories_are_checked,
    callers::listed_inodes_are_not_reached,
    paths_are_searched,
    writes_need_an_open,
    locks_cover_changes,
    locks_cover_files_without_a_path,
    times_are_clamped,
    structures_stay,
];

#[test]
fn what_a_client_claims_is_checked() {
    for claim in CLAIMS {
        claim().unwrap();
    }
}

#[test]
fn seeded_bugs_are_found() {
    // The explorer finds what only a crash shows. The tests of protected stores, of batches beside each other, of
    // ships, of sessions, of paths and of fsyncs find the other ones.
    let elsewhere = [
        Bug::StoredNotFlushed,
        Bug::FilledNotFenced,
        Bug::ZerosBeforeCut,
        Bug::ZerosOverUncut,
        Bug::ParentIgnored,
        Bug::HeldUnclaimed,
        Bug::PathsKept,
        Bug::ShipEndedLate,
        Bug::DroppedBeside,
        Bug::RefusalKept,
    ];
    let bugs = Bug::ALL.iter().filter(|bug| !elsewhere.contains(bug));
    for bug in bugs {
        let is_found = |claim: fn() -> Result<(), String>| {
            arm(Some(*bug));
            let result = std::panic::catch_unwind(claim);
            let has_fired = fired() > 0;
            arm(None);
            let has_failed = !matches!(result, Ok(Ok(())));
            assert!(
                has_fired || !has_failed,
                "{bug:?} had no part in {result:?}"
            );
            has_failed
        };
        assert!(CLAIMS.into_iter().any(is_found), "{bug:?} is not found");
    }
}
