//! Blocking of signals on our own threads.

use libc::{SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP, c_int};

/// Signals that a thread's own code raises: if they were blocked, they would kill the process.
/// A lost page of a file raises SIGBUS.
const OF_THE_THREAD: [c_int; 5] = [SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP];

/// Runs `start` with signals blocked. Threads that it starts inherit this, so that the
/// program's handlers run on the program's threads. `start` should do nothing else, because the
/// program cannot be interrupted meanwhile.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are valid places for results, and zeros are a valid set.
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
