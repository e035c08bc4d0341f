//! Every crash state of batches with one and two operations of each kind, in both models of memory.

use super::bounds::bound;
use aerie_objects::{Kind, ObjectId};
use aerie_proto::ops::{Batch, Condition, Data, Name, Node, Op, Operation};
use crash::program::{Memory, Program, explore};
use crash::{Options, PersistModel};
use medium::{MemoryPmem, Rule};
use oracle::snapshot::Snapshot;
use pxfs::seeded::Bug;
use pxfs::{Authority, Credentials, MkfsOptions, Pxfs, Session, mkfs};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use vfs::{
    Atime, Ctx, Fallocate, FileSystem, FileType, Ino, ManualClock, OpenFlags, Removal, RenameFlags,
    SetAttr, SetTime, Timestamp, XattrMode,
};

const START: Timestamp = Timestamp(1_000_000_000_000);

/// The kinds of operations, on the file system that `format` makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kinds {
    Make(FileType),
    Tmpfile,
    Link,
    Unlink,
    Rmdir,
    /// The removal of a name of a file that the client holds.
    UnlinkHeld,
    Release,
    Replace,
    Exchange,
    Move,
    Truncate,
    Grow,
    Chmod,
    OpenTruncated,
    Bytes,
    /// Contents that the client has stored.
    Stored,
    Allocate,
    Punch,
    SetXattr,
    RemoveXattr,
    Access,
    /// A value in place of contents.
    Put,
    /// A value that the client has stored.
    PutStored,
    /// A value in a new file.
    PutNew,
}
use Kinds::*;

const KINDS: [Kinds; 26] = [
    Make(FileType::Regular),
    Make(FileType::Directory),
    Make(FileType::Symlink),
    Tmpfile,
    Link,
    Unlink,
    Rmdir,
    UnlinkHeld,
    Release,
    Replace,
    Exchange,
    Move,
    Truncate,
    Grow,
    Chmod,
    OpenTruncated,
    Bytes,
    Stored,
    Allocate,
    Punch,
    SetXattr,
    RemoveXattr,
    Access,
    Put,
    PutStored,
    PutNew,
];

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

/// A service with a session of a trusted client.
struct World {
    fs: Pxfs<Memory>,
    session: Session,
    objects: [Vec<ObjectId>; 2],
    pages: Vec<u64>,
    /// `/file`, `/other` and `/dir`, before the operations.
    inos: [Ino; 3],
}

impl World {
    fn open(memory: Memory) -> Result<Self, String> {
        let fs = open(memory)?;
        let who = Credentials {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
        };
        let mut session = fs.begin(who, true);
        let granted = fs.grant(&mut session, 2, 2);
        let objects = [Kind::MFile, Kind::Collection].map(|kind| {
            let mut objects: Vec<_> = granted.objects(kind).collect();
            objects.sort();
            objects
        });
        let mut pages: Vec<_> = granted.pages().collect();
        pages.sort_unstable();
        let inos = ["file", "other", "dir"].map(|name| {
            let found = fs.lookup(&Ctx::root(), Ino::ROOT, name.as_bytes());
            let ino = found.map_or(Ino(0), |attr| attr.ino);
            fs.forget(ino, 1);
            ino
        });
        Ok(Self {
            fs,
            session,
            objects,
            pages,
            inos,
        })
    }

    /// Adds operation number `n` to a batch.
    fn push(
        &self,
        batch: &mut Batch,
        memory: &Memory,
        n: usize,
        kind: Kinds,
    ) -> Result<(), String> {
        let [_, other, _] = self.inos;
        let op = match kind {
            Release => Op::Release {
                ino: held(batch, other),
                count: 1,
            },
            Stored => Op::Write {
                ino: other,
                off: 8192 + 4096 * n as u64,
                data: self.stored(memory, n)?,
            },
            PutStored => put(b"file", self.stored(memory, n)?, None),
            Put => put(b"file", Data::Bytes(NAMES[n]), None),
            PutNew => put(NAMES[n], Data::Bytes(&[9; 5000]), Some(self.objects[0][n])),
            Make(_) | Tmpfile | Link | Unlink | Rmdir | UnlinkHeld | Replace | Exchange | Move => {
                self.of_names(n, kind)
            }
            Truncate | Grow | Chmod => self.of_attributes(kind),
            _ => self.of_inode(NAMES[n], kind),
        };
        let time = Timestamp(START.0 + n as i64 + 1);
        let caller = None;
        batch.push(&Operation { caller, time, op });
        Ok(())
    }

    /// Contents that the client has stored in a page, which are durable.
    fn stored(&self, memory: &Memory, n: usize) -> Result<Data<'static>, String> {
        let page = self.pages[n];
        memory.store(page, &[n as u8 + 1; 4096]);
        memory.flush(page, 4096);
        memory.fence(Rule::DurableBeforeReturn).map_err(text)?;
        let pages = vec![page];
        Ok(Data::Stored { len: 4096, pages })
    }

    fn of_names(&self, n: usize, kind: Kinds) -> Op<'static> {
        let [file, _, dir] = self.inos;
        let name = NAMES[n];
        let (mode, none) = (0o640, RenameFlags::empty());
        let object = |kind: usize| Some(self.objects[kind][n]);
        let rename = |from, to, flags| Op::Rename {
            from,
            to,
            flags,
            holds: false,
        };
        let remove = |name, which, holds| Op::Remove {
            at: root(name),
            which,
            holds,
        };
        let inner = Name {
            dir,
            name: b"inner",
        };
        match kind {
            Make(kind) => {
                let target = match kind {
                    FileType::Symlink => &b"target"[..],
                    _ => b"",
                };
                Op::Make {
                    at: root(name),
                    node: Node {
                        kind,
                        mode,
                        rdev: 0,
                        target,
                    },
                    object: object(usize::from(kind == FileType::Directory)),
                }
            }
            Tmpfile => Op::Tmpfile {
                dir,
                mode,
                object: object(0),
            },
            Link => Op::Link {
                ino: file,
                at: root(name),
            },
            Unlink => remove(b"file", Removal::Unlink, false),
            Rmdir => remove(b"empty", Removal::Rmdir, false),
            UnlinkHeld => remove(b"other", Removal::Unlink, true),
            Replace => rename(root(b"file"), root(b"other"), none),
            Exchange => rename(root(b"file"), inner, RenameFlags::EXCHANGE),
            _ => rename(root(b"empty"), Name { dir, name }, none),
        }
    }

    fn of_attributes(&self, kind: Kinds) -> Op<'static> {
        let [file, _, dir] = self.inos;
        let size = |bytes| SetAttr {
            size: Some(bytes),
            ..SetAttr::default()
        };
        let (ino, set) = match kind {
            Truncate => (file, size(100)),
            Grow => (file, size(20_000)),
            _ => {
                let set = SetAttr {
                    perm: Some(0o700),
                    uid: Some(5),
                    mtime: Some(SetTime::At(Timestamp(3))),
                    ..SetAttr::default()
                };
                (dir, set)
            }
        };
        Op::SetAttr { ino, set }
    }

    fn of_inode(&self, value: &'static [u8], kind: Kinds) -> Op<'static> {
        let [file, other, _] = self.inos;
        let allocate = |kind, off, len| Op::Allocate {
            ino: file,
            kind,
            off,
            len,
        };
        match kind {
            OpenTruncated => Op::Open {
                ino: file,
                flags: OpenFlags::WRITE | OpenFlags::TRUNCATE,
            },
            Bytes => Op::Write {
                ino: file,
                off: 4000,
                data: Data::Bytes(&[7; 300]),
            },
            Allocate => allocate(Fallocate::Allocate { keep_size: false }, 5000, 9000),
            Punch => allocate(Fallocate::PunchHole, 10, 4990),
            SetXattr => Op::SetXattr {
                ino: other,
                name: b"user.new",
                value,
                mode: XattrMode::Set,
            },
            RemoveXattr => Op::RemoveXattr {
                ino: file,
                name: b"user.old",
            },
            _ => Op::Access { ino: file },
        }
    }

    /// Returns the number of operations that were refused.
    fn send(&mut self, batch: &Batch) -> Result<usize, String> {
        let answers = self.fs.apply(&mut self.session, &All, batch.bytes());
        Ok(answers.map_err(text)?.refused.len())
    }
}

fn put(name: &'static [u8], data: Data<'static>, object: Option<ObjectId>) -> Op<'static> {
    Op::Put {
        at: root(name),
        mode: 0o640,
        data,
        object,
        condition: Condition::Always,
    }
}

/// The names that two operations make.
const NAMES: [&[u8]; 2] = [b"first", b"second"];

fn root(name: &'static [u8]) -> Name<'static> {
    let dir = Ino::ROOT;
    Name { dir, name }
}

/// Adds the removal of the name of a file, which is held.
fn held(batch: &mut Batch, ino: Ino) -> Ino {
    let op = Op::Remove {
        at: root(b"other"),
        which: Removal::Unlink,
        holds: true,
    };
    let (caller, time) = (None, Timestamp(START.0 + 1));
    batch.push(&Operation { caller, time, op });
    ino
}

/// Two operations, in a batch or in two.
struct Batches {
    ops: [Kinds; 2],
    is_one_batch: bool,
    /// The visible state without them, with the first, and with both.
    contents: Vec<String>,
}

fn contents(fs: &Pxfs<Memory>) -> Result<String, String> {
    let seen = Snapshot::take(fs).map_err(text)?;
    Ok(format!("{seen:?}"))
}

impl Batches {
    /// `None` if the service refuses one of them after the other.
    fn new(ops: [Kinds; 2], is_one_batch: bool) -> Option<Self> {
        let mut program = Self {
            ops,
            is_one_batch,
            contents: Vec::new(),
        };
        for count in 0..3 {
            let memory: Memory = Arc::new(MemoryPmem::new(program.bytes()));
            program.format(memory.clone()).unwrap();
            let mut world = World::open(memory.clone()).unwrap();
            for (n, kind) in ops.into_iter().enumerate().take(count) {
                let mut batch = Batch::default();
                world.push(&mut batch, &memory, n, kind).unwrap();
                if world.send(&batch).unwrap() > 0 {
                    return None;
                }
            }
            drop(world);
            let found = contents(&open(memory).unwrap()).unwrap();
            program.contents.push(found);
        }
        Some(program)
    }
}

impl Program for Batches {
    type Opened = Pxfs<Memory>;

    fn bytes(&self) -> u64 {
        48 * 4096
    }

    fn format(&self, memory: Memory) -> Result<(), String> {
        mkfs(&memory, &MkfsOptions::default()).map_err(text)?;
        let fs = open(memory)?;
        let cx = Ctx::root();
        let done = || {
            let file = fs.create(&cx, Ino::ROOT, b"file", 0o644)?.ino;
            let other = fs.create(&cx, Ino::ROOT, b"other", 0o600)?.ino;
            let dir = fs.mkdir(&cx, Ino::ROOT, b"dir", 0o755)?.ino;
            fs.mkdir(&cx, Ino::ROOT, b"empty", 0o755)?;
            fs.create(&cx, dir, b"inner", 0o644)?;
            fs.write(&cx, file, 0, &[5; 5000])?;
            fs.write(&cx, other, 0, &[6; 100])?;
            fs.setxattr(&cx, file, b"user.old", b"value", XattrMode::Set)
        };
        done().map_err(text)
    }

    fn run(&self, memory: Memory, mark: &dyn Fn(u64)) -> Result<(), String> {
        let mut world = World::open(memory.clone())?;
        mark(0);
        let mut batch = Batch::default();
        for (n, kind) in self.ops.into_iter().enumerate() {
            world.push(&mut batch, &memory, n, kind)?;
            if !self.is_one_batch {
                world.send(&batch)?;
                mark(n as u64 + 1);
                batch.clear();
            }
        }
        world.send(&batch)?;
        mark(2);
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
        let found = contents(fs)?;
        // A prefix: the batch may be one record, or several.
        let mut allowed = self.contents.iter().skip(done);
        if !allowed.any(|contents| *contents == found) {
            return Err(format!("after {done} operations there is {found}"));
        }
        let mut hasher = DefaultHasher::new();
        found.hash(&mut hasher);
        Ok(hasher.finish())
    }

    fn go_on(&self, fs: Self::Opened) -> Result<(), String> {
        let cx = Ctx::root();
        let new = fs.create(&cx, Ino::ROOT, b"new", 0o600).map_err(text)?;
        fs.write(&cx, new.ino, 100, &[1; 5000]).map_err(text)?;
        fs.audit()
            .first()
            .map_or(Ok(()), |finding| Err(text(finding)))
    }
}

/// Returns the number of states, or what is wrong with one. `None` if one of the operations is refused.
fn explore_all(ops: [Kinds; 2], is_one_batch: bool) -> Option<Result<u64, String>> {
    let program = Batches::new(ops, is_one_batch)?;
    let mut states = 0;
    for model in PersistModel::ALL {
        let options = Options {
            model,
            recovery_depth: 0,
            states_per_point: bound(12, 256),
            samples: bound(2, 16),
            ..Options::default()
        };
        let explored = explore(&program, &options).unwrap();
        if let Some(failure) = explored.failure {
            return Some(Err(format!("{ops:?}: {failure:?}")));
        }
        states += explored.states;
    }
    Some(Ok(states))
}

/// Operations that meet in the contents of a file, beside those that the sample has.
const CONTENTS: [[Kinds; 2]; 5] = [
    [Truncate, Grow],
    [Truncate, Bytes],
    [Truncate, Allocate],
    [OpenTruncated, Bytes],
    [Punch, Bytes],
];

#[test]
fn a_batch_changes_contents_as_a_whole() {
    for ops in CONTENTS {
        let states = explore_all(ops, true)
            .expect("accepted operations")
            .unwrap();
        assert!(states > 20, "{ops:?}: {states} states");
    }
    pxfs::seeded::arm(Some(Bug::ZerosBeforeCut));
    for ops in &CONTENTS[..3] {
        assert!(
            explore_all(*ops, true).is_some_and(|found| found.is_err()),
            "{ops:?}"
        );
    }
    pxfs::seeded::arm(None);
}

/// Each kind is the first of a batch and the second one, and has a batch of its own.
#[test]
fn a_crash_leaves_a_prefix_of_the_accepted_operations() {
    let pairs = KINDS.into_iter().enumerate().flat_map(|(n, first)| {
        let others = KINDS.into_iter().cycle().skip(n + 5).step_by(bound(7, 1));
        others
            .take(bound(2, KINDS.len()))
            .map(move |second| [first, second])
    });
    let explored: Vec<_> = pairs
        .enumerate()
        .filter_map(|(n, ops)| Some((ops, explore_all(ops, n % 2 == 0)?.unwrap())))
        .collect();
    for kind in KINDS {
        let is_explored = explored.iter().any(|(ops, _)| ops.contains(&kind));
        assert!(is_explored, "{kind:?} is always refused");
    }
    let states: u64 = explored.iter().map(|(_, states)| states).sum();
    assert!(explored.len() > 30 && states > 3_000, "{states} states");
}
