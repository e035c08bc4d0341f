//! Damaged images. Metadata is changed field by field, then the image is checked, dumped,
//! opened and used. None of these may panic, hang or take unbounded memory. An error names
//! the damaged structure.
//!
//! The checker and the mount scan judge each image independently. The checker must report
//! every image that the scan refuses. It may report an image that the scan accepts only by
//! the invariants in [`LENIENT`]. An image that both accept must stay sound through the
//! workload.

mod image;
mod workload;

use bpfs::format::{BLOCK, HeightAddr, LOG_BLOCKS, LOG_SLOT};
use bpfs::{Bpfs, Dump, Mode, check, dump};
use image::{Field, Image, Kind, LEN, Layout, commit_record, options, populated, seal};
use medium::{Budget, MemoryPmem, Pmem};
use std::panic::{AssertUnwindSafe, catch_unwind};
use vfs::FileSystem;

/// Invariants that a mount does not check, and why it may use the image all the same.
const LENIENT: [(&str, &str); 6] = [
    (
        "B2",
        "of the super block's copy, only the root is ever used",
    ),
    (
        "B9",
        "unknown bits of an inode are of no consequence to the maps",
    ),
    ("B15", "names are compared, never interpreted"),
    (
        "B16",
        "a symbolic link's contents are read by readlink, which fails alone",
    ),
    (
        "B17",
        "nothing reads the contents or number of what should have none",
    ),
    (
        "B18",
        "attributes are read by their calls, which fail alone",
    ),
];

/// Accesses to the medium that a check may take: a sound image takes a few hundred.
const CHECK_BUDGET: u64 = 50_000;
/// Accesses that opening and using an image may take.
const USE_BUDGET: u64 = 5_000_000;
/// Most memory that the whole run may have in use, in KiB.
const MEMORY_KIB: u64 = 256 << 10;
/// Most failures that one test lists.
const LISTED: usize = 30;

/// The result for an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The mount failed.
    Refused,
    /// The mount succeeded, and the checker reports damage.
    Tolerated,
    /// The image was sound, before and after use.
    Sound,
}

/// Checks, dumps, opens and uses an image.
fn judge(pm: MemoryPmem) -> Result<Verdict, String> {
    let pm = Budget::new(pm, CHECK_BUDGET);
    let report = check(&pm);
    for what in [Dump::Super, Dump::Path(b"/dir/sub/link".into())] {
        let _ = dump(&pm, &what, &mut std::io::sink());
    }
    for ino in 0..12 {
        let _ = dump(&pm, &Dump::Inode(ino), &mut std::io::sink());
    }
    let pm = Budget::new(pm.into_inner(), USE_BUDGET);
    let fs = match Bpfs::open(&pm as &dyn Pmem, options()) {
        Ok(fs) => fs,
        Err(_) if report.is_clean() => return Err("refused, but the check is clean".into()),
        Err(e) => return names_a_structure(&e.to_string()).map(|()| Verdict::Refused),
    };
    let strict = |f: &&vfs::check::Finding| LENIENT.iter().all(|(b, _)| *b != f.invariant);
    if let Some(finding) = report.findings.iter().find(strict) {
        return Err(format!("opened, but {finding}"));
    }
    workload::run(&fs);
    if !report.is_clean() {
        return Ok(Verdict::Tolerated);
    }
    if let Some(finding) = fs.audit().first() {
        return Err(format!("after use: {finding}"));
    }
    drop(fs);
    match check(&pm).findings.first() {
        Some(finding) => Err(format!("after use: {finding}")),
        None => Ok(Verdict::Sound),
    }
}

fn names_a_structure(error: &str) -> Result<(), String> {
    const STRUCTURES: [&str; 11] = [
        "super block",
        "signature",
        "version",
        "medium",
        "redo log",
        "inode",
        "directory",
        "block",
        "tree",
        "file size",
        "root",
    ];
    match STRUCTURES.iter().any(|s| error.contains(s)) {
        true => Ok(()),
        false => Err(format!("the error names no structure: {error}")),
    }
}

/// Collects the verdicts, and the failures, panics included.
#[derive(Default)]
struct Cases {
    verdicts: Vec<Verdict>,
    failures: Vec<String>,
}

impl Cases {
    fn case(&mut self, name: impl FnOnce() -> String, pm: MemoryPmem) {
        let result = catch_unwind(AssertUnwindSafe(|| judge(pm)));
        let why = match result {
            Ok(Ok(verdict)) => return self.verdicts.push(verdict),
            Ok(Err(why)) => why,
            Err(panic) => panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()))
                .unwrap_or_else(|| "panic".into()),
        };
        self.failures.push(format!("{}: {why}", name()));
    }

    /// Fails if a case failed, or if an expected verdict is missing.
    fn report(self, expected: &[Verdict]) {
        let shown = self.failures.iter().take(LISTED);
        let shown: String = shown.map(|f| format!("\n  {f}")).collect();
        assert!(
            self.failures.is_empty(),
            "{} images:{shown}",
            self.failures.len()
        );
        for verdict in expected {
            assert!(self.verdicts.contains(verdict), "no image is {verdict:?}");
        }
        let peak = peak_kib();
        assert!(peak < MEMORY_KIB, "{peak} KiB of memory were in use");
    }
}

/// The largest resident set so far (`VmHWM` in proc_pid_status(5)).
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let digits = line.and_then(|l| l.trim().strip_suffix(" kB"));
    digits.and_then(|d| d.trim().parse().ok()).expect("VmHWM")
}

/// Values for a field: 0, all ones, neighbours, limits, and blocks of other structures, as
/// numbers and as root pointers of several heights.
fn values(old: u64, field: &Field, layout: &Layout) -> Vec<u64> {
    let blocks = LEN / BLOCK;
    let mut values = vec![0, u64::MAX, 1 << 63];
    if field.kind != Kind::Free {
        values.extend([i64::MAX as u64, 1, 2, 16, 255, 272, 280, 4080, 4095, 4096]);
        values.extend([old.wrapping_add(1), old.wrapping_sub(1), !old, old << 1]);
        values.extend([old ^ 1 << 12, b'/'.into(), b'.'.into()]);
    }
    if field.width == 8 && field.kind != Kind::Free {
        values.extend((12..62).step_by(7).map(|bit| 1 << bit));
    }
    let limits = [blocks - 1, blocks, blocks + 1];
    let others = layout.blocks.iter().copied().chain(limits);
    match field.kind {
        Kind::Free | Kind::Number => {}
        Kind::Pointer => values.extend(others),
        Kind::Tree => {
            let old = HeightAddr(old);
            values.extend((0..8).map(|height| old.block().0 << 3 | height));
            for height in [0, u64::from(old.height()), 6] {
                values.extend(others.clone().map(|block| block << 3 | height));
            }
        }
    }
    let mask = u64::MAX >> (64 - 8 * field.width);
    values.iter_mut().for_each(|v| *v &= mask);
    values.sort_unstable();
    values.dedup();
    values.retain(|v| *v != old);
    values
}

fn every_field(mode: Mode) {
    let image = populated(mode);
    let layout = Layout::of(&image.copy());
    assert!(layout.fields.len() > 300, "{} fields", layout.fields.len());
    let mut cases = Cases::default();
    for field in &layout.fields {
        let old = field.load(&image.copy());
        for value in values(old, field, &layout) {
            for sealed in [false, true] {
                if sealed && !field.is_sealed() {
                    continue;
                }
                let pm = image.copy();
                field.store(&pm, value);
                if sealed {
                    seal(&pm);
                }
                let name = || format!("{mode}: {} = {value:#x} (sealed: {sealed})", field.name);
                cases.case(name, pm);
            }
        }
    }
    cases.report(&[Verdict::Refused, Verdict::Tolerated, Verdict::Sound]);
}

#[test]
fn every_field_takes_every_bad_value_in_mode_log() {
    every_field(Mode::Log);
}

#[test]
fn every_field_takes_every_bad_value_in_mode_sp() {
    every_field(Mode::Sp);
}

#[test]
fn several_fields_may_be_damaged_at_once() {
    let mut cases = Cases::default();
    for mode in Mode::ALL {
        let image = populated(mode);
        let layout = Layout::of(&image.copy());
        let mut rng = fastrand::Rng::with_seed(0x5eed ^ mode.to_string().len() as u64);
        for case in 0..200 {
            let pm = image.copy();
            let mut names = String::new();
            for _ in 0..rng.usize(1..6) {
                let field = &layout.fields[rng.usize(..layout.fields.len())];
                let old = field.load(&pm);
                let value = match rng.u8(..4) {
                    0 => rng.u64(..),
                    1 => old ^ 1 << rng.u32(..64),
                    2 => layout.fields[rng.usize(..layout.fields.len())].load(&pm),
                    _ => {
                        let all = values(old, field, &layout);
                        rng.choice(all).unwrap_or(0)
                    }
                };
                field.store(&pm, value);
                names += &format!("{} = {value:#x}; ", field.name);
            }
            if rng.bool() {
                seal(&pm);
            }
            cases.case(|| format!("{mode} case {case}: {names}"), pm);
        }
    }
    cases.report(&[Verdict::Refused, Verdict::Tolerated, Verdict::Sound]);
}

#[test]
fn damaged_log_records_are_refused() {
    let image = populated(Mode::Log);
    let end = LEN;
    let log_end = (2 + LOG_BLOCKS) * BLOCK;
    let addrs = [
        0,
        8,
        BLOCK,
        2 * BLOCK,
        log_end - 8,
        log_end,
        log_end + 3,
        end - 8,
        end,
        u64::MAX,
    ];
    let lens = [0, 1, 7, 8, 9, 4096, u64::MAX, u64::MAX - 7, 1 << 32];
    let mut cases = Cases::default();
    for slot in [0, LOG_BLOCKS * BLOCK / LOG_SLOT - 1] {
        for addr in addrs {
            for len in lens {
                for bytes in [0, 1, 8, 2024] {
                    let pm = image.copy();
                    commit_record(&pm, slot, addr, len, &vec![0xa5; bytes]);
                    let name = || format!("slot {slot}: {len} of {bytes} bytes at {addr}");
                    cases.case(name, pm);
                }
            }
        }
    }
    cases.report(&[Verdict::Refused]);
}

#[test]
fn the_check_of_a_sound_image_applies_the_log() {
    for mode in Mode::ALL {
        let image = populated(mode);
        assert_eq!(check(&image.copy()).findings, [], "mode {mode}");
        assert_eq!(judge(image.copy()), Ok(Verdict::Sound));
        // A record that would damage the inode of the root directory must be found before
        // replay.
        let layout = Layout::of(&image.copy());
        let root = layout.fields.iter().find(|f| f.name == "inode 1 mode");
        let pm = image.copy();
        commit_record(&pm, 3, root.expect("the root's mode").addr, 8, &[0xff; 8]);
        let findings = check(&pm).findings;
        assert!(findings.iter().any(|f| f.invariant == "B9"), "{findings:?}");
    }
}

/// Nested directories, as deep as the image has blocks: no recursion.
#[test]
fn a_deep_tree_of_directories_needs_no_stack() {
    let pm = MemoryPmem::new(16 << 20);
    bpfs::mkfs(&pm, &bpfs::MkfsOptions::default()).expect("mkfs");
    let fs = Bpfs::open(&pm as &dyn Pmem, options()).expect("open");
    let cx = vfs::Ctx::root();
    let mut dir = vfs::Ino::ROOT;
    let mut depth = 0;
    while let Ok(attr) = fs.mkdir(&cx, dir, b"d", 0o755) {
        dir = attr.ino;
        depth += 1;
    }
    assert!(depth > 3000, "{depth} directories");
    drop(fs);
    let small_stack = std::thread::Builder::new().stack_size(128 << 10);
    let examined = std::thread::scope(|scope| {
        let run = || {
            assert_eq!(check(&pm).findings, []);
            let fs = Bpfs::open(&pm as &dyn Pmem, options()).expect("open");
            assert_eq!(fs.audit(), []);
        };
        let thread = small_stack.spawn_scoped(scope, run);
        thread.expect("a thread").join()
    });
    assert!(examined.is_ok(), "it needs more stack than a tree is high");
}

#[test]
fn cut_off_media_are_refused() {
    let image = populated(Mode::Log);
    let whole = image.copy();
    for len in [0, 64, BLOCK, LEN / 2, LEN - BLOCK, LEN - 64] {
        let pm = MemoryPmem::new(len);
        let mut bytes = vec![0; len as usize];
        whole.read(0, &mut bytes).expect("memory");
        pm.store(0, &bytes);
        assert!(!check(&pm).is_clean(), "{len} bytes");
        assert!(
            Bpfs::open(&pm as &dyn Pmem, options()).is_err(),
            "{len} bytes"
        );
        assert!(
            dump(&pm, &Dump::Super, &mut std::io::sink()).is_err(),
            "{len} bytes"
        );
    }
}

#[test]
fn noise_is_refused() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut cases = Cases::default();
    let image: Image = populated(Mode::Log);
    let layout = Layout::of(&image.copy());
    for case in 0..300 {
        // Noise in whole metadata blocks, except the fixed part of the super block.
        let pm = image.copy();
        let block = layout.blocks[rng.usize(2..layout.blocks.len())];
        let mut noise = [0; BLOCK as usize];
        rng.fill(&mut noise);
        pm.store(block * BLOCK, &noise);
        cases.case(|| format!("case {case}: block {block}"), pm);
    }
    cases.report(&[Verdict::Refused]);
}
