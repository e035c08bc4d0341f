//! A vector: elements by number, in segments each twice as long as the one before.
//!
//! Guarantee: an element is never moved.
//!
//! At most one segment after the last element is kept, so that pushes and pops at its border do not
//! allocate and free it again and again.

use super::{Item, damaged, element, headed, put, replace, take, until_over};
use crate::{Persist, Ptr, TypedTx};
use mnemosyne::heap::HeapError;
use mnemosyne::memory::Tx;
use mnemosyne::tx::{Interrupted, Space};
use std::marker::PhantomData;
use std::ops::Range;

/// The largest number of segments.
const SEGMENTS: usize = 32;
/// The description of a valid vector in errors about a damaged one.
const WHAT: &str = "sound vector";

/// A vector of `T`, whose first segment has room for `FIRST`.
pub struct Vector<T, const FIRST: usize = 8> {
    head: Head,
    of: PhantomData<fn() -> T>,
}

#[derive(Debug, Persist)]
struct Head {
    len: u64,
    segments: Option<Ptr<Segments>>,
}

/// The place of each segment.
type Segments = [Option<Ptr<u64>>; SEGMENTS];

headed!([T: Item, const FIRST: usize] Vector<T, FIRST>, layout => {
    layout.word(&format!("vector/{FIRST}"));
    T::Stored::describe(layout);
});

impl<T: Item, const FIRST: usize> Vector<T, FIRST> {
    const HAS_ROOM: () = assert!(FIRST > 0, "the first segment has room");

    /// An empty vector.
    pub const fn new() -> Self {
        let () = Self::HAS_ROOM;
        Self {
            head: Head {
                len: 0,
                segments: None,
            },
            of: PhantomData,
        }
    }

    /// The segment of an element, and its number there; `None`: it is beyond the last segment.
    fn locate(n: u64) -> Option<(u64, u64)> {
        let first = FIRST as u64;
        let segment = (n / first).checked_add(1)?.ilog2();
        let before = first.checked_mul((1 << segment) - 1)?;
        (segment < SEGMENTS as u32).then_some((segment.into(), n - before))
    }

    /// Bytes of a segment.
    fn bytes(segment: u64) -> Option<u64> {
        let elements = (FIRST as u64).checked_mul(1 << segment)?;
        elements.checked_mul(T::Stored::SIZE)
    }
}

impl<T: Item, const FIRST: usize> Default for Vector<T, FIRST> {
    fn default() -> Self {
        Self::new()
    }
}

/// Operations on a [`Vector`]; with O(1) steps, unless otherwise stated.
impl<T: Item, const FIRST: usize> Ptr<Vector<T, FIRST>> {
    fn head(self) -> Ptr<Head> {
        self.at(Vector::HEAD)
    }

    /// The number of elements.
    ///
    /// # Errors
    /// [`Interrupted`], as for all other operations.
    pub fn len<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<u64, Interrupted> {
        tx.get(self.head().at(Head::LEN))
    }

    /// Whether the vector is empty.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn is_empty<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<bool, Interrupted> {
        Ok(self.len(tx)? == 0)
    }

    /// The place of the `n`-th element, valid until it is removed.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn find<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        n: u64,
    ) -> Result<Option<Ptr<T::Stored>>, Interrupted> {
        let head = tx.get(self.head())?;
        match n < head.len {
            true => self.place(tx, &head, n).map(Some),
            false => Ok(None),
        }
    }

    /// The place of the `n`-th element, which must exist.
    fn place<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        head: &Head,
        n: u64,
    ) -> Result<Ptr<T::Stored>, Interrupted> {
        let wrong = || damaged(self.off(), WHAT);
        let (segment, within) = Vector::<T, FIRST>::locate(n).ok_or_else(wrong)?;
        let segments = head.segments.ok_or_else(wrong)?;
        let start = tx.get(slot(segments, segment)?)?.ok_or_else(wrong)?;
        element(start.off(), within)
    }

    /// The `n`-th element.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn get<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        n: u64,
    ) -> Result<Option<T::Owned>, Interrupted> {
        let found = self.find(tx, n)?;
        found.map(|at| T::read(tx, at)).transpose()
    }

    /// Replaces the `n`-th element, and returns it; `None`: it does not exist.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn set<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        n: u64,
        item: &T::Borrowed,
    ) -> Result<Option<T::Owned>, Interrupted> {
        let found = self.find(tx, n)?;
        found.map(|at| replace::<T, S>(tx, at, item)).transpose()
    }

    /// Appends an element, and returns its number.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn push<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        item: &T::Borrowed,
    ) -> Result<u64, Interrupted> {
        let mut head = tx.get(self.head())?;
        self.make_room(tx, &mut head)?;
        let at = self.place(tx, &head, head.len)?;
        put::<T, S>(tx, at, item)?;
        tx.set(self.head().at(Head::LEN), &(head.len + 1))?;
        Ok(head.len)
    }

    /// Allocates the segment for one more element, if it is missing.
    fn make_room<S: Space>(self, tx: &mut Tx<'_, S>, head: &mut Head) -> Result<(), Interrupted> {
        let full = Interrupted::Heap(HeapError::NoSpace { bytes: u64::MAX });
        let (segment, within) = Vector::<T, FIRST>::locate(head.len).ok_or(full)?;
        if within > 0 {
            return Ok(());
        }
        let segments = match head.segments {
            Some(segments) => segments,
            None => {
                let made = tx.create::<Segments>(&[None; SEGMENTS])?;
                head.segments = Some(made);
                tx.set(self.head().at(Head::SEGMENTS), &head.segments)?;
                made
            }
        };
        let slot = slot(segments, segment)?;
        if tx.get(slot)?.is_none() {
            let bytes = Vector::<T, FIRST>::bytes(segment).ok_or(full)?;
            // No element of it is read before it is written.
            let made = tx.alloc(bytes)?;
            tx.set(slot, &Ptr::new(made))?;
        }
        Ok(())
    }

    /// Removes the last element.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn pop<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<Option<T::Owned>, Interrupted> {
        let head = tx.get(self.head())?;
        let Some(last) = head.len.checked_sub(1) else {
            return Ok(None);
        };
        let at = self.place(tx, &head, last)?;
        let item = take::<T, S>(tx, at)?;
        self.shorten(tx, &head, last)?;
        Ok(Some(item))
    }

    /// Removes all elements from the `len`-th on: for [`Bytes`](super::Bytes) with O(n) steps.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn truncate<S: Space>(self, tx: &mut Tx<'_, S>, len: u64) -> Result<(), Interrupted> {
        let head = tx.get(self.head())?;
        if len >= head.len {
            return Ok(());
        }
        for n in items_with_blocks::<T>(len..head.len) {
            let at = self.place(tx, &head, n)?;
            T::free(tx, at)?;
        }
        self.shorten(tx, &head, len)
    }

    /// Sets the length, and frees the segments after that of the next element.
    fn shorten<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
        head: &Head,
        len: u64,
    ) -> Result<(), Interrupted> {
        tx.set(self.head().at(Head::LEN), &len)?;
        let wrong = || damaged(self.off(), WHAT);
        let (segment, within) = Vector::<T, FIRST>::locate(len).ok_or_else(wrong)?;
        // No segment is freed if the last element is removed from the middle of one.
        if within > 0 && len + 1 == head.len {
            return Ok(());
        }
        let segments = head.segments.ok_or_else(wrong)?;
        free_segments(tx, segments, segment + 1)
    }

    /// Removes all elements: for [`Bytes`](super::Bytes) with O(n) steps.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn clear<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<(), Interrupted> {
        self.clear_some(tx, u64::MAX).map(drop)
    }

    /// Removes the last elements, at most `most` of them. Returns whether no element, and no
    /// block in the heap, is left.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn clear_some<S: Space>(self, tx: &mut Tx<'_, S>, most: u64) -> Result<bool, Interrupted> {
        let len = self.len(tx)?.saturating_sub(most);
        self.truncate(tx, len)?;
        if len > 0 {
            return Ok(false);
        }
        if let Some(segments) = tx.get(self.head().at(Head::SEGMENTS))? {
            free_segments(tx, segments, 0)?;
            tx.delete(segments)?;
            tx.set(self.head().at(Head::SEGMENTS), &None)?;
        }
        Ok(true)
    }

    /// The elements, in order.
    pub fn iter<S: Space>(
        self,
        tx: &mut Tx<'_, S>,
    ) -> impl Iterator<Item = Result<T::Owned, Interrupted>> {
        let mut n = 0;
        until_over(move || {
            n += 1;
            self.get(tx, n - 1)
        })
    }

    /// The blocks of the heap that the vector has, with O(n) steps, to account for all
    /// allocated ones.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn blocks<S: Space>(self, tx: &mut Tx<'_, S>) -> Result<Vec<u64>, Interrupted> {
        let head = tx.get(self.head())?;
        let mut blocks: Vec<u64> = head
            .segments
            .iter()
            .map(|segments| segments.off())
            .collect();
        if let Some(segments) = head.segments {
            let segments = tx.get(segments)?;
            blocks.extend(segments.iter().flatten().map(|segment| segment.off()));
        }
        for n in items_with_blocks::<T>(0..head.len) {
            let at = self.place(tx, &head, n)?;
            blocks.extend(T::block(tx, at)?);
        }
        Ok(blocks)
    }
}

/// The elements in a range that may have blocks of their own. Other types give an empty range:
/// a damaged length may be large.
fn items_with_blocks<T: Item>(range: Range<u64>) -> Range<u64> {
    match T::HAS_BLOCK {
        true => range,
        false => 0..0,
    }
}

/// The word with the place of a segment.
fn slot(segments: Ptr<Segments>, segment: u64) -> Result<Ptr<Option<Ptr<u64>>>, Interrupted> {
    element(segments.off(), segment)
}

/// Frees the segments from this one on. The first missing one is the end.
fn free_segments<S: Space>(
    tx: &mut Tx<'_, S>,
    segments: Ptr<Segments>,
    from: u64,
) -> Result<(), Interrupted> {
    for segment in from..SEGMENTS as u64 {
        let slot = slot(segments, segment)?;
        let Some(start) = tx.get(slot)? else {
            break;
        };
        tx.free(start.off())?;
        tx.set(slot, &None)?;
    }
    Ok(())
}
