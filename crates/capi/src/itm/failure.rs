//! Transactions that cannot be done: the end of the process, or an error for those who ask.
//!
//! `selvedge_try` is to a transaction what `setjmp` is to a jump: if one of the thread's fails
//! before `selvedge_try_end`, it leaves nothing, and the call returns once more.

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

/// Why a transaction cannot be done.
pub(super) type Failure = TxError<Infallible>;

/// What a word is not that holds the address of a persistent variable.
pub(super) const STALE: &str = "address of the next run";

/// What `selvedge_try` returns again.
const FAILED: c_int = -1;

/// Returns 0, and once more, -1, if a transaction of this thread fails.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn selvedge_try() -> c_int {
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
    // SAFETY: the program called; the naked function in front of this one has filled the buffer.
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

/// Ends what the latest `selvedge_try` of this thread began.
#[unsafe(no_mangle)]
pub extern "C" fn selvedge_try_end() {
    // SAFETY: the program called; the reference is gone at once.
    if let Some(thread) = unsafe { Thread::current() } {
        thread.tries.pop();
    }
}

/// Ends the transaction that is under way, because of `why`.
///
/// # Safety
/// As [`restart`](super::restart).
#[cold]
pub(super) unsafe fn give_up(why: Failure) -> ! {
    // SAFETY: the caller's promise; each reference is gone when something of the program runs.
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

/// Returns to the latest `selvedge_try` of this thread, whose transaction that began at the stack
/// address `begin` is over; without one the process ends.
///
/// # Safety
/// No reference to the thread's state is used any more, and the frame of the call is there.
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
        // What has a destructor, before the jump.
        drop((why, text));
        land(FAILED as u32, buffer)
    }
}

impl Thread {
    /// Drops what `selvedge_try` left in frames below the stack address `cfa` of a caller: these
    /// frames were left by a return, a jump or an exception.
    fn drop_stale_tries(&mut self, cfa: u64) {
        self.tries.retain(|buffer| buffer.cfa >= cfa);
    }

    /// Why a transaction cannot be done, as the program knows it.
    fn describe(&self, why: &Failure) -> String {
        let path = self.program.memory.backing().path().display();
        match why {
            TxError::Medium(MediumError::OutOfRange { off, .. }) => {
                let at = self.program.base + off;
                format!(
                    "a transaction uses the address {at:#x}, which is durable memory ({path}), \
                     but no region of the program's"
                )
            }
            TxError::NoValue { off, what: STALE } => format!(
                "a block stores the address of a persistent variable at {:#x}, in durable memory: \
                 in the next run it means something else; link with -no-pie, or point to a root \
                 or a block",
                self.program.base + off
            ),
            TxError::Failed(why) => format!(
                "durable memory in {path}: no more transactions: {why}; what was committed is \
                 there once this is mended"
            ),
            why => format!("durable memory in {path}: {why}"),
        }
    }
}
