//! Signals of the program.
//!
//! Guarantees:
//!
//! 1. No handler of the program runs while its thread is inside this library. A signal that arrives then
//!    is kept with its information; all signals stay blocked until the call has returned, and the signal is
//!    then queued again. So a handler can make calls on the store, and no lock is held meanwhile.
//! 2. `sigaction` shows the program its own handlers.
//! 3. A fault while this library reads memory of the program becomes `EFAULT`. Every other fault has the
//!    effect that the program has chosen.
//!
//! 4. A call that waits in the kernel ends when a signal arrives, and is repeated after the handler, if the
//!    handler has `SA_RESTART`. So is `execve`: the new program gets the signal mask of the old one.
//! 5. While a handler on an alternative stack makes a call, the thread has no alternative stack: the kernel
//!    would put the next frame over that of the handler.
//!
//! A call costs nothing for this: only the program's own `rt_sigaction` differs.

use crate::abi::{self, Thread, thread};
use crate::kernel::{self, Result};
use crate::memory;
use crate::raw;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::Errno;

/// Signals that the kernel has, plus one.
const SIGNALS: usize = 65;
/// The signal by which libc changes the user in all threads. It waits for their handlers, also for those of
/// the backend's threads, which are always inside this library. The handler only makes a system call.
const SETXID: c_int = 33;
const RESTORER: u64 = 0x0400_0000;
const SIG_DFL: u64 = libc::SIG_DFL as u64;
const SIG_IGN: u64 = libc::SIG_IGN as u64;

/// The kernel's `sigaction`: handler, flags, restorer, mask.
type Action = [u64; 4];

/// The actions of the program for which the kernel has [`on_signal`].
static ACTIONS: [[AtomicU64; 4]; SIGNALS] = [const { [const { AtomicU64::new(0) }; 4] }; SIGNALS];

fn handler() -> u64 {
    on_signal as *const () as u64
}

fn kernel_action(signal: u64, new: Option<&Action>) -> Result<Action> {
    let mut old = [0; 4];
    let new = new.map_or(0, |new| new as *const Action as u64);
    let args = [signal, new, &raw mut old as u64, 8, 0, 0];
    // SAFETY: the kernel reads and writes actions of this layout. The handlers are the program's own, and
    // `on_signal`, which is a handler.
    kernel::result(unsafe { raw::syscall(libc::SYS_rt_sigaction, args) })?;
    Ok(old)
}

fn is_fault(signal: u64) -> bool {
    [libc::SIGSEGV, libc::SIGBUS].contains(&(signal as c_int))
}

/// Makes faults arrive here.
pub(crate) fn start() -> Result<()> {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        let flags = libc::SA_SIGINFO as u64 | libc::SA_ONSTACK as u64 | RESTORER;
        let old = kernel_action(
            signal as u64,
            Some(&[handler(), flags, raw::restore as *const () as u64, u64::MAX]),
        )?;
        keep(signal as u64, &old);
    }
    Ok(())
}

fn keep(signal: u64, action: &Action) {
    for (word, value) in ACTIONS[signal as usize].iter().zip(action) {
        word.store(*value, Relaxed);
    }
}

fn kept(signal: u64) -> Action {
    std::array::from_fn(|n| ACTIONS[signal as usize][n].load(Relaxed))
}

/// `rt_sigaction(signal, new, old, 8)` of the program.
pub(crate) fn set_action(args: &[u64; 6]) -> Result<u64> {
    let [signal, new, old, size, ..] = *args;
    let signal = u64::from(signal as u32);
    if size != 8 || signal == 0 || signal as usize >= SIGNALS {
        return Err(Errno::INVAL);
    }
    let wanted = match new {
        0 => None,
        address => Some(memory::load::<Action>(address)?),
    };
    let before = kept(signal);
    let ours = wanted.map(|action| match action {
        [SIG_DFL | SIG_IGN, ..] if !is_fault(signal) => action,
        [_, flags, restorer, mask] => {
            let flags =
                (flags | libc::SA_SIGINFO as u64) & !(libc::SA_RESETHAND as u64 & 0xffff_ffff);
            let restorer = if restorer == 0 {
                raw::restore as *const () as u64
            } else {
                restorer
            };
            let mask = if is_fault(signal) { u64::MAX } else { mask };
            [handler(), flags | RESTORER, restorer, mask]
        }
    });
    if let Some(action) = wanted {
        keep(signal, &action);
    }
    let found = kernel_action(signal, ours.as_ref()).inspect_err(|_| keep(signal, &before))?;
    if old != 0 {
        let shown = if found[0] == handler() { before } else { found };
        memory::store(old, &shown)?;
    }
    Ok(0)
}

/// Receives each signal for which the program has a handler, and faults.
extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel passes both to a handler with SA_SIGINFO, and they outlive it.
    let (info, context) = unsafe { (&*info, &mut *context) };
    let number = signal as u64;
    let at = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    if is_fault(number) && info.si_code > 0 {
        let continues = raw::filter_continues(*at as usize).or(raw::probe_continues(*at as usize));
        if let Some(next) = continues {
            *at = next as i64;
            return;
        }
    } else if must_wait(signal) {
        if let Some(next) = raw::wait_continues(*at as usize) {
            *at = next as i64;
        }
        defer(thread(), signal, info, context);
        return;
    }
    if is_fault(number) {
        unblock(number, mask_of(context));
    }
    deliver(signal, info, context);
}

/// The signals that were blocked before this handler.
fn mask_of(context: &mut libc::ucontext_t) -> &mut u64 {
    // SAFETY: the kernel's mask is the first 8 bytes of the `sigset_t`, which is aligned to words.
    unsafe { &mut *(&raw mut context.uc_sigmask).cast::<u64>() }
}

/// Blocks the signals that the program's handler of a fault blocks. Until here all were, so that none is kept
/// with the mask of a handler.
fn unblock(signal: u64, before: &u64) {
    let [_, flags, _, mask] = kept(signal);
    let own = match flags & libc::SA_NODEFER as u64 {
        0 => 1 << (signal - 1),
        _ => 0,
    };
    kernel::set_signal_mask(before | mask | own);
}

/// Whether the signal waits for the end of the thread's call. One can wait: after it, only faults arrive.
fn must_wait(signal: c_int) -> bool {
    let thread = thread();
    thread.inside.load(Relaxed) != 0 && thread.pending.load(Relaxed) == 0 && signal != SETXID
}

/// Forgets the signal that waits, in the child of a fork: it is the parent's.
pub(crate) fn forget() {
    let thread = thread();
    if thread.pending.swap(0, Relaxed) != 0 {
        kernel::set_signal_mask(thread.mask.load(Relaxed));
    }
}

/// Keeps the signal until the call of the thread ends.
fn defer(thread: &Thread, signal: c_int, info: &libc::siginfo_t, context: &mut libc::ucontext_t) {
    let words = (&raw const *info).cast::<u64>();
    for (n, word) in thread.info.iter().enumerate() {
        // SAFETY: a `siginfo_t` has 128 bytes, 16 words, and is aligned to words.
        word.store(unsafe { *words.add(n) }, Relaxed);
    }
    thread.mask.store(*mask_of(context), Relaxed);
    *mask_of(context) = abi::ALL_BUT_FAULTS;
    thread.pending.store(signal as u32, Relaxed);
}

/// The start and the end of the alternative stack of the thread, if this handler runs there.
fn other_stack(context: &libc::ucontext_t) -> Option<[u64; 2]> {
    let (stack, here) = (&context.uc_stack, &raw const *context as u64);
    let start = stack.ss_sp as u64;
    let end = start + stack.ss_size as u64;
    let is_there = stack.ss_flags & libc::SS_DISABLE == 0 && (start..end).contains(&here);
    is_there.then_some([start, end])
}

/// Has the effect that the program has chosen.
fn deliver(signal: c_int, info: &libc::siginfo_t, context: &mut libc::ucontext_t) {
    let number = signal as u64;
    let [action, flags, restorer, mask] = kept(number);
    let default = [SIG_DFL, flags & !(libc::SA_SIGINFO as u64), restorer, mask];
    match action {
        SIG_IGN if info.si_code <= 0 => {}
        SIG_DFL | SIG_IGN => {
            // The instruction faults again; a signal that was sent is sent again.
            let _ = kernel_action(number, Some(&default));
            if info.si_code <= 0 {
                kernel::raise(signal);
            }
        }
        function => {
            if flags & libc::SA_RESETHAND as u64 & 0xffff_ffff != 0 {
                keep(number, &default);
                if !is_fault(number) {
                    let _ = kernel_action(number, Some(&default));
                }
            }
            type Handler = extern "C" fn(c_int, *const libc::siginfo_t, *mut libc::ucontext_t);
            // SAFETY: the program has named this function as its handler. One of the older kind ignores
            // the further arguments.
            let function: Handler = unsafe { std::mem::transmute(function as usize) };
            let outer = &thread().other_stack;
            let before = outer.each_ref().map(|word| word.load(Relaxed));
            let set = |to: [u64; 2]| {
                outer
                    .iter()
                    .zip(to)
                    .for_each(|(word, to)| word.store(to, Relaxed))
            };
            set(other_stack(context).unwrap_or(before));
            function(signal, info, context);
            set(before);
        }
    }
}
