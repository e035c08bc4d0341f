//! Power cuts, compared with a plain array, and the formats of earlier versions.

use super::*;

/// Applies the same changes to the memory and to `model`.
fn change<P: Pmem + Clone>(
    tx: &mut Transaction<'_, P>,
    model: &mut [u64],
    rng: &mut Rng,
) -> Result<(), Interrupted> {
    // A single word is committed without a log.
    let most = *rng.choice(&[2, 12]).unwrap();
    for _ in 0..rng.usize(..most) {
        let word = rng.usize(..WORDS as usize);
        let off = DATA + word as u64 * 8;
        match rng.u8(..4) {
            0 => assert_eq!(tx.load(off)?, model[word]),
            1 => {
                let (from, len) = (rng.usize(..8), rng.usize(..40));
                let bytes: Vec<u8> = model[word..].iter().flat_map(|w| w.to_le_bytes()).collect();
                let end = (from + len).min(bytes.len());
                let mut read = vec![0; end.saturating_sub(from)];
                tx.read(off + from as u64, &mut read)?;
                assert_eq!(read, bytes[from.min(end)..end]);
            }
            2 => {
                model[word] = rng.u64(..);
                tx.store(off, model[word])?;
            }
            _ => {
                let mut bytes: Vec<u8> =
                    model[word..].iter().flat_map(|w| w.to_le_bytes()).collect();
                let (from, len) = (rng.usize(..8), rng.usize(..40));
                let end = (from + len).min(bytes.len());
                let from = from.min(end);
                bytes[from..end].fill_with(|| rng.u8(..));
                tx.write(off + from as u64, &bytes[from..end])?;
                for (word, bytes) in model[word..].iter_mut().zip(bytes.chunks(8)) {
                    *word = u64::from_le_bytes(bytes.try_into().unwrap());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn power_cuts_leave_whole_transactions() {
    for seed in 0..3000 {
        cut(seed).unwrap();
    }
}

#[test]
fn seeded_bugs_are_found() {
    use crate::seeded::{Bug, arm, fired};
    let bugs = [
        Bug::HomeBeforeLog,
        Bug::NoLowWater,
        Bug::ReclaimBeforeHome,
        Bug::UnflushedRecovery,
        Bug::LowWaterBeforeReplay,
        Bug::WordInLog,
        Bug::UnfencedWord,
    ];
    for bug in bugs {
        arm(Some(bug));
        let found = (0..3000).find_map(|seed| cut(seed).err());
        assert!(fired() > 0, "{bug:?} is never reached");
        arm(None);
        assert!(found.is_some(), "{bug:?} is not found");
    }
}

/// Cuts the power several times, in memory of a random kind and size.
fn cut(seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let logs = rng.u64(1..4);
    let mut pm = made(&mut rng, logs);
    // The words that must be found, and those that may be found instead.
    let mut certain = vec![0; WORDS as usize];
    let mut possible = certain.clone();
    for cut in 0..4 {
        let power = PowerCut::new(pm);
        let model = *rng
            .choice(&[PersistModel::Words, PersistModel::Lines])
            .unwrap();
        let when = match rng.bool() {
            true => CutAfter::Stores(rng.u64(1..2000)),
            false => CutAfter::Fences(rng.u64(1..80)),
        };
        power.cut_after(when, rng.u64(..), model);
        let recovered = Area::recover(&power, 0, options(&mut rng));
        if let Err(error) = &recovered
            && !matches!(error, AreaError::Log(LogError::Medium(_)))
        {
            return Err(format!("seed {seed}, cut {cut}: {error}"));
        }
        if let Ok(memory) = recovered {
            let found = all(&power);
            if found != certain && found != possible {
                return Err(format!("seed {seed}, cut {cut}"));
            }
            certain = found;
            let mut sessions = [memory.session(), memory.session()];
            loop {
                possible = certain.clone();
                let cancels = rng.u8(..8) == 0;
                let done = sessions[rng.usize(..2)].run(|tx| {
                    change(tx, &mut possible, &mut rng)?;
                    match cancels {
                        true => Err(Stop::Cancel(())),
                        false => Ok(()),
                    }
                });
                match done {
                    Ok(()) => certain = possible.clone(),
                    Err(TxError::Cancelled(())) => {}
                    Err(TxError::Medium(_) | TxError::Failed(_)) => break,
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
        power.outcome().unwrap().unwrap();
        pm = power.into_inner();
    }
    Ok(())
}

/// Each transaction adds 1 to a word for all threads and to one for its own. The sums show lost
/// updates and partial transactions.
#[test]
fn threads_and_power_cuts_lose_no_update() {
    const THREADS: u64 = 3;
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let mut pm = made(&mut rng, THREADS);
        for cut in 0..3 {
            let power = PowerCut::new(pm);
            let model = *rng
                .choice(&[PersistModel::Words, PersistModel::Lines])
                .unwrap();
            power.cut_after(CutAfter::Fences(rng.u64(1..300)), rng.u64(..), model);
            let before: Vec<u64>;
            let returned: Vec<u64>;
            if let Ok(memory) = Area::recover(&power, 0, options(&mut rng)) {
                before = all(&power);
                let counts = |memory: Memory<&PowerCut<MemoryPmem>>, thread: u64| {
                    let mut session = memory.session();
                    let mut returned = 0;
                    let mut count = |returned: u64| {
                        session.run(|tx| {
                            for word in [0, 8 + thread, 16 + returned % 7] {
                                let off = DATA + word * 8;
                                let sum = tx.load(off)? + 1;
                                tx.store(off, sum)?;
                            }
                            Ok::<_, Stop<()>>(())
                        })
                    };
                    while count(returned).is_ok() {
                        returned += 1;
                    }
                    returned
                };
                returned = std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..THREADS)
                        .map(|thread| {
                            let memory = memory.clone();
                            scope.spawn(move || counts(memory, thread))
                        })
                        .collect();
                    threads.into_iter().map(|t| t.join().unwrap()).collect()
                });
            } else {
                before = vec![];
                returned = vec![];
            }
            power.outcome().unwrap().unwrap();
            pm = power.into_inner();
            Area::recover(&pm, 0, Options::default()).unwrap();
            let found = all(&pm);
            let context = format!("seed {seed}, cut {cut}: {found:?}");
            let sum = |words: std::ops::Range<usize>| found[words].iter().sum::<u64>();
            assert_eq!(found[0], sum(8..8 + THREADS as usize), "{context}");
            assert_eq!(found[0], sum(16..23), "{context}");
            for (thread, returned) in returned.iter().enumerate() {
                let counted = found[8 + thread] - before[8 + thread];
                assert!([*returned, returned + 1].contains(&counted), "{context}");
            }
        }
    }
}

/// Other threads change a variable next to one that a transaction writes, in the same word.
#[test]
fn neighbours_of_written_bytes_are_unchanged() {
    let mut rng = Rng::with_seed(1);
    let pm = made(&mut rng, 1);
    let memory = Area::recover(&pm, 0, Options::default()).unwrap();
    let mut session = memory.session();
    let neighbour = DATA + 4;
    // Without a record, with one, and in several runs.
    let writes: [&[(u64, usize)]; 3] = [&[(0, 4)], &[(0, 4), (16, 2)], &[(0, 1), (2, 2), (9, 1)]];
    for (n, writes) in writes.iter().enumerate() {
        session.begin().unwrap();
        for (start, len) in *writes {
            let bytes = vec![n as u8 + 1; *len];
            session.write(DATA + start, &bytes).unwrap();
        }
        pm.store(neighbour, &[n as u8 + 100; 4]);
        assert_eq!(
            session.load(DATA).unwrap() >> 32,
            pm.load(DATA).unwrap() >> 32
        );
        session.commit().unwrap();
        let word = pm.load(DATA).unwrap().to_le_bytes();
        assert_eq!(
            (word[0], &word[4..]),
            (n as u8 + 1, &[n as u8 + 100; 4][..])
        );
    }
    drop((session, memory));
    // A replay leaves the neighbours unchanged, too.
    pm.store(neighbour, b"else");
    Area::recover(&pm, 0, Options::default()).unwrap();
    let expected = [3, 2, 3, 3, b'e', b'l', b's', b'e'];
    assert_eq!(pm.load(DATA).unwrap().to_le_bytes(), expected);
    assert_eq!(pm.load(DATA + 8).unwrap().to_le_bytes()[..2], [0, 3]);
    assert_eq!(pm.load(DATA + 16).unwrap().to_le_bytes()[..3], [2, 2, 0]);
}

#[test]
fn older_versions_are_recovered_and_become_version_4() {
    let mut rng = Rng::with_seed(1);
    let pm = made(&mut rng, 2);
    let version = |pm: &MemoryPmem| pm.load(0).unwrap() >> 56;
    let write = |memory: &Memory<_>| {
        let write = |tx: &mut Transaction<'_, _>| {
            tx.store(DATA, 1)?;
            Ok::<_, Stop<()>>(tx.store(DATA + 8, 2)?)
        };
        memory.session().run(write).unwrap();
    };
    // A record of whole words is the same in all versions.
    for old in [1, 2, 3] {
        write(&Area::recover(&pm, 0, Options::default()).unwrap());
        pm.store(7, &[old]);
        pm.store_word(DATA + 8, 0);
        Area::recover(&pm, 0, Options::default()).unwrap();
        assert_eq!((version(&pm), pm.load(DATA + 8).unwrap()), (4, 2));
    }
    pm.store(7, &[5]);
    let refused = Area::recover(&pm, 0, Options::default()).err();
    assert!(
        matches!(refused, Some(AreaError::NotAnArea { .. })),
        "{refused:?}"
    );
}

#[test]
fn long_transactions_without_a_heap_are_refused_and_leave_nothing() {
    let pm = MemoryPmem::new(DATA + WORDS * 8);
    let area = Area {
        start: 0,
        logs: 1,
        log_bytes: 10 * 64,
        kind: Kind::TornBit,
    };
    area.format(&pm).unwrap();
    let memory = Area::recover(&pm, 0, Options::default()).unwrap();
    let mut session = memory.session();
    let refused = session.run(|tx| {
        for n in 0..WORDS {
            tx.store(DATA + n % 2 * 256 + n / 2 * 8, 1)?;
        }
        Ok::<_, Stop<()>>(())
    });
    assert!(
        matches!(refused, Err(TxError::Heap(HeapError::NoSpace { .. }))),
        "{refused:?}"
    );
    assert_eq!(all(&pm), [0; WORDS as usize]);
    let outside = session.run(|tx| Ok::<_, Stop<()>>(tx.store(DATA + WORDS * 8, 1)?));
    assert!(matches!(outside, Err(TxError::Medium(_))), "{outside:?}");
    let in_a_log = session.run(|tx| Ok::<_, Stop<()>>(tx.store(64, 1)?));
    assert!(matches!(in_a_log, Err(TxError::Medium(_))), "{in_a_log:?}");
    session
        .run(|tx| Ok::<_, Stop<()>>(tx.store(DATA, 1)?))
        .unwrap();
    assert_eq!(pm.load(DATA).unwrap(), 1);
}
