//! Data that programs have stored in mappings of a mount, on their way to its server.

use rustix::fs::{Mode, OFlags, fstat, fstatfs, minor, open, openat, syncfs};
use rustix::io::{Errno, read};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

/// The time for requests that are on their way. Other programs may always have some.
const PATIENCE: Duration = Duration::from_secs(1);

/// The wait for such requests where they cannot be seen.
const UNKNOWN: Duration = Duration::from_millis(100);
/// The type of fusectl for `statfs`.
const FUSE_CTL_MAGIC: rustix::fs::FsWord = 0x6573_5543;

/// Has the kernel send all changes in its caches of a mount, of which `file` is a file, and waits until the
/// server has them.
///
/// From Linux 6.16 on `syncfs` does not wait for the writes of FUSE that it starts.
///
/// # Errors
/// Those of the kernel and of the writes.
pub(crate) fn write_back(file: impl AsFd) -> Result<(), Errno> {
    syncfs(&file)?;
    let connection = format!("{}/waiting", minor(fstat(&file)?.st_dev));
    let Some(requests) = connections() else {
        thread::sleep(UNKNOWN); // others than root cannot see them where fusectl is not mounted
        return Ok(());
    };
    let until = Instant::now() + PATIENCE;
    while is_busy(&requests, &connection) && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The directory of fusectl, which has a directory for each connection.
fn connections() -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = open("/sys/fs/fuse/connections", flags, Mode::empty()).ok();
    let is_mounted = |dir: &OwnedFd| fstatfs(dir).is_ok_and(|fs| fs.f_type == FUSE_CTL_MAGIC);
    dir.filter(is_mounted).or_else(|| {
        let fs = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
        fsconfig_create(&fs).ok()?;
        fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).ok()
    })
}

/// Whether the server has not answered all requests.
fn is_busy(connections: &OwnedFd, waiting: &str) -> bool {
    let mut text = [0; 20];
    let file = openat(
        connections,
        waiting,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let len = file.and_then(|file| read(&file, &mut text));
    match len {
        Ok(len) => text[..len].trim_ascii() != b"0",
        Err(Errno::NOENT) => false, // the connection has ended
        Err(_) => true,             // others than root and the owner of the mount
    }
}
