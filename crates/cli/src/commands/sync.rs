//! `selvedge sync`: makes a mount durable, which sync(2) does not.

use crate::failure::{Failure, Outcome};
use rustix::fs::{Mode, OFlags, fgetxattr, open, syncfs};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Make all that was done to a mounted file system as durable as the mount can
///
/// The kernel does not pass sync(1), sync(2) and syncfs(2) on to servers of FUSE. fsync(2)
/// and fdatasync(2) reach them. `selvedge info` tells what the mount's durability is worth.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A file or directory in it that you may read
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

impl Args {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let path = self.path.canonicalize().map_err(|e| self.failed(&e))?;
        let is_open = path.is_file() || path.is_dir();
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

/// Has the kernel write back what it holds of the file system that this file or directory is
/// in, and the server make it durable. `false`: it is none of ours.
///
/// # Errors
/// `EIO` and `ENOSPC` if something is not durable; others if nobody could be asked.
pub fn make_durable(path: &Path) -> Result<bool, Errno> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut said = [0; fuse::SYNCED.len()];
    // Nobody else's files are to be written back, and ours are asked twice.
    match fgetxattr(&file, fuse::SYNC_XATTR, &mut said[..]) {
        Err(Errno::OPNOTSUPP | Errno::NODATA | Errno::NOSYS | Errno::INVAL | Errno::RANGE) => {
            return Ok(false);
        }
        Err(e) => return Err(e),
        Ok(_) if said != *fuse::SYNCED => return Ok(false),
        Ok(_) => {}
    }
    syncfs(&file)?;
    fgetxattr(&file, fuse::SYNC_XATTR, &mut said[..]).map(|_| true)
}
