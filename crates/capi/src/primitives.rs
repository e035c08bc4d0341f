//! Write-through stores, flushes and fences, for programs that keep their own order.
//!
//! The header has calls, and not instructions, since a fence can fail. The durability in force
//! selects the instructions, or `msync` for a fence.
//!
//! A log may still have words that a transaction wrote to a line. Recovery would write them again.
//! So the flush of such a line truncates the logs.

use crate::message::report;
use crate::program::{self, Program};
use crate::space::canonical;
use crate::thread::Thread;
use libc::{c_int, c_void};
use medium::{Arena, EffectiveDurability, MediumError, Pmem, Rule};
use mnemosyne::tx::Space;
use std::sync::{Arc, OnceLock};
use wordlog::LogError;

/// The reason why the logs could not be truncated. It is permanent: flushed bytes are not durable.
static UNSETTLED: OnceLock<Arc<LogError>> = OnceLock::new();

/// Applies `how` to `len` bytes at `at`, given their offset in durable memory, and truncates the
/// logs so that no recovery changes them back. `None` if the bytes are volatile.
fn change(
    program: &Program,
    at: u64,
    len: usize,
    how: impl FnOnce(&Arena, u64) -> Result<(), MediumError>,
) -> Option<()> {
    let memory = program.memory.memory();
    let off = memory.space().offset(canonical(at))?;
    match how(memory.space().pmem(), off) {
        Ok(()) => {
            if let Err(why) = memory.truncate_for(off, len as u64) {
                let _ = UNSETTLED.set(why);
            }
        }
        Err(MediumError::OutOfRange { .. }) => {
            let why = format_args!(
                "the {len} bytes at {at:#x} are not in one region, although the addresses are \
                 those of durable memory"
            );
            report(libc::EINVAL, why);
        }
        Err(why) => report(libc::EIO, why),
    }
    Some(())
}

/// Stores `len` bytes around the cache; they are durable after the next fence.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_write_through(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
) {
    if len == 0 {
        return; // both addresses may be invalid
    }
    let store = |arena: &Arena, off| {
        // SAFETY: the program passed `len` bytes, and does not change them during the call.
        let bytes = unsafe { std::slice::from_raw_parts(from.cast(), len) };
        arena.try_store_nt(off, bytes)
    };
    if change(program::started(), to as u64, len, store).is_none() {
        // SAFETY: the program passed `len` bytes, and room for them.
        unsafe { std::ptr::copy(from.cast::<u8>(), to.cast(), len) };
    }
}

/// Starts to write back every line of `len` bytes; they are durable after the next fence.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn selvedge_flush(at: *const c_void, len: usize) {
    let flush = |arena: &Arena, off| arena.try_flush(off, len as u64);
    let _ = change(program::started(), at as u64, len, flush);
}

/// Waits until all that this thread wrote through or flushed is durable. Returns 0, or -1 if it
/// is not.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn selvedge_fence() -> c_int {
    let fenced = program::started()
        .memory
        .memory()
        .space()
        .pmem()
        .fence(Rule::GroupAfterGroup);
    match (fenced, UNSETTLED.get()) {
        (Ok(()), None) => return 0,
        (Err(why), _) => report(libc::EIO, why),
        (Ok(()), Some(why)) => report(libc::EIO, why),
    }
    -1
}

/// Whether a commit or fence survives a power failure (1), or a crash of the process only (0).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn selvedge_survives_power_failure() -> c_int {
    let durability = program::started().memory.backing().durability();
    (durability != EffectiveDurability::Process).into()
}

/// Whether `at` is in a region of durable memory.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn selvedge_is_persistent(at: *const c_void) -> c_int {
    let space = program::started().memory.memory().space();
    let off = space.offset(canonical(at as u64));
    off.is_some_and(|off| space.pmem().has(off, 1)).into()
}

/// The transactional clone of [`selvedge_is_persistent`].
#[unsafe(export_name = "_ZGTt22selvedge_is_persistent")]
pub(crate) extern "C" fn is_persistent_clone(at: *const c_void) -> c_int {
    selvedge_is_persistent(at)
}

/// Whether this thread is inside a transaction.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn selvedge_in_transaction() -> c_int {
    // SAFETY: the program called; the reference is dropped at once.
    let thread = unsafe { Thread::current() };
    thread.is_some_and(|thread| thread.depth > 0).into()
}
