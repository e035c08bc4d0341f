//! Actions at the end of a transaction: frees, and functions that the program registered.
//!
//! A transaction that fails frees the memory that it allocated. Memory that it frees is freed
//! after its commit, when no other transaction reads that memory any more.

use crate::cxx::{self, Delete};
use crate::fatal::die;
use crate::space::canonical;
use crate::thread::Thread;
use crate::thread::actions::Mark;
use libc::c_void;
use mnemosyne::tx::Space;

/// Runs the actions for a commit, in their order.
///
/// # Safety
/// As [`Thread::running`]: an action may run transactions.
pub(crate) unsafe fn committed() {
    // SAFETY: the caller's promise; the reference is dropped before code of the program runs.
    let actions = &mut unsafe { Thread::running() }.actions;
    actions.on_failure.clear();
    for (call, argument) in std::mem::take(&mut actions.on_commit) {
        // SAFETY: the promise of the program, or of one of the functions below.
        unsafe { call(argument) };
    }
}

/// Runs the actions for an undone transaction, from the last one back to `mark`.
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
    /// Records memory that the transaction allocated.
    fn allocated(&mut self, memory: *mut c_void, len: usize, free: Delete) -> *mut c_void {
        if !memory.is_null() {
            self.actions.on_failure.push((free, memory));
            self.fresh.add(memory as u64, len as u64);
        }
        memory
    }

    /// Records memory that the transaction frees.
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

/// The state of this thread.
///
/// # Safety
/// As [`Thread::running`].
unsafe fn thread<'a>() -> &'a mut Thread {
    // SAFETY: the caller's promise.
    unsafe { Thread::running() }
}

/// Allocates memory in the running transaction. Returns null if there is none.
///
/// # Safety
/// As [`Thread::running`].
pub(super) unsafe fn allocate(len: usize) -> *mut c_void {
    // SAFETY: any length is valid; the rest is the caller's promise.
    unsafe { thread().allocated(libc::malloc(len), len, libc::free) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _ITM_malloc(len: usize) -> *mut c_void {
    // SAFETY: the program called.
    unsafe { allocate(len) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _ITM_calloc(count: usize, len: usize) -> *mut c_void {
    // SAFETY: any lengths are valid.
    let memory = unsafe { libc::calloc(count, len) };
    // If the product is too large, there is no memory.
    let len = count.saturating_mul(len);
    // SAFETY: the program called.
    unsafe { thread().allocated(memory, len, libc::free) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _ITM_free(memory: *mut c_void) {
    // SAFETY: the program called.
    unsafe { thread() }.freed(memory, libc::free);
}

macro_rules! news {
    ($($symbol:literal = $name:ident: $new:ident, $delete:ident;)*) => {$(
        #[unsafe(export_name = $symbol)]
        pub(crate) unsafe extern "C-unwind" fn $name(len: usize) -> *mut c_void {
            // SAFETY: any length is valid. An exception passes through no state of ours.
            let memory = unsafe { cxx::$new()(len) };
            // SAFETY: the program called.
            unsafe { thread() }.allocated(memory, len, cxx::$delete())
        }
    )*};
}

macro_rules! nothrow_news {
    ($($symbol:literal = $name:ident: $new:ident, $delete:ident;)*) => {$(
        #[unsafe(export_name = $symbol)]
        pub(crate) unsafe extern "C" fn $name(len: usize, tag: *const c_void) -> *mut c_void {
            // SAFETY: any length is valid; the tag is the caller's.
            let memory = unsafe { cxx::$new()(len, tag) };
            // SAFETY: the program called.
            unsafe { thread() }.allocated(memory, len, cxx::$delete())
        }
    )*};
}

/// Defines `operator delete`. The arguments after the first one have no effect here.
macro_rules! deletes {
    ($($symbol:literal = $name:ident: $delete:ident;)*) => {$(
        #[unsafe(export_name = $symbol)]
        pub(crate) unsafe extern "C" fn $name(memory: *mut c_void) {
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

/// Registers a call for the commit of the outermost transaction.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _ITM_addUserCommitAction(
    call: unsafe extern "C" fn(*mut c_void),
    _resuming: u64,
    argument: *mut c_void,
) {
    // SAFETY: the program called.
    unsafe { thread() }.actions.on_commit.push((call, argument));
}

/// Registers a call for the case that the transaction is undone.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _ITM_addUserUndoAction(
    call: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) {
    // SAFETY: the program called.
    unsafe { thread() }
        .actions
        .on_failure
        .push((call, argument));
}
