//! BPFS with full blocks. The small tree cannot show this: it fits into one block of inodes, and
//! each directory into one block of entries.

use crate::bounds::bound;
use crate::{everywhere, run};
use bpfs::{BpfsSystem, Mode};
use crash::{Options, PersistModel};
use medium::{MemoryPmem, Pmem};
use oracle::script::generate::Tree;
use oracle::script::{Op, State, run_op};
use std::sync::Arc;
use vfs::{Ctx, FileSystem, Ino, ManualClock, System, Timestamp};

/// A file system with the crowded tree, opened again.
fn crowded() -> Arc<dyn FileSystem> {
    let system = BpfsSystem(Mode::Log);
    let pm: Arc<dyn Pmem> = Arc::new(MemoryPmem::new(system.image_bytes()));
    let open = || system.open(pm.clone(), Arc::new(ManualClock::new(Timestamp(0), 0)));
    system.format(&*pm).unwrap();
    let fs = open().unwrap();
    for op in Tree::Crowded.setup().ops {
        assert_eq!(run_op(&*fs, &mut State::default(), &op), Ok(()), "{op}");
    }
    drop(fs);
    open().unwrap()
}

fn attr(fs: &dyn FileSystem, path: &str) -> vfs::Attr {
    path.split('/')
        .fold(fs.getattr(&Ctx::root(), Ino::ROOT).unwrap(), |dir, name| {
            fs.lookup(&Ctx::root(), dir.ino, name.as_bytes()).unwrap()
        })
}

/// Number of blocks of the root, of `A` and of `B`.
fn blocks(fs: &dyn FileSystem) -> [u64; 3] {
    let root = fs.getattr(&Ctx::root(), Ino::ROOT).unwrap();
    [root, attr(fs, "A"), attr(fs, "B")].map(|dir| dir.size / 4096)
}

fn create(path: &str) -> Op {
    let path = path.into();
    Op::Create { path, mode: 0o644 }
}

#[test]
fn the_tree_fills_its_blocks() {
    let inode_block = |fs: &dyn FileSystem, path: &str| (attr(fs, path).ino.0 - 1) / 32;
    let after = |path: &str| {
        let fs = crowded();
        assert_eq!(blocks(&*fs), [1, 1, 1]);
        assert_eq!(
            ["A", "f", "B", "A/g", "s"].map(|p| inode_block(&*fs, p)),
            [0, 0, 1, 1, 1]
        );
        assert_eq!(run_op(&*fs, &mut State::default(), &create(path)), Ok(()));
        assert_eq!(inode_block(&*fs, path), 2, "the inode file grew");
        blocks(&*fs)
    };
    assert_eq!(after("n"), [2, 1, 1]);
    assert_eq!(after("A/n"), [1, 2, 1]);
    assert_eq!(after("B/n"), [1, 1, 1], "in a hole");
    assert_eq!(
        after(&format!("B/{}", "n".repeat(61))),
        [1, 1, 1],
        "the block starts anew"
    );
}

fn on_crowded(ops: u32, sample: Option<u64>, model: PersistModel) -> Options {
    Options {
        ops,
        sample,
        model,
        trees: vec![Tree::Crowded],
        ..Options::default()
    }
}

#[test]
fn single_operations_in_every_mode() {
    for (mode, model) in everywhere() {
        let outcome = run(mode, &on_crowded(1, None, model));
        assert_eq!((outcome.no_space, outcome.capped_points), (0, 0));
    }
}

#[test]
fn sampled_pairs() {
    for (mode, model) in [
        (Mode::Log, PersistModel::Words),
        (Mode::Other, PersistModel::Lines),
    ] {
        run(mode, &on_crowded(2, Some(bound(30, 100)), model));
    }
}
