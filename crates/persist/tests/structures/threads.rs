//! Several threads on one structure.

use super::{Memory, allocated, formatted, opened, run};
use fastrand::Rng;
use mnemosyne::memory::{DurableMemory, Session, Tx};
use mnemosyne::tx::{Interrupted, Space};
use persist::structures::{BTree, HashMap, Queue};
use persist::{Ptr, TypedSession};

/// A map of balances.
trait Accounts: Copy + Send + Sync {
    fn get<S: Space>(self, tx: &mut Tx<'_, S>, key: u64) -> Result<Option<u64>, Interrupted>;
    fn insert<S: Space>(self, tx: &mut Tx<'_, S>, key: u64, to: u64) -> Result<(), Interrupted>;
    fn remove<S: Space>(self, tx: &mut Tx<'_, S>, key: u64) -> Result<Option<u64>, Interrupted>;
    fn sums<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<Sums, Interrupted>;
}

/// The sum of balances, and the numbers of accounts found and counted.
type Sums = (u64, u64, u64);

macro_rules! accounts {
    ($type:ty) => {
        impl Accounts for Ptr<$type> {
            fn get<S: Space>(
                self,
                tx: &mut Tx<'_, S>,
                key: u64,
            ) -> Result<Option<u64>, Interrupted> {
                Ptr::<$type>::get(self, tx, &key)
            }

            fn insert<S: Space>(
                self,
                tx: &mut Tx<'_, S>,
                key: u64,
                to: u64,
            ) -> Result<(), Interrupted> {
                Ptr::<$type>::insert(self, tx, &key, &to).map(drop)
            }

            fn remove<S: Space>(
                self,
                tx: &mut Tx<'_, S>,
                key: u64,
            ) -> Result<Option<u64>, Interrupted> {
                Ptr::<$type>::remove(self, tx, &key)
            }

            fn sums<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<Sums, Interrupted> {
                let (mut sum, mut found) = (0, 0);
                for entry in self.iter(tx) {
                    sum += entry?.1;
                    found += 1;
                }
                Ok((sum, found, self.len(tx)?))
            }
        }
    };
}
accounts!(HashMap<u64, u64>);
accounts!(BTree<u64, u64, 5>);

/// Keys that accounts may have.
const KEYS: u64 = 600;
const SUM: u64 = 100_000;

/// Moves a part of the balance of one account to another; an empty account is closed.
fn transfer<S: Space>(
    tx: &mut Tx<'_, S>,
    accounts: impl Accounts,
    from: u64,
    to: u64,
    amount: u64,
) -> Result<(), Interrupted> {
    let Some(balance) = accounts.get(tx, from)? else {
        return Ok(());
    };
    match balance.checked_sub(amount) {
        Some(rest) if rest > 0 => accounts.insert(tx, from, rest)?,
        _ => drop(accounts.remove(tx, from)?),
    }
    let other = accounts.get(tx, to)?.unwrap_or(0);
    accounts.insert(tx, to, other + amount.min(balance))
}

fn sums_hold(memory: &DurableMemory<Memory>, accounts: impl Accounts) {
    run(&mut memory.session(), |tx| {
        (0..100).try_for_each(|key| accounts.insert(tx, key, SUM / 100))
    });
    std::thread::scope(|scope| {
        for seed in 0..3 {
            scope.spawn(move || {
                let mut session = memory.session();
                let mut rng = Rng::with_seed(seed);
                for _ in 0..20_000 {
                    let (from, to) = (rng.u64(..KEYS), rng.u64(..KEYS));
                    let amount = rng.u64(1..2 * SUM / 100);
                    run(&mut session, |tx| transfer(tx, accounts, from, to, amount));
                }
            });
        }
        scope.spawn(move || {
            let mut session = memory.session();
            for _ in 0..200 {
                check(&mut session, accounts);
            }
        });
    });
    check(&mut memory.session(), accounts);
}

fn check(session: &mut Session<Memory>, accounts: impl Accounts) {
    let (sum, found, counted) = run(session, |tx| accounts.sums(tx));
    assert_eq!((sum, counted), (SUM, found));
}

#[test]
fn threads_share_a_hash_map() {
    let mut session = opened(&formatted(16 << 20));
    let map = session.root("map", |_| Ok(HashMap::<u64, u64>::with_seed(7)));
    let map = map.unwrap();
    sums_hold(session.memory(), map);
    run(&mut session, |tx| map.clear(tx));
    assert_eq!(allocated(&session), [map.off()]);
}

#[test]
fn threads_share_a_b_tree() {
    let mut session = opened(&formatted(16 << 20));
    let tree = session.root("tree", |_| Ok(BTree::<u64, u64, 5>::new()));
    let tree = tree.unwrap();
    sums_hold(session.memory(), tree);
    run(&mut session, |tx| tree.clear(tx));
    assert_eq!(allocated(&session), [tree.off()]);
}

/// Each element is popped once, and the elements of each thread in their order.
#[test]
fn threads_share_a_queue() {
    let mut session = opened(&formatted(16 << 20));
    let queue = session.root("queue", |_| Ok(Queue::<u64, 4>::new()));
    let queue = queue.unwrap();
    let memory = &session.memory().clone();
    let (producers, each) = (2, 10_000);
    let taken: Vec<Vec<u64>> = std::thread::scope(|scope| {
        for producer in 0..producers {
            scope.spawn(move || {
                let mut session = memory.session();
                for n in 0..each {
                    run(&mut session, |tx| queue.push(tx, &(producer * each + n)));
                }
            });
        }
        let consume = move || {
            let mut session = memory.session();
            let mut taken = Vec::new();
            while taken.len() < each as usize {
                taken.extend(run(&mut session, |tx| queue.pop(tx)));
            }
            taken
        };
        let consumers: Vec<_> = (0..producers).map(|_| scope.spawn(consume)).collect();
        let taken = consumers.into_iter().map(|one| one.join().unwrap());
        taken.collect()
    });
    for producer in 0..producers {
        let of_it = |n: &&u64| **n / each == producer;
        for taken in &taken {
            assert!(taken.iter().filter(of_it).is_sorted());
        }
    }
    let mut all = taken.concat();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..producers * each));
    run(&mut session, |tx| queue.clear(tx));
    assert_eq!(allocated(&session), [queue.off()]);
}
