//! `selvedge order`: a program whose requests of durability only order its changes.

use crate::failure::{Failure, Outcome};
use crate::launch::{Groups, Launcher};
use crate::output;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Run a program without waiting for the disk, and keep the order of its changes
///
/// fsync, fdatasync and synchronous writes in the mount become barriers: they return at once, and
/// nothing after them reaches the disk before everything before them. After a crash the file system
/// has the changes up to some barrier, and some changes between that barrier and the next one. The
/// newest changes may be lost.
///
/// The program needs no change: the server of the mount recognises the program and all of its
/// children. Set-user-id programs of other users are excluded. The command ends when the program
/// and all that it started have ended.
///
/// On ext2 use a journal mode. Under soft updates a program that syncs after each small write is no
/// faster than without this command.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A directory of the mount; repeat it for several mounts, between which there is no order
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: Vec<PathBuf>,
    /// Make everything durable before the command ends
    #[arg(long)]
    sync_at_exit: bool,
    /// Make changes durable again and again, at this interval
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    max_lag: Option<Duration>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok().filter(|seconds| *seconds > 0.0);
    let seconds = number.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "a number of seconds above 0 is needed, such as 0.5".into())
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        let launcher = Launcher::new()?;
        let groups = Arc::new(Groups::new(&self.dir)?);
        groups.order()?;
        let engaged = groups.engage()?;
        let [program, arguments @ ..] = self.command.as_slice() else {
            return Err(Failure::new("a command is needed"));
        };
        let (stop, stopped) = channel::<()>();
        let lag = self.max_lag.map(|lag| {
            let groups = groups.clone();
            thread::spawn(move || {
                while stopped.recv_timeout(lag) == Err(RecvTimeoutError::Timeout) {
                    if let Err(e) = groups.sync() {
                        output::complain(&e);
                    }
                }
            })
        });
        let ended = launcher.run(Command::new(program).args(arguments));
        drop(stop);
        if let Some(lag) = lag {
            // Its panic has been printed.
            let _ = lag.join();
        }
        drop(engaged);
        if self.sync_at_exit {
            groups.sync()?;
        }
        ended.map(|ended| ended.code())
    }
}
