//! Typed data in transactions.

use super::{Array, Layouts, Persist, Ptr};
use crate::heap::HeapError;
use crate::store::{Backing, ROOT_NAME_MAX, Session, Tx};
use crate::tx::{Interrupted, Space, Stop, TxError};

/// Values up to so many bytes are copied by way of the stack.
const SMALL: usize = 256;
/// Contents from so many bytes on are filled without a log: it would cost more than the
/// fence that this needs.
const FILLED: usize = 128;

/// Why a root is not to be had.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// It is something else.
    #[error("root {name:?} is not a {wanted}: it was made by a program with another layout")]
    OtherLayout {
        /// Its name.
        name: String,
        /// What was asked for.
        wanted: String,
    },
    /// It is damaged.
    #[error(
        "root {name:?} is damaged: it names offset {off:#x}, where no block is allocated; see \
         `selvedge heap check`"
    )]
    NotThere {
        /// Its name.
        name: String,
        /// What it names.
        off: u64,
    },
    /// Its name is no name, or there are too many.
    #[error("root {name:?}: a name has 1 to {ROOT_NAME_MAX} bytes, or there are too many roots")]
    NoRoom {
        /// The name.
        name: String,
    },
}

/// Calls `with` with so many zero bytes.
pub(crate) fn with_bytes<R>(len: u64, with: impl FnOnce(&mut [u8]) -> R) -> R {
    match len as usize {
        len @ 0..=SMALL => with(&mut [0; SMALL][..len]),
        len => with(&mut vec![0; len]),
    }
}

impl<S: Space> Tx<'_, S> {
    /// Copies a value out.
    ///
    /// # Errors
    /// [`Interrupted`]; [`Interrupted::NoValue`]: there is none. So with all that follow.
    pub fn get<T: Persist>(&mut self, ptr: Ptr<T>) -> Result<T, Interrupted> {
        let (off, at) = (ptr.off(), self.address(ptr.off()));
        with_bytes(T::SIZE, |bytes| {
            self.read(at, bytes)?;
            let what = std::any::type_name::<T>();
            T::decode(bytes).ok_or(Interrupted::NoValue { off, what })
        })
    }

    /// Copies a value in.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn set<T: Persist>(&mut self, ptr: Ptr<T>, value: &T) -> Result<(), Interrupted> {
        let at = self.address(ptr.off());
        with_bytes(T::SIZE, |bytes| {
            value.encode(bytes);
            self.write(at, bytes)
        })
    }

    /// Allocates room for a value, and copies it in.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn create<T: Persist>(&mut self, value: &T) -> Result<Ptr<T>, Interrupted> {
        let off = self.alloc(T::SIZE)?;
        with_bytes(T::SIZE, |bytes| {
            value.encode(bytes);
            self.write_fresh(off, bytes)
        })?;
        Ptr::new(off).ok_or(Interrupted::Heap(HeapError::NotAllocated { off }))
    }

    /// Fills what this transaction allocated.
    pub(crate) fn write_fresh(&mut self, off: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        match bytes.len() < FILLED {
            true => self.write(self.address(off), bytes),
            false => self.fill(off, bytes),
        }
    }

    /// Frees what [`create`](Self::create) allocated.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn delete<T: Persist>(&mut self, ptr: Ptr<T>) -> Result<(), Interrupted> {
        self.free(ptr.off())
    }

    /// Allocates `len` values, each a copy of `value`.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn create_array<T: Persist>(
        &mut self,
        value: &T,
        len: u64,
    ) -> Result<Array<T>, Interrupted> {
        if len == 0 {
            return Ok(Array::EMPTY);
        }
        let too_large = Interrupted::Heap(HeapError::NoSpace { bytes: u64::MAX });
        let bytes = T::SIZE.checked_mul(len).ok_or(too_large)?;
        let off = self.alloc(bytes)?;
        // Piece by piece: it may be large.
        let most = (64 << 10) / T::SIZE.max(1);
        let mut piece = vec![0; (len.min(most.max(1)) * T::SIZE) as usize];
        for one in piece.chunks_exact_mut((T::SIZE as usize).max(1)) {
            value.encode(one);
        }
        let mut at = off;
        while at < off + bytes {
            let part = (off + bytes - at).min(piece.len() as u64);
            self.write_fresh(at, &piece[..part as usize])?;
            at += part;
        }
        let start = Ptr::new(off).ok_or(Interrupted::Heap(HeapError::NotAllocated { off }))?;
        Ok(Array::new(start, len))
    }

    /// Frees what [`create_array`](Self::create_array) allocated.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub fn delete_array<T: Persist>(&mut self, array: Array<T>) -> Result<(), Interrupted> {
        array.start().map_or(Ok(()), |start| self.free(start.off()))
    }
}

impl<B: Backing, S: Space<Pmem = B::Pmem>> Session<B, S> {
    /// The root of this name, which `make` makes if there is none yet, in one transaction.
    ///
    /// # Errors
    /// [`TxError::Cancelled`] of [`RootError`]: it is of another type, or cannot be named.
    pub fn root<T: Persist>(
        &mut self,
        name: &str,
        mut make: impl FnMut(&mut Tx<'_, S>) -> Result<T, Interrupted>,
    ) -> Result<Ptr<T>, TxError<RootError>> {
        let layout = Layouts::of::<T>().hash();
        let other = || RootError::OtherLayout {
            name: name.to_owned(),
            wanted: std::any::type_name::<T>().to_owned(),
        };
        self.run(|tx| match tx.root(name)? {
            Some((found, off)) if found == layout => match tx.is_block(off)? {
                true => Ptr::new(off).ok_or_else(|| Stop::Cancel(other())),
                false => Err(Stop::Cancel(RootError::NotThere {
                    name: name.to_owned(),
                    off,
                })),
            },
            Some(_) => Err(Stop::Cancel(other())),
            None => {
                let value = make(tx)?;
                let made = tx.create(&value)?;
                match tx.set_root(name, layout, made.off())? {
                    true => Ok(made),
                    false => Err(Stop::Cancel(RootError::NoRoom {
                        name: name.to_owned(),
                    })),
                }
            }
        })
    }
}
