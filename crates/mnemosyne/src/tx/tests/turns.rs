//! Waits of transactions for each other: privatisation, and turns.

use super::*;

/// A thread makes a word private and then uses it without transactions.
#[test]
fn a_private_word_is_used_by_no_transaction() {
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
                            // The word is shared: no thread has made it private.
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

/// A commit waits for transactions that have read what it changes, and for no others. No thread
/// sees the change before.
#[test]
fn a_commit_waits_only_for_readers_of_its_words() {
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
        // The reader has not read this word, so no commit waits for it.
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
        // The reads are still of one time.
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

/// The time after which a step counts as hung.
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
    // Both begin before either commits.
    for mut session in sessions {
        let send = send.clone();
        std::thread::spawn(move || send.send(session.commit().is_ok()));
    }
    for _ in 0..2 {
        assert_eq!(committed.recv_timeout(WATCHDOG), Ok(true));
    }
}

/// A commit that waits for a reader keeps its lock. Meanwhile the turn is given back.
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
        // The session stays, as that of a thread that tries again.
        std::mem::forget(other);
    });
    assert_eq!(tried.recv_timeout(WATCHDOG), Ok(Err(Interrupted::Conflict)));
    assert_eq!(write(DATA + 64).recv_timeout(WATCHDOG), Ok(true));
    reader.commit().unwrap();
    assert_eq!(blocked.recv_timeout(WATCHDOG), Ok(true));
}

/// Another thread commits during each attempt, until one of the transactions has the turn.
#[test]
fn transactions_that_conflict_in_every_attempt_get_the_turn() {
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

/// A session with the turn needs a lock whose owner's thread waits for its own commit.
#[test]
fn a_turn_and_a_lock_do_not_deadlock() {
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
fn the_turn_belongs_to_a_thread() {
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
        // Any end of a transaction gives the turn back.
        session.pause(u32::MAX);
        session.begin().unwrap();
        session.roll_back();
        scope.spawn(|| write(DATA)).join().unwrap();
    });
    let failed = memory.session().run(|_| Err::<(), _>(Stop::Cancel(())));
    assert!(failed.is_err());
}

/// An error between the start and the commit of a transaction drops its session.
#[test]
fn a_dropped_session_leaves_no_locks() {
    let pm = std::sync::Arc::new(made(&mut Rng::with_seed(1), 3));
    let memory = Area::recover(pm.clone(), 0, Options::default()).unwrap();
    let mut session = memory.session();
    session.begin().unwrap();
    session.store(DATA, 7).unwrap();
    drop(session);
    let was = pm.load(DATA).unwrap();
    let mut other = memory.session();
    let stored = other.run(|tx| {
        assert_eq!(tx.load(DATA)?, was);
        Ok::<_, Stop<()>>(tx.store(DATA, 8)?)
    });
    stored.unwrap();
    assert_eq!(pm.load(DATA).unwrap(), 8);
}
