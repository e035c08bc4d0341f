//! `selvedge sync`: makes a mount durable, which sync(2) does not.

use crate::failure::{Failure, Outcome};
use crate::mount::table;
use rustix::fs::{XattrFlags, setxattr};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Make durable all that was done to a mounted file system
///
/// The kernel does not pass sync(1), sync(2) and syncfs(2) on to servers of FUSE. fsync(2)
/// and fdatasync(2) reach them.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A file or directory in it
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

impl Args {
    /// Runs the command.
    pub fn run(&self) -> Outcome {
        let path = self.path.canonicalize().map_err(|e| self.failed(&e))?;
        let mut mount = None;
        for dir in path.ancestors() {
            mount = table::find(dir).map_err(|e| self.failed(&e))?;
            if mount.is_some() {
                break;
            }
        }
        let Some(mount) = mount.filter(|mount| mount.fs_type == table::OURS) else {
            return Err(self.failed(&"it is not in a file system of ours; use sync(1)"));
        };
        match make_durable(&mount.dir) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            // A mount without changes has nothing to lose.
            Err(Errno::ROFS) => Ok(ExitCode::SUCCESS),
            Err(Errno::ACCESS) => {
                let dir = mount.dir.display();
                Err(self.failed(&format_args!("this takes the right to write to {dir}")))
            }
            Err(e) => Err(self.failed(&e)),
        }
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::new(format_args!("{}: cannot sync: {why}", self.path.display()))
    }
}

/// Has the server of the file system at this mount point make everything durable.
///
/// # Errors
/// `EIO` and `ENOSPC` if something is not; others if the server could not be asked.
pub fn make_durable(mount: &Path) -> Result<(), Errno> {
    setxattr(mount, fuse::SYNC_XATTR, b"", XattrFlags::empty())
}
