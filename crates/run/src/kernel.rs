//! System calls of this library itself, which no replaced instruction sees.
//!
//! Each function passes numbers, or memory that outlives the call.

use crate::raw::syscall;
use std::ffi::CStr;
use std::sync::atomic::Ordering::Relaxed;
use vfs::Errno;

/// Result of a system call.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// The result that the kernel encodes in `value`.
pub(crate) fn result(value: i64) -> Result<u64> {
    match value {
        -4095..=-1 => Err(Errno::from_raw_os_error(-value as i32)),
        _ => Ok(value as u64),
    }
}

/// The value by which the kernel returns `result`.
pub(crate) fn encode(result: Result<u64>) -> u64 {
    result.unwrap_or_else(|errno| -i64::from(errno.raw_os_error()) as u64)
}

/// Calls that get no address.
fn plain(number: i64, args: [u64; 6]) -> Result<u64> {
    // SAFETY: the calls below that use this change descriptors or the process's attributes only.
    result(unsafe { syscall(number, args) })
}

/// The first file descriptor from `from` on that is free, as a duplicate of `fd`.
pub(crate) fn duplicate(fd: u32, from: u32, close_on_exec: bool) -> Result<u32> {
    let command = if close_on_exec {
        libc::F_DUPFD_CLOEXEC
    } else {
        libc::F_DUPFD
    };
    let args = [fd.into(), command as u64, from.into(), 0, 0, 0];
    plain(libc::SYS_fcntl, args).map(|fd| fd as u32)
}

/// Sets whether the descriptor is closed at `execve`.
pub(crate) fn set_closes_on_exec(fd: u32, closes: bool) -> Result<()> {
    let flags = if closes { libc::FD_CLOEXEC as u64 } else { 0 };
    plain(
        libc::SYS_fcntl,
        [fd.into(), libc::F_SETFD as u64, flags, 0, 0, 0],
    )
    .map(drop)
}

/// Whether the descriptor is closed at `execve`.
pub(crate) fn closes_on_exec(fd: u32) -> Result<bool> {
    let flags = plain(
        libc::SYS_fcntl,
        [fd.into(), libc::F_GETFD as u64, 0, 0, 0, 0],
    )?;
    Ok(flags & libc::FD_CLOEXEC as u64 != 0)
}

/// Closes a descriptor.
pub(crate) fn close(fd: u32) -> Result<()> {
    plain(libc::SYS_close, [fd.into(), 0, 0, 0, 0, 0]).map(drop)
}

/// Closes a range of descriptors, or marks them.
pub(crate) fn close_range(first: u32, last: u32, flags: u64) -> Result<()> {
    plain(
        libc::SYS_close_range,
        [first.into(), last.into(), flags, 0, 0, 0],
    )
    .map(drop)
}

/// Opens a file of the kernel by its absolute path.
pub(crate) fn open(path: &CStr, flags: i32) -> Result<u32> {
    let args = [
        libc::AT_FDCWD as u64,
        path.as_ptr() as u64,
        flags as u64,
        0o600,
        0,
        0,
    ];
    // SAFETY: the path ends with 0 and outlives the call.
    result(unsafe { syscall(libc::SYS_openat, args) }).map(|fd| fd as u32)
}

/// Sets the length of a file of the kernel.
pub(crate) fn truncate(path: &CStr, size: u64) -> Result<()> {
    let args = [path.as_ptr() as u64, size, 0, 0, 0, 0];
    // SAFETY: the path ends with 0 and outlives the call.
    result(unsafe { syscall(libc::SYS_truncate, args) }).map(drop)
}

fn stat(fd: u32) -> Result<libc::stat> {
    // SAFETY: all bits 0 is a valid value of the structure.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let args = [fd.into(), &raw mut stat as u64, 0, 0, 0, 0];
    // SAFETY: the kernel writes a `stat`.
    result(unsafe { syscall(libc::SYS_fstat, args) })?;
    Ok(stat)
}

/// The device and inode number of the kernel's file of a descriptor.
pub(crate) fn device_and_inode(fd: u32) -> Result<(u64, u64)> {
    stat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Whether a descriptor is a socket.
pub(crate) fn is_socket(fd: u32) -> bool {
    stat(fd).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFSOCK)
}

/// Whether a descriptor is a pipe.
pub(crate) fn is_pipe(fd: u32) -> Result<bool> {
    stat(fd).map(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFIFO)
}

/// Whether a call on a descriptor would not wait.
pub(crate) fn is_ready(fd: u32, events: i16) -> Result<bool> {
    let mut ready = libc::pollfd {
        fd: fd as i32,
        events,
        revents: 0,
    };
    let args = [&raw mut ready as u64, 1, 0, 0, 0, 0];
    // SAFETY: the kernel writes a `pollfd`.
    result(unsafe { syscall(libc::SYS_poll, args) }).map(|count| count > 0)
}

/// Whether calls on a descriptor never wait.
pub(crate) fn is_nonblocking(fd: u32) -> Result<bool> {
    flags(fd).map(|flags| flags & libc::O_NONBLOCK as u32 != 0)
}

/// The device number of a file of the kernel. A server of FUSE is not asked.
pub(crate) fn device(path: &CStr) -> Result<u64> {
    device_and_inode_of(path).map(|(device, _)| device)
}

/// The same, with the inode number.
pub(crate) fn device_and_inode_of(path: &CStr) -> Result<(u64, u64)> {
    // SAFETY: all bits 0 is a valid value of the structure.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let args = [
        libc::AT_FDCWD as u64,
        path.as_ptr() as u64,
        libc::AT_STATX_DONT_SYNC as u64,
        (libc::STATX_TYPE | libc::STATX_INO).into(),
        &raw mut stat as u64,
        0,
    ];
    // SAFETY: the path ends with 0; the kernel writes a `statx`.
    result(unsafe { syscall(libc::SYS_statx, args) })?;
    let device = libc::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    Ok((device, stat.stx_ino))
}

/// Changes the kernel's working directory.
pub(crate) fn change_directory(path: &CStr) -> Result<()> {
    let args = [path.as_ptr() as u64, 0, 0, 0, 0, 0];
    // SAFETY: the path ends with 0 and outlives the call.
    result(unsafe { syscall(libc::SYS_chdir, args) }).map(drop)
}

/// The path of the kernel's working directory; not absolute if no path leads there.
pub(crate) fn directory() -> Result<Vec<u8>> {
    let mut path = vec![0_u8; libc::PATH_MAX as usize];
    let args = [path.as_mut_ptr() as u64, path.len() as u64, 0, 0, 0, 0];
    // SAFETY: the kernel writes at most the length of the buffer.
    let bytes = result(unsafe { syscall(libc::SYS_getcwd, args) })?;
    path.truncate((bytes as usize).saturating_sub(1)); // the 0
    Ok(path)
}

/// Reads a whole file of the kernel of less than 4 KiB.
pub(crate) fn read_small(path: &CStr) -> Result<Vec<u8>> {
    let fd = open(path, libc::O_RDONLY | libc::O_CLOEXEC)?;
    let mut text = vec![0_u8; 4096];
    let args = [
        fd.into(),
        text.as_mut_ptr() as u64,
        text.len() as u64,
        0,
        0,
        0,
    ];
    // SAFETY: the kernel writes at most the length of the buffer.
    let read = result(unsafe { syscall(libc::SYS_read, args) });
    close(fd)?;
    text.truncate(read? as usize);
    Ok(text)
}

/// The room for descriptors that a message may have.
const MESSAGE_FDS: usize = 2;

/// A control message with descriptors.
#[repr(C)]
struct Control {
    head: libc::cmsghdr,
    fds: [u32; MESSAGE_FDS],
}

/// Two connected sockets, which are closed at `execve`. Each message arrives as a whole.
pub(crate) fn socket_pair() -> Result<[u32; 2]> {
    let mut pair = [0_u32; 2];
    let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as u64;
    let place = pair.as_mut_ptr() as u64;
    // SAFETY: the kernel writes two numbers.
    result(unsafe {
        syscall(
            libc::SYS_socketpair,
            [libc::AF_UNIX as u64, kind, 0, place, 0, 0],
        )
    })?;
    Ok(pair)
}

/// Runs a call on a message of four numbers and some descriptors.
fn with_message(
    number: i64,
    socket: u32,
    words: &mut [u32; 4],
    control: &mut Control,
    control_bytes: usize,
    flags: i32,
) -> Result<(usize, usize)> {
    let mut part = libc::iovec {
        iov_base: words.as_mut_ptr().cast(),
        iov_len: size_of_val(words),
    };
    // SAFETY: all bits 0 is a valid value of the structure.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    message.msg_control = (&raw mut *control).cast();
    message.msg_controllen = control_bytes;
    let args = [
        socket.into(),
        &raw mut message as u64,
        flags as u64,
        0,
        0,
        0,
    ];
    // SAFETY: the message names memory of these sizes, which outlives the call.
    let bytes = result(unsafe { syscall(number, args) })?;
    Ok((bytes as usize, message.msg_controllen))
}

/// Sends a message, with at most two descriptors, or fails if it would wait and is not patient.
pub(crate) fn send(socket: u32, words: &[u32; 4], fds: &[u32], is_patient: bool) -> Result<()> {
    let len = size_of::<libc::cmsghdr>() + size_of_val(fds);
    // SAFETY: all bits 0 is a valid value of the structure.
    let mut control: Control = unsafe { std::mem::zeroed() };
    control.head.cmsg_len = len;
    control.head.cmsg_level = libc::SOL_SOCKET;
    control.head.cmsg_type = libc::SCM_RIGHTS;
    control.fds[..fds.len()].copy_from_slice(fds);
    let bytes = match fds {
        [] => 0,
        _ => len.next_multiple_of(size_of::<usize>()),
    };
    let flags = match is_patient {
        true => libc::MSG_NOSIGNAL,
        false => libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
    };
    let call = libc::SYS_sendmsg;
    with_message(call, socket, &mut words.clone(), &mut control, bytes, flags).map(drop)
}

/// Receives a message. Returns its bytes, 0 after the end, and its descriptors, which are closed at `execve`.
pub(crate) fn receive(socket: u32, words: &mut [u32; 4]) -> Result<(usize, Vec<u32>)> {
    // SAFETY: all bits 0 is a valid value of the structure.
    let mut control: Control = unsafe { std::mem::zeroed() };
    let (call, flags) = (libc::SYS_recvmsg, libc::MSG_CMSG_CLOEXEC);
    let (bytes, used) = loop {
        let room = size_of::<Control>();
        match with_message(call, socket, words, &mut control, room, flags) {
            Err(Errno::INTR) => {}
            done => break done?,
        }
    };
    let head = size_of::<libc::cmsghdr>();
    let is_fds = used > head && control.head.cmsg_type == libc::SCM_RIGHTS;
    let count = match is_fds {
        true => (control.head.cmsg_len - head) / size_of::<u32>(),
        false => 0,
    };
    Ok((bytes, control.fds[..count.min(MESSAGE_FDS)].to_vec()))
}

/// Makes `to` a duplicate of `fd`, with the flag of `to` for `execve`.
pub(crate) fn replace(fd: u32, to: u32) -> Result<()> {
    let flags = match closes_on_exec(to)? {
        true => libc::O_CLOEXEC,
        false => 0,
    };
    let args = [fd.into(), to.into(), flags as u64, 0, 0, 0];
    plain(libc::SYS_dup3, args).map(drop)
}

/// Sets or reads the offset of a file of the kernel.
pub(crate) fn seek(fd: u32, offset: i64, whence: i32) -> Result<u64> {
    plain(
        libc::SYS_lseek,
        [fd.into(), offset as u64, whence as u64, 0, 0, 0],
    )
}

/// The flags of a file of the kernel.
pub(crate) fn flags(fd: u32) -> Result<u32> {
    let args = [fd.into(), libc::F_GETFL as u64, 0, 0, 0, 0];
    plain(libc::SYS_fcntl, args).map(|flags| flags as u32)
}

/// Sets the flags of a file of the kernel.
pub(crate) fn set_flags(fd: u32, flags: u32) -> Result<()> {
    let args = [fd.into(), libc::F_SETFL as u64, flags.into(), 0, 0, 0];
    plain(libc::SYS_fcntl, args).map(drop)
}

/// The first bytes of a program, their number, and whether the program gets rights when it is executed.
pub(crate) fn program(dir: i32, path: &CStr, head: &mut [u8]) -> Result<(usize, bool)> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let args = [dir as u64, path.as_ptr() as u64, flags as u64, 0, 0, 0];
    // SAFETY: the path ends with 0 and outlives the call.
    let fd = result(unsafe { syscall(libc::SYS_openat, args) })?;
    let args = [fd, head.as_mut_ptr() as u64, head.len() as u64, 0, 0, 0];
    // SAFETY: the kernel writes at most the length of the buffer.
    let read = result(unsafe { syscall(libc::SYS_read, args) });
    // SAFETY: all bits 0 is a valid value of the structure.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let args = [fd, &raw mut stat as u64, 0, 0, 0, 0];
    // SAFETY: the kernel writes a `stat`.
    let known = result(unsafe { syscall(libc::SYS_fstat, args) });
    let args = [fd, c"security.capability".as_ptr() as u64, 0, 0, 0, 0];
    // SAFETY: the name ends with 0; a size of 0 asks for the length only.
    let capabilities = result(unsafe { syscall(libc::SYS_fgetxattr, args) });
    close(fd as u32)?;
    known?;
    let is_set_id = stat.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0;
    Ok((read? as usize, is_set_id || capabilities.is_ok()))
}

/// The id of this thread.
pub(crate) fn thread_id() -> u32 {
    let known = &crate::abi::thread().id;
    match known.load(Relaxed) {
        0 => {
            let id = plain(libc::SYS_gettid, [0; 6]).unwrap_or(0) as u32;
            known.store(id, Relaxed);
            id
        }
        id => id,
    }
}

/// The id of this process.
pub(crate) fn process_id() -> u32 {
    plain(libc::SYS_getpid, [0; 6]).unwrap_or(0) as u32
}

/// A limit of the process: what it can reach without more rights.
pub(crate) fn limit(which: libc::__rlimit_resource_t) -> Result<u64> {
    let mut limits = [0_u64; 2];
    let args = [0, which.into(), 0, limits.as_mut_ptr() as u64, 0, 0];
    // SAFETY: the kernel writes two numbers.
    result(unsafe { syscall(libc::SYS_prlimit64, args) })?;
    Ok(limits[0])
}

/// Whether a thread of this id exists.
pub(crate) fn thread_exists(id: u32) -> bool {
    plain(libc::SYS_tkill, [id.into(), 0, 0, 0, 0, 0]) != Err(Errno::SRCH)
}

/// Sends a signal to the calling thread.
pub(crate) fn raise(signal: i32) {
    let args = [
        process_id().into(),
        thread_id().into(),
        signal as u64,
        0,
        0,
        0,
    ];
    let _ = plain(libc::SYS_tgkill, args);
}

/// The ids of user and group, and the supplementary groups: the real ones, or those for access to files.
pub(crate) fn credentials(is_real: bool) -> Result<(u32, u32, Vec<u32>)> {
    // No user has the id -1, so that these calls only return the present one.
    const NOBODY: u64 = u32::MAX as u64;
    let (user, group) = match is_real {
        true => (libc::SYS_getuid, libc::SYS_getgid),
        false => (libc::SYS_setfsuid, libc::SYS_setfsgid),
    };
    let unchanged = [NOBODY, 0, 0, 0, 0, 0];
    let (user, group) = (plain(user, unchanged)?, plain(group, unchanged)?);
    let mut groups = vec![0_u32; plain(libc::SYS_getgroups, [0; 6])? as usize];
    let args = [groups.len() as u64, groups.as_mut_ptr() as u64, 0, 0, 0, 0];
    // SAFETY: the kernel writes at most that many ids.
    let count = result(unsafe { syscall(libc::SYS_getgroups, args) })?;
    groups.truncate(count as usize);
    Ok((user as u32, group as u32, groups))
}

/// Makes a directory that only this user may use, unless it exists.
///
/// # Errors
/// `EACCES` if others may use it: they may have made it, or a link in its place.
pub(crate) fn make_own_directory(path: &CStr, user: u32) -> Result<()> {
    let args = [path.as_ptr() as u64, 0o700, 0, 0, 0, 0];
    // SAFETY: the path ends with 0 and outlives the call.
    match result(unsafe { syscall(libc::SYS_mkdir, args) }) {
        Ok(_) => return Ok(()),
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let fd = open(path, flags).map_err(|_| Errno::ACCESS)?;
    let found = stat(fd);
    close(fd)?;
    let found = found?;
    match found.st_uid == user && found.st_mode & 0o077 == 0 {
        true => Ok(()),
        false => Err(Errno::ACCESS),
    }
}

/// Waits until `word` is not `value` or the time has passed.
pub(crate) fn wait(word: &std::sync::atomic::AtomicU32, value: u32, tv_nsec: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec };
    let args = [
        word.as_ptr() as u64,
        libc::FUTEX_WAIT as u64,
        value.into(),
        &raw const time as u64,
        0,
        0,
    ];
    // SAFETY: the word and the time outlive the call.
    unsafe { syscall(libc::SYS_futex, args) };
}

/// Wakes a thread that waits for `word`.
pub(crate) fn wake(word: &std::sync::atomic::AtomicU32) {
    let args = [word.as_ptr() as u64, libc::FUTEX_WAKE as u64, 1, 0, 0, 0];
    // SAFETY: the call has no effect on memory.
    unsafe { syscall(libc::SYS_futex, args) };
}

/// Sets the signals that the thread blocks, and returns those that it blocked.
pub(crate) fn set_signal_mask(mask: u64) -> u64 {
    let mut old = 0_u64;
    let args = [
        libc::SIG_SETMASK as u64,
        &raw const mask as u64,
        &raw mut old as u64,
        8,
        0,
        0,
    ];
    // SAFETY: the kernel reads one mask and writes the other, of 8 bytes each.
    unsafe { syscall(libc::SYS_rt_sigprocmask, args) };
    old
}

/// Blocks signals while it lives, except the one by which libc changes the user in all threads.
pub(crate) struct Quiet(u64);

impl Quiet {
    pub(crate) fn new() -> Self {
        Self(set_signal_mask(!(1 << 32)))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        set_signal_mask(self.0);
    }
}

/// Takes the alternative stack of the thread away while it lives.
pub(crate) struct OneStack(libc::stack_t);

impl OneStack {
    /// The caller does not run on the alternative stack.
    pub(crate) fn new() -> Self {
        let none = libc::stack_t {
            ss_sp: std::ptr::null_mut(),
            ss_flags: libc::SS_DISABLE,
            ss_size: 0,
        };
        let mut old = none;
        let args = [&raw const none as u64, &raw mut old as u64, 0, 0, 0, 0];
        // SAFETY: the kernel reads one value and writes the other.
        unsafe { syscall(libc::SYS_sigaltstack, args) };
        Self(old)
    }
}

impl Drop for OneStack {
    fn drop(&mut self) {
        let args = [&raw const self.0 as u64, 0, 0, 0, 0, 0];
        // SAFETY: the stack is the one that the program has set.
        unsafe { syscall(libc::SYS_sigaltstack, args) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs::{self, Permissions};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_directory_that_others_may_use_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let (user, ..) = credentials(false).unwrap();
        let own = |name: &str, user| {
            let path = dir.path().join(name);
            let path = CString::new(path.as_os_str().as_bytes()).unwrap();
            make_own_directory(&path, user)
        };
        assert_eq!(own("new", user), Ok(()));
        assert_eq!(own("new", user), Ok(()));
        assert_eq!(own("new", user + 1), Err(Errno::ACCESS), "another's");
        let mode = |mode| fs::set_permissions(dir.path().join("new"), Permissions::from_mode(mode));
        mode(0o755).unwrap();
        assert_eq!(own("new", user), Err(Errno::ACCESS), "readable");
        mode(0o700).unwrap();
        symlink("new", dir.path().join("link")).unwrap();
        assert_eq!(own("link", user), Err(Errno::ACCESS), "a link");
        fs::write(dir.path().join("file"), []).unwrap();
        assert_eq!(own("file", user), Err(Errno::ACCESS), "a file");
        assert_eq!(own("none/new", user), Err(Errno::NOENT));
    }
}
