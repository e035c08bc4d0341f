//! `selvedge sync`: makes a mount durable, which sync(2) does not.

use crate::failure::{Failure, Outcome};
use crate::mount::write_back::write_back;
use rustix::fs::{Mode, OFlags, fgetxattr, fstatfs, open};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The type that `fstatfs(2)` returns for every file system that a process serves.
const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;

/// Make all that was done to a mounted file system as durable as the mount can
///
/// The kernel does not pass sync(1), sync(2) and syncfs(2) on to servers of FUSE. fsync(2)
/// and fdatasync(2) reach them. `selvedge info` prints the mount's durability.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file or directory in it that you may read
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        let path = self.path.canonicalize().map_err(|e| self.failed(&e))?;
        let found = path.metadata().map_err(|e| self.failed(&e))?;
        let is_open = found.is_file() || found.is_dir();
        // To open others may wait, or do something.
        let open = match path.parent() {
            Some(parent) if !is_open => parent,
            _ => &path,
        };
        match make_durable(open) {
            Ok(true) => Ok(ExitCode::SUCCESS),
            Ok(false) => Err(self.failed(&"it is not in a file system of ours; use sync(1)")),
            Err(e) => Err(self.failed(&e)),
        }
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::new(format_args!("{}: cannot sync: {why}", self.path.display()))
    }
}

/// Writes back the kernel's cache of the file system of this file or directory, and makes it
/// durable in the server. Returns `false` for a file system of another program.
///
/// # Errors
/// `EIO` and `ENOSPC` if something is not durable; others if nobody could be asked.
pub(crate) fn make_durable(path: &Path) -> Result<bool, Errno> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    if fstatfs(&file)?.f_type != FUSE_SUPER_MAGIC {
        return Ok(false);
    }
    // Changes in the kernel's caches must have reached the server before it is asked.
    write_back(&file)?;
    let mut said = [0; fuse::SYNCED.len()];
    match fgetxattr(&file, fuse::SYNC_XATTR, &mut said[..]) {
        // Errors of other servers for an unknown name.
        Err(Errno::OPNOTSUPP | Errno::NODATA | Errno::NOSYS | Errno::INVAL | Errno::RANGE) => {
            Ok(false)
        }
        Err(e) => Err(e),
        Ok(_) => Ok(said == *fuse::SYNCED),
    }
}
