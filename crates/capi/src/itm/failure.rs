//! Transactions that fail: the process ends, or `selvedge_try` returns an error.
//!
//! `selvedge_try` is like `setjmp`. If a transaction of the thread fails before
//! `selvedge_try_end`, the transaction is undone, and `selvedge_try` returns a second time.

use super::{LEFT, actions, exceptions, land};
use crate::errno::errno_of;
use crate::fatal::die;
use crate::message::report;
use crate::program;
use crate::thread::Thread;
use crate::thread::actions::Mark;
use crate::thread::jump::{JumpBuffer, with_buffer};
use libc::c_int;
use medium::MediumError;
use mnemosyne::tx::TxError;
use std::convert::Infallible;

/// The reason why a transaction fails.
pub(super) type Failure = TxError<Infallible>;

/// The description of a valid address, for a word with the address of a persistent variable.
pub(super) const STALE: &str = "address of the next run";

/// The second result of `selvedge_try`.
const FAILED: c_int = -1;

/// Returns 0, and a second time, -1, if a transaction of this thread fails.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn selvedge_try() -> c_int {
    with_buffer!(begin_try)
}

/// The second half of `selvedge_try`.
unsafe extern "C" fn begin_try(_: u32, buffer: *const JumpBuffer) -> c_int {
    let program = match program::start() {
        Ok(program) => program,
        Err(why) => {
            report(why.errno(), why);
            return FAILED;
        }
    };
    // SAFETY: the program called; the naked function that calls this one has filled the buffer.
    let (thread, buffer) = unsafe { (Thread::get(program), *buffer) };
    if thread.depth > 0 {
        if thread.was_left(&buffer) {
            die(LEFT);
        }
        report(
            libc::EINVAL,
            "selvedge_try cannot be called inside a transaction",
        );
        return FAILED;
    }
    thread.drop_stale_tries(buffer.cfa);
    thread.tries.push(buffer);
    0
}

/// Ends the latest `selvedge_try` of this thread.
#[unsafe(no_mangle)]
pub(super) extern "C" fn selvedge_try_end() {
    // SAFETY: the program called; the reference is dropped at once.
    if let Some(thread) = unsafe { Thread::current() } {
        thread.tries.pop();
    }
}

/// Ends the running transaction because of `why`.
///
/// # Safety
/// As [`restart`](super::restart).
#[cold]
pub(super) unsafe fn give_up(why: Failure) -> ! {
    // SAFETY: the caller's promise; each reference is dropped before code of the program runs.
    unsafe {
        let thread = Thread::running();
        let begin = thread.levels.first().map_or(0, |level| level.jump.cfa);
        thread.drop_stale_tries(begin);
        if thread.tries.is_empty() {
            die(thread.describe(&why));
        }
        thread.roll_back();
        let foreign = thread.exceptions.foreign.take();
        exceptions::delete(foreign);
        actions::undone(Mark::default());
        refuse(why, begin)
    }
}

/// Returns to the latest `selvedge_try` of this thread, or ends the process if there is none. The
/// transaction, which began at the stack address `begin`, is over.
///
/// # Safety
/// No reference to the thread's state is used any more, and the frame of the call still exists.
#[cold]
pub(super) unsafe fn refuse(why: Failure, begin: u64) -> ! {
    // SAFETY: the caller's promise.
    unsafe {
        let thread = Thread::running();
        thread.drop_stale_tries(begin);
        let text = thread.describe(&why);
        let Some(buffer) = thread.tries.pop() else {
            die(text);
        };
        thread.refused = None;
        report(errno_of(&why), &text);
        // Values with a destructor are dropped before the jump.
        drop((why, text));
        land(FAILED as u32, buffer)
    }
}

impl Thread {
    /// Drops the buffers of `selvedge_try` in frames below the stack address `cfa` of a caller. A
    /// return, a jump or an exception has left these frames.
    fn drop_stale_tries(&mut self, cfa: u64) {
        self.tries.retain(|buffer| buffer.cfa >= cfa);
    }

    /// The reason why a transaction fails, with addresses of the program.
    fn describe(&self, why: &Failure) -> String {
        let path = self.program.memory.backing().path().display();
        match why {
            TxError::Medium(MediumError::OutOfRange { off, .. }) => {
                let at = self.program.base + off;
                format!(
                    "a transaction uses the address {at:#x}, which is in durable memory ({path}), \
                     but not in a region of the program"
                )
            }
            TxError::NoValue { off, what: STALE } => format!(
                "a block stores the address of a persistent variable at {:#x}, in durable memory; \
                 it changes in the next run: link with -no-pie, or point to a root or a heap block",
                self.program.base + off
            ),
            TxError::Failed(why) => format!(
                "durable memory in {path}: no more transactions: {why}; committed data are \
                 available once the cause is removed"
            ),
            why => format!("durable memory in {path}: {why}"),
        }
    }
}
