//! Isolation of transactions from each other, and words that are not persistent.

use super::*;

#[test]
fn repeated_reads_are_recorded_once() {
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

/// Volatile words from [`VOLATILE`] on, and persistent ones below.
struct Mixed<'a> {
    pm: &'a MemoryPmem,
    volatile: MemoryPmem,
}

const VOLATILE: u64 = 1 << 40;

impl Mixed<'_> {
    fn memory(&self, at: u64) -> (&MemoryPmem, u64) {
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
        let (memory, at) = self.memory(at);
        memory.load(at)
    }

    fn read_at(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        let (memory, at) = self.memory(at);
        memory.read(at, buf)
    }

    fn store_at(&self, at: u64, word: u64, mask: u8) {
        let (memory, at) = self.memory(at);
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
    // Far more words than a log takes.
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

/// A transaction that reads during a change in place is not valid afterwards.
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
        assert!(other.load(VOLATILE).is_err(), "the lock is taken");
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
