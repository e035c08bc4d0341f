//! Random damage of several structures at once.

use crate::image::*;
use fastrand::Rng;
use medium::{Budget, LINE_BYTES, MemoryPmem, Overlay, Pmem};
use mnemosyne::memory::{
    DurableMemory, Flat, MemoryError, RegionKind, Report, Session, check_regions,
};
use mnemosyne::statics::Table;
use mnemosyne::tx::{Interrupted, Stop};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The maximum accesses of a check, and of opening and use.
const CHECK_BUDGET: u64 = 100_000;
const USE_BUDGET: u64 = 1_000_000;

/// The outcome for a damaged memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Verdict {
    Refused,
    /// It was opened, although the checker has findings.
    Tolerated,
    Sound,
}

fn check(pm: &MemoryPmem) -> Report {
    let overlay = Overlay::new(Budget::new(pm, CHECK_BUDGET));
    check_regions(&Flat(&overlay), &[])
}

/// Whether opening must detect the damage.
fn is_strict(report: &Report) -> bool {
    let mut findings = report.findings.iter();
    findings.any(|finding| match finding.invariant {
        "M5" | "M6" | "M13" | "M14" | "M15" | "M16" => false,
        "M9" | "M10" => finding.file == "regions",
        _ => true,
    })
}

fn judge(pm: &MemoryPmem) -> Result<Verdict, String> {
    let report = check(pm);
    let limited = Budget::new(pm, USE_BUDGET);
    match open(&limited) {
        Err(error) if report.is_clean() => return Err(format!("refused: {error}")),
        Err(_) => return Ok(Verdict::Refused),
        Ok(_) if is_strict(&report) => return Err(format!("opened: {:?}", report.findings)),
        Ok(memory) => exercise(&memory),
    }
    // Recovery after this use works, too.
    if let Ok(memory) = open(&limited) {
        exercise(&memory);
    }
    Ok(match report.is_clean() {
        true => Verdict::Sound,
        false => Verdict::Tolerated,
    })
}

type Memory<'a> = Flat<&'a Budget<&'a MemoryPmem>>;

/// Uses all structures. Errors are ignored.
fn exercise(memory: &DurableMemory<Memory<'_>>) {
    let pm = memory.backing().0;
    let mut session = memory.session();
    for name in ["one", "two", "three"] {
        let found = attempt(&mut session, |tx| tx.root(name));
        if let Some(Some((_, off))) = found {
            attempt(&mut session, |tx| {
                let next = tx.load(off)?;
                tx.store(off + 8, next)?;
                tx.store(off + 32, 1)
            });
            attempt(&mut session, |tx| tx.size_of(off));
            attempt(&mut session, |tx| tx.free(off));
        }
    }
    let mut blocks = Vec::new();
    for bytes in [8, 64, 100, 4096, 3 * 8192, 100_000] {
        blocks.extend(attempt(&mut session, |tx| {
            let off = tx.alloc(bytes)?;
            tx.fill(off, &vec![1; bytes as usize])?;
            tx.set_root("three", 9, off)?;
            Ok(off)
        }));
    }
    for off in blocks {
        attempt(&mut session, |tx| tx.free(off));
        attempt(&mut session, |tx| tx.free(off + 16));
    }
    attempt(&mut session, |tx| tx.remove_root("one"));
    drop(session);
    let regions: Result<_, MemoryError> = memory.regions();
    for region in regions.unwrap_or_default() {
        match region.kind {
            RegionKind::Heap => {}
            RegionKind::Static => drop(Table::read(&pm, &region)),
            RegionKind::Program => {
                if let Ok(mut log) = wordlog::Unrecovered::open(pm, region.start) {
                    let mut words = Vec::new();
                    while let Ok(Some(_)) = log.next(&mut words) {}
                }
            }
        }
        let _ = memory.unmap(region.start, |_| Ok(()));
    }
    let _ = memory.map(RegionKind::Program, 8192, 0, |_, _| Ok(()));
    let _ = memory.memory().truncate();
    for segment in memory.heap().segments() {
        let _ = segment.blocks(&pm);
    }
}

fn attempt<'a, T>(
    session: &mut Session<Memory<'a>>,
    mut body: impl FnMut(
        &mut mnemosyne::memory::Tx<'_, &'a Budget<&'a MemoryPmem>>,
    ) -> Result<T, Interrupted>,
) -> Option<T> {
    session.run(|tx| Ok::<_, Stop<()>>(body(tx)?)).ok()
}

/// The addresses of meaningful words, and of the words of their checksums.
fn words() -> Vec<u64> {
    let pm = made();
    let memory = open(&pm).unwrap();
    let heap = region(&memory, HEAP).start;
    let mut words: Vec<u64> = (0..6).map(|word| word * 8).collect();
    let lines = [
        TABLE,
        TABLE + 64,
        TABLE + 128,
        TABLE + 192,
        ROOT,
        ROOT + 128,
    ]
    .into_iter()
    .chain([AREA, log_start(0), log_start(1)])
    .chain((0..6).map(|page| heap + page * 64))
    .chain([region(&memory, LOG).start, region(&memory, STATICS).start]);
    words.extend(lines.flat_map(|line| (0..5).map(move |word| line + word * 8)));
    for log in 0..LOGS {
        words.extend((0..64).map(|word| log_start(log) + 64 + word * 8));
    }
    words
}

fn value(rng: &mut Rng, old: u64, words: &[u64], pm: &MemoryPmem) -> u64 {
    let near = [
        0,
        1,
        2,
        7,
        8,
        63,
        64,
        4096,
        8192,
        LEN,
        LEN - 8,
        1 << 31,
        1 << 48,
        u64::MAX >> 2,
        u64::MAX >> 1,
        u64::MAX,
    ];
    match rng.u8(..7) {
        0 => rng.u64(..),
        1 | 2 => old ^ 1 << rng.u8(..64),
        3 => old.wrapping_add(rng.u64(..17)).wrapping_sub(8),
        4 => pm.load(*rng.choice(words).unwrap()).unwrap(),
        5 => old.rotate_left(8),
        _ => *rng.choice(&near).unwrap(),
    }
}

/// Appends a whole record of random contents.
fn append(rng: &mut Rng, pm: &MemoryPmem) {
    let start = log_start(rng.u64(..LOGS));
    let Ok(halves) = wordlog::Unrecovered::open(pm, start).and_then(wordlog::Unrecovered::keep)
    else {
        return;
    };
    let (mut log, _) = halves;
    let mut record = vec![1000 + rng.u64(..8)];
    for _ in 0..rng.usize(..4) {
        let (at, count) = (rng.u64(..LEN / 8 + 64), rng.u64(..5));
        record.push(at << 16 | count);
        record.extend((0..count).map(|_| match rng.u8(..3) {
            0 => rng.u64(..),
            1 => rng.u64(..600),
            _ => 2 | rng.u64(..4) << 8,
        }));
    }
    if rng.u8(..8) == 0 {
        record.pop();
    }
    if log.append(&record).is_ok() {
        let _ = log.flush();
    }
}

fn damage_some(rng: &mut Rng, pm: &MemoryPmem, words: &[u64]) -> String {
    let mut damage = String::new();
    for _ in 0..rng.usize(1..5) {
        match rng.u8(..12) {
            0 => {
                append(rng, pm);
                damage += "a record; ";
            }
            1 => {
                let at = rng.u64(..LEN / LINE_BYTES) * LINE_BYTES;
                let mut noise = [0; LINE_BYTES as usize];
                rng.fill(&mut noise);
                pm.store(at, &noise);
                damage += &format!("noise at {at:#x}; ");
            }
            _ => {
                let at = *rng.choice(words).unwrap();
                let mut new = value(rng, pm.load(at).unwrap(), words, pm);
                if rng.bool() {
                    new = sealed(new & u64::MAX >> 1);
                }
                pm.store_word(at, new);
                damage += &format!("{at:#x} = {new:#x}; ");
            }
        }
    }
    // Set right checksums: otherwise opening would never read further.
    if rng.bool() {
        let mut head = [0; 40];
        pm.read(0, &mut head).unwrap();
        pm.store_word(40, crc32c::crc32c(&head).into());
        for slot in 0..SLOTS {
            let at = TABLE + slot * LINE_BYTES;
            if pm.load(at).unwrap() != 0 {
                let mut line = [0; 32];
                pm.read(at, &mut line).unwrap();
                pm.store_word(at + 32, slot_checksum(slot, &line));
            }
        }
    }
    damage
}

#[test]
fn any_damage_ends_in_an_error_or_an_answer() {
    let (sound, words) = (made(), words());
    assert_eq!(judge(&copy(&sound)), Ok(Verdict::Sound));
    let mut verdicts = std::collections::HashMap::new();
    for seed in 0..6000 {
        let mut rng = Rng::with_seed(seed);
        let pm = copy(&sound);
        let damage = damage_some(&mut rng, &pm, &words);
        let judged = catch_unwind(AssertUnwindSafe(|| judge(&pm)));
        match judged {
            Ok(Ok(verdict)) => *verdicts.entry(verdict).or_insert(0) += 1,
            Ok(Err(why)) => panic!("seed {seed}: {damage}: {why}"),
            Err(_) => panic!("seed {seed}: {damage}: it panicked"),
        }
    }
    println!("{verdicts:?}");
    for verdict in [Verdict::Refused, Verdict::Tolerated, Verdict::Sound] {
        assert!(verdicts.get(&verdict) > Some(&100), "{verdicts:?}");
    }
}

#[test]
fn noise_is_refused() {
    let mut rng = Rng::with_seed(1);
    for from in [0, 8, 4096, AREA, AREA + LINE_BYTES, log_start(1)] {
        let pm = copy(&made());
        let mut noise = vec![0; (LEN - from) as usize];
        rng.fill(&mut noise);
        pm.store(from, &noise);
        assert!(matches!(judge(&pm), Ok(Verdict::Refused)), "from {from:#x}");
    }
}
