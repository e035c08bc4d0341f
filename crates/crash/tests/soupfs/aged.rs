//! The age of what a power cut loses, by a clock of its own.
//!
//! Time passes between calls, and in the fences of rounds, in which calls are made, too. A round takes
//! up to half of the bound. At a random time the power is cut. Of all that was changed until one bound
//! before, the image then shows the state at that time or a later one.

use fastrand::Rng;
use medium::layer::PmemLayer;
use medium::{MediumError, MemoryPmem, PersistModel, Pmem, PowerCut, Rule};
use oracle::script::generate::{random, setup};
use oracle::script::{Op, State, run, run_op};
use soupfs::{Atime, MkfsOptions, MountOptions, SoupFs, Timer, mkfs};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};
use vfs::{Attr, Cookie, Ctx, FileSystem, FileType, Ino, ManualClock, Timestamp};

const BOUND: Duration = Duration::from_secs(8);
const IMAGE: u64 = 4 << 20;
/// Bytes that are looked at of each file.
const BYTES: usize = 32 << 10;

/// One type, since the file system is compiled for each.
type Memory = Arc<dyn Pmem>;

/// A memory whose fences take time.
struct Slow {
    pm: PowerCut<MemoryPmem>,
    life: OnceLock<Weak<Life>>,
}

impl PmemLayer for Slow {
    type Below = PowerCut<MemoryPmem>;

    fn below(&self) -> &Self::Below {
        &self.pm
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        if let Some(life) = self.life.get().and_then(Weak::upgrade) {
            life.pass_in_round();
        }
        Pmem::fence(&self.pm, rule)
    }
}

/// A mount until the power is cut.
struct Life {
    fs: SoupFs<Memory>,
    pm: Arc<Slow>,
    begin: Instant,
    model: PersistModel,
    run: Mutex<Run>,
}

struct Run {
    rng: Rng,
    now: Duration,
    cut_at: Duration,
    /// Time that the present round may still take.
    left: Duration,
    calls: std::vec::IntoIter<Op>,
    state: State,
    /// States that callers saw, each with its time, oldest first.
    past: Vec<(Duration, Seen)>,
}

impl Life {
    fn new(seed: u64, model: PersistModel) -> Arc<Self> {
        let memory = MemoryPmem::new(IMAGE);
        mkfs(&memory, &MkfsOptions::default()).expect("it is large enough");
        let pm = Arc::new(Slow {
            pm: PowerCut::new(memory),
            life: OnceLock::new(),
        });
        let fs = SoupFs::open(Arc::clone(&pm) as Memory, options(false)).expect("a mount");
        let mut state = State::default();
        let made = run(&fs, &mut state, &setup());
        assert!(made.iter().all(Result::is_ok), "there is room");
        let mut rng = Rng::with_seed(seed);
        let first = Run {
            now: Duration::ZERO,
            cut_at: BOUND.mul_f64(1.0 + 3.0 * rng.f64()),
            left: Duration::ZERO,
            calls: random(seed, 1000).ops.into_iter(),
            state,
            past: vec![(Duration::ZERO, Seen::of(&fs))],
            rng,
        };
        let life = Arc::new(Self {
            fs,
            pm: Arc::clone(&pm),
            begin: Instant::now(),
            model,
            run: Mutex::new(first),
        });
        assert!(pm.life.set(Arc::downgrade(&life)).is_ok());
        life
    }

    fn run(&self) -> MutexGuard<'_, Run> {
        self.run.lock().expect("no call panics")
    }

    /// Lets a random part of the time of a round pass.
    fn pass_in_round(&self) {
        let mut run = self.run();
        let part = run.left.mul_f64(run.rng.f64());
        run.left -= part;
        let end = run.now + part;
        self.pass(&mut run, end);
    }

    /// Lets time pass, with calls at random moments, until it is `end` or the power is cut.
    fn pass(&self, run: &mut Run, end: Duration) {
        while run.now < end {
            run.now += BOUND.mul_f64(run.rng.f64() / 12.0);
            if run.now.min(end) >= run.cut_at {
                (run.now, run.left) = (run.cut_at, Duration::ZERO);
                if self.pm.pm.outcome().is_none() {
                    let cut = self.pm.pm.cut(run.rng.u64(..), self.model);
                    cut.expect("the image takes the state");
                }
                return;
            }
            if run.now < end {
                self.call(run);
            }
        }
        run.now = end;
    }

    /// Makes the next call. A call that syncs would wait for the round.
    fn call(&self, run: &mut Run) {
        let call = run.calls.find(|call| call.synced().is_none());
        let call = call.expect("there are enough calls");
        // Most names exist; the others are failures that change nothing.
        let _ = run_op(&self.fs, &mut run.state, &call);
        run.past.push((run.now, Seen::of(&self.fs)));
    }

    /// The first change that is older than the bound, and lost.
    fn loss(&self) -> Option<String> {
        let run = self.run();
        let due = run.cut_at - BOUND;
        let first = run.past.partition_point(|(at, _)| *at <= due) - 1;
        let window: Vec<&Seen> = run.past[first..].iter().map(|(_, seen)| seen).collect();
        let memory = MemoryPmem::copy_of(self.pm.pm.inner()).expect("memory can be read");
        let there =
            SoupFs::open(Arc::new(memory) as Memory, options(true)).expect("a mount after the cut");
        Seen::of(&there).older_than(&window)
    }
}

impl Timer for Life {
    fn now(&self) -> Instant {
        self.begin + self.run().now
    }

    fn wait(&self, until: Instant) -> bool {
        let mut run = self.run();
        self.pass(&mut run, until - self.begin);
        run.left = BOUND / 2;
        self.pm.pm.outcome().is_none()
    }
}

fn options(read_only: bool) -> MountOptions {
    MountOptions {
        read_only,
        atime: Atime::Never,
        clock: Arc::new(ManualClock::new(Timestamp(0), 1)),
        bound_s: None,
        ..MountOptions::default()
    }
}

/// Names by directory, and inodes.
#[derive(Default)]
struct Seen {
    names: BTreeMap<(Ino, Vec<u8>), Ino>,
    inodes: BTreeMap<Ino, (Attr, Vec<u8>)>,
}

impl Seen {
    fn of(fs: &dyn FileSystem) -> Self {
        let (cx, mut seen) = (Ctx::root(), Self::default());
        seen.add(fs, fs.getattr(&cx, Ino::ROOT).expect("the root is there"));
        seen
    }

    fn add(&mut self, fs: &dyn FileSystem, attr: Attr) {
        let (cx, dir) = (Ctx::root(), attr.ino);
        let (mut bytes, mut names) = (Vec::new(), Vec::new());
        match attr.kind {
            FileType::Regular => {
                bytes.resize(BYTES, 0);
                let read = fs.read(&cx, dir, 0, &mut bytes).expect("it can be read");
                bytes.truncate(read);
            }
            FileType::Directory => {
                let mut take = |entry: &vfs::DirEntry<'_>| {
                    names.push(entry.name.to_vec());
                    true
                };
                let listed = fs.readdir(&cx, dir, Cookie(0), &mut take);
                listed.expect("it can be listed");
            }
            _ => {}
        }
        self.inodes.insert(dir, (attr, bytes));
        for name in names {
            if name != b"." && name != b".." {
                let found = fs.lookup(&cx, dir, &name).expect("it is listed");
                self.names.insert((dir, name), found.ino);
                self.add(fs, found);
                fs.forget(found.ino, 1);
            }
        }
    }

    /// The first name or inode that none of the states of `window` has.
    fn older_than(&self, window: &[&Self]) -> Option<String> {
        let all = window.iter().copied().chain([self]);
        let names: BTreeSet<_> = all.flat_map(|seen| seen.names.keys()).collect();
        let is_old = |name| {
            let mut window = window.iter();
            window.all(|seen| seen.names.get(name) != self.names.get(name))
        };
        if let Some((dir, name)) = names.into_iter().find(|name| is_old(*name)) {
            return Some(format!("the name {} in {dir}", name.escape_ascii()));
        }
        self.inodes.iter().find_map(|(ino, found)| {
            let of_inode = window.iter().filter_map(|seen| seen.inodes.get(ino));
            let old = old_part(found, &of_inode.collect::<Vec<_>>())?;
            Some(format!("{old} of {ino}"))
        })
    }
}

/// The first part of an inode that none of the states of `window` has. Parts may be lost independently
/// of each other, and so may the bytes of a file.
fn old_part(found: &(Attr, Vec<u8>), window: &[&(Attr, Vec<u8>)]) -> Option<String> {
    let (attr, bytes) = found;
    let is_new = |same: &dyn Fn(&Attr) -> bool| window.iter().any(|(other, _)| same(other));
    let parts: [(&str, bool); 3] = [
        ("the mode", is_new(&|other| other.perm == attr.perm)),
        ("the size", is_new(&|other| other.size == attr.size)),
        ("the mtime", is_new(&|other| other.mtime == attr.mtime)),
    ];
    if let Some((name, _)) = parts.iter().find(|(_, is_new)| !is_new) {
        return Some((*name).to_owned());
    }
    let is_old = |(at, byte): (usize, &u8)| {
        // Past a smaller end there are zeros.
        let mut window = window.iter();
        window.all(|(_, bytes)| bytes.get(at).copied().unwrap_or(0) != *byte)
    };
    let at = bytes.iter().enumerate().position(is_old)?;
    Some(format!("the byte {at}"))
}

/// Cuts the power in several lives. Returns the first change that is older than the bound, and lost.
pub fn loss(model: PersistModel, lives: u64) -> Option<String> {
    (0..lives).find_map(|seed| {
        let life = Life::new(seed, model);
        life.fs.persist_by(&*life, BOUND);
        let loss = life.loss();
        loss.map(|what| format!("life {seed}: {what} is older than the bound"))
    })
}
