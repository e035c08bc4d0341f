//! Runs from the output of strace(1).
//!
//! [`record`] runs a program under strace, and [`import`] reads a trace that is there already. The
//! trace needs the calls in [`CALLS`], and the options in [`OPTIONS`] so that paths and data are
//! complete.
//!
//! A trace does not show everything. Stores through a shared mapping, `io_uring`, and data that the
//! kernel copies from files outside of the directory are missing; so are changes by other
//! programs. The [header](crate::Header::unseen) of the run lists what was missed: the notes of the
//! import, and each path at which the directory differs from the calls of the run afterwards.
//!
//! Calls of several threads overlap. A change is placed where its call returned, and a request of
//! durability where it began: it covers only the calls that had returned by then. The kernel may
//! have had another order, such as for two appends to one file.

mod args;
mod calls;
mod copies;
mod files;
mod names;
mod paths;
mod process;
mod state;
mod text;

pub use calls::CALLS;

use crate::{Header, Run, RunError, Source, Tree};
use process::Process;
use state::{Fault, State};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// The options of strace that make a complete trace, the calls and the output file excepted.
///
/// Child processes are followed, strings are complete and hexadecimal, and the data of reads are
/// left out. `copy_file_range` fails as on an old kernel, so that programs copy by `read` and
/// `write`, whose data are in the trace.
pub const OPTIONS: &[&str] = &[
    "-f",
    "-s",
    "1073741823",
    "-xx",
    "-e",
    "raw=read,readv",
    "-e",
    "signal=none",
    "-e",
    "inject=copy_file_range:error=ENOSYS",
];

/// Most bytes of a trace: it is kept in memory.
const TRACE_MAX: u64 = 4 << 30;

/// Most lines that are not understood and are listed.
const SKIPPED_MAX: usize = 20;

/// Most paths that are listed as different.
const DIFFERENT_MAX: usize = 100;

/// The reason why there is no run.
#[derive(Debug, thiserror::Error)]
pub enum StraceError {
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The directory cannot be read.
    #[error("{0}")]
    Tree(String),
    /// The program strace is not installed.
    #[error("cannot start strace: {0}; install the package strace")]
    Missing(io::Error),
    /// strace did not start the program.
    #[error("strace did not start '{command}' ({status}): see its message above")]
    NotStarted {
        /// The program.
        command: String,
        /// The result of strace.
        status: ExitStatus,
    },
    /// The file has no call.
    #[error(
        "line {line} is not from strace: {what}; trace with strace -f -xx -s 1073741823 -o FILE"
    )]
    NoTrace {
        /// The first line that is not understood, or 1.
        line: usize,
        /// The fault.
        what: String,
    },
    /// A call without which the run would be wrong.
    #[error("line {line} of the trace: {what}")]
    Line {
        /// Line, from 1.
        line: usize,
        /// The fault.
        what: String,
    },
    /// Too many bytes.
    #[error("{}: a trace of {bytes} bytes is more than can be read ({TRACE_MAX})", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The run cannot be written.
    #[error(transparent)]
    Run(#[from] RunError),
}

fn io_at(path: &Path) -> impl Fn(io::Error) -> StraceError + '_ {
    |error| StraceError::Io {
        path: path.to_owned(),
        error,
    }
}

/// Facts about a trace that are not in it.
#[derive(Debug, Clone)]
pub struct Origin<'a> {
    /// The directory whose files are the run: an absolute path without symbolic links.
    pub root: &'a Path,
    /// The working directory of the program at its begin: an absolute path.
    pub cwd: &'a Path,
    /// The mode bits that new files of the program did not get at its begin.
    pub umask: u32,
    /// Owner and group of new files.
    pub owner: (u32, u32),
    /// The files in the directory before the program.
    pub before: &'a Tree,
    /// The files after the program, if they are known: to find what the trace has missed.
    pub after: Option<&'a Tree>,
    /// The program, for people.
    pub command: &'a str,
}

impl<'a> Origin<'a> {
    /// A program of the super-user that began in the directory with the usual umask.
    pub fn new(root: &'a Path, before: &'a Tree) -> Self {
        Self {
            root,
            cwd: root,
            umask: 0o022,
            owner: (0, 0),
            before,
            after: None,
            command: "a trace of strace",
        }
    }
}

/// Makes a run of a trace.
///
/// Lines that are not understood are left out, and listed in [`Header::unseen`].
///
/// # Errors
/// The text is not a trace, or its data were cut off.
pub fn import(trace: &[u8], origin: &Origin<'_>) -> Result<Run, StraceError> {
    let (events, skipped) = text::events(trace);
    if events.is_empty() {
        let first = skipped.first();
        return Err(StraceError::NoTrace {
            line: first.map_or(1, |skipped| skipped.line),
            what: first
                .map_or("it is empty", |skipped| skipped.what)
                .to_owned(),
        });
    }
    let run = Run::new(Header::new(Source::Strace, origin.command));
    let root = origin.root.as_os_str().as_bytes().to_vec();
    let mut state = State::new(run, origin.before, root);
    let cwd = calls::location(&state, origin.cwd.as_os_str().as_bytes());
    let first = Process::first(cwd, origin.umask, origin.owner);
    match state.events(&events, &first) {
        Ok(()) => {}
        Err(Fault::Fatal(what) | Fault::Skip(what)) => {
            let line = state.line;
            return Err(StraceError::Line { line, what });
        }
    }
    let mut notes = state.notes;
    for skipped in skipped.iter().take(SKIPPED_MAX) {
        let text::Skipped { line, what } = skipped;
        notes.add(format!(
            "line {line} of the trace is not understood: {what}"
        ));
    }
    if skipped.len() > SKIPPED_MAX {
        let more = skipped.len() - SKIPPED_MAX;
        notes.add(format!("{more} more lines of the trace are not understood"));
    }
    if let Some(after) = origin.after {
        differences(&state.tree, after)
            .into_iter()
            .for_each(|note| notes.add(note));
    }
    let mut run = state.run;
    run.header.unseen = notes.into_list();
    Ok(run)
}

/// Notes on the paths at which a directory differs from the tree of a run.
fn differences(tree: &Tree, after: &Tree) -> Vec<String> {
    // Attributes are compared as far as a directory is read with them.
    let mut tree = tree.clone();
    for (_, node) in tree.paths() {
        if let Ok(inode) = tree.get_mut(node)
            && !inode.xattrs.is_empty()
        {
            inode.xattrs.clear();
        }
    }
    let found = tree.differences(after);
    let mut notes: Vec<String> = found
        .iter()
        .take(DIFFERENT_MAX)
        .map(|difference| format!("changes that the trace does not have: in the run, {difference}"))
        .collect();
    if found.len() > DIFFERENT_MAX {
        let more = found.len() - DIFFERENT_MAX;
        notes.push(format!(
            "changes at {more} more paths that the trace does not have"
        ));
    }
    notes
}

/// Makes a run of a file with a trace. `before`: a copy of the directory as it was before the
/// program; without one it was empty.
///
/// The program began in the directory, with the owner and the umask of this process.
///
/// # Errors
/// As [`import`], or a file cannot be read.
pub fn import_file(trace: &Path, root: &Path, before: Option<&Path>) -> Result<Run, StraceError> {
    let tree = match before {
        Some(before) => Tree::read_dir(before, &mut 2).map_err(StraceError::Tree)?,
        None => Tree::default(),
    };
    let root = root.canonicalize().or_else(|_| std::path::absolute(root));
    let root = root.map_err(io_at(trace))?;
    let command = format!("the trace {}", trace.display());
    let origin = Origin {
        umask: umask(),
        owner: owner(),
        command: &command,
        ..Origin::new(&root, &tree)
    };
    import(&read(trace)?, &origin)
}

fn read(path: &Path) -> Result<Vec<u8>, StraceError> {
    let file = std::fs::File::open(path).map_err(io_at(path))?;
    let bytes = file.metadata().map_err(io_at(path))?.len();
    if bytes > TRACE_MAX {
        let path = path.to_owned();
        return Err(StraceError::TooLarge { path, bytes });
    }
    let mut trace = Vec::new();
    let read = file.take(TRACE_MAX).read_to_end(&mut trace);
    read.map_err(io_at(path)).map(|_| trace)
}

/// The umask of this process, as the kernel shows it.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix("Umask:"));
    let value = value.and_then(|value| u32::from_str_radix(value.trim(), 8).ok());
    value.unwrap_or(0o022)
}

/// Owner and group of the new files of this process.
fn owner() -> (u32, u32) {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    (uid.as_raw(), gid.as_raw())
}

/// Runs a program under strace, and writes the run of the files below `root` into the directory
/// `run`, which must not exist or be empty. Standard input, output and errors of the program are
/// those of this process; what it writes to its standard output is in the run, too.
///
/// # Errors
/// strace is missing or cannot trace, the directory cannot be read, or the run cannot be written.
pub fn record(
    command: &[OsString],
    root: &Path,
    run: &Path,
) -> Result<(Run, ExitStatus), StraceError> {
    record_with(command, root, run, &mut |_| {})
}

/// As [`record`]. `prepare` can change the command, such as its standard output or environment.
///
/// # Errors
/// As [`record`].
pub fn record_with(
    command: &[OsString],
    root: &Path,
    run: &Path,
    prepare: &mut dyn FnMut(&mut Command),
) -> Result<(Run, ExitStatus), StraceError> {
    let root = root.canonicalize().map_err(io_at(root))?;
    if std::fs::read_dir(run).is_ok_and(|mut names| names.next().is_some()) {
        let error = io::Error::other("the directory is not empty; name a new one");
        return Err(io_at(run)(error));
    }
    let before = Tree::read_dir(&root, &mut 2).map_err(StraceError::Tree)?;
    let temporary = tempfile::tempdir().map_err(io_at(Path::new("a temporary directory")))?;
    let file = temporary.path().join("trace");
    let mut strace = strace(command, &file);
    prepare(&mut strace);
    let cwd = match strace.get_current_dir() {
        Some(dir) => dir.canonicalize().map_err(io_at(dir))?,
        None => std::env::current_dir().map_err(io_at(Path::new(".")))?,
    };
    let status = strace.status().map_err(StraceError::Missing)?;
    let trace = read(&file).unwrap_or_default();
    let shown = shown(command);
    if trace.is_empty() {
        let command = shown;
        return Err(StraceError::NotStarted { command, status });
    }
    let after = Tree::read_dir(&root, &mut 2).map_err(StraceError::Tree)?;
    let origin = Origin {
        root: &root,
        cwd: &cwd,
        umask: umask(),
        owner: owner(),
        before: &before,
        after: Some(&after),
        command: &shown,
    };
    let recorded = import(&trace, &origin)?;
    recorded.save(run)?;
    Ok((recorded, status))
}

/// The command that traces `command` into `file`.
pub fn strace(command: &[OsString], file: &Path) -> Command {
    let mut strace = Command::new("strace");
    strace
        .args(OPTIONS)
        .arg("-e")
        .arg(format!("trace={}", CALLS.join(",")));
    strace.arg("-o").arg(file).arg("--").args(command);
    strace
}

fn shown(command: &[OsString]) -> String {
    let joined = command.join(OsStr::new(" "));
    crate::Bytes(joined.into_vec()).to_string()
}

#[cfg(test)]
mod tests;
