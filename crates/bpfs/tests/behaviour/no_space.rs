//! On a full medium the call fails and changes nothing.

use crate::fixture::*;
use bpfs::{Bpfs, Mode, check};
use oracle::script::{Op, Script, State, generate, run, run_op};
use oracle::{ModelFs, ModelOptions};
use vfs::{Errno, Fallocate, FileSystem, Ino, RenameFlags, SetAttr, SetTime, Timestamp};

/// An image with no free block. The file `filler` has taken all that were left.
struct Full {
    image: Memory,
    setup: Script,
    /// Blocks of `filler`.
    filler: u64,
}

/// The file that a test cuts to get free blocks.
const FILLER: &str = "filler";

impl Full {
    /// Fills a 1 MiB image after `setup`, in a mode that appends in place, so that a block of
    /// the file takes one block.
    fn new(setup: Script) -> Self {
        let fs = fresh(Mode::Log, MIB);
        let done = run(&fs, &mut State::default(), &setup);
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        let filler = file(&fs, FILLER);
        let mut blocks = 0;
        while fs
            .write(&root(), filler, blocks * BLOCK, &[1; BLOCK as usize])
            .is_ok()
        {
            blocks += 1;
        }
        assert_eq!(free(&fs), 0);
        Self {
            image: fs.pmem().clone(),
            setup,
            filler: blocks,
        }
    }

    /// A copy with `spare` free blocks, mounted in `mode`.
    fn with(&self, spare: u64, mode: Mode) -> Fs {
        let pm = copy_of(&self.image);
        let fs = Bpfs::open(pm.clone(), options(Mode::Log)).unwrap();
        self.cut_filler(&fs, spare);
        drop(fs);
        let fs = Bpfs::open(pm, options(mode)).unwrap();
        assert_eq!(free(&fs), spare);
        fs
    }

    fn cut_filler(&self, fs: &dyn FileSystem, spare: u64) {
        let size = (self.filler - spare) * BLOCK;
        fs.truncate(&root(), ino(fs, FILLER), size).unwrap();
    }

    /// The same file system in the model.
    fn model(&self, spare: u64) -> ModelFs {
        let model = ModelFs::new(ModelOptions::default());
        run(&model, &mut State::default(), &self.setup);
        let data = vec![1; (self.filler * BLOCK) as usize];
        write(&model, file(&model, FILLER), 0, &data);
        self.cut_filler(&model, spare);
        model
    }

    /// Runs `op` with 0, 1, 2, ... free blocks until it succeeds. Returns how many it took.
    fn until_it_fits(&self, mode: Mode, op: &Op) -> u64 {
        for spare in 0..self.filler {
            let fs = self.with(spare, mode);
            let before = snapshot(&fs);
            let got = run_op(&fs, &mut State::default(), op);
            let when = format!("mode {mode}, {spare} free: {op}");
            assert_eq!(fs.audit(), [], "{when}");
            if got != Err(Errno::NOSPC) {
                let model = self.model(spare);
                let want = run_op(&model, &mut State::default(), op);
                assert_eq!(got, want, "{when}");
                let (here, there) = (snapshot(&fs), snapshot(&model));
                assert!(
                    here.is_same_except_times(&there),
                    "{when}: {:#?}",
                    here.diff(&there)
                );
                must_be_healthy(&fs);
                return spare;
            }
            let after = snapshot(&fs);
            assert!(
                after.is_same_except_times(&before),
                "{when}: {:#?}",
                after.diff(&before)
            );
            assert!(after.has_same_times(&before), "{when}: a time has changed");
            assert_eq!(check(&**fs.pmem()).findings, [], "{when}");
            self.must_keep(&fs, spare, mode, op);
        }
        panic!("mode {mode}: never done: {op}");
    }

    /// Asserts that a failed call keeps no block, except that the inode file may have grown,
    /// with a block or two of pointers. Further tries take nothing more.
    fn must_keep(&self, fs: &Fs, spare: u64, mode: Mode, op: &Op) {
        let makes = matches!(
            op,
            Op::Create { .. }
                | Op::Mkdir { .. }
                | Op::Mknod { .. }
                | Op::Symlink { .. }
                | Op::Tmpfile { .. }
        );
        let grown = if makes { 3 } else { 0 };
        let left = free(fs);
        assert!(
            (spare.saturating_sub(grown)..=spare).contains(&left),
            "mode {mode}: {spare} blocks were free, {left} are: {op}"
        );
        for _ in 0..3 {
            let again = run_op(fs, &mut State::default(), op);
            assert_eq!(again, Err(Errno::NOSPC), "mode {mode}: {op}");
            assert_eq!(free(fs), left, "mode {mode}: {op}");
        }
    }
}

/// Every operation of the crash tests, and those that need most space.
fn operations() -> Vec<Op> {
    let more: Script = "
        write f 1099511627776 5000 1
        write A/g 5 800000 1
        append f 100000 2
        truncate A/g 1099511627776
        fallocate A/g allocate 0 5000000000
        fallocate f allocate 2000000 9000
        fallocate f zero 100 30000
        setxattr A/g user.big 3000 1 set
        utimens A/g 5 6
        utimens f now 7000
        tmpfile 1 A 600
    "
    .parse()
    .unwrap();
    generate::all_ops()
        .iter()
        .cloned()
        .chain(more.ops)
        .collect()
}

/// Operations that this image can never have room for.
fn is_too_large(op: &Op) -> bool {
    matches!(op, Op::Fallocate { len, .. } if *len > MIB)
}

fn every_operation_at(full: &Full, modes: &[Mode]) {
    for mode in modes {
        let mut needed_some = 0;
        for op in operations().iter().filter(|op| !is_too_large(op)) {
            needed_some += u64::from(full.until_it_fits(*mode, op) > 0);
        }
        assert!(
            needed_some > 10,
            "mode {mode}: only {needed_some} needed space"
        );
    }
}

#[test]
fn every_operation_fails_cleanly_at_every_number_of_free_blocks() {
    every_operation_at(&Full::new(generate::setup()), &Mode::ALL);
}

/// Directories and the inode file are full as well, so that a new name takes a block of each.
#[test]
fn every_operation_fails_cleanly_with_full_directories_and_inodes() {
    every_operation_at(
        &Full::new(tight()),
        &[Mode::Sp, Mode::At, Mode::Other, Mode::Log],
    );
}

/// A failed call that sets a time changes none. In particular it keeps the change time, which
/// no longer follows the modification time once a caller has chosen one.
#[test]
fn a_failed_setattr_changes_no_times() {
    let full = Full::new(generate::setup());
    let set = SetAttr {
        size: Some(1 << 40),
        perm: Some(0o600),
        mtime: Some(SetTime::At(Timestamp(7_000_000_000_000_000))),
        ..SetAttr::default()
    };
    for mode in Mode::ALL {
        let needed = (0..full.filler).find(|spare| {
            let fs = full.with(*spare, mode);
            let (f, before) = (ino(&fs, "f"), snapshot(&fs));
            let got = fs.setattr(&root(), f, &set);
            must_be_healthy(&fs);
            if let Ok(attr) = got {
                assert_eq!(fs.getattr(&root(), f), Ok(attr), "{mode}");
                return true;
            }
            assert_eq!(got, Err(Errno::NOSPC), "{mode}");
            let after = snapshot(&fs);
            assert!(after.is_same_except_times(&before), "{mode}");
            assert!(after.has_same_times(&before), "{mode}: a time has changed");
            false
        });
        // The log needs no block for two words of an inode.
        assert_eq!(needed == Some(0), mode == Mode::Log, "{mode}: {needed:?}");
    }
}

/// `A` and `B` have no room for another name, and all inodes are taken once `filler` is made.
fn tight() -> Script {
    let mut text = String::new();
    let long = "n".repeat(250);
    for dir in ["A/", "B/"] {
        for n in 0..15 {
            text += &format!("link f {dir}{long}{n:02}\n");
        }
    }
    let files = |n: usize| -> Script {
        let lines: String = (0..n)
            .map(|n| format!("mknod extra{n} fifo 600 0\n"))
            .collect();
        lines.parse().unwrap()
    };
    let names: Script = text.parse().unwrap();
    let setup = generate::setup().then(&names);
    // As many more files as leave one inode for the filler.
    (0..32)
        .map(|n| setup.then(&files(n)))
        .find(|script| {
            let fs = fresh(Mode::Log, MIB);
            run(&fs, &mut State::default(), script);
            file(&fs, FILLER);
            let stat = fs.statfs().unwrap();
            stat.inodes_free == stat.blocks_free * 32
        })
        .unwrap()
}

#[test]
fn a_call_that_can_never_fit_takes_nothing() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        run(&fs, &mut State::default(), &generate::setup());
        let (before, space) = (snapshot(&fs), free(&fs));
        for op in operations().iter().filter(|op| is_too_large(op)) {
            let got = run_op(&fs, &mut State::default(), op);
            assert_eq!(got, Err(Errno::NOSPC), "{mode}: {op}");
        }
        assert_eq!(free(&fs), space, "{mode}");
        assert!(snapshot(&fs).is_same_except_times(&before), "{mode}");
        must_be_healthy(&fs);
    }
}

/// Fills the file system in several ways at once, until no call succeeds.
fn fill_up(fs: &Fs, dir: Ino) -> u64 {
    let mut made = 0;
    let full = Some(Errno::NOSPC);
    loop {
        let name = format!("a name of some length {made}");
        let one = match made % 4 {
            0 => fs.mkdir(&root(), dir, name.as_bytes(), 0o755),
            1 => fs.symlink(&root(), dir, name.as_bytes(), b"somewhere"),
            _ => fs.create(&root(), dir, name.as_bytes(), 0o644),
        };
        match one {
            Ok(attr) => {
                fs.forget(attr.ino, 1);
                made += 1;
                if made % 4 == 3 {
                    let wrote = fs.write(&root(), attr.ino, 3, &[1; 100]);
                    assert!(wrote == Ok(100) || wrote.err() == full);
                }
            }
            Err(e) => {
                assert_eq!(Some(e), full);
                return made;
            }
        }
    }
}

fn empty(fs: &Fs, dir: Ino) {
    for name in names(fs, dir) {
        let name = name.as_bytes();
        let gone = match fs.unlink(&root(), dir, name) {
            Err(Errno::ISDIR) => fs.rmdir(&root(), dir, name),
            other => other,
        };
        gone.unwrap();
    }
}

#[test]
fn a_full_file_system_can_be_emptied_and_filled_again() {
    for mode in [Mode::Log, Mode::Other] {
        let fs = fresh(mode, 2 * MIB);
        let mut last = None;
        for _ in 0..3 {
            let d = dir_in(&fs, Ino::ROOT, "d");
            let made = fill_up(&fs, d);
            // One big file takes all other blocks.
            let (f, mut size) = (names(&fs, d), 0);
            let f = stat(&fs, &format!("d/{}", f.last().unwrap())).unwrap();
            while fs.write(&root(), f.ino, size, &[2; 1]).is_ok() {
                size += BLOCK;
            }
            assert!(free(&fs) <= 1, "{mode}: {} left", free(&fs));
            must_be_healthy(&fs);
            empty(&fs, d);
            fs.rmdir(&root(), Ino::ROOT, b"d").unwrap();
            must_be_healthy(&fs);
            // Only the blocks of the inode file stay taken, and they are used again.
            let now = (made > 500, free(&fs));
            assert!(now.0, "{mode}: only {made} names");
            if let Some(before) = last {
                assert!(free(&fs) >= before, "{mode}: {} of {before}", free(&fs));
            }
            last = Some(now.1);
        }
    }
}

/// In modes in which every change copies, a removal from a full file system needs a free block,
/// too. A few removals or a cut must suffice to go on.
#[test]
fn a_full_file_system_in_a_copying_mode_can_be_emptied() {
    for mode in [Mode::Sp, Mode::Sc, Mode::A, Mode::T, Mode::At] {
        let fs = fresh(mode, MIB);
        let d = dir_in(&fs, Ino::ROOT, "d");
        let made = fill_up(&fs, d);
        assert!(made > 100, "{mode}: {made}");
        must_be_healthy(&fs);
        empty(&fs, d);
        assert_eq!(names(&fs, d).len(), 0, "{mode}");
        must_be_healthy(&fs);
        assert!(fill_up(&fs, d) >= made - 4, "{mode}");
    }
}

#[test]
fn one_big_file_takes_all_space_and_gives_it_back() {
    for mode in Mode::ALL {
        let fs = fresh(mode, MIB);
        let f = file(&fs, "f");
        let before = free(&fs);
        let mut size = 0;
        for step in [64 * BLOCK, 8 * BLOCK, BLOCK, 1] {
            while fs.write(&root(), f, size, &vec![3; step as usize]).is_ok() {
                size += step;
            }
        }
        assert!(size > MIB * 3 / 4, "{mode}: {size}");
        must_be_healthy(&fs);
        assert_eq!(fs.truncate(&root(), f, 0), Ok(()), "{mode}");
        assert_eq!(free(&fs), before, "{mode}");
        must_be_healthy(&fs);
    }
}

/// A rename over a file frees space in a full file system. It must not fail in the modes that
/// change names in place.
#[test]
fn names_can_be_moved_and_removed_with_no_free_block() {
    let full = Full::new(generate::setup());
    for mode in [Mode::Other, Mode::Log] {
        let fs = full.with(0, mode);
        assert_eq!(fs.unlink(&root(), Ino::ROOT, b"s"), Ok(()), "{mode}");
        assert_eq!(free(&fs), 1, "{mode}: the symbolic link's block");
        let over = rename(
            &fs,
            (Ino::ROOT, "f"),
            (Ino::ROOT, FILLER),
            RenameFlags::empty(),
        );
        assert_eq!(over, Ok(()), "{mode}");
        must_be_healthy(&fs);
    }
    let fs = full.with(0, Mode::Log);
    let over = rename(
        &fs,
        (Ino::ROOT, "f"),
        (Ino::ROOT, FILLER),
        RenameFlags::empty(),
    );
    assert_eq!(over, Ok(()), "the log needs no block");
    must_be_healthy(&fs);
}

/// The reserve of the modes in which a removal copies suffices for the largest change that
/// gives up space, and serves nothing else.
#[test]
fn the_reserve_serves_only_changes_that_give_up_space() {
    let far = 1 << 62;
    let setup = format!(
        "create tall 644\nwrite tall 0 4096 1\nwrite tall {far} 4096 2
        setxattr tall user.a 100 1 set\nsetxattr tall user.b 100 1 set
        mkdir dir 755\nmkdir dir/empty 755"
    );
    let full = Full::new(setup.parse().unwrap());
    for mode in Mode::ALL {
        let stat = full.with(100, mode).statfs().unwrap();
        let kept = stat.blocks_free - stat.blocks_avail;
        let copies = matches!(mode, Mode::Sp | Mode::Sc | Mode::A);
        assert_eq!(kept, if copies { 16 } else { 0 }, "{mode}");
        if !copies {
            continue;
        }
        let fs = full.with(kept, mode);
        assert_eq!(fs.statfs().unwrap().blocks_avail, 0, "{mode}");
        let tall = ino(&fs, "tall");
        let full = Some(Errno::NOSPC);
        assert_eq!(fs.create(&root(), Ino::ROOT, b"x", 0o644).err(), full);
        assert_eq!(fs.write(&root(), tall, 100, b"x").err(), full);
        assert_eq!(fs.truncate(&root(), tall, far + BLOCK + 1).err(), full);
        let hole = fs.fallocate(&root(), tall, Fallocate::PunchHole, 100, far);
        assert_eq!(hole, Ok(()), "{mode}");
        assert_eq!(fs.removexattr(&root(), tall, b"user.a"), Ok(()), "{mode}");
        assert_eq!(fs.rmdir(&root(), ino(&fs, "dir"), b"empty"), Ok(()));
        assert_eq!(fs.truncate(&root(), tall, 10), Ok(()), "{mode}");
        assert_eq!(fs.unlink(&root(), Ino::ROOT, b"tall"), Ok(()), "{mode}");
        must_be_healthy(&fs);
    }
}
