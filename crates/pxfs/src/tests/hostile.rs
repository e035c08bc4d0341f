//! Hostile clients: what they claim is checked, whatever they send. A refused operation changes nothing,
//! and nothing of another user's changes.

use super::Memory;
use super::clients::{All, Client, client, service};
use crate::seeded::{Bug, arm, fired};
use crate::{Authority, Credentials, Pxfs, Session};
use aerie_objects::{HEADER_BYTES, Kind, ObjectId, PAGE};
use aerie_proto::ops::{
    Answers, Batch, Call, Caller, Data, Name, Node, Op, Operation, Read, Reply, operations,
};
use medium::Pmem;
use oracle::script::{Op as Step, State, generate};
use oracle::snapshot::Snapshot;
use std::cell::RefCell;
use std::sync::Arc;
use vfs::{
    Ctx, Errno, Fallocate, FileSystem, FileType, Ino, OpenFlags, Removal, RenameFlags, SetAttr,
    SetTime, Timestamp, XattrMode,
};

const USER: u32 = 1000;
const OTHER: u32 = 2000;

/// A file system of two users, with a hostile session of the first one.
struct World {
    service: Arc<Pxfs<Memory>>,
    session: Session,
    /// A session of the other user.
    other: Session,
    /// Directories: `/own` of the user, and `/shared`, which is sticky, of the super-user.
    own: Ino,
    shared: Ino,
    /// `/own/file` of the user, and `/shared/foreign` of the other one.
    file: Ino,
    foreign: Ino,
    /// `/hidden/open`, a directory that all may change, in one of the other user's that nobody else may
    /// search.
    open: Ino,
}

fn user(uid: u32) -> Credentials {
    Credentials {
        uid,
        gid: uid,
        groups: Vec::new(),
    }
}

fn node(kind: FileType) -> Node<'static> {
    Node {
        kind,
        mode: 0o755,
        rdev: 0,
        target: b"",
    }
}

fn at(dir: Ino, name: &str) -> Name<'_> {
    let name = name.as_bytes();
    Name { dir, name }
}

impl World {
    fn new() -> Self {
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

    fn object(&self, ino: Ino) -> ObjectId {
        self.service
            .object(self.service.store.memory(), ino)
            .unwrap()
    }

    /// All that the other user and the super-user have.
    fn others(&self) -> String {
        let all = Snapshot::take(&*self.service).unwrap();
        format!("{all:?}")
    }

    fn apply(&mut self, authority: &dyn Authority, batch: &[u8]) -> Answers {
        let answers = self.service.apply(&mut self.session, authority, batch);
        let report = aerie_objects::check(self.service.store.memory());
        assert!(report.is_clean(), "{:?}", report.findings);
        answers.unwrap()
    }

    fn operation<'a>(&self, op: Op<'a>) -> Operation<'a> {
        let (caller, time) = (None, self.service.clock.now());
        Operation { caller, time, op }
    }

    /// Runs one operation. Returns the reason of its refusal, which must have changed nothing.
    fn run(&mut self, operation: &Operation<'_>, authority: &dyn Authority) -> Result<(), String> {
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

    fn op(&mut self, op: Op<'_>) -> Result<(), String> {
        self.run(&self.operation(op), &All)
    }

    fn make<'a>(&self, dir: Ino, name: &'a str, object: ObjectId) -> Op<'a> {
        Op::Make {
            at: Name {
                dir,
                name: name.as_bytes(),
            },
            node: node(FileType::Regular),
            object: Some(object),
        }
    }

    fn reserved(&mut self) -> ObjectId {
        let granted = self.service.grant(&mut self.session, 0, 1);
        granted.objects(Kind::MFile).next().unwrap()
    }
}

/// Demands a refusal whose reason contains these words.
fn refused(result: Result<(), String>, words: &str) -> Result<(), String> {
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

fn stored(ino: Ino, off: u64, len: u64, pages: &[u64]) -> Op<'static> {
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
    world.session.is_trusted = true;
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

/// A client acts for its own user.
fn callers_are_checked() -> Result<(), String> {
    let mut world = World::new();
    for cx in [Ctx::root(), Ctx::user(OTHER, OTHER), Ctx::user(USER, OTHER)] {
        let op = Op::Remove {
            at: at(world.shared, "foreign"),
            which: Removal::Unlink,
            holds: false,
        };
        let mut operation = world.operation(op);
        operation.caller = Some(Caller::from(&cx));
        refused(world.run(&operation, &All), "another user")?;
    }
    let (file, foreign, own, shared) = (world.file, world.foreign, world.own, world.shared);
    let set = SetAttr {
        perm: Some(0o777),
        ..SetAttr::default()
    };
    refused(world.op(Op::SetAttr { ino: foreign, set }), "not permitted")?;
    let flags = OpenFlags::WRITE;
    refused(
        world.op(Op::Open {
            ino: foreign,
            flags,
        }),
        "denied",
    )?;
    let which = Removal::Unlink;
    let holds = false;
    let remove = |name| Op::Remove {
        at: name,
        which,
        holds,
    };
    refused(world.op(remove(at(shared, "foreign"))), "not permitted")?;
    let rename = |from, to| Op::Rename {
        from,
        to,
        flags: RenameFlags::empty(),
        holds,
    };
    let (mine, theirs) = (at(own, "file"), at(shared, "foreign"));
    refused(world.op(rename(theirs, mine)), "not permitted")?;
    refused(world.op(rename(mine, theirs)), "not permitted")?;
    let root = at(Ino::ROOT, "link");
    refused(
        world.op(Op::Link {
            ino: file,
            at: root,
        }),
        "denied",
    )
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
    refused(
        world.op(Op::Release {
            ino: file,
            count: 3,
        }),
        "held 2 times",
    )?;
    refused(
        world.op(Op::Release {
            ino: file,
            count: 0,
        }),
        "held 2 times",
    )?;
    world.op(Op::Release {
        ino: file,
        count: 2,
    })
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
    let paths = authority.paths.take();
    assert_eq!(paths, [vec![own_id, root], vec![file_id, shared_id, root]]);
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

const CLAIMS: [fn() -> Result<(), String>; 8] = [
    ids_are_reserved,
    pages_are_reserved,
    callers_are_checked,
    paths_are_searched,
    writes_need_an_open,
    locks_cover_changes,
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
    for bug in Bug::ALL {
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

/// A batch of many calls of a client, and the session for which it was built.
fn recorded(client: &Client, seed: u64) -> Vec<u8> {
    let mut script = generate::setup().then(&generate::random(seed, 60));
    let ships = |op: &Step| matches!(op, Step::Fsync { .. } | Step::Fsyncdir { .. } | Step::Sync);
    script.ops.retain(|op| !ships(op));
    oracle::script::run(client, &mut State::default(), &script);
    client.recorded()
}

/// Damaged, cut and repeated batches: the service ends, and the store is whole.
#[test]
fn damaged_batches_do_no_damage() {
    let mut rng = fastrand::Rng::with_seed(5);
    for round in 0..300 {
        let service = service(1_000);
        let client = client(&service, round % 2 == 0);
        let mut batch = recorded(&client, round % 10);
        assert!(operations(&batch).count() > 10);
        for _ in 0..rng.u32(0..6) {
            let (at, with) = (rng.usize(..batch.len()), rng.u8(..));
            match rng.u32(..4) {
                0 => batch[at] ^= 1 << (with % 8),
                1 => batch[at] = with,
                2 => batch.truncate(at.max(1)),
                _ => batch.extend_from_within(at..),
            }
        }
        for _ in 0..2 {
            let answers = client.host().apply(&batch);
            assert!(
                answers
                    .refused
                    .iter()
                    .all(|refused| !refused.why.is_empty())
            );
            let report = aerie_objects::check(service.store.memory());
            assert!(report.is_clean(), "{:?}", report.findings);
        }
        drop(client);
        let findings = service.audit();
        assert!(findings.is_empty(), "{findings:?}");
    }
}

/// A client without memory: what it reads and changes by calls.
#[test]
fn remote_calls_need_a_path_and_an_open() {
    let mut world = World::new();
    let (own, file, open) = (world.own, world.file, world.open);
    let fs = world.service.clone();
    let read = |session: &mut Session, read| {
        let caller = None;
        fs.call(session, &Call::Read { caller, read })
    };
    let session = &mut world.session;
    let bytes = |ino| Read::Read {
        ino,
        off: 0,
        len: 10,
    };
    assert_eq!(read(session, bytes(file)), Err(Errno::BADF));
    assert_eq!(read(session, Read::GetAttr(open)), Err(Errno::ACCESS));
    assert_eq!(read(session, Read::ByNumber(open)), Err(Errno::ACCESS));
    let lookup = Read::Lookup(at(Ino::ROOT, "own"));
    assert!(matches!(read(session, lookup), Ok(Reply::Attr(attr)) if attr.ino == own));
    let list = Read::List {
        dir: own,
        after: vfs::Cookie(0),
        bytes: 1,
        with_attributes: true,
    };
    assert!(matches!(read(session, list), Ok(Reply::Entries(entries)) if entries.len() == 1));
    let change = |session: &mut Session, op| {
        let time = fs.clock.now();
        let caller = None;
        fs.call(session, &Call::Change(Operation { caller, time, op }))
    };
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    change(session, Op::Open { ino: file, flags }).unwrap();
    let data = Data::Bytes(b"contents");
    change(
        session,
        Op::Write {
            ino: file,
            off: 0,
            data,
        },
    )
    .unwrap();
    assert_eq!(
        read(session, bytes(file)),
        Ok(Reply::Bytes(b"contents".to_vec()))
    );
    // The file is held, and lives on without a name.
    let (which, holds) = (Removal::Unlink, false);
    let remove = Op::Remove {
        at: at(own, "file"),
        which,
        holds,
    };
    assert_eq!(change(session, remove), Ok(Reply::Done));
    assert_eq!(
        read(session, bytes(file)),
        Ok(Reply::Bytes(b"contents".to_vec()))
    );
    // One reference is of the test itself.
    fs.forget(file, 1);
    change(
        session,
        Op::Release {
            ino: file,
            count: 1,
        },
    )
    .unwrap();
    assert_eq!(read(session, Read::GetAttr(file)), Err(Errno::STALE));
}

/// The end of a session frees what it had.
#[test]
fn the_end_of_a_session_frees_what_it_had() {
    let service = service(1_000);
    let free = service.statfs().unwrap().blocks_free;
    let mut session = service.begin(user(0), true);
    service.grant(&mut session, 20, 50);
    let mut batch = Batch::default();
    for n in 0..3u8 {
        let (caller, time) = (None, service.clock.now());
        let (dir, mode, object) = (Ino::ROOT, 0o600, None);
        let op = match n {
            0 => Op::Tmpfile { dir, mode, object },
            1 => world_file(),
            _ => Op::Remove {
                at: at(dir, "file"),
                which: Removal::Unlink,
                holds: true,
            },
        };
        batch.push(&Operation { caller, time, op });
    }
    let answers = service.apply(&mut session, &All, batch.bytes()).unwrap();
    assert_eq!(answers.refused, []);
    assert_eq!(service.nameless().len(), 2);
    service.end(session);
    assert_eq!(service.nameless(), []);
    assert!(service.audit().is_empty());
    // The root has a page now, and so have the nameless objects.
    assert!(free - service.statfs().unwrap().blocks_free <= 2);
}

fn world_file() -> Op<'static> {
    Op::Make {
        at: at(Ino::ROOT, "file"),
        node: node(FileType::Regular),
        object: None,
    }
}

const NAMES: [&[u8]; 8] = [
    b"a", b"b", b"file", b"own", b"shared", b"hidden", b"foreign", b".",
];

/// An operation of any kind on anything: inodes of all users, headers that are free, reserved or forged,
/// and collections of the store itself.
fn forged(rng: &mut fastrand::Rng, inos: &[Ino], pages: &[u64]) -> Op<'static> {
    let mut ino = || inos[rng.usize(..inos.len())];
    let (one, two) = (ino(), ino());
    let name = |rng: &mut fastrand::Rng| NAMES[rng.usize(..NAMES.len())];
    let (from, to) = (name(rng), name(rng));
    let (from, to) = (
        Name {
            dir: one,
            name: from,
        },
        Name { dir: two, name: to },
    );
    let holds = rng.bool();
    let object = ObjectId::from_bits(two.0).filter(|_| rng.bool());
    let kinds = [
        FileType::Regular,
        FileType::Directory,
        FileType::Symlink,
        FileType::CharDevice,
    ];
    let which = [Removal::Unlink, Removal::Rmdir][rng.usize(..2)];
    let flags = RenameFlags::from_bits_retain(rng.u32(..5));
    match rng.u32(..15) {
        0 | 1 => {
            let kind = kinds[rng.usize(..4)];
            let (mode, rdev, target) = (rng.u32(..), 5, &b"target"[..]);
            let node = Node {
                kind,
                mode,
                rdev,
                target,
            };
            Op::Make {
                at: from,
                node,
                object,
            }
        }
        2 => Op::Tmpfile {
            dir: one,
            mode: rng.u32(..),
            object,
        },
        3 => Op::Link { ino: one, at: to },
        4 => Op::Remove {
            at: from,
            which,
            holds,
        },
        5 => Op::Rename {
            from,
            to,
            flags,
            holds,
        },
        kind => forged_of_inode(rng, kind, one, pages),
    }
}

/// An operation on an inode.
fn forged_of_inode(rng: &mut fastrand::Rng, kind: u32, one: Ino, pages: &[u64]) -> Op<'static> {
    let off = [0, 3, 4096, 20_000, 1 << 50, u64::MAX][rng.usize(..6)];
    let set = SetAttr {
        perm: rng.bool().then(|| rng.u32(..)),
        uid: rng.bool().then(|| [0, USER, OTHER][rng.usize(..3)]),
        size: rng.bool().then_some(off),
        mtime: rng.bool().then_some(SetTime::At(Timestamp(rng.i64(..)))),
        ..SetAttr::default()
    };
    let chosen = (0..rng.usize(..3))
        .map(|_| pages[rng.usize(..pages.len())])
        .collect();
    match kind {
        6 => Op::SetAttr { ino: one, set },
        7 => Op::Open {
            ino: one,
            flags: OpenFlags::from_bits_retain(rng.u32(..8)),
        },
        8 => Op::Write {
            ino: one,
            off,
            data: Data::Bytes(&[0x5a; 5000]),
        },
        9 => stored(one, off, rng.u64(..9000), Vec::as_slice(&chosen)),
        10 => Op::Allocate {
            ino: one,
            kind: Fallocate::PunchHole,
            off,
            len: rng.u64(..9000),
        },
        11 => Op::SetXattr {
            ino: one,
            name: b"user.a",
            value: b"v",
            mode: XattrMode::Set,
        },
        12 => Op::RemoveXattr {
            ino: one,
            name: b"user.a",
        },
        13 => Op::Hold { ino: one },
        _ => Op::Release {
            ino: one,
            count: rng.u64(..3),
        },
    }
}

impl World {
    /// What the other user has, that nobody else may change.
    fn guarded(&self) -> String {
        let (fs, cx) = (&*self.service, Ctx::root());
        let mut contents = [0; 6000];
        let read = fs.read(&cx, self.foreign, 0, &mut contents);
        // Linux lets everybody link a file.
        let attrs = [self.foreign, self.open].map(|ino| {
            let attr = fs.getattr(&cx, ino).unwrap();
            (attr.perm, attr.uid, attr.gid, attr.size, attr.mtime)
        });
        let hidden = fs.lookup(&cx, Ino::ROOT, b"hidden").unwrap();
        fs.forget(hidden.ino, 1);
        let named = fs.lookup(&cx, self.shared, b"foreign").map(|attr| attr.ino);
        fs.forget(self.foreign, 1);
        format!(
            "{read:?} {attrs:?} {hidden:?} {named:?} {:?}",
            &contents[..5000]
        )
    }

    /// Inodes of everybody, and what might be taken for some.
    fn inos(&mut self, pages: &[u64]) -> Vec<Ino> {
        let superblock = *self.service.store.superblock();
        let reserved = self.service.grant(&mut self.session, 0, 4);
        let foreign = self.service.grant(&mut self.other, 0, 4);
        let kinds = [Kind::MFile, Kind::Collection];
        let free = [reserved, foreign];
        let free = free
            .iter()
            .flat_map(|of| kinds.map(|kind| of.objects(kind).collect::<Vec<_>>()));
        let mut inos: Vec<Ino> = free.flatten().map(|object| Ino(object.to_bits())).collect();
        inos.sort();
        inos.extend([
            self.own,
            self.own,
            self.shared,
            self.file,
            self.file,
            self.foreign,
            self.open,
        ]);
        inos.extend([Ino::ROOT, Ino(0), Ino(u64::MAX), Ino(3)]);
        inos.extend(superblock.collections().map(|object| Ino(object.to_bits())));
        inos.extend(pages.iter().map(|page| Ino(page | 1)));
        inos
    }
}

/// Random operations, most of which are refused.
#[test]
fn forged_operations_do_no_damage() {
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::new();
        let granted = world.service.grant(&mut world.session, 3, 0);
        let mut pages: Vec<u64> = granted.pages().collect();
        pages.sort_unstable();
        // The client has written copies of a header into its pages, and shares one.
        let memory = world.service.store.memory().clone();
        let mut header = [0; HEADER_BYTES as usize];
        let model = world.object(world.own).header();
        Pmem::read(&*memory, model, &mut header).unwrap();
        pages.iter().for_each(|page| memory.store(*page, &header));
        let inos = world.inos(&pages);
        let before = world.guarded();
        for _ in 0..20 {
            let mut batch = Batch::default();
            for _ in 0..10 {
                batch.push(&world.operation(forged(&mut rng, &inos, &pages)));
            }
            let answers = world.apply(&All, batch.bytes());
            refused += answers.refused.len();
            accepted += answers.count as usize - answers.refused.len();
            assert_eq!(world.guarded(), before, "seed {seed}");
        }
        let World {
            service,
            session,
            other,
            ..
        } = world;
        service.end(session);
        service.end(other);
        let findings = service.audit();
        assert!(findings.is_empty(), "{findings:?}");
    }
    assert!(accepted > 500 && refused > 5_000, "{accepted} {refused}");
}

/// A refused operation does not end its batch, and one that is malformed does.
#[test]
fn refusals_are_named_by_number() {
    let mut world = World::new();
    let mut batch = Batch::default();
    let object = world.reserved();
    for name in ["file", "new", "again"] {
        let make = world.make(world.own, name, object);
        batch.push(&world.operation(make));
    }
    let mut bytes = batch.bytes().to_vec();
    bytes.extend([0; 3]);
    let answers = world.apply(&All, &bytes);
    let numbers: Vec<_> = answers.refused.iter().map(|one| one.number).collect();
    assert_eq!((answers.count, numbers), (3, vec![0, 2, 3]));
    assert_eq!(answers.refused[0].errno, Errno::EXIST.raw_os_error());
    let why = &answers.refused[2].why;
    assert!(why.starts_with("a message cannot be read"), "{why}");
}

/// The redo log of this store takes a few hundred operations in a record.
#[test]
fn a_batch_larger_than_the_log_is_applied_in_parts() {
    let mut world = World::new();
    let names: Vec<String> = (0..1000)
        .map(|n| format!("a name of some length {n}"))
        .collect();
    for is_made in [true, false] {
        let mut batch = Batch::default();
        for name in &names {
            let at = at(world.own, name);
            let object = None;
            let op = match is_made {
                true => Op::Make {
                    at,
                    node: node(FileType::Regular),
                    object,
                },
                false => Op::Remove {
                    at,
                    which: Removal::Unlink,
                    holds: false,
                },
            };
            batch.push(&world.operation(op));
        }
        let answers = world.apply(&All, batch.bytes());
        assert_eq!((answers.count, answers.refused.len()), (1000, 0));
    }
}
