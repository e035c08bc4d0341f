//! Ready-made persistent structures.
//!
//! | structure | finds | changes | holds |
//! |---|---|---|---|
//! | [`HashMap`] | O(1) | O(1) | values by key, in no order |
//! | [`BTree`] | O(log n) | O(log n) | values by key, in order |
//! | [`Vector`] | O(1) | O(1) at the end | elements by number |
//! | [`Queue`] | O(1) at the front | O(1) | elements, first in, first out |
//! | [`Journal`] | O(1) at the front | O(1) at the end | records of bytes, up to a truncation |
//!
//! # Guarantees
//!
//! - **C1** An operation is a part of the transaction that it is given: the whole transaction
//!   has an effect, or nothing of it.
//! - **C2** An operation writes at most O(log n) words besides its arguments. Exceptions are
//!   those that remove any number of elements; their documentation states so. They have a form
//!   that limits the number. Structures grow in small steps.
//! - **C3** A structure frees its blocks in the heap: when `clear` returns it has none.
//! - **C4** In a damaged structure an operation ends, and does not panic or loop. Its result is
//!   the error [`NoValue`](mnemosyne::tx::Interrupted::NoValue), that of a later step, or a
//!   wrong answer.
//!
//! # Use
//!
//! Each is a [`Persist`] type of a few words: a root, a field, or a value that
//! [`TypedTx::create`](crate::TypedTx::create) allocates. A new structure is empty and has no
//! block. The operations are methods of its [`Ptr`]. The value itself has no use, and a copy of
//! it is not another structure. The program frees the targets of pointers in elements.
//! [`Bytes`], byte strings of any length, are freed with the element.
//!
//! ```
//! use medium::MemoryPmem;
//! use mnemosyne::memory::{Flat, Layout, Options, DurableMemory};
//! use persist::structures::{Bytes, HashMap, Queue};
//! use mnemosyne::tx::Stop;
//! use persist::{Persist, TypedSession};
//! use std::convert::Infallible;
//! use std::sync::Arc;
//!
//! #[derive(Persist)]
//! struct Office {
//!     names: HashMap<u64, Bytes>,
//!     waiting: Queue<u64>,
//! }
//!
//! // Memory that is not persistent is enough here.
//! let pm = Arc::new(MemoryPmem::new(4 << 20));
//! let layout = Layout { logs: 1, log_bytes: 64 << 10, ..Layout::default() };
//! layout.format(&pm)?;
//! let options = Options { heap_growth: 1 << 20, ..Options::default() };
//! let mut session = DurableMemory::open(Flat(pm.clone()), pm, options)?.session();
//!
//! let office = session.root("office", |_| {
//!     Ok(Office { names: HashMap::new(), waiting: Queue::new() })
//! })?;
//! let (names, waiting) = (office.at(Office::NAMES), office.at(Office::WAITING));
//! // Both, or neither.
//! session.run(|tx| {
//!     names.insert(tx, &7, b"Arachne")?;
//!     waiting.push(tx, &7)?;
//!     Ok::<_, Stop<Infallible>>(())
//! })?;
//! let next = session.run(|tx| {
//!     let Some(number) = waiting.pop(tx)? else {
//!         return Ok(None);
//!     };
//!     Ok::<_, Stop<Infallible>>(names.get(tx, &number)?)
//! })?;
//! assert_eq!(next.as_deref(), Some(b"Arachne".as_slice()));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod btree;
mod counter;
mod hash_map;
mod item;
mod journal;
mod queue;
mod vector;

pub use btree::BTree;
pub use hash_map::HashMap;
pub use item::{Bytes, Item, Key};
pub use journal::{Cursor, Journal};
pub use queue::Queue;
pub use vector::Vector;

use crate::tx::with_bytes;
use crate::{Persist, Ptr};
use mnemosyne::memory::Tx;
use mnemosyne::tx::{Interrupted, Space};

/// A key and its value, as a structure returns them.
pub type Pair<K, V> = (<K as Item>::Owned, <V as Item>::Owned);

/// The error for damage at `off`, where `what` was expected.
fn damaged(off: u64, what: &'static str) -> Interrupted {
    Interrupted::NoValue { off, what }
}

/// The `n`-th of consecutive `T`s from `start` on.
fn element<T: Persist>(start: u64, n: u64) -> Result<Ptr<T>, Interrupted> {
    let at = n.checked_mul(T::SIZE).and_then(|at| start.checked_add(at));
    let wrong = || damaged(start, std::any::type_name::<T>());
    at.and_then(Ptr::new).ok_or_else(wrong)
}

/// Stores an item at an unused place.
fn put<T: Item, S: Space>(
    tx: &mut Tx<'_, S>,
    at: Ptr<T::Stored>,
    item: &T::Borrowed,
) -> Result<(), Interrupted> {
    let address = tx.address(at.off());
    with_bytes(T::Stored::SIZE, |bytes| {
        T::encode(tx, item, bytes)?;
        tx.write(address, bytes)
    })
}

/// Removes an item from its place, and returns it.
fn take<T: Item, S: Space>(
    tx: &mut Tx<'_, S>,
    at: Ptr<T::Stored>,
) -> Result<T::Owned, Interrupted> {
    let item = T::read(tx, at)?;
    T::free(tx, at)?;
    Ok(item)
}

/// Replaces an item by another, and returns it.
fn replace<T: Item, S: Space>(
    tx: &mut Tx<'_, S>,
    at: Ptr<T::Stored>,
    item: &T::Borrowed,
) -> Result<T::Owned, Interrupted> {
    let old = take::<T, S>(tx, at)?;
    put::<T, S>(tx, at, item)?;
    Ok(old)
}

/// An iterator over the results of a function, which ends after `None` or an error.
fn until_over<T>(
    mut next: impl FnMut() -> Result<Option<T>, Interrupted>,
) -> impl Iterator<Item = Result<T, Interrupted>> {
    let mut is_over = false;
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let step = next().transpose();
        is_over = !matches!(step, Some(Ok(_)));
        step
    })
}

/// Detects a chain with a cycle (Brent's algorithm): a valid one ends.
#[derive(Debug, Default)]
struct Circle {
    mark: u64,
    steps: u64,
}

impl Circle {
    /// Reports that the chain leads to `off`.
    fn step(&mut self, off: u64) -> Result<(), Interrupted> {
        if off == self.mark {
            return Err(damaged(off, "part of a chain that ends"));
        }
        self.steps += 1;
        if self.steps.is_power_of_two() {
            self.mark = off;
        }
        Ok(())
    }
}

/// Makes a type with a `Head` persistent, with a layout that `$describe` adds.
macro_rules! headed {
    ([$($generics:tt)*] $type:ty, $layout:ident => $describe:expr) => {
        impl<$($generics)*> $type {
            const HEAD: crate::Field<Self, Head> = crate::Field::at(0);

            fn with(head: Head) -> Self {
                let of = std::marker::PhantomData;
                Self { head, of }
            }
        }

        impl<$($generics)*> crate::Persist for $type {
            const SIZE: u64 = <Head as crate::Persist>::SIZE;
            const ALIGN: u64 = <Head as crate::Persist>::ALIGN;

            fn describe($layout: &mut crate::Layouts) {
                $describe
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                <Head as crate::Persist>::decode(bytes).map(Self::with)
            }

            fn encode(&self, bytes: &mut [u8]) {
                crate::Persist::encode(&self.head, bytes);
            }
        }

        impl<$($generics)*> std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.head.fmt(f)
            }
        }
    };
}
use headed;
