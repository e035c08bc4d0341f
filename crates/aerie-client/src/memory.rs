//! The memory of a store, as clients map it: an image, or the classes of a protected store.

use medium::{MappedPmem, MediumError, Pmem, SharedBytes};
use scm::Joined;
use std::sync::Arc;

/// A mapped memory.
pub(crate) trait Memory: Pmem + Clone + 'static {
    /// Whether it is that of a protected store. Bytes of it are not lent: pages may move at any time.
    const IS_PROTECTED: bool;

    /// Bytes, without a copy.
    ///
    /// # Errors
    /// As [`Pmem::read`].
    fn shared_bytes(&self, off: u64, len: usize) -> Result<SharedBytes<'_>, MediumError>;
}

impl Memory for Arc<MappedPmem> {
    const IS_PROTECTED: bool = false;

    fn shared_bytes(&self, off: u64, len: usize) -> Result<SharedBytes<'_>, MediumError> {
        (**self).shared_bytes(off, len)
    }
}

impl Memory for Arc<Joined> {
    const IS_PROTECTED: bool = true;

    fn shared_bytes(&self, off: u64, _: usize) -> Result<SharedBytes<'_>, MediumError> {
        Err(MediumError::Denied { off })
    }
}
