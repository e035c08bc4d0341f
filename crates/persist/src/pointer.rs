//! Pointers in persistent memory: typed offsets.

use super::{Layouts, Persist};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::num::NonZero;

/// The place of a `T`. Only a transaction can access it.
pub struct Ptr<T> {
    off: NonZero<u64>,
    of: PhantomData<fn() -> T>,
}

impl<T: Persist> Ptr<T> {
    /// A pointer to byte `off`; `None`: a `T` cannot lie there.
    pub fn new(off: u64) -> Option<Self> {
        let off = NonZero::new(off).filter(|off| off.get().is_multiple_of(T::ALIGN))?;
        let of = PhantomData;
        Some(Self { off, of })
    }

    /// The offset.
    pub fn off(self) -> u64 {
        self.off.get()
    }

    /// A pointer to one of its fields.
    pub fn at<F: Persist>(self, field: Field<T, F>) -> Ptr<F> {
        Ptr {
            // The end of a field in memory is at most the end of its `T`, so this cannot
            // overflow there.
            off: self.off.saturating_add(field.offset),
            of: PhantomData,
        }
    }
}

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> PartialEq for Ptr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.off == other.off
    }
}

impl<T> Eq for Ptr<T> {}

impl<T> Hash for Ptr<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.off.hash(state);
    }
}

impl<T> fmt::Debug for Ptr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ptr({:#x})", self.off)
    }
}

impl<T: Persist> Persist for Ptr<T> {
    const SIZE: u64 = 8;
    const ALIGN: u64 = 8;

    fn describe(layout: &mut Layouts) {
        layout.word("ptr");
        T::describe(layout);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Self::new(u64::decode(bytes)?)
    }

    fn encode(&self, bytes: &mut [u8]) {
        self.off().encode(bytes);
    }
}

/// `None` is 0.
impl<T: Persist> Persist for Option<Ptr<T>> {
    const SIZE: u64 = 8;
    const ALIGN: u64 = 8;

    fn describe(layout: &mut Layouts) {
        layout.word("option");
        Ptr::<T>::describe(layout);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        match u64::decode(bytes)? {
            0 => Some(None),
            off => Ptr::new(off).map(Some),
        }
    }

    fn encode(&self, bytes: &mut [u8]) {
        self.map_or(0, Ptr::off).encode(bytes);
    }
}

/// The path from a `T` to one of its fields, an `F`. Derived with [`Persist`].
pub struct Field<T, F> {
    offset: u64,
    of: PhantomData<fn(T) -> F>,
}

impl<T, F> Field<T, F> {
    /// The field at this offset. For derived code.
    #[doc(hidden)]
    pub const fn at(offset: u64) -> Self {
        let of = PhantomData;
        Self { offset, of }
    }
}

impl<T, F> Clone for Field<T, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, F> Copy for Field<T, F> {}

/// A consecutive run of `T`s.
pub struct Array<T> {
    start: Option<Ptr<T>>,
    len: u64,
}

impl<T: Persist> Array<T> {
    /// An array without elements.
    pub const EMPTY: Self = Self {
        start: None,
        len: 0,
    };

    pub(super) fn new(start: Ptr<T>, len: u64) -> Self {
        let start = Some(start);
        Self { start, len }
    }

    pub(super) fn start(self) -> Option<Ptr<T>> {
        self.start
    }

    /// The number of elements.
    pub fn len(self) -> u64 {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// A pointer to the `n`-th element; `None`: there are fewer.
    pub fn get(self, n: u64) -> Option<Ptr<T>> {
        let start = self.start.filter(|_| n < self.len)?;
        Ptr::new(start.off().checked_add(n.checked_mul(T::SIZE)?)?)
    }
}

impl<T> Clone for Array<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Array<T> {}

impl<T> PartialEq for Array<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.start, self.len) == (other.start, other.len)
    }
}

impl<T> Eq for Array<T> {}

impl<T> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({:?}, {})", self.start, self.len)
    }
}

impl<T: Persist> Persist for Array<T> {
    const SIZE: u64 = 16;
    const ALIGN: u64 = 8;

    fn describe(layout: &mut Layouts) {
        layout.word("array");
        T::describe(layout);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let start = super::decode_at(bytes, 0)?;
        let len = super::decode_at(bytes, 8)?;
        Some(Self { start, len })
    }

    fn encode(&self, bytes: &mut [u8]) {
        super::encode_at(&self.start, bytes, 0);
        super::encode_at(&self.len, bytes, 8);
    }
}
