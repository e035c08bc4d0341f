//! `execve`: the new program gets this library, the descriptors that stay open, and the working directory.

use crate::abi::{ALL_BUT_FAULTS, thread};
use crate::calls::{Answer, At, Call, Resolved, Stop, backed};
use crate::environment::{self, Passed};
use crate::kernel::{self, Result};
use crate::loaders::{self, Loads};
use crate::memory;
use crate::shared::Reason;
use libc::{AT_EMPTY_PATH, SYS_execve};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

/// The environment for a call, which the kernel reads.
#[derive(Default)]
struct Scratch {
    strings: Vec<Vec<u8>>,
    pointers: Vec<u64>,
}

/// `execve` and `execveat`.
pub(crate) fn execute(call: &Call) -> Answer {
    let (at, variables) = match call.number {
        SYS_execve => (At::path(0), 2),
        _ => (At::dir(0), 3),
    };
    let process = call.process;
    let calls = process.gate.read();
    let path = program(call, at)?;
    let mut args = call.args;
    if let Some(path) = &path {
        args[at.path] = path.as_ptr() as u64;
        if let Some(dir) = at.dir {
            args[dir] = libc::AT_FDCWD as u64;
            args[4] &= !(AT_EMPTY_PATH as u64);
        }
    }
    let loads = loads(&args, at)?;
    let mut passed = environment::passed(process)?;
    if loads != Loads::Library {
        passed.leave_to_kernel(process, &backed::hand_over(process, &passed.files));
    }
    let mut scratch = Scratch::take(&thread().environment);
    scratch.fill(call, variables, &passed, loads)?;
    args[variables] = scratch.pointers.as_ptr() as u64;
    scratch.leave(&thread().environment);
    // A child of `vfork` uses the descriptions beside its parent from now on.
    let more: BTreeSet<u32> = match process.is_vfork_child() {
        true => passed.files.iter().map(|(_, number)| *number).collect(),
        false => BTreeSet::new(),
    };
    for number in &more {
        let refs = &process.shared.description(*number).refs;
        refs.fetch_add(1, AcqRel);
    }
    process.send();
    drop(calls);
    // If it succeeds, a parent that waits in `vfork` continues with this thread's state.
    let inside = u32::from(!process.is_vfork_child());
    thread().inside.store(inside, Relaxed);
    let failed = start_program(call, args);
    thread().inside.store(1, Relaxed);
    drop(passed);
    more.iter().for_each(|number| process.give_up(*number));
    failed
}

/// The kernel executes the call, unless a signal waits: the new program would lose it, and would have all signals
/// blocked. Signals that arrive faster than a call can be prepared are lost in the end.
fn start_program(call: &Call, args: [u64; 6]) -> Answer {
    const ATTEMPTS: u32 = 100;
    let thread = thread();
    let attempts = &thread.attempts;
    let on_other_stack = thread.is_on_other_stack();
    if on_other_stack {
        kernel::set_signal_mask(thread.outer_mask.load(Relaxed));
    }
    let done = match attempts.fetch_add(1, Relaxed) {
        ATTEMPTS.. => call.with(args).map_err(Stop::Errno),
        _ => call.waiting(args),
    };
    if on_other_stack {
        kernel::set_signal_mask(ALL_BUT_FAULTS);
    }
    if !matches!(done, Err(Stop::Again)) {
        attempts.store(0, Relaxed);
    }
    done
}

/// Looks at the program of a call, which the kernel finds by these arguments.
fn loads(args: &[u64; 6], at: At) -> Result<Loads> {
    let dir = at.dir.map_or(libc::AT_FDCWD, |dir| args[dir] as i32);
    match memory::text(args[at.path], libc::PATH_MAX as usize)? {
        Some(path) => Ok(loaders::of_program(
            dir,
            &CString::new(path.into_vec()).unwrap_or_default(),
        )),
        None => Ok(Loads::Library),
    }
}

/// The path for the kernel, unless that of the call is right.
fn program(call: &Call, at: At) -> Result<Option<CString>> {
    if at.dir.is_some() && memory::text(call.args[at.path], 1)?.is_some() {
        let Some(file) = call.process.file(call.args[0]) else {
            return Ok(None);
        };
        let fd = {
            let access = crate::calls::maps::access(&file);
            crate::calls::locks::on_mount(call.process, &file, &[access])?
        };
        let path = format!("/proc/self/fd/{fd}");
        return CString::new(path).map(Some).map_err(|_| vfs::Errno::INVAL);
    }
    if !call.is_ours(at)? {
        return Ok(None);
    }
    let session = call.session()?;
    match session.resolve(call, at, true)? {
        Resolved::Inside(found, _dir) => {
            found.attr()?;
            call.process.count(Reason::Execute);
            // A script sees the path by which it was called.
            match call.process.kernel_is_in_working_directory() && call.is_relative_to_it(at)? {
                true => Ok(None),
                false => call.kernel_path(at),
            }
        }
        Resolved::Outside(path) => Ok(Some(path)),
        Resolved::Foreign => Ok(None),
    }
}

impl Scratch {
    /// The memory of the last call of the thread.
    fn take(word: &AtomicU64) -> Box<Self> {
        match word.swap(0, Relaxed) {
            0 => Box::default(),
            // SAFETY: `leave` has stored the box, and the swap has removed it.
            address => unsafe { Box::from_raw(address as *mut Self) },
        }
    }

    /// Leaves the memory to the next call: a child of `vfork` that becomes another program cannot free it.
    fn leave(self: Box<Self>, word: &AtomicU64) {
        word.store(Box::into_raw(self) as u64, Relaxed);
    }

    fn fill(&mut self, call: &Call, n: usize, passed: &Passed, loads: Loads) -> Result<()> {
        self.strings.clear();
        self.pointers.clear();
        let mut preloaded = Vec::new();
        for pointer in memory::pointers(call.args[n])? {
            let start = memory::text(pointer, environment::NAME_MAX)?;
            let start = match start {
                Some(whole) => whole,
                None => memory::bytes(pointer, environment::NAME_MAX)?.into(),
            };
            if start.starts_with(environment::PRELOAD.as_bytes()) {
                preloaded = memory::text(pointer, 1 << 17)?
                    .unwrap_or_default()
                    .into_vec();
            } else if !start.starts_with(environment::PREFIX.as_bytes()) {
                self.pointers.push(pointer);
            }
        }
        self.strings = environment::strings(call.process, passed, &preloaded, loads);
        let pointers: Vec<u64> = self
            .strings
            .iter()
            .map(|text| text.as_ptr() as u64)
            .collect();
        self.pointers.extend(pointers);
        self.pointers.push(0);
        Ok(())
    }
}

impl crate::process::Process {
    /// Sends what the backend has not sent yet: the process ends, or another one begins, which must find the
    /// files that it inherits. Returns whether that has failed.
    pub(crate) fn send(&self) -> bool {
        let sent = self.connected().map_or(Ok(()), |fs| self.finish(fs));
        if let Err(errno) = sent
            && errno != vfs::Errno::NODEV
        {
            // The text of an error takes memory of libc, which holds its locks during a fork.
            let (id, number) = (kernel::process_id(), errno.raw_os_error());
            eprintln!("selvedge run: the last changes of process {id} are lost (errno {number})");
        }
        sent.is_err()
    }
}
