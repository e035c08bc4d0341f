//! Persistent data with types.
//!
//! # Guarantees
//!
//! - **D1** Persistent memory contains no volatile reference: a type whose values contain one
//!   is not [`Persist`].
//! - **D2** It is read and written inside transactions only: nothing else accepts a [`Ptr`].
//! - **D3** A root is found only by programs with the same layout of its type as the program
//!   that made it. The layout is the names and places of fields, with their types and all types
//!   that pointers lead to.
//! - **D4** Bytes that are not a value of a type give an error, and not a value.
//!
//! A value is copied out and in. A pointer is an offset, so it stays valid wherever the memory
//! is mapped. [`TypedTx`] has the operations of a transaction on values, [`TypedSession`] the
//! typed roots. [`structures`] has maps, trees, vectors, queues and journals.
//!
//! The bytes are in `format.md`.
//!
//! # Example
//!
//! A counter in a root.
//!
//! ```
//! use medium::MemoryPmem;
//! use mnemosyne::memory::{DurableMemory, Flat, Layout, Options};
//! use mnemosyne::tx::Stop;
//! use persist::{Persist, TypedSession, TypedTx};
//! use std::convert::Infallible;
//! use std::sync::Arc;
//!
//! #[derive(Persist)]
//! struct Visits {
//!     count: u64,
//! }
//!
//! // Memory that is not persistent is enough here.
//! let pm = Arc::new(MemoryPmem::new(4 << 20));
//! let layout = Layout { logs: 1, log_bytes: 64 << 10, ..Layout::default() };
//! layout.format(&pm)?;
//! let options = Options { heap_growth: 1 << 20, ..Options::default() };
//! let mut session = DurableMemory::open(Flat(pm.clone()), pm, options)?.session();
//!
//! // The first run makes the root. Later runs find it.
//! let visits = session.root("visits", |_| Ok(Visits { count: 0 }))?;
//! // Durable as a whole when it returns.
//! let count = session.run(|tx| {
//!     let count = tx.get(visits.at(Visits::COUNT))? + 1;
//!     tx.set(visits.at(Visits::COUNT), &count)?;
//!     Ok::<_, Stop<Infallible>>(count)
//! })?;
//! assert_eq!(count, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod hash;
mod layout;
mod pointer;
mod root;
pub mod structures;
mod tx;

pub use layout::Layouts;
/// Derives [`trait@Persist`].
pub use persist_derive::Persist;
pub use pointer::{Array, Field, Ptr};
pub use root::{RootError, TypedSession};
pub use tx::TypedTx;

// Derived code uses the name of this crate, even inside it.
extern crate self as persist;

/// Types whose values can lie in persistent memory. To be derived.
pub trait Persist: Sized + 'static {
    /// Offsets of its fields.
    const OFFSETS: &'static [u64] = &[];
    /// Bytes of a value: a multiple of [`ALIGN`](Self::ALIGN).
    const SIZE: u64;
    /// Alignment of a value: 1, 2, 4 or 8 bytes.
    const ALIGN: u64;

    /// Adds the type to a layout.
    fn describe(layout: &mut Layouts);

    /// The value of these [`SIZE`](Self::SIZE) bytes; `None`: they are not a value.
    fn decode(bytes: &[u8]) -> Option<Self>;

    /// Writes the value's bytes. Bytes between fields stay as they are.
    fn encode(&self, bytes: &mut [u8]);
}

/// Reads a field. For derived code.
#[doc(hidden)]
pub fn decode_at<T: Persist>(bytes: &[u8], at: u64) -> Option<T> {
    let end = at.checked_add(T::SIZE)?;
    T::decode(bytes.get(at as usize..end as usize)?)
}

/// Writes a field. For derived code.
#[doc(hidden)]
pub fn encode_at<T: Persist>(value: &T, bytes: &mut [u8], at: u64) {
    value.encode(&mut bytes[at as usize..(at + T::SIZE) as usize]);
}

/// Lays out fields, given the size and alignment of each. Returns their offsets and the total
/// size. For derived code.
#[doc(hidden)]
pub const fn offsets<const N: usize>(fields: [(u64, u64); N]) -> ([u64; N], u64) {
    let mut offsets = [0; N];
    let (mut at, mut align, mut n) = (0_u64, 1, 0);
    while n < N {
        let (size, of) = fields[n];
        at = at.next_multiple_of(of);
        offsets[n] = at;
        at += size;
        if of > align {
            align = of;
        }
        n += 1;
    }
    (offsets, at.next_multiple_of(align))
}

/// The largest alignment, or 1. For derived code.
#[doc(hidden)]
pub const fn largest<const N: usize>(of: [u64; N]) -> u64 {
    let (mut most, mut n) = (1, 0);
    while n < N {
        if of[n] > most {
            most = of[n];
        }
        n += 1;
    }
    most
}

macro_rules! numbers {
    ($($ty:ty)*) => {$(
        impl Persist for $ty {
            const SIZE: u64 = size_of::<$ty>() as u64;
            const ALIGN: u64 = Self::SIZE;

            fn describe(layout: &mut Layouts) {
                layout.word(stringify!($ty));
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_le_bytes(bytes.try_into().ok()?))
            }

            fn encode(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
numbers!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);

impl Persist for bool {
    const SIZE: u64 = 1;
    const ALIGN: u64 = 1;

    fn describe(layout: &mut Layouts) {
        layout.word("bool");
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    fn encode(&self, bytes: &mut [u8]) {
        bytes.fill((*self).into());
    }
}

impl<T: Persist, const N: usize> Persist for [T; N] {
    const SIZE: u64 = T::SIZE * N as u64;
    const ALIGN: u64 = T::ALIGN;

    fn describe(layout: &mut Layouts) {
        layout.word(&format!("[{N}]"));
        T::describe(layout);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut values = Vec::with_capacity(N);
        for n in 0..N {
            values.push(decode_at(bytes, n as u64 * T::SIZE)?);
        }
        values.try_into().ok()
    }

    fn encode(&self, bytes: &mut [u8]) {
        for (n, value) in self.iter().enumerate() {
            encode_at(value, bytes, n as u64 * T::SIZE);
        }
    }
}
