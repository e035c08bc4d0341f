//! Damage of one structure at a time in the files of a directory, and the findings of the checker.

use crate::image::*;
use medium::{MemoryPmem, Pmem};
use mnemosyne::memory::{
    BASE_ROOT, Backing, Directory, DirectoryOptions, DurableMemory, Finding, Flat, Inspection,
    MemoryError, Report, check, check_regions, repair,
};
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::TempDir;
use wordlog::{Kind, Unrecovered};

pub type Files = BTreeMap<String, Vec<u8>>;

pub const SYSTEM: &str = "regions";
pub const HEAP_FILE: &str = "region-0000";
pub const LOG_FILE: &str = "region-0001";
pub const STATICS_FILE: &str = "region-0002";

pub fn open_directory(path: &Path) -> Result<DurableMemory<Directory>, MemoryError> {
    let options = DirectoryOptions {
        bytes: 1 << 30,
        layout: layout(2 << 20),
        ..DirectoryOptions::default()
    };
    let directory = Directory::open(path, &options)?;
    let arena = directory.arena().clone();
    DurableMemory::open(directory, arena, crate::image::options())
}

pub fn sound() -> Files {
    let dir = tempfile::tempdir().unwrap();
    fill(&open_directory(dir.path()).unwrap());
    leave_records(&open_directory(dir.path()).unwrap());
    contents(dir.path())
}

pub fn contents(path: &Path) -> Files {
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, std::fs::read(entry.path()).unwrap())
    };
    std::fs::read_dir(path).unwrap().map(read).collect()
}

fn word(files: &Files, file: &str, at: u64) -> u64 {
    let bytes = &files[file][at as usize..][..8];
    u64::from_le_bytes(bytes.try_into().unwrap())
}

pub fn set(files: &mut Files, file: &str, at: u64, word: u64) {
    let bytes = files.get_mut(file).unwrap();
    bytes[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
}

/// Sets the right checksum of a slot.
fn seal_slot(files: &mut Files, slot: u64) {
    let at = TABLE + slot * 64;
    let crc = slot_checksum(slot, &files[SYSTEM][at as usize..][..32]);
    set(files, SYSTEM, at + 32, crc);
}

/// Gives a root this name, and sets the right checksum.
pub fn name_root(files: &mut Files, root: u64, name: &[u8]) {
    let at = (ROOT + root * 128) as usize;
    let line = &mut files.get_mut(SYSTEM).unwrap()[at..][..128];
    line[24..24 + name.len()].copy_from_slice(name);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&line[..16]), name);
    let word = sealed(name.len() as u64 | u64::from(crc) << 24);
    line[16..24].copy_from_slice(&word.to_le_bytes());
}

/// Sets the offset of a root whose name has three bytes.
pub fn point_root(files: &mut Files, root: u64, off: u64) {
    set(files, SYSTEM, ROOT + root * 128 + 8, off);
    name_root(files, root, b"two");
}

/// Sets the right checksum of the system region's first line.
fn seal(files: &mut Files) {
    let crc = crc32c::crc32c(&files[SYSTEM][..40]);
    set(files, SYSTEM, 40, crc.into());
}

/// Uses a log in a file as its owner would.
pub fn with_log(files: &mut Files, file: &str, start: u64, change: impl FnOnce(&MemoryPmem)) {
    let bytes = files.get_mut(file).unwrap();
    let pm = MemoryPmem::new(bytes.len() as u64);
    pm.store(0, bytes);
    assert!(Unrecovered::open(&pm, start).is_ok());
    change(&pm);
    pm.read(0, bytes).unwrap();
}

pub fn append(files: &mut Files, file: &str, start: u64, record: &[u64]) {
    with_log(files, file, start, |pm| {
        let (mut log, _) = Unrecovered::open(pm, start).unwrap().keep().unwrap();
        log.append(record).unwrap();
        log.flush().unwrap();
    });
}

/// The offset of a page's descriptor in the file of the heap.
pub fn descriptor(page: u64) -> u64 {
    64 * (1 + page)
}

/// The result of opening the damaged directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opening {
    Refuses,
    /// Opening does not read the damaged structure. Its use is an error, or has no effect.
    Accepts,
}
use Opening::{Accepts, Refuses};

/// Damages the files of a sound directory.
pub type Change = Box<dyn Fn(&mut Files)>;

pub struct Case {
    pub invariant: &'static str,
    file: &'static str,
    offset: u64,
    opening: Opening,
    pub change: Change,
}

fn case(
    invariant: &'static str,
    file: &'static str,
    offset: u64,
    opening: Opening,
    change: impl Fn(&mut Files) + 'static,
) -> Case {
    let change = Box::new(change);
    Case {
        invariant,
        file,
        offset,
        opening,
        change,
    }
}

/// A word with a value that it must not have.
fn is(
    invariant: &'static str,
    file: &'static str,
    (offset, at): (u64, u64),
    opening: Opening,
    value: u64,
) -> Case {
    case(invariant, file, offset, opening, move |files| {
        set(files, file, at, value);
    })
}

pub fn system_cases() -> Vec<Case> {
    let mut cases = vec![
        is("M1", SYSTEM, (0, 0), Refuses, 0),
        is("M1", SYSTEM, (0, 16), Refuses, 4 << 20),
        case("M1", SYSTEM, 0, Refuses, |files| {
            set(files, SYSTEM, 16, 4096);
            seal(files);
        }),
        case("M1", SYSTEM, 0, Refuses, |files| {
            let bytes = files.get_mut(SYSTEM).unwrap();
            bytes.truncate(bytes.len() - 4096);
        }),
        case("M3", SYSTEM, TABLE + 64, Refuses, |files| {
            let start = word(files, SYSTEM, TABLE + 8);
            set(files, SYSTEM, TABLE + 64 + 8, start);
            seal_slot(files, 1);
        }),
        case("M4", LOG_FILE, 0, Refuses, |files| {
            files.remove(LOG_FILE);
        }),
        case("M4", HEAP_FILE, 0, Refuses, |files| {
            files.get_mut(HEAP_FILE).unwrap().truncate(4096);
        }),
        case("M5", "region-0005", 0, Accepts, |files| {
            files.insert("region-0005".into(), vec![0; 4096]);
        }),
        case("M5", LOG_FILE, 0, Accepts, |files| {
            files.get_mut(SYSTEM).unwrap()[TABLE as usize + 64..][..40].fill(0);
        }),
    ];
    let (slot, root) = (TABLE + 64, ROOT + 128);
    for (at, value) in [
        (0, 0x204),
        (0, 0x402),
        (0, 2),
        (8, 4096),
        (8, 1),
        (8, 1 << 40),
        (16, 0),
        (16, 100),
        (16, u64::MAX - 4095),
    ] {
        cases.push(is("M2", SYSTEM, (slot, slot + at), Refuses, value));
        cases.push(case("M2", SYSTEM, slot, Refuses, move |files| {
            set(files, SYSTEM, slot + at, value);
            seal_slot(files, 1);
        }));
    }
    cases.push(is("M6", SYSTEM, (root, root), Accepts, 1));
    cases.push(is("M6", SYSTEM, (root, root + 16), Accepts, sealed(105)));
    cases.push(is("M6", SYSTEM, (root, root + 24), Accepts, 0xff));
    for name in [&b"one"[..], b"\xff"] {
        cases.push(case("M6", SYSTEM, root, Accepts, move |files| {
            name_root(files, 1, name);
        }));
    }
    for off in [3 * 8192, 1 << 29, 2 << 20] {
        cases.push(case("M16", SYSTEM, root, Accepts, move |files| {
            point_root(files, 1, off);
        }));
    }
    cases
}

/// Damage of logs and of their records.
pub fn log_cases() -> impl Iterator<Item = Case> {
    log_header_cases().into_iter().chain(record_cases())
}

fn log_header_cases() -> Vec<Case> {
    let second = log_start(1);
    vec![
        is("M7", SYSTEM, (AREA, AREA), Refuses, 0),
        is("M7", SYSTEM, (AREA, AREA + 8), Refuses, 0),
        is("M7", SYSTEM, (AREA, AREA + 8), Refuses, 4),
        is("M7", SYSTEM, (AREA, AREA + 8), Refuses, sealed(4)),
        is(
            "M7",
            SYSTEM,
            (AREA, AREA + 16),
            Refuses,
            sealed(LOG_BYTES + 8),
        ),
        is("M7", SYSTEM, (AREA, AREA + 24), Refuses, 1),
        is(
            "M7",
            SYSTEM,
            (AREA, AREA + 24),
            Refuses,
            sealed((1 << 62) + 1),
        ),
        case("M8", SYSTEM, second, Refuses, move |files| {
            with_log(files, SYSTEM, second, |pm| {
                wordlog::format(pm, second, LOG_BYTES, Kind::Base).unwrap();
            });
        }),
        case("M8", SYSTEM, second, Refuses, move |files| {
            with_log(files, SYSTEM, second, |pm| {
                wordlog::format(pm, second, LOG_BYTES - 64, Kind::TornBit).unwrap();
            });
        }),
        is("M9", SYSTEM, (second, second), Refuses, 0),
        is("M9", SYSTEM, (second, second + 8), Refuses, sealed(2)),
        is("M9", SYSTEM, (second, second + 8), Refuses, 1),
        is("M9", SYSTEM, (second, second + 16), Refuses, sealed(7)),
        is(
            "M9",
            SYSTEM,
            (second, second + 16),
            Refuses,
            sealed((1 << 62) - 8),
        ),
        is("M9", SYSTEM, (second, second + 24), Refuses, 8),
        is("M9", SYSTEM, (second, second + 24), Refuses, sealed(4)),
        is(
            "M9",
            SYSTEM,
            (second, second + 24),
            Refuses,
            sealed((1 << 62) + 8),
        ),
    ]
}

fn record_cases() -> Vec<Case> {
    let [first, second] = [0, 1].map(log_start);
    // The first record in the ring, which begins where recovery emptied the logs.
    let mut cases = vec![case("M10", SYSTEM, 0, Refuses, move |files| {
        let at = first_record(files, first);
        let flipped = word(files, SYSTEM, at + 24) ^ 1 << 7;
        set(files, SYSTEM, at + 24, flipped);
    })];
    let stamp = 1 << 40;
    for record in [
        vec![],
        vec![stamp, 5 << 16],
        vec![stamp, 5 << 16 | 3, 1, 2],
        vec![stamp, (1 << 47) << 16 | 1, 1],
        vec![stamp, (AREA / 8) << 16 | 1, 1],
        vec![1, 100 << 16 | 1, 1],
        vec![u64::MAX, 100 << 16 | 1, 1],
    ] {
        cases.push(case("M11", SYSTEM, 0, Refuses, move |files| {
            append(files, SYSTEM, first, &record);
        }));
    }
    cases.push(case("M11", SYSTEM, 0, Refuses, move |files| {
        for log in [first, second] {
            append(files, SYSTEM, log, &[stamp, (1 << 20) << 16 | 1, 1]);
        }
    }));
    for overflow in OVERFLOWS {
        cases.push(case("M11", SYSTEM, 0, Refuses, move |files| {
            leave_overflow(files, overflow);
        }));
    }
    // Two records with the same overflow, and one whose overflow is a part of another's.
    for at in [FREE_PAGE, FREE_PAGE + 8] {
        cases.push(case("M11", SYSTEM, 0, Refuses, move |files| {
            leave_overflow(files, SOUND);
            let crc = crc32c::crc32c(&files[HEAP_FILE][at as usize..][..16]);
            let off = word(files, SYSTEM, TABLE + 8) + at;
            let record = [stamp + 1, (off / 8) << 16, 2, crc.into()];
            append(files, SYSTEM, second, &record);
        }));
    }
    cases
}

/// A record of an overflow in the heap, and the words in that overflow.
#[derive(Clone, Copy)]
struct Damaged {
    /// The offset in the file of the heap that the record has.
    at: u64,
    /// The number of words that the record has, and the bits to flip in their CRC.
    words: u64,
    crc: u64,
    /// The words in the overflow: runs.
    runs: &'static [u64],
}

/// A page that is free.
const FREE_PAGE: u64 = 6 * 8192;

/// A sound overflow: two runs of a small block.
const SOUND: Damaged = Damaged {
    at: FREE_PAGE,
    words: 4,
    crc: 0,
    runs: &[IN_BLOCK | 1, 70, (IN_BLOCK + (1 << 16)) | 1, 71],
};

/// The head of a run of the word at byte 16 of the first page of the heap, without its length.
const IN_BLOCK: u64 = (((2 << 20) + 8192 + 16) / 8) << 16;

const OVERFLOWS: [Damaged; 11] = [
    Damaged { crc: 1, ..SOUND },
    Damaged { words: 3, ..SOUND },
    Damaged { words: 0, ..SOUND },
    Damaged {
        words: 1 << 40,
        ..SOUND
    },
    Damaged {
        words: 1 << 61,
        ..SOUND
    },
    Damaged {
        words: u64::MAX,
        ..SOUND
    },
    Damaged {
        at: 1 << 22,
        ..SOUND
    },
    Damaged {
        at: 1 << 40,
        ..SOUND
    },
    // Runs of the logs, of the region table, and of an overflow.
    Damaged {
        runs: &[(AREA / 8) << 16 | 1, 1, IN_BLOCK | 1, 1],
        ..SOUND
    },
    Damaged {
        runs: &[(TABLE / 8) << 16 | 1, 1, IN_BLOCK | 1, 1],
        ..SOUND
    },
    Damaged {
        runs: &[IN_BLOCK, 1, 0, 0],
        ..SOUND
    },
];

/// Appends such a record to the first log.
fn leave_overflow(files: &mut Files, overflow: Damaged) {
    let start = word(files, SYSTEM, TABLE + 8);
    let runs: Vec<u8> = overflow
        .runs
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    files.get_mut(HEAP_FILE).unwrap()[FREE_PAGE as usize..][..runs.len()].copy_from_slice(&runs);
    let crc = u64::from(crc32c::crc32c(&runs)) ^ overflow.crc;
    let part = ((start + overflow.at) / 8) << 16;
    append(
        files,
        SYSTEM,
        log_start(0),
        &[1 << 40, part, overflow.words, crc],
    );
}

/// The offset of the first record of a log in the system region.
fn first_record(files: &Files, start: u64) -> u64 {
    let value = |at| word(files, SYSTEM, start + at) & !(1 << 63);
    let (words, head) = (value(16), value(24));
    start + 64 + head % words * 8
}

pub fn region_cases() -> Vec<Case> {
    let mut cases = vec![
        is("M12", HEAP_FILE, (0, 0), Refuses, 0),
        is("M12", HEAP_FILE, (0, 8), Refuses, 0),
        is("M12", HEAP_FILE, (0, 8), Refuses, 1),
        is("M12", HEAP_FILE, (0, 8), Refuses, sealed(8)),
        is("M14", STATICS_FILE, (0, 0), Accepts, 1),
        is("M14", STATICS_FILE, (0, 16), Accepts, 16),
        is("M14", STATICS_FILE, (0, 40), Accepts, 2),
        is("M9", LOG_FILE, (0, 8), Accepts, sealed(2)),
        is("M9", LOG_FILE, (0, 16), Accepts, sealed(1 << 12)),
        is("M10", LOG_FILE, (64, 64 + 16), Accepts, 0),
        case("M15", LOG_FILE, 64 + 3 * 64, Accepts, |files| {
            append(files, LOG_FILE, 0, &[100, 0]);
        }),
        case("M15", LOG_FILE, 64 + 3 * 64, Accepts, |files| {
            append(files, LOG_FILE, 0, &[]);
        }),
    ];
    // The tag of a region of variables is in the table.
    cases.push(case("M14", STATICS_FILE, 0, Accepts, |files| {
        set(files, SYSTEM, TABLE + 2 * 64 + 24, 1);
        seal_slot(files, 2);
    }));
    // Pages: the small block, three of the large one, a freed one, and free ones.
    for (page, at, value) in [
        (0, 0, 3),
        (0, 0, 1 | 24 << 8),
        (0, 8 + 2 * 8, 1 << 10),
        (1, 0, 2),
        (1, 0, 2 | 1 << 20),
        (1, 0, 2 | 1 << 60),
        (1, 8, 1),
        (2, 16, 1),
        (2, 0, 2 | 1 << 8),
        (5, 56, 1 << 62),
    ] {
        let at = descriptor(page) + at;
        cases.push(is(
            "M13",
            HEAP_FILE,
            (descriptor(page), at),
            Accepts,
            sealed(value),
        ));
    }
    let first = descriptor(0);
    cases.push(is("M13", HEAP_FILE, (first, first), Accepts, 0));
    cases.push(is("M13", HEAP_FILE, (first, first + 8), Accepts, 1));
    cases
}

pub fn written(files: &Files) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

fn examine(cases: &[Case]) {
    let sound = sound();
    cases.iter().for_each(|case| examine_one(&sound, case));
}

fn examine_one(sound: &Files, case: &Case) {
    let mut files = sound.clone();
    (case.change)(&mut files);
    assert!(files != *sound, "{}: nothing was changed", case.invariant);
    let dir = written(&files);
    let report = check(dir.path()).unwrap();
    let expected = |finding: &Finding| {
        let is_there = case.offset == 0 || finding.offset == case.offset;
        finding.invariant == case.invariant && finding.file == case.file && is_there
    };
    let Case {
        invariant,
        file,
        offset,
        ..
    } = case;
    let findings = &report.findings;
    assert!(
        findings.iter().any(expected),
        "{invariant} in {file} at {offset:#x}: {findings:#?}"
    );
    assert!(
        findings.iter().all(|finding| !finding.way_out.is_empty()),
        "{findings:?}"
    );
    let opened = open_directory(dir.path()).map(drop);
    let is_refused = case.opening == Refuses;
    assert_eq!(opened.is_err(), is_refused, "{findings:#?}: {opened:?}");
}

#[test]
fn a_sound_directory_has_no_findings() {
    let files = sound();
    let dir = written(&files);
    let report = check(dir.path()).unwrap();
    assert!(report.is_clean() && !report.is_partial, "{report:#?}");
    for (name, bytes) in &files {
        assert!(std::fs::read(dir.path().join(name)).unwrap() == *bytes);
    }
}

/// A crash leaves a record with an overflow. It is replayed, and the directory is sound.
#[test]
fn an_overflow_that_is_sound_is_replayed() {
    let mut files = sound();
    leave_overflow(&mut files, SOUND);
    let dir = written(&files);
    let report = check(dir.path()).unwrap();
    assert!(report.is_clean() && !report.is_partial, "{report:#?}");
    assert_eq!(repair(dir.path(), true).unwrap(), []);
    let inspection = Inspection::open(dir.path()).unwrap();
    let blocks = inspection.blocks(0).unwrap().len();
    drop(inspection);
    let memory = open_directory(dir.path()).unwrap();
    let words = run(&mut memory.session(), |tx| {
        let (_, at) = tx.root("one")?.unwrap();
        Ok([tx.load(at + 16)?, tx.load(at + 24)?])
    });
    assert_eq!(words, [70, 71]);
    // The page is free again.
    let segments = memory.heap().segments();
    let found = segments[0].blocks(memory.backing().pmem()).unwrap();
    assert_eq!(found.len(), blocks);
    assert_eq!(blocks, 2);
}

#[test]
fn damage_of_the_system_region_is_reported() {
    examine(&system_cases());
}

#[test]
fn damage_of_logs_is_reported() {
    examine(&log_cases().collect::<Vec<_>>());
}

#[test]
fn damage_of_regions_is_reported() {
    examine(&region_cases());
}

/// A repair lists its losses. Nothing changes before they are accepted. Everything else stays the
/// same.
#[test]
fn repair_lists_its_losses() {
    let sound = sound();
    let (root, first) = (ROOT + 128, log_start(0));
    let stamp = 1 << 40;
    let bits = descriptor(0) + 8;
    let changes: [(&str, &str, Change); 7] = [
        (
            "M6",
            "\"two\"",
            Box::new(move |f| set(f, SYSTEM, root + 8, 1)),
        ),
        ("M16", "\"two\"", Box::new(|f| point_root(f, 1, 1 << 29))),
        (
            "M13",
            "0x20",
            Box::new(move |f| set(f, HEAP_FILE, bits, 1 << 63)),
        ),
        ("M10", "their words", Box::new(damage_record)),
        (
            "M11",
            "their words",
            Box::new(move |f| append(f, SYSTEM, first, &[stamp, 5 << 16])),
        ),
        (
            "M11",
            "their words",
            Box::new(move |f| append(f, SYSTEM, first, &[stamp, (AREA / 8) << 16 | 1, 1])),
        ),
        (
            "M11",
            "their words",
            Box::new(|f| leave_overflow(f, Damaged { crc: 1, ..SOUND })),
        ),
    ];
    for (invariant, named, change) in changes {
        let mut files = sound.clone();
        change(&mut files);
        let dir = written(&files);
        let losses = repair(dir.path(), false).unwrap();
        assert_eq!(losses.len(), 1, "{losses:?}");
        assert_eq!(losses[0].invariant, invariant);
        assert!(losses[0].what.contains(named), "{losses:?}");
        for (name, bytes) in &files {
            assert!(std::fs::read(dir.path().join(name)).unwrap() == *bytes);
        }
        assert_eq!(repair(dir.path(), true).unwrap(), losses);
        assert!(check(dir.path()).unwrap().is_clean());
        assert_eq!(repair(dir.path(), true).unwrap(), []);
        let memory = open_directory(dir.path()).unwrap();
        let roots = run(&mut memory.session(), |tx| {
            Ok([tx.root("one")?, tx.root("two")?])
        });
        assert!(roots[0].is_some());
        assert_eq!(roots[1].is_none(), ["M6", "M16"].contains(&invariant));
        // Blocks in use stay allocated, and there is room for more.
        let made = run(&mut memory.session(), |tx| tx.alloc(64));
        assert!(roots.iter().flatten().all(|(_, off)| *off != made));
    }
}

/// Flips a bit of the first record of the first log (M10).
pub fn damage_record(files: &mut Files) {
    let at = first_record(files, log_start(0));
    let flipped = word(files, SYSTEM, at + 24) ^ 1 << 7;
    set(files, SYSTEM, at + 24, flipped);
}

/// A crash of the machine does not prevent a repair: its losses are on the list.
#[test]
fn repair_lists_the_losses_of_a_crash_of_the_machine() {
    let mut files = sound();
    damage_record(&mut files);
    let note = b"selvedge boot 00000000-0000-0000-0000-000000000000\n";
    files.insert("boot".to_owned(), note.to_vec());
    let dir = written(&files);
    open_directory(dir.path()).err().unwrap();
    let found = check(dir.path()).unwrap().findings;
    let invariants: Vec<_> = found.iter().map(|finding| finding.invariant).collect();
    assert_eq!(invariants, ["M10", "boot"]);
    assert!(found[1].way_out.contains("--accept-loss"), "{}", found[1]);
    let losses = repair(dir.path(), false).unwrap();
    let invariants: Vec<_> = losses.iter().map(|loss| loss.invariant).collect();
    assert_eq!(invariants, ["boot", "M10"]);
    assert!(contents(dir.path()) == files, "something was changed");
    assert_eq!(repair(dir.path(), true).unwrap(), losses);
    assert!(!dir.path().join("boot").exists());
    assert!(check(dir.path()).unwrap().is_clean());
    drop(open_directory(dir.path()).unwrap());
}

#[test]
fn repair_rejects_damage_that_it_cannot_guess() {
    let sound = sound();
    let changes: [fn(&mut Files); 5] = [
        // The address of the memory: the root itself, and a damaged name of it.
        |f| {
            name_root(f, 1, BASE_ROOT.as_bytes());
        },
        |f| {
            name_root(f, 1, BASE_ROOT.as_bytes());
            set(f, SYSTEM, ROOT + 128 + 24, u64::from_le_bytes(*b"Selvedge"));
        },
        |f| set(f, SYSTEM, TABLE, 0x204),
        |f| set(f, SYSTEM, log_start(1), 0),
        |f| set(f, HEAP_FILE, descriptor(0), 3),
    ];
    for change in changes {
        let mut files = sound.clone();
        // A repair that is rejected must not give up anything.
        damage_record(&mut files);
        change(&mut files);
        let dir = written(&files);
        repair(dir.path(), true).unwrap_err();
        assert!(contents(dir.path()) == files, "something was changed");
    }
    let nothing = tempfile::tempdir().unwrap();
    let path = nothing.path().join("none");
    repair(&path, true).unwrap_err();
    assert!(!path.exists());
}

/// A list of findings has a maximum length, and records whether there were more.
#[test]
fn findings_are_bounded() {
    let pm = made();
    for (count, is_truncated) in [(Report::MAX_FINDINGS, false), (2000, true)] {
        let files: Vec<u64> = (100..).take(count).collect();
        let report = check_regions(&Flat(&pm), &files);
        assert_eq!(report.findings.len(), Report::MAX_FINDINGS);
        assert_eq!(report.is_truncated, is_truncated);
    }
}
