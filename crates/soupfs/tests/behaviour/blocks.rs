//! The blocks that `stat` counts are those of the latest view, before and after a round.

use medium::MemoryPmem;
use soupfs::{MkfsOptions, Mode, MountOptions, mkfs};
use std::sync::Arc;
use vfs::{Ctx, Fallocate, FileSystem, Ino};

const PAGE: u64 = 4096;

/// A file system without a persister of its own.
fn opened(mode: Mode) -> crate::Fs {
    let pm = Arc::new(MemoryPmem::new(32 << 20));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let options = MountOptions {
        bound_s: None,
        mode,
        ..MountOptions::default()
    };
    crate::open(pm, options).unwrap()
}

fn pages(fs: &dyn FileSystem, ino: Ino) -> u64 {
    fs.getattr(&Ctx::root(), ino).unwrap().blocks * 512 / PAGE
}

#[test]
fn a_cut_and_a_hole_count_at_once() {
    let cx = Ctx::root();
    for mode in Mode::ALL {
        let fs = opened(mode);
        let file = fs.create(&cx, Ino::ROOT, b"f", 0o644).unwrap().ino;
        fs.setxattr(&cx, file, b"user.a", b"b", vfs::XattrMode::Set)
            .unwrap();
        fs.write(&cx, file, 0, &vec![1; 1100 * PAGE as usize])
            .unwrap();
        fs.sync().unwrap();
        // Data, three nodes with 512 entries each, their root, and the attributes.
        assert_eq!(pages(&fs, file), 1100 + 3 + 1 + 1);
        fs.fallocate(&cx, file, Fallocate::PunchHole, 10 * PAGE, 5 * PAGE)
            .unwrap();
        assert_eq!(pages(&fs, file), 1105 - 5);
        fs.truncate(&cx, file, 600 * PAGE).unwrap();
        assert_eq!(pages(&fs, file), 600 - 5 + 2 + 1 + 1);
        fs.truncate(&cx, file, 20 * PAGE).unwrap();
        fs.truncate(&cx, file, 900 * PAGE).unwrap();
        assert_eq!(pages(&fs, file), 20 - 5 + 1 + 1 + 1);
        fs.sync().unwrap();
        assert_eq!(pages(&fs, file), 20 - 5 + 1 + 1 + 1);
        fs.truncate(&cx, file, 0).unwrap();
        assert_eq!(pages(&fs, file), 1);
        fs.sync().unwrap();
        assert_eq!(pages(&fs, file), 1);
    }
}

/// Data pages only: the file has one node at most, and 64 blocks.
#[test]
fn a_round_changes_no_count() {
    let cx = Ctx::root();
    for (mode, seed) in Mode::ALL
        .into_iter()
        .flat_map(|mode| [(mode, 1), (mode, 2)])
    {
        let fs = opened(mode);
        let mut random = fastrand::Rng::with_seed(seed);
        let file = fs.create(&cx, Ino::ROOT, b"f", 0o644).unwrap().ino;
        // The tree has its node from the first round on, until the file is cut to nothing.
        for step in 0..2000 {
            let (block, len) = (random.u64(1..64), random.u64(1..8));
            let done = match random.u32(..8) {
                0 => fs.truncate(&cx, file, block * PAGE + random.u64(..2)),
                1 | 2 => {
                    let hole = Fallocate::PunchHole;
                    fs.fallocate(&cx, file, hole, block * PAGE + random.u64(..2), len * PAGE)
                }
                3 => fs.fsync(&cx, file, false),
                4 => fs.sync(),
                _ => {
                    let bytes = vec![2; (len * PAGE) as usize - random.usize(..2)];
                    fs.write(&cx, file, 0, b"a").unwrap();
                    fs.write(&cx, file, block * PAGE, &bytes).map(drop)
                }
            };
            done.unwrap();
            fs.write(&cx, file, 0, b"b").unwrap();
            fs.write(&cx, file, 70 * PAGE, b"c").unwrap();
            let before = pages(&fs, file);
            fs.sync().unwrap();
            let nodes = u64::from(step == 0);
            assert_eq!(pages(&fs, file), before + nodes, "{mode}: step {step}");
        }
    }
}
