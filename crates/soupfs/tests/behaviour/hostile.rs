//! Damaged images. A word of the metadata is changed, then the image is checked, repaired, opened and
//! used. None of these may panic, hang or read forever.

#[path = "../../../bpfs/tests/behaviour/hostile/workload.rs"]
mod workload;

use fastrand::Rng;
use medium::{Budget, MemoryPmem, Pmem};
use soupfs::format::{
    FANOUT, Line, Link, MAX_HEIGHT, PAGE, Page, Root, bitmap_word, dentry, inode,
};
use soupfs::{Atime, Error, MkfsOptions, Mode, MountOptions, check, mkfs, repair};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use vfs::check::Severity;
use vfs::{
    Ctx, Errno, FileSystem, FileType, Ino, ManualClock, Name, Result, SeekKind, Timestamp,
    XattrMode,
};

const LEN: u64 = 1 << 20;
/// Words at the start of a page that are changed: those of data follow.
const HEAD: u64 = 64;
/// Accesses that a check may take, and the use of an image.
const CHECK_BUDGET: u64 = 500_000;
const USE_BUDGET: u64 = 50_000_000;
/// Images that a run judges.
const CASES: u64 = 600;

fn options(mode: Mode) -> MountOptions {
    MountOptions {
        atime: Atime::Strict,
        clock: Arc::new(ManualClock::new(Timestamp(1_000_000_000), 1_000)),
        bound_s: None,
        mode,
        ..MountOptions::default()
    }
}

/// Makes every structure of the format.
fn fill(fs: &dyn FileSystem) -> Result<()> {
    let (cx, root) = (&Ctx::root(), Ino::ROOT);
    for (name, off) in [(&b"one"[..], 0), (b"two", 4096), (b"far", 9 << 20)] {
        let file = fs.create(cx, root, name, 0o644)?.ino;
        fs.write(cx, file, 0, b"head")?;
        fs.write(cx, file, off, &[7; 100])?;
        fs.setxattr(cx, file, b"user.one", b"value", XattrMode::Set)?;
    }
    let dir = fs.mkdir(cx, root, b"dir", 0o755)?.ino;
    let sub = fs.mkdir(cx, dir, b"sub", 0o700)?.ino;
    let one = fs.lookup(cx, root, b"one")?.ino;
    fs.symlink(cx, sub, b"link", &[b'x'; 200])?;
    fs.mknod(cx, Name::new(sub, b"pipe"), FileType::Fifo, 0o666, 0)?;
    for n in 0..60 {
        fs.link(
            cx,
            one,
            dir,
            format!("{n:0>width$}", width = 2 + n).as_bytes(),
        )?;
    }
    fs.sync()
}

fn image(is_clean: bool) -> Vec<u8> {
    let pm = Arc::new(MemoryPmem::new(LEN));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let fs = crate::open(Arc::clone(&pm), options(Mode::InPlace)).unwrap();
    fill(&fs).unwrap();
    if is_clean {
        fs.close().unwrap();
    }
    let mut bytes = vec![0; LEN as usize];
    pm.read(0, &mut bytes).unwrap();
    bytes
}

fn word(image: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(image[at as usize..][..8].try_into().unwrap())
}

/// The places of words that are not zero, without the most of data.
fn places(image: &[u8]) -> Vec<u64> {
    let words = (0..LEN).step_by(8).filter(|at| word(image, *at) != 0);
    let words =
        words.filter(|at| at % 4096 < HEAD * 8 || word(image, *at) != u64::from_le_bytes([7; 8]));
    words.collect()
}

/// Another value for a word.
fn value(rng: &mut Rng, image: &[u8], places: &[u64], old: u64) -> u64 {
    match rng.u32(..8) {
        0 => 0,
        1 => u64::MAX,
        2 => old.wrapping_add(1),
        3 => old.wrapping_sub(1),
        4 => old ^ 1 << rng.u32(..64),
        5 => old << rng.u32(1..16),
        6 => rng.u64(..LEN / 64),
        _ => word(image, places[rng.usize(..places.len())]),
    }
}

/// Checks, repairs, opens and uses an image.
fn judge(image: &[u8], mode: Mode) {
    let filled = |budget| {
        let pm = MemoryPmem::new(LEN);
        pm.store_nt(0, image);
        Arc::new(Budget::new(pm, budget))
    };
    let report = check(&*filled(CHECK_BUDGET));
    if report.worst() != Some(Severity::Corrupt) {
        let (left, _) = repair(&*filled(20 * CHECK_BUDGET), None).unwrap();
        assert!(left.is_clean(), "after a repair: {}", left.findings[0]);
    }
    let pm = filled(USE_BUDGET);
    let Ok(fs) = crate::open(Arc::clone(&pm), options(mode)) else {
        assert!(!report.is_clean(), "refused, but the check is clean");
        return;
    };
    workload::run(&fs);
    let closed = fs.close();
    drop(fs);
    if report.worst() != Some(Severity::Corrupt) {
        closed.unwrap();
        let after = check(&*pm);
        let worst = after
            .findings
            .iter()
            .find(|f| f.severity == Severity::Corrupt);
        assert!(worst.is_none(), "after use: {}", worst.unwrap());
    }
}

#[test]
fn damage_is_an_error_and_not_a_crash() {
    let images = [image(true), image(false)];
    let mut failures = Vec::new();
    for case in 0..CASES {
        let mut rng = Rng::with_seed(case);
        let mut bytes = images[rng.usize(..2)].clone();
        let mode = Mode::ALL[rng.usize(..2)];
        let places = places(&bytes);
        for _ in 0..rng.u32(1..3) {
            let at = places[rng.usize(..places.len())];
            let new = value(&mut rng, &bytes, &places, word(&bytes, at));
            bytes[at as usize..][..8].copy_from_slice(&new.to_le_bytes());
        }
        if catch_unwind(AssertUnwindSafe(|| judge(&bytes, mode))).is_err() {
            failures.push(case);
        }
    }
    assert!(failures.is_empty(), "images {failures:?}");
}

/// Stores a word, for a medium whose file system was not unmounted.
type Damage = fn(&MemoryPmem, [Ino; 3]);

/// Structures that lead to themselves. The inodes are a file, a directory and a symbolic link.
const LOOPS: [(&str, Damage); 3] = [
    ("tree", |pm, [file, ..]| {
        let root = Line(file.0).word(inode::ROOT);
        let page = Root(pm.load(root).unwrap()).page().unwrap();
        (0..FANOUT).for_each(|index| pm.store_word(page.word(index), page.0));
        pm.store_word(root, Root::new(Some(page), MAX_HEIGHT).0);
    }),
    ("tables", |pm, [file, dir, _]| {
        let page = Root(pm.load(Line(file.0).word(inode::ROOT)).unwrap()).page();
        let (page, slot) = (page.unwrap(), Line(dir.0).word(inode::ROOT));
        let table = Link::table(page).0;
        (0..FANOUT).for_each(|index| pm.store_word(page.word(index), table));
        pm.store_word(slot, table);
    }),
    ("text", |pm, [.., link]| {
        let first = pm.load(Line(link.0).word(inode::ROOT)).unwrap();
        pm.store_word(Line(first).word(0), first);
        pm.store_word(Line(link.0).word(inode::SIZE), 1 << 50);
    }),
];

#[test]
fn structures_that_lead_to_themselves_end_a_mount_after_a_kill() {
    for (what, damage) in LOOPS {
        let pm = MemoryPmem::new(LEN);
        mkfs(&pm, &MkfsOptions::default()).unwrap();
        let pm = Arc::new(pm);
        let fs = crate::open(Arc::clone(&pm), options(Mode::InPlace)).unwrap();
        let (cx, root) = (&Ctx::root(), Ino::ROOT);
        let file = fs.create(cx, root, b"file", 0o644).unwrap().ino;
        fs.write(cx, file, 0, &[7; 100]).unwrap();
        let dir = fs.mkdir(cx, root, b"dir", 0o755).unwrap().ino;
        let link = fs.symlink(cx, root, b"link", &[b'x'; 200]).unwrap().ino;
        fs.sync().unwrap();
        // As after a kill: it is not unmounted.
        drop(fs);
        damage(&pm, [file, dir, link]);
        let budget = || Budget::new(MemoryPmem::copy_of(&*pm).unwrap(), USE_BUDGET);
        let report = check(&budget());
        assert_eq!(report.worst(), Some(Severity::Corrupt), "{what}");
        let opened = crate::open(Arc::new(budget()), options(Mode::InPlace));
        assert!(opened.is_err(), "{what}");
    }
}

/// A new inode gets the line of one that is in memory, since the bitmap has lost its bit.
#[test]
fn a_line_that_is_free_and_named_can_be_taken() {
    let pm = Arc::new(MemoryPmem::new(LEN));
    mkfs(&*pm, &MkfsOptions::default()).unwrap();
    let (cx, root) = (&Ctx::root(), Ino::ROOT);
    let made = crate::open(Arc::clone(&pm), options(Mode::default())).unwrap();
    let named = made.create(cx, root, b"named", 0o644).unwrap().ino;
    made.close().unwrap();
    let bits = bitmap_word(Page(named.0 / 64));
    let word = pm.load(bits).unwrap();
    pm.store_word(bits, word & !(1 << (named.0 % 64)));
    let fs = crate::open(Arc::clone(&pm), options(Mode::default())).unwrap();
    assert_eq!(fs.lookup(cx, root, b"named").unwrap().ino, named);
    let mut new = (0..64).map(|n| fs.create(cx, root, format!("{n}").as_bytes(), 0o600));
    assert!(new.any(|made| made.unwrap().ino == named), "nobody took it");
    fs.forget(named, 2);
    let _ = (fs.unlink(cx, root, b"named"), fs.sync());
}

/// A slot of a directory with a table that leads to a dentry.
fn slot_with_dentry(pm: &MemoryPmem, dir: Ino) -> u64 {
    let first = Link(pm.load(Line(dir.0).word(inode::ROOT)).unwrap());
    let table = first.as_table().expect("many names need a table");
    let mut slots = (0..FANOUT).map(|index| table.word(index));
    slots.find(|at| pm.load(*at).unwrap() != 0).unwrap()
}

fn flip(pm: &MemoryPmem, at: u64, bits: u64) {
    pm.store_word(at, pm.load(at).unwrap() ^ bits);
}

/// The first and the last bit of the hash in a link.
const TAG_ENDS: [u64; 2] = [1 << 63, 1 << 37];

/// Damage that a repair of leaks would make worse. The inodes are the root, a directory with many names,
/// and one in it.
const NO_LEAKS: [(&str, Damage); 5] = [
    ("head, first bit", |pm, [_, dir, _]| {
        flip(pm, slot_with_dentry(pm, dir), TAG_ENDS[0]);
    }),
    ("head, last bit", |pm, [_, dir, _]| {
        flip(pm, slot_with_dentry(pm, dir), TAG_ENDS[1]);
    }),
    ("end of a chain", |pm, [_, dir, _]| {
        let link = Link(pm.load(slot_with_dentry(pm, dir)).unwrap());
        let line = Line(link.0 & ((1 << 36) - 1));
        pm.store_word(line.word(dentry::NEXT), line.0);
    }),
    ("root", |pm, [root, _, inner]| {
        // The dentry of a directory comes after its inode.
        let at = Line(inner.0 + 1).word(dentry::INODE);
        flip(pm, at, inner.0 ^ root.0);
        flip(pm, Line(root.0).word(inode::MODE), 3 << 32 ^ 4 << 32);
    }),
    ("count", |pm, [_, dir, _]| {
        flip(pm, Line(dir.0).word(inode::MODE), 3 << 32 ^ 2 << 32);
    }),
];

#[test]
fn damage_is_not_taken_for_a_leak() {
    for (what, damage) in NO_LEAKS {
        let pm = Arc::new(MemoryPmem::new(LEN));
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let (cx, root) = (&Ctx::root(), Ino::ROOT);
        let fs = crate::open(Arc::clone(&pm), options(Mode::default())).unwrap();
        let dir = fs.mkdir(cx, root, b"dir", 0o755).unwrap().ino;
        let inner = fs.mkdir(cx, dir, b"inner", 0o755).unwrap().ino;
        let names: Vec<_> = (0..100).map(|n| format!("{n}").into_bytes()).collect();
        for name in &names {
            fs.create(cx, dir, name, 0o644).unwrap();
        }
        fs.close().unwrap();
        drop(fs);
        damage(&pm, [root, dir, inner]);
        let report = check(&*pm);
        assert_eq!(report.worst(), Some(Severity::Corrupt), "{what}");
        let before = MemoryPmem::copy_of(&*pm).unwrap();
        repair(&*pm, None).unwrap();
        let is_same = |at| pm.load(at).unwrap() == before.load(at).unwrap();
        assert!((0..LEN).step_by(8).all(is_same), "{what}: a repair wrote");
        // Names are not lost in silence.
        if what == "head, first bit" {
            let fs = crate::open(Arc::clone(&pm), options(Mode::default())).unwrap();
            let mut found = names.iter().map(|name| fs.lookup(cx, dir, name));
            assert!(
                found.all(|f| !matches!(f, Err(vfs::Errno::NOENT))),
                "{what}"
            );
        }
    }
}

/// Each node of a tree has the next one in all of its entries.
#[test]
fn a_tree_that_reaches_its_pages_again_and_again_is_an_error() {
    for has_data in [false, true] {
        let pm = Arc::new(Budget::new(MemoryPmem::new(LEN), USE_BUDGET));
        mkfs(&*pm, &MkfsOptions::default()).unwrap();
        let fs = crate::open(Arc::clone(&pm), options(Mode::default())).unwrap();
        let (cx, root) = (&Ctx::root(), Ino::ROOT);
        let file = fs.create(cx, root, b"file", 0o644).unwrap().ino;
        fs.write(cx, file, 1 << 40, b"data").unwrap();
        fs.close().unwrap();
        drop(fs);
        let tree = Root(pm.load(Line(file.0).word(inode::ROOT)).unwrap());
        let mut node = tree.page().unwrap();
        for height in (1..=tree.height()).rev() {
            let mut entries = (0..FANOUT).map(|index| pm.load(node.word(index)).unwrap());
            let next = entries.find(|entry| *entry != 0).unwrap();
            let entry = if height > 1 || has_data { next } else { 0 };
            (0..FANOUT).for_each(|index| pm.store_word(node.word(index), entry));
            node = Page(next);
        }
        let fs = crate::open(Arc::clone(&pm), options(Mode::default())).unwrap();
        let file = fs.lookup(cx, root, b"file").unwrap().ino;
        let damaged = match has_data {
            false => fs.seek(cx, file, 0, SeekKind::Data).map(drop),
            true => fs.truncate(cx, file, 4096),
        };
        assert_eq!(damaged, Err(Errno::UCLEAN), "{has_data}");
    }
}

/// A mount would hand out the page.
#[test]
fn a_reserved_page_that_is_marked_as_free_is_found() {
    for page in 0..2 {
        let pm = MemoryPmem::new(LEN);
        pm.store_nt(0, &image(true));
        pm.store_word(bitmap_word(Page(page)), 0);
        assert!(!check(&pm).is_clean(), "page {page}");
    }
}

#[test]
fn an_image_that_lacks_its_last_bytes_is_refused() {
    let pm = MemoryPmem::new(2 * LEN);
    mkfs(&pm, &MkfsOptions::default()).unwrap();
    let mut bytes = vec![0; 2 * LEN as usize];
    pm.read(0, &mut bytes).unwrap();
    for less in [64, PAGE] {
        bytes.truncate((2 * LEN - less) as usize);
        let pm = MemoryPmem::new(bytes.len() as u64);
        pm.store_nt(0, &bytes);
        let opened = crate::open(Arc::new(pm), options(Mode::InPlace));
        assert!(matches!(opened, Err(Error::Size { .. })), "{less}");
    }
}
