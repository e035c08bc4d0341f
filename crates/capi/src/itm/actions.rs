//! What a transaction does at its end: frees, and what the program asked for.
//!
//! Memory that a transaction allocated is freed if it fails, and memory that it frees is freed
//! once it has committed and nobody reads it any more.

use crate::cxx::{self, Delete};
use crate::fatal::die;
use crate::space::canonical;
use crate::thread::Thread;
use crate::thread::actions::Mark;
use libc::c_void;
use mnemosyne::tx::Space;

/// The transaction has committed: does what is due, in order.
///
/// # Safety
/// As [`Thread::running`]: what is due may run transactions.
pub(crate) unsafe fn committed() {
    // SAFETY: the caller's promise; the reference is gone when something of the program runs.
    let actions = &mut unsafe { Thread::running() }.actions;
    actions.on_failure.clear();
    for (call, argument) in std::mem::take(&mut actions.on_commit) {
        // SAFETY: the program, or one of the functions below, vouched for it.
        unsafe { call(argument) };
    }
}

/// The transaction has left nothing of what it did since there were so many actions: does what
/// is due, the last first.
///
/// # Safety
/// As for [`committed`].
pub(crate) unsafe fn undone(mark: Mark) {
    // SAFETY: as in `committed`.
    let actions = &mut unsafe { Thread::running() }.actions;
    actions.on_commit.truncate(mark.on_commit);
    for (call, argument) in actions
        .on_failure
        .split_off(mark.on_failure)
        .into_iter()
        .rev()
    {
        // SAFETY: as in `committed`.
        unsafe { call(argument) };
    }
}

impl Thread {
    /// Memory that the transaction allocated.
    fn allocated(&mut self, memory: *mut c_void, len: usize, free: Delete) -> *mut c_void {
        if !memory.is_null() {
            self.actions.on_failure.push((free, memory));
            self.fresh.add(memory as u64, len as u64);
        }
        memory
    }

    /// Memory that it frees.
    fn freed(&mut self, memory: *mut c_void, free: Delete) {
        if memory.is_null() {
            return;
        }
        let space = self.program.memory.memory().space();
        if space.offset(canonical(memory as u64)).is_some() {
            die(format_args!(
                "a transaction frees the durable memory at {memory:p} as if it were volatile: \
                 use selvedge_pfree"
            ));
        }
        self.actions.on_commit.push((free, memory));
    }
}

/// The thread that allocates or frees.
///
/// # Safety
/// As [`Thread::running`].
unsafe fn thread<'a>() -> &'a mut Thread {
    // SAFETY: the caller's promise.
    unsafe { Thread::running() }
}

/// Memory of the running transaction. Null outside of transactions.
///
/// # Safety
/// As [`Thread::running`].
pub(super) unsafe fn allocate(len: usize) -> *mut c_void {
    // SAFETY: any length will do; the rest is the caller's promise.
    unsafe { thread().allocated(libc::malloc(len), len, libc::free) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ITM_malloc(len: usize) -> *mut c_void {
    // SAFETY: the program called.
    unsafe { allocate(len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ITM_calloc(count: usize, len: usize) -> *mut c_void {
    // SAFETY: any lengths will do.
    let memory = unsafe { libc::calloc(count, len) };
    // If the product is too large, there is no memory.
    let len = count.saturating_mul(len);
    // SAFETY: the program called.
    unsafe { thread().allocated(memory, len, libc::free) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ITM_free(memory: *mut c_void) {
    // SAFETY: the program called.
    unsafe { thread() }.freed(memory, libc::free);
}

macro_rules! news {
    ($($symbol:literal = $name:ident: $new:ident, $delete:ident;)*) => {$(
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C-unwind" fn $name(len: usize) -> *mut c_void {
            // SAFETY: any length will do. What it throws passes through nothing of ours.
            let memory = unsafe { cxx::$new()(len) };
            // SAFETY: the program called.
            unsafe { thread() }.allocated(memory, len, cxx::$delete())
        }
    )*};
}

macro_rules! nothrow_news {
    ($($symbol:literal = $name:ident: $new:ident, $delete:ident;)*) => {$(
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C" fn $name(len: usize, tag: *const c_void) -> *mut c_void {
            // SAFETY: any length will do; the tag is the caller's.
            let memory = unsafe { cxx::$new()(len, tag) };
            // SAFETY: the program called.
            unsafe { thread() }.allocated(memory, len, cxx::$delete())
        }
    )*};
}

/// What follows the first argument only says how to free, which is always the same.
macro_rules! deletes {
    ($($symbol:literal = $name:ident: $delete:ident;)*) => {$(
        #[unsafe(export_name = $symbol)]
        pub unsafe extern "C" fn $name(memory: *mut c_void) {
            // SAFETY: the program called.
            unsafe { thread() }.freed(memory, cxx::$delete());
        }
    )*};
}

news! {
    "_ZGTtnwm" = new: new, delete;
    "_ZGTtnam" = new_array: new_array, delete_array;
}
nothrow_news! {
    "_ZGTtnwmRKSt9nothrow_t" = new_nothrow: new_nothrow, delete;
    "_ZGTtnamRKSt9nothrow_t" = new_array_nothrow: new_array_nothrow, delete_array;
}
deletes! {
    "_ZGTtdlPv" = delete: delete;
    "_ZGTtdlPvm" = delete_sized: delete;
    "_ZGTtdlPvRKSt9nothrow_t" = delete_nothrow: delete;
    "_ZGTtdlPvmRKSt9nothrow_t" = delete_sized_nothrow: delete;
    "_ZGTtdaPv" = delete_array: delete_array;
    "_ZGTtdaPvm" = delete_array_sized: delete_array;
    "_ZGTtdaPvRKSt9nothrow_t" = delete_array_nothrow: delete_array;
    "_ZGTtdaPvmRKSt9nothrow_t" = delete_array_sized_nothrow: delete_array;
}

/// Has `call` called once the outermost transaction has committed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ITM_addUserCommitAction(
    call: unsafe extern "C" fn(*mut c_void),
    _resuming: u64,
    argument: *mut c_void,
) {
    // SAFETY: the program called.
    unsafe { thread() }.actions.on_commit.push((call, argument));
}

/// Has `call` called if the transaction is undone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ITM_addUserUndoAction(
    call: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) {
    // SAFETY: the program called.
    unsafe { thread() }
        .actions
        .on_failure
        .push((call, argument));
}
