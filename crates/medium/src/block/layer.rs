//! Devices around other devices.

use super::{BlockDevice, BlockError, Completion, Geometry, Lba, Persistence, Write};
use crate::Rule;
use std::sync::Arc;

/// A device that forwards to another one all calls that it does not change.
///
/// A type that implements this is a [`BlockDevice`]. It states where the device below is and
/// the calls that it changes; every other call is that of the device below. Bring
/// `BlockDevice` into scope, not this trait: the methods have the same names.
#[allow(clippy::missing_errors_doc)] // BlockError documents them once
pub trait DeviceLayer: Send + Sync {
    /// The device below.
    type Below: BlockDevice + ?Sized;

    /// The device below.
    fn below(&self) -> &Self::Below;

    /// See [`BlockDevice::name`].
    fn name(&self) -> &str {
        self.below().name()
    }

    /// See [`BlockDevice::geometry`].
    fn geometry(&self) -> Geometry {
        self.below().geometry()
    }

    /// See [`BlockDevice::persistence`].
    fn persistence(&self) -> Persistence {
        self.below().persistence()
    }

    /// See [`BlockDevice::read`].
    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        self.below().read(lba, buf)
    }

    /// See [`BlockDevice::submit`].
    fn submit(&self, writes: Vec<Write>) {
        self.below().submit(writes);
    }

    /// See [`BlockDevice::reap`].
    fn reap(&self, min: usize) -> Vec<Completion> {
        self.below().reap(min)
    }

    /// See [`BlockDevice::flush`].
    fn flush(&self, rule: Rule) -> Result<(), BlockError> {
        self.below().flush(rule)
    }

    /// See [`BlockDevice::discard`].
    fn discard(&self, lba: Lba, blocks: u64) -> Result<(), BlockError> {
        self.below().discard(lba, blocks)
    }
}

impl<L: DeviceLayer> BlockDevice for L {
    fn name(&self) -> &str {
        DeviceLayer::name(self)
    }

    fn geometry(&self) -> Geometry {
        DeviceLayer::geometry(self)
    }

    fn persistence(&self) -> Persistence {
        DeviceLayer::persistence(self)
    }

    fn read(&self, lba: Lba, buf: &mut [u8]) -> Result<(), BlockError> {
        DeviceLayer::read(self, lba, buf)
    }

    fn submit(&self, writes: Vec<Write>) {
        DeviceLayer::submit(self, writes);
    }

    fn reap(&self, min: usize) -> Vec<Completion> {
        DeviceLayer::reap(self, min)
    }

    fn flush(&self, rule: Rule) -> Result<(), BlockError> {
        DeviceLayer::flush(self, rule)
    }

    fn discard(&self, lba: Lba, blocks: u64) -> Result<(), BlockError> {
        DeviceLayer::discard(self, lba, blocks)
    }
}

macro_rules! pointers {
    ($($ty:ty),*) => {$(
        impl<D: BlockDevice + ?Sized> DeviceLayer for $ty {
            type Below = D;

            fn below(&self) -> &D {
                self
            }
        }
    )*};
}
pointers!(&D, Box<D>, Arc<D>);
