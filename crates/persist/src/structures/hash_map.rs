//! A hash map: chains of entries in buckets. The number of buckets follows that of the entries,
//! a few at a time (linear hashing).
//!
//! Guarantee: an entry is never moved.
//!
//! The lowest bits of the hash select a bucket. They are as many bits as the largest number of a
//! bucket has, or one fewer if that bucket does not exist yet. So a new bucket takes entries from one
//! bucket only, its *buddy*. The entries of a removed bucket return to its buddy.

use super::counter::Counter;
use super::vector::Vector;
use super::{Circle, Item, Pair, damaged, headed, item, replace, until_over};
use crate::hash::Seed;
use crate::tx::{with_bytes, write_fresh};
use crate::{Persist, Ptr, TypedTx, offsets};
use mnemosyne::heap::HeapError;
use mnemosyne::memory::Tx;
use mnemosyne::tx::{Interrupted, Space};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::marker::PhantomData;

/// Buckets added or removed together: not every entry changes a word that all threads read.
const STEP: u64 = 8;
/// Number of buckets from which on the count of entries is spread.
const SPREAD: u64 = 128;
/// The description of a valid map in errors about a damaged one.
const WHAT: &str = "sound hash map";

/// A hash map. Keys are equal if their fields are, byte by byte.
pub struct HashMap<K, V> {
    head: Head,
    of: PhantomData<fn() -> (K, V)>,
}

#[derive(Debug, Persist)]
struct Head {
    seed: Seed,
    buckets: Vector<Link>,
    count: Counter,
}

/// The place of an entry, if there is one.
type Link = Option<Ptr<Entry>>;

/// The head of an entry, before its key and its value.
#[derive(Debug, Persist)]
struct Entry {
    next: Link,
    hash: u64,
}

headed!([K: Item, V: Item] HashMap<K, V>, layout => {
    layout.word("hashmap");
    K::Stored::describe(layout);
    V::Stored::describe(layout);
});

impl<K: Item, V: Item> HashMap<K, V> {
    /// Offsets of head, key and value in an entry, and its size.
    const OFFSETS: ([u64; 3], u64) = offsets([
        (Entry::SIZE, Entry::ALIGN),
        (K::Stored::SIZE, K::Stored::ALIGN),
        (V::Stored::SIZE, V::Stored::ALIGN),
    ]);

    /// An empty map. Its random seed keeps chosen keys from colliding more often than others.
    pub fn new() -> Self {
        let random = || u128::from(RandomState::new().build_hasher().finish());
        Self::with_seed(random() << 64 | random())
    }

    /// An empty map whose hashes depend on this seed.
    pub fn with_seed(seed: u128) -> Self {
        Self::with(Head {
            seed: Seed::new(seed),
            buckets: Vector::new(),
            count: Counter::ZERO,
        })
    }

    fn key(entry: Ptr<Entry>) -> Result<Ptr<K::Stored>, Interrupted> {
        inside(entry, Self::OFFSETS.0[1])
    }

    fn value(entry: Ptr<Entry>) -> Result<Ptr<V::Stored>, Interrupted> {
        inside(entry, Self::OFFSETS.0[2])
    }
}

impl<K: Item, V: Item> Default for HashMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

/// Operations on a [`HashMap`]; with O(1) steps, unless otherwise stated.
impl<K: Item, V: Item> Ptr<HashMap<K, V>> {
    fn head(self) -> Ptr<Head> {
        self.at(HashMap::HEAD)
    }

    fn buckets(self) -> Ptr<Vector<Link>> {
        self.head().at(Head::BUCKETS)
    }

    fn count(self) -> Ptr<Counter> {
        self.head().at(Head::COUNT)
    }

    fn hash<S: Space>(self, tx: &mut Tx<'_, S>, key: &K::Borrowed) -> Result<u64, Interrupted> {
        let seed = tx.get(self.head().at(Head::SEED))?;
        Ok(item::hash::<K>(seed, key))
    }

    /// The number of entries.
    ///
    /// # Errors
    /// [`Interrupted`], as for all other operations.
    pub fn len<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<u64, Interrupted> {
        self.count().total(tx)
    }

    /// Whether the map is empty.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn is_empty<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<bool, Interrupted> {
        Ok(self.len(tx)? == 0)
    }

    /// The link to the entry of a key, or else to the first of its chain; `None`: there are no
    /// buckets.
    fn search<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        hash: u64,
        key: &K::Borrowed,
    ) -> Result<Option<(Ptr<Link>, Link)>, Interrupted> {
        let Some(start) = self.bucket(tx, hash)? else {
            return Ok(None);
        };
        let (mut link, mut circle) = (start, Circle::default());
        while let Some(entry) = tx.get(link)? {
            circle.step(entry.off())?;
            let is_it = tx.get(entry.at(Entry::HASH))? == hash
                && K::is(tx, HashMap::<K, V>::key(entry)?, key)?;
            if is_it {
                return Ok(Some((link, Some(entry))));
            }
            link = entry.at(Entry::NEXT);
        }
        Ok(Some((start, None)))
    }

    /// The bucket of a hash; `None`: there are no buckets.
    fn bucket<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        hash: u64,
    ) -> Result<Option<Ptr<Link>>, Interrupted> {
        match self.buckets().len(tx)? {
            0 => Ok(None),
            buckets => self.bucket_at(tx, bucket_of(hash, buckets)).map(Some),
        }
    }

    /// The `n`-th bucket, which must exist.
    fn bucket_at<S: Space>(self, tx: &mut Tx<'_, S>, n: u64) -> Result<Ptr<Link>, Interrupted> {
        let found = self.buckets().find(tx, n)?;
        found.ok_or_else(|| damaged(self.off(), WHAT))
    }

    fn entry<S: Space>(self, tx: &mut Tx<'_, S>, key: &K::Borrowed) -> Result<Link, Interrupted> {
        let hash = self.hash(tx, key)?;
        let found = self.search(tx, hash, key)?;
        Ok(found.and_then(|(_, entry)| entry))
    }

    /// The place of a key's value, valid until the entry is removed.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn find<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        key: &K::Borrowed,
    ) -> Result<Option<Ptr<V::Stored>>, Interrupted> {
        self.entry(tx, key)?.map(HashMap::<K, V>::value).transpose()
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn get<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        key: &K::Borrowed,
    ) -> Result<Option<V::Owned>, Interrupted> {
        let found = self.find(tx, key)?;
        found.map(|at| V::read(tx, at)).transpose()
    }

    /// Whether a key is present.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn contains<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        key: &K::Borrowed,
    ) -> Result<bool, Interrupted> {
        Ok(self.entry(tx, key)?.is_some())
    }

    /// Sets the value of a key. Returns the previous one.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn insert<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        key: &K::Borrowed,
        value: &V::Borrowed,
    ) -> Result<Option<V::Owned>, Interrupted> {
        let hash = self.hash(tx, key)?;
        if let Some((_, Some(entry))) = self.search(tx, hash, key)? {
            return replace::<V, S>(tx, HashMap::<K, V>::value(entry)?, value).map(Some);
        }
        if self.count().estimate(tx, hash)? >= self.buckets().len(tx)? {
            self.grow(tx)?;
        }
        let bucket = self.bucket(tx, hash)?;
        let bucket = bucket.ok_or_else(|| damaged(self.off(), WHAT))?;
        let next = tx.get(bucket)?;
        let entry = make::<K, V, S>(tx, Entry { next, hash }, key, value)?;
        tx.set(bucket, &Some(entry))?;
        self.count().add(tx, hash, 1)?;
        Ok(None)
    }

    /// Removes a key. Returns its value.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn remove<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        key: &K::Borrowed,
    ) -> Result<Option<V::Owned>, Interrupted> {
        let hash = self.hash(tx, key)?;
        let Some((link, Some(entry))) = self.search(tx, hash, key)? else {
            return Ok(None);
        };
        let value = V::read(tx, HashMap::<K, V>::value(entry)?)?;
        self.unlink(tx, link, entry)?;
        let buckets = self.buckets().len(tx)?;
        if buckets > STEP && self.count().estimate(tx, hash)? < buckets / 4 {
            self.shrink(tx)?;
        }
        Ok(Some(value))
    }

    /// Removes an entry from its chain, and frees it.
    fn unlink<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        link: Ptr<Link>,
        entry: Ptr<Entry>,
    ) -> Result<(), Interrupted> {
        let Entry { next, hash } = tx.get(entry)?;
        tx.set(link, &next)?;
        K::free(tx, HashMap::<K, V>::key(entry)?)?;
        V::free(tx, HashMap::<K, V>::value(entry)?)?;
        tx.delete(entry)?;
        self.count().add(tx, hash, -1)
    }

    // --- adding and removing buckets ------------------------------------------------

    /// Adds a few buckets.
    fn grow<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<(), Interrupted> {
        for _ in 0..STEP {
            let n = self.buckets().push(tx, &None)?;
            if n > 0 {
                self.split(tx, n)?;
            }
            if n >= SPREAD {
                self.count().spread(tx)?;
            }
        }
        Ok(())
    }

    /// Moves the entries that belong to the last bucket, the `n`-th, there. The order stays, so
    /// that only links between moved and unmoved entries are written.
    fn split<S: Space>(self, tx: &mut Tx<'_, S>, n: u64) -> Result<(), Interrupted> {
        let mut stays = self.bucket_at(tx, buddy_of(n))?;
        let mut goes = self.bucket_at(tx, n)?;
        let (mut next, mut circle) = (tx.get(stays)?, Circle::default());
        while let Some(entry) = next {
            circle.step(entry.off())?;
            let Entry { next: then, hash } = tx.get(entry)?;
            let end = match bucket_of(hash, n + 1) == n {
                true => &mut goes,
                false => &mut stays,
            };
            link(tx, *end, Some(entry))?;
            *end = entry.at(Entry::NEXT);
            next = then;
        }
        link(tx, stays, None)?;
        link(tx, goes, None)
    }

    /// Removes a few buckets.
    fn shrink<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<(), Interrupted> {
        for _ in 0..STEP {
            let last = self.buckets().len(tx)?.saturating_sub(1);
            self.merge(tx, last)?;
            self.buckets().pop(tx)?;
        }
        Ok(())
    }

    /// Puts the chain of the last bucket, the `n`-th, before its buddy's.
    fn merge<S: Space>(self, tx: &mut Tx<'_, S>, n: u64) -> Result<(), Interrupted> {
        let first = self.bucket_at(tx, n)?;
        let Some(entry) = tx.get(first)? else {
            return Ok(());
        };
        let buddy = self.bucket_at(tx, buddy_of(n))?;
        let (mut end, mut circle) = (entry.at(Entry::NEXT), Circle::default());
        while let Some(entry) = tx.get(end)? {
            circle.step(entry.off())?;
            end = entry.at(Entry::NEXT);
        }
        let others = tx.get(buddy)?;
        tx.set(end, &others)?;
        tx.set(buddy, &Some(entry))
    }

    // --- the whole map ---------------------------------------------------------------

    /// Removes all entries, with O(n) steps.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn clear<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<(), Interrupted> {
        self.clear_some(tx, u64::MAX).map(drop)
    }

    /// Removes any entries, at most `most` of them, and as many buckets. Returns whether no
    /// entry, and no block in the heap, is left.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn clear_some<S: Space>(self, tx: &mut Tx<'_, S>, most: u64) -> Result<bool, Interrupted> {
        let mut left = most;
        for n in (0..self.buckets().len(tx)?).rev() {
            let bucket = self.bucket_at(tx, n)?;
            while let Some(entry) = tx.get(bucket)? {
                if left == 0 {
                    return Ok(false);
                }
                self.unlink(tx, bucket, entry)?;
                left -= 1;
            }
            // A bucket without entries needs no merge.
            self.buckets().pop(tx)?;
        }
        self.buckets().clear(tx)?;
        self.count().clear(tx)?;
        Ok(true)
    }

    /// The entries, in undefined order.
    pub fn iter<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
    ) -> impl Iterator<Item = Result<Pair<K, V>, Interrupted>> {
        Walk::new(self).entries(tx)
    }

    /// The entry that [`iter`](Self::iter) returns after that of a key, if any; `None`: the key
    /// is not present.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn next<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        key: &K::Borrowed,
    ) -> Result<Option<Option<Pair<K, V>>>, Interrupted> {
        let Some(entry) = self.entry(tx, key)? else {
            return Ok(None);
        };
        let Entry { next, hash } = tx.get(entry)?;
        let mut walk = Walk::new(self);
        walk.bucket = bucket_of(hash, self.buckets().len(tx)?) + 1;
        walk.entry = next;
        walk.entries(tx).next().transpose().map(Some)
    }

    /// The blocks of the heap that the map has, with O(n) steps, to account for all allocated
    /// ones.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn blocks<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<Vec<u64>, Interrupted> {
        let mut blocks = self.buckets().blocks(tx)?;
        blocks.extend(self.count().block(tx)?);
        let mut walk = Walk::new(self);
        while let Some(entry) = walk.next(tx)? {
            blocks.push(entry.off());
            blocks.extend(K::block(tx, HashMap::<K, V>::key(entry)?)?);
            blocks.extend(V::block(tx, HashMap::<K, V>::value(entry)?)?);
        }
        Ok(blocks)
    }
}

/// The number of a hash's bucket, of `buckets`.
fn bucket_of(hash: u64, buckets: u64) -> u64 {
    let last = buckets.saturating_sub(1);
    let mask = u64::MAX.checked_shr(last.leading_zeros()).unwrap_or(0);
    match hash & mask {
        there if there <= last => there,
        not_yet => not_yet & mask >> 1,
    }
}

/// The bucket that had the entries of the `n`-th before that was added.
fn buddy_of(n: u64) -> u64 {
    n & !(1 << n.max(1).ilog2())
}

/// A place inside an entry.
fn inside<T: Persist>(entry: Ptr<Entry>, at: u64) -> Result<Ptr<T>, Interrupted> {
    let place = entry.off().checked_add(at).and_then(Ptr::new);
    place.ok_or_else(|| damaged(entry.off(), WHAT))
}

/// Sets a link, unless it is already so.
fn link<S: Space>(tx: &mut Tx<'_, S>, from: Ptr<Link>, to: Link) -> Result<(), Interrupted> {
    match tx.get(from)? == to {
        true => Ok(()),
        false => tx.set(from, &to),
    }
}

/// Makes an entry.
fn make<K: Item, V: Item, S: Space>(
    tx: &mut Tx<'_, S>,
    head: Entry,
    key: &K::Borrowed,
    value: &V::Borrowed,
) -> Result<Ptr<Entry>, Interrupted> {
    let ([_, key_at, value_at], size) = HashMap::<K, V>::OFFSETS;
    let off = tx.alloc(size)?;
    with_bytes(size, |bytes| {
        head.encode(&mut bytes[..Entry::SIZE as usize]);
        let (front, values) = bytes.split_at_mut(value_at as usize);
        let keys = &mut front[key_at as usize..];
        K::encode(tx, key, &mut keys[..K::Stored::SIZE as usize])?;
        V::encode(tx, value, &mut values[..V::Stored::SIZE as usize])?;
        write_fresh(tx, off, bytes)
    })?;
    Ok(Ptr::new(off).ok_or(HeapError::NotAllocated { off })?)
}

/// A walk along the entries.
struct Walk<K, V> {
    map: Ptr<HashMap<K, V>>,
    /// The number of the next bucket.
    bucket: u64,
    entry: Link,
    circle: Circle,
}

impl<K: Item, V: Item> Walk<K, V> {
    fn new(map: Ptr<HashMap<K, V>>) -> Self {
        Self {
            map,
            bucket: 0,
            entry: None,
            circle: Circle::default(),
        }
    }

    /// The entries from here on.
    fn entries<S: Space>(
        mut self,
        tx: &mut Tx<'_, S>,
    ) -> impl Iterator<Item = Result<Pair<K, V>, Interrupted>> {
        until_over(move || {
            let Some(entry) = self.next(tx)? else {
                return Ok(None);
            };
            let key = K::read(tx, HashMap::<K, V>::key(entry)?)?;
            let value = V::read(tx, HashMap::<K, V>::value(entry)?)?;
            Ok(Some((key, value)))
        })
    }

    fn next<S: Space>(&mut self, tx: &mut Tx<'_, S>) -> Result<Link, Interrupted> {
        while self.entry.is_none() {
            let Some(link) = self.map.buckets().find(tx, self.bucket)? else {
                return Ok(None);
            };
            (self.entry, self.circle) = (tx.get(link)?, Circle::default());
            self.bucket += 1;
        }
        let entry = self.entry;
        if let Some(entry) = entry {
            self.circle.step(entry.off())?;
            self.entry = tx.get(entry.at(Entry::NEXT))?;
        }
        Ok(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_bucket_takes_entries_from_its_buddy_only() {
        for buckets in 1..70 {
            for hash in 0..512_u64 {
                let hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let (before, after) = (bucket_of(hash, buckets), bucket_of(hash, buckets + 1));
                assert!(before < buckets);
                let moves = after == buckets && before == buddy_of(buckets);
                assert!(before == after || moves, "{hash:x} of {buckets}");
            }
        }
    }
}
