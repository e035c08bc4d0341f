//! Regions around other regions.

use crate::{MediumError, Pmem, Rule, WORD_BYTES};
use std::sync::Arc;

/// A region that forwards to another one all calls that it does not change.
///
/// A type that implements this is a [`Pmem`]. It states where the region below is and the
/// calls that it changes; every other call is that of the region below. Bring `Pmem` into
/// scope, not this trait: the methods have the same names.
#[allow(clippy::missing_errors_doc)] // those of Pmem
#[allow(clippy::len_without_is_empty)] // Pmem has it
pub trait PmemLayer: Send + Sync {
    /// The region below.
    type Below: Pmem + ?Sized;

    /// The region below.
    fn below(&self) -> &Self::Below;

    /// See [`Pmem::len`].
    #[inline]
    fn len(&self) -> u64 {
        self.below().len()
    }

    /// See [`Pmem::load`].
    #[inline]
    fn load(&self, off: u64) -> Result<u64, MediumError> {
        self.below().load(off)
    }

    /// See [`Pmem::load_words`]. Each word is loaded as this layer does it.
    #[inline]
    fn load_words(&self, off: u64, words: &mut [u64]) -> Result<(), MediumError> {
        for (n, word) in (0..).zip(words) {
            *word = PmemLayer::load(self, off.saturating_add(n * WORD_BYTES))?;
        }
        Ok(())
    }

    /// See [`Pmem::read`].
    #[inline]
    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.below().read(off, buf)
    }

    /// See [`Pmem::store`].
    #[inline]
    fn store(&self, off: u64, bytes: &[u8]) {
        self.below().store(off, bytes);
    }

    /// See [`Pmem::store_nt`].
    #[inline]
    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.below().store_nt(off, bytes);
    }

    /// See [`Pmem::flush`].
    #[inline]
    fn flush(&self, off: u64, len: u64) {
        self.below().flush(off, len);
    }

    /// See [`Pmem::fence`].
    #[inline]
    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        self.below().fence(rule)
    }

    /// See [`Pmem::drain`].
    #[inline]
    fn drain(&self) {
        self.below().drain();
    }

    /// See [`Pmem::prefetch`].
    #[inline]
    fn prefetch(&self, off: u64) {
        self.below().prefetch(off);
    }

    /// See [`Pmem::populate`].
    #[inline]
    fn populate(&self, off: u64, len: u64) {
        self.below().populate(off, len);
    }
}

impl<L: PmemLayer> Pmem for L {
    #[inline]
    fn len(&self) -> u64 {
        PmemLayer::len(self)
    }

    #[inline]
    fn load(&self, off: u64) -> Result<u64, MediumError> {
        PmemLayer::load(self, off)
    }

    #[inline]
    fn load_words(&self, off: u64, words: &mut [u64]) -> Result<(), MediumError> {
        PmemLayer::load_words(self, off, words)
    }

    #[inline]
    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        PmemLayer::read(self, off, buf)
    }

    #[inline]
    fn store(&self, off: u64, bytes: &[u8]) {
        PmemLayer::store(self, off, bytes);
    }

    #[inline]
    fn store_nt(&self, off: u64, bytes: &[u8]) {
        PmemLayer::store_nt(self, off, bytes);
    }

    #[inline]
    fn flush(&self, off: u64, len: u64) {
        PmemLayer::flush(self, off, len);
    }

    #[inline]
    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        PmemLayer::fence(self, rule)
    }

    #[inline]
    fn drain(&self) {
        PmemLayer::drain(self);
    }

    #[inline]
    fn prefetch(&self, off: u64) {
        PmemLayer::prefetch(self, off);
    }

    #[inline]
    fn populate(&self, off: u64, len: u64) {
        PmemLayer::populate(self, off, len);
    }
}

macro_rules! pointers {
    ($($ty:ty),*) => {$(
        impl<P: Pmem + ?Sized> PmemLayer for $ty {
            type Below = P;

            #[inline]
            fn below(&self) -> &P {
                self
            }

            #[inline]
            fn load_words(&self, off: u64, words: &mut [u64]) -> Result<(), MediumError> {
                (**self).load_words(off, words)
            }
        }
    )*};
}
pointers!(&P, Box<P>);

// Not a layer, so that a layer can call the methods of the `Arc` below it.
impl<P: Pmem + ?Sized> Pmem for Arc<P> {
    #[inline]
    fn len(&self) -> u64 {
        (**self).len()
    }

    #[inline]
    fn load(&self, off: u64) -> Result<u64, MediumError> {
        (**self).load(off)
    }

    #[inline]
    fn load_words(&self, off: u64, words: &mut [u64]) -> Result<(), MediumError> {
        (**self).load_words(off, words)
    }

    #[inline]
    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        (**self).read(off, buf)
    }

    #[inline]
    fn store(&self, off: u64, bytes: &[u8]) {
        (**self).store(off, bytes);
    }

    #[inline]
    fn store_nt(&self, off: u64, bytes: &[u8]) {
        (**self).store_nt(off, bytes);
    }

    #[inline]
    fn flush(&self, off: u64, len: u64) {
        (**self).flush(off, len);
    }

    #[inline]
    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        (**self).fence(rule)
    }

    #[inline]
    fn drain(&self) {
        (**self).drain();
    }

    #[inline]
    fn prefetch(&self, off: u64) {
        (**self).prefetch(off);
    }

    #[inline]
    fn populate(&self, off: u64, len: u64) {
        (**self).populate(off, len);
    }
}
