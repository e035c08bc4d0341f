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
//! A call costs nothing for this: only the program's own `rt_sigaction` differs.

use crate::abi::{self, Thread, thread};
use crate::kernel::{self, Result};
use crate::memory;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vfs::Errno;

/// Signals that the kernel has, plus one.
const SIGNALS: usize = 65;
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
    kernel::result(unsafe { abi::syscall(libc::SYS_rt_sigaction, args) })?;
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
            Some(&[handler(), flags, abi::restore as *const () as u64, 0]),
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
                abi::restore as *const () as u64
            } else {
                restorer
            };
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
        let continues = abi::filter_continues(*at as usize).or(abi::probe_continues(*at as usize));
        if let Some(next) = continues {
            *at = next as i64;
            return;
        }
    } else if thread().inside.load(Relaxed) != 0 {
        defer(thread(), signal, info, context);
        return;
    }
    deliver(signal, info, context);
}

/// Keeps the signal until the call of the thread ends.
fn defer(thread: &Thread, signal: c_int, info: &libc::siginfo_t, context: &mut libc::ucontext_t) {
    let words = (&raw const *info).cast::<u64>();
    for (n, word) in thread.info.iter().enumerate() {
        // SAFETY: a `siginfo_t` has 128 bytes, 16 words, and is aligned to words.
        word.store(unsafe { *words.add(n) }, Relaxed);
    }
    let mask = (&raw mut context.uc_sigmask).cast::<u64>();
    // SAFETY: the kernel's mask is the first 8 bytes of the `sigset_t`.
    unsafe {
        thread.mask.store(*mask, Relaxed);
        *mask = u64::MAX;
    }
    thread.pending.store(signal as u32, Relaxed);
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
            function(signal, info, context);
        }
    }
}
