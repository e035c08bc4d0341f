//! Block devices: stable storage that is read and written in whole blocks.
//!
//! # Persistence model of [`BlockDevice`]
//!
//! A write is in one of three states:
//!
//! 1. **Issued**: [`submit`](BlockDevice::submit) has taken it. A crash may leave it done,
//!    not done or, beyond [`Persistence::atomic_bytes`], torn. Issued writes reach the
//!    medium in any order.
//! 2. **Completed**: [`reap`](BlockDevice::reap) has returned its completion. Reads see it.
//!    Unless [`Persistence::volatile_cache`] is false, a crash may still undo it.
//! 3. **Durable**: one of three holds. A [`flush`](BlockDevice::flush) that began after its
//!    completion has returned `Ok`. The write itself was [`durable`](Write::durable) (FUA) and
//!    has completed. The device has no volatile cache and the write has completed.
//!
//! A FUA write has no effect on earlier writes. A flush has no effect on writes that had not
//! completed when it began. A failed write leaves its blocks old, new or torn. A failed flush
//! leaves every write since the last successful one in doubt.
//!
//! Callers have at most one write of a block under way at a time.
//!
//! # Back ends
//!
//! | type | what it is |
//! |---|---|
//! | [`FileDevice`] | a file or block device, by io_uring or by pread/pwrite |
//! | [`MemoryDevice`] | plain memory |
//! | [`ImageDevice`] | memory that starts with an [`Image`] and shares its unchanged blocks |
//!
//! and, around any of them, a [`DeviceLayer`](layer::DeviceLayer):
//!
//! | type | what it adds |
//! |---|---|
//! | [`CountingDevice`] | counts of reads, writes, blocks and flushes |
//! | [`DelayDevice`] | the timing of a disk or an SSD |
//! | [`FaultyDevice`] | errors, torn and misdirected writes, lost flushes |
//! | [`OverlayDevice`] | writes that stay in memory |
//! | [`PoweredDevice`] | a power cut at any moment |
//! | [`RecordingDevice`] | a trace of every write, completion and flush |
//!
//! [`Replay`] turns such a trace into the images that a crash may leave.

mod buffer;
mod counting;
mod delay;
mod device;
mod faulty;
mod file;
mod image;
pub mod layer;
mod memory;
mod overlay;
mod power;
mod recording;
mod replay;

pub use buffer::Buffer;
pub use counting::{BlockCounts, CountingDevice};
pub use delay::{DelayDevice, DelayModel, DiskModel, SsdModel};
pub use device::{BlockDevice, BlockError, Completion, Geometry, Lba, Persistence, Write};
pub use faulty::FaultyDevice;
pub(crate) use file::is_read_only;
pub use file::{DeviceFacts, DeviceOptions, Direct, FileDevice, Io};
pub use image::{Image, ImageDevice};
pub use memory::MemoryDevice;
pub use overlay::OverlayDevice;
pub use power::{BlockCutAfter, BlockCutReport, PowerSupply, PoweredDevice, TearModel};
pub use recording::{BlockEvent, EventId, RecordingDevice};
pub use replay::{Left, OpenWrite, Replay};
