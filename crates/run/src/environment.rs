//! The environment variables by which a program passes its state to the next one.

use crate::kernel::{self, Result};
use crate::loaders::Loads;
use crate::process::{Process, Start};
use crate::shared::Shared;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::os::unix::ffi::OsStringExt;
use vfs::Ino;

/// The loader's variable, with the `=`.
pub(crate) const PRELOAD: &str = "LD_PRELOAD=";
/// The start of the names of all variables of this library.
pub(crate) const PREFIX: &str = "SELVEDGE_RUN_";
/// Bytes of a variable that decide whether it is one of these.
pub(crate) const NAME_MAX: usize = 16;

pub(crate) const AT: &str = "SELVEDGE_RUN_AT";
pub(crate) const STORE: &str = "SELVEDGE_RUN_STORE";
pub(crate) const STATE: &str = "SELVEDGE_RUN_STATE";
pub(crate) const LIBRARY: &str = "SELVEDGE_RUN_LIBRARY";

/// The version that the command and the library must have in common, at the start of the state.
fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!("{version}/{}", size_of::<Shared>())
}

/// The state of a process without files: descriptors of the shared memory, the placeholder and the custodian's socket, and
/// the number and the generation of the working directory, if it is in the store.
pub(crate) fn state(descriptors: [u32; 3], cwd: Option<(Ino, u64)>) -> String {
    let [memory, placeholder, custodian] = descriptors;
    let (cwd, generation) = cwd.unwrap_or((Ino(0), 0));
    let version = version();
    format!("{version} {memory} {placeholder} {custodian} {cwd} {generation}")
}

/// The descriptors that stay open at `execve`, and the descriptions that the process stops using.
pub(crate) struct Passed {
    pub(crate) files: Vec<(u32, u32)>,
    dropped: Vec<u32>,
    /// The number and the generation of the working directory, if it is in the store.
    cwd: Option<(Ino, u64)>,
    /// Descriptors of this library that have the record locks of the process, with the inodes.
    locks: Vec<(u32, Ino)>,
    /// Descriptions that the process has left already.
    left: Vec<(&'static Process, u32)>,
}

impl Passed {
    /// The program does not load the library, but passes its variables on to others that do. These find descriptors and a
    /// working directory of the kernel. `handed` are those that have become the kernel's; the others fail.
    pub(crate) fn leave_to_kernel(&mut self, process: &'static Process, handed: &[u32]) {
        handed.iter().for_each(|fd| process.forget_fd(*fd));
        let dropped = std::mem::take(&mut self.dropped);
        let left = dropped.into_iter().filter(|number| process.leave(*number));
        self.left = left.map(|number| (process, number)).collect();
        self.files.clear();
        let locks = process.record_locks();
        self.locks.retain(|lock| locks.contains(lock));
        if process.mounted().is_some() {
            self.cwd = None;
        }
    }
}

impl Drop for Passed {
    /// The program has not started.
    fn drop(&mut self) {
        for (fd, _) in &self.locks {
            let _ = kernel::set_closes_on_exec(*fd, true);
        }
        for (process, number) in &self.left {
            process.come_back(*number);
        }
    }
}

/// State that the process passes to a program that it executes.
pub(crate) fn passed(process: &Process) -> Result<Passed> {
    let all: Vec<(u32, u32)> = process.files().collect();
    let mut files = Vec::new();
    let is_child = process.is_vfork_child();
    for (fd, number) in &all {
        // Another thread may have closed it after it was noted for a child of `vfork`, and before the kernel
        // copied the descriptors.
        let stays = kernel::closes_on_exec(*fd) == Ok(false);
        if stays && (!is_child || process.is_placeholder(*fd)) {
            files.push((*fd, *number));
        }
    }
    let kept: BTreeSet<u32> = files.iter().map(|(_, number)| *number).collect();
    let used = all.iter().map(|(_, number)| *number);
    let used: BTreeSet<u32> = used.chain(process.cwd_number()).collect();
    let dropped = match is_child {
        true => Vec::new(), // they are the parent's
        false => used.difference(&kept).copied().collect(),
    };
    let cwd = process.cwd().map(|cwd| cwd.description.inode());
    // The kernel drops the locks on a file if a descriptor of it is closed.
    let closes = |ino: Ino| {
        let mut closed = all.iter().filter(|one| !files.contains(one));
        closed.any(|(_, number)| process.shared.description(*number).ino() == ino)
    };
    let locks = match is_child {
        true => Vec::new(),
        false => process.record_locks(),
    };
    let locks: Vec<(u32, Ino)> = locks.into_iter().filter(|(_, ino)| !closes(*ino)).collect();
    for (fd, _) in &locks {
        kernel::set_closes_on_exec(*fd, false)?;
    }
    Ok(Passed {
        files,
        dropped,
        cwd,
        locks,
        left: Vec::new(),
    })
}

/// The variables, each with a 0 at its end. `preloaded` is the program's own variable for the loader, which gets this
/// library unless another loader reads it.
pub(crate) fn strings(
    process: &Process,
    passed: &Passed,
    preloaded: &[u8],
    loads: Loads,
) -> Vec<Vec<u8>> {
    let library = process.library.as_bytes();
    let own: &[&[u8]] = match loads {
        Loads::Other => &[],
        Loads::Library | Loads::Nothing => &[library],
    };
    let others = preloaded
        .strip_prefix(PRELOAD.as_bytes())
        .unwrap_or_default();
    let others = others.split(|byte| b": ".contains(byte));
    let others: Vec<&[u8]> = others
        .filter(|other| !other.is_empty() && *other != library)
        .collect();
    let libraries = [own, &others[..]].concat().join(&b':');
    let descriptors = [process.memory, process.placeholder, process.custodian.0];
    let mut state = state(descriptors, passed.cwd);
    for (fd, number) in &passed.files {
        let _ = write!(state, " {fd}:{number}");
    }
    for number in &passed.dropped {
        let _ = write!(state, " -{number}");
    }
    for (fd, ino) in &passed.locks {
        let _ = write!(state, " {fd}={ino}");
    }
    let variable = |name: &str, value: &[u8]| [name.as_bytes(), b"=", value, b"\0"].concat();
    vec![
        [PRELOAD.as_bytes(), &libraries, b"\0"].concat(),
        variable(AT, &process.at),
        variable(STORE, process.store.as_bytes()),
        variable(LIBRARY, library),
        variable(STATE, state.as_bytes()),
    ]
}

/// The state that the variables describe, and descriptions that the program before has left, if the process runs under
/// `selvedge run`.
pub(crate) fn start() -> Option<(Start, Vec<u32>)> {
    let at = std::env::var_os(AT)?;
    let state = std::env::var(STATE).ok()?;
    let (version, rest) = state.split_once(' ').unwrap_or((&state, ""));
    let ignored = |why: &str| eprintln!("selvedge run: {why}; calls go to the kernel");
    if version != self::version() {
        ignored("the library is not of the same version as the command");
        return None;
    }
    let parsed = parse(at.into_vec(), rest);
    if parsed.is_none() {
        ignored(&format!("the variable {STATE} has no valid state"));
    }
    parsed
}

/// The state in the words after the version.
fn parse(at: Vec<u8>, words: &str) -> Option<(Start, Vec<u32>)> {
    let text = |name: &str| std::env::var(name).ok();
    let mut words = words.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let (memory, placeholder) = (number()? as u32, number()? as u32);
    let custodian = number()? as u32;
    let cwd = (Ino(number()?), number()?);
    let mut start = Start {
        at,
        store: text(STORE)?,
        library: text(LIBRARY)?,
        memory,
        placeholder,
        custodian,
        cwd: Some(cwd).filter(|(ino, _)| ino.0 != 0),
        files: Vec::new(),
        locks: Vec::new(),
    };
    let mut dropped = Vec::new();
    for word in words {
        match (word.split_once(':'), word.split_once('=')) {
            (Some((fd, number)), _) => start.files.push((fd.parse().ok()?, number.parse().ok()?)),
            (_, Some((fd, ino))) => start.locks.push((fd.parse().ok()?, Ino(ino.parse().ok()?))),
            _ => dropped.push(word.strip_prefix('-')?.parse().ok()?),
        }
    }
    Some((start, dropped))
}
