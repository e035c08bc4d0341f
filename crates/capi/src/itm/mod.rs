//! The runtime for the transactions of gcc (`-fgnu-tm`), in place of libitm.
//!
//! # Guarantees
//!
//! 1. Transactions are those of `mnemosyne::tx`, with its guarantees, over all memory of the
//!    process. Stores to durable words are durable. Volatile words too are isolated and rolled back.
//! 2. Inner transactions are part of the outer one. The cancel of an inner transaction undoes it
//!    completely, and the outer one continues.
//! 3. Commits privatise. Before the commit of a writer returns, every transaction that has read
//!    the replaced words is over. Then the program may use memory that it has unlinked without
//!    transactions, and the runtime frees memory that the transaction freed.
//! 4. Transactions that cannot be rolled back are refused: those without instrumented code, and
//!    those that become irrevocable. Their stores to durable memory would not be logged.
//!
//! # Calls that gcc makes
//!
//! gcc makes one call for an integer of 1 to 8 bytes, a `float`, `double` or `long double`, or a
//! vector of 8 to 32 bytes. Complex numbers, `__int128` and larger vectors arrive as several calls
//! or as copies. The hints in the names (`RaW`, read after write, and so on) are not used.

mod actions;
mod bulk;
mod clones;
mod data;
mod exceptions;
mod failure;
mod strings;

use crate::fatal::die;
use crate::program;
use crate::thread::jump::{JumpBuffer, jump, with_buffer};
use crate::thread::{Before, Level, Thread};
use failure::Failure;
use libc::{c_char, c_int, c_void};
use mnemosyne::heap::HeapError;
use mnemosyne::tx::{Interrupted, TxError, Uncommitted};

// Bits of a transaction's properties.
const HAS_INSTRUMENTED_CODE: u32 = 0x01;
const HAS_NO_ABORT: u32 = 0x08;
const USES_UNDO_LOG: u32 = 0x400;

// Bits of a begin's result: the actions of its caller.
const RUN_INSTRUMENTED: u32 = 0x01;
const SAVE_LIVE_VARIABLES: u32 = 0x04;
const RESTORE_LIVE_VARIABLES: u32 = 0x08;
const ABORTED: u32 = 0x10;

/// The bit in the reason of an abort that selects the outermost transaction.
const OUTER_ABORT: c_int = 0x10;

/// The version of the interface.
const VERSION: c_int = 90;
/// The id of no transaction.
const NO_ID: u64 = 1;

/// The message for a transaction whose frame was left.
const LEFT: &str = "a block was left without its end, by longjmp or a switch of stacks; nothing of \
                    it is kept";

/// Begins a transaction. Returns the actions of its code; returns again after a cancel, and for
/// each further attempt.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn _ITM_beginTransaction(properties: u32) -> u32 {
    with_buffer!(begin)
}

/// The second half of the begin of a transaction.
unsafe extern "C" fn begin(properties: u32, buffer: *const JumpBuffer) -> u32 {
    if properties & HAS_INSTRUMENTED_CODE == 0 {
        die(
            "a transaction has code without instrumentation, whose stores would not be durable: \
             use SELVEDGE_ATOMIC (__transaction_atomic), not __transaction_relaxed, and build with -fgnu-tm",
        );
    }
    if properties & USES_UNDO_LOG != 0 {
        die("a transaction was built for a runtime with an undo log, which this is not");
    }
    let program = program::started();
    // SAFETY: the program called, and its code runs only after the return.
    let thread = unsafe { Thread::get(program) };
    // SAFETY: the naked function that calls this one has filled the buffer.
    let buffer = unsafe { *buffer };
    match thread.depth {
        0 => {
            if let Err(why) = thread.begin_outermost(buffer) {
                // SAFETY: the reference is not used any more; no transaction has begun.
                unsafe { failure::refuse(why, buffer.cfa) }
            }
        }
        _ if thread.was_left(&buffer) => die(LEFT),
        _ if properties & HAS_NO_ABORT == 0 => thread.begin_level(buffer),
        _ => {}
    }
    thread.depth += 1;
    RUN_INSTRUMENTED | SAVE_LIVE_VARIABLES
}

impl Thread {
    fn begin_outermost(&mut self, buffer: JumpBuffer) -> Result<(), Failure> {
        self.session.begin().map_err(TxError::Failed)?;
        self.attempts = 0;
        self.set_id();
        self.exceptions.begin();
        self.push_level(Level {
            jump: buffer,
            depth: 0,
            before: None,
        });
        Ok(())
    }

    /// Begins an inner transaction that can be cancelled by itself.
    fn begin_level(&mut self, buffer: JumpBuffer) {
        let before = Before {
            savepoint: self.session.savepoint(),
            undo: self.undo.len(),
            fresh: self.fresh.mark(),
            blocks: self.blocks.mark(),
            actions: self.actions.mark(),
            exceptions: self.exceptions.mark(),
            id: self.id,
        };
        self.set_id();
        self.push_level(Level {
            jump: buffer,
            depth: self.depth,
            before: Some(before),
        });
    }

    /// Ends a transaction, and commits it if it is the outermost one. `exception` is the exception
    /// that leaves it, or null. Returns whether actions of the program are due.
    fn commit(&mut self, exception: *mut c_void) -> Result<bool, Uncommitted> {
        self.depth -= 1;
        if self.depth > 0 {
            if self.levels.last().is_some_and(|l| l.depth == self.depth)
                && let Some(level) = self.pop_level()
                && let Some(before) = level.before
            {
                self.id = before.id;
            }
            return Ok(false);
        }
        if let Err(why) = self.session.commit() {
            self.depth = 1;
            self.exceptions.ends_by(exception);
            return Err(why);
        }
        self.clear_levels();
        self.undo.clear();
        self.fresh.clear();
        self.blocks.clear();
        self.refused = None;
        self.exceptions.committed();
        Ok(!self.actions.is_empty())
    }

    /// Undoes the transaction, except for the undo actions of the program. Returns its begin.
    fn roll_back(&mut self) -> JumpBuffer {
        let Some(outermost) = self.levels.first() else {
            die("the program ends a transaction that has not begun");
        };
        let begin = outermost.jump;
        // First, since the rollback of the session releases the locks.
        self.undo.roll_back(0, begin.cfa);
        self.session.roll_back();
        self.clear_levels();
        self.fresh.clear();
        self.blocks.clear();
        self.depth = 0;
        self.exceptions.rolled_back();
        begin
    }

    /// Undoes the innermost transaction that can be cancelled, or all. Returns its begin, and the
    /// mark of the program's first undo action.
    fn cancel(&mut self, is_outer: bool) -> (JumpBuffer, crate::thread::actions::Mark) {
        match self.pop_level() {
            Some(Level {
                jump,
                depth,
                before: Some(before),
            }) if !is_outer => {
                self.undo.roll_back(before.undo, jump.cfa);
                self.session.return_to(&before.savepoint);
                self.fresh.return_to(before.fresh);
                self.blocks.return_to(before.blocks);
                self.exceptions.return_to(before.exceptions);
                self.depth = depth;
                self.id = before.id;
                (jump, before.actions)
            }
            Some(level) => {
                self.push_level(level);
                self.refused = None;
                (self.roll_back(), crate::thread::actions::Mark::default())
            }
            None => die("the program cancels a transaction that has not begun"),
        }
    }

    /// Begins the transaction again. It was undone because of `why`, in a step of `asker`.
    ///
    /// # Errors
    /// The reason, if another attempt cannot succeed.
    fn begin_again(
        &mut self,
        why: Interrupted,
        asker: Asker,
        begin: JumpBuffer,
    ) -> Result<(), Failure> {
        match self.session.overcome(why, self.attempts) {
            Ok(()) => {}
            // In the next attempt the call returns the error.
            Err(TxError::Heap(HeapError::NoSpace { bytes }) | TxError::Growth { bytes, .. })
                if asker == Asker::Step =>
            {
                let least = self.refused.unwrap_or(u64::MAX);
                self.refused = Some(least.min(bytes));
            }
            Err(why) => return Err(why),
        }
        let attempts = self.attempts + 1;
        self.begin_outermost(begin)?;
        (self.attempts, self.depth) = (attempts, 1);
        Ok(())
    }

    /// Sets a unique id: the thread's number, and the number of its transactions.
    fn set_id(&mut self) {
        self.ids += 1;
        self.id = u64::from(self.number) << 40 | self.ids & ((1 << 40) - 1);
    }
}

/// The part of a transaction that needs another attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asker {
    /// A step: a call that needs room in the heap can return an error.
    Step,
    /// The commit, which fails if the heap has no room.
    Commit,
}

/// Runs the transaction again for one of its steps, or fails it.
///
/// # Safety
/// As [`restart_for`].
#[cold]
pub(crate) unsafe fn restart(why: Interrupted) -> ! {
    // SAFETY: the caller's promise.
    unsafe { restart_for(Asker::Step, why) }
}

/// Runs the transaction again, or fails it if another attempt cannot succeed.
///
/// This and the following functions are not methods, so that no caller holds a reference to the
/// thread's state. The program's undo actions, and its code after the jump, take their own.
///
/// # Safety
/// This thread runs a transaction, and no reference to its state is used any more.
#[cold]
unsafe fn restart_for(asker: Asker, why: Interrupted) -> ! {
    // SAFETY: the caller's promise; so below, since each reference is dropped before code of the
    // program runs.
    let thread = unsafe { Thread::running() };
    // A read from an inconsistent snapshot can fail; the conflict is the cause.
    let why = match why {
        Interrupted::Medium(_) if !thread.session.is_valid() => Interrupted::Conflict,
        other => other,
    };
    if why == Interrupted::Conflict {
        thread.session.keep_turn();
    }
    let begin = thread.roll_back();
    let foreign = thread.exceptions.foreign.take();
    // SAFETY: as above.
    unsafe {
        exceptions::delete(foreign);
        actions::undone(crate::thread::actions::Mark::default());
        if let Err(why) = Thread::running().begin_again(why, asker, begin) {
            failure::refuse(why, begin.cfa)
        }
        land(RUN_INSTRUMENTED | RESTORE_LIVE_VARIABLES, begin)
    }
}

/// Cancels the innermost transaction that can be cancelled, or all.
///
/// # Safety
/// As [`restart`].
unsafe fn cancel(is_outer: bool) -> ! {
    // SAFETY: as in `restart`.
    unsafe {
        let (begin, mark) = Thread::running().cancel(is_outer);
        actions::undone(mark);
        land(ABORTED | RESTORE_LIVE_VARIABLES, begin)
    }
}

/// Returns from a begin once more, with `code`.
///
/// # Safety
/// As [`restart`]. The frame of the begin exists until the end of its transaction. The frames in
/// between are the program's, which allows this, and ours, without destructors.
unsafe fn land(code: u32, at: JumpBuffer) -> ! {
    // SAFETY: the caller's promise.
    unsafe {
        // Not on the stack, which the jump removes.
        let landing = &raw mut Thread::running().landing;
        landing.write(at);
        jump(code, landing)
    }
}

/// The result of a step. If the step was interrupted, the transaction runs again.
///
/// # Safety
/// As [`restart`].
#[inline(always)]
pub(crate) unsafe fn done<T>(step: Result<T, Interrupted>) -> T {
    match step {
        Ok(value) => value,
        // SAFETY: the caller's promise.
        Err(why) => unsafe { restart(why) },
    }
}

/// Ends a transaction that `exception` leaves, or that reaches its end (null).
///
/// # Safety
/// As [`restart`].
unsafe fn commit(exception: *mut c_void) {
    // SAFETY: the caller's promise; the reference is dropped before code of the program runs.
    unsafe {
        match Thread::running().commit(exception) {
            Ok(true) => actions::committed(),
            Ok(false) => {}
            Err(Uncommitted::Conflict) => restart_for(Asker::Commit, Interrupted::Conflict),
            Err(Uncommitted::Heap(why)) => restart_for(Asker::Commit, Interrupted::Heap(why)),
            Err(Uncommitted::Failed(why)) => failure::give_up(TxError::Failed(why)),
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ITM_commitTransaction() {
    // SAFETY: the program called.
    unsafe { commit(std::ptr::null_mut()) };
}

/// Commits a transaction that an exception leaves.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ITM_commitTransactionEH(exception: *mut c_void) {
    // SAFETY: as above.
    unsafe { commit(exception) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ITM_abortTransaction(reason: c_int) -> ! {
    // SAFETY: the program called.
    unsafe { cancel(reason & OUTER_ABORT != 0) }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn _ITM_changeTransactionMode(_mode: c_int) {
    die(
        "a transaction would have to become irrevocable, for a call that cannot be rolled back: \
         move the call out of it, or declare the function transaction_safe or transaction_pure",
    );
}

/// Returns 0 outside of a transaction, and 1 inside of one, which can be run again.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn _ITM_inTransaction() -> c_int {
    // SAFETY: the program called.
    let thread = unsafe { Thread::current() };
    thread.is_some_and(|thread| thread.depth > 0).into()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn _ITM_getTransactionId() -> u64 {
    // SAFETY: the program called.
    let thread = unsafe { Thread::current() };
    thread.filter(|t| t.depth > 0).map_or(NO_ID, |t| t.id)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn _ITM_getThreadnum() -> c_int {
    // SAFETY: the program called.
    unsafe { Thread::get(program::started()) }.number as c_int
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn _ITM_versionCompatible(version: c_int) -> c_int {
    (version == VERSION).into()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn _ITM_libraryVersion() -> *const c_char {
    concat!("Selvedge ", env!("CARGO_PKG_VERSION"), "\0")
        .as_ptr()
        .cast()
}

/// The place of an error in the source, as the interface defines it.
#[repr(C)]
pub(crate) struct SourceLocation {
    reserved: [i32; 4],
    /// ";file;function;line;;", or null.
    text: *const c_char,
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ITM_error(location: *const SourceLocation, error: c_int) -> ! {
    // SAFETY: null, or a location whose text is null or a string, by the interface.
    let text = unsafe {
        let text = location.as_ref().map(|l| l.text).filter(|t| !t.is_null());
        text.map(|text| {
            std::ffi::CStr::from_ptr(text)
                .to_string_lossy()
                .into_owned()
        })
    };
    let text = text.unwrap_or_default();
    die(format_args!(
        "compiled code of a transaction reports error {error} {text}"
    ))
}
