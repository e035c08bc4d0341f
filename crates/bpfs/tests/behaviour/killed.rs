//! A server that is killed, or whose medium fails, leaves unflushed stores in the caches. A
//! later server must not rely on them as if they were durable.

use crate::fixture::{MIB, Memory, copy_of, formatted, options};
use bpfs::{Bpfs, Mode};
use medium::{CutAfter, MediumError, PersistModel, Pmem, PowerCut, Rule};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use vfs::{Ctx, FileSystem, Ino};

type Cut = Arc<PowerCut<Memory>>;

/// Memory with a file `f` of `len` bytes 1, and no store in flight.
fn with_file(len: usize) -> Cut {
    let fs = Bpfs::open(formatted(Mode::Log, MIB), options(Mode::Log)).unwrap();
    let cx = Ctx::root();
    let ino = fs.create(&cx, Ino::ROOT, b"f", 0o644).unwrap().ino;
    fs.write(&cx, ino, 0, &vec![1; len]).unwrap();
    Arc::new(PowerCut::new(copy_of(fs.pmem())))
}

fn file<P: Pmem>(fs: &Bpfs<P>) -> Ino {
    fs.lookup(&Ctx::root(), Ino::ROOT, b"f").unwrap().ino
}

/// The contents of the file after the power failure.
fn contents(pm: &Cut) -> Vec<u8> {
    let fs = Bpfs::open(copy_of(pm.inner()), options(Mode::Log)).unwrap();
    let mut bytes = vec![0; 10_000];
    let len = fs.read(&Ctx::root(), file(&fs), 0, &mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

fn model(seed: u64) -> PersistModel {
    PersistModel::ALL[seed as usize % 2]
}

/// Memory of a server that is killed: after `left` more calls it drops all stores.
struct Killed {
    inner: Cut,
    left: AtomicU64,
}

impl Killed {
    fn is_alive(&self) -> bool {
        let take = |left: u64| left.checked_sub(1);
        self.left.fetch_update(SeqCst, SeqCst, take).is_ok()
    }
}

impl medium::layer::PmemLayer for Killed {
    type Below = Cut;

    fn below(&self) -> &Cut {
        &self.inner
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        if self.is_alive() {
            self.inner.store(off, bytes);
        }
    }
    fn store_nt(&self, off: u64, bytes: &[u8]) {
        if self.is_alive() {
            self.inner.store_nt(off, bytes);
        }
    }
    fn flush(&self, off: u64, len: u64) {
        if self.is_alive() {
            self.inner.flush(off, len);
        }
    }
    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        match self.is_alive() {
            true => self.inner.fence(rule),
            false => Err(MediumError::PowerCut),
        }
    }
}

/// Writes, and is killed at call number `kill` to the memory.
fn killed_in_a_write(pm: &Cut, kill: u64, off: u64, data: &[u8]) {
    let memory = Arc::new(Killed {
        inner: pm.clone(),
        left: AtomicU64::new(u64::MAX),
    });
    let fs = Bpfs::open(memory.clone() as Arc<dyn Pmem>, options(Mode::Log)).unwrap();
    let ino = file(&fs);
    memory.left.store(kill, SeqCst);
    let _ = fs.write(&Ctx::root(), ino, off, data);
}

#[test]
fn an_overwrite_that_finds_its_bytes_in_place_is_durable() {
    for kill in 0..8 {
        for seed in 0..16 {
            let pm = with_file(8192);
            killed_in_a_write(&pm, kill, 4104, &[2; 8]);
            let fs = Bpfs::open(pm.clone() as Arc<dyn Pmem>, options(Mode::Log)).unwrap();
            fs.write(&Ctx::root(), file(&fs), 4104, &[2; 8]).unwrap();
            pm.cut(seed, model(seed)).unwrap();
            let kept = contents(&pm)[4104..4112] == [2; 8];
            assert!(kept, "lost: kill {kill}, seed {seed}");
        }
    }
}

#[test]
fn a_record_is_durable_before_it_is_replayed() {
    for kill in 0..12 {
        for (fence, seed) in (1..4).flat_map(|fence| (0..24).map(move |seed| (fence, seed))) {
            let pm = with_file(8192);
            killed_in_a_write(&pm, kill, 4104, &[2; 24]);
            pm.cut_after(CutAfter::Fences(fence), seed, model(seed));
            let _ = Bpfs::open(pm.clone() as Arc<dyn Pmem>, options(Mode::Log));
            if pm.outcome().is_none() {
                continue; // the mount has fewer fences
            }
            let got = contents(&pm)[4104..4128].to_vec();
            let whole = got == [1; 24] || got == [2; 24];
            assert!(
                whole,
                "torn: kill {kill}, fence {fence}, seed {seed}: {got:?}"
            );
        }
    }
}

/// Memory whose next fence, once armed, is slow and fails, as do all after it.
struct FailingSlowly {
    inner: Cut,
    armed: AtomicBool,
    failed: AtomicBool,
}

impl medium::layer::PmemLayer for FailingSlowly {
    type Below = Cut;

    fn below(&self) -> &Cut {
        &self.inner
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        if self.armed.swap(false, SeqCst) {
            std::thread::sleep(Duration::from_millis(100));
            self.failed.store(true, SeqCst);
        }
        match self.failed.load(SeqCst) {
            true => Err(MediumError::NotDurable { errno: 5 }),
            false => self.inner.fence(rule),
        }
    }
}

/// The waits make it likely that the second call waits for the lock of the first. Correct code
/// passes with any waits.
#[test]
fn a_call_that_waited_for_a_failed_call_stores_nothing() {
    let old = vec![1; 100];
    let cut = vec![1; 50];
    for seed in 0..16 {
        let pm = with_file(100);
        let memory = Arc::new(FailingSlowly {
            inner: pm.clone(),
            armed: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        });
        let fs = Bpfs::open(memory.clone() as Arc<dyn Pmem>, options(Mode::Log)).unwrap();
        let (ino, cx) = (file(&fs), Ctx::root());
        memory.armed.store(true, SeqCst);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| fs.truncate(&cx, ino, 50));
            std::thread::sleep(Duration::from_millis(30));
            let second = scope.spawn(|| fs.write(&cx, ino, 60, &[3; 10]));
            assert!(first.join().unwrap().is_err());
            assert!(second.join().unwrap().is_err());
        });
        pm.cut(seed, model(seed)).unwrap();
        let got = contents(&pm);
        // The first may be durable; the second began after the first had failed.
        assert!(got == old || got == cut, "torn: seed {seed}: {got:?}");
    }
}
