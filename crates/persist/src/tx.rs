//! Typed values in a transaction.

use crate::{Array, Persist, Ptr};
use mnemosyne::heap::HeapError;
use mnemosyne::memory::Tx;
use mnemosyne::tx::{Interrupted, Space};

/// Values up to this many bytes are copied by way of the stack.
const SMALL: usize = 256;
/// Contents of at least this many bytes are filled without a log, which would cost more than
/// the fence that filling needs.
const FILLED: usize = 128;

/// Calls `with` with `len` zero bytes.
pub(crate) fn with_bytes<R>(len: u64, with: impl FnOnce(&mut [u8]) -> R) -> R {
    match len as usize {
        len @ 0..=SMALL => with(&mut [0; SMALL][..len]),
        len => with(&mut vec![0; len]),
    }
}

/// Writes `bytes` to a block that this transaction allocated.
pub(crate) fn write_fresh<S: Space>(
    tx: &mut Tx<'_, S>,
    off: u64,
    bytes: &[u8],
) -> Result<(), Interrupted> {
    match bytes.len() < FILLED {
        true => tx.write(tx.address(off), bytes),
        false => tx.fill(off, bytes),
    }
}

/// Typed access to durable memory, for the transactions of [`mnemosyne::memory`].
pub trait TypedTx {
    /// Copies a value out.
    ///
    /// # Errors
    /// [`Interrupted`]; [`Interrupted::NoValue`]: the bytes are not a value of this type. The same
    /// holds for all other calls.
    fn get<T: Persist>(&mut self, ptr: Ptr<T>) -> Result<T, Interrupted>;

    /// Copies a value in.
    ///
    /// # Errors
    /// [`Interrupted`].
    fn set<T: Persist>(&mut self, ptr: Ptr<T>, value: &T) -> Result<(), Interrupted>;

    /// Allocates room for a value, and copies it there.
    ///
    /// # Errors
    /// [`Interrupted`].
    fn create<T: Persist>(&mut self, value: &T) -> Result<Ptr<T>, Interrupted>;

    /// Frees a value that [`create`](Self::create) allocated.
    ///
    /// # Errors
    /// [`Interrupted`].
    fn delete<T: Persist>(&mut self, ptr: Ptr<T>) -> Result<(), Interrupted>;

    /// Allocates `len` values, each a copy of `value`.
    ///
    /// # Errors
    /// [`Interrupted`].
    fn create_array<T: Persist>(&mut self, value: &T, len: u64) -> Result<Array<T>, Interrupted>;

    /// Frees an array that [`create_array`](Self::create_array) allocated.
    ///
    /// # Errors
    /// [`Interrupted`].
    fn delete_array<T: Persist>(&mut self, array: Array<T>) -> Result<(), Interrupted>;
}

impl<S: Space> TypedTx for Tx<'_, S> {
    fn get<T: Persist>(&mut self, ptr: Ptr<T>) -> Result<T, Interrupted> {
        let (off, at) = (ptr.off(), self.address(ptr.off()));
        with_bytes(T::SIZE, |bytes| {
            self.read(at, bytes)?;
            let what = std::any::type_name::<T>();
            T::decode(bytes).ok_or(Interrupted::NoValue { off, what })
        })
    }

    fn set<T: Persist>(&mut self, ptr: Ptr<T>, value: &T) -> Result<(), Interrupted> {
        let at = self.address(ptr.off());
        with_bytes(T::SIZE, |bytes| {
            value.encode(bytes);
            self.write(at, bytes)
        })
    }

    fn create<T: Persist>(&mut self, value: &T) -> Result<Ptr<T>, Interrupted> {
        let off = self.alloc(T::SIZE)?;
        with_bytes(T::SIZE, |bytes| {
            value.encode(bytes);
            write_fresh(self, off, bytes)
        })?;
        Ptr::new(off).ok_or(Interrupted::Heap(HeapError::NotAllocated { off }))
    }

    fn delete<T: Persist>(&mut self, ptr: Ptr<T>) -> Result<(), Interrupted> {
        self.free(ptr.off())
    }

    fn create_array<T: Persist>(&mut self, value: &T, len: u64) -> Result<Array<T>, Interrupted> {
        if len == 0 {
            return Ok(Array::EMPTY);
        }
        let too_large = Interrupted::Heap(HeapError::NoSpace { bytes: u64::MAX });
        let bytes = T::SIZE.checked_mul(len).ok_or(too_large)?;
        let off = self.alloc(bytes)?;
        // Piece by piece, because the array may be large.
        let most = (64 << 10) / T::SIZE.max(1);
        let mut piece = vec![0; (len.min(most.max(1)) * T::SIZE) as usize];
        for one in piece.chunks_exact_mut((T::SIZE as usize).max(1)) {
            value.encode(one);
        }
        let mut at = off;
        while at < off + bytes {
            let part = (off + bytes - at).min(piece.len() as u64);
            write_fresh(self, at, &piece[..part as usize])?;
            at += part;
        }
        let start = Ptr::new(off).ok_or(Interrupted::Heap(HeapError::NotAllocated { off }))?;
        Ok(Array::new(start, len))
    }

    fn delete_array<T: Persist>(&mut self, array: Array<T>) -> Result<(), Interrupted> {
        array.start().map_or(Ok(()), |start| self.free(start.off()))
    }
}
