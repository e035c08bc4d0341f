//! Errors of mounts. Each message is one line, and says what the user can do.

use std::io;
use std::path::PathBuf;

/// Why a file system could not be mounted, served or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The mount point cannot be used.
    #[error("{dir}: cannot be a mount point: {source}", dir = dir.display())]
    MountPoint {
        /// As given by the caller.
        dir: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The server of an earlier mount ended without unmounting.
    #[error(
        "{dir}: holds a dead FUSE mount; remove it with `umount --lazy {dir}`",
        dir = dir.display()
    )]
    DeadMount {
        /// As given by the caller.
        dir: PathBuf,
    },
    /// `/dev/fuse` cannot be opened.
    #[error("/dev/fuse: {0}; is the kernel module `fuse` loaded, and may you open it?")]
    Device(io::Error),
    /// The kernel (or `fusermount3`) refused the mount.
    #[error("{dir}: mount refused: {source}", dir = dir.display())]
    Mount {
        /// The mount point.
        dir: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The connection to the kernel failed.
    #[error("{dir}: lost the connection to the kernel: {source}", dir = dir.display())]
    Connection {
        /// The mount point.
        dir: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Files are open, or a process has its working directory inside.
    #[error("{dir}: busy; `fuser -m {dir}` lists the processes that use it", dir = dir.display())]
    Busy {
        /// The mount point.
        dir: PathBuf,
    },
    /// The kernel (or `fusermount3`) refused to unmount.
    #[error("{dir}: cannot unmount: {source}", dir = dir.display())]
    Unmount {
        /// The mount point.
        dir: PathBuf,
        /// The cause.
        source: io::Error,
    },
}
