//! Descriptors that this library and the backend open for themselves.
//!
//! They get high numbers, so that the program's own start where it expects them. The program can neither
//! close nor replace them.

use crate::abi::{self, CLASSES, FDS, MAKES, OWN};
use crate::kernel::{self, Result};
use crate::memory;
use crate::raw;
use libc::{
    CLONE_SETTLS, CLONE_THREAD, F_DUPFD, F_DUPFD_CLOEXEC, SCM_RIGHTS, SOL_SOCKET, SYS_clone,
    SYS_clone3, SYS_close, SYS_dup, SYS_fcntl, SYS_open, SYS_openat, SYS_openat2, SYS_recvmsg,
    cmsghdr, msghdr,
};
use std::mem::offset_of;
use std::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Relaxed},
};
use vfs::Errno;

/// The first numbers that are tried. The usual limit is 1024; a program may have a lower one.
const FROM: [u32; 6] = [960, 200, 100, 40, 16, 3];

/// Most bytes of the control messages that are looked at: the kernel passes at most 253 descriptors.
const CONTROL_MAX: u64 = 1 << 16;

/// Bytes of the head of a control message.
const HEAD: u64 = size_of::<cmsghdr>() as u64;

/// No descriptor of this library is greater.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// Moves a descriptor of this library to a high number.
pub(crate) fn keep(fd: u32) -> Result<u32> {
    let moved = FROM
        .iter()
        .find_map(|from| kernel::duplicate(fd, *from, true).ok());
    kernel::close(fd)?;
    let moved = moved.ok_or(Errno::MFILE)?;
    mark(moved).map(|()| moved)
}

/// Marks a descriptor as one of this library.
pub(crate) fn mark(fd: u32) -> Result<()> {
    let entry = FDS.get(fd as usize).ok_or(Errno::MFILE)?;
    entry.store(OWN, Relaxed);
    HIGHEST.fetch_max(fd, Relaxed);
    Ok(())
}

/// Closes a descriptor of this library. The program can get its number from here on.
pub(crate) fn close(fd: u32) {
    FDS[fd as usize].store(0, Relaxed);
    let _ = kernel::close(fd);
}

/// A descriptor of this library, which is closed at the end.
pub(crate) struct Descriptor(pub(crate) u32);

impl Drop for Descriptor {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// Whether a descriptor is one of this library.
pub(crate) fn is_own(fd: u64) -> bool {
    FDS.get(fd as u32 as usize)
        .is_some_and(|entry| entry.load(Relaxed) == OWN)
}

/// All descriptors of this library, in order.
pub(crate) fn all() -> impl Iterator<Item = u32> {
    let highest = HIGHEST.load(Relaxed);
    (0..=highest).filter(|fd| FDS[*fd as usize].load(Relaxed) == OWN)
}

/// Whether a call of this library with this number needs [`answer`].
pub(crate) fn is_of_interest(number: u16) -> bool {
    let number = i64::from(number);
    let others = [SYS_fcntl, SYS_close, SYS_recvmsg, SYS_clone, SYS_clone3];
    makes_descriptor(number) || others.contains(&number)
}

fn makes_descriptor(number: i64) -> bool {
    let class = || {
        CLASSES
            .get(number as usize)
            .map(|class| class.load(Relaxed))
    };
    [SYS_open, SYS_openat, SYS_openat2, SYS_dup].contains(&number)
        || number != SYS_recvmsg && class() == Some(MAKES)
}

/// Handles a call that this library or the backend makes. `None`: the kernel executes it.
pub(crate) fn answer(number: i64, args: &[u64; 6]) -> Option<u64> {
    let duplicates = number == SYS_fcntl && [F_DUPFD, F_DUPFD_CLOEXEC].contains(&(args[1] as i32));
    if makes_descriptor(number) || duplicates {
        // SAFETY: the call is executed as it stands.
        let made = kernel::result(unsafe { raw::syscall(number, *args) });
        return Some(kernel::encode(
            made.and_then(|fd| keep(fd as u32).map(u64::from)),
        ));
    }
    match number {
        SYS_recvmsg => {
            // SAFETY: the call is executed as it stands.
            let received = kernel::result(unsafe { raw::syscall(number, *args) });
            let kept = received.and_then(|bytes| keep_received(args[1]).map(|()| bytes));
            return Some(kernel::encode(kept));
        }
        SYS_close => {
            let entry = FDS.get(args[0] as u32 as usize)?;
            let _ = entry.compare_exchange(OWN, 0, AcqRel, Relaxed);
        }
        SYS_clone => adopt(args[0], args[4]),
        SYS_clone3 => {
            let flags = memory::load::<u64>(args[0]).ok()?;
            let pointer = memory::load::<u64>(args[0] + 56).ok()?;
            adopt(flags, pointer);
        }
        _ => {}
    }
    None
}

/// Moves the descriptors that came with a message. `header` is the address of the `msghdr`.
fn keep_received(header: u64) -> Result<()> {
    for place in descriptors_of(header)? {
        memory::store(place, &keep(memory::load(place)?)?)?;
    }
    Ok(())
}

/// The addresses of the descriptors in a message. `header` is the address of the `msghdr`.
pub(crate) fn descriptors_of(header: u64) -> Result<Vec<u64>> {
    let [control, len] = memory::load::<[u64; 2]>(header + offset_of!(msghdr, msg_control) as u64)?;
    let end = control
        .checked_add(len.min(CONTROL_MAX))
        .ok_or(Errno::FAULT)?;
    let (mut at, mut places) = (control, Vec::new());
    while at + HEAD <= end {
        let [len, kind] = memory::load::<[u64; 2]>(at)?;
        let next = at.saturating_add(len.max(HEAD));
        if kind == (SCM_RIGHTS as u64) << 32 | SOL_SOCKET as u64 {
            places.extend((at + HEAD..next.min(end)).step_by(size_of::<u32>()));
        }
        at = next
            .checked_next_multiple_of(size_of::<usize>() as u64)
            .unwrap_or(end);
    }
    Ok(places)
}

/// A thread of the backend is inside this library all its life.
fn adopt(flags: u64, pointer: u64) {
    let wanted = (CLONE_THREAD | CLONE_SETTLS) as u64;
    if flags & wanted == wanted {
        // SAFETY: libc has prepared the thread's storage, and starts the thread with this call.
        let thread = unsafe { abi::thread_of(pointer) };
        thread.inside.store(1, Relaxed);
    }
}
