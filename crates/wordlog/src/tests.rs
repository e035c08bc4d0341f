//! The log against a queue, with and without power cuts.

use super::*;
use fastrand::Rng;
use medium::{CutAfter, MemoryPmem, PersistModel, PowerCut};
use std::collections::VecDeque;

const KINDS: [Kind; 2] = [Kind::TornBit, Kind::Base];

fn made(lines: u64, kind: Kind) -> MemoryPmem {
    let pm = MemoryPmem::new((lines + 1) * LINE_BYTES);
    format(&pm, 0, (lines + 1) * LINE_BYTES, kind).unwrap();
    pm
}

/// The `n`-th record: arbitrary words.
fn record(n: u64, len: usize) -> Vec<u64> {
    let mut rng = Rng::with_seed(n);
    (0..len)
        .map(|_| match rng.u8(..4) {
            0 => 0,
            1 => u64::MAX,
            _ => rng.u64(..),
        })
        .collect()
}

fn all<P: Pmem>(log: &mut Unrecovered<P>) -> Vec<Vec<u64>> {
    let (mut found, mut words) = (Vec::new(), Vec::new());
    while log.next(&mut words).unwrap().is_some() {
        found.push(words.clone());
    }
    found
}

#[test]
fn records_of_every_length_come_back() {
    for kind in KINDS {
        // More than two passes over the ring.
        let pm = made(400, kind);
        let (mut log, mut reader) = Unrecovered::open(&pm, 0).unwrap().keep().unwrap();
        let mut words = Vec::new();
        for len in (0..1000).chain([2000, 3000]) {
            let sent = record(len as u64, len);
            let end = log.append(&sent).unwrap();
            assert_eq!(reader.next(&mut words).unwrap(), None, "not flushed");
            log.flush().unwrap();
            assert_eq!(reader.next(&mut words).unwrap(), Some(end));
            assert_eq!(words, sent);
            let mut again = Unrecovered::open(&pm, 0).unwrap();
            assert_eq!(all(&mut again), [sent]);
            reader.truncate(end).unwrap();
        }
    }
}

#[test]
fn an_append_to_a_full_log_fails_and_keeps_the_records() {
    for kind in KINDS {
        for len in 0..80 {
            let pm = made(12, kind);
            let (mut log, mut reader) = Unrecovered::open(&pm, 0).unwrap().keep().unwrap();
            let mut sent = VecDeque::new();
            let mut words = Vec::new();
            for n in 0..100 {
                let next = record(n, len);
                let room = log.room();
                match log.append(&next) {
                    Ok(_) => {
                        assert!(
                            room.is_some_and(|room| room >= len as u64),
                            "{room:?} {len}"
                        );
                        sent.push_back(next);
                    }
                    Err(LogError::Full { .. }) => {
                        assert!(room.is_none_or(|room| room < len as u64), "{room:?} {len}");
                        log.flush().unwrap();
                        let found = all(&mut Unrecovered::open(&pm, 0).unwrap());
                        assert_eq!(found, Vec::from(sent.clone()), "{kind:?} {len}");
                        let end = reader.next(&mut words).unwrap().unwrap();
                        assert_eq!(Some(&words), sent.pop_front().as_ref());
                        reader.truncate(end).unwrap();
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            let most = log.ring.longest();
            let (too_long, longest) = (vec![1; most as usize + 1], vec![1; most as usize]);
            assert!(matches!(
                log.append(&too_long),
                Err(LogError::TooLong { .. })
            ));
            let (mut log, _) = Unrecovered::open(&pm, 0).unwrap().empty().unwrap();
            log.append(&longest).unwrap();
            log.flush().unwrap();
            assert_eq!(all(&mut Unrecovered::open(&pm, 0).unwrap()), [longest]);
        }
    }
}

/// The records that a log must, and may, hold after a crash.
#[derive(Default)]
struct Expected {
    /// Records that were flushed and not truncated, then those appended and not flushed.
    records: VecDeque<Vec<u64>>,
    /// Number of flushed records among them.
    durable: usize,
    /// Number of oldest records among them that may be truncated.
    going: usize,
}

impl Expected {
    fn check(&self, found: &[Vec<u64>], context: &str) -> Outcome {
        let fits = (0..=self.going).any(|gone| {
            let all = self.records.iter().skip(gone);
            found.len() + gone >= self.durable
                && found.len() + gone <= self.records.len()
                && all.zip(found).all(|(expected, found)| expected == found)
        });
        match fits {
            true => Ok(()),
            false => Err(format!("{context}: {} records found", found.len())),
        }
    }
}

/// Appends, flushes and truncates until the power cut.
fn use_until_cut<P: Pmem>(
    (mut log, mut reader): (Appender<P>, Consumer<P>),
    expected: &mut Expected,
    rng: &mut Rng,
) {
    // The kept records can be read again.
    let mut words = Vec::new();
    let mut n = rng.u64(..);
    let mut ends = VecDeque::new();
    loop {
        match rng.u8(..8) {
            0..4 => {
                let longest = if rng.bool() { 12 } else { 150 };
                let next = record(n, rng.usize(..longest));
                n += 1;
                // A record in flight may be found or not.
                expected.records.push_back(next.clone());
                if let Err(LogError::Full { .. } | LogError::TooLong { .. }) = log.append(&next) {
                    expected.records.pop_back();
                }
            }
            4..6 => {
                if log.flush().is_err() {
                    return;
                }
                expected.durable = expected.records.len();
            }
            _ => {
                loop {
                    match reader.next(&mut words) {
                        Ok(Some(end)) => ends.push_back(end),
                        Ok(None) => break,
                        Err(_) => return,
                    }
                }
                let some = rng.usize(..=ends.len());
                if some > 0 {
                    expected.going = some;
                    if reader.truncate(ends[some - 1]).is_err() {
                        return;
                    }
                    ends.drain(..some);
                    expected.records.drain(..some);
                    expected.durable -= some;
                    expected.going = 0;
                }
            }
        }
    }
}

/// Ok, or the violation.
type Outcome = std::result::Result<(), String>;

#[test]
fn power_cuts_lose_only_what_was_not_flushed() {
    for seed in 0..4000 {
        cut(seed).unwrap();
    }
}

#[test]
fn seeded_bugs_are_found() {
    use crate::seeded::{Bug, arm, fired};
    arm(Some(Bug::ScrubbedToOldHead));
    let found = lost_twice();
    arm(None);
    assert_eq!(
        found,
        Err("log at 0x0: the record at position 32 is damaged".to_owned())
    );
    let bugs = [
        Bug::UnfencedLog,
        Bug::TailBeforeRecords,
        Bug::Unscrubbed,
        Bug::NoFlip,
        Bug::ReuseBeforeTruncated,
        Bug::UnfencedFormat,
    ];
    for bug in bugs {
        arm(Some(bug));
        let found = (0..4000).find_map(|seed| match bug {
            Bug::UnfencedFormat => cut_while_made(seed).err(),
            _ => cut(seed).err(),
        });
        assert!(fired() > 0, "{bug:?} is never reached");
        arm(None);
        assert!(found.is_some(), "{bug:?} is not found");
    }
}

/// Tests a log of some kind and size with some power cuts.
fn cut(seed: u64) -> Outcome {
    let mut rng = Rng::with_seed(seed);
    let kind = *rng.choice(&KINDS).unwrap();
    let mut pm = made(rng.u64(2..40), kind);
    let mut expected = Expected::default();
    for cut in 0..4 {
        let power = PowerCut::new(pm);
        let model = match rng.bool() {
            true => PersistModel::Words,
            false => PersistModel::Lines,
        };
        let when = match rng.bool() {
            true => CutAfter::Stores(rng.u64(1..400)),
            false => CutAfter::Fences(rng.u64(1..60)),
        };
        power.cut_after(when, rng.u64(..), model);
        // The cut may interrupt recovery, which is then repeated.
        let context = format!("seed {seed}, cut {cut}, {kind:?}");
        if let Ok(mut log) = Unrecovered::open(&power, 0) {
            let (mut found, mut words) = (Vec::new(), Vec::new());
            loop {
                match log.next(&mut words) {
                    Ok(Some(_)) => found.push(words.clone()),
                    Ok(None) | Err(LogError::Medium(_)) => break,
                    Err(other) => return Err(format!("{context}: {other}")),
                }
            }
            expected.check(&found, &context)?;
            let keeps = rng.bool();
            let halves = match keeps {
                true => log.keep(),
                false => log.empty(),
            };
            match halves {
                Ok(halves) => {
                    expected = Expected::default();
                    if keeps {
                        expected.durable = found.len();
                        expected.records = found.into();
                    }
                    use_until_cut(halves, &mut expected, &mut rng);
                }
                // The records that were found are still there, or were freed.
                Err(_) => {
                    expected.records = found.into();
                    expected.durable = 0;
                    expected.going = expected.records.len();
                }
            }
        }
        power.outcome().unwrap().unwrap();
        pm = power.into_inner();
    }
    let mut log = Unrecovered::open(&pm, 0).map_err(|e| e.to_string())?;
    let (mut found, mut words) = (Vec::new(), Vec::new());
    while log.next(&mut words).map_err(|e| e.to_string())?.is_some() {
        found.push(words.clone());
    }
    expected.check(&found, &format!("seed {seed}, at the end"))
}

/// A crash loses a word of a record which the memory had before, but for its torn bit, so that the record is whole.
/// Recovery frees it. In the next pass over the ring, a crash loses that word again.
fn lost_twice() -> Outcome {
    let at = LINE_BYTES + WORD_BYTES;
    let (pm, sent) = (0..)
        .find_map(|n| {
            let (pm, sent) = (Arc::new(made(4, Kind::TornBit)), record(n, 3));
            let (mut log, _) = Unrecovered::open(pm.clone(), 0).unwrap().keep().unwrap();
            log.append(&sent).unwrap();
            log.flush().unwrap();
            (pm.load(at).unwrap() == 1 << 63).then_some((pm, sent))
        })
        .unwrap();
    pm.store_word(at, 0);
    let mut log = Unrecovered::open(pm.clone(), 0).unwrap();
    assert_eq!(all(&mut log), std::slice::from_ref(&sent));
    let (mut log, mut reader) = log.empty().unwrap();
    for _ in 0..3 {
        let end = log.append(&sent).unwrap();
        log.flush().unwrap();
        reader.truncate(end).unwrap();
    }
    let old = pm.load(at).unwrap();
    assert_eq!(log.append(&[7; 3]).unwrap(), 40);
    pm.store_word(at, old);
    let found = Unrecovered::open(&*pm, 0).unwrap().next(&mut Vec::new());
    found.map_err(text).map(|end| assert_eq!(end, None))
}

#[test]
fn a_word_that_two_crashes_lose_is_missing() {
    lost_twice().unwrap();
}

#[test]
fn a_log_that_is_being_made_is_none_or_empty() {
    for seed in 0..4000 {
        cut_while_made(seed).unwrap();
    }
}

/// Makes a log over an old one, and cuts the power meanwhile.
fn cut_while_made(seed: u64) -> Outcome {
    let mut rng = Rng::with_seed(seed);
    let old_lines = rng.u64(2..16);
    let lines = match rng.bool() {
        true => old_lines,
        false => rng.u64(2..16),
    };
    let pm = MemoryPmem::new((old_lines.max(lines) + 1) * LINE_BYTES);
    let old = use_log(&pm, old_lines, &mut rng);
    let kind = *rng.choice(&KINDS).unwrap();
    let len = (lines + 1) * LINE_BYTES;
    // Stores of the ring, the first line and its magic number twice, and one more, for a cut
    // that comes too late.
    let stores = lines * LINE + 6;
    let when = match rng.bool() {
        true => CutAfter::Stores(rng.u64(1..=stores + 1)),
        false => CutAfter::Fences(rng.u64(1..=4)),
    };
    let model = *rng.choice(&PersistModel::ALL).unwrap();
    let power = PowerCut::new(pm);
    power.cut_after(when, rng.u64(..), model);
    let is_made = format(&power, 0, len, kind).is_ok();
    // A cut that has not come yet comes now.
    power.cut(rng.u64(..), model).unwrap();
    let pm = power.into_inner();
    // The old log may be found until the first fence returns, and is whole then.
    let is_first = matches!(when, CutAfter::Stores(1) | CutAfter::Fences(1));
    if is_first && found(&pm).is_ok_and(|found| found == old) {
        return Ok(());
    }
    check_made(&pm, len, kind, is_made, rng.bool())
        .map_err(|what| format!("seed {seed}, {when:?}, {model}, {kind:?}: {what}"))
}

/// Makes a log of any kind, appends and truncates, round the ring or not. Returns the records
/// that it holds.
fn use_log(pm: &MemoryPmem, lines: u64, rng: &mut Rng) -> Vec<Vec<u64>> {
    let kind = *rng.choice(&KINDS).unwrap();
    format(pm, 0, (lines + 1) * LINE_BYTES, kind).unwrap();
    let (mut log, mut reader) = Unrecovered::open(pm, 0).unwrap().keep().unwrap();
    // Short records, so that several fit.
    let longest = log.ring.longest().min(12) as usize;
    for n in 0..rng.u64(1..40) {
        let next = record(n, rng.usize(..=longest));
        while log.append(&next).is_err() {
            give_up_oldest(&mut log, &mut reader);
        }
        if rng.u8(..4) == 0 {
            give_up_oldest(&mut log, &mut reader);
        }
    }
    log.flush().unwrap();
    found(pm).unwrap()
}

fn give_up_oldest<P: Pmem>(log: &mut Appender<P>, reader: &mut Consumer<P>) {
    log.flush().unwrap();
    if let Some(end) = reader.next(&mut Vec::new()).unwrap() {
        reader.truncate(end).unwrap();
    }
}

/// Asserts that there is no log, if it need not exist yet. Otherwise it is the new one, is
/// empty, and finds the records that are appended to it.
fn check_made(pm: &MemoryPmem, len: u64, kind: Kind, is_made: bool, keeps: bool) -> Outcome {
    let mut log = match Unrecovered::open(pm, 0) {
        Err(LogError::NotALog { .. }) if !is_made => return Ok(()),
        opened => opened.map_err(text)?,
    };
    if log.kind() != kind || log.bytes() != len {
        return Err("it is another log".into());
    }
    if log.next(&mut Vec::new()).map_err(text)?.is_some() {
        return Err("there is a record".into());
    }
    let halves = match keeps {
        true => log.keep(),
        false => log.empty(),
    };
    let (mut log, _) = halves.map_err(text)?;
    // One by one, since old words could follow each of them.
    let mut sent = Vec::new();
    loop {
        let next = record(sent.len() as u64, 5);
        match log.append(&next) {
            Err(LogError::Full { .. }) if !sent.is_empty() => return Ok(()),
            appended => appended.map_err(text)?,
        };
        log.flush().map_err(text)?;
        sent.push(next);
        if found(pm).map_err(text)? != sent {
            return Err(format!("{} records are not found again", sent.len()));
        }
    }
}

fn text(error: LogError) -> String {
    error.to_string()
}

#[test]
fn one_thread_appends_while_another_truncates() {
    for kind in KINDS {
        let pm = made(30, kind);
        let (mut log, mut reader) = Unrecovered::open(&pm, 0).unwrap().keep().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for n in 0..3000 {
                    while log.append(&record(n, n as usize % 70)).is_err() {
                        std::thread::yield_now();
                    }
                    log.flush().unwrap();
                }
            });
            let mut words = Vec::new();
            for n in 0..3000 {
                let end = loop {
                    match reader.next(&mut words).unwrap() {
                        Some(end) => break end,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(words, record(n, n as usize % 70));
                reader.truncate(end).unwrap();
            }
        });
    }
}

#[test]
fn flipped_bits_are_damage_or_have_no_effect() {
    for kind in KINDS {
        let pm = made(12, kind);
        let (mut log, _) = Unrecovered::open(&pm, 0).unwrap().keep().unwrap();
        let sent: Vec<Vec<u64>> = (0..4).map(|n| record(n, 7)).collect();
        let mut ends = vec![];
        for record in &sent {
            ends.push(log.append(record).unwrap());
            log.flush().unwrap();
        }
        let (mut damage, mut mended) = (0, 0);
        for bit in 0..(LINE + ends[3]) * 64 {
            let at = bit / 64 * 8;
            let pm = copy(&pm);
            let word = pm.load(at).unwrap();
            pm.store_word(at, word ^ 1 << (bit % 64));
            match found(&pm) {
                Ok(found) => assert_eq!(found, sent, "{kind:?}: bit {bit}"),
                Err(LogError::Damaged { .. } | LogError::NotALog { .. }) => {
                    damage += 1;
                    continue;
                }
                Err(other) => panic!("{other}"),
            }
            // A log that is kept has no trace of the flipped bit.
            let (mut log, mut reader) = Unrecovered::open(&pm, 0).unwrap().keep().unwrap();
            let mut words = Vec::new();
            for record in &sent {
                reader.next(&mut words).unwrap().unwrap();
                assert_eq!(&words, record, "{kind:?}: bit {bit}");
            }
            log.append(&sent[0]).unwrap();
            log.flush().unwrap();
            assert_eq!(found(&pm).unwrap().len(), sent.len() + 1);
            mended += u32::from(bit % 64 == 63 && at >= LINE_BYTES);
        }
        assert!(damage > 1000, "{kind:?}: {damage}");
        assert!(kind == Kind::Base || mended == 4 * 16, "{mended}");
    }
}

fn copy(pm: &MemoryPmem) -> MemoryPmem {
    let copy = MemoryPmem::new(pm.len());
    let mut bytes = vec![0; pm.len() as usize];
    pm.read(0, &mut bytes).unwrap();
    copy.store(0, &bytes);
    copy
}

/// All records of a log, if it is sound.
fn found<P: Pmem>(pm: &P) -> Result<Vec<Vec<u64>>> {
    let mut log = Unrecovered::open(pm, 0)?;
    let (mut found, mut words) = (Vec::new(), Vec::new());
    while log.next(&mut words)?.is_some() {
        found.push(words.clone());
    }
    Ok(found)
}

#[test]
fn memory_without_a_log_is_refused() {
    let pm = MemoryPmem::new(4096);
    for (start, len) in [
        (8, 1024),
        (0, 128),
        (0, 100),
        (4032, 128),
        (0, u64::MAX - 63),
    ] {
        let refused = format(&pm, start, len, Kind::Base);
        assert!(matches!(refused, Err(LogError::NotALog { .. })));
    }
    assert!(Unrecovered::open(&pm, 0).is_err());
    format(&pm, 64, 1024, Kind::Base).unwrap();
    Unrecovered::open(&pm, 64).unwrap();
    let mut rng = Rng::with_seed(1);
    for _ in 0..100_000 {
        let at = 64 + rng.u64(..5) * 8;
        let was = pm.load(at).unwrap();
        let new = match rng.u8(..3) {
            0 => rng.u64(..),
            1 => rng.u64(..200),
            _ => was ^ 1 << rng.u8(..64),
        };
        pm.store_word(at, new);
        if let Ok(mut log) = Unrecovered::open(&pm, 64) {
            let mut words = Vec::new();
            while let Ok(Some(_)) = log.next(&mut words) {}
        }
        pm.store_word(at, was);
    }
}
