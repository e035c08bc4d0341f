//! Crashes after a call that failed half-way and left work undone. The explorer does not reach
//! them, since it does not fill the medium.

use bpfs::{Atime, Bpfs, MkfsOptions, Mode, MountOptions, mkfs};
use medium::{MemoryPmem, PersistModel, Pmem, PowerCut};
use oracle::script::{Op, Script, State, run, run_op};
use oracle::snapshot::Snapshot;
use std::sync::Arc;
use vfs::{Ctx, Errno, FileSystem, Ino, ManualClock, SetAttr, Timestamp};

type Cut = Arc<PowerCut<MemoryPmem>>;

const BYTES: u64 = 1 << 20;
const SEEDS: u64 = 8;

fn open<P: Pmem>(pm: P) -> Bpfs<P> {
    let options = MountOptions {
        read_only: false,
        mode: None,
        atime: Atime::Never,
        clock: Arc::new(ManualClock::new(Timestamp(1_000_000), 1_000)),
    };
    Bpfs::open(pm, options).expect("the image is one")
}

/// A file system in which `script` has run, on memory with nothing in flight.
fn image(mode: Mode, script: &str) -> MemoryPmem {
    let pm = MemoryPmem::new(BYTES);
    let options = MkfsOptions {
        mode,
        ..MkfsOptions::default()
    };
    mkfs(&pm, &options).expect("the memory is large enough");
    let fs = open(pm);
    let script: Script = script.parse().expect("the script is one");
    let done = run(&fs, &mut State::default(), &script);
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    copy_of(fs.pmem())
}

fn copy_of(pm: &MemoryPmem) -> MemoryPmem {
    let mut bytes = vec![0; BYTES as usize];
    pm.read(0, &mut bytes).expect("memory can be read");
    let copy = MemoryPmem::new(BYTES);
    copy.store_nt(0, &bytes);
    copy
}

fn powered(image: &MemoryPmem) -> Cut {
    Arc::new(PowerCut::new(copy_of(image)))
}

fn op(text: &str) -> Op {
    let script: Script = text.parse().expect("the operation is one");
    script.ops[0].clone()
}

/// A call fails half-way, and another stores the same. Returns whether a power failure
/// after that one takes some of it.
pub fn a_repeated_call_is_lost() -> bool {
    // Neither `d` nor the medium has room: the inode is made, and the entry fails.
    let long = "n".repeat(250);
    let links: String = (10..25).map(|n| format!("link f d/{n}{long}\n")).collect();
    let device = op(&format!("mknod d/{long} char 600 777"));
    let setup = format!("create f 644\nmkdir d 755\ncreate filler 644\n{links}");
    let lost = |mode, seed| {
        let fs = open(powered(&image(mode, &setup)));
        let cx = Ctx::root();
        let filler = fs.lookup(&cx, Ino::ROOT, b"filler").unwrap().ino;
        let mut size = 0;
        while fs.write(&cx, filler, size, &[1; 4096]).is_ok() {
            size += 4096;
        }
        let state = &mut State::default();
        assert_eq!(run_op(&fs, state, &device), Err(Errno::NOSPC));
        let cut = SetAttr {
            size: Some(size / 2),
            ..SetAttr::default()
        };
        fs.setattr(&cx, filler, &cut).expect("a cut takes nothing");
        assert_eq!(run_op(&fs, state, &device), Ok(()));
        lost_in_a_power_failure(fs, seed)
    };
    let modes = [Mode::Other, Mode::Log];
    (0..SEEDS).any(|seed| modes.iter().any(|mode| lost(*mode, seed)))
}

/// Whether a power failure changes the state that callers see.
fn lost_in_a_power_failure(fs: Bpfs<Cut>, seed: u64) -> bool {
    let before = Snapshot::take(&fs).expect("all can be read");
    let pm = fs.pmem().clone();
    let model = PersistModel::ALL[seed as usize % 2];
    pm.cut(seed, model).expect("memory takes any state");
    if !bpfs::check(pm.inner()).is_clean() {
        return true;
    }
    let after = Snapshot::take(&open(copy_of(pm.inner()))).expect("all can be read");
    !after.is_same_except_times(&before) || !after.has_same_times(&before)
}
