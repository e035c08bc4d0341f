//! Transactions against a plain array, with power cuts, and of several threads.

use super::locks::State;
use super::*;
use crate::error::HeapError;
use fastrand::Rng;
use medium::MediumError;
use medium::{Counting, CutAfter, Faulty, MemoryPmem, PersistModel, Pmem, PowerCut};
use wordlog::Kind;

const DATA: u64 = 32 << 10;
const WORDS: u64 = 64;

/// Room for `WORDS` words of data behind small logs.
fn made(rng: &mut Rng, logs: u64) -> MemoryPmem {
    let pm = MemoryPmem::new(DATA + WORDS * 8);
    let area = Area {
        start: 0,
        logs,
        log_bytes: rng.u64(10..24) * 64,
        kind: *rng.choice(&[Kind::TornBit, Kind::Base]).unwrap(),
    };
    area.format(&pm).unwrap();
    pm
}

fn options(rng: &mut Rng) -> Options {
    Options {
        truncation: *rng.choice(&[Truncation::Lazy, Truncation::Eager]).unwrap(),
        locks: 1 << rng.u8(0..8),
        privatise: rng.bool(),
    }
}

fn all<P: Pmem>(pm: &P) -> Vec<u64> {
    (0..WORDS).map(|n| pm.load(DATA + n * 8).unwrap()).collect()
}

/// Does the same to the memory and to `model`.
fn change<P: Pmem + Clone>(
    tx: &mut Transaction<'_, P>,
    model: &mut [u64],
    rng: &mut Rng,
) -> Result<(), Interrupted> {
    // One word alone has a way of its own.
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

/// Memory of some kind and size, and some power cuts.
fn cut(seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let logs = rng.u64(1..4);
    let mut pm = made(&mut rng, logs);
    // What must be there, and what may be there instead.
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

/// Every transaction counts in one word for all and in one for its thread: the lost-update
/// hole and half transactions show in the sums.
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

/// Other threads change a variable beside one that a transaction writes, in the same word.
#[test]
fn bytes_beside_those_written_are_left_alone() {
    let mut rng = Rng::with_seed(1);
    let pm = made(&mut rng, 1);
    let memory = Area::recover(&pm, 0, Options::default()).unwrap();
    let mut session = memory.session();
    let neighbour = DATA + 4;
    // Without a record, with one, and in parts that lie apart.
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
    // A replay leaves them alone, too.
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
    // A record of whole words is the same in all.
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

#[test]
fn a_body_that_panics_holds_nothing_up() {
    let mut rng = Rng::with_seed(1);
    let pm = made(&mut rng, 1);
    let memory = Area::recover(&pm, 0, Options::default()).unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut session = memory.session();
        let _ = session.run(|tx| -> Result<(), Stop<()>> {
            tx.store(DATA, 1)?;
            panic!("on purpose");
        });
    }));
    assert!(panicked.is_err());
    let mut other = memory.session();
    let seen = other.run(|tx| {
        let seen = tx.load(DATA)?;
        tx.store(DATA, 2)?;
        Ok::<_, Stop<()>>(seen)
    });
    assert_eq!(seen.unwrap(), 0);
    assert_eq!(pm.load(DATA).unwrap(), 2);
}

/// With a thread that truncates, commits have room as fast as it gives it.
#[test]
fn a_thread_truncates() {
    let mut rng = Rng::with_seed(1);
    let pm = std::sync::Arc::new(made(&mut rng, 2));
    let memory = Area::recover(pm.clone(), 0, Options::default()).unwrap();
    let truncator = memory.truncator().unwrap();
    assert!(memory.truncator().is_none(), "there is one");
    let count = |memory: Memory<std::sync::Arc<MemoryPmem>>| {
        let mut session = memory.session();
        for _ in 0..2000 {
            let counted = session.run(|tx| {
                let sum = tx.load(DATA)? + 1;
                Ok::<_, Stop<()>>(tx.store(DATA, sum)?)
            });
            counted.unwrap();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let memory = memory.clone();
            scope.spawn(move || count(memory));
        }
    });
    drop(truncator);
    assert!(memory.truncator().is_none(), "there was one");
    count(memory.clone());
    drop(memory);
    Area::recover(&pm, 0, Options::default()).unwrap();
    assert_eq!(pm.load(DATA).unwrap(), 6000);
}

/// Adds 1 to each word.
fn add_to(session: &mut Session<&MemoryPmem>, words: [u64; 2]) {
    let added = session.run(|tx| {
        for word in words {
            let off = DATA + word * 8;
            let sum = tx.load(off)? + 1;
            tx.store(off, sum)?;
        }
        Ok::<_, Stop<()>>(())
    });
    added.unwrap();
}

/// Each thread has a line of its own, and all count in the first word.
fn share_two_logs(options: Options) {
    const THREADS: u64 = 6;
    const ROUNDS: u64 = 300;
    let pm = made(&mut Rng::with_seed(1), 2);
    let memory = Area::recover(&pm, 0, options).unwrap();
    let slots = memory.core.slots.iter();
    let held: Vec<_> = slots.map(|slot| slot.appender.lock()).collect();
    std::thread::scope(|scope| {
        for thread in 1..=THREADS {
            let mut session = memory.session();
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    add_to(&mut session, [thread * 8, thread * 8 + 1]);
                    add_to(&mut session, [0, thread * 8]);
                }
            });
        }
        loop {
            let all_wait = memory.core.found_no_log.load(Ordering::SeqCst) == THREADS;
            assert_eq!(all(&pm), [0; WORDS as usize], "without a log");
            if all_wait {
                break;
            }
            std::thread::yield_now();
        }
        drop(held);
    });
    let mut expected = [0; WORDS as usize];
    expected[0] = THREADS * ROUNDS;
    for thread in 1..=THREADS as usize {
        expected[thread * 8] = 2 * ROUNDS;
        expected[thread * 8 + 1] = ROUNDS;
    }
    assert_eq!(all(&pm), expected);
    drop(memory);
    Area::recover(&pm, 0, Options::default()).unwrap();
    assert_eq!(all(&pm), expected, "after a recovery");
}

/// More threads commit than there are logs, which are all in use when they begin: some have
/// to wait for one.
#[test]
fn threads_wait_for_logs() {
    for truncation in [Truncation::Lazy, Truncation::Eager] {
        for privatise in [false, true] {
            share_two_logs(Options {
                truncation,
                privatise,
                ..Options::default()
            });
        }
    }
}

/// T4, for words that were committed by way of a log.
fn only_reads(truncation: Truncation) {
    let pm = Counting::new(made(&mut Rng::with_seed(1), 1));
    let options = Options {
        truncation,
        ..Options::default()
    };
    let memory = Area::recover(&pm, 0, options).unwrap();
    let (mut writer, mut reader) = (memory.session(), memory.session());
    let mut write = |word: u64| {
        let written = writer.run(|tx| {
            tx.store(DATA, word)?;
            Ok::<_, Stop<()>>(tx.store(DATA + 64, word)?)
        });
        written.unwrap();
    };
    write(1);
    let before = pm.snapshot();
    for _ in 0..100 {
        let found = reader.run(|tx| {
            let mut bytes = [0; 16];
            tx.read(DATA + 60, &mut bytes)?;
            Ok::<_, Stop<()>>((tx.load(DATA)?, bytes[4]))
        });
        assert_eq!(found.unwrap(), (1, 1));
    }
    assert_eq!(pm.snapshot(), before);
    write(2);
    let since = pm.snapshot() - before;
    assert!(since.stores > 0 && since.fences > 0, "{since:?}");
    if truncation == Truncation::Eager {
        assert!(since.flushed_lines > 0, "{since:?}");
    }
}

#[test]
fn who_only_reads_stores_nothing() {
    for truncation in [Truncation::Lazy, Truncation::Eager] {
        only_reads(truncation);
    }
}

/// A round that cannot raise the low water writes nothing back: the fence of the next one,
/// by another thread, would not make it durable.
#[test]
fn who_writes_back_fences() {
    for seed in 0..20 {
        let power = PowerCut::new(made(&mut Rng::with_seed(seed), 2));
        let memory = Area::recover(&power, 0, Options::default()).unwrap();
        // As if a commit were under way.
        let active = &memory.core.slots[1].active;
        active.store(1, Ordering::SeqCst);
        let done = memory.session().run(|tx| {
            tx.store(DATA, seed + 1)?;
            Ok::<_, Stop<()>>(tx.store(DATA + 64, seed + 1)?)
        });
        done.unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| memory.core.truncate().unwrap());
        });
        active.store(IDLE, Ordering::SeqCst);
        memory.truncate().unwrap();
        power.cut(seed, PersistModel::Lines).unwrap();
        let pm = power.inner();
        Area::recover(pm, 0, Options::default()).unwrap();
        let found = [DATA, DATA + 64].map(|at| pm.load(at).unwrap());
        assert_eq!(found, [seed + 1; 2]);
    }
}

#[test]
fn reads_are_noted_once() {
    let pm = made(&mut Rng::with_seed(1), 1);
    let memory = Area::recover(&pm, 0, Options::default()).unwrap();
    let mut session = memory.session();
    session.begin().unwrap();
    for n in 0..100_000 {
        session.load(DATA + n % 2 * 64).unwrap();
    }
    assert!(session.reads.capacity() < 10_000);
    session.store(DATA, 1).unwrap();
    session.commit().unwrap();
}

/// Words from [`VOLATILE`] on, and persistent ones below.
struct Mixed<'a> {
    pm: &'a MemoryPmem,
    volatile: MemoryPmem,
}

const VOLATILE: u64 = 1 << 40;

impl Mixed<'_> {
    fn place(&self, at: u64) -> (&MemoryPmem, u64) {
        match at.checked_sub(VOLATILE) {
            Some(at) => (&self.volatile, at),
            None => (self.pm, at),
        }
    }
}

impl<'a> Space for Mixed<'a> {
    type Pmem = &'a MemoryPmem;

    fn pmem(&self) -> &&'a MemoryPmem {
        &self.pm
    }

    fn load_at(&self, at: u64) -> Result<u64, MediumError> {
        let (memory, at) = self.place(at);
        memory.load(at)
    }

    fn read_at(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        let (memory, at) = self.place(at);
        memory.read(at, buf)
    }

    fn store_at(&self, at: u64, word: u64, mask: u8) {
        let (memory, at) = self.place(at);
        for (n, byte) in word.to_le_bytes().iter().enumerate() {
            if mask & 1 << n != 0 {
                memory.store(at + n as u64, &[*byte]);
            }
        }
    }

    fn offset(&self, at: u64) -> Option<u64> {
        (at < VOLATILE).then_some(at)
    }

    fn address(&self, off: u64) -> u64 {
        off
    }
}

#[test]
fn volatile_words_are_isolated_and_not_logged() {
    let mut rng = Rng::with_seed(1);
    let pm = made(&mut rng, 1);
    let volatile = MemoryPmem::new(4096);
    volatile.store_word(8, u64::MAX);
    let memory = Area::recover(Mixed { pm: &pm, volatile }, 0, Options::default()).unwrap();
    let mut session = memory.session();
    // Far more than a log takes.
    for round in 0..100 {
        let done = session.run(|tx| {
            tx.write(VOLATILE + 9, &[round, round])?;
            let written = tx.load(VOLATILE + 8)?;
            tx.store(VOLATILE + 64, written)?;
            if round == 50 {
                return Err(Stop::Cancel(()));
            }
            Ok(tx.store(DATA, round.into())?)
        });
        assert_eq!(done.is_ok(), round != 50);
    }
    let volatile = &memory.space().volatile;
    let expected = u64::from_le_bytes([255, 99, 99, 255, 255, 255, 255, 255]);
    assert_eq!(volatile.load(8).unwrap(), expected);
    assert_eq!(volatile.load(64).unwrap(), expected);
    drop(session);
    drop(memory);
    let found = Area::recover(&pm, 0, Options::default()).map(drop);
    found.unwrap();
    assert_eq!(pm.load(DATA).unwrap(), 99);
}

/// One thread takes a word away from the others and then uses it without transactions.
#[test]
fn what_a_commit_took_away_nobody_uses_any_more() {
    const SHARED: u64 = DATA;
    const PRIVATE: u64 = DATA + 64;
    let mut rng = Rng::with_seed(1);
    let pm = std::sync::Arc::new(made(&mut rng, 3));
    let options = Options {
        privatise: true,
        ..Options::default()
    };
    let memory = Area::recover(pm.clone(), 0, options).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let mut session = memory.session();
            let done = &done;
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let counted = session.run(|tx| {
                        if tx.load(SHARED)? == 1 {
                            // It is ours as well: nobody has it for himself.
                            let word = tx.load(PRIVATE)?;
                            assert_eq!(word >> 32, 0);
                            tx.store(PRIVATE, word + 1)?;
                        }
                        Ok::<_, Stop<()>>(())
                    });
                    counted.unwrap();
                }
            });
        }
        let mut session = memory.session();
        let mut set = |to: u64| {
            let set = session.run(|tx| Ok::<_, Stop<()>>(tx.store(SHARED, to)?));
            set.unwrap();
        };
        for _ in 0..300 {
            set(1);
            std::thread::yield_now();
            set(0);
            let word = pm.load(PRIVATE).unwrap();
            pm.store_word(PRIVATE, word | 1 << 40);
            std::thread::yield_now();
            assert_eq!(pm.load(PRIVATE).unwrap(), word | 1 << 40);
            pm.store_word(PRIVATE, word);
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// A commit waits for transactions that have read what it changes, and for no others; nobody
/// sees the change before.
#[test]
fn a_commit_waits_only_for_those_who_read_what_it_changed() {
    let pm = std::sync::Arc::new(made(&mut Rng::with_seed(1), 3));
    let options = Options {
        privatise: true,
        ..Options::default()
    };
    let memory = Area::recover(pm.clone(), 0, options).unwrap();
    let write = |at: u64| {
        let mut session = memory.session();
        let both = move |tx: &mut Transaction<'_, _>| {
            tx.store(at, 7)?;
            Ok::<_, Stop<()>>(tx.store(at + 8, 7)?)
        };
        session.run(both).unwrap();
    };
    let mut reader = memory.session();
    reader.begin().unwrap();
    assert_eq!(reader.load(DATA).unwrap(), 0);
    let has_returned = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // What it has not read: it may be under way for as long as it likes.
        scope.spawn(|| write(DATA + 64)).join().unwrap();
        assert_eq!(reader.load(DATA + 64).unwrap(), 7);
        scope.spawn(|| {
            write(DATA);
            has_returned.store(true, Ordering::SeqCst);
        });
        let lock = memory.core.locks.of(DATA);
        while memory.core.locks.state(lock) != State::BLOCKED {
            assert!(!has_returned.load(Ordering::SeqCst), "without a wait");
            std::thread::yield_now();
        }
        let mut other = memory.session();
        other.begin().unwrap();
        assert_eq!(other.load(DATA), Err(Interrupted::Conflict));
        other.roll_back();
        assert_eq!(memory.core.locks.state(lock), State::BLOCKED);
        assert!(!has_returned.load(Ordering::SeqCst));
        // What it has read is of one time, still.
        reader.commit().unwrap();
    });
    assert_eq!(pm.load(DATA).unwrap(), 7);
}

/// Memory in which commits wait for readers.
fn privatising() -> Memory<Arc<MemoryPmem>> {
    let pm = Arc::new(made(&mut Rng::with_seed(1), 3));
    let options = Options {
        privatise: true,
        ..Options::default()
    };
    Area::recover(pm, 0, options).unwrap()
}

/// Long after this a step has failed to return.
const WATCHDOG: std::time::Duration = std::time::Duration::from_secs(60);

/// Without a barrier a commit waits for every earlier transaction, but not for commits that wait.
#[test]
fn overlapping_commits_return_without_a_barrier_in_all_threads() {
    let mut memory = privatising();
    Arc::get_mut(&mut memory.core).unwrap().running.has_barrier = false;
    let sessions = [DATA, DATA + 64].map(|at| {
        let mut session = memory.session();
        session.begin().unwrap();
        session.store(at, 1).unwrap();
        session
    });
    let (send, committed) = std::sync::mpsc::channel();
    // Both began before either commits.
    for mut session in sessions {
        let send = send.clone();
        std::thread::spawn(move || send.send(session.commit().is_ok()));
    }
    for _ in 0..2 {
        assert_eq!(committed.recv_timeout(WATCHDOG), Ok(true));
    }
}

/// A commit that waits for a reader keeps its lock. The turn is not kept for that long.
#[test]
fn the_turn_is_given_back_while_a_commit_waits_for_a_reader() {
    let memory = privatising();
    let write = |at: u64| {
        let (mut session, (send, written)) = (memory.session(), std::sync::mpsc::channel());
        let mut write = move || session.run(|tx| Ok::<_, Stop<()>>(tx.store(at, 7)?));
        std::thread::spawn(move || send.send(write().is_ok()));
        written
    };
    let mut reader = memory.session();
    reader.begin().unwrap();
    assert_eq!(reader.load(DATA), Ok(0));
    let blocked = write(DATA);
    while memory.space().load(DATA).unwrap() == 0 {
        std::thread::yield_now();
    }
    let (send, tried) = std::sync::mpsc::channel();
    let mut other = memory.session();
    std::thread::spawn(move || {
        other.patience = 10 * WATCHDOG;
        other.pause(u32::MAX);
        other.begin().unwrap();
        let loaded = other.load(DATA);
        other.keep_turn();
        other.roll_back();
        send.send(loaded).unwrap();
        // Its session stays, as that of a thread that tries again.
        std::mem::forget(other);
    });
    assert_eq!(tried.recv_timeout(WATCHDOG), Ok(Err(Interrupted::Conflict)));
    assert_eq!(write(DATA + 64).recv_timeout(WATCHDOG), Ok(true));
    reader.commit().unwrap();
    assert_eq!(blocked.recv_timeout(WATCHDOG), Ok(true));
}

/// Another thread commits during each of their attempts, until one of them has the turn.
#[test]
fn transactions_that_always_lose_get_their_turns() {
    const LOSERS: u64 = 3;
    for privatise in [false, true] {
        let pm = std::sync::Arc::new(made(&mut Rng::with_seed(1), 2));
        let options = Options {
            privatise,
            ..Options::default()
        };
        let memory = Area::recover(pm, 0, options).unwrap();
        let (count, done) = (AtomicU64::new(0), AtomicBool::new(false));
        let lose = |own: u64| {
            let mut attempts = 0;
            memory.session().run(|tx| {
                attempts += 1;
                if attempts > 100 {
                    return Err(Stop::Cancel("it never gets through"));
                }
                tx.store(own, 1)?;
                let first = tx.load(DATA)?;
                let before = count.load(Ordering::SeqCst);
                for _ in 0..100 {
                    if count.load(Ordering::SeqCst) > before + 1 {
                        break;
                    }
                    std::thread::sleep(std::time::Duration::from_micros(100));
                }
                Ok((first, tx.load(DATA + 64)?))
            })
        };
        let reads = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut session = memory.session();
                while !done.load(Ordering::SeqCst) {
                    let n = count.fetch_add(1, Ordering::SeqCst);
                    let written = session.run(|tx| {
                        tx.store(DATA, n)?;
                        Ok::<_, Stop<()>>(tx.store(DATA + 64, n)?)
                    });
                    written.unwrap();
                }
            });
            let lose = &lose;
            let losers: Vec<_> = (2..2 + LOSERS)
                .map(|line| scope.spawn(move || lose(DATA + line * 64)))
                .collect();
            let reads: Vec<_> = losers.into_iter().map(|loser| loser.join()).collect();
            done.store(true, Ordering::SeqCst);
            reads
        });
        for read in reads {
            let (first, second) = read.unwrap().unwrap();
            assert_eq!(first, second);
        }
    }
}

/// One that has the turn needs a lock, whose owner's thread waits for a commit of its own.
#[test]
fn the_turn_is_given_up_rather_than_waited_for_each_other() {
    let pm = made(&mut Rng::with_seed(1), 2);
    let memory = Area::recover(&pm, 0, Options::default()).unwrap();
    let (mut outer, mut inner) = (memory.session(), memory.session());
    outer.begin().unwrap();
    outer.store(DATA, 1).unwrap();
    let attempts = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let written = memory.session().run(|tx| {
                attempts.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Stop<()>>(tx.store(DATA, 2)?)
            });
            written.unwrap();
        });
        while attempts.load(Ordering::SeqCst) < 12 {
            std::thread::yield_now();
        }
        let written = inner.run(|tx| Ok::<_, Stop<()>>(tx.store(DATA + 64, 3)?));
        written.unwrap();
        outer.roll_back();
    });
    assert_eq!([0, 8].map(|n| all(&pm)[n]), [2, 3]);
}

#[test]
fn the_turn_is_that_of_a_thread() {
    let pm = made(&mut Rng::with_seed(1), 2);
    let memory = Area::recover(&pm, 0, Options::default()).unwrap();
    let write = |at: u64| {
        let mut session = memory.session();
        let written = session.run(|tx| Ok::<_, Stop<()>>(tx.store(at, 1)?));
        written.unwrap();
    };
    let mut session = memory.session();
    session.pause(u32::MAX);
    std::thread::scope(|scope| {
        session.begin().unwrap();
        assert_eq!(session.load(DATA).unwrap(), 0);
        let other = scope.spawn(|| write(DATA));
        write(DATA + 64);
        assert_eq!(session.load(DATA + 64).unwrap(), 1);
        session.store(DATA + 128, 1).unwrap();
        session.commit().unwrap();
        other.join().unwrap();
        // An end of any kind gives it back.
        session.pause(u32::MAX);
        session.begin().unwrap();
        session.roll_back();
        scope.spawn(|| write(DATA)).join().unwrap();
    });
    let failed = memory.session().run(|_| Err::<(), _>(Stop::Cancel(())));
    assert!(failed.is_err());
}

#[test]
fn a_transaction_returns_to_a_savepoint() {
    let mut rng = Rng::with_seed(1);
    let pm = made(&mut rng, 1);
    let memory = Area::recover(&pm, 0, Options::default()).unwrap();
    let mut session = memory.session();
    session.begin().unwrap();
    session.store(DATA, 1).unwrap();
    let savepoint = session.savepoint();
    for word in 0..20 {
        session.store(DATA + word * 8, 2).unwrap();
    }
    session.return_to(&savepoint);
    assert_eq!(session.load(DATA).unwrap(), 1);
    assert_eq!(session.load(DATA + 8).unwrap(), 0);
    session.store(DATA + 16, 3).unwrap();
    session.commit().unwrap();
    assert_eq!(all(&pm)[..3], [1, 0, 3]);
}

#[test]
fn volatile_bytes_can_be_forgotten() {
    let mut rng = Rng::with_seed(1);
    let pm = made(&mut rng, 1);
    let volatile = MemoryPmem::new(4096);
    let memory = Area::recover(Mixed { pm: &pm, volatile }, 0, Options::default()).unwrap();
    let mut session = memory.session();
    session.begin().unwrap();
    session.write(VOLATILE + 4, &[7; 20]).unwrap();
    session.store(DATA, 7).unwrap();
    session.forget(VOLATILE + 6, 11);
    session.forget(DATA, 8);
    session.commit().unwrap();
    let mut found = [0; 32];
    memory.space().volatile.read(0, &mut found).unwrap();
    let mut expected = [0; 32];
    expected[4..6].fill(7);
    expected[17..24].fill(7);
    assert_eq!(found, expected);
    assert_eq!(pm.load(DATA).unwrap(), 7);
}

/// Whoever reads between a change in place and its end has to read again.
#[test]
fn changes_in_place_are_isolated() {
    let mut rng = Rng::with_seed(1);
    let pm = made(&mut rng, 1);
    let volatile = MemoryPmem::new(4096);
    let memory = Area::recover(Mixed { pm: &pm, volatile }, 0, Options::default()).unwrap();
    let (mut one, mut other) = (memory.session(), memory.session());
    for commits in [false, true] {
        other.begin().unwrap();
        assert_eq!(other.load(VOLATILE).unwrap(), 0);
        one.begin().unwrap();
        one.lock(VOLATILE).unwrap();
        memory.space().volatile.store_word(0, 1);
        assert_eq!(one.load(VOLATILE).unwrap(), 1);
        assert!(other.load(VOLATILE).is_err(), "somebody has it");
        match commits {
            true => drop(one.commit().unwrap()),
            false => {
                memory.space().volatile.store_word(0, 0);
                one.roll_back();
            }
        }
        assert!(!other.is_valid(), "it was changed, if only for a while");
        other.roll_back();
    }
}

/// Memory for two sessions.
fn for_two(pm: &MemoryPmem) -> Faulty<&MemoryPmem> {
    let area = Area {
        start: 0,
        logs: 2,
        log_bytes: 1024,
        kind: Kind::TornBit,
    };
    area.format(pm).unwrap();
    Faulty::new(pm)
}

/// Stores 1 in these words, and finds at the commit that fences fail.
fn fail_to_commit<'a>(
    session: &mut Session<&'a Faulty<&'a MemoryPmem>>,
    faulty: &Faulty<&MemoryPmem>,
    words: &[u64],
) {
    session.begin().unwrap();
    for word in words {
        session.store(*word, 1).unwrap();
    }
    faulty.fail_fence(5);
    assert!(matches!(session.commit(), Err(Uncommitted::Failed(_))));
    session.roll_back();
}

/// A commit that failed may have left its words in a log: nobody stores newer ones in place,
/// or fills a block that it gave back.
#[test]
fn behind_a_commit_that_failed_nobody_commits() {
    let pm = MemoryPmem::new(DATA + WORDS * 8);
    let faulty = for_two(&pm);
    let memory = Area::recover(&faulty, 0, Options::default()).unwrap();
    let (mut one, mut other) = (memory.session(), memory.session());
    other.begin().unwrap();
    fail_to_commit(&mut one, &faulty, &[DATA, DATA + 8]);
    faulty.heal();
    let filled = other.fill(DATA + 64, &[1; 64]);
    assert_eq!(filled, Err(Interrupted::Conflict));
    other.store(DATA, 2).unwrap();
    assert!(matches!(other.commit(), Err(Uncommitted::Failed(_))));
    other.roll_back();
    drop((one, other, memory));
    Area::recover(&pm, 0, Options::default()).unwrap();
    assert_eq!(all(&pm)[..2], [1, 1]);
    assert_eq!(all(&pm)[8], 0);
}

/// A transaction that cannot begin keeps nobody waiting.
#[test]
fn a_begin_that_fails_gives_the_turn_back() {
    let pm = MemoryPmem::new(DATA + WORDS * 8);
    let faulty = for_two(&pm);
    let memory = Area::recover(&faulty, 0, Options::default()).unwrap();
    let (mut one, mut other) = (memory.session(), memory.session());
    fail_to_commit(&mut one, &faulty, &[DATA]);
    other.pause(u32::MAX);
    assert!(other.begin().is_err());
    let has_turn = std::thread::scope(|scope| {
        let looks = scope.spawn(|| memory.core.turn.is_others());
        looks.join().unwrap()
    });
    assert!(!has_turn);
}

/// A word that was stored and is not durable has been seen by nobody.
#[test]
fn who_saw_what_is_not_durable_does_not_commit() {
    let pm = MemoryPmem::new(DATA + WORDS * 8);
    let faulty = for_two(&pm);
    let memory = Area::recover(&faulty, 0, Options::default()).unwrap();
    let (mut one, mut other) = (memory.session(), memory.session());
    other.begin().unwrap();
    fail_to_commit(&mut one, &faulty, &[DATA]);
    assert_eq!(other.load(DATA), Ok(1));
    assert!(matches!(other.commit(), Err(Uncommitted::Failed(_))));
}

/// Bytes that are filled replace those that the transaction stored there before.
#[test]
fn what_is_filled_last_stays() {
    let mut rng = Rng::with_seed(1);
    let pm = made(&mut rng, 1);
    let memory = Area::recover(&pm, 0, Options::default()).unwrap();
    let mut session = memory.session();
    session.begin().unwrap();
    session.store(DATA, u64::MAX).unwrap();
    session.store(DATA + 8, 1).unwrap();
    session.fill(DATA + 4, &[2; 100]).unwrap();
    let expected = u64::MAX >> 32 | 0x0202_0202 << 32;
    assert_eq!(session.load(DATA).unwrap(), expected);
    session.commit().unwrap();
    assert_eq!(all(&pm)[..2], [expected, 0x0202_0202_0202_0202]);
}
