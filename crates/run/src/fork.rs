//! Children: `fork`, `vfork`, `clone`.
//!
//! - A child with a copy of the memory gets a connection of its own. No other thread is inside this library
//!   while the memory is copied.
//! - A child of `vfork`, as `posix_spawn` makes it, shares the memory but not the descriptors. It gets a
//!   table of descriptors of its own, which its parent drops when it continues. If the process has no
//!   connection and the store is not mounted, it connects first, or the child gets a copy of the memory.
//! - A thread shares everything.

use crate::calls::{Answer, Call, Stop};
use crate::heap::Heap;
use crate::{kernel, memory, raw, signals};
use libc::{
    CLONE_THREAD, CLONE_VFORK, CLONE_VM, SIGCHLD, SYS_clone, SYS_clone3, SYS_fork, SYS_vfork,
};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// Flags, and the stack of the child or 0.
fn arguments(call: &Call) -> crate::kernel::Result<(u64, u64)> {
    match call.number {
        SYS_fork => Ok((SIGCHLD as u64, 0)),
        SYS_vfork => Ok(((CLONE_VM | CLONE_VFORK | SIGCHLD) as u64, 0)),
        SYS_clone => Ok((call.args[0], call.args[1])),
        SYS_clone3 => Ok((
            memory::load(call.args[0])?,
            memory::load(call.args[0] + 40)?,
        )),
        _ => unreachable!("the calls that make a process"),
    }
}

/// Makes a child, or lets the kernel make it.
pub(crate) fn fork(call: &Call) -> Answer {
    let (flags, stack) = arguments(call)?;
    let has = |flag: i32| flags & flag as u64 != 0;
    let process = call.process;
    if !has(CLONE_VM) {
        return copy(call, flags, stack);
    }
    if has(CLONE_VFORK) && !has(CLONE_THREAD) && !process.is_vfork_child() {
        let used = process.connection();
        if process.send() {
            // A child can neither leave a connection nor make one.
            process.leave_connection(used);
        }
        let calls = process.gate.read();
        // With a copy, `posix_spawn` does not learn that the program did not start.
        let shares = process.can_share_memory() || stack != 0 && process.fs().is_ok();
        if shares {
            process.before_vfork()?;
        }
        drop(calls);
        if !shares {
            return copy(call, flags & !(CLONE_VM as u64), stack);
        }
    }
    Err(Stop::Kernel)
}

/// Makes a child with a copy of the memory.
fn copy(call: &Call, flags: u64, stack: u64) -> Answer {
    let process = call.process;
    process.send();
    let _alone = process.gate.write().unwrap_or_else(PoisonError::into_inner);
    let (number, mut args) = (call.number, call.args);
    let (number, args) = match number {
        SYS_clone3 => {
            if memory::load::<u64>(args[0])? != flags {
                memory::store(args[0], &flags)?;
            }
            (number, args)
        }
        SYS_clone => {
            args[0] = flags;
            (number, args)
        }
        _ => (SYS_clone, [flags, 0, 0, 0, 0, 0]),
    };
    let shares_descriptors = flags & libc::CLONE_FILES as u64 != 0;
    process
        .shares_descriptors
        .store(shares_descriptors, Relaxed);
    process.share_with_child();
    if stack != 0 {
        return Err(Stop::With(args)); // the child starts elsewhere, and is noticed at its first call
    }
    let child = {
        let _paused = Heap::pause();
        // SAFETY: the program makes a child that continues here, on a copy of this stack.
        kernel::result(unsafe { raw::syscall(number, args) })
    };
    match child {
        Ok(0) => {
            signals::forget();
            process.become_child();
        }
        Ok(_) => {}
        Err(_) => process.no_child(),
    }
    Ok(child?)
}
