//! A block device as one file: the module `wholedisk` of section 2.4 of the Featherstitch chapter.
//!
//! The root directory has one file, [`NAME`], which is as large as the device. Block `i` of the
//! file is block `i` of the device. The device has no metadata, so any contents can be mounted.
//! Caches, stacks, fsync and the order between sets of changes are those of [`blockfs`].
//!
//! # Guarantees
//! - **W1** *The device has only what was written.* A mount and its unmount change no byte.
//! - **W2** *fsync.* When `fsync` of the file returns, its writes are durable.
//! - **W3** *Sectors.* A crash leaves each sector as one write left it, if the device keeps
//!   sectors whole. Writes of several sectors can be torn.
//! - **W4** *Order.* Writes become durable in any order, unless [`vfs::ChangeOrder`] orders them.
//!   The order of changes of one block needs a device that keeps blocks whole.
//! - **W5** *The shape is fixed.* The calls that would change the size, the names or the
//!   permissions fail with `EPERM`. Times are kept in memory until the unmount.
//!
//! W2 to W4 hold in both modes, since the format asks for no order that `async` could drop. There
//! is no journal: the device has no room for the mark that a replay is needed.
//!
//! [`WholeDisk`] has the steps of the format. [`DeviceCalls`] stands above and treats the calls
//! for which Linux distinguishes devices from regular files.
//!
//! # Example
//! ```
//! use blockfs::mount::{Devices, MountOptions, mount};
//! use medium::block::{Geometry, MemoryDevice};
//! use std::sync::Arc;
//! use vfs::{Ctx, FileSystem, Ino};
//! use wholedisk::{DeviceCalls, WholeDisk};
//!
//! let disk = Arc::new(MemoryDevice::new(Geometry { block_bytes: 4096, blocks: 16 }));
//! let stack = "uhfs > wholedisk > cache > disk".parse()?;
//! let devices = Devices { disk: disk.clone(), log: None };
//! let mounted = mount::<WholeDisk>(&stack, devices, &MountOptions::default())?;
//! let fs = DeviceCalls::new(mounted.file_system().clone());
//! let cx = Ctx::root();
//! let file = fs.lookup(&cx, Ino::ROOT, wholedisk::NAME)?;
//! assert_eq!(file.size, 65536);
//! fs.write(&cx, file.ino, 5000, b"raw")?;
//! fs.fsync(&cx, file.ino, false)?;
//! mounted.close()?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod calls;
#[cfg(feature = "engine")]
mod engine;
mod mount;
mod steps;

pub use calls::DeviceCalls;
#[cfg(feature = "engine")]
pub use engine::WholeDiskEngine;
pub use mount::Error;

use parking_lot::Mutex;
use patch::Store;
use std::sync::Arc;
use vfs::{Attr, FileFlags, FileType, Ino, Timestamp};

/// The name of the file.
pub const NAME: &[u8] = b"disk";

/// The inode of the file.
const DISK: Ino = Ino(2);

/// A mounted device.
pub struct WholeDisk {
    store: Arc<dyn Store>,
    inodes: Mutex<Inodes>,
}

/// The inodes, which are in memory only.
struct Inodes {
    root: Attr,
    disk: Attr,
}

impl Inodes {
    /// The inodes of a device with this store. They belong to the user of this process.
    fn new(store: &dyn Store, now: Timestamp) -> Self {
        let bytes = store.blocks() * u64::from(store.block_bytes());
        let root = Attr {
            ino: Ino::ROOT,
            generation: 0,
            kind: FileType::Directory,
            perm: 0o755,
            nlink: 2,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: store.block_bytes(),
            atime: now,
            mtime: now,
            ctime: now,
            flags: FileFlags::empty(),
        };
        let disk = Attr {
            ino: DISK,
            kind: FileType::Regular,
            perm: 0o600,
            nlink: 1,
            size: bytes,
            blocks: bytes / 512,
            ..root
        };
        Self { root, disk }
    }

    fn get(&self, ino: Ino) -> Option<&Attr> {
        match ino {
            Ino::ROOT => Some(&self.root),
            DISK => Some(&self.disk),
            _ => None,
        }
    }

    fn get_mut(&mut self, ino: Ino) -> Option<&mut Attr> {
        match ino {
            Ino::ROOT => Some(&mut self.root),
            DISK => Some(&mut self.disk),
            _ => None,
        }
    }
}
