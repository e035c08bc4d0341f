//! Structures, each with its model from the standard library.

use fastrand::Rng;
use mnemosyne::memory::Tx;
use mnemosyne::tx::{Interrupted, Space};
use persist::structures::{BTree, Bytes, Cursor, HashMap, Item, Journal, Key, Queue, Vector};
use persist::{Persist, Ptr};
use std::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::Bound;

/// A structure and its model.
pub trait Subject {
    type Made: Persist;
    type Model: Clone + Default;

    fn make() -> Self::Made;

    /// Changes both, and compares the results. With `grows`, mostly adds elements.
    fn change<S: Space>(
        tx: &mut Tx<'_, S>,
        made: Ptr<Self::Made>,
        model: &mut Self::Model,
        rng: &mut Rng,
        grows: bool,
    ) -> Result<(), Interrupted>;

    /// Compares all contents.
    fn check<S: Space>(
        tx: &mut Tx<'_, S>,
        made: Ptr<Self::Made>,
        model: &Self::Model,
    ) -> Result<(), Interrupted>;

    fn blocks<S: Space>(tx: &mut Tx<'_, S>, made: Ptr<Self::Made>)
    -> Result<Vec<u64>, Interrupted>;

    fn clear<S: Space>(tx: &mut Tx<'_, S>, made: Ptr<Self::Made>) -> Result<(), Interrupted>;

    fn clear_some<S: Space>(
        tx: &mut Tx<'_, S>,
        made: Ptr<Self::Made>,
        most: u64,
    ) -> Result<bool, Interrupted>;
}

/// The elements of the structures in these tests.
pub trait Sample: Item<Owned: Clone + Debug + Ord, Borrowed: Ord> {
    /// The `n`-th sample.
    fn sample(n: u64) -> Self::Owned;
}

impl Sample for u64 {
    fn sample(n: u64) -> Self {
        n
    }
}

/// Short ones, long ones, and some with the same start.
impl Sample for Bytes {
    fn sample(n: u64) -> Vec<u8> {
        let mut bytes = vec![b'a'; (n % 7) as usize];
        bytes.extend(n.to_string().bytes());
        let more = match n % 16 {
            3 => 700,
            11 => 5000,
            _ => n % 9,
        };
        bytes.resize(bytes.len() + more as usize, n as u8);
        bytes
    }
}

/// A value so large that it is filled without a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Persist)]
pub struct Large {
    words: [u64; 80],
    last: bool,
}

impl Sample for Large {
    fn sample(n: u64) -> Self {
        let (words, last) = ([n; 80], n.is_multiple_of(2));
        Self { words, last }
    }
}

fn borrowed<T: Item>(item: &T::Owned) -> &T::Borrowed {
    item.borrow()
}

macro_rules! whole {
    ($type:ty) => {
        type Made = $type;

        fn make() -> Self::Made {
            <$type>::default()
        }

        fn blocks<S: Space>(
            tx: &mut Tx<'_, S>,
            made: Ptr<Self::Made>,
        ) -> Result<Vec<u64>, Interrupted> {
            made.blocks(tx)
        }

        fn clear<S: Space>(tx: &mut Tx<'_, S>, made: Ptr<Self::Made>) -> Result<(), Interrupted> {
            made.clear(tx)
        }

        fn clear_some<S: Space>(
            tx: &mut Tx<'_, S>,
            made: Ptr<Self::Made>,
            most: u64,
        ) -> Result<bool, Interrupted> {
            made.clear_some(tx, most)
        }
    };
}

pub struct Vectors<T, const FIRST: usize>(PhantomData<T>);

impl<T: Sample, const FIRST: usize> Subject for Vectors<T, FIRST> {
    type Model = Vec<T::Owned>;
    whole!(Vector<T, FIRST>);

    fn change<S: Space>(
        tx: &mut Tx<'_, S>,
        made: Ptr<Self::Made>,
        model: &mut Self::Model,
        rng: &mut Rng,
        grows: bool,
    ) -> Result<(), Interrupted> {
        let item = T::sample(rng.u64(..1000));
        let n = rng.usize(..=model.len());
        match rng.u32(..20) {
            0..3 => {
                let old = made.set(tx, n as u64, borrowed::<T>(&item))?;
                let there = model.get_mut(n);
                assert_eq!(old, there.map(|there| std::mem::replace(there, item)));
            }
            3..6 => assert_eq!(made.get(tx, n as u64)?, model.get(n).cloned()),
            6 if !grows => {
                let len = model.len().saturating_sub(rng.usize(..20));
                made.truncate(tx, len as u64)?;
                model.truncate(len);
            }
            k if (k < 16) == grows => {
                assert_eq!(made.push(tx, borrowed::<T>(&item))?, model.len() as u64);
                model.push(item);
            }
            _ => assert_eq!(made.pop(tx)?, model.pop()),
        }
        Ok(())
    }

    fn check<S: Space>(
        tx: &mut Tx<'_, S>,
        made: Ptr<Self::Made>,
        model: &Self::Model,
    ) -> Result<(), Interrupted> {
        assert_eq!(made.len(tx)?, model.len() as u64);
        assert_eq!(made.is_empty(tx)?, model.is_empty());
        assert_eq!(&made.iter(tx).collect::<Result<Vec<_>, _>>()?, model);
        assert!(made.find(tx, model.len() as u64)?.is_none());
        Ok(())
    }
}

pub struct Queues<T, const BLOCK: usize>(PhantomData<T>);

impl<T: Sample, const BLOCK: usize> Subject for Queues<T, BLOCK> {
    type Model = VecDeque<T::Owned>;
    whole!(Queue<T, BLOCK>);

    fn change<S: Space>(
        tx: &mut Tx<'_, S>,
        made: Ptr<Self::Made>,
        model: &mut Self::Model,
        rng: &mut Rng,
        grows: bool,
    ) -> Result<(), Interrupted> {
        let item = T::sample(rng.u64(..1000));
        match rng.u32(..20) {
            0..2 => assert_eq!(made.peek(tx)?.as_ref(), model.front()),
            k if (k < 14) == grows => {
                made.push(tx, borrowed::<T>(&item))?;
                model.push_back(item);
            }
            _ => assert_eq!(made.pop(tx)?, model.pop_front()),
        }
        Ok(())
    }

    fn check<S: Space>(
        tx: &mut Tx<'_, S>,
        made: Ptr<Self::Made>,
        model: &Self::Model,
    ) -> Result<(), Interrupted> {
        assert_eq!(made.len(tx)?, model.len() as u64);
        assert_eq!(made.is_empty(tx)?, model.is_empty());
        assert_eq!(&made.iter(tx).collect::<Result<VecDeque<_>, _>>()?, model);
        Ok(())
    }
}

pub struct Logs<const BLOCK: usize>;

impl<const BLOCK: usize> Subject for Logs<BLOCK> {
    /// All records ever appended, the number of the first present one, and a reader's position.
    type Model = (Vec<Vec<u8>>, usize, Cursor);
    whole!(Journal<BLOCK>);

    fn change<S: Space>(
        tx: &mut Tx<'_, S>,
        made: Ptr<Self::Made>,
        (records, from, place): &mut Self::Model,
        rng: &mut Rng,
        grows: bool,
    ) -> Result<(), Interrupted> {
        match rng.u32(..20) {
            0..3 => {
                let next = (place.number() as usize).max(*from);
                let found = made.read(tx, place)?;
                assert_eq!(found.as_ref(), records.get(next));
                assert!(found.is_none() || place.number() == next as u64 + 1);
            }
            3 if !grows && rng.u32(..10) == 0 => {
                made.clear(tx)?;
                *from = records.len();
            }
            k if (k < 15) == grows => {
                let record = Bytes::sample(rng.u64(..1000));
                assert_eq!(made.append(tx, &record)?, records.len() as u64);
                records.push(record);
            }
            _ => {
                let number = rng.usize(..=*from + 5);
                made.truncate(tx, number as u64)?;
                *from = number.clamp(*from, records.len().max(*from));
            }
        }
        Ok(())
    }

    fn check<S: Space>(
        tx: &mut Tx<'_, S>,
        made: Ptr<Self::Made>,
        (records, from, _): &Self::Model,
    ) -> Result<(), Interrupted> {
        assert_eq!(made.numbers(tx)?, *from as u64..records.len() as u64);
        for start in [0, *from, from + 3] {
            let found = made.iter(tx, start as u64);
            let found = found.collect::<Result<Vec<_>, _>>()?;
            let left = records.iter().enumerate().skip(start.max(*from));
            let left: Vec<_> = left.map(|(n, r)| (n as u64, r.clone())).collect();
            assert_eq!(found, left);
        }
        Ok(())
    }
}

pub struct HashMaps<K, V>(PhantomData<(K, V)>);

/// Keys of maps are the samples up to this one.
const KEYS: u64 = 700;

impl<K: Sample, V: Sample> Subject for HashMaps<K, V> {
    type Model = BTreeMap<K::Owned, V::Owned>;
    whole!(HashMap<K, V>);

    fn change<S: Space>(
        tx: &mut Tx<'_, S>,
        made: Ptr<Self::Made>,
        model: &mut Self::Model,
        rng: &mut Rng,
        grows: bool,
    ) -> Result<(), Interrupted> {
        let (key, value) = (K::sample(rng.u64(..KEYS)), V::sample(rng.u64(..1000)));
        let by = borrowed::<K>(&key);
        match rng.u32(..20) {
            0..2 => assert_eq!(made.get(tx, by)?.as_ref(), model.get(by)),
            2..4 => assert_eq!(made.contains(tx, by)?, model.contains_key(by)),
            k if (k < 18) == grows => {
                let old = made.insert(tx, by, borrowed::<V>(&value))?;
                assert_eq!(old, model.insert(key, value));
            }
            _ => assert_eq!(made.remove(tx, by)?, model.remove(by)),
        }
        Ok(())
    }

    fn check<S: Space>(
        tx: &mut Tx<'_, S>,
        made: Ptr<Self::Made>,
        model: &Self::Model,
    ) -> Result<(), Interrupted> {
        assert_eq!(made.len(tx)?, model.len() as u64);
        assert_eq!(made.is_empty(tx)?, model.is_empty());
        let found = made.iter(tx).collect::<Result<Vec<_>, _>>()?;
        assert_eq!(found.len(), model.len());
        let mut rest = found.iter();
        while let Some((key, _)) = rest.next() {
            let next = rest.as_slice().first().cloned();
            assert_eq!(made.next(tx, borrowed::<K>(key))?, Some(next));
        }
        assert_eq!(&BTreeMap::from_iter(found), model);
        for (key, value) in model {
            assert_eq!(made.get(tx, borrowed::<K>(key))?.as_ref(), Some(value));
        }
        Ok(())
    }
}

pub struct BTrees<K, V, const FANOUT: usize>(PhantomData<(K, V)>);

impl<K: Sample + Key, V: Sample, const FANOUT: usize> Subject for BTrees<K, V, FANOUT> {
    type Model = BTreeMap<K::Owned, V::Owned>;
    whole!(BTree<K, V, FANOUT>);

    fn change<S: Space>(
        tx: &mut Tx<'_, S>,
        made: Ptr<Self::Made>,
        model: &mut Self::Model,
        rng: &mut Rng,
        grows: bool,
    ) -> Result<(), Interrupted> {
        let (key, value) = (K::sample(rng.u64(..KEYS)), V::sample(rng.u64(..1000)));
        let by = borrowed::<K>(&key);
        match rng.u32(..24) {
            0..2 => assert_eq!(made.get(tx, by)?.as_ref(), model.get(by)),
            2 => assert_eq!(made.contains(tx, by)?, model.contains_key(by)),
            3 => {
                let other = K::sample(rng.u64(..KEYS));
                let (from, to) = (key.clone().min(other.clone()), key.max(other));
                let bound = |rng: &mut Rng| match rng.u32(..3) {
                    0 => Bound::Included(()),
                    1 => Bound::Excluded(()),
                    _ => Bound::Unbounded,
                };
                let (start, end) = (bound(rng), bound(rng));
                let range = (
                    start.map(|()| borrowed::<K>(&from)),
                    end.map(|()| borrowed::<K>(&to)),
                );
                let found = made.range(tx, range).collect::<Result<Vec<_>, _>>()?;
                let bounds = (start.map(|()| &from), end.map(|()| &to));
                if from < to {
                    let there = model.range::<K::Owned, _>(bounds);
                    let there: Vec<_> = there.map(|(k, v)| (k.clone(), v.clone())).collect();
                    assert_eq!(found, there);
                }
            }
            4 if !grows => assert_eq!(made.pop_first(tx)?, model.pop_first()),
            5 if !grows => assert_eq!(made.pop_last(tx)?, model.pop_last()),
            k if (k < 21) == grows => {
                let old = made.insert(tx, by, borrowed::<V>(&value))?;
                assert_eq!(old, model.insert(key, value));
            }
            _ => assert_eq!(made.remove(tx, by)?, model.remove(by)),
        }
        Ok(())
    }

    fn check<S: Space>(
        tx: &mut Tx<'_, S>,
        made: Ptr<Self::Made>,
        model: &Self::Model,
    ) -> Result<(), Interrupted> {
        assert_eq!(made.len(tx)?, model.len() as u64);
        assert_eq!(made.is_empty(tx)?, model.is_empty());
        let found = made.iter(tx).collect::<Result<Vec<_>, _>>()?;
        let there: Vec<_> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_eq!(found, there);
        assert_eq!(made.first(tx)?.as_ref(), there.first());
        assert_eq!(made.last(tx)?.as_ref(), there.last());
        for (key, value) in model {
            assert_eq!(made.get(tx, borrowed::<K>(key))?.as_ref(), Some(value));
        }
        Ok(())
    }
}
