//! Prepares a command for this library.

use crate::custody;
use crate::environment::{self, AT, LIBRARY, STATE, STORE};
use crate::loaders::{self, Loads};
use crate::shared::{Reason, Shared};
use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, open,
};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

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
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The library to preload; `None` looks beside this program, and in `../lib`.
    pub library: Option<PathBuf>,
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
    /// A mount of a store that cannot be used any more.
    #[error(
        "{0} has a mount whose service or server has ended; unmount it first: selvedge umount {0}"
    )]
    Stale(String),
    /// The variables of a run whose program this is.
    #[error("this is a program of another run, at {0}, which cannot start one of its own")]
    Nested(String),
    /// The root directory as a mount point.
    #[error("the store cannot be at /; use a directory below it")]
    Root,
    /// Memory for the processes of the run.
    #[error("cannot make the memory that the processes share: {0}")]
    Memory(#[from] Errno),
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

/// A command that is ready to be run.
#[derive(Debug)]
pub struct Prepared {
    /// The command, with the variables of the library.
    pub command: Command,
    /// The memory that its processes share, which they inherit.
    memory: OwnedFd,
    _placeholder: OwnedFd,
    custodian: Custodian,
}

/// The custodian, which ends with this.
#[derive(Debug)]
struct Custodian {
    socket: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Custodian {
    fn drop(&mut self) {
        // Processes that still run have the socket, too.
        let _ = shutdown(&self.socket, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Prepared {
    /// Prepares a command whose calls below a mount point are answered in its processes.
    ///
    /// # Errors
    /// It could not be run.
    pub fn new(options: &Options) -> Result<Self, Error> {
        if !is_supported() {
            return Err(Error::Unsupported);
        }
        if let Some(at) = std::env::var_os(AT) {
            return Err(Error::Nested(at.to_string_lossy().into_owned()));
        }
        let at = directory(&options.at)?;
        let library = options.library.clone().or_else(find);
        let library = library.and_then(|library| library.canonicalize().ok());
        let library = library.ok_or(Error::NoLibrary)?;
        let (memory, placeholder) = (memory()?, placeholder()?);
        let custodian = custodian(&memory)?;
        let mut preload = match loads(&options.program) {
            Loads::Other => OsString::new(),
            Loads::Library | Loads::Nothing => library.clone().into_os_string(),
        };
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            if !preload.is_empty() {
                preload.push(":");
            }
            preload.push(others);
        }
        let fds = [&memory, &placeholder, &custodian.socket].map(|fd| fd.as_raw_fd() as u32);
        let state = environment::state(fds, None);
        let mut command = Command::new(&options.program);
        command
            .args(&options.arguments)
            .env("LD_PRELOAD", preload)
            .env(AT, at)
            .env(STORE, &options.store)
            .env(LIBRARY, library)
            .env(STATE, state);
        Ok(Self {
            command,
            memory,
            _placeholder: placeholder,
            custodian,
        })
    }

    /// The numbers of calls, at the end: gives back all files of the mount.
    ///
    /// # Errors
    /// Without memory.
    pub fn end(self) -> Result<Counts, Error> {
        drop(self.custodian);
        let shared = Shared::map(self.memory.as_raw_fd() as u32)?;
        let counts = Reason::ALL.map(|(reason, text)| (text, shared.counted(reason)));
        Ok(Counts(counts.to_vec()))
    }
}

/// Looks at the program, which is found as the command finds it.
fn loads(program: &OsStr) -> Loads {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&paths).map(|dir| dir.join(program));
    let path = match program.as_bytes().contains(&b'/') {
        true => Some(PathBuf::from(program)),
        false => places.find(|path| path.is_file()),
    };
    let path = path.and_then(|path| CString::new(path.into_os_string().into_vec()).ok());
    path.map_or(Loads::Library, |path| {
        loaders::of_program(libc::AT_FDCWD, &path)
    })
}

/// The mount point's path, without symbolic links.
fn directory(path: &Path) -> Result<PathBuf, Error> {
    let at = path.canonicalize();
    let at = at.and_then(|at| at.read_dir().map(|_| at));
    let at = at.map_err(|source| unusable(path, source))?;
    match at == Path::new("/") {
        true => Err(Error::Root),
        false => Ok(at),
    }
}

/// Why a mount point cannot be used.
fn unusable(path: &Path, source: io::Error) -> Error {
    match Errno::from_io_error(&source) {
        // A client without its service, or a mount without its server.
        Some(Errno::NODEV | Errno::NOTCONN) => Error::Stale(path.display().to_string()),
        _ => Error::At {
            path: path.to_owned(),
            source,
        },
    }
}

/// Whether the processor has the instruction that saves the state of a program. Emulators may lack it.
pub(crate) fn is_supported() -> bool {
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

/// Starts the custodian. Returns its socket, which programs that are executed inherit.
fn custodian(memory: &OwnedFd) -> Result<Custodian, Error> {
    let shared = Shared::map(memory.as_raw_fd() as u32)?;
    let (own, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    set_socket_passcred(&own, true)?;
    let serve = move || custody::serve(&own, shared);
    let thread = std::thread::Builder::new().name("custodian".to_owned());
    let thread = thread.spawn(serve);
    let thread = thread.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::NOMEM))?;
    Ok(Custodian {
        socket: inherited(theirs)?,
        thread: Some(thread),
    })
}

/// An empty file that can be neither read nor changed: a program that gets it by mistake fails.
fn placeholder() -> Result<OwnedFd, Error> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("selvedge-run-file", flags)?;
    fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    inherited(open(path, flags, Mode::empty())?)
}
