//! Batches that run beside each other.

use super::Memory;
use super::clients::All;
use super::hostile::{at, node, user};
use crate::apply::{After, Done, Run, Stop};
use crate::batch::Part;
use crate::seeded::{Bug, arm};
use crate::{MkfsOptions, Pxfs, Session, mkfs};
use aerie_proto::ops::{Batch, Data, Op, Operation};
use medium::MemoryPmem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::{
    Atime, Ctx, Errno, FileSystem, FileType, Ino, ManualClock, OpenFlags, Removal, RenameFlags,
    Timestamp, XattrMode,
};

/// A service with several logs, and the directories `/0` to `/3`.
fn service(bytes: u64) -> (Arc<Pxfs<Memory>>, [Ino; 4]) {
    let memory = Arc::new(MemoryPmem::new(bytes));
    let options = MkfsOptions {
        logs: Some(4),
        ..MkfsOptions::default()
    };
    mkfs(&memory, &options).unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000_000), 1_000));
    let fs = Pxfs::open(memory, clock, Atime::Never).unwrap();
    let dirs = [0, 1, 2, 3].map(|n| {
        let name = n.to_string();
        let made = fs.mkdir(&Ctx::root(), Ino::ROOT, name.as_bytes(), 0o755);
        let ino = made.unwrap().ino;
        fs.forget(ino, 1);
        ino
    });
    fs.expect_batches();
    (Arc::new(fs), dirs)
}

fn file(dir: Ino, name: &str) -> Op<'_> {
    Op::Make {
        at: at(dir, name),
        node: node(FileType::Regular),
        object: None,
    }
}

fn remove(dir: Ino, name: &str) -> Op<'_> {
    Op::Remove {
        at: at(dir, name),
        which: Removal::Unlink,
        holds: false,
    }
}

fn find(fs: &Pxfs<Memory>, dir: Ino, name: &str) -> Option<Ino> {
    let found = fs.lookup(&Ctx::root(), dir, name.as_bytes()).ok()?.ino;
    fs.forget(found, 1);
    Some(found)
}

/// A client whose batch is open.
struct Client<'a> {
    fs: &'a Pxfs<Memory>,
    session: Option<Session>,
    part: Option<Part<'a, Memory>>,
}

impl<'a> Client<'a> {
    fn new(fs: &'a Pxfs<Memory>) -> Self {
        Self {
            fs,
            session: Some(fs.begin(user(0), true)),
            part: Some(Part::shared(fs).unwrap()),
        }
    }

    /// Runs an operation, whose effect in memory [`settle`](Self::settle) makes.
    fn run(&mut self, op: Op<'_>) -> Run<Done> {
        let (caller, time) = (None, self.fs.clock.now());
        let operation = Operation { caller, time, op };
        let (part, session) = (self.part.as_mut().unwrap(), self.session.as_mut().unwrap());
        part.run(session, &All, &operation)
    }

    fn settle(&mut self, after: After) {
        self.fs.settle(self.session.as_mut().unwrap(), after);
    }

    /// Runs an operation that succeeds.
    fn accept(&mut self, op: Op<'_>) {
        let done = self.run(op).ok().expect("the operation is accepted");
        self.settle(done.after);
    }

    fn meets(&mut self, op: Op<'_>) -> bool {
        matches!(self.run(op), Err(Stop::Claimed))
    }

    fn commit(&mut self) {
        self.part.take().unwrap().commit().unwrap();
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        // It would wait for open batches of other clients, which only a failed test has.
        if !std::thread::panicking() {
            self.fs.end(self.session.take().unwrap());
        }
    }
}

#[test]
fn batches_of_different_directories_run_beside_each_other() {
    let (fs, dirs) = service(4 << 20);
    let mut clients = [(); 2].map(|()| Client::new(&fs));
    let [a, b] = &mut clients;
    for name in ["1", "2", "3"] {
        a.accept(file(dirs[0], name));
        b.accept(file(dirs[1], name));
    }
    b.commit();
    // Each batch becomes visible as a whole.
    let inside = |dir| {
        let found = fs.look_up(fs.memory(), &Ctx::root(), vfs::Name::new(dir, b"1"));
        found.is_ok()
    };
    assert!(!inside(dirs[0]) && inside(dirs[1]));
    a.accept(remove(dirs[0], "2"));
    a.commit();
    drop(clients);
    assert!(find(&fs, dirs[0], "1").is_some() && find(&fs, dirs[0], "2").is_none());
    assert_eq!(fs.audit(), []);
}

#[test]
fn a_batch_goes_on_alone_after_it_met_another_one() {
    let (fs, dirs) = service(4 << 20);
    let mut clients = [(); 2].map(|()| Client::new(&fs));
    let [a, b] = &mut clients;
    a.accept(file(dirs[0], "1"));
    b.accept(file(dirs[1], "1"));
    let done = b.run(file(dirs[0], "2"));
    assert!(b.part.as_ref().unwrap().is_in_vain(&done));
    a.commit();
    let part = b.part.take().unwrap().next().unwrap();
    b.part = Some(part);
    b.accept(file(dirs[0], "2"));
    // The new part sees the committed name.
    let again = b.run(file(dirs[0], "1"));
    assert!(matches!(again, Err(Stop::Refused(Errno::EXIST, _))));
    b.commit();
    drop(clients);
    assert!(find(&fs, dirs[0], "2").is_some());
    assert_eq!(fs.audit(), []);
}

#[test]
fn directories_move_alone() {
    let (fs, dirs) = service(4 << 20);
    let mut client = Client::new(&fs);
    client.accept(file(dirs[0], "file"));
    let rename = |from, to| Op::Rename {
        from: at(Ino::ROOT, from),
        to,
        flags: RenameFlags::empty(),
        holds: false,
    };
    assert!(client.meets(rename("0", at(dirs[1], "below"))));
    // A new one has nothing above it that others can move.
    client.accept(Op::Make {
        at: at(Ino::ROOT, "new"),
        node: node(FileType::Directory),
        object: None,
    });
    client.accept(rename("new", at(dirs[1], "new")));
    client.commit();
    drop(client);
    assert!(find(&fs, dirs[1], "new").is_some());
    assert_eq!(fs.audit(), []);
}

/// A client begins to hold a file whose last name another one removes in an open batch, and the other way round.
/// Returns whether one of them had to wait, or the file lives.
fn is_held(bug: Option<Bug>, is_removed_first: bool) -> bool {
    let (fs, dirs) = service(4 << 20);
    let made = fs.make(
        &Ctx::root(),
        vfs::Name::new(dirs[0], b"file"),
        &vfs::NewNode::file(0o644),
    );
    let ino = made.unwrap().ino;
    fs.forget(ino, 1);
    let object = fs.object(fs.memory(), ino).unwrap();
    let mut clients = [(); 2].map(|()| Client::new(&fs));
    let [a, b] = &mut clients;
    arm(bug);
    let removed = is_removed_first.then(|| b.run(remove(dirs[0], "file")));
    let held = a.run(Op::Hold { ino });
    let removed = removed.unwrap_or_else(|| b.run(remove(dirs[0], "file")));
    arm(None);
    let (is_removed, is_held) = (removed.is_ok(), held.is_ok());
    for (client, done) in clients.iter_mut().zip([held, removed]) {
        if let Ok(done) = done {
            client.settle(done.after);
        }
        client.commit();
    }
    let lives = fs.load(fs.memory(), object).is_ok();
    !(is_removed && is_held) || lives
}

#[test]
fn what_a_client_holds_is_not_deleted_by_an_open_batch() {
    for is_removed_first in [false, true] {
        assert!(is_held(None, is_removed_first));
        assert!(!is_held(Some(Bug::HeldUnclaimed), is_removed_first));
    }
}

/// One of several operations on the directories, of which `own` is used by this client only.
fn chosen<'a>(
    rng: &mut fastrand::Rng,
    own: Ino,
    dirs: &[Ino; 4],
    name: &'a str,
    known: Ino,
) -> Op<'a> {
    let any = dirs[rng.usize(..4)];
    match rng.u8(..16) {
        0..5 => file(own, name),
        5..8 => remove(own, name),
        8 => file(any, name),
        9 => remove(any, name),
        10 => Op::Rename {
            from: at(Ino::ROOT, "moved"),
            to: at(any, "moved"),
            flags: RenameFlags::empty(),
            holds: false,
        },
        11 => Op::Rename {
            from: at(any, "moved"),
            to: at(Ino::ROOT, "moved"),
            flags: RenameFlags::empty(),
            holds: false,
        },
        12 => Op::SetXattr {
            ino: known,
            name: b"user.a",
            value: b"value",
            mode: XattrMode::Set,
        },
        13 => Op::Tmpfile {
            dir: any,
            mode: 0o600,
            object: None,
        },
        14 => Op::Open {
            ino: known,
            flags: OpenFlags::WRITE,
        },
        _ => Op::Write {
            ino: known,
            off: rng.u64(..20_000),
            data: Data::Bytes(b"contents"),
        },
    }
}

#[test]
fn threads_apply_batches() {
    let (fs, dirs) = service(8 << 20);
    let root = Ctx::root();
    let moved = fs.mkdir(&root, Ino::ROOT, b"moved", 0o755).unwrap().ino;
    fs.forget(moved, 1);
    let applied = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (fs, dirs, applied) = (&fs, &dirs, &applied);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(thread as u64);
                let mut session = fs.begin(user(0), true);
                let names = ["a", "b", "c", "d", "e"];
                for _ in 0..150 {
                    let known = ["a", "b"].map(|name| find(fs, dirs[rng.usize(..4)], name));
                    let known = known.into_iter().flatten().next().unwrap_or(Ino::ROOT);
                    let mut batch = Batch::default();
                    for _ in 0..rng.usize(1..12) {
                        let name = names[rng.usize(..5)];
                        let op = chosen(&mut rng, dirs[thread], dirs, name, known);
                        let (caller, time) = (None, fs.clock.now());
                        batch.push(&Operation { caller, time, op });
                    }
                    let answers = fs.apply(&mut session, &All, batch.bytes()).unwrap();
                    applied.fetch_add(u64::from(answers.count), Relaxed);
                    let busy = Errno::BUSY.raw_os_error();
                    assert!(answers.refused.iter().all(|refused| refused.errno != busy));
                    if rng.u8(..10) == 0 {
                        fs.end(std::mem::replace(&mut session, fs.begin(user(0), true)));
                    }
                }
                fs.end(session);
            });
        }
    });
    assert!(applied.load(Relaxed) > 1_000);
    assert_eq!(fs.nameless(), []);
    assert_eq!(fs.audit(), []);
    assert!(fs.referenced().is_empty());
}

/// A batch returns pages that its own operations need, while another one takes all that are free.
#[test]
fn a_batch_keeps_the_pages_that_it_returns() {
    let (fs, dirs) = service(2 << 20);
    let mut clients = [(); 2].map(|()| Client::new(&fs));
    let [a, b] = &mut clients;
    let granted = fs.grant(a.session.as_mut().unwrap(), 10, 0);
    a.accept(Op::Return {
        pages: granted.pages().collect(),
    });
    let pages = fs.free_pages() as usize;
    fs.grant(b.session.as_mut().unwrap(), pages, 0);
    assert_eq!(fs.free_pages(), 0);
    a.accept(file(dirs[0], "file"));
    a.commit();
    b.commit();
    // The pages that it has not used are free for all.
    assert!((1..10).contains(&fs.free_pages()));
    drop(clients);
    assert_eq!(fs.audit(), []);
}
