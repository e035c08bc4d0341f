//! Where each system call of the program arrives, with the decision on who answers it.
//!
//! | calls | answered by |
//! |---|---|
//! | on a descriptor of the store, on a path below the mount point | this process |
//! | on both sides at once: `rename`, `link` | `EXDEV`, as between two file systems |
//! | `mmap` of a private mapping | this process: a copy of the contents |
//! | on the contents of a file that has a shared mapping | the mount (`calls::mapped`) |
//! | `mmap` of a shared mapping, `execve`, locks, `inotify_add_watch`, `name_to_handle_at`, named pipes, devices and sockets | the mount of the store at the same path, if there is one |
//! | `sendmsg` of a descriptor of the store | the kernel, with a descriptor of the mount |
//! | `ioctl` on a file of the store | this process, the few that all files have; others get `ENOTTY` |
//! | `io_uring_setup`, `io_setup` | `ENOSYS`, since their requests are not system calls on files |
//! | all others | the kernel |

use crate::abi::{
    self, ALWAYS, AT, CLASSES, EXIT, FD, FD_AND_SECOND, FD_AND_THIRD, FD_FIFTH, Frame, MAKES, PATH,
};
use crate::calls::{self, Call, SYS_FCHMODAT2, Stop};
use crate::kernel;
use crate::process::process;
use crate::{fork, own};
use libc::*;
use std::sync::atomic::Ordering::Relaxed;

/// The class of each call that can be about the store.
const TABLE: &[(u8, &[i64])] = &[
    (
        FD,
        &[
            SYS_read,
            SYS_write,
            SYS_close,
            SYS_fstat,
            SYS_lseek,
            SYS_pread64,
            SYS_pwrite64,
            SYS_readv,
            SYS_writev,
            SYS_preadv,
            SYS_pwritev,
            SYS_preadv2,
            SYS_pwritev2,
            SYS_getdents64,
            SYS_ftruncate,
            SYS_fallocate,
            SYS_fsync,
            SYS_fdatasync,
            SYS_sync_file_range,
            SYS_syncfs,
            SYS_fadvise64,
            SYS_readahead,
            SYS_fchmod,
            SYS_fchown,
            SYS_fstatfs,
            SYS_flock,
            SYS_fcntl,
            SYS_ioctl,
            SYS_dup,
            SYS_fgetxattr,
            SYS_fsetxattr,
            SYS_flistxattr,
            SYS_fremovexattr,
        ],
    ),
    (FD_AND_SECOND, &[SYS_dup2, SYS_dup3, SYS_sendfile]),
    (FD_AND_THIRD, &[SYS_copy_file_range, SYS_splice]),
    (FD_FIFTH, &[SYS_mmap]),
    (
        PATH,
        &[
            SYS_open,
            SYS_creat,
            SYS_stat,
            SYS_lstat,
            SYS_access,
            SYS_readlink,
            SYS_mkdir,
            SYS_mknod,
            SYS_rmdir,
            SYS_unlink,
            SYS_chmod,
            SYS_chown,
            SYS_lchown,
            SYS_utime,
            SYS_utimes,
            SYS_truncate,
            SYS_statfs,
            SYS_getxattr,
            SYS_lgetxattr,
            SYS_setxattr,
            SYS_lsetxattr,
            SYS_listxattr,
            SYS_llistxattr,
            SYS_removexattr,
            SYS_lremovexattr,
        ],
    ),
    (
        AT,
        &[
            SYS_openat,
            SYS_openat2,
            SYS_newfstatat,
            SYS_statx,
            SYS_faccessat,
            SYS_faccessat2,
            SYS_readlinkat,
            SYS_mkdirat,
            SYS_mknodat,
            SYS_unlinkat,
            SYS_fchmodat,
            SYS_FCHMODAT2,
            SYS_fchownat,
            SYS_utimensat,
            SYS_futimesat,
            SYS_inotify_add_watch,
            SYS_name_to_handle_at,
        ],
    ),
    (
        ALWAYS,
        &[
            SYS_fork,
            SYS_vfork,
            SYS_clone,
            SYS_clone3,
            SYS_execve,
            SYS_execveat,
            SYS_exit_group,
            SYS_rename,
            SYS_renameat,
            SYS_renameat2,
            SYS_link,
            SYS_linkat,
            SYS_symlink,
            SYS_symlinkat,
            SYS_close_range,
            SYS_rt_sigaction,
            SYS_umask,
            SYS_chdir,
            SYS_fchdir,
            SYS_getcwd,
            SYS_setuid,
            SYS_setgid,
            SYS_setreuid,
            SYS_setregid,
            SYS_setresuid,
            SYS_setresgid,
            SYS_setgroups,
            SYS_setfsuid,
            SYS_setfsgid,
            SYS_io_uring_setup,
            SYS_io_setup,
            SYS_sendmsg,
            SYS_sync,
            SYS_setrlimit,
            SYS_prlimit64,
        ],
    ),
    (EXIT, &[SYS_exit]),
    (
        MAKES,
        &[
            SYS_socket,
            SYS_memfd_create,
            SYS_eventfd2,
            SYS_epoll_create1,
            SYS_userfaultfd,
            SYS_pidfd_open,
            SYS_timerfd_create,
            SYS_recvmsg,
        ],
    ),
];

/// Fills the table of classes.
pub(crate) fn start() {
    abi::start(handle, handle_own);
    for (class, numbers) in TABLE {
        for number in *numbers {
            CLASSES[*number as usize].store(*class, Relaxed);
        }
    }
}

/// Whether replaced instructions with this number have an effect.
pub(crate) fn is_of_interest(number: u16) -> bool {
    CLASSES
        .get(usize::from(number))
        .is_none_or(|class| class.load(Relaxed) != abi::PASS)
}

/// Answers a call of the program.
extern "C" fn handle(frame: &mut Frame) {
    let _errno = Errno::keep();
    let process = process();
    process.notice_fork();
    process.after_vfork();
    let _stack = (abi::thread().is_on_other_stack()).then(kernel::OneStack::new);
    calls::backed::pick_up(process);
    let call = Call {
        process,
        number: frame.rax as i64,
        args: frame.args,
    };
    let answered = match answer_in_session(&call) {
        Err(Stop::Waits(wait)) => call.waiting(wait.args),
        answered => answered,
    };
    match answered {
        Ok(value) => frame.finish(value),
        Err(Stop::Errno(errno)) => {
            if errno == vfs::Errno::IO {
                process.tell_loss();
            }
            frame.finish(kernel::encode(Err(errno)));
        }
        Err(Stop::With(args)) => frame.args = args,
        Err(Stop::Again) => frame.done = 2,
        Err(Stop::Kernel | Stop::Waits(_)) => {}
    }
}

/// Libc's `errno` of the thread, which a system call does not change: `readdir` and others tell an error from the end
/// by it. The code of the backend changes it.
struct Errno(c_int);

impl Errno {
    fn keep() -> Self {
        // SAFETY: the address is that of a variable of this thread.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: as in `keep`.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// Handles a call of this library.
extern "C" fn handle_own(frame: &mut Frame) {
    if let Some(value) = own::answer(frame.rax as i64, &frame.args) {
        frame.finish(value);
    }
}

impl Frame {
    fn finish(&mut self, value: u64) {
        self.rax = value;
        self.done = 1;
    }
}

/// Answers a call, by another connection if that of the process has ended.
fn answer_in_session(call: &Call) -> calls::Answer {
    let used = call.process.connection();
    let reports_losses = matches!(call.number, SYS_fsync | SYS_fdatasync | SYS_syncfs);
    if reports_losses && call.process.has_lost() && call.process.file(call.args[0]).is_some() {
        return Err(Stop::Errno(vfs::Errno::IO));
    }
    match answer(call) {
        Err(Stop::Errno(vfs::Errno::NODEV)) if call.process.leave_connection(used) => answer(call),
        answered => answered,
    }
}

fn answer(call: &Call) -> calls::Answer {
    match call.number {
        SYS_fork | SYS_vfork | SYS_clone | SYS_clone3 => fork::fork(call),
        SYS_execve | SYS_execveat => crate::exec::execute(call),
        // A child of `vfork` shares the memory, but not the kernel's handlers.
        SYS_rt_sigaction if call.process.is_vfork_child() => Err(Stop::Kernel),
        SYS_rt_sigaction => Ok(crate::signals::set_action(&call.args)?),
        SYS_io_uring_setup | SYS_io_setup => Err(Stop::Errno(vfs::Errno::NOSYS)),
        SYS_flock => calls::locks::flock(call),
        SYS_fcntl => calls::descriptors::fcntl(call),
        SYS_sendfile | SYS_copy_file_range | SYS_splice => calls::copies::copy(call),
        _ => {
            let _calls = call.process.gate.read();
            let is_on_path = || CLASSES[call.number as usize].load(Relaxed) != FD;
            match by_the_store(call) {
                // The directory of a path that was known (`vfs::Paths`) has gone meanwhile.
                Err(Stop::Errno(vfs::Errno::STALE)) if is_on_path() => {
                    Err(Stop::Errno(vfs::Errno::NOENT))
                }
                answer => answer,
            }
        }
    }
}

/// Calls that end without waiting for others.
fn by_the_store(call: &Call) -> calls::Answer {
    use calls::{attrs, data, descriptors, directories, names, opens, xattrs};
    match call.number {
        SYS_read | SYS_write | SYS_pread64 | SYS_pwrite64 | SYS_readv | SYS_writev | SYS_preadv
        | SYS_pwritev | SYS_preadv2 | SYS_pwritev2 => data::transfer(call),
        SYS_lseek => data::seek(call),
        SYS_ftruncate | SYS_fallocate | SYS_fsync | SYS_fdatasync | SYS_sync_file_range
        | SYS_syncfs | SYS_fadvise64 | SYS_readahead => data::change(call),
        SYS_mmap => calls::maps::map(call),
        SYS_open | SYS_creat | SYS_openat | SYS_openat2 => opens::open(call),
        SYS_close | SYS_close_range | SYS_dup | SYS_dup2 | SYS_dup3 | SYS_ioctl => {
            descriptors::change(call)
        }
        SYS_getdents64 => directories::list(call),
        SYS_chdir | SYS_fchdir | SYS_getcwd => directories::working(call),
        SYS_stat | SYS_lstat | SYS_fstat | SYS_newfstatat | SYS_statx | SYS_statfs
        | SYS_fstatfs | SYS_access | SYS_faccessat | SYS_faccessat2 => attrs::show(call),
        SYS_chmod | SYS_fchmod | SYS_fchmodat | SYS_FCHMODAT2 | SYS_chown | SYS_lchown
        | SYS_fchown | SYS_fchownat | SYS_utime | SYS_utimes | SYS_futimesat | SYS_utimensat
        | SYS_truncate | SYS_umask => attrs::change(call),
        SYS_mkdir | SYS_mkdirat | SYS_mknod | SYS_mknodat | SYS_rmdir | SYS_unlink
        | SYS_unlinkat | SYS_symlink | SYS_symlinkat | SYS_readlink | SYS_readlinkat => {
            names::one(call)
        }
        SYS_rename | SYS_renameat | SYS_renameat2 | SYS_link | SYS_linkat => names::two(call),
        SYS_getxattr | SYS_lgetxattr | SYS_fgetxattr | SYS_setxattr | SYS_lsetxattr
        | SYS_fsetxattr | SYS_listxattr | SYS_llistxattr | SYS_flistxattr | SYS_removexattr
        | SYS_lremovexattr | SYS_fremovexattr => xattrs::call(call),
        SYS_inotify_add_watch | SYS_name_to_handle_at => calls::through_mount(call),
        SYS_exit_group => {
            call.process.send();
            call.process.end();
            Err(Stop::Kernel)
        }
        SYS_setuid | SYS_setgid | SYS_setreuid | SYS_setregid | SYS_setresuid | SYS_setresgid
        | SYS_setgroups | SYS_setfsuid | SYS_setfsgid => {
            let done = call.pass()?;
            match call.number {
                SYS_setfsuid | SYS_setfsgid => call.process.separate_users(), // of this thread only
                _ => call.process.forget_credentials(),
            }
            Ok(done)
        }
        SYS_setrlimit | SYS_prlimit64 => {
            let done = call.pass()?;
            call.process.learn_size_limit();
            Ok(done)
        }
        SYS_sendmsg => descriptors::send(call),
        SYS_sync => {
            // Nobody learns of an error, as in the kernel.
            let _ = call.process.connected().map(|fs| call.process.finish(fs));
            Err(Stop::Kernel)
        }
        _ => Err(Stop::Kernel),
    }
}
