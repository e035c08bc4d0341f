//! The runtime behind the transactions of gcc (`-fgnu-tm`), in place of libitm.
//!
//! # Guarantees
//!
//! 1. Transactions are those of `mnemosyne::tx`, with its guarantees, over all of the
//!    process's memory: durable words are durable, and all words are isolated and rolled back.
//! 2. Inner transactions are part of the outer one. One that can be cancelled by itself leaves
//!    nothing when it is, and the outer one goes on.
//! 3. Before a transaction that wrote returns from its commit, all others that have read what it
//!    replaced are over: what it took away from them can be used without transactions,
//!    and memory that it freed goes only then.
//! 4. What cannot be rolled back is refused: a transaction without instrumented code, or one
//!    that would have to become irrevocable. Its stores would not be logged, and nobody could
//!    tell whether they went to durable memory.
//!
//! # What gcc does and does not
//!
//! It calls for integers of 1 to 8 bytes, for `float`, `double` and `long double`, and for
//! vectors of 8 to 32 bytes; complex numbers, `__int128` and larger vectors come in pieces or
//! as copies. Hints (`RaW`, read after write, and so on) change nothing here.

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

// Properties of a transaction.
const HAS_INSTRUMENTED_CODE: u32 = 0x01;
const HAS_NO_ABORT: u32 = 0x08;
const USES_UNDO_LOG: u32 = 0x400;

// What a begin tells its caller to do.
const RUN_INSTRUMENTED: u32 = 0x01;
const SAVE_LIVE_VARIABLES: u32 = 0x04;
const RESTORE_LIVE_VARIABLES: u32 = 0x08;
const ABORTED: u32 = 0x10;

/// Of the reasons to abort: the outermost transaction is meant.
const OUTER_ABORT: c_int = 0x10;

/// The version of the interface.
const VERSION: c_int = 90;
/// The id of no transaction.
const NO_ID: u64 = 1;

/// A transaction that has lost its frame.
const LEFT: &str = "a block was left without its end, by longjmp or a switch of stacks; nothing of \
                    it is kept";

/// Begins a transaction. Returns what its code is to do, and again whenever the transaction is
/// run again or was cancelled.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn _ITM_beginTransaction(properties: u32) -> u32 {
    with_buffer!(begin)
}

/// The second half of the begin of a transaction.
unsafe extern "C" fn begin(properties: u32, buffer: *const JumpBuffer) -> u32 {
    if properties & HAS_INSTRUMENTED_CODE == 0 {
        die(
            "a transaction has code that cannot be rolled back, so that its stores would not be \
             durable: use SELVEDGE_ATOMIC (__transaction_atomic) rather than __transaction_relaxed, and \
             build with -fgnu-tm",
        );
    }
    if properties & USES_UNDO_LOG != 0 {
        die("a transaction was built for a runtime with an undo log, which this is not");
    }
    let program = program::started();
    // SAFETY: the program called, and runs again after the return.
    let thread = unsafe { Thread::get(program) };
    // SAFETY: the naked function in front of this one has filled it.
    let buffer = unsafe { *buffer };
    match thread.depth {
        0 => {
            if let Err(why) = thread.begin_outermost(buffer) {
                // SAFETY: the reference is used no more; nothing has begun.
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

    /// An inner transaction that may be cancelled by itself.
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

    /// One transaction is over; the outermost one is committed. `exception`: it ends because
    /// this is on its way, or null. Whether something of the program is due now.
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

    /// Undoes all of the transaction but what the program does for that. Where it began.
    fn roll_back(&mut self) -> JumpBuffer {
        let Some(outermost) = self.levels.first() else {
            die("a transaction ends that has not begun");
        };
        let begin = outermost.jump;
        // Before others can see it.
        self.undo.roll_back(0, begin.cfa);
        self.session.roll_back();
        self.clear_levels();
        self.fresh.clear();
        self.blocks.clear();
        self.depth = 0;
        self.exceptions.rolled_back();
        begin
    }

    /// Undoes the innermost transaction that can be cancelled, or all. Where it began, and
    /// what the program has to undo.
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
            None => die("a transaction is cancelled that has not begun"),
        }
    }

    /// Begins again what was undone because of `why`, which `asker` met.
    ///
    /// # Errors
    /// It is of no use.
    fn begin_again(
        &mut self,
        why: Interrupted,
        asker: Asker,
        begin: JumpBuffer,
    ) -> Result<(), Failure> {
        match self.session.overcome(why, self.attempts) {
            Ok(()) => {}
            // The call returns the error when it asks again.
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

    /// Gives the transaction an id, which no other one has: of the thread's number, and how
    /// many it has run.
    fn set_id(&mut self) {
        self.ids += 1;
        self.id = u64::from(self.number) << 40 | self.ids & ((1 << 40) - 1);
    }
}

/// What a transaction is run again for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asker {
    /// A step of the transaction: a call that needs room in the heap can return an error.
    Step,
    /// The commit of the transaction, which fails if the heap has no room.
    Commit,
}

/// Runs the transaction again for one of its steps, unless that is of no use.
///
/// # Safety
/// As [`restart_for`].
#[cold]
pub(crate) unsafe fn restart(why: Interrupted) -> ! {
    // SAFETY: the caller's promise.
    unsafe { restart_for(Asker::Step, why) }
}

/// Runs the transaction again, unless that is of no use.
///
/// No method, and so with those that follow: whoever calls them has no reference to the thread
/// as an argument either. What the program does to undo its part, and what it does after the
/// jump, reaches the thread by itself.
///
/// # Safety
/// This thread runs a transaction, and no reference to its state is used any more.
#[cold]
unsafe fn restart_for(asker: Asker, why: Interrupted) -> ! {
    // SAFETY: the caller's promise; so below, since each reference is gone when something of
    // the program runs.
    let thread = unsafe { Thread::running() };
    // Whoever reads what others are changing meets nonsense, and is not to blame.
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

/// Cancels the innermost transaction that can be, or all.
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

/// Goes back to a begin.
///
/// # Safety
/// As [`restart`]: the frame of the begin waits for the end of its transaction; those in between
/// are the program's, which expects this, and ours, which have no destructors to run.
unsafe fn land(code: u32, at: JumpBuffer) -> ! {
    // SAFETY: the caller's promise.
    unsafe {
        // Off the stack, which is about to go.
        let landing = &raw mut Thread::running().landing;
        landing.write(at);
        jump(code, landing)
    }
}

/// What a step gave; if it was not done, the transaction runs again.
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

/// # Safety
/// As [`restart`].
unsafe fn commit(exception: *mut c_void) {
    // SAFETY: the caller's promise; the reference is gone when something of the program runs.
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
pub unsafe extern "C" fn _ITM_commitTransaction() {
    // SAFETY: the program called.
    unsafe { commit(std::ptr::null_mut()) };
}

/// The commit of a transaction that an exception leaves.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ITM_commitTransactionEH(exception: *mut c_void) {
    // SAFETY: as above.
    unsafe { commit(exception) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ITM_abortTransaction(reason: c_int) -> ! {
    // SAFETY: the program called.
    unsafe { cancel(reason & OUTER_ABORT != 0) }
}

#[unsafe(no_mangle)]
pub extern "C" fn _ITM_changeTransactionMode(_mode: c_int) {
    die(
        "a transaction would have to become irrevocable, for a call that cannot be rolled back: \
         take the call out of the transaction, or declare what it calls transaction_safe or \
         transaction_pure",
    );
}

/// 0: no transaction; 1: one that can be run again.
#[unsafe(no_mangle)]
pub extern "C" fn _ITM_inTransaction() -> c_int {
    // SAFETY: the program called.
    let thread = unsafe { Thread::current() };
    thread.is_some_and(|thread| thread.depth > 0).into()
}

#[unsafe(no_mangle)]
pub extern "C" fn _ITM_getTransactionId() -> u64 {
    // SAFETY: the program called.
    let thread = unsafe { Thread::current() };
    thread.filter(|t| t.depth > 0).map_or(NO_ID, |t| t.id)
}

#[unsafe(no_mangle)]
pub extern "C" fn _ITM_getThreadnum() -> c_int {
    // SAFETY: the program called.
    unsafe { Thread::get(program::started()) }.number as c_int
}

#[unsafe(no_mangle)]
pub extern "C" fn _ITM_versionCompatible(version: c_int) -> c_int {
    (version == VERSION).into()
}

#[unsafe(no_mangle)]
pub extern "C" fn _ITM_libraryVersion() -> *const c_char {
    concat!("Selvedge ", env!("CARGO_PKG_VERSION"), "\0")
        .as_ptr()
        .cast()
}

/// Where in the source something is wrong, as the interface has it.
#[repr(C)]
pub struct SourceLocation {
    reserved: [i32; 4],
    /// ";file;function;line;;", or null.
    text: *const c_char,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ITM_error(location: *const SourceLocation, error: c_int) -> ! {
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
