//! `selvedge umount`: unmounts, and waits until the image is free.

use crate::failure::{Failure, Outcome};
use crate::mount::server::Server;
use crate::mount::{facts, table};
use crate::output;
use fuse::Unmounter;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Unmount a file system and wait until its image can be opened again
///
/// If the file system is mounted elsewhere too, by a bind mount or in another mount
/// namespace, its server goes on: then that place is printed, and nothing is waited for.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where it is mounted
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Take it out of the tree now, even if it is in use; do not wait
    #[arg(long, short = 'l')]
    lazy: bool,
    /// For umount(8): -f, -n and -r, which change nothing here
    #[arg(short = 'f', short_aliases = ['n', 'r'], hide = true, action = clap::ArgAction::Count)]
    ignored: u8,
    /// For umount(8): the type
    #[arg(short = 't', hide = true, value_name = "TYPE")]
    fs_type: Option<String>,
    /// For umount(8), which is in that namespace already
    #[arg(short = 'N', hide = true, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        // Does not ask the server, which may be dead.
        let dir = self.dir.canonicalize();
        let dir = dir.map_err(|e| self.failed(e))?;
        let entry = table::find(&dir).map_err(|e| self.failed(e))?;
        let Some(entry) = entry else {
            return Err(self.failed("nothing is mounted here"));
        };
        if entry.fs_type != table::OURS {
            return Err(self.failed(format_args!(
                "a {} file system is mounted here, not one of ours; use umount(8)",
                entry.fs_type
            )));
        }
        let unmounter = Unmounter::of(dir);
        if self.lazy {
            unmounter.detach().map_err(Failure::new)?;
            return Ok(ExitCode::SUCCESS);
        }
        // Its process id may be another's once it has ended.
        let server = Server::of(&entry);
        // After a simulated power cut nothing can be synced, nor is that a failure.
        let synced = match facts::is_cut(unmounter.dir()) {
            true => Ok(()),
            false => sync(unmounter.dir()),
        };
        unmounter.unmount().map_err(|e| busy(e, unmounter.dir()))?;
        let image = server.image().display();
        if let Some(rest) = table::rest_of(&entry) {
            let dir = unmounter.dir().display();
            output::print(format!("{dir} is unmounted; {image} is still {rest}\n"))?;
        } else {
            let ended = server.wait();
            ended.map_err(|e| Failure::new(format_args!("{image} is unmounted, but {e}")))?;
        }
        match synced {
            Ok(()) => Ok(ExitCode::SUCCESS),
            // It may have ended in good order. A crash leaves an image that can be mounted.
            Err(Errno::NOTCONN) => {
                output::complain(&Failure::new(format_args!(
                    "{image} is unmounted, but its server had ended before: what was not durable \
                     then is lost"
                )));
                Ok(ExitCode::SUCCESS)
            }
            Err(e) => Err(Failure::new(format_args!(
                "{image} is unmounted, but failed while it was mounted: {e}; check it with fsck"
            ))),
        }
    }

    fn failed(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new(format_args!(
            "{}: cannot unmount: {why}",
            self.dir.display()
        ))
    }
}

/// Unmounts a directory, as the command does.
///
/// # Errors
/// As those of the command.
pub(crate) fn unmount(dir: &Path) -> Result<(), Failure> {
    let args = Args {
        dir: dir.to_owned(),
        lazy: false,
        ignored: 0,
        fs_type: None,
        namespace: None,
    };
    args.run().map(drop)
}

/// Makes all changes durable, and returns an error if the server had one since the mount. Without
/// this, errors at the end of the server would reach nobody. Refused access is not an error: the
/// mount may be for other users only. `ENOTCONN`: the server has ended.
fn sync(dir: &Path) -> Result<(), Errno> {
    match super::sync::make_durable(dir) {
        Err(e @ (Errno::IO | Errno::NOSPC | Errno::NOTCONN)) => Err(e),
        Ok(_) | Err(_) if facts::io_errors(dir) > 0 => Err(Errno::IO),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The error of an unmount, with the mount inside that is in the way.
fn busy(e: fuse::Error, dir: &Path) -> Failure {
    let inside = matches!(e, fuse::Error::Busy { .. }).then(|| table::find_inside(dir));
    match inside {
        Some(Ok(Some(inside))) => {
            let (dir, inside) = (dir.display(), inside.dir.display());
            Failure::new(format_args!(
                "{dir}: busy: unmount {inside} first, which is inside"
            ))
        }
        _ => Failure::new(e),
    }
}
