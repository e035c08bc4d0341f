//! The use of logs by commits, and truncation.

use super::*;

#[test]
fn a_panic_in_a_body_rolls_back() {
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

/// If a thread truncates, commits wait until it gives them room.
#[test]
fn a_thread_truncates_for_commits() {
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
fn add_to(session: &mut TxSession<&MemoryPmem>, words: [u64; 2]) {
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

/// Each thread has its own line, and all add to the first word.
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

/// More threads commit than there are logs, which are all in use when they begin. Some have to wait
/// for one.
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

/// T4, for words that were committed by a log.
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
fn transactions_that_only_read_store_nothing() {
    for truncation in [Truncation::Lazy, Truncation::Eager] {
        only_reads(truncation);
    }
}

/// A round that cannot raise the low water writes nothing back: the fence of the next round, by
/// another thread, would not make it durable.
#[test]
fn a_round_that_cannot_raise_the_low_water_writes_nothing_back() {
    for seed in 0..20 {
        let power = PowerCut::new(made(&mut Rng::with_seed(seed), 2));
        let memory = Area::recover(&power, 0, Options::default()).unwrap();
        // Simulates a commit that is under way.
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
