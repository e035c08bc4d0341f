//! Signals of the program, and threads of ours.

use libc::{SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP, c_int};

/// Signals that a thread's own code raises: blocked, they would kill the process. A page of a
/// file that is gone raises one.
const OF_THE_THREAD: [c_int; 5] = [SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP];

/// Runs `start` with signals blocked, which threads that it starts inherit: the program's
/// handlers are to run on the program's threads. Nothing else is to be done in it, since the
/// program cannot be interrupted meanwhile.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are there to be written to, and zeros are sets.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        for signal in OF_THE_THREAD {
            libc::sigdelset(&mut all, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        started
    }
}
