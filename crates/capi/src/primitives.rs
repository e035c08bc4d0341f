//! Write-through stores, flushes and fences, for programs that keep their own order.
//!
//! Calls rather than instructions in the header: which instructions are needed, if any, and
//! whether a fence means `msync`, depends on the durability in force, and a fence can fail.

use crate::message::report;
use crate::program;
use crate::space::canonical;
use crate::thread::Thread;
use libc::{c_int, c_void};
use medium::{EffectiveDurability, Pmem};
use mnemosyne::tx::Space;

/// Stores `len` bytes around the cache; durable after the next fence.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn selvedge_write_through(to: *mut c_void, from: *const c_void, len: usize) {
    let space = program::started().memory.memory().space();
    match space.offset(canonical(to as u64)) {
        Some(off) => {
            // SAFETY: the program has so many bytes there, and nobody changes them meanwhile.
            let bytes = unsafe { std::slice::from_raw_parts(from.cast(), len) };
            space.pmem().store_nt(off, bytes);
        }
        // SAFETY: the program may copy so many bytes from here to there.
        None => unsafe { std::ptr::copy(from.cast::<u8>(), to.cast(), len) },
    }
}

/// Starts to write back every line of `len` bytes; durable after the next fence.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn selvedge_flush(at: *const c_void, len: usize) {
    let space = program::started().memory.memory().space();
    if let Some(off) = space.offset(canonical(at as u64)) {
        space.pmem().flush(off, len as u64);
    }
}

/// Waits until what this thread wrote through or flushed is durable. 0, or -1: it is not.
#[unsafe(no_mangle)]
pub extern "C" fn selvedge_fence() -> c_int {
    let fenced = program::started().memory.memory().space().pmem().fence();
    match fenced {
        Ok(()) => 0,
        Err(why) => {
            report(libc::EIO, why);
            -1
        }
    }
}

/// What a commit or fence survives: 0 the death of the process, 1 a power failure.
#[unsafe(no_mangle)]
pub extern "C" fn selvedge_survives_power_failure() -> c_int {
    let durability = program::started().memory.backing().durability();
    (durability != EffectiveDurability::Process).into()
}

/// Whether `at` is durable memory.
#[unsafe(no_mangle)]
pub extern "C" fn selvedge_is_persistent(at: *const c_void) -> c_int {
    let space = program::started().memory.memory().space();
    space.offset(canonical(at as u64)).is_some().into()
}

/// The transactional clone of [`selvedge_is_persistent`].
#[unsafe(export_name = "_ZGTt22selvedge_is_persistent")]
pub extern "C" fn is_persistent_clone(at: *const c_void) -> c_int {
    selvedge_is_persistent(at)
}

/// Whether this thread is inside a transaction.
#[unsafe(no_mangle)]
pub extern "C" fn selvedge_in_transaction() -> c_int {
    // SAFETY: the program called; the reference is gone at once.
    let thread = unsafe { Thread::current() };
    thread.is_some_and(|thread| thread.depth > 0).into()
}
