//! A full file system: a call fails for want of memory, and no round does. All that was written is kept.

use fastrand::Rng;
use medium::MemoryPmem;
use oracle::ModelFs;
use oracle::snapshot::Snapshot;
use soupfs::{Atime, MkfsOptions, Mode, MountOptions, check, mkfs};
use std::sync::Arc;
use vfs::{Ctx, Errno, Fallocate, FileSystem, Ino, SetAttr};

const PAGE: u64 = 4096;

use crate::Fs;

/// A file system whose persister works in `fsync` and `sync` only.
fn open(pm: &Arc<MemoryPmem>, mode: Mode) -> Fs {
    let options = MountOptions {
        atime: Atime::Never,
        bound_s: None,
        mode,
        ..MountOptions::default()
    };
    crate::open(Arc::clone(pm), options).unwrap()
}

fn made(bytes: u64, mode: Mode) -> (Arc<MemoryPmem>, Fs) {
    let pm = Arc::new(MemoryPmem::new(bytes));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = open(&pm, mode);
    (pm, fs)
}

fn create(fs: &dyn FileSystem, name: &str) -> Ino {
    let made = fs.create(&Ctx::root(), Ino::ROOT, name.as_bytes(), 0o644);
    made.unwrap().ino
}

fn resize(fs: &dyn FileSystem, file: Ino, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(&Ctx::root(), file, &set).unwrap();
}

/// Makes appends and cuts until memory has run out several times. Each call that succeeds is made on the
/// model, too.
fn fill(fs: &Fs, model: &ModelFs, rng: &mut Rng) {
    let cx = Ctx::root();
    let files: Vec<[Ino; 2]> = ["a", "b", "c", "d", "e"]
        .iter()
        .map(|name| [create(fs, name), create(model, name)])
        .collect();
    let mut failures = 0;
    while failures < 8 {
        let [file, of_model] = files[rng.usize(..files.len())];
        let size = fs.getattr(&cx, file).unwrap().size;
        match rng.u32(..40) {
            0 => fs.fsync(&cx, file, false).unwrap(),
            1 => fs.sync().unwrap(),
            2 => {
                let cut = rng.u64(..=size);
                resize(fs, file, cut);
                resize(model, of_model, cut);
            }
            gap => {
                let gap = if gap < 8 { rng.u64(..3 << 20) } else { 0 };
                let off = (size + gap).min(20 << 20);
                let bytes = vec![rng.u8(1..); rng.usize(1..60_000)];
                match fs.write(&cx, file, off.max(size), &bytes) {
                    Ok(len) => assert_eq!(
                        model.write(&cx, of_model, off.max(size), &bytes[..len]),
                        Ok(bytes.len())
                    ),
                    Err(e) => {
                        assert_eq!(e, Errno::NOSPC);
                        failures += 1;
                    }
                }
            }
        }
    }
}

#[test]
fn all_that_was_written_to_a_full_file_system_is_stored() {
    for seed in 0..24 {
        let mode = Mode::ALL[seed as usize % 2];
        let (pm, fs) = made([1 << 20, 5 << 20][seed as usize / 2 % 2], mode);
        let model = ModelFs::default();
        fill(&fs, &model, &mut Rng::with_seed(seed));
        assert_eq!(fs.close(), Ok(()), "{seed}");
        drop(fs);
        assert_eq!(check(&*pm).findings, [], "{seed}");
        let there = Snapshot::take(&open(&pm, mode)).unwrap();
        let wanted = Snapshot::take(&model).unwrap();
        let same = there.is_same_except_times(&wanted);
        assert!(same, "{seed}: {:?}", wanted.diff(&there));
    }
}

#[test]
fn blocks_far_apart_in_a_full_file_system_are_stored() {
    for mode in Mode::ALL {
        let (pm, fs) = made(1 << 20, mode);
        let (cx, file) = (Ctx::root(), create(&fs, "f"));
        // Each block has nodes of its own, and most make the tree higher.
        let offs = (0..51).flat_map(|bit| [1 << bit, 3 << bit]);
        let offs: Vec<u64> = offs.map(|block: u64| block * PAGE).collect();
        let written: Vec<u64> = offs
            .into_iter()
            .filter(|off| fs.write(&cx, file, *off, &off.to_le_bytes()).is_ok())
            .collect();
        assert!(written.len() > 10, "{}", written.len());
        assert_eq!(fs.close(), Ok(()));
        drop(fs);
        let fs = open(&pm, mode);
        for off in written {
            let mut bytes = [0; 8];
            fs.read(&cx, file, off, &mut bytes).unwrap();
            assert_eq!(bytes, off.to_le_bytes(), "{off}");
        }
    }
}

/// A part has 64 MiB, and a round runs at four times that much.
#[test]
fn a_large_fallocate_is_made_in_parts() {
    let grow = Fallocate::Allocate { keep_size: false };
    let (pm, fs) = made(400 << 20, Mode::default());
    let (cx, file) = (Ctx::root(), create(&fs, "f"));
    let free = || fs.statfs().unwrap().blocks_free;
    let before = free();
    assert_eq!(fs.fallocate(&cx, file, grow, 5, (300 << 20) + 1), Ok(()));
    let attr = fs.getattr(&cx, file).unwrap();
    assert_eq!(attr.size, (300 << 20) + 6);
    assert!(attr.blocks >= (300 << 20) / 512 + 8, "{}", attr.blocks);
    // A crash would leave the parts before the round.
    let stored = |pm: &Arc<MemoryPmem>| {
        let options = MountOptions {
            read_only: true,
            ..MountOptions::default()
        };
        let fs = crate::open(Arc::clone(pm), options).unwrap();
        fs.lookup(&cx, Ino::ROOT, b"f").map(|attr| attr.size)
    };
    assert_eq!(stored(&pm), Ok(256 << 20));
    let punch = Fallocate::PunchHole;
    assert_eq!(
        fs.fallocate(&cx, file, punch, 100, u64::from(u32::MAX)),
        Ok(())
    );
    fs.sync().unwrap();
    // The nodes of the tree stay, one for each 2 MiB.
    assert!(before - free() < 160, "{}", before - free());
    let zero = Fallocate::ZeroRange { keep_size: false };
    assert_eq!(fs.fallocate(&cx, file, zero, 0, 1 << 40), Ok(()));
    assert_eq!(fs.getattr(&cx, file).unwrap().size, 1 << 40);
    fs.close().unwrap();
    assert_eq!(check(&*pm).findings, []);
}

/// As a program does that has the log of another one cut, which somebody has removed.
#[test]
fn a_file_without_a_name_gives_back_what_is_cut_off() {
    for mode in [Mode::InPlace, Mode::Atomic] {
        let (pm, fs) = made(16 << 20, mode);
        let (cx, file) = (Ctx::root(), create(&fs, "f"));
        let free = || fs.statfs().unwrap().blocks_free;
        let before = free();
        let data = vec![1; 10 << 20];
        fs.write(&cx, file, 0, &data).unwrap();
        fs.sync().unwrap();
        fs.unlink(&cx, Ino::ROOT, b"f").unwrap();
        fs.truncate(&cx, file, 0).unwrap();
        fs.sync().unwrap();
        fs.sync().unwrap();
        assert!(free() + 8 >= before, "{mode:?}: {} of {before}", free());
        for round in 0..3 {
            let data = vec![round; 10 << 20];
            fs.write(&cx, file, 0, &data).unwrap();
            fs.sync().unwrap();
            let mut found = vec![0; 10 << 20];
            fs.read(&cx, file, 0, &mut found).unwrap();
            assert!(found == data, "{mode:?}");
            if mode == Mode::Atomic {
                fs.truncate(&cx, file, 0).unwrap();
                fs.sync().unwrap();
            }
        }
        fs.forget(file, 1);
        fs.sync().unwrap();
        assert!(free() + 8 >= before, "{mode:?}: {} of {before}", free());
        fs.close().unwrap();
        assert_eq!(check(&*pm).findings, []);
    }
}

/// Space past the end is not taken, but there must be some.
#[test]
fn a_fallocate_past_the_end_must_fit() {
    let (_pm, fs) = made(4 << 20, Mode::default());
    let (cx, file) = (Ctx::root(), create(&fs, "f"));
    fs.write(&cx, file, 0, b"text").unwrap();
    let keep = Fallocate::Allocate { keep_size: true };
    let far = |len| fs.fallocate(&cx, file, keep, 0, len);
    assert_eq!(far(1 << 40), Err(Errno::NOSPC));
    assert_eq!(far(8 << 20), Err(Errno::NOSPC));
    assert_eq!(far(1 << 20), Ok(()));
    assert_eq!(fs.getattr(&cx, file).unwrap().size, 4);
}

#[test]
fn a_large_fallocate_that_fails_gives_back_its_parts() {
    let (pm, fs) = made(200 << 20, Mode::default());
    let (cx, file) = (Ctx::root(), create(&fs, "f"));
    fs.write(&cx, file, 0, &[1; 100]).unwrap();
    fs.sync().unwrap();
    let free = fs.statfs().unwrap().blocks_free;
    let grow = Fallocate::Allocate { keep_size: false };
    let most = (free + 2) * PAGE;
    assert_eq!(fs.fallocate(&cx, file, grow, 0, most), Err(Errno::NOSPC));
    assert_eq!(fs.getattr(&cx, file).unwrap().size, 100);
    fs.sync().unwrap();
    // The tree keeps its height.
    assert_eq!(fs.statfs().unwrap().blocks_free, free - 2);
    fs.close().unwrap();
    assert_eq!(check(&*pm).findings, []);
}

#[test]
fn a_call_that_fails_leaves_nothing_past_the_end() {
    let (_, fs) = made(1 << 20, Mode::default());
    let (cx, file) = (Ctx::root(), create(&fs, "f"));
    fs.write(&cx, file, 0, &[1; 100]).unwrap();
    fs.sync().unwrap();
    let free = fs.statfs().unwrap().blocks_free;
    let full = Err(Errno::NOSPC);
    assert_eq!(fs.write(&cx, file, 100, &vec![2; 2 << 20]), full);
    let grow = Fallocate::Allocate { keep_size: false };
    let most = (free + 2) * PAGE;
    assert_eq!(fs.fallocate(&cx, file, grow, 0, most), Err(Errno::NOSPC));
    fs.sync().unwrap();
    assert_eq!(fs.statfs().unwrap().blocks_free, free);
    resize(&fs, file, 1 << 20);
    let mut bytes = vec![0; 1 << 20];
    fs.read(&cx, file, 0, &mut bytes).unwrap();
    assert_eq!(bytes[..100], [1; 100]);
    assert!(bytes[100..].iter().all(|byte| *byte == 0));
}

/// Memory that is free in lines only has no room for contents, and is not counted as blocks.
#[test]
fn free_blocks_are_those_that_can_be_written() {
    let (_pm, fs) = made(1 << 20, Mode::InPlace);
    let cx = &Ctx::root();
    let kept = create(&fs, "kept");
    let names = (0..).map(|n| n.to_string()).take_while(|name| {
        let made = fs.create(cx, Ino::ROOT, name.as_bytes(), 0o644);
        made.map(|attr| fs.forget(attr.ino, 1)).is_ok()
    });
    let names: Vec<_> = names.collect();
    for name in names.iter().step_by(2) {
        fs.unlink(cx, Ino::ROOT, name.as_bytes()).unwrap();
    }
    // The last names: whole pages are free, too.
    for name in names.iter().rev().take(1_000).skip(1).step_by(2) {
        let _ = fs.unlink(cx, Ino::ROOT, name.as_bytes());
    }
    fs.sync().unwrap();
    let free = fs.statfs().unwrap();
    assert!(
        free.blocks_free * 64 < free.inodes_free,
        "lines are free in parts of pages"
    );
    let written = (0..).take_while(|n| fs.write(cx, kept, n * PAGE, &[7; 4096]).is_ok());
    let written = written.count() as u64;
    // A node of the tree, with its parent, takes the place of some.
    assert!(
        (free.blocks_free - 3..=free.blocks_free).contains(&written),
        "{written} of {free:?}"
    );
}

/// Leaves fewer pages than a write far out needs for its block and nodes.
#[test]
fn a_write_that_fails_for_want_of_nodes_takes_no_page() {
    for mode in Mode::ALL {
        let (_, fs) = made(1 << 20, mode);
        let (cx, file, far) = (Ctx::root(), create(&fs, "f"), create(&fs, "far"));
        let free = || fs.statfs().unwrap().blocks_free;
        let mut at = 0;
        while free() > 3 {
            fs.write(&cx, file, at, &[1; PAGE as usize]).unwrap();
            fs.sync().unwrap();
            at += PAGE;
        }
        let before = fs.statfs().unwrap();
        assert!(before.blocks_free > 0);
        for _ in 0..3 {
            let full = fs.write(&cx, far, 1 << 50, &[1; 8]);
            assert_eq!(full, Err(Errno::NOSPC));
            assert_eq!(fs.statfs().unwrap(), before, "{mode}");
        }
        fs.write(&cx, file, at, &[1; PAGE as usize]).unwrap();
        fs.close().unwrap();
    }
}

/// No round sees these files.
#[test]
fn a_file_that_was_never_stored_gives_back_all_its_memory() {
    let (pm, fs) = made(4 << 20, Mode::default());
    let cx = Ctx::root();
    fs.sync().unwrap();
    let before = fs.statfs().unwrap();
    let ends: [fn(&Fs, Ino); 4] = [
        |_, _| {},
        |fs, file| resize(fs, file, 0),
        |fs, file| resize(fs, file, 100),
        |fs, file| {
            let hole = Fallocate::PunchHole;
            fs.fallocate(&Ctx::root(), file, hole, 0, 1 << 41).unwrap();
        },
    ];
    for (n, end) in ends.into_iter().enumerate() {
        let file = create(&fs, "f");
        for off in [0, 3 << 20, 1 << 40] {
            fs.write(&cx, file, off, &[1; 5000]).unwrap();
        }
        fs.setxattr(&cx, file, b"user.a", b"b", vfs::XattrMode::Set)
            .unwrap();
        end(&fs, file);
        fs.unlink(&cx, Ino::ROOT, b"f").unwrap();
        fs.forget(file, 1);
        assert_eq!(fs.statfs().unwrap(), before, "end {n}");
    }
    fs.close().unwrap();
    assert_eq!(check(&*pm).findings, []);
}

#[test]
fn a_page_that_becomes_free_has_room_for_names() {
    let (pm, fs) = made(1 << 20, Mode::default());
    let (cx, file) = (Ctx::root(), create(&fs, "f"));
    let all = (0..).find(|n| fs.write(&cx, file, n * PAGE, &[1; PAGE as usize]).is_err());
    assert!(all > Some(100));
    let name = |n: u32| format!("name {n}").into_bytes();
    let make = |n| fs.create(&cx, Ino::ROOT, &name(n), 0o644);
    let last = (0..).find(|n| make(*n).is_err()).unwrap();
    resize(&fs, file, 0);
    fs.sync().unwrap();
    make(last).unwrap();
    fs.close().unwrap();
    assert_eq!(check(&*pm).findings, []);
}

/// The tree has a node already, and gets higher. Each number of free pages is tried: a write succeeds
/// only if there are pages for its nodes, too.
#[test]
fn a_tree_that_gets_higher_with_the_last_pages_is_stored() {
    let mut done = 0;
    for (left, height) in (0..10).flat_map(|left| (1..4).map(move |height| (left, height))) {
        let (pm, fs) = made(1 << 20, Mode::ALL[left as usize % 2]);
        let (cx, file, other) = (Ctx::root(), create(&fs, "f"), create(&fs, "other"));
        fs.write(&cx, file, 0, b"first").unwrap();
        let mut at = 0;
        while fs.statfs().unwrap().blocks_free > left {
            fs.write(&cx, other, at, &[1; PAGE as usize]).unwrap();
            fs.sync().unwrap();
            at += PAGE;
        }
        let far = PAGE << (9 * height);
        let written = fs.write(&cx, file, far, b"last");
        assert_eq!(fs.close(), Ok(()), "{left} pages, {height} levels");
        assert_eq!(check(&*pm).findings, []);
        let fs = open(&pm, Mode::default());
        let mut bytes = *b".....";
        if written.is_ok() {
            fs.read(&cx, file, far, &mut bytes).unwrap();
            assert_eq!(&bytes[..4], b"last");
            done += 1;
        }
        fs.read(&cx, file, 0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"first");
    }
    assert!((5..25).contains(&done), "{done} writes succeeded");
}
