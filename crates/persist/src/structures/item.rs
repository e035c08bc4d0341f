//! The elements of structures.
//!
//! Guarantee: an item's block in the heap is allocated and freed with the item.

use super::damaged;
use crate::hash::Seed;
use crate::tx::{with_bytes, write_fresh};
use crate::{Persist, Ptr, TypedTx};
use mnemosyne::heap::HeapError;
use mnemosyne::memory::Tx;
use mnemosyne::tx::{Interrupted, Space};
use std::borrow::Borrow;
use std::cmp::Ordering;

/// The elements of structures: values of any [`Persist`] type, and [`Bytes`].
pub trait Item: 'static {
    /// The type of the item in the structure.
    type Stored: Persist;
    /// The type with which an item is passed to a structure and searched.
    type Borrowed: ?Sized;
    /// The type with which a structure returns an item.
    type Owned: Borrow<Self::Borrowed>;
    /// Whether an item may have a block of its own.
    const HAS_BLOCK: bool;

    /// Encodes an item, with a block in the heap for the part that does not fit.
    ///
    /// # Errors
    /// [`Interrupted`], as for all other operations.
    fn encode<S: Space>(
        tx: &mut Tx<'_, S>,
        item: &Self::Borrowed,
        bytes: &mut [u8],
    ) -> Result<(), Interrupted>;

    /// Reads the item at a place.
    ///
    /// # Errors
    /// [`Interrupted`].
    fn read<S: Space>(
        tx: &mut Tx<'_, S>,
        at: Ptr<Self::Stored>,
    ) -> Result<Self::Owned, Interrupted>;

    /// Whether the item at a place is equal to this one.
    ///
    /// # Errors
    /// [`Interrupted`].
    fn is<S: Space>(
        tx: &mut Tx<'_, S>,
        at: Ptr<Self::Stored>,
        item: &Self::Borrowed,
    ) -> Result<bool, Interrupted>;

    /// The block of the item at a place, if it has one.
    ///
    /// # Errors
    /// [`Interrupted`].
    fn block<S: Space>(
        tx: &mut Tx<'_, S>,
        at: Ptr<Self::Stored>,
    ) -> Result<Option<u64>, Interrupted>;

    /// Frees the block of the item at a place.
    ///
    /// # Errors
    /// [`Interrupted`].
    fn free<S: Space>(tx: &mut Tx<'_, S>, at: Ptr<Self::Stored>) -> Result<(), Interrupted> {
        match Self::block(tx, at)? {
            Some(off) => tx.free(off),
            None => Ok(()),
        }
    }

    /// Calls `with` with the bytes that distinguish the item from others.
    fn with_contents<R>(item: &Self::Borrowed, with: impl FnOnce(&[u8]) -> R) -> R;
}

/// Items with an order.
pub trait Key: Item {
    /// Compares the item at a place with this one.
    ///
    /// # Errors
    /// [`Interrupted`].
    fn compare<S: Space>(
        tx: &mut Tx<'_, S>,
        at: Ptr<Self::Stored>,
        item: &Self::Borrowed,
    ) -> Result<Ordering, Interrupted>;
}

/// The hash of an item.
pub(super) fn hash<T: Item>(seed: Seed, item: &T::Borrowed) -> u64 {
    T::with_contents(item, |bytes| seed.hash(bytes))
}

// --- values -------------------------------------------------------------------------

impl<T: Persist> Item for T {
    type Stored = T;
    type Borrowed = T;
    type Owned = T;
    const HAS_BLOCK: bool = false;

    fn encode<S: Space>(
        _tx: &mut Tx<'_, S>,
        item: &T,
        bytes: &mut [u8],
    ) -> Result<(), Interrupted> {
        item.encode(bytes);
        Ok(())
    }

    fn read<S: Space>(tx: &mut Tx<'_, S>, at: Ptr<T>) -> Result<T, Interrupted> {
        tx.get(at)
    }

    fn is<S: Space>(tx: &mut Tx<'_, S>, at: Ptr<T>, item: &T) -> Result<bool, Interrupted> {
        let there = tx.get(at)?;
        // The comparison excludes bytes between fields.
        Ok(T::with_contents(&there, |there| {
            T::with_contents(item, |bytes| bytes == there)
        }))
    }

    fn block<S: Space>(_tx: &mut Tx<'_, S>, _at: Ptr<T>) -> Result<Option<u64>, Interrupted> {
        Ok(None)
    }

    fn with_contents<R>(item: &T, with: impl FnOnce(&[u8]) -> R) -> R {
        with_bytes(T::SIZE, |bytes| {
            item.encode(bytes);
            with(bytes)
        })
    }
}

impl<T: Persist + Ord> Key for T {
    fn compare<S: Space>(
        tx: &mut Tx<'_, S>,
        at: Ptr<T>,
        item: &T,
    ) -> Result<Ordering, Interrupted> {
        Ok(tx.get(at)?.cmp(item))
    }
}

// --- byte strings -------------------------------------------------------------------

/// Byte strings of any length, as items: passed as `&[u8]`, and returned as `Vec<u8>`. Up to 12
/// bytes lie in the structure, longer strings in a block of their own. They are ordered byte by
/// byte.
#[derive(Debug, Clone, Copy)]
pub enum Bytes {}

/// A byte string in a structure.
#[derive(Debug, Clone, Copy, Persist)]
pub struct Blob {
    len: u32,
    /// The first bytes, which often distinguish it from others.
    head: [u8; HEAD],
    /// The other bytes, or the place of all of them.
    rest: u64,
}

const HEAD: usize = 4;
/// Largest length in bytes of a string that lies in a blob.
const SHORT: usize = HEAD + 8;
/// A block of more bytes has its own pages, to whose descriptors no other block writes.
const PAGED: u64 = 4096;

impl Blob {
    fn new<S: Space>(tx: &mut Tx<'_, S>, bytes: &[u8]) -> Result<Self, Interrupted> {
        // No heap has room for it: one that grew would be asked again.
        let too_long = |_| HeapError::NoSpace { bytes: u64::MAX };
        let len = bytes.len().try_into().map_err(too_long)?;
        let mut short = [0; SHORT];
        let there = bytes.len().min(SHORT);
        short[..there].copy_from_slice(&bytes[..there]);
        let (head, rest) = short.split_at(HEAD);
        let rest = match bytes.len() <= SHORT {
            true => rest.try_into().map_or(0, u64::from_le_bytes),
            false => {
                let off = tx.alloc(bytes.len() as u64)?;
                write_fresh(tx, off, bytes)?;
                off
            }
        };
        let head = head.try_into().unwrap_or_default();
        Ok(Self { len, head, rest })
    }

    fn block(&self) -> Option<u64> {
        (self.len as usize > SHORT).then_some(self.rest)
    }

    fn read<S: Space>(&self, tx: &mut Tx<'_, S>) -> Result<Vec<u8>, Interrupted> {
        let len = self.len as usize;
        let Some(off) = self.block() else {
            let mut bytes = [self.head.as_slice(), &self.rest.to_le_bytes()].concat();
            bytes.truncate(len);
            return Ok(bytes);
        };
        // A damaged length must not allocate more memory than there is.
        if u64::from(self.len) > PAGED && tx.size_of(off)? < self.len.into() {
            return Err(damaged(off, "byte string so long"));
        }
        let mut bytes = vec![0; len];
        let at = tx.address(off);
        tx.read(at, &mut bytes)?;
        Ok(bytes)
    }
}

impl Item for Bytes {
    type Stored = Blob;
    type Borrowed = [u8];
    type Owned = Vec<u8>;
    const HAS_BLOCK: bool = true;

    fn encode<S: Space>(
        tx: &mut Tx<'_, S>,
        item: &[u8],
        bytes: &mut [u8],
    ) -> Result<(), Interrupted> {
        Blob::new(tx, item)?.encode(bytes);
        Ok(())
    }

    fn read<S: Space>(tx: &mut Tx<'_, S>, at: Ptr<Blob>) -> Result<Vec<u8>, Interrupted> {
        tx.get(at)?.read(tx)
    }

    fn is<S: Space>(tx: &mut Tx<'_, S>, at: Ptr<Blob>, item: &[u8]) -> Result<bool, Interrupted> {
        let blob = tx.get(at)?;
        let may_be = blob.len as usize == item.len();
        Ok(may_be && blob.read(tx)? == item)
    }

    fn block<S: Space>(tx: &mut Tx<'_, S>, at: Ptr<Blob>) -> Result<Option<u64>, Interrupted> {
        Ok(tx.get(at)?.block())
    }

    fn with_contents<R>(item: &[u8], with: impl FnOnce(&[u8]) -> R) -> R {
        with(item)
    }
}

impl Key for Bytes {
    fn compare<S: Space>(
        tx: &mut Tx<'_, S>,
        at: Ptr<Blob>,
        item: &[u8],
    ) -> Result<Ordering, Interrupted> {
        let blob = tx.get(at)?;
        let both = HEAD.min(blob.len as usize).min(item.len());
        match blob.head[..both].cmp(&item[..both]) {
            Ordering::Equal => Ok(blob.read(tx)?.as_slice().cmp(item)),
            decided => Ok(decided),
        }
    }
}
