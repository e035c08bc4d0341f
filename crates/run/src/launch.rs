//! Starts a command with this library.

use crate::environment::{AT, LIBRARY, STATE, STORE};
use crate::shared::{Reason, Shared};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// The file name of the library.
const FILE: &str = "libselvedge_run.so";

/// A command to be run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The store, as the backend of the library names it.
    pub store: String,
    /// The mount point: an existing directory. If the store is mounted there too, calls that cannot be
    /// answered in the process go to that mount.
    pub at: PathBuf,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The library to preload; `None` looks beside this program, and in `../lib`.
    pub library: Option<PathBuf>,
    /// Whether counts are returned. Without them this process becomes the command.
    pub stats: bool,
}

/// A command that could not be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The processor or the system.
    #[error("`run` needs Linux on x86-64, and a processor with XSAVEC")]
    Unsupported,
    /// No library.
    #[error("cannot find {FILE} beside this program or in ../lib; install it, or name it")]
    NoLibrary,
    /// The mount point.
    #[error("{} is not a directory: {source}", path.display())]
    At {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The root directory as a mount point.
    #[error("the store cannot be at /; use a directory below it")]
    Root,
    /// The command.
    #[error("cannot run {}: {source}", command.display())]
    Command {
        /// The program.
        command: OsString,
        /// The cause.
        source: io::Error,
    },
    /// Memory for the processes of the run.
    #[error("cannot make the memory that the processes share: {0}")]
    Memory(#[from] rustix::io::Errno),
}

/// Numbers of calls.
#[derive(Debug, Clone)]
pub struct Counts(Vec<(&'static str, u64)>);

impl Counts {
    /// The number of calls with this end.
    pub fn of(&self, reason: Reason) -> u64 {
        self.0[reason as usize].1
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (text, count) in &self.0 {
            writeln!(f, "{count:>12}  {text}")?;
        }
        Ok(())
    }
}

/// The end of a command.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Its status.
    pub status: ExitStatus,
    /// Calls of all its processes on the store.
    pub counts: Counts,
}

impl Finished {
    /// The exit code that a shell would show.
    pub fn code(&self) -> i32 {
        let signal = || self.status.signal().map_or(1, |signal| 128 + signal);
        self.status.code().unwrap_or_else(signal)
    }
}

/// Runs a command whose calls below a mount point are answered in its processes.
///
/// Without `stats` this process becomes the command and the function returns only if that fails.
///
/// # Errors
/// The command could not be started.
pub fn launch(options: &Options) -> Result<Finished, Error> {
    if !is_supported() {
        return Err(Error::Unsupported);
    }
    let at = options.at.canonicalize();
    let at = at.and_then(|at| at.read_dir().map(|_| at));
    let at = at.map_err(|source| Error::At {
        path: options.at.clone(),
        source,
    })?;
    if at == Path::new("/") {
        return Err(Error::Root);
    }
    let library = options
        .library
        .clone()
        .or_else(find)
        .ok_or(Error::NoLibrary)?;
    let library = library.canonicalize().map_err(|_| Error::NoLibrary)?;
    let (memory, placeholder) = (memory()?, placeholder()?);
    let [program, arguments @ ..] = &options.command[..] else {
        return Err(Error::Command {
            command: OsString::new(),
            source: io::ErrorKind::InvalidInput.into(),
        });
    };
    let mut preload = library.clone().into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LD_PRELOAD", preload)
        .env(AT, at)
        .env(STORE, &options.store)
        .env(LIBRARY, library)
        .env(
            STATE,
            format!("{} {} 0", memory.as_raw_fd(), placeholder.as_raw_fd()),
        );
    let failed = |source| Error::Command {
        command: program.clone(),
        source,
    };
    if !options.stats {
        return Err(failed(command.exec()));
    }
    let status = command.status().map_err(failed)?;
    let shared = Shared::map(memory.as_raw_fd() as u32)?;
    let counts = Reason::ALL
        .map(|(reason, text)| (text, shared.counted(reason)))
        .to_vec();
    Ok(Finished {
        status,
        counts: Counts(counts),
    })
}

fn is_supported() -> bool {
    std::arch::is_x86_feature_detected!("xsavec")
}

fn find() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let beside = program.parent()?;
    [beside.join(FILE), beside.join("../lib").join(FILE)]
        .into_iter()
        .find(|path| path.exists())
}

/// A descriptor with a high number, which programs that are executed inherit.
fn inherited(fd: OwnedFd) -> Result<OwnedFd, Error> {
    let high = rustix::io::fcntl_dupfd_cloexec(&fd, 960).unwrap_or(fd);
    fcntl_setfd(&high, FdFlags::empty())?;
    Ok(high)
}

fn memory() -> Result<OwnedFd, Error> {
    let memory = memfd_create("selvedge-run", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, size_of::<Shared>() as u64)?;
    inherited(memory)
}

/// An empty file that cannot change: a program that gets it by mistake fails.
fn placeholder() -> Result<OwnedFd, Error> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("selvedge-run-file", flags)?;
    fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    inherited(file)
}
