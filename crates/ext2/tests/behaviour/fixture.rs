//! Images, and mounting them in memory.

use blockfs::mount::OpenOptions;
use blockfs::{BlockFs, BlockFsOptions};
use ext2::Ext2;
use medium::block::MemoryDevice;
use patch::{Cache, CacheOptions};
use std::process::Command;
use std::sync::Arc;
use vfs::{Atime, Guarantees, ManualClock, Timestamp};

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

fn run_e2fsck(image: &[u8]) -> std::process::Output {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, image).unwrap();
    Command::new("e2fsck")
        .arg("-fn")
        .arg(&path)
        .output()
        .unwrap()
}

/// The output of e2fsck for an image, if it finds a problem.
pub fn e2fsck(image: &[u8]) -> Option<String> {
    let done = run_e2fsck(image);
    (!done.status.success()).then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}

/// The whole output of e2fsck for an image.
pub fn output_of_e2fsck(image: &[u8]) -> String {
    String::from_utf8_lossy(&run_e2fsck(image).stdout).into_owned()
}

/// Runs a program that changes an image in place.
pub fn with_file(image: &[u8], program: &str, args: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, image).unwrap();
    let _ = Command::new(program)
        .args(args)
        .arg(&path)
        .output()
        .unwrap();
    std::fs::read(path).unwrap()
}

/// Runs a command of debugfs. Returns the image afterwards, and the output.
pub fn debugfs(image: &[u8], command: &str) -> (Vec<u8>, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, image).unwrap();
    let mut run = Command::new("debugfs");
    let done = run.args(["-w", "-R", command]).arg(&path).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    (std::fs::read(path).unwrap(), said)
}

/// A mounted image.
pub struct Mounted {
    pub fs: BlockFs<Ext2>,
    pub cache: Arc<Cache>,
    pub device: Arc<MemoryDevice>,
}

pub fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(
        Timestamp(1_600_000_000_000_000_000),
        1_000,
    ))
}

/// Options of a cache that writes only at a sync, or when it is full.
pub fn options(dirty_limit: usize) -> CacheOptions {
    CacheOptions {
        blocks: dirty_limit * 2,
        dirty_limit,
        interval: None,
        ..CacheOptions::default()
    }
}

pub fn mount_with(device: Arc<MemoryDevice>, dirty_limit: usize) -> Mounted {
    Mounted::try_open(device, options(dirty_limit)).unwrap()
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
    pub fn try_open(device: Arc<MemoryDevice>, options: CacheOptions) -> Result<Self, String> {
        let cache = Arc::new(Cache::new(vec![Box::new(device.clone())], options));
        let store = super::store(cache.store(0));
        let options = OpenOptions {
            clock: clock(),
            ..OpenOptions::default()
        };
        let format = Ext2::open(store, options).map_err(|e| e.to_string())?;
        let options = BlockFsOptions {
            atime: Atime::Never,
            clock: clock(),
            ..BlockFsOptions::new(Guarantees::none("test"))
        };
        let fs = BlockFs::open(format, options).map_err(|e| e.to_string())?;
        Ok(Self { fs, cache, device })
    }

    /// Unmounts. Returns the image.
    pub fn close(self) -> Vec<u8> {
        self.fs.close().unwrap();
        assert_eq!(self.cache.dirty(), 0);
        self.device.bytes()
    }
}
