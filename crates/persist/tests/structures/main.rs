//! Persistent structures: compared with those of the standard library, in damaged memory, and
//! in several threads.

mod damage;
mod subjects;
mod threads;

use fastrand::Rng;
use medium::MemoryPmem;
use mnemosyne::memory::{DurableMemory, Flat, Layout, Options, Session, Tx};
use mnemosyne::tx::{self, Interrupted, Stop, TxError};
use persist::structures::{Bytes, HashMap, Vector};
use persist::{Layouts, Persist, Ptr, TypedSession, TypedTx};
use std::convert::Infallible;
use std::sync::Arc;
use subjects::{BTrees, HashMaps, Large, Logs, Queues, Subject, Vectors};

type Pm = Arc<MemoryPmem>;
type Memory = Flat<Pm>;

fn formatted(bytes: u64) -> Pm {
    let layout = Layout {
        slots: 64,
        roots: 4,
        granule: 8192,
        logs: 4,
        log_bytes: 128 << 10,
        ..Layout::default()
    };
    let pm = Arc::new(MemoryPmem::new(bytes));
    layout.format(&pm).unwrap();
    pm
}

fn opened(pm: &Pm) -> Session<Memory> {
    let options = Options {
        tx: tx::Options {
            locks: 1 << 12,
            ..tx::Options::default()
        },
        heap_growth: 256 << 10,
    };
    let memory = DurableMemory::open(Flat(pm.clone()), pm.clone(), options).unwrap();
    memory.session()
}

fn run<R>(
    session: &mut Session<Memory>,
    mut body: impl FnMut(&mut Tx<'_, Pm>) -> Result<R, Interrupted>,
) -> R {
    let done = session.run(|tx| Ok::<_, Stop<Infallible>>(body(tx)?));
    done.unwrap()
}

/// All allocated blocks, in order.
fn allocated(session: &Session<Memory>) -> Vec<u64> {
    let memory = session.memory();
    let mut blocks = Vec::new();
    for segment in memory.heap().segments() {
        let found = segment.blocks(memory.memory().space()).unwrap();
        blocks.extend(found.iter().map(|(start, _)| *start));
    }
    blocks.sort_unstable();
    blocks
}

/// A structure, and its session.
struct Trial<T: Subject> {
    pm: Pm,
    session: Session<Memory>,
    made: Ptr<T::Made>,
    model: T::Model,
    rng: Rng,
}

impl<T: Subject> Trial<T> {
    fn new(seed: u64, bytes: u64) -> Self {
        let pm = formatted(bytes);
        let mut session = opened(&pm);
        let made = session.root("it", |_| Ok(T::make())).unwrap();
        Self {
            pm,
            session,
            made,
            model: T::Model::default(),
            rng: Rng::with_seed(seed),
        }
    }

    /// Runs a transaction of some operations, and cancels it sometimes.
    fn change(&mut self, grows: bool) {
        let made = self.made;
        let count = self.rng.u32(1..5);
        let is_cancelled = self.rng.u32(..5) == 0;
        let (rng, model) = (self.rng.fork(), self.model.clone());
        let done = self.session.run(|tx| {
            let (mut rng, mut model) = (rng.clone(), model.clone());
            for _ in 0..count {
                T::change(tx, made, &mut model, &mut rng, grows)?;
            }
            match is_cancelled {
                true => Err(Stop::Cancel("as it was to be")),
                false => Ok(model),
            }
        });
        match done {
            Ok(model) => self.model = model,
            Err(TxError::Cancelled(_)) if is_cancelled => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn check(&mut self) {
        let (made, model) = (self.made, &self.model);
        let mut blocks = run(&mut self.session, |tx| {
            T::check(tx, made, model)?;
            T::blocks(tx, made)
        });
        blocks.push(made.off());
        blocks.sort_unstable();
        assert_eq!(blocks, allocated(&self.session));
    }

    fn reopen(self) -> Self {
        drop(self.session);
        let mut session = opened(&self.pm);
        let found = session.root("it", |_| panic!("it is there"));
        assert_eq!(found.unwrap(), self.made);
        Self { session, ..self }
    }
}

/// Grows and shrinks a structure, compares it with its model, and finally clears it.
fn is_like_its_model<T: Subject>() {
    for seed in 0..2 {
        let mut trial = Trial::<T>::new(seed, 16 << 20);
        for grows in [true, false, true, false, true] {
            for step in 0..300 {
                trial.change(grows);
                if step % 50 == 0 {
                    trial.check();
                }
            }
            trial = trial.reopen();
            trial.check();
        }
        let made = trial.made;
        trial.model = T::Model::default();
        match seed {
            0 => run(&mut trial.session, |tx| T::clear(tx, made)),
            _ => while !run(&mut trial.session, |tx| T::clear_some(tx, made, 7)) {},
        }
        assert_eq!(allocated(&trial.session), [made.off()]);
        // Usable as a new structure.
        trial.model = run(&mut trial.session, |tx| {
            tx.set(made, &T::make())?;
            Ok(T::Model::default())
        });
        trial.change(true);
        trial.check();
    }
}

#[test]
fn a_vector_is_like_its_model() {
    is_like_its_model::<Vectors<u64, 8>>();
    is_like_its_model::<Vectors<Bytes, 1>>();
    is_like_its_model::<Vectors<Large, 3>>();
}

#[test]
fn a_queue_is_like_its_model() {
    is_like_its_model::<Queues<u64, 32>>();
    is_like_its_model::<Queues<Bytes, 1>>();
    is_like_its_model::<Queues<Large, 3>>();
}

#[test]
fn a_log_is_like_its_model() {
    is_like_its_model::<Logs<4088>>();
    is_like_its_model::<Logs<8>>();
    is_like_its_model::<Logs<600>>();
}

#[test]
fn a_hash_map_is_like_its_model() {
    is_like_its_model::<HashMaps<u64, u64>>();
    is_like_its_model::<HashMaps<Bytes, Bytes>>();
    is_like_its_model::<HashMaps<u64, Large>>();
}

#[test]
fn a_b_tree_is_like_its_model() {
    is_like_its_model::<BTrees<u64, u64, 3>>();
    is_like_its_model::<BTrees<u64, u64, 5>>();
    is_like_its_model::<BTrees<u64, Bytes, 15>>();
    is_like_its_model::<BTrees<Bytes, u64, 3>>();
    is_like_its_model::<BTrees<Bytes, Bytes, 7>>();
    is_like_its_model::<BTrees<Large, u64, 3>>();
}

/// One structure inside another: a place in a map is never moved.
#[derive(Debug, Persist)]
struct Shelf {
    books: HashMap<Bytes, Vector<u64>>,
}

#[test]
fn structures_hold_structures() {
    let pm = formatted(4 << 20);
    let mut session = opened(&pm);
    let make = |_: &mut Tx<'_, Pm>| {
        Ok(Shelf {
            books: HashMap::with_seed(1),
        })
    };
    let books = session.root("shelf", make).unwrap().at(Shelf::BOOKS);
    for n in 0..500_u64 {
        run(&mut session, |tx| {
            let title = [b'a' + (n % 26) as u8; 40];
            let pages = match books.find(tx, &title)? {
                Some(pages) => pages,
                None => {
                    books.insert(tx, &title, &Vector::new())?;
                    books.find(tx, &title)?.expect("it was inserted")
                }
            };
            pages.push(tx, &n)?;
            Ok(())
        });
    }
    drop(session);
    let mut session = opened(&pm);
    run(&mut session, |tx| {
        for letter in 0..26 {
            let title = [b'a' + letter as u8; 40];
            let pages = books.find(tx, &title)?.expect("it was inserted");
            let found = pages.iter(tx).collect::<Result<Vec<_>, _>>()?;
            assert!(found.into_iter().eq((letter..500).step_by(26)));
            // The program frees the structures in the values.
            pages.clear(tx)?;
        }
        books.clear(tx)
    });
    assert_eq!(allocated(&session).len(), 1);
    let layout = Layouts::of::<Shelf>();
    assert!(layout.text().contains("vector/8 u64"), "{}", layout.text());
}

/// No transaction of a growing structure is long.
#[test]
fn growth_comes_in_small_steps() {
    let pm = {
        let layout = Layout {
            slots: 64,
            roots: 4,
            granule: 8192,
            logs: 1,
            // Accepts records of at most about 200 words.
            log_bytes: 2 << 10,
            ..Layout::default()
        };
        let pm = Arc::new(MemoryPmem::new(16 << 20));
        layout.format(&pm).unwrap();
        pm
    };
    let mut session = opened(&pm);
    let map = session.root("map", |_| Ok(HashMap::<u64, u64>::new()));
    let map = map.unwrap();
    for n in 0..20_000 {
        run(&mut session, |tx| map.insert(tx, &n, &n));
    }
    for n in 0..20_000 {
        assert_eq!(run(&mut session, |tx| map.remove(tx, &n)), Some(n));
    }
    while !run(&mut session, |tx| map.clear_some(tx, 2)) {}
    assert_eq!(allocated(&session), [map.off()]);
}
