//! A medium that fails: unreadable lines, failing fences, power cuts.

use crate::fixture::*;
use bpfs::{Atime, Bpfs, Mode, MountOptions, check};
use medium::{CutAfter, Faulty, MediumError, MemoryPmem, PersistModel, Pmem, PowerCut, Rule};
use oracle::script::{Script, State, generate, run, run_op};
use oracle::snapshot::Snapshot;
use oracle::{ModelFs, ModelOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use vfs::{Attr, Cookie, Errno, FileSystem, FileType, Ino, Name, SetAttr, SetTime, Timestamp};

type FaultyFs = Bpfs<Arc<Faulty<Memory>>>;

/// The tree of the scripts, and a file tall enough to have indirect blocks.
fn setup() -> Script {
    let more: Script = "
        create tall 644
        write tall 0 10000 5
        write tall 4194304 100 6
        setxattr f user.a 100 7 set
    "
    .parse()
    .unwrap();
    generate::setup().then(&more)
}

/// An image after [`setup`].
fn image(mode: Mode) -> Memory {
    let fs = fresh(mode, MIB);
    let done = run(&fs, &mut State::default(), &setup());
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    fs.pmem().clone()
}

/// Options with access times, so that a read can fail in one more way.
fn strict(mode: Mode) -> MountOptions {
    MountOptions {
        atime: Atime::Strict,
        ..options(mode)
    }
}

fn mounted(pm: Memory, mode: Mode) -> FaultyFs {
    Bpfs::open(Arc::new(Faulty::new(pm)), strict(mode)).unwrap()
}

/// Blocks in use, super blocks and log included.
fn used_blocks(pm: &Memory) -> u64 {
    // All but a few free blocks of this image follow the used ones.
    let fs = Bpfs::open(pm.clone(), options(Mode::Log)).unwrap();
    let stat = fs.statfs().unwrap();
    stat.blocks - stat.blocks_free + 16
}

/// Runs all calls against a medium with a fault. None may panic, and each may return only the
/// errors of the model and `EIO`. Returns how many calls failed with `EIO`.
fn exercise(fs: &FaultyFs, what: &str) -> usize {
    let mut failed = usize::from(Snapshot::take(fs).is_err());
    for op in generate::all_ops() {
        match run_op(fs, &mut State::default(), op) {
            Err(Errno::IO) => failed += 1,
            Err(Errno::STALE) => panic!("{what}: ESTALE from {op}"),
            _ => {}
        }
    }
    failed + usize::from(Snapshot::take(fs).is_err())
}

#[test]
fn unreadable_lines_of_a_mounted_file_system_give_eio() {
    for mode in [Mode::Sp, Mode::At, Mode::Other, Mode::Log] {
        let clean = image(mode);
        let mut failed = 0;
        for block in 0..used_blocks(&clean) {
            let fs = mounted(copy_of(&clean), mode);
            fs.pmem().fail_lines(block * BLOCK, BLOCK);
            let what = format!("mode {mode}, block {block}");
            failed += exercise(&fs, &what);
            fs.pmem().heal();
            must_still_be_whole(fs.pmem().inner(), &what);
        }
        assert!(failed > 100, "mode {mode}: only {failed} calls failed");
    }
}

/// Asserts that the stored file system is sound after a fault.
fn must_still_be_whole(pm: &Memory, what: &str) {
    assert_eq!(check(&**pm).findings, [], "{what}");
    let again = Bpfs::open(pm.clone(), options(Mode::Log)).unwrap();
    assert_eq!(again.audit(), [], "{what}");
    snapshot(&again);
}

/// Makes single lines unreadable in the blocks that hold most: inodes and directories.
#[test]
fn single_unreadable_lines_give_eio_where_they_are() {
    let clean = image(Mode::Log);
    for line in 0..used_blocks(&clean) * BLOCK / 64 {
        let fs = mounted(copy_of(&clean), Mode::Log);
        fs.pmem().fail_lines(line * 64, 1);
        let what = format!("line {line}");
        if Snapshot::take(&fs).is_err() {
            exercise(&fs, &what);
        }
        fs.pmem().heal();
        must_still_be_whole(fs.pmem().inner(), &what);
    }
}

#[test]
fn unreadable_lines_fail_a_mount_and_a_check_with_a_message() {
    for mode in [Mode::Sp, Mode::Log] {
        let clean = image(mode);
        let mut refused = 0;
        for block in 0..used_blocks(&clean) {
            let faulty = Arc::new(Faulty::new(copy_of(&clean)));
            faulty.fail_lines(block * BLOCK, BLOCK);
            let report = check(&*faulty);
            match Bpfs::open(faulty, strict(mode)) {
                Ok(fs) => {
                    exercise(&fs, &format!("mode {mode}, block {block}"));
                }
                Err(e) => {
                    refused += 1;
                    assert!(!e.to_string().contains('\n') && !e.to_string().is_empty());
                    assert!(!report.is_clean(), "block {block}: {e}, and a clean report");
                }
            }
        }
        assert!(
            refused > 5,
            "mode {mode}: only {refused} mounts were refused"
        );
    }
}

#[test]
fn only_unreadable_data_gives_eio() {
    let fs = mounted(image(Mode::Other), Mode::Other);
    let f = ino(&fs, "tall");
    let whole = read(&fs, f, 0, 12_000);
    // Find the second block of the file by its contents.
    let (pm, mut block) = (fs.pmem(), vec![0; BLOCK as usize]);
    let second = (0..256).find(|n| {
        pm.read(n * BLOCK, &mut block).unwrap();
        block == whole[4096..8192]
    });
    pm.fail_lines(second.unwrap() * BLOCK + 640, 1);
    let mut buf = vec![0; 12_000];
    assert_eq!(fs.read(&root(), f, 0, &mut buf), Err(Errno::IO));
    assert_eq!(read(&fs, f, 0, 4096), whole[..4096]);
    assert_eq!(read(&fs, f, 4096, 640), whole[4096..4736]);
    assert_eq!(fs.read(&root(), f, 4736, &mut buf[..1]), Err(Errno::IO));
    assert_eq!(read(&fs, f, 4800, 5200), whole[4800..10_000]);
    // A change of part of the block needs the rest of it; a new block does not.
    assert_eq!(fs.write(&root(), f, 4097, &[1; 100]), Err(Errno::IO));
    assert_eq!(fs.write(&root(), f, 4096, &[1; 4096]), Ok(4096));
    assert_eq!(read(&fs, f, 4096, 4096), [1; 4096]);
    assert_eq!(fs.audit(), []);
}

/// Fences fail from the `n`-th on, until healed.
struct FenceFails {
    inner: Memory,
    left: AtomicI64,
}

impl FenceFails {
    fn fail_from(&self, n: i64) {
        self.left.store(n, SeqCst);
    }
}

impl medium::layer::PmemLayer for FenceFails {
    type Below = Memory;

    fn below(&self) -> &Memory {
        &self.inner
    }

    fn fence(&self, _: Rule) -> Result<(), MediumError> {
        if self.left.fetch_sub(1, SeqCst) <= 1 {
            Err(MediumError::NotDurable { errno: 28 })
        } else {
            Ok(())
        }
    }
}

#[test]
fn after_a_failed_fence_changes_fail_and_reads_succeed() {
    for mode in Mode::ALL {
        let clean = image(mode);
        for (op, nth) in generate::all_ops()
            .iter()
            .flat_map(|op| [(op, 1), (op, 2), (op, 3)])
        {
            let pm = Arc::new(FenceFails {
                inner: copy_of(&clean),
                left: AtomicI64::new(i64::MAX),
            });
            let fs = Bpfs::open(pm.clone() as Arc<dyn Pmem>, options(mode)).unwrap();
            let tall = ino(&fs, "tall");
            let data = read(&fs, tall, 0, 12_000);
            pm.fail_from(nth);
            let got = run_op(&fs, &mut State::default(), op);
            pm.fail_from(i64::MAX);
            let what = format!("mode {mode}, fence {nth} of {op}");
            if got != Err(Errno::IO) {
                // The call has fewer fences.
                assert_eq!(file_error(&fs), None, "{what}: {got:?}");
                continue;
            }
            // Even once the medium works again, changes must fail: the lost stores may not be
            // built upon.
            for next in generate::all_ops().iter().step_by(5) {
                let again = run_op(&fs, &mut State::default(), next);
                assert!(again.is_err(), "{next} after {what}");
            }
            assert_eq!(file_error(&fs), Some(Errno::IO), "{what}");
            assert_eq!(fs.fsync(&root(), tall, false), Err(Errno::IO), "{what}");
            assert_eq!(fs.sync(), Err(Errno::IO));
            assert_eq!(read(&fs, tall, 0, 12_000), data, "{what}");
            assert_eq!(stat(&fs, "tall").map(|a| a.ino), Ok(tall), "{what}");
            assert!(fs.statfs().is_ok());
            let mut sink = |_: &vfs::DirEntry<'_>| true;
            for dir in ["", "A", "B"] {
                let found = stat(&fs, dir).ok();
                let Some(dir) = found.filter(|a| a.kind == FileType::Directory) else {
                    continue;
                };
                let listed = fs.readdir(&root(), dir.ino, Cookie(0), &mut sink);
                assert_eq!(listed, Ok(()), "listing {} after {what}", dir.ino);
            }
            must_still_be_whole(&pm.inner, &what);
        }
    }
}

fn file_error(fs: &dyn FileSystem) -> Option<Errno> {
    fs.create(&root(), Ino::ROOT, b"another", 0o644).err()
}

/// Memory that becomes unreadable after a number of fences.
struct Blinded {
    inner: Faulty<Memory>,
    fences: AtomicI64,
    blind_after: AtomicI64,
}

impl Blinded {
    fn fences(&self) -> i64 {
        self.fences.load(SeqCst)
    }
}

impl medium::layer::PmemLayer for Blinded {
    type Below = Faulty<Memory>;

    fn below(&self) -> &Faulty<Memory> {
        &self.inner
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        if self.fences.fetch_add(1, SeqCst) + 1 == self.blind_after.load(SeqCst) {
            self.inner.fail_lines(0, Pmem::len(self));
        }
        Pmem::fence(&self.inner, rule)
    }
}

type Call = fn(&dyn FileSystem) -> Result<Attr, Errno>;

/// The calls that return attributes, some with a reference.
const RETURN_ATTRIBUTES: [(&str, Call); 7] = [
    ("create", |fs| fs.create(&root(), Ino::ROOT, b"n", 0o644)),
    ("mknod", |fs| {
        fs.mknod(
            &root(),
            Name::new(Ino::ROOT, b"n"),
            FileType::CharDevice,
            0o600,
            9,
        )
    }),
    ("mkdir", |fs| fs.mkdir(&root(), Ino::ROOT, b"n", 0o755)),
    ("symlink", |fs| {
        fs.symlink(&root(), Ino::ROOT, b"n", b"target")
    }),
    ("link", |fs| {
        fs.link(&root(), ino(fs, "tall"), Ino::ROOT, b"n")
    }),
    ("tmpfile", |fs| fs.tmpfile(&root(), Ino::ROOT, 0o600)),
    ("setattr", |fs| {
        let set = SetAttr {
            size: Some(5000),
            perm: Some(0o640),
            uid: Some(3),
            mtime: Some(SetTime::At(Timestamp(77))),
            ..SetAttr::default()
        };
        fs.setattr(&root(), ino(fs, "tall"), &set)
    }),
];

/// A call that has committed does not fail because it cannot read back its changes: the caller
/// would not release the reference.
#[test]
fn a_committed_call_returns_without_reading() {
    let open = |clean: &Memory, mode| {
        let pm = Arc::new(Blinded {
            inner: Faulty::new(copy_of(clean)),
            fences: AtomicI64::new(0),
            blind_after: AtomicI64::new(0),
        });
        let fs = Bpfs::open(pm.clone() as Arc<dyn Pmem>, options(mode)).unwrap();
        (fs, pm)
    };
    for mode in Mode::ALL {
        let clean = image(mode);
        for (name, call) in RETURN_ATTRIBUTES {
            let (fs, pm) = open(&clean, mode);
            let mounted = pm.fences();
            call(&fs).unwrap();
            let fences = pm.fences() - mounted;
            let (fs, pm) = open(&clean, mode);
            let before = free(&fs);
            pm.blind_after.store(mounted + fences, SeqCst);
            let attr = call(&fs);
            let blind = fs.getattr(&root(), Ino::ROOT);
            assert_eq!(blind, Err(Errno::IO), "mode {mode}, {name}: still readable");
            pm.inner.heal();
            let attr = attr.unwrap_or_else(|e| panic!("mode {mode}: {name}: {e:?}"));
            assert_eq!(
                fs.getattr(&root(), attr.ino),
                Ok(attr),
                "mode {mode}: {name}"
            );
            if matches!(name, "create" | "mknod" | "symlink") {
                fs.unlink(&root(), Ino::ROOT, b"n").unwrap();
                fs.forget(attr.ino, 1);
                assert!(before - free(&fs) <= 1, "mode {mode}: {name}");
                assert_eq!(fs.getattr(&root(), attr.ino), Err(Errno::STALE));
            }
        }
    }
}

/// Cuts the power at a random place of a random script. The state is then that before or after
/// the interrupted call.
fn cut(mode: Mode, model: PersistModel, seed: u64) -> bool {
    let script = generate::setup().then(&generate::random(seed, 60));
    let when = match seed % 2 {
        0 => CutAfter::Fences(1 + seed * 7 % 150),
        _ => CutAfter::Stores(1 + seed * 37 % 900),
    };
    let pm = Arc::new(PowerCut::new(MemoryPmem::new(4 * MIB)));
    let o = bpfs::MkfsOptions {
        mode,
        ..Default::default()
    };
    bpfs::mkfs(&*pm, &o).unwrap();
    let fs = Bpfs::open(pm.clone() as Arc<dyn Pmem>, options(mode)).unwrap();
    let oracle = ModelFs::new(ModelOptions::default());
    let (mut here, mut there) = (State::default(), State::default());
    pm.cut_after(when, seed, model);
    for op in &script.ops {
        let before = snapshot(&oracle);
        let got = run_op(&fs, &mut here, op);
        let want = run_op(&oracle, &mut there, op);
        if pm.outcome().is_none() {
            assert_eq!(got, want, "mode {mode}, seed {seed}: {op}");
            continue;
        }
        let what = format!("mode {mode}, model {model}, seed {seed}, {when:?}: {op}");
        assert_eq!(check(pm.inner()).findings, [], "{what}");
        let again = Bpfs::open(pm.inner() as &dyn Pmem, options(mode)).unwrap();
        assert_eq!(again.audit(), [], "{what}");
        let (after, found) = (snapshot(&oracle), snapshot(&again));
        assert!(
            found.is_same_except_times(&before) || found.is_same_except_times(&after),
            "{what}: unlike before: {:#?}\nunlike after: {:#?}",
            found.diff(&before),
            found.diff(&after)
        );
        return true;
    }
    false
}

#[test]
fn a_power_cut_leaves_the_state_before_or_after_the_call() {
    for mode in Mode::ALL {
        for model in PersistModel::ALL {
            let cuts = (0..60).filter(|seed| cut(mode, model, *seed)).count();
            assert!(cuts > 30, "mode {mode}: only {cuts} cuts");
        }
    }
}
