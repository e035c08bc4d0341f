//! Batches that no client would build: damaged, forged, too large. The service ends, the store is whole,
//! and nothing of another user's changes.

use super::clients::{All, Client, client, service};
use super::hostile::{OTHER, USER, World, at, node, put, stored, user};
use crate::{MkfsOptions, Pxfs, mkfs};
use aerie_objects::{HEADER_BYTES, Kind, ObjectId};
use aerie_proto::ops::{Batch, Data, Name, Node, Op, Operation, REFUSED_MAX, operations};
use medium::{MemoryPmem, Pmem};
use oracle::script::{Op as Step, State, generate};
use std::sync::Arc;
use vfs::{
    Atime, Ctx, Errno, Fallocate, FileSystem, FileType, Ino, ManualClock, OpenFlags, Removal,
    RenameFlags, SetAttr, SetTime, Timestamp, XattrMode,
};

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
    match rng.u32(..17) {
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
        6 | 7 => put(from, forged_contents(rng, pages), object),
        kind => forged_of_inode(rng, kind - 2, one, pages),
    }
}

/// Sent, or in pages of anybody.
fn forged_contents(rng: &mut fastrand::Rng, pages: &[u64]) -> Data<'static> {
    if rng.bool() {
        return Data::Bytes(&[0x5b; 5000]);
    }
    let len = rng.u64(..9000);
    let count = rng.usize(..3);
    let pages = (0..count).map(|_| pages[rng.usize(..pages.len())]);
    let pages = pages.collect();
    Data::Stored { len, pages }
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
    /// Inodes of the other user, as far as nobody else may change them.
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

/// Refusals need memory. The batch ends with the last one that is reported.
#[test]
fn a_batch_with_many_refusals_is_broken_off() {
    let mut world = World::new();
    let mut batch = Batch::default();
    for _ in 0..2 * REFUSED_MAX {
        let ino = Ino(u64::MAX);
        batch.push(&world.operation(Op::Hold { ino }));
    }
    let answers = world.apply(&All, batch.bytes());
    let counts = (answers.count as usize, answers.refused.len());
    assert_eq!(counts, (REFUSED_MAX, REFUSED_MAX));
}

/// The service looks at a bounded number of directories above a file.
#[test]
fn paths_have_a_largest_depth() {
    let memory = Arc::new(MemoryPmem::new(64 << 20));
    mkfs(&memory, &MkfsOptions::default()).unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000_000), 1_000));
    let service = Pxfs::open(memory, clock, Atime::Never).unwrap();
    let mut session = service.begin(user(USER), false);
    let mut dir = Ino::ROOT;
    for depth in 1..4200 {
        let made = service.mkdir(&Ctx::root(), dir, b"directory", 0o777);
        dir = made.unwrap().ino;
        service.forget(dir, 1);
        if depth % 1000 == 999 || depth == 4199 {
            let (caller, time) = (None, service.clock.now());
            let op = Op::Make {
                at: at(dir, "file"),
                node: node(FileType::Regular),
                object: None,
            };
            let mut batch = Batch::default();
            batch.push(&Operation { caller, time, op });
            let answers = service.apply(&mut session, &All, batch.bytes()).unwrap();
            let is_refused = answers.refused.len() == 1;
            assert_eq!(is_refused, depth > 4096, "{depth}: {answers:?}");
        }
    }
    service.end(session);
}
