//! Commits that fail, and the transactions after them.

use super::*;

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

/// Stores 1 in these words, and commits while fences fail.
fn fail_to_commit<'a>(
    session: &mut TxSession<&'a Faulty<&'a MemoryPmem>>,
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

/// A failed commit may have left its words in a log. No later commit stores newer ones, or fills a
/// block that it released.
#[test]
fn no_transaction_commits_after_a_failed_commit() {
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

/// A transaction that cannot begin does not block others.
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

/// A word that was stored but is not durable is visible to no transaction that commits.
#[test]
fn a_reader_of_a_word_that_is_not_durable_cannot_commit() {
    let pm = MemoryPmem::new(DATA + WORDS * 8);
    let faulty = for_two(&pm);
    let memory = Area::recover(&faulty, 0, Options::default()).unwrap();
    let (mut one, mut other) = (memory.session(), memory.session());
    other.begin().unwrap();
    fail_to_commit(&mut one, &faulty, &[DATA]);
    assert_eq!(other.load(DATA), Ok(1));
    assert!(matches!(other.commit(), Err(Uncommitted::Failed(_))));
}

/// Bytes that are filled replace earlier writes of the transaction.
#[test]
fn a_fill_replaces_earlier_writes_of_its_transaction() {
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
