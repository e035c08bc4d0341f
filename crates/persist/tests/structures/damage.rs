//! Structures in damaged memory: operations end, whatever a word contains.

use super::Trial;
use super::subjects::{BTrees, HashMaps, Logs, Queues, Subject, Vectors};
use medium::{Pmem, WORD_BYTES};
use mnemosyne::memory::{Session, Tx};
use mnemosyne::tx::{Interrupted, Stop, TxError};
use persist::structures::Bytes;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};

type Pm = super::Pm;

/// All words of the memory.
fn snapshot(pm: &Pm) -> Vec<u64> {
    let words = (0..pm.len() / WORD_BYTES).map(|n| pm.load(n * WORD_BYTES));
    words.collect::<Result<_, _>>().unwrap()
}

fn restore(pm: &Pm, snapshot: &[u64]) {
    for (n, word) in snapshot.iter().enumerate() {
        let at = n as u64 * WORD_BYTES;
        if pm.load(at) != Ok(*word) {
            pm.store_word(at, *word);
        }
    }
}

/// Runs a transaction without effect. Returns whether it succeeded.
fn attempt<R>(
    session: &mut Session<super::Memory>,
    mut body: impl FnMut(&mut Tx<'_, Pm>) -> Result<R, Interrupted>,
) -> bool {
    let done = session.run(|tx| {
        body(tx)?;
        Err::<(), _>(Stop::Cancel("it is damaged"))
    });
    matches!(done, Err(TxError::Cancelled(_)))
}

/// Damages words of a structure, one at a time, and tries all operations.
fn operations_end<T: Subject>() {
    let mut trial = Trial::<T>::new(5, 2 << 20);
    for _ in 0..60 {
        trial.change(true);
    }
    let made = trial.made;
    let blocks = super::run(&mut trial.session, |tx| T::blocks(tx, made));
    let Trial {
        pm,
        session,
        mut rng,
        model,
        ..
    } = trial;
    // Keeps a recovery from repairing the damage.
    session.memory().memory().truncate().unwrap();
    drop(session);
    let before = snapshot(&pm);
    let mut refused = 0;
    for _ in 0..150 {
        // Mostly the head and the heads of blocks, which contain pointers.
        let start = match rng.u32(..3) {
            0 => made.off(),
            _ => blocks[rng.usize(..blocks.len())],
        };
        let at = start + rng.u64(..8) * WORD_BYTES;
        let word = match rng.u32(..6) {
            0 => rng.u64(..),
            1 => u64::MAX - rng.u64(..64),
            2 => rng.u64(..64),
            3 => before[(at / WORD_BYTES) as usize] ^ 1 << rng.u32(..64),
            // A place in this structure, and the original contents again.
            _ => blocks[rng.usize(..blocks.len())],
        };
        pm.store_word(at, word);
        let mut session = super::opened(&pm);
        let mut is_done = attempt(&mut session, |tx| T::blocks(tx, made));
        is_done &= attempt(&mut session, |tx| T::clear(tx, made));
        is_done &= attempt(&mut session, |tx| T::clear_some(tx, made, 20));
        for grows in [true, false, true, false] {
            let rng = rng.fork();
            let body = |tx: &mut Tx<'_, Pm>| {
                let (mut rng, mut model) = (rng.clone(), model.clone());
                T::change(tx, made, &mut model, &mut rng, grows)
            };
            is_done &= attempt(&mut session, |tx| answers(|| body(tx)));
        }
        is_done &= attempt(&mut session, |tx| answers(|| T::check(tx, made, &model)));
        refused += u32::from(!is_done);
        drop(session);
        restore(&pm, &before);
    }
    assert!(refused > 15, "only {refused} damages were noticed");
}

/// Runs an operation, whose answer may differ from the model's. Every other panic is an error.
fn answers(body: impl FnOnce() -> Result<(), Interrupted>) -> Result<(), Interrupted> {
    let panic = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(done) => return done,
        Err(panic) => panic,
    };
    let is_comparison = |text: &str| text.starts_with("assertion ");
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    match text.is_some_and(is_comparison) {
        true => Ok(()),
        false => panic!("{}", text.unwrap_or("it has no text")),
    }
}

#[test]
fn operations_on_damaged_structures_end() {
    // Comparisons that fail here need not print their panics.
    let (here, tell) = (std::thread::current().id(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        let is_comparison = |at: &Location<'_>| at.file().ends_with("subjects.rs");
        if here != std::thread::current().id() || !panic.location().is_some_and(is_comparison) {
            tell(panic);
        }
    }));
    operations_end::<Vectors<u64, 2>>();
    operations_end::<Vectors<Bytes, 2>>();
    operations_end::<Queues<u64, 3>>();
    operations_end::<Queues<Bytes, 3>>();
    operations_end::<Logs<40>>();
    operations_end::<HashMaps<u64, u64>>();
    operations_end::<HashMaps<Bytes, Bytes>>();
    operations_end::<BTrees<u64, u64, 3>>();
    operations_end::<BTrees<Bytes, Bytes, 3>>();
}
