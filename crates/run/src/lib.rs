//! Runs unmodified programs whose system calls below a mount point are answered inside their own processes,
//! by a [`vfs::FileSystem`].
//!
//! [`Prepared`] is a command with a library in `LD_PRELOAD`, which [`preload!`] makes of this crate and a
//! [`Backend`]. The library stays with all programs that the command executes.
//!
//! # Guarantees
//!
//! 1. Calls on paths below the mount point, and on descriptors of files there, have the results of Linux.
//!    All other calls are the kernel's, unchanged. The module `handler` has the table.
//! 2. Descriptors have the numbers that the kernel would give. They survive `dup`, `fork`, `posix_spawn` and
//!    `execve`, and share offsets and flags as POSIX says (`shared`, `process`).
//! 3. Calls in handlers of signals, and by any number of threads, work (`signals`, `heap`).
//! 4. Permissions are those of the process's credentials, for each component of a path (`walk`).
//! 5. A call that is not answered here goes to the mount of the store at the same path, if there is one.
//!    [`Counts`] says how often.
//!
//! # Limits
//!
//! - Linux on x86-64 only, on a processor with XSAVEC. [`Prepared::new`] fails elsewhere.
//! - Static programs, those with another loader than that of glibc, set-id programs, and code that a program generates are
//!   not seen, nor are `syscall` instructions of objects that `dlopen` adds. Their calls go to the mount. Libc is seen, so
//!   almost no object has such instructions. Programs that are not seen inherit descriptors of the mount (`calls::backed`),
//!   but for files without a name.
//! - The processes of a run trust each other: they share memory that each can store to. A child of another user can take
//!   over the others, and has what its parent had mapped of the store, also after `setuid`.
//! - `chroot`, mount name spaces, seccomp and Landlock do not hide the store from a process that uses it.
//! - A path that reaches the mount point by another name goes to the mount: `/x/../mnt`, `//mnt`, or
//!   a symbolic link elsewhere.
//! - A process that a signal kills loses what its backend has not sent, and its open file descriptions
//!   count as used until the run ends.
//! - A file that a process has open without a name, and a child opens for the first time after the parent has
//!   closed it, is gone (`ESTALE`). So are files without a name for a process that loses its connection.
//! - Without a mount, a lock of `flock` ends with the program that took it, also if another process has the descriptor.
//! - A file without a name, or that has moved to another directory since it was opened, has no shared mappings;
//!   the latter has no locks either (`ENODEV`).
//! - A shared mapping shows the writes of processes of the same run, and of others by the same mount. If a file loses its
//!   name, or is moved to another directory, before a process has used its contents beside the mapping, the mapping does not
//!   show the writes of this process.
//! - `sync` sends the changes of its process only.
//! - `execve` drops the record locks of a file that has a lock of `flock` or a shared mapping as well, and all of them if
//!   the program does not load the library and inherits the file.
//! - Descriptors that `sendmmsg` passes to another process cannot be used there, nor those that `sendmsg` passes of a
//!   store without a mount, or of a file without a name.
//! - The first call on the store of a process starts threads, for which libc takes memory: it must not be made in a
//!   handler that has interrupted `malloc`, nor beside a thread that forks.
//! - Threads of the backend count as threads of the program. So a program whose first thread calls `pthread_exit` does not
//!   end with its last one, and `unshare` of a user namespace fails, after the first call on the store.
//! - inotify reports what programs outside of the run do by the mount, and not what those of the run do.
//! - `madvise(MADV_DONTNEED)` empties a private mapping, which is a copy, and `mremap` extends it with zeros.
//! - Cancelling a thread that waits in a call ends it without unwinding its C++ frames.
//!
//! # How calls are seen
//!
//! One of four ways to see system calls is cheap enough. Measured on one machine, for a call of 142 ns:
//!
//! | way | sees | adds to each other call | per seen call |
//! |---|---|---|---|
//! | symbols of libc (not measured) | no call from inside libc, such as those of stdio | | |
//! | Syscall User Dispatch | all of a thread that enables it | 80 ns | 2.2 us, a signal |
//! | seccomp with a trap | all; cannot be taken back; no set-id programs | 55 ns | 2.2 us, a signal |
//! | replaced instructions | all of objects that are loaded at the start | a few ns | 0.15 us |
//!
//! Most `syscall` instructions follow one that sets the number of the call, whose five bytes hold a jump. The
//! others get theirs with neighbours (`sites`). All 526 of Debian's glibc 2.36 can be replaced, and all 46 of
//! its loader. The places in an object are found once for each run of a command, and are known to all its
//! processes by the object's build id.
//!
//! Measured on another machine with a client of a service, in ns. Times differ by a half from run to run; each row is of
//! one run:
//!
//! | call | tmpfs | tmpfs under `run` | store |
//! |---|---|---|---|
//! | `getppid` | 162 | 160 | |
//! | `pread` of 1 byte | 348 | 361 | 540 |
//! | `stat` | 1062 | 1161 | 937 |
//! | `open`, `close` | 1059 | 1114 | 1745 |
//! | `open`, `read` of 4 KiB, `close` | 2599 | 2627 | 3449 |
//!
//! The start of a process takes longer: 1.6 ms instead of 0.65 ms for `/bin/true` from a shell. Parts of it are the library,
//! and copies of the pages in which instructions are replaced.
#![warn(unreachable_pub)]
#![allow(non_upper_case_globals)] // numbers of system calls in patterns

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("selvedge-run replaces machine code: it supports Linux on x86-64 only");

mod abi;
mod calls;
mod custody;
mod environment;
mod exec;
mod fork;
mod handler;
mod heap;
mod kernel;
mod launch;
mod loaders;
mod memory;
mod own;
mod patch;
mod process;
mod raw;
mod shared;
mod signals;
mod sites;
mod walk;

pub use heap::Heap;
pub use launch::{Counts, Error, Options, Prepared};
pub use shared::Reason;

use process::Process;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Once};
use vfs::FileSystem;

/// The file system at the mount point.
pub trait Backend: Send + Sync {
    /// Connects a process to the store that [`Options::store`] names. Threads that it starts, and
    /// descriptors that it opens, are invisible to the program.
    ///
    /// # Errors
    /// The cause, in one line.
    fn connect(&self, store: &str) -> Result<Arc<dyn FileSystem>, String>;

    /// Sends what was not sent yet: the process ends or executes another program, or a call has returned `ENODEV`.
    ///
    /// # Errors
    /// The error of a change that the process has made, if no call has returned it. `ENODEV` if the connection has
    /// ended, and nothing that was not sent is lost.
    fn finish(&self, fs: &dyn FileSystem) -> vfs::Result<()> {
        fs.sync()
    }
}

/// Starts to answer the calls of this process. Called by [`preload!`] before the program's own code runs,
/// in the only thread of the process. Without the variables of a [`Prepared`] command, nothing happens.
#[doc(hidden)]
pub fn start(backend: &'static dyn Backend) {
    let Some((start, dropped)) = environment::start() else {
        return;
    };
    if !launch::is_supported() {
        eprintln!(
            "selvedge run: this processor, or emulator, has no XSAVEC; calls go to the kernel"
        );
        return;
    }
    if let Err(errno) = begin(start, &dropped, backend) {
        eprintln!("selvedge run: cannot start: {errno}; calls go to the kernel");
    }
}

/// A backend whose descriptors are recognised.
struct Recognised {
    backend: &'static dyn Backend,
    once: Once,
}

impl Backend for Recognised {
    fn connect(&self, store: &str) -> Result<Arc<dyn FileSystem>, String> {
        let mut prepared = Ok(());
        self.once
            .call_once(|| prepared = patch::library(process::process().shared));
        prepared.map_err(|errno| errno.to_string())?;
        self.backend.connect(store)
    }

    fn finish(&self, fs: &dyn FileSystem) -> vfs::Result<()> {
        self.backend.finish(fs)
    }
}

fn begin(
    start: process::Start,
    dropped: &[u32],
    backend: &'static dyn Backend,
) -> kernel::Result<()> {
    if start.at.len() >= abi::PREFIX_MAX {
        return Err(vfs::Errno::NAMETOOLONG);
    }
    for (to, from) in abi::PREFIX.iter().zip(&start.at) {
        to.store(*from, Relaxed);
    }
    handler::start();
    let backend = Box::leak(Box::new(Recognised {
        backend,
        once: Once::new(),
    }));
    let process = Process::start(start, backend)?;
    dropped.iter().for_each(|number| process.give_up(*number));
    signals::start()?;
    patch::program(process.shared)
}

/// Makes a dynamic library one that a [`Prepared`] command can preload: `run::preload!(BACKEND)`, where `BACKEND` is a
/// static [`Backend`].
#[macro_export]
macro_rules! preload {
    ($backend:expr) => {
        #[global_allocator]
        static HEAP: $crate::Heap = $crate::Heap;

        extern "C" fn start() {
            $crate::start(&$backend);
        }

        #[used]
        #[unsafe(link_section = ".init_array")]
        static START: extern "C" fn() = start;
    };
}
