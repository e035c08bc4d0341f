//! Each flipped bit is detected, or makes no difference.

use crate::image::*;
use fastrand::Rng;
use medium::{LINE_BYTES, MemoryPmem, Overlay, Pmem};
use mnemosyne::memory::{Flat, Region, check_regions};
use mnemosyne::tx::{Area, Options, Stop};
use std::convert::Infallible;
use wordlog::Kind;

const WORDS: u64 = 12;

/// Logs, with transactions of `WORDS` words after them. `before` are these words when the logs were
/// last truncated, `after` their current values.
struct Logs {
    pm: MemoryPmem,
    area: Area,
    before: Vec<u64>,
    after: Vec<u64>,
}

fn small() -> Options {
    Options {
        locks: 16,
        ..Options::default()
    }
}

fn words<P: Pmem>(pm: &P, area: &Area) -> Vec<u64> {
    let word = |n| pm.load(area.start + area.bytes() + n * 8).unwrap();
    (0..WORDS).map(word).collect()
}

fn logs(kind: Kind, logs: u64) -> Logs {
    let area = Area {
        start: 0,
        logs,
        log_bytes: 24 * LINE_BYTES,
        kind,
    };
    let pm = MemoryPmem::new(area.bytes() + WORDS * 8);
    area.format(&pm).unwrap();
    let mut rng = Rng::with_seed(logs);
    let memory = Area::recover(&pm, 0, small()).unwrap();
    let mut sessions: Vec<_> = (0..logs).map(|_| memory.session()).collect();
    let mut before = vec![];
    for round in 0..8_usize {
        if round == 4 {
            memory.truncate().unwrap();
            before = words(&pm, &area);
        }
        let session = &mut sessions[round % logs as usize];
        let committed = session.run(|tx| {
            for _ in 0..4 {
                let at = area.bytes() + rng.u64(..WORDS) * 8;
                tx.store(at, rng.u64(..))?;
            }
            Ok::<_, Stop<Infallible>>(())
        });
        committed.unwrap();
    }
    drop((sessions, memory));
    let after = words(&pm, &area);
    Logs {
        pm,
        area,
        before,
        after,
    }
}

#[test]
fn flipped_bits_of_logs_tear_no_transaction() {
    for kind in [Kind::TornBit, Kind::Base] {
        for number in [1, 2] {
            let Logs {
                pm,
                area,
                before,
                after,
            } = logs(kind, number);
            assert!(before != after);
            let mut detected = 0;
            for bit in 0..area.bytes() * 8 {
                let at = bit / 64 * 8;
                // The last stores may or may not have been durable.
                for is_home in [true, false] {
                    let pm = copy(&pm);
                    pm.store_word(at, pm.load(at).unwrap() ^ 1 << (bit % 64));
                    if !is_home {
                        let bytes: Vec<u8> = before.iter().flat_map(|w| w.to_le_bytes()).collect();
                        pm.store(area.bytes(), &bytes);
                    }
                    match Area::recover(&pm, 0, small()) {
                        Ok(_) => assert_eq!(words(&pm, &area), after, "{kind:?}: bit {bit}"),
                        Err(_) => detected += 1,
                    }
                }
            }
            assert!(detected > 4000, "{kind:?}, {number} logs: {detected}");
        }
    }
}

/// The state that a program finds.
#[derive(Debug, PartialEq)]
struct Found {
    regions: Vec<Region>,
    roots: Vec<(u64, u64)>,
    blocks: Vec<(u64, u64)>,
    words: Vec<u64>,
}

fn found(pm: &MemoryPmem) -> Option<Found> {
    let memory = open(pm).ok()?;
    let mut session = memory.session();
    let mut roots = vec![];
    for name in ["one", "two"] {
        let root = session.run(|tx| Ok::<_, Stop<()>>(tx.root(name)?));
        roots.push(root.ok()??);
    }
    let mut blocks = vec![];
    for segment in memory.heap().segments() {
        blocks.extend(segment.blocks(&pm).ok()?);
    }
    let words = (0..8).map(|word| pm.load(roots[0].1 + word * 8).unwrap());
    Some(Found {
        regions: memory.regions().ok()?,
        words: words.collect(),
        roots,
        blocks,
    })
}

#[test]
fn flipped_bits_of_tables_and_descriptors_are_detected_or_make_no_difference() {
    let sound = made();
    let expected = found(&copy(&sound)).unwrap();
    let starts: Vec<_> = expected.regions.iter().map(|r| r.start).collect();
    let heap = starts[HEAP as usize];
    // The first line, both tables, the lines of the logs, the heap except its blocks, and the table
    // of variables.
    let statics = starts[STATICS as usize];
    let mut lines = vec![0..LINE_BYTES, TABLE..ROOT + ROOTS * 128];
    lines.push(heap..heap + 8 * LINE_BYTES);
    lines.push(statics..statics + 2 * LINE_BYTES);
    lines.extend([AREA, log_start(0), log_start(1)].map(|line| line..line + LINE_BYTES));
    let (mut detected, mut harmless) = (0, 0);
    for bit in lines
        .into_iter()
        .flat_map(|line| line.start * 8..line.end * 8)
    {
        let pm = copy(&sound);
        let at = bit / 64 * 8;
        pm.store_word(at, pm.load(at).unwrap() ^ 1 << (bit % 64));
        let report = check_regions(&Flat(&Overlay::new(&pm)), &[0, 1, 2]);
        if report.is_clean() {
            assert_eq!(found(&pm).as_ref(), Some(&expected), "bit {bit} of {at:#x}");
            harmless += 1;
        } else {
            let _ = found(&pm);
            detected += 1;
        }
    }
    println!("{detected} bits are detected, {harmless} make no difference");
    assert!(detected > 6000, "{detected}");
}
