//! `selvedge run`: runs programs whose calls on a store are answered in their processes.

use super::umount::unmount;
use crate::failure::{Failure, Outcome};
use crate::launch::Launcher;
use crate::mount::table;
use crate::output;
use ::run::{Options, Prepared};
use medium::Guarding;
use rustix::fs::OFlags;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Run a program whose calls on a store are answered in its process
///
/// The program needs no changes. A library is loaded into it, which replaces its system calls. Calls on
/// paths below DIR are answered by a client of the service in the process itself, as are those of its
/// children. All other calls go to the kernel as before.
///
/// Shared mappings, executed files and other things that the library cannot answer go to a mount of the
/// store on DIR. Without one the command mounts the store, and unmounts it at the end.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The socket of the service (`selvedge serve`)
    #[arg(long, value_name = "SOCKET")]
    store: PathBuf,
    /// The directory at which the program finds the store
    #[arg(long, value_name = "DIR")]
    at: PathBuf,
    /// Print at the end, on standard error, how many calls were answered in the process, how many went to
    /// the mount and why, and whether the store has a guard against stray stores
    #[arg(long)]
    stats: bool,
    /// Do not mount the store: what the library cannot answer finds the directory as it is
    #[arg(long)]
    no_mount: bool,
    /// The library to load, libselvedge_run.so; by default beside this program or in ../lib
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// The program
    #[arg(value_name = "COMMAND")]
    program: OsString,
    /// Its arguments
    #[arg(
        value_name = "ARGUMENT",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    arguments: Vec<OsString>,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(&self) -> Outcome {
        let about = |path: &Path| {
            let path = path.to_owned();
            move |e| Failure::about(&path, e)
        };
        let store = self.store.canonicalize().map_err(|e| match e.kind() {
            ErrorKind::NotFound => Failure::about(
                &self.store,
                "there is no such socket; `selvedge serve` makes one",
            ),
            _ => Failure::about(&self.store, e),
        })?;
        let at = self.at.canonicalize().map_err(about(&self.at))?;
        let name = store.to_str().map(str::to_owned);
        let mut prepared = Prepared::new(&Options {
            store: name.ok_or_else(|| Failure::about(&self.store, "its path is not UTF-8"))?,
            at: at.clone(),
            program: self.program.clone(),
            arguments: self.arguments.clone(),
            library: self.library.clone(),
        })
        .map_err(Failure::new)?;
        let mount = match self.no_mount {
            true => None,
            false => Some(Mounted::new(&store, &at)?),
        };
        // Otherwise the processes need the custodian.
        if self.no_mount && !self.stats {
            let failed = prepared.command.exec();
            let program = Path::new(&self.program);
            return Err(Failure::about(program, failed).with_code(126));
        }
        let ended = Launcher::new().and_then(|launcher| launcher.run(&mut prepared.command));
        let counts = prepared.end().map_err(Failure::new)?;
        drop(mount);
        if self.stats {
            eprint!("{counts}");
            eprintln!("{:>12}  {}", "guard", Guarding::of_environment());
        }
        Ok(ended?.code())
    }
}

/// The mount of the store, for the time of a command.
struct Mounted<'a> {
    at: &'a Path,
    /// The directory, open: nobody unmounts it meanwhile, in particular no other command that has mounted it.
    root: Option<File>,
    /// Whether this command has mounted it.
    is_own: bool,
}

impl<'a> Mounted<'a> {
    /// Mounts the store, unless it is mounted.
    fn new(store: &Path, at: &'a Path) -> Result<Self, Failure> {
        loop {
            let is_own = !is_mounted_there(store, at)?;
            if is_own {
                mount(store, at)?;
            }
            let mut mounted = Self {
                at,
                root: None,
                is_own,
            };
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(OFlags::PATH.bits() as i32);
            let root = options.open(at).map_err(|e| Failure::about(at, e))?;
            // It may have been unmounted before it was open.
            let is_there = is_on_mount(&root, at).map_err(|e| Failure::about(at, e))?;
            mounted.is_own &= is_there;
            if is_there {
                mounted.root = Some(root);
                return Ok(mounted);
            }
        }
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        self.root = None;
        if self.is_own
            && let Err(failure) = unmount(self.at)
        {
            output::complain(&failure);
        }
    }
}

/// Whether a directory that was opened by its path is one of another device than that above it.
fn is_on_mount(dir: &File, at: &Path) -> std::io::Result<bool> {
    let above = std::fs::metadata(at.join(".."))?.dev();
    Ok(dir.metadata()?.dev() != above)
}

/// Whether the store is mounted on a directory. Fails if something else is.
fn is_mounted_there(store: &Path, at: &Path) -> Result<bool, Failure> {
    match table::find(at).map_err(|e| Failure::about(at, e))? {
        Some(entry) if entry.fs_type == table::OURS && entry.source == store => Ok(true),
        Some(entry) => {
            let other = entry.source.display();
            let why = format!("{other} is mounted there; unmount it, or use another directory");
            Err(Failure::about(at, why))
        }
        None => Ok(false),
    }
}

/// Mounts the store.
fn mount(store: &Path, at: &Path) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(Failure::new)?;
    let mut command = Command::new(program);
    command.arg("mount").arg(store).arg(at);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    match status.map_err(Failure::new)?.success() {
        true => Ok(()),
        false => Err(Failure::about(
            at,
            "the store cannot be mounted; --no-mount runs the program without a mount",
        )),
    }
}
