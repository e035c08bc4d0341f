//! Images, and mounting them in memory.

use ext2::{Ext2, Options};
use lfs::{Universal, UniversalOptions};
use medium::block::MemoryDevice;
use patch::{Cache, CacheOptions};
use std::process::Command;
use std::sync::Arc;
use vfs::{Atime, FileSystem, ManualClock, Timestamp};

/// An image that mke2fs makes with these arguments.
pub fn mke2fs(args: &[&str], size: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-t", "ext2", "-F"]).args(args);
    let made = command.arg(&path).arg(size).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    std::fs::read(path).unwrap()
}

/// What e2fsck says of an image, if it is not content.
pub fn e2fsck(image: &[u8]) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, image).unwrap();
    let done = Command::new("e2fsck")
        .arg("-fn")
        .arg(&path)
        .output()
        .unwrap();
    (!done.status.success()).then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}

/// A mounted image.
pub struct Mounted {
    pub fs: Universal<Ext2>,
    pub cache: Arc<Cache>,
    pub device: Arc<MemoryDevice>,
}

pub fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(
        Timestamp(1_600_000_000_000_000_000),
        1_000,
    ))
}

pub fn mount_with(device: Arc<MemoryDevice>, dirty_limit: usize) -> Mounted {
    let options = CacheOptions {
        blocks: dirty_limit * 2,
        dirty_limit,
        interval: None,
        ..CacheOptions::default()
    };
    let cache = Arc::new(Cache::new(vec![Box::new(device.clone())], options));
    let store = Arc::new(cache.volume(0));
    let options = Options {
        clock: clock(),
        ..Options::default()
    };
    let low = Ext2::open(store, options).unwrap();
    let universal = UniversalOptions {
        atime: Atime::Never,
        clock: clock(),
        ..UniversalOptions::new(vfs::ModelFs::default().guarantees())
    };
    let fs = Universal::open(low, universal).unwrap();
    Mounted { fs, cache, device }
}

pub fn device(image: Vec<u8>) -> Arc<MemoryDevice> {
    let block_bytes = ext2::probe(&MemoryDevice::from_bytes(1024, image.clone()))
        .unwrap()
        .block_bytes;
    Arc::new(MemoryDevice::from_bytes(block_bytes, image))
}

pub fn mount(image: Vec<u8>) -> Mounted {
    mount_with(device(image), 4096)
}

impl Mounted {
    /// Unmounts; the image.
    pub fn close(self) -> Vec<u8> {
        self.fs.close().unwrap();
        assert_eq!(self.cache.dirty(), 0);
        self.device.bytes()
    }
}
